"""`bertkit finetune TASK`: from labelled rows to your own model."""

from __future__ import annotations

from typing import Any

from bertkit.settings.finetune import FinetuneSettings as Settings


def run(settings: Settings) -> dict[str, Any]:
    """Fine-tune a model on labelled rows, evaluate it, and write a report."""
    from bertkit.files.atomic import check_folder
    from bertkit.runs.finetune.run import finetune

    check_folder(settings.out)
    return finetune(settings)


def lines(result: dict[str, Any]) -> list[str]:
    """The scores with their intervals, and where the files are."""
    shown = []
    for name, value in result["metrics"].items():
        pair = result["intervals"].get(name)
        shown.append(f"{name:20} {value:.4f}" + (f"   95 % interval {pair[0]:.4f} to {pair[1]:.4f}" if pair else ""))
    if "seeds" in result:
        shown.append(f"{'over seeds':20} {result['seeds']['mean']:.4f} ± {result['seeds']['spread']:.4f}")
    if "folds" in result:
        shown.append(f"{'over folds':20} {result['folds']['mean']:.4f} ± {result['folds']['spread']:.4f}")
    shown.append(f"scored on {result['rows']:,} {result['scored_on']} rows; model and report.html in {result['out']}")
    return shown


__all__ = ["Settings", "lines", "run"]
