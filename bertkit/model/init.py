"""First weights: a pure function of torch's seed and the configuration."""

from __future__ import annotations

import math

import torch
from torch import nn

from bertkit.settings.model import Config


@torch.no_grad()
def initialise(model: nn.Module, config: Config) -> None:
    """Truncated normals at two deviations as in BERT; biases zero; norms one.

    In a pre-norm stack the maps back into the residual stream are scaled down with depth, as in
    GPT-2 and ModernBERT, so that the sum of many layers starts at the size of one.
    """
    back = config.init_std / math.sqrt(2.0 * config.depth) if config.norm == "pre" else config.init_std
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.zero_()
        elif "norm" in name.split(".")[-2:][0]:
            weight.fill_(1.0)
        else:
            std = back if name.endswith(("attention.out.weight", "feed_forward.narrow.weight")) else config.init_std
            nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std)
