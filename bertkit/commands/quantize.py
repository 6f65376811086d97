"""`bertkit quantize MODEL`: store weights in fewer bits."""

from __future__ import annotations

from typing import Any

from bertkit.settings.compress import QuantizeSettings as Settings


def run(settings: Settings) -> dict[str, Any]:
    """Write a model with fewer bits per weight, and report the cost and the gain."""
    from bertkit import machine
    from bertkit.files.atomic import check_new_folder
    from bertkit.runs.compress.quantize import quantize

    check_new_folder(settings.out)
    machine.set_up(settings.threads)
    return quantize(settings)


def lines(result: dict[str, Any]) -> list[str]:
    """The comparison of both models, and what opens the new folder."""
    from bertkit.runs.compress.quantize import lines as shown

    return shown(result)


__all__ = ["Settings", "lines", "run"]
