"""The small parts every encoder is built from: linear maps, norms, activations, dropout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
    "silu": F.silu,
}


class Linear(nn.Linear):
    """A linear map whose float32 weights are used at the precision of what comes in."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, in). Returns (…, out), of x's precision."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class Norm(nn.LayerNorm):
    """Layer norm; its weights stay float32, its sums are taken in float32."""

    def __init__(self, width: int, eps: float, bias: bool = True) -> None:
        super().__init__(width, eps=eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, width). Returns like x."""
        if x.dtype == self.weight.dtype or (x.is_cpu and self.bias is not None):
            return super().forward(x)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), bias, self.eps)


class Chance:
    """The source of dropout: a pure function of the numbers last given to `seed`."""

    def __init__(self) -> None:
        self.random = np.random.Generator(np.random.SFC64(0))

    def seed(self, *numbers: int) -> None:
        """Start again from these numbers, e.g. (seed, step, rank)."""
        self.random = np.random.Generator(np.random.SFC64(numbers))

    def keep(self, shape: torch.Size, threshold: int) -> Tensor:
        """True with probability 1 - threshold / 256."""
        count = shape.numel()
        raw = np.frombuffer(self.random.bytes(count), dtype=np.uint8)
        return torch.from_numpy(raw >= threshold).view(shape)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, keep: Tensor, scale: float) -> Tensor:  # type: ignore[no-untyped-def]  # noqa: ANN001
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return (x * keep).mul_(scale)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        (keep,) = ctx.saved_tensors
        return (grad * keep).mul_(ctx.scale), None, None


class Dropout(nn.Module):
    """Dropout from one byte of chance a number: several times faster on a CPU than torch's.

    The rate is rounded to a multiple of 1/256 (0.1 becomes 0.1016), and what is kept is scaled
    by exactly that rate.
    """

    def __init__(self, rate: float, chance: Chance) -> None:
        super().__init__()
        self.rate = rate
        self.chance = chance

    def forward(self, x: Tensor) -> Tensor:
        """x: any shape. Returns like x."""
        if not self.training or not self.rate:
            return x
        if not x.is_cpu:
            return F.dropout(x, self.rate)
        threshold = max(1, round(self.rate * 256))
        return _Drop.apply(x, self.chance.keep(x.shape, threshold), 256 / (256 - threshold))
