"""A run that is stopped at a step, and what it leaves behind."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertkit.errors import Stopped
from bertkit.runs.pretrain.run import _Run
from bertkit.training.checkpoints import newest_generation


def fingerprint(out: Path) -> dict[str, str]:
    """Hashes of everything a resumed run must reproduce."""
    newest = newest_generation(out / "checkpoints")
    files = {path.name: path for path in newest.path.glob("*.safetensors")}
    files |= {"metrics": out / "metrics.jsonl", "model": out / "model.safetensors"}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the run receive SIGTERM while it computes this step."""
    log = _Run._log

    def hear(self, done):
        log(self, done)
        if done.step + 1 == step:
            self.signals._hear(signal.SIGTERM, None)

    monkeypatch.setattr(_Run, "_log", hear)


def stop_and_resume(
    run: Callable[[Any], Any], settings: Callable[..., Any], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run `settings("whole")` to its end, and `settings("stopped")` with a stop at this step and a resume."""
    run(settings("whole"))
    with monkeypatch.context() as patch:
        stop_after(step, patch)
        with pytest.raises(Stopped):
            run(settings("stopped"))
    run(settings("stopped", resume=True))
