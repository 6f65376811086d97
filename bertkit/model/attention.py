"""Attention over packed texts, group by group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.data.batch import Batch, Group
from bertkit.model.layers import Dropout, DropoutMasks, Linear
from bertkit.settings.model import Config

# Above this length the scores of one group no longer fit the cache, and torch's fused kernel,
# which never writes them out, is faster; below it the plain products are (forward and backward).
FUSED_FROM = 1024
# Below this length a CPU computes attention in float32: as fast, since the products are small, and without a kernel
# that oneDNN would make and keep for each of the many shapes of short texts. In a steady batch it does so at every
# length below FUSED_FROM: there is a shape for each number of texts, and a server sees them all.
EXACT_BELOW = 64


class Rotation:
    """Rotary positions for one batch. cos, sin: (tokens, 1, 1, head_width); sin is negative in the first half."""

    def __init__(self, positions: Tensor, head_width: int, base: float, dtype: torch.dtype) -> None:
        steps = torch.arange(0, head_width, 2, dtype=torch.float32, device=positions.device)
        angles = positions[:, None].float() * (1.0 / base ** (steps / head_width))
        cos, sin = angles.cos()[:, None, None, :], angles.sin()[:, None, None, :]
        self.cos = torch.cat((cos, cos), dim=-1).to(dtype)
        self.sin = torch.cat((-sin, sin), dim=-1).to(dtype)

    def __call__(self, qkv: Tensor) -> Tensor:
        """Rotate queries and keys, and leave values. qkv: (tokens, 3, heads, head_width). Returns like qkv."""
        if qkv.requires_grad and torch.is_grad_enabled():
            return _Rotated.apply(qkv, self.cos, self.sin)
        return rotated(qkv, self.cos, self.sin)


def rotated(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries and keys turned by the angles of their positions, and the values beside them."""
    qk = qkv[:, :2]
    left, right = qk.chunk(2, dim=-1)
    return torch.cat((qk * cos + torch.cat((right, left), dim=-1) * sin, qkv[:, 2:]), dim=1)


class _Rotated(torch.autograd.Function):
    """Rotary positions in training: the gradient is turned back, and nothing but the angles is kept for it."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotated(qkv, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotated(grad, cos, -sin), None, None


def mask(group: Group, config: Config, local: bool, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """The attention mask of a group of texts.

    An addend to the scores: (texts or 1, 1, length or 1, length), or None.
    """
    hidden: Tensor | None = None
    places = torch.arange(group.length, device=device)
    if group.lengths is not None:
        hidden = (places[None, :] >= group.lengths[:, None])[:, None, None, :]
    # A length that is traced for export has no size: the mask must be there for any.
    if local and (torch.compiler.is_exporting() or group.length > config.local_window // 2):
        far = ((places[:, None] - places[None, :]).abs() > config.local_window // 2)[None, None]
        hidden = far if hidden is None else hidden | far
    if config.causal:
        later = (places[None, :] > places[:, None])[None, None]
        hidden = later if hidden is None else hidden | later
    if hidden is None:
        return None
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, torch.finfo(dtype).min)


BIASED_UP_TO = 128  # the distance from which on MPNet tells none from another


def position_bias(length: int, table: Tensor, dtype: torch.dtype) -> Tensor:
    """MPNet's (and T5's) addend to the scores, by distance: (1, heads, length, length). table: (buckets, heads).

    Half of the buckets are for tokens to the right. Of each half, the first half holds one distance each, and the rest
    grow logarithmically up to BIASED_UP_TO.
    """
    places = torch.arange(length, device=table.device)
    ahead = torch.arange(1 - length, length, device=table.device)  # key's place minus query's
    side = table.shape[0] // 2
    single = side // 2
    far = ahead.abs().clamp(min=1)
    shared = single + (torch.log(far.float() / single) / math.log(BIASED_UP_TO / single) * (side - single)).to(
        torch.long
    )
    bucket = torch.where(ahead.abs() < single, ahead.abs(), shared.clamp(max=side - 1)) + (ahead > 0) * side
    by_distance = table.to(dtype)[bucket].t()  # (heads, 2 · length - 1)
    return by_distance[:, places[None, :] - places[:, None] + length - 1][None]


class Distances:
    """How far every token is from every other, for disentangled attention (DeBERTa, arXiv 2006.03654).

    table: (2 · span, width), one vector per distance. For each group, `used`: the rows of the table that occur, and
    `rows`: (length, length), which of them query i and key j have.
    """

    def __init__(self, table: Tensor, lengths: list[int], span: int, limit: int) -> None:
        self.table = table
        self.rows: list[Tensor] = []
        self.used: list[slice] = []
        for length in lengths:
            places = torch.arange(length, device=table.device)
            apart = torch.arange(1 - length, length, device=table.device)  # query's place minus key's
            row = ((bucketed(apart, span, limit) if limit else apart) + span).clamp(0, 2 * span - 1)
            # A traced length has no size, and so no rows to choose by it.
            used = slice(0, 2 * span) if torch.compiler.is_exporting() else slice(int(row[0]), int(row[-1]) + 1)
            self.rows.append((row - used.start)[places[:, None] - places[None, :] + length - 1])
            self.used.append(used)


def bucketed(apart: Tensor, span: int, limit: int) -> Tensor:
    """The buckets of distances in disentangled attention. Beyond half the span they grow logarithmically up to `limit`.

    Like `apart`.
    """
    half = span // 2
    far = torch.where(apart.abs() < half, half - 1, apart.abs()).float()
    # In this order and precision, as in transformers: at the border of two buckets a last digit decides.
    steps = torch.log(far / half) / torch.log(torch.tensor((limit - 1) / half)) * (half - 1)
    return torch.where(far <= half, apart, ((torch.ceil(steps) + half) * apart.sign()).long())


@dataclass
class AttentionContext:
    """What attention needs beside the tokens: who may attend to whom, and where every token is.

    masks: one addend to the scores per group of the batch, or None. maps: receives (texts, heads, length, length)
    per group, if the attention weights are requested.
    """

    batch: Batch
    masks: list[Tensor | None]
    rotation: Rotation | None = None
    maps: list[Tensor] | None = None
    distances: Distances | None = None


def softmax(scores: Tensor) -> Tensor:
    """Softmax of attention scores over the last axis, in their precision.

    On a CPU torch's softmax leaves its vector code for rows shorter than a register (16 float32,
    32 bfloat16) and becomes 5 to 15 times slower; there it is written out, or computed in float32.
    """
    length = scores.shape[-1]
    if not scores.is_cpu or length >= 64:
        return torch.softmax(scores, dim=-1)
    if length >= 16:
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
    raised = (scores.float() - scores.amax(-1, keepdim=True)).exp()
    return (raised / raised.sum(-1, keepdim=True)).to(scores.dtype)


class _Padded(torch.autograd.Function):
    """Tokens to padded places. Nothing attends to padding, so it has no gradient to accumulate."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, gather: Tensor, scatter: Tensor) -> Tensor:
        ctx.save_for_backward(scatter)
        return rows[gather]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad[ctx.saved_tensors[0]], None, None


class _Unpadded(torch.autograd.Function):
    """Padded places back to tokens."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, scatter: Tensor) -> Tensor:
        ctx.places = len(flat)
        ctx.save_for_backward(scatter)
        return flat[scatter]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        padded = grad.new_zeros(ctx.places, grad.shape[1])
        padded[ctx.saved_tensors[0]] = grad
        return padded, None


class Attention(nn.Module):
    """Self-attention: every token attends to every token of its own text."""

    fused_from = FUSED_FROM  # 0 while it is traced for export: a traced length has no size to choose by

    def __init__(self, config: Config, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        self.config = config
        self.qkv = Linear(config.width, config.width + 2 * config.key_width, bias=config.bias)
        self.out = Linear(config.width, config.width, bias=config.bias)
        self.dropout = Dropout(config.attention_dropout, dropout_masks)
        self.scale = 1 / math.sqrt((3 if config.relative_span else 1) * config.head_width)
        if config.relative_span:
            self.distance_dropout = Dropout(config.dropout, dropout_masks)
            if not config.relative_shared:
                self.position_query = Linear(config.width, config.width)
                self.position_key = Linear(config.width, config.width)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Self-attention: mix tokens. x: (tokens, width). Returns like x."""
        return self.out(self.mix(self.qkv(x), context))

    def mix(self, qkv: Tensor, context: AttentionContext) -> Tensor:
        """Mix values. qkv: (tokens, 3 · width), or narrower where keys are shared. Returns (tokens, width)."""
        heads, head_width = self.config.heads, self.config.head_width
        batch, rotation = context.batch, context.rotation
        if self.config.key_heads:
            qkv = self._shared_keys(qkv)
        qkv = qkv.view(-1, 3, heads, head_width)
        if rotation is not None:
            qkv = rotation(qkv)
        near = [None] * len(batch.groups) if context.distances is None else self._vectors(context.distances)
        if len(batch.groups) == 1 and not batch.filler:
            return self._attend(qkv, batch.groups[0], context.masks[0], context, near[0])
        parts = qkv.split([*(group.stop - group.start for group in batch.groups), batch.filler])
        mixed = [
            self._attend(part, group, hidden, context, apart)
            for part, group, hidden, apart in zip(parts, batch.groups, context.masks, near)
        ]
        if batch.filler or not mixed:
            mixed.append(qkv.new_zeros(batch.filler, self.config.width))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _shared_keys(self, qkv: Tensor) -> Tensor:
        """Keys and values repeated for the queries that share them. qkv: (tokens, …). Returns (tokens, 3 · width)."""
        config = self.config
        queries, shared = qkv.split([config.width, 2 * config.key_width], dim=1)
        repeated = shared.view(-1, 2, config.key_heads, 1, config.head_width).expand(
            -1, -1, -1, config.heads // config.key_heads, -1
        )
        return torch.cat((queries, repeated.reshape(-1, 2 * config.width)), dim=1)

    def _vectors(self, distances: Distances) -> list[tuple[Tensor, Tensor] | None]:
        """Queries and keys of each group's distances, (2, heads, rows, head_width), and which pair has which.

        They depend on no text, so that a group takes the rows that its length needs.
        """
        config, table = self.config, self.distance_dropout(distances.table)
        if config.relative_shared:
            both = self.qkv(table)[:, : 2 * config.width]
        else:
            both = torch.cat((self.position_query(table), self.position_key(table)), dim=1)
        by_head = both.view(-1, 2, config.heads, config.head_width).permute(1, 2, 0, 3)
        return [(by_head[:, :, used], rows) for used, rows in zip(distances.used, distances.rows)]

    def _by_distance(self, qkv: Tensor, vectors: Tensor, rows: Tensor, exact: bool) -> Tensor:
        """What queries think of distances, and distances of keys. qkv: (3, texts, heads, length, head_width).

        Returns an addend to the scores: (texts, heads, length, length).
        """
        _, texts, heads, length, head_width = qkv.shape
        if qkv.is_cpu and not torch.compiler.is_exporting() and (length < EXACT_BELOW or exact):
            qkv, vectors = qkv.float(), vectors.float()
        tokens = qkv[:2].transpose(1, 2).reshape(2, heads, texts * length, head_width)
        by_query, by_key = (
            torch.bmm(tokens[n], vectors[1 - n].transpose(1, 2)).view(heads, texts, length, -1) for n in (0, 1)
        )
        wanted = (heads, texts, length, length)
        to_distance = by_query.gather(-1, rows.expand(wanted))
        from_distance = by_key.gather(-1, rows.t().expand(wanted)).transpose(-1, -2)
        return ((to_distance + from_distance) * self.scale).transpose(0, 1)

    def _attend(
        self,
        qkv: Tensor,
        group: Group,
        hidden: Tensor | None,
        context: AttentionContext,
        near: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Attention of one group. qkv: (group's tokens, 3, heads, head_width). Returns (group's tokens, width)."""
        rows = qkv if group.gather is None else _Padded.apply(qkv, group.gather, group.scatter)
        by_head = rows.view(group.texts, group.length, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
        if near is not None:
            by_distance = self._by_distance(by_head, *near, exact=context.batch.steady)
            hidden = by_distance if hidden is None else by_distance + hidden
        if context.maps is None and group.length >= self.fused_from and not (self.training and self.dropout.rate):
            mixed = F.scaled_dot_product_attention(
                by_head[0], by_head[1], by_head[2], attn_mask=hidden, scale=self.scale
            )
        else:
            mixed = self._plain(by_head, hidden, context)
        flat = mixed.transpose(1, 2).reshape(group.texts * group.length, -1)
        return flat if group.scatter is None else _Unpadded.apply(flat, group.scatter)

    def _plain(self, qkv: Tensor, hidden: Tensor | None, context: AttentionContext) -> Tensor:
        """Attention as two batched products with a softmax between. qkv: (3, texts, heads, length, head_width)."""
        _, texts, heads, length, head_width = qkv.shape
        exact = qkv.is_cpu and (length < EXACT_BELOW or context.batch.steady)
        # reshape copies: the batched products are slow on strided input.
        q, k, v = (qkv.float() if exact else qkv).reshape(3, texts * heads, length, head_width)
        scores = torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=self.scale)
        if hidden is not None:
            scores = (scores.view(texts, heads, length, length) + hidden).view(texts * heads, length, length)
        weights = softmax(scores)
        if context.maps is not None:
            context.maps.append(weights.view(texts, heads, length, length))
        return torch.bmm(self.dropout(weights), v).to(qkv.dtype).view(texts, heads, length, head_width)
