"""Which tokens are masked, and what replaces them: a pure function of a random generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from bertkit.data.packing import Example
from bertkit.settings.training import MaskSettings
from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class MaskVocabulary:
    """The vocabulary as masking sees it: the mask's id, and the ids that may replace a masked piece."""

    mask: int
    ordinary: np.ndarray  # ids that may replace a masked piece: all but the specials

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> MaskVocabulary:
        """The vocabulary of a tokenizer; mask is -1 where it has none."""
        ordinary = np.setdiff1d(np.arange(tokenizer.size), list(tokenizer.special_ids))
        return cls(tokenizer.mask_id if tokenizer.mask_id is not None else -1, ordinary)


def mask_tokens(
    example: Example, settings: MaskSettings, rate: float, pieces: MaskVocabulary, chance: Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mask tokens of a row: returns (ids with the masked tokens replaced, the masked places, in order)."""
    candidates = np.flatnonzero(~example.special)
    budget = max(1, round(len(candidates) * rate)) if rate and len(candidates) else 0
    budget = min(budget, settings.most or budget, len(candidates))
    task = _Task(example, candidates, budget, settings.most_span, chance)
    places = np.sort(UNITS[settings.unit](task))
    ids = example.ids.copy()
    fate = chance.random(len(places))
    ids[places[fate < settings.mask]] = pieces.mask
    swapped = places[(fate >= settings.mask) & (fate < settings.mask + settings.random)]
    ids[swapped] = pieces.ordinary[chance.integers(0, len(pieces.ordinary), len(swapped))]
    return ids, places


@dataclass(frozen=True)
class _Task:
    """What a unit chooses from: `budget` of the `candidates` (places that are not special) of an example."""

    example: Example
    candidates: np.ndarray
    budget: int
    most_span: int
    chance: Generator


def _tokens(task: _Task) -> np.ndarray:
    return task.chance.permutation(task.candidates)[: task.budget]


def _words(task: _Task) -> np.ndarray:
    """Mask whole words in random order; one beyond the budget is skipped (as in BERT's whole-word code)."""
    return _runs(task, np.ones(1))


def _spans(task: _Task) -> np.ndarray:
    """Mask runs of one to `most_span` words, n with a probability in proportion to 1/n (ALBERT's rule)."""
    return _runs(task, 1 / np.arange(1, task.most_span + 1))


def _runs(task: _Task, odds: np.ndarray) -> np.ndarray:
    """Mask whole runs of words (n-grams) until the budget is spent."""
    candidates, budget, chance = task.candidates, task.budget, task.chance
    # A word begins where the store says so, and after every special token.
    begins = task.example.word_starts[candidates] | np.concatenate([[True], np.diff(candidates) > 1])
    firsts = np.flatnonzero(begins)
    bounds = np.append(firsts, len(candidates))
    order = chance.permutation(len(firsts))
    sizes = chance.choice(len(odds), len(firsts), p=odds / odds.sum()) + 1 if len(odds) > 1 else np.ones_like(order)
    masked = np.zeros(len(candidates), bool)
    remaining = budget
    for word, size in zip(order, sizes):
        start, stop = bounds[word], bounds[min(word + size, len(firsts))]
        if stop - start > remaining or masked[start:stop].any():
            continue
        masked[start:stop] = True
        remaining -= stop - start
        if not remaining:
            break
    if remaining == budget and budget:  # every word is longer than the budget: mask one whole word anyway
        masked[bounds[order[0]] : bounds[order[0] + 1]] = True
    return candidates[masked]


UNITS = {"token": _tokens, "word": _words, "span": _spans}


# ---- Masking, shown: what happened to each token.


def described(tokenizer: Tokenizer, example: Example, ids: np.ndarray, places: np.ndarray) -> dict[str, Any]:
    """A row before and after masking, for people to read.

    tokens: [{token, shown (after masking), segment, special, word (begins one), fate}]; fate is mask, random or kept
    for a token that is to be predicted, else empty. label: 0 where the second text follows (or is in order), 1 where
    it does not (or is swapped), -1 if the row is not a pair. masked: how many tokens are to be predicted.
    """
    fates = dict.fromkeys(places.tolist(), "kept")
    for place in places.tolist():
        if ids[place] != example.ids[place]:
            fates[place] = "mask" if ids[place] == tokenizer.mask_id else "random"
    tokens = [
        {
            "token": tokenizer.id_to_token(int(before)) or "", "shown": tokenizer.id_to_token(int(after)) or "",
            "segment": int(segment), "special": bool(special), "word": bool(word), "fate": fates.get(place, ""),
        }
        for place, (before, after, segment, special, word) in enumerate(
            zip(example.ids, ids, example.segments, example.special, example.word_starts)
        )
    ]  # fmt: skip
    return {"label": example.label, "masked": len(places), "tokens": tokens}
