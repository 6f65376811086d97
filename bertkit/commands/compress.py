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
    from bertkit.runs.compress import measure

    return [*measure.lines(result["compared"]), f"the student model and its report.html are in {result['out']}"]


def run_quantize(settings: QuantizeSettings) -> dict[str, Any]:
    """Write a model with fewer bits per weight, and report the cost and the gain."""
    from bertkit.runs.compress.quantize import quantize

    start(settings)
    return quantize(settings)


def quantize_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `quantize`: the comparison, whether it is worth it, and what opens the folder."""
    from bertkit.runs.compress import measure

    comparison = result["compared"]
    speeds = [comparison[side]["texts_per_second"] for side in ("before", "after")]
    slower = ["It is not faster on this machine, only smaller."] if speeds[1] < 1.1 * speeds[0] else []
    return [*measure.lines(comparison), *slower, f"{result['out']}: {result['opened_by']}."]


def run_prune(settings: PruneSettings) -> dict[str, Any]:
    """Remove whole layers or neurons from a model, and report the cost and the gain."""
    from bertkit.runs.compress.prune import prune

    start(settings)
    return prune(settings)


def prune_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `prune`: what was removed, the comparison, and what to do next."""
    from bertkit.runs.compress import measure

    depth, inner = (f"{before} → {after}" for before, after in (result["depth"], result["inner"]))
    again = f"To recover what it lost: bertkit distill {result['model']} --model {result['out']} --train FILE --out RUN"
    return [
        f"layers {depth}, feed-forward neurons {inner}",
        *measure.lines(result["compared"]),
        f"{result['out']}: opens in bertkit.load and transformers.",
        again if result["task"] else "Fine-tune it before you use it.",
    ]


def run_export(settings: ExportSettings) -> dict[str, Any]:
    """Export a model for other programs, and check that it gives the same answers there."""
    from bertkit.runs.compress.export import export

    settings.check()
    start(settings)
    return export(settings)


def export_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `export`: the comparison, and what opens it."""
    from bertkit.runs.compress import measure

    rows = measure.lines(result["compared"])
    if result["format"] == "web":
        rows.append(
            f"{result['out']}/index.html: open it in a browser; it needs no server and no network "
            f"({result['bytes'] / 1e6:.0f} MB)."
        )
    elif result["format"] == "onnx":
        rows += [
            f"Compared with fp32, outputs differ by at most {result['max_difference']:.1e} of the largest.",
            f"{result['out']}/{result['file']}: {', '.join(result['inputs'])} → {', '.join(result['outputs'])}; "
            "any batch size and length, rows padded at the end.",
        ]
        for weights, other in result["others"].items():
            rows += ["", f"{weights}{': ' if other['file'] else ''}{other['file']}", *measure.lines(other["compared"])]
        if result["calibrations"]:
            chosen, *rest = (f"{name} {off:.2%}" for name, off in result["calibrations"].items())
            rows.append(f"int8 ranges: {chosen} off on average (chosen); {', '.join(rest)}.")
        rows.append(f"{result['out']}: opens in bertkit.load (with or without torch), optimum and transformers.js.")
    else:
        rows.append(f"{result['out']}: {result['class']}; opens in transformers and bertkit.load.")
    return rows


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
