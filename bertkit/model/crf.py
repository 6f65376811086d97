"""A linear-chain conditional random field: tags of a sentence chosen jointly instead of word by word.

A sequence of tags scores the sum of its words' scores (emissions, from the token head), of the scores of neighbouring
tags, and of what it begins and ends with; its probability is exp(score) over that sum for all sequences. Lafferty,
McCallum and Pereira 2001. All texts of a batch are processed word by word together; `lengths` says where each one ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

FORBIDDEN = -1e4  # below any learned score, but finite, so that sums and their gradients stay finite

_TAG = re.compile(r"([BIMELSUW])(?:[-_](.*))?", re.DOTALL)
_OPENS, _CONTINUES, _CLOSES, _SINGLE = "B", "IM", "EL", "SUW"  # of BIO, BIOES, BMES, BILOU and BMEWO


class Chain(NamedTuple):
    """Transition scores of a CRF. start, end: (labels,); step: (labels, labels), from the row to the column."""

    start: Tensor
    step: Tensor
    end: Tensor


class Crf(nn.Module):
    """The CRF's learned transition scores, initialized to zero."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(labels))
        self.step = nn.Parameter(torch.zeros(labels, labels))
        self.end = nn.Parameter(torch.zeros(labels))

    def forward(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """Log-probability of tags, (texts,). emissions: (texts, words, labels); tags: (texts, words)."""
        chain = self.chain()
        return path_score(emissions, tags, lengths, chain) - log_partition(emissions, lengths, chain)

    def chain(self, rules: Chain | None = None) -> Chain:
        """The learned scores, with `rules` (0 or FORBIDDEN) added where given."""
        learned = Chain(self.start, self.step, self.end)
        return learned if rules is None else Chain(*(a + b.to(a.device) for a, b in zip(learned, rules)))


def path_score(emissions: Tensor, tags: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """The CRF's score of one sequence per text. Tags beyond a text's length may be any number. Returns (texts,)."""
    is_word = _there(emissions, lengths)
    words = emissions.gather(2, tags[:, :, None])[:, :, 0]
    steps = chain.step[tags[:, :-1], tags[:, 1:]]
    last = tags.gather(1, lengths[:, None] - 1)[:, 0]
    total = words.where(is_word, 0).sum(1) + steps.where(is_word[:, 1:], 0).sum(1)
    return total + chain.start[tags[:, 0]] + chain.end[last]


def log_partition(emissions: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """The CRF's log of the sum of exp(score) over all sequences: (texts,)."""
    return (_forward(emissions, lengths, chain)[:, -1] + chain.end).logsumexp(1)


def _forward(emissions: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """Log-sum over all prefixes that reach each tag: (texts, words, labels); past its end a text does not change."""
    is_word = _there(emissions, lengths)
    reached = [chain.start + emissions[:, 0]]
    for word in range(1, emissions.shape[1]):
        onward = (reached[-1][:, :, None] + chain.step).logsumexp(1) + emissions[:, word]
        reached.append(onward.where(is_word[:, word, None], reached[-1]))
    return torch.stack(reached, 1)


def log_marginals(emissions: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """The CRF's marginal log-probability of each tag at each word: (texts, words, labels)."""
    is_word = _there(emissions, lengths)
    suffixes = [chain.end.expand_as(emissions[:, 0])]
    for word in range(emissions.shape[1] - 1, 0, -1):
        backward = (chain.step + (emissions[:, word] + suffixes[-1])[:, None, :]).logsumexp(2)
        suffixes.append(backward.where(is_word[:, word, None], suffixes[-1]))
    joint = _forward(emissions, lengths, chain) + torch.stack(suffixes[::-1], 1)
    return joint - joint.logsumexp(2, keepdim=True)


def best_path(emissions: Tensor, lengths: Tensor, chain: Chain) -> Tensor:
    """The CRF's sequence with the highest score (Viterbi): (texts, words); 0 past a text's end."""
    is_word = _there(emissions, lengths)
    best = chain.start + emissions[:, 0]
    came_from = []
    stay = torch.arange(emissions.shape[2], device=emissions.device).expand_as(best)
    for word in range(1, emissions.shape[1]):
        onward, before = (best[:, :, None] + chain.step).max(1)
        best = (onward + emissions[:, word]).where(is_word[:, word, None], best)
        came_from.append(before.where(is_word[:, word, None], stay))
    tags = [(best + chain.end).argmax(1)]
    for before in reversed(came_from):
        tags.append(before.gather(1, tags[-1][:, None])[:, 0])
    return torch.stack(tags[::-1], 1).where(is_word, 0)


def _there(emissions: Tensor, lengths: Tensor) -> Tensor:
    """Which places are words: (texts, words)."""
    return torch.arange(emissions.shape[1], device=emissions.device) < lengths[:, None]


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

    def score(allowed: list[bool]) -> Tensor:
        return torch.tensor([0.0 if is_allowed else FORBIDDEN for is_allowed in allowed])

    step = [
        score([needs[to] == leaves[at] if needs[to] is not None or strict else True for to in range(len(labels))])
        for at in range(len(labels))
    ]
    start = score([need is None for need in needs])
    return Chain(start, torch.stack(step), score([not strict or kind is None for kind in leaves]))


def obeys(rules: Chain, tags: Sequence[int]) -> bool:
    """Whether a sequence of tag numbers breaks no rule of the CRF's scheme."""
    if not len(tags):
        return True
    at = np.asarray(tags)
    broken = rules.step.numpy()[at[:-1], at[1:]].any()
    return not (broken or rules.start[at[0]] or rules.end[at[-1]])
