"""The interface of everything that can be trained: summed losses and what each is divided by."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from bertkit.data.batch import Batch
from bertkit.model.layers import DropoutMasks


class Objective(nn.Module):
    """The base of every training objective: a loss as a module that owns encoders and heads.

    The loop sees only this interface.
    """

    weights: ClassVar[dict[str, float]] = {}  # terms whose weight is not 1

    passing: ClassVar[tuple[str, ...]] = ()  # prefixes of weights that may be missing on resume

    def weights_at(self, progress: float) -> dict[str, float]:
        """The weights of the terms when this fraction of the run is done."""
        return self.weights

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Each term's loss, SUMMED over the batch."""
        raise NotImplementedError

    def counts(self, batch: Batch) -> dict[str, int]:
        """What each sum is divided by, once it is added up over all ranks and micro-batches."""
        raise NotImplementedError

    def judge(self, batch: Batch) -> dict[str, float]:
        """Sums for evaluation: each loss under its name, and correct predictions under `name:right`."""
        raise NotImplementedError

    def dropout_masks(self) -> list[DropoutMasks]:
        """Every source of dropout among the submodules."""
        candidates = (getattr(module, "dropout_masks", None) for module in self.modules())
        return list({id(masks): masks for masks in candidates if isinstance(masks, DropoutMasks)}.values())

    def set_precision(self, dtype: torch.dtype) -> None:
        """Compute activations in this precision; the weights stay float32."""
        from bertkit.model.encoder import Encoder

        for module in self.modules():
            if isinstance(module, Encoder):
                module.dtype = dtype
