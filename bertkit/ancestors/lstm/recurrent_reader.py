"""A recurrent network as a reader of whole texts: what it read is pooled, and a small head answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.ancestors.language_model.base import State, unpacked
from bertkit.ancestors.language_model.rnnlm import Rnnlm
from bertkit.data.batch import Batch, pack
from bertkit.data.budget import budgeted
from bertkit.model.layers import Dropout, Linear, Norm
from bertkit.training.objective import Objective

STRETCH = 512  # pieces read at once
# The last pieces of a text that teach. What is before them is read and pooled, but no gradient goes back there:
# that bounds the memory, whatever the length. Texts longer than this have a batch of their own.
TAUGHT = 4096
POOLINGS: dict[str, tuple[str, ...]] = {"last": ("last",), "concat": ("last", "max", "mean")}


def pooled(network: Rnnlm, ids: Tensor, lengths: Tensor, ways: Sequence[str]) -> Tensor:
    """Read texts of any length and pool the last layer's vectors, side by side (texts, len(ways) × hidden).

    ids: (texts, time); what is right of a text's length changes nothing. ways: last, max, mean.
    """
    texts, time = ids.shape
    wide = network.shape.inner
    found = {"last": torch.zeros(texts, wide), "mean": torch.zeros(texts, wide)}
    found |= {"max": torch.full((texts, wide), -torch.inf)}
    found = {way: tensor.to(ids.device) for way, tensor in found.items()}
    state: State = None
    teaching = torch.is_grad_enabled()
    for start in range(0, time, STRETCH):
        with torch.set_grad_enabled(teaching and start + STRETCH > time - TAUGHT):
            vectors, state = network.vectors(ids[:, start : start + STRETCH], state)
            column = torch.arange(start, start + vectors.shape[1], device=ids.device)
            is_real = (column < lengths[:, None])[..., None]
            is_last = (column == lengths[:, None] - 1)[..., None]
            found["last"] = found["last"] + torch.where(is_last, vectors, 0.0).sum(1)
            found["mean"] = found["mean"] + torch.where(is_real, vectors, 0.0).sum(1) / lengths[:, None]
            found["max"] = torch.maximum(found["max"], torch.where(is_real, vectors, -torch.inf).amax(1))
    return torch.cat([found[way] for way in ways], dim=-1)


class Reader(nn.Module):
    """Network, pooling and head. inner: width of the head's hidden layer; 0: it has none."""

    def __init__(self, network: Rnnlm, pooling: str, labels: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.network, self.pooling, self.labels, self.inner = network, pooling, labels, inner
        wide = network.shape.inner * len(POOLINGS[pooling])
        drop = Dropout(dropout, network.drop.chance)
        # Layer norm where ULMFiT has batch norm: an answer must not depend on the texts that share its batch.
        hidden = [Norm(wide, 1e-5), drop, Linear(wide, inner), nn.ReLU(), Norm(inner, 1e-5)] if inner else []
        self.head = nn.Sequential(*hidden, drop, Linear(inner or wide, labels))

    def forward(self, batch: Batch) -> Tensor:
        """Logits (texts, labels), in packed order."""
        return self.head(pooled(self.network, *unpacked(batch), POOLINGS[self.pooling]))

    @property
    def groups(self) -> int:
        """How many layer groups there are: the head, each recurrent layer, the word vectors."""
        return len(self.network.layers) + 2

    def group(self, name: str) -> int:
        """The layer group of a parameter, counted from the top; -1: it has no part in reading."""
        parts = name.removeprefix("reader.").split(".")
        if parts[:2] == ["network", "layers"]:
            return len(self.network.layers) - int(parts[2])
        return {"head": 0, "words": self.groups - 1}.get(parts[0] if parts[0] == "head" else parts[1], -1)

    def thaw(self, groups: int) -> None:
        """Let the upper `groups` learn, and freeze all below."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(0 <= self.group(name) < groups)


class Classify(Objective):
    """Texts and their labels."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """loss: over texts."""
        return {"loss": F.cross_entropy(self.reader(batch), batch.extra["labels"], reduction="sum")}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Texts."""
        return {"loss": batch.texts}


class TextFeed:
    """Rows of ids, with labels or without: each pass visits all of them once, in an order of its own."""

    def __init__(self, rows: Sequence[list[int]], labels: Sequence[int] = (), *, batch: int, seed: int) -> None:
        self.rows, self.labels, self.seed = rows, labels, seed
        self.batch = min(batch, len(rows))
        self.steps_a_pass = -(-len(rows) // self.batch)

    def step(self, step: int) -> list[Batch]:
        """The examples of this step, in parts that fit into memory."""
        epoch, place = divmod(step, self.steps_a_pass)
        order = np.random.default_rng((self.seed, 5, epoch)).permutation(len(self.rows))
        mine = order[place * self.batch : (place + 1) * self.batch].tolist()
        short = [n for n in mine if len(self.rows[n]) <= TAUGHT]
        parts = [[n] for n in mine if len(self.rows[n]) > TAUGHT]
        parts += [[short[i] for i in part] for part in budgeted([len(self.rows[n]) for n in short], TAUGHT)]
        return [self._collate(part) for part in parts]

    def _collate(self, numbers: list[int]) -> Batch:
        batch = pack([self.rows[n] for n in numbers])
        if len(self.labels):
            batch.extra["labels"] = torch.tensor([self.labels[numbers[caller]] for caller in batch.order])
        return batch


def cut_rows(rows: Sequence[list[int]], length: int) -> list[list[int]]:
    """Rows from [CLS] to [SEP] cut into rows of at most `length` ids, each between its own marks; nothing is lost."""
    room = length - 2
    return [
        [row[0], *row[start : min(start + room, len(row) - 1)], row[-1]]
        for row in rows
        for start in range(1, max(2, len(row) - 1), room)
    ]
