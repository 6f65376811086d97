"""Beam search over many texts at once, with the length penalty of Wu et al. (2016) that the paper uses.

A hypothesis is scored by its log-probability over ((5 + tokens) / 6) ** penalty, its end counted as a token. With a
beam of 1 this is greedy decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bertkit.errors import UserError

LENGTH_PENALTY = 0.6  # section 6.1 of the paper, with a beam of 4
DEAD = float("-inf")


class Writer(Protocol):
    """What beam search asks of a model (see `Transformer`)."""

    def start(self, sources: Sequence[Sequence[int]]) -> Any:
        """What beam search needs of a decoder: a memory of the sources, with `select(rows, texts)`."""

    def step(self, ids: Tensor, place: int, memory: Any) -> Tensor:
        """What beam search needs of a decoder: logits of what comes after each row's last token."""


@dataclass(frozen=True)
class Hypothesis:
    """One target that beam search found. ids: without begin and end. finished: it came to its end before the limit."""

    ids: list[int]
    score: float
    finished: bool


def normalised(log_probability: float, tokens: int, penalty: float) -> float:
    """Beam search's score of a hypothesis of so many tokens."""
    return float(log_probability / ((5 + tokens) / 6) ** penalty)


class Candidate(NamedTuple):
    """Beam search: a row of a text with one piece more. total: its log-probability."""

    total: float
    row: int
    piece: int


@dataclass
class Writing:
    """Beam search of one text. rows: the ids of its `beam` rows; ended: hypotheses that came to their end."""

    limit: int
    beam: int
    penalty: float
    rows: list[list[int]]
    ended: list[Hypothesis] = field(default_factory=list)

    def advance(self, candidates: list[Candidate], tokens: int, end: int) -> list[Candidate]:
        """Beam search takes candidates, the likeliest first, as token `tokens`. Returns those that go on, if any."""
        # An end counts among the first `beam` only: with a beam of 1, where greedy decoding would end too.
        for total, row, piece in candidates[: self.beam]:
            if piece == end and total > DEAD:
                self.ended.append(Hypothesis(self.rows[row], normalised(total, tokens, self.penalty), True))
        active = [item for item in candidates if item.piece != end][: self.beam]
        active += [Candidate(DEAD, 0, end)] * (self.beam - len(active))
        self.rows = [[*self.rows[row], piece] for _, row, piece in active]
        if not self._is_done(active[0].total, tokens):
            return active
        if not self.ended:
            self.ended = [
                Hypothesis(ids, normalised(total, tokens, self.penalty), False)
                for ids, (total, _, _) in zip(self.rows, active)
                if total > DEAD
            ]
        self.ended = sorted(self.ended, key=lambda item: -item.score)[: self.beam]
        return []

    def _is_done(self, leading: float, tokens: int) -> bool:
        if len(self.ended) >= self.beam or tokens >= self.limit:
            return True
        # Going on only lowers a log-probability, and no division is kinder to it than the longest target's.
        return any(hypothesis.score >= normalised(leading, self.limit, self.penalty) for hypothesis in self.ended)


@torch.no_grad()
def search(
    model: Writer,
    sources: Sequence[Sequence[int]],
    *,
    begin: int,
    end: int,
    never: Sequence[int],
    beam: int,
    penalty: float,
    limits: Sequence[int],
) -> list[list[Hypothesis]]:
    """Beam search: hypotheses of each source, the best first; at least one, at most `beam`.

    never: ids that are not written. limits: most tokens of each target, its end included. A text is done when `beam`
    hypotheses have ended, when none that goes on can beat the best that ended, or at its limit; if nothing ended by
    then, those still going on are given, not finished.
    """
    if penalty < 0:
        raise UserError(f"The length penalty is {penalty}; it must be 0 (none) or more.")
    if not sources:
        return []
    memory = model.start(sources)
    texts = [Writing(limit, beam, penalty, [[]] * beam) for limit in limits]
    going = list(range(len(texts)))
    last = torch.full((len(texts) * beam,), begin)
    totals = torch.full((len(texts), beam), DEAD)
    totals[:, 0] = 0.0  # all rows begin alike, so only one may count
    for place in range(max(limits)):
        steps = torch.log_softmax(model.step(last, place, memory).cpu(), dim=-1)
        steps[:, list(never)] = DEAD
        size = steps.shape[1]
        all_totals = (totals[:, :, None] + steps.view(len(going), beam, size)).flatten(1)
        # Each row ends once, so twice the beam leaves a full beam to continue.
        best, positions = all_totals.topk(min(2 * beam, beam * size))
        continued: dict[int, list[Candidate]] = {}  # by the text's place among those going on
        for number, (values, spots) in enumerate(zip(best.tolist(), positions.tolist())):
            candidates = [Candidate(value, *divmod(spot, size)) for value, spot in zip(values, spots)]
            if rows := texts[going[number]].advance(candidates, place + 1, end):
                continued[number] = rows
        if not continued:
            break
        going = [going[number] for number in continued]
        last = torch.tensor([candidate.piece for rows in continued.values() for candidate in rows])
        totals = torch.tensor([[candidate.total for candidate in rows] for rows in continued.values()])
        parents = [number * beam + candidate.row for number, rows in continued.items() for candidate in rows]
        memory.select(torch.tensor(parents), torch.tensor(list(continued)))
    return [text.ended for text in texts]
