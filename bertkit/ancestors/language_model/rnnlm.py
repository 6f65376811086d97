"""Recurrent language models: Mikolov's simple one (2010), and those whose cells have gates.

    x = vector of the piece;  h = cell(x, h before) layer over layer;  logits = W h + b

Nothing is ever too far back to be seen, but all of it must pass through the state. Between the layers dropout is
locked to one mask a text, and W is the table of word vectors where the widths agree (Press and Wolf 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from bertkit.ancestors.language_model.base import LockedDropout, Network, Shape, State
from bertkit.model.layers import Chance, Linear

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class Rnnlm(Network):
    """Recurrent layers, one upon the other. The state is each layer's own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        widths = [shape.width, *[shape.inner] * shape.layers]
        self.layers = nn.ModuleList(CELLS[shape.kind](a, b, batch_first=True) for a, b in pairwise(widths))
        self.decoder = None if shape.inner == shape.width else Linear(shape.inner, shape.vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))
        self.drop = LockedDropout(shape.dropout, Chance())
        # Long vectors: with short ones a gated network spends its first hundreds of steps on the words' frequencies.
        nn.init.normal_(self.words.weight, std=4 / shape.width**0.5)
        if shape.kind == "lstm":
            # Remember, until taught to forget (Jozefowicz and others 2015): the second quarter is the forget gate.
            for layer in self.layers:
                nn.init.ones_(layer.bias_ih_l0.detach()[shape.inner : 2 * shape.inner])  # type: ignore[operator]

    def vectors(self, ids: Tensor, state: State = None) -> tuple[Tensor, State]:
        """ids: (texts, time). Returns (texts, time, hidden) of the last layer and every layer's state."""
        x = self.drop(self.words(ids))
        after = []
        for layer, before in zip(self.layers, state or [None] * len(self.layers)):
            x, now = layer(x, before)
            x = self.drop(x)
            after.append(now)
        return x, after

    def output(self) -> tuple[Tensor, Tensor]:
        """W and b."""
        return self.words.weight if self.decoder is None else self.decoder.weight, self.bias
