"""`bertkit finetune TASK`: from labelled rows to your own model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.settings.finetune import FinetuneSettings as Settings

if TYPE_CHECKING:
    from bertkit.data.examples import TextRow


def run(settings: Settings) -> dict[str, Any]:
    """Fine-tune a model on labelled rows, evaluate it, and write a report."""
    from bertkit.files.atomic import check_folder
    from bertkit.runs.finetune.run import finetune

    check_folder(settings.out)
    return finetune(with_negatives(settings) if settings.negatives else settings)


def with_negatives(settings: Settings) -> Settings:
    """`finetune --negatives`: the run on a file beside --out, in which every pair has its best wrong passage."""
    from bertkit.notify import note
    from bertkit.retrieval.evaluate import mine
    from bertkit.retrieval.index import Index
    from bertkit.runs.finetune.split import check_settings

    check_settings(settings)
    path = settings.out.with_name(settings.out.name + "-negatives.jsonl")
    if not (settings.resume and path.is_file()):
        assert settings.negatives is not None
        rows = _pairs(settings)
        index = Index.open(settings.negatives, "", settings.precision, settings.device)
        mined = mine(rows, index, spread=settings.rank)
        _write(path, mined, settings)
        hard, right = sum(row.text_c is not None for row in mined), sum(row.label in (1, None) for row in mined)
        note(f"{hard:,} of {right:,} pairs have a hard negative of {settings.negatives}; they are in {path}.")
    return replace(settings, train=path)


def _pairs(settings: Settings) -> list[TextRow]:
    """The rows that `finetune --negatives` mines for, with their labels 0 and 1 where they are those of --rank."""
    from bertkit.errors import UserError
    from bertkit.runs.finetune.split import reading_of
    from bertkit.tasks.embed import Embed
    from bertkit.tasks.regress import Rank

    if settings.rank:
        return Rank().given(settings.train, reading_of(settings))
    rows = Embed().read(settings.train, reading_of(settings))
    if scored := next((row for row in rows if row.label is not None), None):
        raise UserError(
            f"{settings.train}, line {scored.line}: the pairs have scores, and --negatives is for pairs that belong "
            "together. Leave --negatives out, or pass the good pairs alone, without a label column."
        )
    return rows


def _write(path: Path, rows: list[TextRow], settings: Settings) -> None:
    """Write mined pairs under the names and in the encoding of the user's own files: --dev and --test have them too."""
    import json

    from bertkit.files.atomic import atomic_write

    names = {"text": settings.text, "text_b": settings.text_b, "text_c": "text_c", "label": settings.label}
    given = ({names[name]: getattr(row, name) for name in names if getattr(row, name) is not None} for row in rows)
    plain = settings.encoding != "utf-8"  # escapes: a passage may have characters that the encoding has not
    lines = "".join(json.dumps(row, ensure_ascii=plain) + "\n" for row in given)
    atomic_write(path, lines.encode(settings.encoding))


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `finetune`: scores with intervals, the baseline, rows and files."""
    role, rows = result["scored_on"], result["rows"]
    printed = []
    for name, value in result["metrics"].items():
        pair = result["intervals"].get(name)
        printed.append(f"{name:20} {value:.4f}" + (f"   95 % interval {pair[0]:.4f} to {pair[1]:.4f}" if pair else ""))
    chose = CHOSE if role == "dev" else ""
    printed.append(f"scored on            {rows:,} {role} rows{chose}")
    printed += _baseline(result)
    if "abstain" in result:
        chosen = result["abstain"]
        printed.append(
            f"abstains below       {chosen['threshold']:.4f}   answers {chosen['coverage']:.1%} of {chosen['rows']:,} "
            f"{chosen['scored_on']} rows, {chosen['accuracy']:.1%} of them right"
        )
    if "seeds" in result:
        printed.append(
            f"over seeds           {result['seeds']['mean']:.4f} ± {result['seeds']['spread']:.4f}   "
            f"{result['headline']} on the {role} rows"
        )
    if "folds" in result:
        folds = result["folds"]
        printed.append(
            f"over folds           {folds['mean']:.4f} ± {folds['spread']:.4f}   {result['headline']} on "
            f"{folds['rows']:,} training rows, each scored by a model that was neither trained on it nor chosen by it"
        )
    printed.append(f"model and report.html in {result['out']}")
    return printed


CHOSE = (
    ", which also chose the best pass: expect slightly less on new rows (--test FILE scores rows that chose nothing)"
)


def _baseline(result: dict[str, Any]) -> list[str]:
    """The line of `finetune` that compares the model with its baseline."""
    if "baseline" not in result:
        return []
    facts = result["baseline"]
    value = result["baselines"][facts["name"]][facts["metric"]]
    line = (
        f"baseline             {value:.4f}   {facts['metric']} of {facts['name']} on the same rows "
        f"({facts['seconds']:.1f} s, trained on {facts['trained_on']:,} rows)"
    )
    if "difference" not in facts:
        return [line]
    low, high = f"{facts['low']:+.4f}", f"{facts['high']:+.4f}"
    return [line, f"difference           {facts['difference']:+.4f}   95 % interval {low} to {high}"]


__all__ = ["Settings", "lines", "run"]
