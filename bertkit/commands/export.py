"""`bertkit export MODEL --format onnx|hf`: export a model for other programs."""

from __future__ import annotations

from typing import Any

from bertkit.settings.compress import ExportSettings as Settings


def run(settings: Settings) -> dict[str, Any]:
    """Export a model for other programs, and check that it gives the same answers there."""
    from bertkit import machine
    from bertkit.files.atomic import check_new_folder
    from bertkit.runs.compress.export import export

    check_new_folder(settings.out)
    settings.check()
    machine.set_up(settings.threads)
    return export(settings)


def lines(result: dict[str, Any]) -> list[str]:
    """The comparison of both models, and what opens the export."""
    from bertkit.runs.compress.export import lines as shown

    return shown(result)


__all__ = ["Settings", "lines", "run"]
