"""The BiLSTM and what it is trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.ancestors.lstm.lstm_order import ReadingOrder, read_in_order
from bertkit.ancestors.lstm.network import GivenFeatures, LearntWords
from bertkit.data.batch import Batch
from bertkit.model.layers import Chance, Dropout
from bertkit.settings.bilstm_settings import BiLstmSettings
from bertkit.training.objective import Objective

Source = LearntWords | GivenFeatures


def _reduced(how: str) -> Callable[[Tensor, Batch], Tensor]:
    return lambda x, batch: torch.segment_reduce(x, how, lengths=torch.tensor(batch.lengths, device=x.device))


# (tokens, width) to what is labelled: every word, or one vector a text.
POOL: dict[str, Callable[[Tensor, Batch], Tensor]] = {
    "none": lambda x, batch: x,
    "max": _reduced("max"),
    "mean": _reduced("mean"),
}


class Labeller(Objective):
    """Words through BiLSTM layers to labels, of words (pool "none") or of texts."""

    def __init__(self, source: Source, labels: int, settings: BiLstmSettings, pool: str, chance: Chance) -> None:
        super().__init__()
        self.source, self.pool = source, POOL[pool]
        widths = [source.width] + [2 * settings.cells] * (settings.depth - 1)
        self.ahead, self.back = (nn.ModuleList(nn.LSTM(width, settings.cells) for width in widths) for _ in range(2))
        self.dropout = Dropout(settings.dropout, chance)
        self.out = nn.Linear(2 * settings.cells, labels)

    def logits(self, batch: Batch) -> Tensor:
        """(tokens or texts, labels), packed order."""
        orders = ReadingOrder.of(batch), ReadingOrder.of(batch, backwards=True)
        x = self.source(batch)
        for pair in zip(self.ahead, self.back):
            x = self.dropout(x)
            x = torch.cat([read_in_order(lstm, x, order) for lstm, order in zip(pair, orders)], -1)
        return self.out(self.dropout(self.pool(x, batch)))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """label: cross-entropy."""
        return {"label": F.cross_entropy(self.logits(batch), batch.extra["targets"], reduction="sum")}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Words, or texts."""
        return {"label": len(batch.extra["targets"])}


class SentenceFeed:
    """Mini-batches of sentences of about the same length; the same sentences in another order every epoch."""

    def __init__(
        self, source: Source, rows: Sequence[np.ndarray], targets: Sequence[np.ndarray], size: int, seed: int
    ) -> None:
        """targets: (words,) or (1,) a sentence."""
        self.source, self.rows, self.targets, self.size, self.seed = source, rows, targets, size, seed
        self.lengths = np.array([row.shape[-2] if row.ndim > 1 else len(row) for row in rows])
        self.batches = -(-len(rows) // size)
        self._plan: tuple[int, list[np.ndarray]] = (-1, [])

    def step(self, step: int) -> list[Batch]:
        """The one batch of this step."""
        epoch, number = divmod(step, self.batches)
        if self._plan[0] != epoch:
            chance = np.random.default_rng((self.seed, epoch))
            order = chance.permutation(len(self.rows))
            order = order[np.argsort(self.lengths[order], kind="stable")]
            parts = np.split(order, range(self.size, len(order), self.size))
            self._plan = (epoch, [parts[n] for n in chance.permutation(len(parts))])
        chosen = self._plan[1][number]
        batch = self.source.batch([self.rows[n] for n in chosen])
        batch.extra["targets"] = torch.from_numpy(np.concatenate([self.targets[chosen[i]] for i in batch.order]))
        return [batch]
