"""What ELMo is trained on: rows of words as a pure function of (seed, step)."""

from __future__ import annotations

import numpy as np

from bertkit.ancestors.elmo.words import Ids, Numbered
from bertkit.data.batch import Batch

POOL = 32  # batches whose rows are sorted by length together, so that the rows of a batch are about as long


def stretches(first: Ids, last: Ids, length: int) -> Ids:
    """Sentences [first, last) cut into rows of at most `length` words: (rows, 2).

    Neighbouring rows share one word, so that every word but a sentence's first follows another in exactly one row.
    """
    pieces = np.maximum(1, -(-(last - first - 1) // (length - 1)))
    inside = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = np.repeat(first, pieces) + inside * (length - 1)
    return np.stack([begin, np.minimum(begin + length, np.repeat(last, pieces))], 1)


class WordFeed:
    """Batches of about `batch_words` words; every row comes once an epoch."""

    def __init__(self, text: Numbered, rows: Ids, *, batch_words: int, seed: int) -> None:
        self.text, self.rows, self.seed = text, rows, seed
        self.sizes = rows[:, 1] - rows[:, 0]
        # Shares are not smaller than the longest row, so that no batch of an epoch is empty.
        self.batches = max(1, int(self.sizes.sum()) // batch_words)
        self._plans: dict[int, list[Ids]] = {}

    def epoch(self, step: int) -> float:
        """Passes over the text before this step."""
        return step / self.batches

    def step(self, step: int) -> list[Batch]:
        """The one batch of this step."""
        epoch, number = divmod(step, self.batches)
        return [self.text.batch(self.rows[self._plan(epoch)[number]].tolist())]

    def _plan(self, epoch: int) -> list[Ids]:
        """The rows of every batch of an epoch."""
        if epoch not in self._plans:
            if len(self._plans) > 1:
                self._plans.pop(next(iter(self._plans)))
            chance = np.random.default_rng((self.seed, 3, epoch))
            order = chance.permutation(len(self.rows))
            share = self.sizes.sum() / self.batches
            pool = ((np.cumsum(self.sizes[order]) - self.sizes[order]) / (share * POOL)).astype(np.int64)
            order = order[np.lexsort((self.sizes[order], pool))]
            begin = np.cumsum(self.sizes[order]) - self.sizes[order]
            owner = np.minimum(begin / share, self.batches - 1).astype(np.int64)
            parts = np.split(order, np.flatnonzero(np.diff(owner)) + 1)
            self._plans[epoch] = [parts[n] for n in chance.permutation(len(parts))]
        return self._plans[epoch]
