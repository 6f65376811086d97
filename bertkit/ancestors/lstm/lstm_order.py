"""Packed texts in the order in which an LSTM reads them: all first words, then all second words, and so on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertkit.data.batch import Batch


@dataclass(frozen=True)
class ReadingOrder:
    """tokens: (longest, texts), which token of the run each text gives at each moment; place: (tokens,), where in that
    square each token of the run stands. A text that has ended gives its last token again, and nobody looks at that.

    torch's own packed sequences waste nothing on ended texts, but their backward pass fills zeros for the whole run at
    every moment: nearly twice as slow as squares of texts of about the same length.
    """

    tokens: Tensor
    place: Tensor

    @classmethod
    def of(cls, batch: Batch, backwards: bool = False) -> ReadingOrder:
        """The order ahead, or from each text's last token back to its first."""
        device = batch.ids.device
        lengths = torch.tensor(batch.lengths, device=device)
        moment = torch.arange(max(batch.lengths, default=0), device=device)[:, None]
        steps = torch.minimum(moment, lengths - 1)
        tokens = batch.starts + (lengths - 1 - steps if backwards else steps)
        goes_on = moment < lengths
        place = torch.empty(int(lengths.sum()), dtype=torch.int64, device=device)
        place[tokens[goes_on]] = goes_on.flatten().nonzero()[:, 0]
        return cls(tokens, place)


def read_in_order(lstm: nn.Module, x: Tensor, order: ReadingOrder) -> Tensor:
    """Run a one-way torch LSTM over packed texts. x: (tokens, in). Returns (tokens, out), in the run's own order."""
    found, _ = lstm(x[order.tokens])
    return found.flatten(0, 1)[order.place]
