from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertkit import config
from bertkit.commands import pretrain
from bertkit.settings.pretrain import PretrainSettings
from tests.support import synthetic

SMALL = {"width": 32, "depth": 2, "heads": 2, "inner": 48, "unique_layers": 0, "embedding_width": 0, "max_tokens": 64}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    return synthetic.make_store(folder).folder


@pytest.fixture(scope="session")
def make(store: Path):
    """Settings of a small run: make(preset, out, **changes)."""

    def settings(preset: str, out: Path, **changes: Any) -> PretrainSettings:
        small = {
            "model": {**SMALL, "positions": 66} if "modern" not in preset else SMALL,
            "batch_tokens": 256, "lengths": [[0.5, 32], [0.5, 48]], "eval_tokens": 512, "held_out": 0.05,
            "log_every": 1, "eval_every": 3, "steps": 6, "threads": 1, "micro_tokens": 128,
        }  # fmt: skip
        if preset.startswith("albert"):
            small["model"] = {**SMALL, "positions": 66, "unique_layers": 1, "embedding_width": 16}
        table = config.merged(config.preset(preset), {"preset": preset, "data": store, "out": out})
        table = config.merged(config.merged(table, small), changes)
        return config.build(PretrainSettings, pretrain.resolve(table))

    return settings
