"""`bertkit distill TEACHER`: distill a fine-tuned model into a smaller one."""

from __future__ import annotations

from typing import Any

from bertkit.errors import UserError
from bertkit.settings.compress import DistillSettings as Settings

# Options of `bertkit finetune` that the run.toml of an earlier version may hold, with the values they had in it.
RETIRED: dict[str, Any] = {
    "labels": "", "multi_label": False, "class_weights": False, "word": "first", "crf": False, "language": 0.0,
    "merge": "", "seeds": 1, "folds": 0, "search": False,
}  # fmt: skip


def resolve(table: dict[str, Any]) -> dict[str, Any]:
    """The settings without those that the teacher decides; refuse one that asks for something else."""
    for name, value in RETIRED.items():
        if table.get(name, value) != value:
            raise UserError(
                f"{name} does not apply to distillation: it is taken from the teacher, or belongs to "
                "`bertkit finetune`. Leave it out."
            )
    return {name: value for name, value in table.items() if name not in RETIRED}


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
