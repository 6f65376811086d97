"""`bertkit prune MODEL`: remove whole layers and neurons."""

from __future__ import annotations

from typing import Any

from bertkit.settings.compress import PruneSettings as Settings


def run(settings: Settings) -> dict[str, Any]:
    """Remove whole layers or neurons from a model, and report the cost and the gain."""
    from bertkit import machine
    from bertkit.files.atomic import check_new_folder
    from bertkit.runs.compress.prune import prune

    check_new_folder(settings.out)
    machine.set_up(settings.threads)
    return prune(settings)


def lines(result: dict[str, Any]) -> list[str]:
    """The comparison of both models, and what opens the new folder."""
    from bertkit.runs.compress.prune import lines as shown

    return shown(result)


__all__ = ["Settings", "lines", "run"]
