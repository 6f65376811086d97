"""Metrics of tags: entities extracted from tag sequences and compared as a whole.

The rules are the lenient ones of conlleval and seqeval: a stray I- begins an entity, so every sequence is valid.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from bertkit.errors import UserError
from bertkit.metrics.labels import class_rows, label_measures
from bertkit.metrics.tally import Array, Measures, Scores, Tally, check_same_length, score, share

Sentences = Sequence[Sequence[str]]

_PREFIXED = re.compile(r"([BIESMLUW])[-_](.*)", re.DOTALL)
_BARE = frozenset("BIESM")
# One alphabet for BIO, BIOES, BMES, BILOU and BMEWO.
_PREFIXES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
_OUTSIDE = -1


class Spans(NamedTuple):
    """Entities of a tag sequence without nesting: three arrays of (entities,), the end exclusive."""

    start: np.ndarray
    end: np.ndarray
    kind: np.ndarray


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The entities that tags mark: (label, start, end) of each, so that words[start:end] are its words.

    Reads BIO (IOB1 and IOB2), BIOES, BMES, BILOU, and tags without prefix (a run of one tag is one entity).
    Bare prefixes (B I E S M) have the label "_".
    """
    kinds: dict[str, int] = {}
    spans = _spans([tags], kinds)
    names = list(kinds)
    return [(names[kind], start, end) for start, end, kind in zip(*(side.tolist() for side in spans))]


def chunk_like(sentences: Sentences) -> bool:
    """Do these tags mark entities (rather than, say, parts of speech)?

    Yes if every tag is O or has a prefix, or if O is the most frequent tag.
    """
    counts = Counter(chain.from_iterable(sentences))
    marks = all(tag == "O" or tag in _BARE or _PREFIXED.fullmatch(tag) for tag in counts)
    return bool(counts) and (marks or counts.most_common(1)[0][0] == "O")


def tagging(gold: Sentences, predicted: Sentences) -> Scores:
    """Metrics of tags.

    For entity tags f1, precision, recall of whole entities, and accuracy of single tags; for other tags accuracy,
    macro_f1, micro_f1, mcc of single tags. The gold tags decide (`chunk_like`).
    """
    return score(tagging_tallies(gold, predicted))


def tagging_tallies(gold: Sentences, predicted: Sentences) -> list[Tally]:
    """The tally that `tagging` is computed from; items are sentences, since tags within one are dependent."""
    _check_sentences(gold, predicted)
    lengths = np.fromiter(map(len, gold), int, len(gold))
    sentence = np.repeat(np.arange(len(gold)), lengths)
    tag_codes = {tag: code for code, tag in enumerate(dict.fromkeys(chain(chain(*gold), chain(*predicted))))}
    truth, guess = (
        np.fromiter((tag_codes[tag] for tag in chain(*side)), int, len(sentence)) for side in (gold, predicted)
    )

    def per_sentence(owners: np.ndarray) -> Array:
        return np.bincount(owners, minlength=len(gold)).astype(float)

    if not chunk_like(gold):
        sides = (truth[truth == guess], sentence[truth == guess]), (truth, sentence), (guess, sentence)
        cells = [per_sentence_tag(tags, owners, len(gold), len(tag_codes)) for tags, owners in sides]
        return [Tally(np.column_stack(cells), _tag_measures)]
    truths, guesses, recalled = _compare(gold, predicted, {})
    # A separator O follows each sentence in the flat sequence, so that no entity crosses it.
    owner = np.repeat(np.arange(len(gold)), lengths + 1)
    right = per_sentence(sentence[truth == guess])
    counts = [per_sentence(owner[starts]) for starts in (truths.start[recalled], truths.start, guesses.start)]
    return [Tally(np.column_stack([*counts, right, lengths]), _entity_measures)]


def per_sentence_tag(tags: np.ndarray, owners: np.ndarray, sentences: int, kinds: int) -> Array:
    """How often each sentence (row) has each tag (column): (sentences, kinds)."""
    return np.bincount(owners * kinds + tags, minlength=sentences * kinds).reshape(sentences, kinds).astype(float)


def _tag_measures(columns: Array, weights: Array) -> Measures:
    """Accuracy and F1 of weighted tags, without entities."""
    right, truth, guess = np.split(weights @ columns, 3, axis=1)
    return label_measures(right, truth, guess)


def _entity_measures(columns: Array, weights: Array) -> Measures:
    """F1, precision and recall of weighted entities, and the accuracy of tags."""
    right, truth, guess, hits, tags = (weights @ columns).T
    return {
        "f1": share(2 * right, truth + guess),
        "precision": share(right, guess),
        "recall": share(right, truth),
        "accuracy": share(hits, tags),
    }


def per_type(gold: Sentences, predicted: Sentences) -> list[dict[str, str | float]]:
    """One row per entity label, sorted: label, precision, recall, f1, and how many are gold and predicted."""
    _check_sentences(gold, predicted)
    kinds: dict[str, int] = {}
    truths, guesses, recalled = _compare(gold, predicted, kinds)
    counts = [np.bincount(k, minlength=len(kinds)) for k in (truths.kind[recalled], truths.kind, guesses.kind)]
    rows = class_rows(list(kinds), *(count.astype(float) for count in counts))
    return sorted((row for row in rows if row["gold"] or row["predicted"]), key=lambda row: row["label"])


def _compare(gold: Sentences, predicted: Sentences, kinds: dict[str, int]) -> tuple[Spans, Spans, np.ndarray]:
    """Gold entities, predicted ones, and which gold ones were predicted: (gold entities,) booleans."""
    truths, guesses = _spans(gold, kinds), _spans(predicted, kinds)
    room = sum(map(len, gold)) + len(gold) + 1
    keys = [(s.start * room + s.end) * max(len(kinds), 1) + s.kind for s in (truths, guesses)]
    return truths, guesses, np.isin(keys[0], keys[1])


def _spans(sentences: Sentences, kinds: dict[str, int]) -> Spans:
    """All entities of the tagged sentences, an O after each; new labels are added to `kinds`."""
    flat = [tag for sentence in sentences for tag in (*sentence, "O")]
    numbers = {tag: number for number, tag in enumerate(dict.fromkeys(flat))}
    readings = np.array([_read(tag, kinds) for tag in numbers])
    kind, opens, closes = readings[np.fromiter((numbers[tag] for tag in flat), int, len(flat))].T
    inside = kind != _OUTSIDE
    continues = inside[1:] & (kind[1:] == kind[:-1]) & (opens[1:] == 0) & (closes[:-1] == 0)
    begins = inside & ~np.concatenate([[False], continues])
    ends = inside & ~np.concatenate([continues, [False]])
    start = np.flatnonzero(begins)
    return Spans(start, np.flatnonzero(ends) + 1, kind[start])


def _read(tag: str, kinds: dict[str, int]) -> tuple[int, int, int]:
    """One tag read as (label's number, must begin an entity, must end one)."""
    if tag == "O":
        return _OUTSIDE, 0, 0
    typed = _PREFIXED.fullmatch(tag)
    prefix, label = typed.groups() if typed else (tag, "_") if tag in _BARE else ("I", tag)
    letter = _PREFIXES[prefix]
    return kinds.setdefault(label or "_", len(kinds)), letter in "BS", letter in "ES"


def _check_sentences(gold: Sentences, predicted: Sentences) -> None:
    """Refuse sentences with different numbers of gold and predicted tags."""
    check_same_length(gold, predicted, "sentences")
    for number, (truth, guess) in enumerate(zip(gold, predicted), 1):
        if len(truth) != len(guess):
            raise UserError(
                f"Sentence {number} has {len(truth)} gold tags and {len(guess)} predicted tags. "
                "Predict one tag per word, including words beyond the model's window."
            )
    if not any(map(len, gold)):
        raise UserError("There is nothing to score: every sentence is empty. Give at least one tag.")
