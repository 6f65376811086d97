"""The small parts every encoder is built from: linear maps, norms, activations, dropout."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.settings.model import Config

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
    "silu": F.silu,
}


class Linear(nn.Linear):
    """A linear map whose float32 weights are used in the precision of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """A linear layer. x: (…, in). Returns (…, out), in x's precision."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class Norm(nn.LayerNorm):
    """Layer norm; its weights and sums are float32."""

    def __init__(self, width: int, eps: float, bias: bool = True) -> None:
        super().__init__(width, eps=eps, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """A norm layer. x: (…, width). Returns like x."""
        if x.dtype == self.weight.dtype or (x.is_cpu and self.bias is not None):
            return super().forward(x)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), bias, self.eps)


class RmsNorm(nn.RMSNorm):
    """Division by the root mean square; its weights and sums are float32."""

    def forward(self, x: Tensor) -> Tensor:
        """A norm layer without a mean. x: (…, width). Returns like x."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def norm_of(config: Config, width: int = 0) -> nn.Module:
    """The norm layer this encoder uses; width 0: as wide as the encoder."""
    width = width or config.width
    return RmsNorm(width, config.eps) if config.rms_norm else Norm(width, config.eps, config.norm_bias)


class DropoutMasks:
    """The source of dropout: a pure function of the numbers last passed to `seed`.

    Drawing a new random number for every activation costs a tenth of a training step on a CPU.
    Here a pool of masks is drawn every 64 steps, and every dropout takes a slice of it
    at a random offset: one multiplication, and nothing to remember but the slice.
    """

    RENEWED = 64  # steps between two pools
    POOL = 1 << 22  # numbers in a pool, at least; 8 MB in bf16

    def __init__(self) -> None:
        self.seed(0, 0)

    def seed(self, seed: int, step: int, rank: int = 0, part: int = 0) -> None:
        """Restart the dropout masks from these numbers; `part` counts the micro-batches of a step."""
        key = (seed, step // self.RENEWED, rank)
        if key != getattr(self, "_key", None):
            self._key = key
            self._pools: dict[tuple[float, torch.dtype, int], Tensor] = {}
        self._places = np.random.Generator(np.random.SFC64((seed, step, rank, part)))

    def uniform(self, count: int) -> np.ndarray:
        """Numbers between 0 and 1, float32, from which dropout masks are made."""
        return self._places.random(count, dtype=np.float32)

    def mask(self, shape: torch.Size, rate: float, dtype: torch.dtype) -> Tensor:
        """A dropout mask of this shape: zero with probability `rate`, else the scale that keeps the mean.

        In bf16 the scale is a multiple of 1/128, so the rate used is the nearest one that needs no
        rounding: 0.0986 for 0.1.
        """
        count = shape.numel()
        size = max(self.POOL, 1 << (2 * count - 1).bit_length())
        pool = self._pools.get((rate, dtype, size))
        if pool is None:
            scale = 1 / (1 - rate)
            scale = round(scale * 128) / 128 if dtype == torch.bfloat16 else scale
            draws = np.random.Generator(np.random.SFC64((*self._key, size))).integers(0, 65536, size, dtype=np.uint16)
            keep = torch.from_numpy(draws < round(65536 / scale))
            pool = self._pools[rate, dtype, size] = keep.to(dtype).mul_(scale)
        place = int(self._places.integers(0, size - count)) & ~63
        return pool[place : place + count].view(shape)


class Dropout(nn.Module):
    """Dropout from slices of ready-made masks (see DropoutMasks)."""

    def __init__(self, rate: float, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        self.rate = rate
        self.dropout_masks = dropout_masks

    def forward(self, x: Tensor) -> Tensor:
        """A dropout layer. x: any shape. Returns like x."""
        if not self.training or not self.rate:
            return x
        if not x.is_cpu:
            return F.dropout(x, self.rate)
        return x * self.dropout_masks.mask(x.shape, self.rate, x.dtype)


# ---- Initial weights: a pure function of torch's seed and the configuration.


@torch.no_grad()
def initialise(model: nn.Module, config: Config) -> None:
    """First weights of a model's layers: truncated normals at two deviations as in BERT; biases zero; norms one.

    In a pre-norm stack the maps back into the residual stream are scaled down with depth, as in
    GPT-2 and ModernBERT, so that the sum of many layers starts at the size of one.
    """
    residual_std = config.init_std / math.sqrt(2.0 * config.depth) if config.norm == "pre" else config.init_std
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.zero_()
        elif "norm" in name.split(".")[-2:][0]:
            weight.fill_(1.0)
        else:
            is_residual = name.endswith(("attention.out.weight", "feed_forward.narrow.weight"))
            std = residual_std if is_residual else config.init_std
            nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std)
