"""Small random models of every family, without a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from bertkit.checkpoint.translate import config_from
from bertkit.model.heads import Model
from bertkit.settings.model import Config
from tests.support.families import CONFIGS

FAMILIES = tuple(CONFIGS)


@cache
def config(family: str) -> Config:
    """The numbers of the family's small model."""
    return config_from(CONFIGS[family].to_dict(), "config.json")


@cache
def model_of(family: str, heads: tuple[tuple[str, int], ...] = (), **numbers: Any) -> Model:
    """A model in evaluation mode, its weights far enough from their start that every part matters."""
    torch.manual_seed(1)
    model = Model(replace(config(family), **numbers), dict(heads)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def rows(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Random piece ids, one row a length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, 60, (n,), generator=generator).tolist() for n in lengths]
