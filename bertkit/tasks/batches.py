"""Batches of labelled examples: a pure function of (seed, step, rank)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertkit.data.batch import Batch, batches_by_tokens
from bertkit.errors import UserError
from bertkit.model.engine import Engine
from bertkit.tasks.base import Item, Task


class SupervisedFeed:
    """Batches of labelled examples for training a task: each pass visits every example once, in a random order."""

    def __init__(
        self,
        items: Sequence[Item],
        task: Task,
        *,
        batch: int,
        seed: int,
        micro_tokens: int,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.items, self.task, self.seed, self.micro_tokens = items, task, seed, micro_tokens
        self.batch = min(batch, len(items))
        if self.batch < ranks:  # a process without a row would not know which losses to add up
            raise UserError(
                f"A step has {self.batch} rows for {ranks} processes. Raise --batch (for pretrain --teacher-batch), "
                "start fewer processes, or give more rows."
            )
        self.steps_per_pass = max(1, len(items) // self.batch)
        self.rank, self.ranks = rank, ranks
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, int))

    def numbers(self, step: int) -> np.ndarray:
        """A task's examples of this step. A pass ends with the last whole batch; the rest waits for the next."""
        epoch, place = divmod(step, self.steps_per_pass)
        if self._order[0] != epoch:
            chance = np.random.default_rng((self.seed, 4, epoch))
            self._order = (epoch, chance.permutation(len(self.items)))
        return self._order[1][place * self.batch : (place + 1) * self.batch]

    def step(self, step: int) -> list[Batch]:
        """A task's batches of this step: this rank's share, cut into parts that fit."""
        items = [self.items[n] for n in self.numbers(step)[self.rank :: self.ranks]]
        sizes = [sum(len(row.ids) for row in item.rows) for item in items]
        limit = self.micro_tokens if not self.task.options.get("whole_batch") else sum(sizes) + 1
        return [self.collate([items[n] for n in part]) for part in batches_by_tokens(sizes, limit)]

    def collate(self, items: Sequence[Item]) -> Batch:
        """A task's items as one batch with their answers."""
        return self.task.collate(items, training=True)


# ---- A model's answers to encoded items, in order: what evaluation, prediction and the server share.


def outputs_of(engine: Engine, task: Task, items: Sequence[Item], *, steady: bool = False) -> list[np.ndarray]:
    """The head's numbers for each item of a task, batch by batch; steady: the same bits in any batch."""
    rows = [row for item in items for row in item.rows]
    return task.answers(engine, engine.run(rows, task.wanted(items), steady=steady), items)
