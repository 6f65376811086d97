"""One word in several texts: its vectors by model and layer, and how alike they are.

A static model (word2vec, GloVe) has one vector per word, whatever surrounds it. ELMo, GPT and BERT compute a new one in
every text, and the layers differ in how much of the text it holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.bert_features import GivesVectors
from bertkit.ancestors.elmo.model import Elmo
from bertkit.ancestors.ngram.model import cut, word_offsets
from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.data.windows import rows_of
from bertkit.errors import UserError
from bertkit.model.encoder import Encoded
from bertkit.text.words import is_cjk

Span = tuple[int, int]
Vectors = NDArray[np.float32]  # (layers, texts, width)
Reader = WordVectors | Elmo | GivesVectors


def meaning(
    word: str, texts: Sequence[str], models: Mapping[str, Reader], senses: Sequence[str] = ()
) -> dict[str, Any]:
    """How alike the vectors of a word are in these texts, by model and layer. senses: what the word means in each.

    Returns {word, texts, spans, models: [{model, kind, units, layers: [{layer, cosines}]}]}. spans: [start, end) of the
    word in each text; units: what the model reads there, a whole word or pieces of one; cosines: (texts, texts) as
    lists. A model that does not know the word has no layers. Layer 0 is the embedding, before any context. With senses
    of which some are equal and some differ, a layer also has same and other (mean cosines) and auc (`sense_auc`).
    """
    if senses and len(senses) != len(texts):
        raise UserError(f"There are {len(texts)} texts but {len(senses)} senses. Give one sense per text.")
    spans = [find(word, text, number) for number, text in enumerate(texts, 1)]
    rows = []
    for name, model in models.items():
        kind, units, vectors = word_vectors(model, texts, spans)
        layers = [] if vectors is None else [
            {"layer": number, "cosines": cosines(layer).round(6).tolist(), **_separation(layer, senses)}
            for number, layer in enumerate(vectors)
        ]  # fmt: skip
        rows.append({"model": name, "kind": kind, "units": units, "layers": layers})
    return {"word": word, "texts": list(texts), "spans": [list(span) for span in spans], "models": rows}


def _separation(vectors: NDArray[np.float32], senses: Sequence[str]) -> dict[str, float]:
    """How alike two uses of one sense are, two of different ones, and how well that tells them apart."""
    if not 1 < len(set(senses)) < len(senses):
        return {}
    table = cosines(vectors)
    first, second = np.triu_indices(len(senses), 1)
    same = np.array([senses[a] == senses[b] for a, b in zip(first.tolist(), second.tolist())])
    pairs = table[first, second]
    return {
        "same": float(pairs[same].mean()), "other": float(pairs[~same].mean()), "auc": sense_auc(vectors, senses)
    }  # fmt: skip


def find(word: str, text: str, number: int = 1) -> Span:
    """Where the compared word first stands in a text: [start, end). Words with spaces around them are matched whole."""
    if not word.strip():
        raise UserError("The word is empty. Give a word that all the texts contain.")
    border = ("", "") if any(map(is_cjk, word)) else (r"(?<!\w)", r"(?!\w)")
    match = re.search(border[0] + re.escape(word) + border[1], text, re.IGNORECASE)
    if match is None:
        raise UserError(f"Text {number} does not contain the word {word!r}: {text!r}. Write it as it is in the text.")
    return match.span()


def word_vectors(
    model: Reader, texts: Sequence[str], spans: Sequence[Span]
) -> tuple[str, list[list[str]], Vectors | None]:
    """What `meaning` compares: the kind of model, what it reads at each span, and the vectors (layers, texts, width).

    Where a word has several pieces, its vector is their mean. A static model that does not have the word gives None.
    """
    if isinstance(model, WordVectors):
        return _static(model, texts, spans)
    if isinstance(model, Elmo):
        return _elmo(model, texts, spans)
    return _encoder(model, texts, spans)


def cosines(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosines of a word's vectors in several texts: (texts, width) → (texts, texts)."""
    wide = vectors.astype(np.float64)
    unit = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return unit @ unit.T


def sense_auc(vectors: NDArray[np.float32], senses: Sequence[str]) -> float:
    """How well cosines tell two uses of one sense from two uses of different senses: area under the ROC curve.

    vectors: (texts, width) of one word. 1: every pair of one sense is more alike than every pair of two; 0.5: chance.
    """
    table = cosines(vectors).round(6)  # equal vectors are equal, whatever the last bit says
    first, second = np.triu_indices(len(senses), 1)
    same = np.array([senses[a] == senses[b] for a, b in zip(first.tolist(), second.tolist())])
    alike, other = table[first, second][same], table[first, second][~same]
    if not len(alike) or not len(other):
        raise UserError("Two uses of one sense and two of different senses are needed to compare them.")
    gaps = alike[:, None] - other
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


def _static(
    model: WordVectors, texts: Sequence[str], spans: Sequence[Span]
) -> tuple[str, list[list[str]], Vectors | None]:
    """The word's vector from word2vec or GloVe, the same in every text."""
    words = [text[a:b] for text, (a, b) in zip(texts, spans)]
    known = [next((form for form in (word, word.lower()) if form in model), None) for word in words]
    if None in known:
        return "static", [[] for _ in words], None
    vectors = np.stack([model.vector(str(word)) for word in known])
    return "static", [[str(word)] for word in known], vectors[None]


def _elmo(model: Elmo, texts: Sequence[str], spans: Sequence[Span]) -> tuple[str, list[list[str]], Vectors]:
    """The word's vectors from each of ELMo's layers."""
    lexicon = model.lexicon
    sentences = [cut(" ".join(text.split("\n")), lexicon.units, cased=True) for text in texts]
    places = [_covering(words, text, span) for words, text, span in zip(sentences, texts, spans)]
    layers = model.layers(sentences)
    vectors = [layer[:, at].mean(1) for layer, at in zip(layers, places)]
    units = [[words[n] for n in at] for words, at in zip(sentences, places)]
    return "elmo", units, np.stack(vectors, 1)


def _covering(words: Sequence[str], text: str, span: Span) -> list[int]:
    """The numbers of the words that share a character with the compared word's span."""
    offsets = enumerate(word_offsets(words, text))
    return [number for number, (start, end) in offsets if start < span[1] and end > span[0]]


def _encoder(model: GivesVectors, texts: Sequence[str], spans: Sequence[Span]) -> tuple[str, list[list[str]], Vectors]:
    """The word's vectors from each of BERT's layers: the mean over its pieces."""
    tokenizer, windows = model.tokenizer, model.windows("window")
    rows, places, units = [], [], []
    for text, (start, end) in zip(texts, spans):
        for row in rows_of(tokenizer, tokenizer.encode(text), windows).rows:
            assert row.encoding is not None
            offsets = row.encoding.offsets
            at = [n for n in range(*row.core) if offsets[n][0] < end and offsets[n][1] > start]
            if at:
                break
        else:
            raise UserError(f"The tokenizer has no piece for {text[start:end]!r} in {text!r}. Use another model.")
        rows.append(row)
        places.append(at)
        units.append([tokenizer.id_to_token(row.ids[n]) or "" for n in at])

    def use(encoded: Encoded) -> list[list[NDArray[np.float32]]]:
        """Per row, every layer's (tokens, width)."""
        layers = [encoded.batch.split(layer.float().cpu()) for layer in encoded.layers]
        return [[part.numpy() for part in row] for row in zip(*layers)]

    vectors = [
        np.stack([layer[at].mean(0) for layer in layers])
        for layers, at in zip(model.run(rows, use, layers=True), places)
    ]
    return "gpt" if model.config.causal else "bert", units, np.stack(vectors, 1)
