"""`bertkit finetune TASK`: from labelled rows to your own model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertkit.settings.finetune import FinetuneSettings as Settings


def run(settings: Settings) -> dict[str, Any]:
    """Fine-tune a model on labelled rows, evaluate it, and write a report."""
    from bertkit.files.atomic import check_folder
    from bertkit.runs.finetune.run import finetune

    check_folder(settings.out)
    return finetune(with_negatives(settings) if settings.negatives else settings)


def with_negatives(settings: Settings) -> Settings:
    """`finetune --negatives`: the run on a file beside --out, in which every pair has its best wrong passage."""
    import json

    from bertkit.data.readers import read_rows
    from bertkit.files.atomic import atomic_write
    from bertkit.notify import note
    from bertkit.retrieval.evaluate import mine
    from bertkit.retrieval.index import Index
    from bertkit.runs.finetune.split import check_settings

    check_settings(settings)
    path = settings.out.with_name(settings.out.name + "-negatives.jsonl")
    if not (settings.resume and path.is_file()):
        assert settings.negatives is not None
        index = Index.open(settings.negatives, "", settings.precision, settings.device)
        rows = list(
            read_rows(
                settings.train, text=settings.text, text_b=settings.text_b, labelled=False, encoding=settings.encoding
            )
        )
        mined = mine(rows, index, spread=settings.rank)
        atomic_write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in mined))
        hard = sum("text_c" in row for row in mined)
        note(f"{hard:,} of {len(rows):,} pairs have a hard negative of {settings.negatives}; they are in {path}.")
    return replace(settings, train=path, text="text", text_b="text_b", encoding="utf-8")


def lines(result: dict[str, Any]) -> list[str]:
    """What `bertkit finetune` prints: scores with intervals, the baseline's, the rows they are of, and the files."""
    role, rows = result["scored_on"], result["rows"]
    shown = []
    for name, value in result["metrics"].items():
        pair = result["intervals"].get(name)
        shown.append(f"{name:20} {value:.4f}" + (f"   95 % interval {pair[0]:.4f} to {pair[1]:.4f}" if pair else ""))
    chose = CHOSE if role == "dev" else ""
    shown.append(f"scored on            {rows:,} {role} rows{chose}")
    shown += _baseline(result)
    if "abstain" in result:
        chosen = result["abstain"]
        shown.append(
            f"{'abstains below':20} {chosen['threshold']:.4f}   answers {chosen['coverage']:.1%} of {chosen['rows']:,} "
            f"{chosen['scored_on']} rows, {chosen['accuracy']:.1%} of them right"
        )
    if "seeds" in result:
        shown.append(
            f"{'over seeds':20} {result['seeds']['mean']:.4f} ± {result['seeds']['spread']:.4f}   "
            f"{result['headline']} on the {role} rows"
        )
    if "folds" in result:
        folds = result["folds"]
        shown.append(
            f"{'over folds':20} {folds['mean']:.4f} ± {folds['spread']:.4f}   {result['headline']} on "
            f"{folds['rows']:,} training rows, each scored by a model that was neither trained on it nor chosen by it"
        )
    shown.append(f"model and report.html in {result['out']}")
    return shown


CHOSE = (
    ", which also chose the best pass: expect slightly less on new rows (--test FILE scores rows that chose nothing)"
)


def _baseline(result: dict[str, Any]) -> list[str]:
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
    interval = f"95 % interval {facts['low']:+.4f} to {facts['high']:+.4f}"
    return [line, f"{'difference':20} {facts['difference']:+.4f}   {interval}"]


__all__ = ["Settings", "lines", "run"]
