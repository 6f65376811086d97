"""What came before BERT, on one sentence: n-grams, a Huffman code and noise, an HMM's path, word2vec, ELMo, GPT, the
Transformer.

Each is a real model. The counting ones are learnt at once from a text, yours or the samples of a language; the neural
ones in seconds, in front of the reader (`ancestor_live`), or are opened from their folders (`ancestor_shown`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from bertkit import samples
from bertkit.ancestors.elmo.model import Elmo
from bertkit.ancestors.elmo.train import BiLMObjective, WordFeed, stretches
from bertkit.ancestors.elmo.words import read_text
from bertkit.ancestors.hmm import HmmTagger
from bertkit.ancestors.language_model import gpt
from bertkit.ancestors.ngram.model import NgramModel, NgramSettings, cut
from bertkit.ancestors.transformer.data import PairFeed, encode_pairs, ends
from bertkit.ancestors.transformer.model import Seq2Seq, Transformer
from bertkit.ancestors.transformer.train import Rewriting
from bertkit.ancestors.vectors import word2vec
from bertkit.ancestors.vectors.corpus import Corpus, number, words_of
from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.ancestors.vectors.word2vec import huffman_paths
from bertkit.checkpoint.folder import Folder
from bertkit.data.batch import Batch, pack
from bertkit.data.examples import TextRow
from bertkit.data.readers import read_tagged
from bertkit.errors import UserError, suggest
from bertkit.model.heads import Model
from bertkit.objectives.causal import NextToken
from bertkit.settings.ancestors import ElmoNumbers, Seq2SeqShape
from bertkit.settings.model import Config
from bertkit.settings.training import LoopSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from bertkit.text.words import is_cjk
from bertkit.training.loop import Objective, Training
from bertkit.training.run import run_in_view

ORDER = 3
MOST_WORDS = 60
NOISE = 0.75  # the power of a word's count in word2vec's noise distribution


def lineage(text: str, language: str = "en", word: str = "", top: int = 3, passage: str = "") -> dict[str, Any]:
    """One sentence as BERT's ancestors read it. passage: the text they learn from; without one, the samples of the
    language, en or zh. The HMM learns from the samples' entities in any case: it needs tags.

    ngram: [{word, context, probability, seen, guesses: [{word, probability}]}], one per word and one for the end.
    hmm: [{word, tag, shares: {tag: probability}}], the Viterbi path, and each word's probabilities over all paths.
    word: {word, count, share, noise, code, nodes} of one word (default: the rarest of the sentence; None if the samples
    have none of them); most: the same of the most frequent words.
    """
    words = [each for each in cut(text, "words", cased=False) if each.strip()]
    if not words:
        raise UserError("The text is empty: there is nothing to read.")
    if len(words) > MOST_WORDS:
        raise UserError(f"The text has {len(words)} words; at most {MOST_WORDS} are shown. Shorten it.")
    return {
        "words": words, "ngram": _ngram(words, language, passage, top), "hmm": _hmm(text, language),
        **_vocabulary(words, language, passage, word.lower()),
    }  # fmt: skip


def _passages(language: str, passage: str = "") -> str:
    """The text the ancestors learn from: the user's, or the samples."""
    if passage.strip():
        return passage
    return samples.path(language, "passages.txt").read_text("utf-8")


@lru_cache(maxsize=4)
def ngram_model(language: str, passage: str = "") -> NgramModel:
    """The lineage's trigram model of a text, or of the sample passages."""
    settings = NgramSettings(order=ORDER, min_count=1, cased=False)
    return NgramModel(settings).fit(_passages(language, passage).split("\n\n"))


def _ngram(words: list[str], language: str, passage: str, top: int) -> list[dict[str, Any]]:
    """Each word of the sentence as an n-gram model predicts it from the words before."""
    model = ngram_model(language, passage)
    rows = []
    for n, word in enumerate([*words, "</s>"]):
        context = ["<s>", *words[:n]][-(ORDER - 1) :]
        probability = model.probability(context)
        shown = probability.copy()
        shown[:2] = 0  # <unk> and <s> are no guesses
        best = np.argsort(-shown, kind="stable")[:top]
        rows.append({
            "word": word, "context": context, "probability": float(probability[model.ids.get(word, 0)]),
            "seen": word in model.ids,
            "guesses": [{"word": model.words[i], "probability": float(shown[i])} for i in best],
        })  # fmt: skip
    return rows


@lru_cache(maxsize=2)
def hmm_tagger(language: str) -> HmmTagger:
    """The lineage's HMM of the sample entities."""
    rows = list(read_tagged(samples.path(language, "entities_train.conll")))
    return HmmTagger().fit([row.tokens for row in rows], [row.tags or [] for row in rows])


def _hmm(text: str, language: str) -> list[dict[str, Any]]:
    """The most likely path of tags through the sentence, and each word's tag probabilities."""
    tagger = hmm_tagger(language)
    words = [word for word in cut(text, "words", cased=True) if word.strip()]
    (path,) = tagger.tag([words])
    shares = np.exp(tagger.log_shares(words))
    return [
        {"word": word, "tag": tag, "shares": {name: float(p) for name, p in zip(tagger.tags, row) if p > 0.005}}
        for word, tag, row in zip(words, path, shares)
    ]


def _sentences(language: str, passage: str) -> list[list[str]]:
    return [words for line in _passages(language, passage).splitlines() if (words := words_of(line))]


@lru_cache(maxsize=4)
def _corpus(language: str, passage: str = "") -> tuple[Corpus, tuple[Any, Any, Any]]:
    """word2vec's vocabulary of a passage, and its Huffman code."""
    corpus = number(_sentences(language, passage), 1)
    return corpus, huffman_paths(corpus.counts)


def _vocabulary(words: list[str], language: str, passage: str, word: str) -> dict[str, Any]:
    """How word2vec sees some words: Huffman paths, and how often each is drawn as noise."""
    corpus, (starts, nodes, codes) = _corpus(language, passage)
    places = {name: n for n, name in enumerate(corpus.names)}
    noise = corpus.counts**NOISE / (corpus.counts**NOISE).sum()

    def about(place: int) -> dict[str, Any]:
        path = slice(int(starts[place]), int(starts[place + 1]))
        return {
            "word": corpus.names[place], "count": int(corpus.counts[place]),
            "share": float(corpus.counts[place] / corpus.counts.sum()), "noise": float(noise[place]),
            "code": "".join(map(str, codes[path].tolist())), "nodes": nodes[path].tolist(),
        }  # fmt: skip

    known = [places[name] for name in ([word] if word else words) if name in places]
    chosen = about(max(known)) if known else None
    return {
        "word": chosen,
        "most": [about(n) for n in range(min(8, len(corpus.names)))],
        "vocabulary": len(corpus.names),
    }


# ---- Neural ancestors: one learns in front of the reader, or a finished one is shown.

KINDS = ("word2vec", "elmo", "gpt", "transformer")
ELMO = ElmoNumbers(width=64, cells=96, filters=((1, 16), (2, 32), (3, 48)), dropout=0.1)
GPT: dict[str, Any] = {
    "width": 96, "depth": 2, "heads": 4, "inner": 256, "positions": 64, "max_tokens": 64, "segments": 0, "norm": "pre",
    "embedding_norm": False, "causal": True, "summary": "last", "word_head": "plain", "dropout": 0.1,
}  # fmt: skip
SHAPE: dict[str, Any] = {"width": 64, "depth": 1, "heads": 4, "inner": 128, "max_tokens": 32, "dropout": 0.0}
CONTINUED = 10  # pieces that a GPT writes on
REVERSED = (30, 8, 3000)  # words, words of a source at most, pairs: what the Transformer learns to write backwards


@dataclass
class _Gpt:
    """A GPT that was just trained: a folder's content that answers (`language_model.gpt.Causal`)."""

    folder: Folder
    device: str = "cpu"

    @property
    def model(self) -> Model:
        return self.folder.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.folder.tokenizer

    @property
    def config(self) -> Config:
        return self.folder.model.config


def ancestor_shown(model: Any, text: str, word: str = "", top: int = 5) -> dict[str, Any]:
    """What a finished ancestor makes of a sentence, by its kind.

    word2vec, GloVe: {kind, word, neighbours: [{word, cosine}]} of the word, or of the sentence's rarest that is known.
    ELMo: {kind, words}, each word guessed from both sides (`Elmo.both_ways`).
    GPT: {kind, steps: [{text, guesses: [{token, score}]}], text}, the sentence continued by the likeliest piece.
    Transformer: {kind, source, target, text, finished, maps} (`Seq2Seq.cross_attention`).
    """
    if isinstance(model, WordVectors):
        words = [word.lower()] if word else [each for each in words_of(text) if each in model]
        known = [each for each in words if each in model]
        near = model.neighbours(known[-1], top=top) if known else []
        rows = [{"word": name, "cosine": cosine} for name, cosine in near]
        return {"kind": "word2vec", "word": known[-1] if known else None, "neighbours": rows}
    if isinstance(model, Elmo):
        return {"kind": "elmo", "words": model.both_ways(text, top)}
    if isinstance(model, Seq2Seq):
        return {"kind": "transformer", **model.cross_attention(text)}
    steps = []
    for _ in range(CONTINUED):
        guesses = gpt.suggest(model, text, top)
        rows = [{"token": each["token"], "score": each["score"]} for each in guesses]
        steps.append({"text": text, "guesses": rows})
        if not guesses:
            break
        text = guesses[0]["text"]
    return {"kind": "gpt", "steps": steps, "text": text}


def ancestor_live(
    kind: str, text: str, *, language: str = "en", passage: str = "", word: str = "", steps: int = 200,
    seconds: float = 30.0, seed: int = 0, every: int = 20,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """An ancestor of KINDS learns from nothing. passage: the text it learns from (default: the samples of a language).

    The Transformer learns to write words of the passage backwards, or, where lines of it hold a tab, to turn what
    stands before the tab into what stands after. Yields {start: {kind, parameters, words}}, then {step, loss, seconds,
    shown} (`ancestor_shown`), and last {end: steps or seconds, model}.
    """
    if kind not in KINDS:
        raise UserError(f"kind is {kind!r}. {suggest(kind, list(KINDS))}")
    if not text.strip():
        raise UserError("The text is empty: there is nothing to read.")
    if kind == "word2vec":
        sentences = _sentences(language, passage) + [words for line in text.splitlines() if (words := words_of(line))]
        vectors = word2vec.train(sentences, word2vec.Word2VecSettings(dim=50, min_count=1, epochs=20, seed=seed))
        count = sum(map(len, sentences))
        yield {"start": {"kind": kind, "parameters": len(vectors) * vectors.width, "words": count}}
        yield {"step": 20, "loss": None, "seconds": 0.0, "shown": ancestor_shown(vectors, text, word)}
        yield {"end": "steps", "model": vectors}
        return
    made: tuple[Any, Objective, Any, float]
    made = {"elmo": _elmo, "gpt": _gpt, "transformer": _transformer}[kind](text, _passages(language, passage), seed)
    model, objective, feed, rate = made
    parameters = sum(parameter.numel() for parameter in objective.parameters())
    yield {"start": {"kind": kind, "parameters": parameters, "words": sum(map(len, _sentences(language, passage)))}}
    training = Training(objective, feed, steps, LoopSettings(lr=rate, warmup=0.05, beta2=0.99), seed)
    finished = model.folder if isinstance(model, _Gpt) else model
    for event in run_in_view(training, seconds, every, lambda: {"shown": ancestor_shown(model, text, word)}):
        yield event | {"model": finished} if "end" in event else event


def _elmo(text: str, passage: str, seed: int) -> tuple[Elmo, Objective, Any, float]:
    """A small ELMo that learns live from a passage: the model, its objective and its feed."""
    lexicon, numbered = read_text([passage, text], vocabulary=5000, units="words", cased=True)
    model = Elmo(lexicon, ELMO, seed)
    rows = stretches(numbered.ends[:-1], numbered.ends[1:], 32)
    return model, BiLMObjective(model.model), WordFeed(numbered, rows, batch_words=256, seed=seed), 6e-3


@dataclass
class _Stretches:
    """A feed of stretches of a text: every step takes a random choice of them."""

    ids: list[int]
    begin: int
    seed: int
    length: int = 32
    batch: int = 16

    def step(self, step: int) -> list[Batch]:
        """The batch of this step of an ancestor that learns in view."""
        chance = np.random.default_rng((self.seed, step))
        starts = chance.integers(0, max(1, len(self.ids) - self.length), self.batch).tolist()
        return [pack([[self.begin, *self.ids[start : start + self.length]] for start in starts])]


def _gpt(text: str, passage: str, seed: int) -> tuple[_Gpt, Objective, _Stretches, float]:
    """A small GPT that learns live from a passage."""
    lines = [line.strip() for line in passage.splitlines() if line.strip()]
    tokenizer = learn([*lines, text], VocabularySettings(size=min(3000, 200 + len(passage) // 4), min_frequency=2))
    torch.manual_seed(seed)
    model = Model(Config(vocabulary=tokenizer.size, **GPT), {"mlm": 0}, pooler=False)
    ids = [n for line in tokenizer.pieces_batch(lines) for n in line]
    begin, _ = ends(tokenizer)
    folder = Folder(model, tokenizer, "gpt2", name="gpt")
    return _Gpt(folder), NextToken(model), _Stretches(ids, begin, seed), 2e-3


def _transformer(text: str, passage: str, seed: int) -> tuple[Seq2Seq, Objective, PairFeed, float]:
    """A small Transformer that learns live from pairs, or to reverse the passage's words."""
    pairs = [tuple(line.split("\t")[:2]) for line in passage.splitlines() if "\t" in line]
    chance = np.random.default_rng(seed)
    if not pairs:
        most, longest, count = REVERSED
        own = [word for word in cut(text, "words", cased=False) if word.strip()]
        counts = Counter(words_of(passage))
        words = sorted({*own[:MOST_WORDS], *(word for word, _ in counts.most_common(most))})
        between = "" if any(map(is_cjk, "".join(own) or passage)) else " "
        for size in chance.integers(2, max(longest, min(len(own), longest + 4)) + 1, count).tolist():
            chosen = chance.choice(words, size).tolist()
            pairs.append((between.join(chosen), between.join(chosen[::-1])))
    tokenizer = learn(
        [text_of_pair for pair in pairs for text_of_pair in pair],
        VocabularySettings(size=400 + len(passage) // 8, min_frequency=1),
    )
    shape = Seq2SeqShape(vocabulary=tokenizer.size, **SHAPE)
    rows = [TextRow(source, target, line=n) for n, (source, target) in enumerate(pairs, 1)]
    encoded, _ = encode_pairs(rows, tokenizer, shape.max_tokens, "drop", "passage")
    torch.manual_seed(seed)
    model = Transformer(shape)
    model.initialise()
    feed = PairFeed(encoded, batch=64, seed=seed, micro_tokens=8192)
    return Seq2Seq(model, tokenizer), Rewriting(model), feed, 5e-3
