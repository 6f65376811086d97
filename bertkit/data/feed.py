"""The input of a training step: batches as a pure function of (seed, step, rank).

Nothing is fast-forwarded on resume, because nothing has a position: step 1,234 can be computed
on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any, Protocol

import numpy as np
import torch

from bertkit.data.batch import ROUND, Batch, batches_by_tokens, pack
from bertkit.data.masking import MaskVocabulary, described, mask_tokens
from bertkit.data.packing import PACKINGS, Example, Packing
from bertkit.data.store import Store
from bertkit.errors import UserError
from bertkit.settings.training import MaskSettings


class Feed(Protocol):
    """Anything that feeds the training loop with the batches of a step."""

    def step(self, step: int) -> list[Batch]:
        """What a feed gives: the micro-batches of this step for this rank."""


class CountedFeed(Feed, Protocol):
    """A training feed that knows how often its text has been read."""

    def epoch(self, step: int) -> float:
        """A feed's passes over the text before this step."""


@dataclass(frozen=True)
class Phase:
    """A phase of a pretraining feed: steps [first, last) with one length. rows: examples per step."""

    first: int
    last: int
    length: int
    rows: int


def phases(
    steps: int,
    lengths: tuple[tuple[float, int], ...],
    batch_tokens: int,
    ramp: float = 0.0,
    typical: Callable[[int], int] = lambda length: length,
) -> list[Phase]:
    """A pretraining feed's phases: lengths by fraction of the steps, a batch that grows over `ramp` of them.

    typical: the tokens of an example, by the length it may have.
    """
    cuts: list[tuple[float, float]] = [(0.0, 1.0)]
    if ramp:
        cuts = [(i * ramp / 3, (i + 1) / 4) for i in range(3)] + [(ramp, 1.0)]
    bounds = {0.0}
    total = sum(share for share, _ in lengths)
    at = 0.0
    stretches: list[tuple[float, int]] = []
    for share, length in lengths:
        stretches.append((at, length))
        at += share / total
    bounds |= {start for start, _ in stretches} | {start for start, _ in cuts}
    edges = [*sorted(bounds), 1.0]
    plan = []
    for low, high in pairwise(edges):
        length = [length for start, length in stretches if start <= low][-1]
        batch_fraction = [size for start, size in cuts if start <= low][-1]
        first, last = round(low * steps), round(high * steps)
        if last > first:
            plan.append(Phase(first, last, length, max(1, round(batch_tokens * batch_fraction / typical(length)))))
    return plan


class PretrainingFeed:
    """The feed of pretraining: masked examples from a store.

    causal: this fraction of a step's examples is read from left to right, with nothing masked.
    beside: other feeds, whose batches are added to each step.
    teacher: provides the word states that masked examples must match, or this share of them.
    """

    def __init__(
        self,
        store: Store,
        documents: np.ndarray,
        *,
        packing: str,
        masking: MaskSettings,
        plan: list[Phase],
        seed: int,
        short_prob: float = 0.0,
        micro_tokens: int = 8192,
        rank: int = 0,
        ranks: int = 1,
        causal: float = 0.0,
        beside: Sequence[Feed] = (),
        teacher: WordStatesOf | None = None,
        share: float = 1.0,
    ) -> None:
        self.causal, self.beside, self.teacher, self.share = causal, beside, teacher, share
        self.masking, self.plan, self.seed, self.micro_tokens = masking, plan, seed, micro_tokens
        self.rank, self.ranks = rank, ranks
        fewest = min(phase.rows for phase in plan)
        if fewest < ranks:  # a process without an example would not know which losses to add up
            raise UserError(
                f"A step has {fewest} examples for {ranks} processes. Raise batch_tokens (--batch-tokens), "
                "or start fewer processes."
            )
        for phase in plan if causal else ():  # nor would one whose share of a step is all of one kind
            shares = {phase.rows // ranks, -(-phase.rows // ranks)}
            if len({(round(causal * share) > 0, round(causal * share) < share) for share in shares}) > 1:
                raise UserError(
                    f"A step has {phase.rows} examples for {ranks} processes, of which causal = {causal:g} leaves some "
                    "without masked ones, or without ones read from left to right. Raise batch_tokens "
                    "(--batch-tokens), or start fewer processes."
                )
        self._make = lambda length: PACKINGS[packing](store, documents, length, short_prob)
        self._packings: dict[int, Packing] = {}
        for phase in plan:
            self.packing(phase.length)  # now, not in the middle of a run: what cannot be packed is reported at once
        self.pieces = MaskVocabulary.of(store.tokenizer)
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def packing(self, length: int) -> Packing:
        """The feed's examples of this length."""
        if length not in self._packings:
            self._packings[length] = self._make(length)
        return self._packings[length]

    def numbers(self, step: int) -> list[tuple[int, int]]:
        """The pretraining feed's (example, epoch) of every example of this step, over all ranks."""
        phase, before = self.phase(step)
        size = len(self.packing(phase.length))
        counter = before + (step - phase.first) * phase.rows + np.arange(phase.rows)
        return [(int(self._order(phase.length, int(c // size))[c % size]), int(c // size)) for c in counter]

    def phase(self, step: int) -> tuple[Phase, int]:
        """The feed's phase at a step, and how many examples of its length were used before the phase."""
        used = 0
        index = next((i for i, p in enumerate(self.plan) if step < p.last), len(self.plan) - 1)
        for earlier in self.plan[:index]:
            if earlier.length == self.plan[index].length:
                used += (earlier.last - earlier.first) * earlier.rows
        return self.plan[index], used

    def epoch(self, step: int) -> float:
        """The pretraining feed's passes over the text before this step, at this step's length."""
        phase, before = self.phase(step)
        return (before + (step - phase.first) * phase.rows) / len(self.packing(phase.length))

    def _order(self, length: int, epoch: int) -> np.ndarray:
        """The feed's order of all examples in this pass."""
        if (length, epoch) not in self._orders:
            if len(self._orders) > 2:
                self._orders.pop(next(iter(self._orders)))
            chance = np.random.default_rng((self.seed, 1, length, epoch))
            self._orders[length, epoch] = chance.permutation(len(self.packing(length)))
        return self._orders[length, epoch]

    def step(self, step: int) -> list[Batch]:
        """The pretraining feed's part of the step's examples for this rank, masked and packed."""
        phase, _ = self.phase(step)
        rate = self.masking.at(step / max(1, self.plan[-1].last))
        numbers = self.numbers(step)[self.rank :: self.ranks]
        causal = round(self.causal * len(numbers))
        taught = causal + ceil(self.share * (len(numbers) - causal)) if self.teacher else causal
        batches = self._batches(phase.length, numbers[causal:taught], rate, self.teacher)
        batches += self._batches(phase.length, numbers[taught:], rate)
        batches += [replace(batch, causal=True) for batch in self._batches(phase.length, numbers[:causal], 0.0)]
        return batches + [batch for feed in self.beside for batch in feed.step(step)]

    def _batches(
        self, length: int, numbers: list[tuple[int, int]], rate: float, teacher: WordStatesOf | None = None
    ) -> list[Batch]:
        """Masked rows of a pretraining step, packed into micro-batches."""
        rows = [self.masked(length, number, epoch, rate) for number, epoch in numbers]
        parts = batches_by_tokens([len(row[0].ids) for row in rows], self.micro_tokens)
        return [collate([rows[i] for i in part], teacher) for part in parts]

    def masked(self, length: int, number: int, epoch: int, rate: float) -> tuple[Example, np.ndarray, np.ndarray]:
        """One example of the pretraining feed with (ids after masking, masked places)."""
        pass_ = epoch % self.masking.copies if self.masking.copies else epoch
        chance = np.random.Generator(np.random.SFC64((self.seed, 2, length, number, pass_)))
        example = self.packing(length).example(number, chance)
        if self.pieces.mask < 0:
            return example, example.ids, np.zeros(0, np.int64)
        return example, *mask_tokens(example, self.masking, rate, self.pieces, chance)


def rows_of_store(
    store: Store, *, packing: str, masking: MaskSettings, length: int = 128, rows: int = 3, seed: int = 0
) -> list[dict[str, Any]]:
    """The first rows that pretraining with this seed reads from a store, before and after masking: see `described`."""
    documents = np.arange(store.documents)
    plan = [Phase(0, 1, length, rows)]
    feed = PretrainingFeed(store, documents, packing=packing, masking=masking, plan=plan, seed=seed)
    masked_rows = (feed.masked(length, number, epoch, masking.rate) for number, epoch in feed.numbers(0))
    return [described(store.tokenizer, *row) for row in masked_rows]


# Rows → the word of each of their tokens (tokens,), and the words' states (words, layers, width).
WordStatesOf = Callable[[Sequence[Example]], tuple[np.ndarray, torch.Tensor]]


def collate(rows: list[tuple[Example, np.ndarray, np.ndarray]], teacher: WordStatesOf | None = None) -> Batch:
    """Masked examples as one packed batch. extra: places, targets (masked,); labels (texts,); special (tokens,).

    With a teacher also its states (words, layers, width) of their words, and the word of every token.
    """
    batch = pack([ids for _, ids, _ in rows], [example.segments for example, _, _ in rows], multiple=ROUND)
    starts = batch.starts.numpy()
    ordered = [rows[caller] for caller in batch.order]
    places = np.concatenate([start + hidden for start, (_, _, hidden) in zip(starts, ordered)])
    batch.extra = {
        "places": torch.from_numpy(places.astype(np.int64)),
        "targets": torch.from_numpy(np.concatenate([example.ids[hidden] for example, _, hidden in ordered])),
        "labels": torch.tensor([example.label for example, _, _ in ordered]),
        "special": torch.from_numpy(np.concatenate([example.special for example, _, _ in ordered])),
    }
    if teacher is not None:
        word, states = teacher([example for example, _, _ in ordered])
        word = np.pad(word, (0, batch.filler), constant_values=len(states))
        batch.extra |= {"word": torch.from_numpy(word), "states": states}
    return batch


class Prefetcher:
    """A feed that makes the next step's batches while this one is computed."""

    def __init__(self, feed: Callable[[int], list[Batch]], last: int) -> None:
        self.make, self.last = feed, last
        self.pool = ThreadPoolExecutor(1)
        self.waiting: tuple[int, Future[list[Batch]]] | None = None

    def step(self, step: int) -> list[Batch]:
        """The feed's batches of this step; preparing the next one starts."""
        ready = self.waiting[1] if self.waiting and self.waiting[0] == step else self.pool.submit(self.make, step)
        batches = ready.result()
        self.waiting = (step + 1, self.pool.submit(self.make, step + 1)) if step + 1 < self.last else None
        return batches

    def close(self) -> None:
        """Stop prefetching from the feed."""
        self.pool.shutdown(wait=True, cancel_futures=True)
