"""`bertkit distill TEACHER`: distill a fine-tuned model into a smaller one."""

from __future__ import annotations

from typing import Any

from bertkit.settings.compress import DistillSettings as Settings


def run(settings: Settings) -> dict[str, Any]:
    """Distill a fine-tuned teacher into a smaller student on rows with or without labels, and compare the two."""
    from bertkit.files.atomic import check_folder
    from bertkit.runs.compress.distill import distill

    check_folder(settings.out)
    return distill(settings)


def lines(result: dict[str, Any]) -> list[str]:
    """Teacher and student side by side."""
    from bertkit.runs.compress.measure import lines as shown

    return [*shown(result["compared"]), f"the student model and its report.html are in {result['out']}"]


__all__ = ["Settings", "lines", "run"]
