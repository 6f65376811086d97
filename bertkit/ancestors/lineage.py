"""What came before BERT, on one sentence: n-gram tables, a Huffman code and noise, and an HMM's best path.

Each is a real model, learnt in a second from the sample texts of a language.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from bertkit import samples
from bertkit.ancestors.hmm import HmmTagger
from bertkit.ancestors.ngram.model import NgramModel, NgramSettings, cut
from bertkit.ancestors.vectors.corpus import Corpus, number, words_of
from bertkit.ancestors.vectors.word2vec import huffman_paths
from bertkit.data.readers import read_tagged
from bertkit.errors import UserError

ORDER = 3
MOST_WORDS = 60
NOISE = 0.75  # the power of a word's count in word2vec's noise distribution


def lineage(text: str, language: str = "en", word: str = "", top: int = 3) -> dict[str, Any]:
    """One sentence as BERT's ancestors read it. language: of the samples they learn from, en or zh.

    ngram: [{word, context, probability, seen, guesses: [{word, probability}]}], one per word and one for the end.
    hmm: [{word, tag, shares: {tag: probability}}], the Viterbi path, and each word's probabilities over all paths.
    word: {word, count, share, noise, code, nodes} of one word (default: the rarest of the sentence; None if the samples
    have none of them); most: the same of the most frequent words.
    """
    words = [one for one in cut(text, "words", cased=False) if one.strip()]
    if not words:
        raise UserError("The text is empty: there is nothing to read.")
    if len(words) > MOST_WORDS:
        raise UserError(f"The text has {len(words)} words; at most {MOST_WORDS} are shown. Shorten it.")
    return {
        "words": words, "ngram": _ngram(words, language, top), "hmm": _hmm(text, language),
        **_vocabulary(words, language, word.lower()),
    }  # fmt: skip


def _passages(language: str) -> str:
    return samples.path(language, "passages.txt").read_text("utf-8")


@lru_cache(maxsize=2)
def ngram_model(language: str) -> NgramModel:
    """A trigram model of the sample passages."""
    settings = NgramSettings(order=ORDER, min_count=1, cased=False)
    return NgramModel(settings).fit(_passages(language).split("\n\n"))


def _ngram(words: list[str], language: str, top: int) -> list[dict[str, Any]]:
    model = ngram_model(language)
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
    """An HMM of the sample entities."""
    rows = list(read_tagged(samples.path(language, "entities_train.conll")))
    return HmmTagger().fit([row.tokens for row in rows], [row.tags or [] for row in rows])


def _hmm(text: str, language: str) -> list[dict[str, Any]]:
    tagger = hmm_tagger(language)
    words = [word for word in cut(text, "words", cased=True) if word.strip()]
    (path,) = tagger.tag([words])
    shares = np.exp(tagger.log_shares(words))
    return [
        {"word": word, "tag": tag, "shares": {name: float(p) for name, p in zip(tagger.tags, row) if p > 0.005}}
        for word, tag, row in zip(words, path, shares)
    ]


@lru_cache(maxsize=2)
def _corpus(language: str) -> tuple[Corpus, tuple[Any, Any, Any]]:
    sentences = [words for line in _passages(language).splitlines() if (words := words_of(line))]
    corpus = number(sentences, 1)
    return corpus, huffman_paths(corpus.counts)


def _vocabulary(words: list[str], language: str, word: str) -> dict[str, Any]:
    corpus, (starts, nodes, codes) = _corpus(language)
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
    return {"word": chosen, "most": [about(n) for n in range(8)], "vocabulary": len(corpus.names)}
