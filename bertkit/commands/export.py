"""`bertkit export MODEL --format onnx|hf`: a model for other programs."""

from __future__ import annotations

from typing import Any

from bertkit.settings.compress import ExportSettings as Settings


def run(settings: Settings) -> dict[str, Any]:
    """Write a model for other programs, and show that it answers there as it answers here."""
    from bertkit import machine
    from bertkit.files.atomic import check_new_folder
    from bertkit.runs.compress.export import export

    check_new_folder(settings.out)
    settings.check()
    machine.set_up(settings.threads)
    return export(settings)


def lines(result: dict[str, Any]) -> list[str]:
    """Both side by side, and what opens it."""
    from bertkit.runs.compress.export import lines as shown

    return shown(result)


__all__ = ["Settings", "lines", "run"]
