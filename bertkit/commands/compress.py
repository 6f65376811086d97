"""`bertkit distill`, `quantize`, `prune` and `export`: smaller models, faster models, models for other programs."""

from __future__ import annotations

from typing import Any

from bertkit.commands import SharedCommand
from bertkit.errors import UserError
from bertkit.settings.compress import DistillSettings, ExportSettings, PruneSettings, QuantizeSettings

# Options of `bertkit finetune` that the run.toml of an earlier version may hold, with the values they had in it.
RETIRED: dict[str, Any] = {
    "labels": "", "multi_label": False, "class_weights": False, "word": "first", "crf": False, "language": 0.0,
    "merge": "", "seeds": 1, "folds": 0, "search": False,
}  # fmt: skip


def resolve_distill(table: dict[str, Any]) -> dict[str, Any]:
    """The settings without those that the teacher decides; refuse one that asks for something else."""
    for name, value in RETIRED.items():
        if table.get(name, value) != value:
            raise UserError(
                f"{name} does not apply to distillation: it is taken from the teacher, or belongs to "
                "`bertkit finetune`. Leave it out."
            )
    return {name: value for name, value in table.items() if name not in RETIRED}


def run_distill(settings: DistillSettings) -> dict[str, Any]:
    """Distill a fine-tuned teacher into a smaller student on rows with or without labels, and compare the two."""
    from bertkit.files.atomic import check_folder
    from bertkit.runs.compress.distill import distill

    check_folder(settings.out)
    return distill(settings)


def distill_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `distill`: teacher and student side by side."""
    from bertkit.runs.compress.measure import lines

    return [*lines(result["compared"]), f"the student model and its report.html are in {result['out']}"]


def run_quantize(settings: QuantizeSettings) -> dict[str, Any]:
    """Write a model with fewer bits per weight, and report the cost and the gain."""
    from bertkit.runs.compress.quantize import quantize

    start(settings)
    return quantize(settings)


def quantize_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `quantize`: the comparison of both models, and what opens the new folder."""
    from bertkit.runs.compress.quantize import lines

    return lines(result)


def run_prune(settings: PruneSettings) -> dict[str, Any]:
    """Remove whole layers or neurons from a model, and report the cost and the gain."""
    from bertkit.runs.compress.prune import prune

    start(settings)
    return prune(settings)


def prune_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `prune`: the comparison of both models, and what opens the new folder."""
    from bertkit.runs.compress.prune import lines

    return lines(result)


def run_export(settings: ExportSettings) -> dict[str, Any]:
    """Export a model for other programs, and check that it gives the same answers there."""
    from bertkit.runs.compress.export import export

    settings.check()
    start(settings)
    return export(settings)


def export_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `export`: the comparison of both models, and what opens the export."""
    from bertkit.runs.compress.export import lines

    return lines(result)


def start(settings: QuantizeSettings | PruneSettings | ExportSettings) -> None:
    """The start of every compress command: refuse an output folder that exists, set the threads."""
    from bertkit import machine
    from bertkit.files.atomic import check_new_folder

    check_new_folder(settings.out)
    machine.set_up(settings.threads)


distill = SharedCommand(DistillSettings, run_distill, distill_lines, resolve_distill)
quantize = SharedCommand(QuantizeSettings, run_quantize, quantize_lines)
prune = SharedCommand(PruneSettings, run_prune, prune_lines)
export = SharedCommand(ExportSettings, run_export, export_lines)
