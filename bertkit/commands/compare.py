"""`bertkit compare`: on your own rows, is BERT worth its cost?"""

from __future__ import annotations

from typing import Any

from bertkit.settings.compare import CompareSettings as Settings


def run(settings: Settings) -> dict[str, Any]:
    """The ladder from the most frequent label to BERT, on the same splits, with costs and a verdict."""
    from bertkit.files.atomic import check_folder
    from bertkit.runs.compare.run import compare

    check_folder(settings.out)
    return compare(settings)


def lines(result: dict[str, Any]) -> list[str]:
    """A table, what was left out, and the verdict."""
    wide = max(len(row["name"]) for row in result["contenders"])
    shown = [
        f"{result['headline']} on {result['rows']:,} rows (95 % interval, p against the best, training, a text, size)"
    ]
    for row in result["contenders"]:
        low, high = row["interval"]
        p = row.get("p_value")
        shown.append(
            f"  {row['name']:{wide}}  {row['score']:.4f}  {low:.3f}–{high:.3f}  "
            f"{_chance(p)}  {row['train_seconds']:8.1f} s  {row['ms_per_text']:8.3f} ms  "
            f"{row['megabytes']:7.2f} MB"
        )
    shown += [f"  left out: {one['name']}: {one['reason']}" for one in result["skipped"]]
    shown += ["", str(result["verdict"])]
    if result.get("outlook"):
        shown.append(result["outlook"])
    return [*shown, f"Report: {result['report']}"]


def _chance(p: float | None) -> str:
    """Of a distance to the best, as wide for all."""
    return "best   " if p is None else "p<0.001" if p < 0.001 else f"p {p:.3f}"


__all__ = ["Settings", "lines", "run"]
