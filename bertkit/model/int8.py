"""Linear maps in whole numbers: int8 weights with a scale a row, int8 activations with a scale a token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.model.layers import Linear

LARGEST = 127


def to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 and the scale of each row: x ≈ numbers · scale, half a scale apart at most.

    x: (rows, n) float. Returns (rows, n) int8 and (rows, 1) float32. What comes from whole numbers goes back to them.
    """
    x = x.float()
    scale = x.abs().amax(1, keepdim=True).clamp_(min=1e-30).div_(LARGEST)
    return (x / scale).round_().to(torch.int8), scale


def from_int8(numbers: Tensor, scale: Tensor) -> Tensor:
    """The float32 numbers that they stand for."""
    return numbers.float() * scale


class Int8Linear(nn.Module):
    """A linear map whose product is taken in int8.

    Each token has its own scale, found when it comes: a text's numbers do not depend on its neighbours in the batch, as
    they would with one scale for all, and one loud token does not cost the others their precision.
    """

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.numbers, scale = to_int8(linear.weight.detach())
        self.scale = scale.view(-1)
        self.bias = None if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        """x: (tokens, in). Returns (tokens, out), of x's precision."""
        numbers, scale = to_int8(x)
        y = torch._int_mm(numbers, self.numbers.t()).float().mul_(scale).mul_(self.scale)
        return (y if self.bias is None else y.add_(self.bias)).to(x.dtype)
