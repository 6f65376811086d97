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
    """Rotary positions for one batch. cos, sin: (tokens, 1, 1, head_width / 2)."""

    def __init__(self, positions: Tensor, head_width: int, base: float, dtype: torch.dtype) -> None:
        steps = torch.arange(0, head_width, 2, dtype=torch.float32, device=positions.device)
        angles = positions[:, None].float() * (1.0 / base ** (steps / head_width))
        self.cos = angles.cos()[:, None, None, :].to(dtype)
        self.sin = angles.sin()[:, None, None, :].to(dtype)

    def __call__(self, qk: Tensor) -> Tensor:
        """Rotate queries and keys. qk: (tokens, 2, heads, head_width). Returns like qk."""
        left, right = qk.chunk(2, dim=-1)
        return torch.cat((left * self.cos - right * self.sin, right * self.cos + left * self.sin), dim=-1)


def mask(group: Group, config: Config, local: bool, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """The attention mask, as an addend to the scores: (texts or 1, 1, length or 1, length), or None."""
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


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis, in the precision of scores.

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
        self.qkv = Linear(config.width, 3 * config.width, bias=config.bias)
        self.out = Linear(config.width, config.width, bias=config.bias)
        self.dropout = Dropout(config.attention_dropout, dropout_masks)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Mix tokens. x: (tokens, width). Returns like x."""
        heads, head_width = self.config.heads, self.config.head_width
        batch, rotation = context.batch, context.rotation
        qkv = self.qkv(x).view(-1, 3, heads, head_width)
        if rotation is not None:
            qkv = torch.cat((rotation(qkv[:, :2]), qkv[:, 2:]), dim=1)
        parts = qkv.split([*(group.stop - group.start for group in batch.groups), batch.filler])
        mixed = [
            self._attend(part, group, hidden, context)
            for part, group, hidden in zip(parts, batch.groups, context.masks)
        ]
        if batch.filler:
            mixed.append(x.new_zeros(batch.filler, self.config.width))
        return self.out(mixed[0] if len(mixed) == 1 else torch.cat(mixed) if mixed else x)

    def _attend(self, qkv: Tensor, group: Group, hidden: Tensor | None, context: AttentionContext) -> Tensor:
        """One group. qkv: (group's tokens, 3, heads, head_width). Returns (group's tokens, width)."""
        rows = qkv if group.gather is None else _Padded.apply(qkv, group.gather, group.scatter)
        by_head = rows.view(group.texts, group.length, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
        if context.maps is None and group.length >= self.fused_from and not (self.training and self.dropout.rate):
            mixed = F.scaled_dot_product_attention(by_head[0], by_head[1], by_head[2], attn_mask=hidden)
        else:
            mixed = self._plain(by_head, hidden, context)
        flat = mixed.transpose(1, 2).reshape(group.texts * group.length, -1)
        return flat if group.scatter is None else _Unpadded.apply(flat, group.scatter)

    def _plain(self, qkv: Tensor, hidden: Tensor | None, context: AttentionContext) -> Tensor:
        """Two batched products with a softmax between. qkv: (3, texts, heads, length, head_width)."""
        _, texts, heads, length, head_width = qkv.shape
        exact = qkv.is_cpu and (length < EXACT_BELOW or context.batch.steady)
        # reshape copies: the batched products are slow on strided input.
        q, k, v = (qkv.float() if exact else qkv).reshape(3, texts * heads, length, head_width)
        scores = torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=1 / math.sqrt(head_width))
        if hidden is not None:
            scores = (scores.view(texts, heads, length, length) + hidden).view(texts * heads, length, length)
        weights = softmax(scores)
        if context.maps is not None:
            context.maps.append(weights.view(texts, heads, length, length))
        return torch.bmm(self.dropout(weights), v).to(qkv.dtype).view(texts, heads, length, head_width)
