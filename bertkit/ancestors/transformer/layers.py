"""The Transformer's own parts: words with sines for positions, attention to the source, the decoder.

The encoder's layers, self-attention and feed-forward are bertkit's own (`bertkit.model`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bertkit.ancestors.transformer.data import Pairs
from bertkit.data.batch import Batch
from bertkit.model.attention import Attention, AttentionContext, mask, softmax
from bertkit.model.encoder import FeedForward
from bertkit.model.layers import Dropout, DropoutMasks, Linear, Norm
from bertkit.settings.ancestors import Shape
from bertkit.settings.model import Config

Mixing = Callable[[Tensor], Tensor]  # (tokens, width) → like it


def sinusoids(length: int, width: int) -> Tensor:
    """Section 3.5 of the paper: sines at even places, cosines at odd ones. Returns (length, width)."""
    steps = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (steps / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).reshape(length, width).float()


class Words(nn.Module):
    """Word vectors times √width plus sines: one table for sources, targets and guesses (section 3.4)."""

    positions: Tensor

    def __init__(self, shape: Shape, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.register_buffer("positions", sinusoids(shape.max_tokens, shape.width), persistent=False)
        self.dropout = Dropout(shape.dropout, dropout_masks)

    def forward(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        """Returns (tokens, width)."""
        return self.at(batch.ids, batch.positions, dtype)

    def at(self, ids: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """ids: (n,), positions: (n,) or (1,). Returns (n, width)."""
        scaled = self.words(ids) * math.sqrt(self.words.embedding_dim)
        return self.dropout((scaled + self.positions[positions]).to(dtype))

    def logits(self, x: Tensor) -> Tensor:
        """x: (n, width). Returns (n, vocabulary), float32."""
        return nn.functional.linear(x, self.words.weight.to(x.dtype)).float()


def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, dropout: Dropout) -> Tensor:
    """q: (rows, heads, asked, head_width); k, v: (rows, heads, seen, head_width). Returns (rows, asked, width)."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    weights = softmax(scores if hidden is None else scores + hidden)
    return (dropout(weights) @ v).transpose(1, 2).flatten(2)


class CrossAttention(nn.Module):
    """Every token of a target looks at every token of its source."""

    def __init__(self, config: Config, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        self.config = config
        self.query = Linear(config.width, config.width)
        self.kv = Linear(config.width, 2 * config.width)
        self.out = Linear(config.width, config.width)
        self.dropout = Dropout(config.attention_dropout, dropout_masks)

    def keys(self, memory: Tensor, places: Tensor) -> Tensor:
        """memory: (source tokens, width); places: (texts, seen), which tokens. Returns (2, texts, heads, seen, …)."""
        rows = self.kv(memory)[places]
        return rows.unflatten(-1, (2, self.config.heads, -1)).permute(2, 0, 3, 1, 4)

    def look(self, asked: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        """asked: (texts, asked, width), through `query` already. Returns like it, not yet through `out`."""
        q = asked.unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
        return attend(q, keys[0], keys[1], hidden, self.dropout)

    def forward(self, x: Tensor, memory: Tensor, pairs: Pairs, hidden: Tensor) -> Tensor:
        """x: (target tokens, width), memory: (source tokens, width), both packed. Returns like x."""
        mixed = self.look(self.query(x)[pairs.extra["asking"]], self.keys(memory, pairs.extra["seen"]), hidden)
        flat = mixed.flatten(0, 1)[pairs.extra["back"]]
        return self.out(nn.functional.pad(flat, (0, 0, 0, pairs.target.filler)))


@dataclass
class Memory:
    """What a decoder keeps while it writes. rows: hypotheses, as many a text; texts: sources.

    past: each layer's keys and values (2, rows, heads, tokens so far, head_width). sources: each layer's keys and
    values (2, texts, heads, seen, head_width): the hypotheses of a text share them. hidden: (texts, 1, 1, seen).
    """

    sources: list[Tensor]
    hidden: Tensor
    past: list[Tensor] = field(default_factory=list)

    def select(self, rows: Tensor, texts: Tensor) -> None:
        """Go on with these rows and texts only, in this order."""
        rows, texts = rows.to(self.hidden.device), texts.to(self.hidden.device)
        self.past = [tensor[:, rows] for tensor in self.past]
        if len(texts) < len(self.hidden):
            self.sources = [tensor[:, texts] for tensor in self.sources]
            self.hidden = self.hidden[texts]


class DecoderLayer(nn.Module):
    """Attention to what is written, attention to the source, feed-forward; norms after each sum (post) or before."""

    def __init__(self, config: Config, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.attention = Attention(config, dropout_masks)
        self.cross = CrossAttention(config, dropout_masks)
        self.feed_forward = FeedForward(config)
        self.attention_norm, self.cross_norm, self.feed_forward_norm = (Norm(config.width, config.eps) for _ in "123")
        self.dropout = Dropout(config.dropout, dropout_masks)

    def forward(self, x: Tensor, memory: Tensor, pairs: Pairs, context: AttentionContext, hidden: Tensor) -> Tensor:
        """All of many targets at once. x: (target tokens, width), packed. Returns like x."""
        return self._through(
            x,
            lambda y: self.attention(y, context),
            lambda y: self.cross(y, memory, pairs, hidden),
        )

    def step(self, x: Tensor, memory: Memory, number: int) -> Tensor:
        """One more token of every row; its key and value are added to the memory. x: (rows, width). Returns like x."""

        def written(y: Tensor) -> Tensor:
            qkv = self.attention.qkv(y).view(len(y), 3, self.attention.config.heads, 1, -1)
            new = qkv[:, 1:].transpose(0, 1)
            if number == len(memory.past):
                memory.past.append(new)
            else:
                memory.past[number] = torch.cat((memory.past[number], new), dim=3)
            k, v = memory.past[number]
            return self.attention.out(attend(qkv[:, 0], k, v, None, self.attention.dropout)[:, 0])

        def source(y: Tensor) -> Tensor:
            # The rows of a text stand side by side as if they were tokens of one target: none sees another.
            asked = self.cross.query(y).view(len(memory.hidden), -1, y.shape[-1])
            return self.cross.out(self.cross.look(asked, memory.sources[number], memory.hidden).flatten(0, 1))

        return self._through(x, written, source)

    def _through(self, x: Tensor, written: Mixing, source: Mixing) -> Tensor:
        parts: tuple[tuple[Mixing, Norm], ...] = (
            (written, self.attention_norm),
            (source, self.cross_norm),
            (self.feed_forward, self.feed_forward_norm),
        )
        for part, norm in parts:
            x = x + self.dropout(part(norm(x))) if self.pre else norm(x + self.dropout(part(x)))
        return x


class Decoder(nn.Module):
    """A stack of decoder layers."""

    def __init__(self, config: Config, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config, dropout_masks) for _ in range(config.depth))
        self.final_norm = Norm(config.width, config.eps) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor, pairs: Pairs) -> Tensor:
        """x: (target tokens, width), memory: (source tokens, width). Returns like x."""
        masks = [mask(group, self.config, False, x.dtype, x.device) for group in pairs.target.groups]
        context = AttentionContext(pairs.target, masks)
        hidden = padding(pairs.extra["seen_lengths"], pairs.extra["seen"].shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, memory, pairs, context, hidden)
        return self.final_norm(x)

    def start(self, memory: Tensor, places: Tensor, lengths: Tensor) -> Memory:
        """Ready to write. memory: (source tokens, width); places: (texts, seen) of it; lengths: (texts,)."""
        sources = [layer.cross.keys(memory, places) for layer in self.layers]  # type: ignore[operator, union-attr]
        return Memory(sources, padding(lengths, places.shape[1], memory.dtype))

    def step(self, x: Tensor, memory: Memory) -> Tensor:
        """One more token of every row. x: (rows, width). Returns like x."""
        for number, layer in enumerate(self.layers):
            x = layer.step(x, memory, number)  # type: ignore[operator]
        return self.final_norm(x)


def padding(lengths: Tensor, longest: int, dtype: torch.dtype) -> Tensor:
    """An addend to scores that hides what is past each length: (texts, 1, 1, longest)."""
    past = torch.arange(longest, device=lengths.device)[None, :] >= lengths[:, None]
    return torch.zeros(past.shape, dtype=dtype, device=lengths.device).masked_fill_(past, torch.finfo(dtype).min)[
        :, None, None, :
    ]
