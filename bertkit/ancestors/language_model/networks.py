"""What every left-to-right model shares: its settings, the interface of its network, and its objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.data.batch import Batch
from bertkit.errors import UserError
from bertkit.model.layers import DropoutMasks, Linear
from bertkit.objectives.vocab_loss import judged, rounded, vocab_loss
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.loop import Objective

KINDS = ("nnlm", "rnn", "lstm", "gru")
State = Any  # a network's state after the pieces it has read; None at the beginning of a text


@dataclass(frozen=True)
class LanguageModelShape:
    """The numbers of a language model's network.

    context: preceding pieces it sees (nnlm); layers: recurrent ones (others).

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
        """The width of a recurrent or feed-forward language model's hidden layers."""
        return self.hidden or self.width


class Network(nn.Module):
    """The base of language-model networks, read left to right: a piece's vector knows that piece and those before it.

    The vocabulary's product, which is most of the work, is computed in `dtype`.
    """

    def __init__(self, shape: LanguageModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.dtype = torch.float32

    def vectors(self, ids: Tensor, state: State = None) -> tuple[Tensor, State]:
        """A language model's network. ids: (texts, time). Returns (texts, time, wide) to guess from, and the state."""
        raise NotImplementedError

    def output(self) -> tuple[Tensor, Tensor]:
        """What turns a language model's vector into logits: weight (vocabulary, wide) and bias (vocabulary,)."""
        raise NotImplementedError

    def logits(self, vectors: Tensor) -> Tensor:
        """A language model's logits: (…, wide) → (…, vocabulary), float32."""
        weight, bias = self.output()
        vectors = vectors.to(self.dtype)
        return F.linear(vectors, weight.to(self.dtype), bias.to(self.dtype)).float()

    def stretches(self, ids: Tensor, size: int = 1024) -> Iterator[tuple[int, Tensor]]:
        """A language model reads texts of any length in parts, carrying its state: (first place, vectors) of each."""
        state: State = None
        for start in range(0, ids.shape[1], size):
            vectors, state = self.vectors(ids[:, start : start + size], state)
            yield start, vectors


class LockedDropout(nn.Module):
    """Dropout with one mask per text, the same at every position (Gal and Ghahramani 2016)."""

    def __init__(self, rate: float, chance: DropoutMasks) -> None:
        super().__init__()
        self.rate, self.dropout_masks = rate, chance

    def forward(self, x: Tensor) -> Tensor:
        """A language model's dropout with one mask for all places of a text. x: (texts, time, wide). Returns like x."""
        if not self.training or not self.rate:
            return x
        shape = torch.Size((x.shape[0], 1, x.shape[2]))
        if not x.is_cpu:
            return x * F.dropout(x.new_ones(shape), self.rate)
        return x * self.dropout_masks.mask(shape, self.rate, x.dtype)


def unpacked(batch: Batch) -> tuple[Tensor, Tensor]:
    """A packed run as recurrent networks read it: ids (texts, time), in packed order, and lengths (texts,).

    The last piece of a text is repeated to its right; time is a multiple of 8 (see data.batch.ROUND).
    """
    lengths = torch.tensor(batch.lengths, device=batch.ids.device)
    columns = torch.arange(-(-max(batch.lengths) // 8) * 8, device=batch.ids.device)
    return batch.ids[batch.starts[:, None] + torch.minimum(columns, lengths[:, None] - 1)], lengths


class LanguageModelObjective(Objective):
    """The objective of left-to-right language models: predict every piece from those before it, except the first."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def set_precision(self, dtype: torch.dtype) -> None:
        """The precision of a language model's product with the vocabulary."""
        self.network.dtype = dtype

    def guessed(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """(texts, time - 1): whether the language model has to guess the piece after this place."""
        return torch.arange(1, ids.shape[1], device=ids.device) < lengths[:, None]

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors (texts × (time - 1), wide), places among them that guess, and the pieces to be guessed there."""
        ids, lengths = unpacked(batch)
        vectors, _ = self.network.vectors(ids[:, :-1])
        places = self.guessed(ids, lengths).flatten().nonzero()[:, 0]
        return vectors.flatten(0, 1), places, ids[:, 1:].flatten()[places]

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """A language model's loss, `next`: over every piece that is guessed."""
        vectors, places, targets = self._read(batch)
        places, targets = rounded(places, targets)
        return {"next": vocab_loss(vectors[places].to(self.network.dtype), *self.network.output(), targets)}

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of pieces the language model guesses."""
        return {"next": batch.tokens - batch.texts}

    @torch.no_grad()
    def judge(self, batch: Batch) -> dict[str, float]:
        """A language model's loss and the number of correct predictions."""
        vectors, places, targets = self._read(batch)
        loss, right = judged(vectors[places].to(self.network.dtype), *self.network.output(), targets)
        return {"next": loss, "next:right": right}


# ---- Perplexity: the same arithmetic for every language model, so that they can be compared.
#
# A text is scored from its first piece on: the mark of the beginning ([CLS], <s>) is given, every piece of the text
# and the mark of its end are guessed. Pieces differ from tokenizer to tokenizer, bytes do not: only bits per byte
# compare models of different tokenizers, and only where neither has met unknown pieces, which cost next to nothing.


def add_bos_eos(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The pieces of each text as a language model reads them, between marks of beginning and end."""
    first, last = tokenizer.cls_id, tokenizer.sep_id
    if first is None or last is None:
        raise UserError("This tokenizer has no [CLS] and [SEP] (or <s> and </s>); train one with `bertkit tokenizer`.")
    return [[first, *pieces, last] for pieces in tokenizer.pieces_batch(texts)]


def perplexity_of(
    texts: Sequence[str], likelihoods: Sequence[float], rows: Sequence[Sequence[int]], unknown: int | None
) -> dict[str, float]:
    """A language model's perplexity and bits per byte over all texts together.

    likelihoods: natural-log likelihood of each text. rows: the ids that were read for it, of which all but the first
    were guessed. unknown: the id of the unknown piece. Returns perplexity (per guessed piece), bits_per_byte (of the
    raw text in UTF-8), pieces (guessed), unknown (pieces of the text that are), bytes.
    """
    pieces = sum(max(0, len(row) - 1) for row in rows)
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if not size or not pieces:
        raise UserError("There is no text to measure: every text is empty.")
    nats = -sum(likelihoods)
    return {
        "perplexity": math.exp(min(700.0, nats / pieces)),
        "bits_per_byte": nats / math.log(2) / size,
        "pieces": pieces,
        "unknown": sum(row.count(unknown) for row in rows) if unknown is not None else 0,
        "bytes": size,
    }


# ---- The neural probabilistic language model (Bengio and others 2003): the first with word vectors of its own.
#
#     x = the vectors of the last `context` pieces, side by side
#     logits = b + U tanh(d + H x)          and, with direct connections, + W x
#
# A piece further back than `context` is not seen at all; a special vector stands for positions before the text.


class Nnlm(Network):
    """Bengio's neural language model (2003). The state is the last `context` pieces."""

    def __init__(self, shape: LanguageModelShape) -> None:
        super().__init__(shape)
        side_by_side = shape.context * shape.width
        self.words = nn.Embedding(shape.vocabulary + 1, shape.width)  # the last row: before the text begins
        self.hidden = Linear(side_by_side, shape.inner)  # H and d
        # U, W and b as one map: the logits are linear in the hidden layer and in the word vectors.
        self.decoder = Linear(shape.inner + shape.direct * side_by_side, shape.vocabulary)
        self.drop = LockedDropout(shape.dropout, DropoutMasks())
        nn.init.normal_(self.words.weight, std=0.1)

    def vectors(self, ids: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Feed-forward language model. ids: (texts, time). Returns (texts, time, hidden (+ context × width)), state."""
        context = self.shape.context
        if state is None:
            state = ids.new_full((ids.shape[0], context), self.shape.vocabulary)
        history = torch.cat([state, ids], dim=1)
        x = self.words(history.unfold(1, context, 1)[:, 1:]).flatten(2).to(self.dtype)
        x = self.drop(x)
        hidden = torch.tanh(self.hidden(x))
        return torch.cat([hidden, x], dim=-1) if self.shape.direct else hidden, history[:, -context:]

    def output(self) -> tuple[Tensor, Tensor]:
        """(U W) and b of the feed-forward language model."""
        return self.decoder.weight, self.decoder.bias


# ---- Recurrent language models: Mikolov's simple one (2010), and those whose cells have gates.
#
#     x = vector of the piece;  h = cell(x, h before) layer over layer;  logits = W h + b
#
# Nothing is ever too far back to be seen, but all of it must pass through the state. Between the layers dropout is
# locked to one mask per text, and W is the table of word vectors where the widths agree (Press and Wolf 2017).

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class Rnnlm(Network):
    """The recurrent language model: stacked LSTM, GRU or plain layers. The state is that of every layer."""

    def __init__(self, shape: LanguageModelShape) -> None:
        super().__init__(shape)
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        widths = [shape.width, *[shape.inner] * shape.layers]
        self.layers = nn.ModuleList(CELLS[shape.kind](a, b, batch_first=True) for a, b in pairwise(widths))
        self.decoder = None if shape.inner == shape.width else Linear(shape.inner, shape.vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))
        self.drop = LockedDropout(shape.dropout, DropoutMasks())
        # Long vectors: with short ones a gated network spends its first hundreds of steps on the words' frequencies.
        nn.init.normal_(self.words.weight, std=4 / shape.width**0.5)
        if shape.kind == "lstm":
            # The forget gate (the second quarter) starts open (Jozefowicz and others 2015).
            for layer in self.layers:
                nn.init.ones_(layer.bias_ih_l0.detach()[shape.inner : 2 * shape.inner])  # type: ignore[operator]

    def vectors(self, ids: Tensor, state: State = None) -> tuple[Tensor, State]:
        """The recurrent language model. ids: (texts, time). Returns (texts, time, hidden) and every layer's state."""
        x = self.drop(self.words(ids))
        after = []
        for layer, before in zip(self.layers, state or [None] * len(self.layers)):
            x, now = layer(x, before)
            x = self.drop(x)
            after.append(now)
        return x, after

    def output(self) -> tuple[Tensor, Tensor]:
        """W and b of the recurrent language model."""
        return self.words.weight if self.decoder is None else self.decoder.weight, self.bias
