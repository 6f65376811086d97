"""Several layers as one: the weighted sum that ELMo taught its users."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """scale × the sum of softmax(weights) × layer; begins as the mean of the layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def shares(self) -> Tensor:
        """How much each layer counts, (layers,): positive, and together one."""
        return self.weights.softmax(0)

    def forward(self, x: Tensor) -> Tensor:
        """x: (tokens, layers, width). Returns (tokens, width)."""
        return self.scale * torch.einsum("tlw,l->tw", x, self.shares())
