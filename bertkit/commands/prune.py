"""`bertkit prune MODEL`: whole layers and neurons taken out."""

from __future__ import annotations

from typing import Any

from bertkit.settings.compress import PruneSettings as Settings


def run(settings: Settings) -> dict[str, Any]:
    """Take whole layers or neurons out of a model, and show what that costs and gains."""
    from bertkit import machine
    from bertkit.files.atomic import check_new_folder
    from bertkit.runs.compress.prune import prune

    check_new_folder(settings.out)
    machine.set_up(settings.threads)
    return prune(settings)


def lines(result: dict[str, Any]) -> list[str]:
    """Both side by side, and what opens the new folder."""
    from bertkit.runs.compress.prune import lines as shown

    return shown(result)


__all__ = ["Settings", "lines", "run"]
