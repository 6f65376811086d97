"""A linear-chain conditional random field: tags of a sentence chosen jointly instead of word by word.

A sequence of tags scores the sum of its words' scores (emissions, from the token head), of the scores of neighbouring
tags, and of what it begins and ends with; its probability is exp(score) over that sum for all sequences. Lafferty,
McCallum and Pereira 2001. All texts of a batch are processed word by word together; `lengths` says where each one ends.
Here tags are chosen, in numpy, whatever computed the words' scores; `Crf` of heads.py learns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

FORBIDDEN = -1e4  # below any learned score, but finite, so that sums and their gradients stay finite

_TAG = re.compile(r"([BIMELSUW])(?:[-_](.*))?", re.DOTALL)
_OPENS, _CONTINUES, _CLOSES, _SINGLE = "B", "IM", "EL", "SUW"  # of BIO, BIOES, BMES, BILOU and BMEWO


Array: TypeAlias = NDArray[np.floating]


class Chain(NamedTuple):
    """Transition scores of a CRF. start, end: (labels,); step: (labels, labels), from the row to the column."""

    start: Array
    step: Array
    end: Array

    def under(self, rules: Chain | None) -> Chain:
        """The CRF's scores with `rules` (0 or FORBIDDEN) added where given."""
        return self if rules is None else Chain(*(a + b for a, b in zip(self, rules)))


def log_marginals(emissions: Array, lengths: Sequence[int], chain: Chain) -> Array:
    """The CRF's marginal log-probability of each tag at each word: (texts, words, labels)."""
    is_word = _there(emissions, lengths)
    prefixes = [chain.start + emissions[:, 0]]
    for word in range(1, emissions.shape[1]):
        onward = _log_sum(prefixes[-1][:, :, None] + chain.step, 1) + emissions[:, word]
        prefixes.append(np.where(is_word[:, word, None], onward, prefixes[-1]))
    suffixes = [np.broadcast_to(chain.end, emissions[:, 0].shape)]
    for word in range(emissions.shape[1] - 1, 0, -1):
        backward = _log_sum(chain.step + (emissions[:, word] + suffixes[-1])[:, None, :], 2)
        suffixes.append(np.where(is_word[:, word, None], backward, suffixes[-1]))
    joint = np.stack(prefixes, 1) + np.stack(suffixes[::-1], 1)
    return joint - _log_sum(joint, 2)[:, :, None]


def best_path(emissions: Array, lengths: Sequence[int], chain: Chain) -> NDArray[np.int64]:
    """The CRF's sequence with the highest score (Viterbi): (texts, words); 0 past a text's end."""
    is_word = _there(emissions, lengths)
    texts = np.arange(len(emissions))
    best = chain.start + emissions[:, 0]
    came_from = []
    stay = np.broadcast_to(np.arange(emissions.shape[2]), best.shape)
    for word in range(1, emissions.shape[1]):
        reached = best[:, :, None] + chain.step
        best = np.where(is_word[:, word, None], reached.max(1) + emissions[:, word], best)
        came_from.append(np.where(is_word[:, word, None], reached.argmax(1), stay))
    tags = [(best + chain.end).argmax(1)]
    for before in reversed(came_from):
        tags.append(before[texts, tags[-1]])
    return np.where(is_word, np.stack(tags[::-1], 1), 0)


def _log_sum(x: Array, axis: int) -> Array:
    highest = x.max(axis)
    return highest + np.log(np.exp(x - np.expand_dims(highest, axis)).sum(axis))


def _there(emissions: Array, lengths: Sequence[int]) -> NDArray[np.bool_]:
    """Which places of the CRF are words: (texts, words)."""
    return np.arange(emissions.shape[1]) < np.asarray(lengths)[:, None]


def rules_of(labels: Sequence[str]) -> Chain | None:
    """Transitions of tags that BIO and related schemes forbid in a CRF, as 0 or FORBIDDEN; None for other tags.

    An entity continues (I, M) or closes (E, L) only if one of its kind is open. If tags for closing or for entities
    of one word exist (BIOES, BMES, BILOU), an open entity must also continue.
    """
    matches = [_TAG.fullmatch(tag) for tag in labels]
    if not all(match or tag == "O" for match, tag in zip(matches, labels)) or not any(matches):
        return None
    parts = [(match[1], match[2] or "") if match else ("", "") for match in matches]
    strict = any(part in _CLOSES + _SINGLE for part, _ in parts if part)
    # Per tag: the kind it needs to be open before it, and the kind it leaves open (None: none).
    needs = [kind if part and part in _CONTINUES + _CLOSES else None for part, kind in parts]
    leaves = [kind if part and part in _OPENS + _CONTINUES else None for part, kind in parts]

    def score(allowed: list[bool]) -> Array:
        return np.array([0.0 if is_allowed else FORBIDDEN for is_allowed in allowed], np.float32)

    step = [
        score([needs[to] == leaves[at] if needs[to] is not None or strict else True for to in range(len(labels))])
        for at in range(len(labels))
    ]
    start = score([need is None for need in needs])
    return Chain(start, np.stack(step), score([not strict or kind is None for kind in leaves]))


def obeys(rules: Chain, tags: Sequence[int]) -> bool:
    """Whether a sequence of tag numbers breaks no rule of the CRF's scheme."""
    if not len(tags):
        return True
    at = np.asarray(tags)
    broken = rules.step[at[:-1], at[1:]].any()
    return not (broken or rules.start[at[0]] or rules.end[at[-1]])
