"""The neural probabilistic language model (Bengio and others 2003): the first with word vectors of its own.

    x = the vectors of the last `context` pieces, side by side
    logits = b + U tanh(d + H x)          and, with direct connections, + W x

A piece further back than `context` is not seen at all; before the text begins stands a vector that means just that.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.ancestors.language_model.base import LockedDropout, Network, Shape, State
from bertkit.model.layers import Chance, Linear


class Nnlm(Network):
    """Bengio's network. The state is the last `context` pieces."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        side_by_side = shape.context * shape.width
        self.words = nn.Embedding(shape.vocabulary + 1, shape.width)  # the last row: before the text begins
        self.hidden = Linear(side_by_side, shape.inner)  # H and d
        # U, W and b as one map: the logits are linear in the hidden layer and in the word vectors.
        self.decoder = Linear(shape.inner + shape.direct * side_by_side, shape.vocabulary)
        self.drop = LockedDropout(shape.dropout, Chance())
        nn.init.normal_(self.words.weight, std=0.1)

    def vectors(self, ids: Tensor, state: State = None) -> tuple[Tensor, State]:
        """ids: (texts, time). Returns (texts, time, hidden (+ context × width)) and the last pieces."""
        context = self.shape.context
        if state is None:
            state = ids.new_full((ids.shape[0], context), self.shape.vocabulary)
        read = torch.cat([state, ids], dim=1)
        x = self.words(read.unfold(1, context, 1)[:, 1:]).flatten(2).to(self.dtype)
        x = self.drop(x)
        hidden = torch.tanh(self.hidden(x))
        return torch.cat([hidden, x], dim=-1) if self.shape.direct else hidden, read[:, -context:]

    def output(self) -> tuple[Tensor, Tensor]:
        """(U W) and b."""
        return self.decoder.weight, self.decoder.bias
