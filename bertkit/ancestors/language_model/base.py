"""What every left-to-right model shares: its numbers, the shape of its network, and the objective that drives it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.data.batch import Batch
from bertkit.errors import UserError
from bertkit.model.layers import Chance
from bertkit.objectives.vocab_loss import CHUNK, rounded, words_loss
from bertkit.training.objective import Objective

KINDS = ("nnlm", "rnn", "lstm", "gru")
State = Any  # what a network remembers of the pieces it has read; None at the beginning of a text


@dataclass(frozen=True)
class Shape:
    """The numbers of a network. context: pieces looked back on (nnlm); layers: recurrent ones (all others).

    direct: 1 where the nnlm's word vectors also reach the output past the hidden layer. hidden: 0 is like width.
    """

    kind: str
    vocabulary: int
    width: int = 256
    hidden: int = 0
    layers: int = 2
    context: int = 5
    direct: int = 0
    dropout: float = 0.1

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.kind not in KINDS:
            raise UserError(f"kind is {self.kind!r}; it must be one of {', '.join(KINDS)}.")
        for name, least in (("vocabulary", 2), ("width", 1), ("hidden", 0), ("layers", 1), ("context", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if self.direct not in (0, 1):
            raise UserError(f"direct is {self.direct}; it must be 0 or 1.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout is {self.dropout}; it must be at least 0 and under 1.")

    @property
    def inner(self) -> int:
        """The width of the hidden layers."""
        return self.hidden or self.width


class Network(nn.Module):
    """Reads pieces from left to right; the vector of a piece knows that piece and those before it, never a later one.

    The vocabulary's product, which is most of the work, is computed in `dtype`.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.dtype = torch.float32

    def vectors(self, ids: Tensor, state: State = None) -> tuple[Tensor, State]:
        """ids: (texts, time). Returns (texts, time, wide) to guess the next piece from, and the state after them."""
        raise NotImplementedError

    def output(self) -> tuple[Tensor, Tensor]:
        """What turns a vector into logits: weight (vocabulary, wide) and bias (vocabulary,)."""
        raise NotImplementedError

    def logits(self, vectors: Tensor) -> Tensor:
        """(…, wide) → (…, vocabulary), float32."""
        weight, bias = self.output()
        vectors = vectors.to(self.dtype)
        return F.linear(vectors, weight.to(self.dtype), bias.to(self.dtype)).float()

    def stretches(self, ids: Tensor, size: int = 1024) -> Iterator[tuple[int, Tensor]]:
        """Read texts of any length part by part, the state carried over: (first place, vectors) of each part."""
        state: State = None
        for start in range(0, ids.shape[1], size):
            vectors, state = self.vectors(ids[:, start : start + size], state)
            yield start, vectors


class LockedDropout(nn.Module):
    """Dropout with one mask a text, the same at every moment of it (Gal and Ghahramani 2016)."""

    def __init__(self, rate: float, chance: Chance) -> None:
        super().__init__()
        self.rate, self.chance = rate, chance

    def forward(self, x: Tensor) -> Tensor:
        """x: (texts, time, wide). Returns like x."""
        if not self.training or not self.rate:
            return x
        shape = torch.Size((x.shape[0], 1, x.shape[2]))
        if not x.is_cpu:
            return x * F.dropout(x.new_ones(shape), self.rate)
        return x * self.chance.mask(shape, self.rate, x.dtype)


def unpacked(batch: Batch) -> tuple[Tensor, Tensor]:
    """The packed run as ids (texts, time), in packed order, and lengths (texts,).

    The last piece of a text is repeated to its right; time is a multiple of 8 (see data.batch.ROUND).
    """
    lengths = torch.tensor(batch.lengths, device=batch.ids.device)
    columns = torch.arange(-(-max(batch.lengths) // 8) * 8, device=batch.ids.device)
    return batch.ids[batch.starts[:, None] + torch.minimum(columns, lengths[:, None] - 1)], lengths


class NextPiece(Objective):
    """Guess every piece of a text from those before it; the first is given."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def set_precision(self, dtype: torch.dtype) -> None:
        """The precision of the vocabulary's product."""
        self.network.dtype = dtype

    def guessed(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """(texts, time - 1): whether the piece after this place is to be guessed."""
        return torch.arange(1, ids.shape[1], device=ids.device) < lengths[:, None]

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors (texts × (time - 1), wide), places among them that guess, and the pieces to be guessed there."""
        ids, lengths = unpacked(batch)
        vectors, _ = self.network.vectors(ids[:, :-1])
        places = self.guessed(ids, lengths).flatten().nonzero()[:, 0]
        return vectors.flatten(0, 1), places, ids[:, 1:].flatten()[places]

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """next: over every piece that is guessed."""
        vectors, places, targets = self._read(batch)
        places, targets = rounded(places, targets)
        return {"next": words_loss(vectors[places].to(self.network.dtype), *self.network.output(), targets)}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Pieces that are guessed."""
        return {"next": batch.tokens - batch.texts}

    @torch.no_grad()
    def judge(self, batch: Batch) -> dict[str, float]:
        """The loss and the right guesses."""
        vectors, places, targets = self._read(batch)
        loss = right = 0.0
        for some, wanted in zip(places.split(CHUNK), targets.split(CHUNK)):
            logits = self.network.logits(vectors[some])
            loss += float(F.cross_entropy(logits, wanted, reduction="sum"))
            right += float((logits.argmax(-1) == wanted).sum())
        return {"next": loss, "next:right": right}
