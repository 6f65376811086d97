"""`bertkit inspect`: show how a model reads one text, as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit inspect`."""

    model: str = option(help="Embedded name, folder, or hub name.", argument=True)
    text: str = option(help="The text.", argument=True)
    text_b: str = option("", "The second text of a pair.")
    out: Path = option(Path("inspect.html"), "The page to write.")
    lang: str = option("en", "Language of the page.", choices=("en", "zh"))


def run(settings: Settings) -> dict[str, Any]:
    """Show tokens, where every head looks, and which tokens matter."""
    from bertkit import machine
    from bertkit.files.atomic import atomic_write, check_folder, explained, make_folder
    from bertkit.inference.explain import explain
    from bertkit.inference.predictor import Predictor
    from bertkit.report.explain import explain_report
    from bertkit.runs.finetune.start import report_unknown

    check_folder(settings.out.parent)
    machine.set_up(settings.threads)
    predictor = Predictor.load(settings.model, settings.precision, settings.device)
    found = explain(predictor, settings.text, settings.text_b or None)
    with explained(f"{settings.out} cannot be written"):
        make_folder(settings.out.parent)
    atomic_write(settings.out, explain_report(found, model=settings.model, lang=settings.lang))
    rounded = [[[[round(float(x), 4) for x in row] for row in head] for head in layer] for layer in found["attention"]]
    share = report_unknown(predictor, settings.model)
    return {**found, "attention": rounded, "page": str(settings.out), "unknown_share": share}


def lines(result: dict[str, Any]) -> list[str]:
    """One token per line, with a bar for its importance."""
    said = result["said"]
    shown = [f"{said['label']}  {said['score']:.3f}"] if said else []
    most = max((abs(one["importance"]) for one in result["tokens"]), default=0.0) or 1.0
    for one in result["tokens"]:
        if not one["special"]:
            bar = "█" * round(24 * abs(one["importance"]) / most)
            shown.append(f"{one['token']:16} {one['importance']:8.4f}  {bar}")
    return [*shown, result["page"]]
