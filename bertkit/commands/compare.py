"""`bertkit compare`: on your own rows, is BERT worth its cost?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertkit.settings.compare import CompareSettings as Settings

if TYPE_CHECKING:
    from bertkit.runs.compare.run import CompareResult


def run(settings: Settings) -> CompareResult:
    """The ladder from the most frequent label to BERT, on the same splits, with costs and a verdict."""
    from bertkit.files.atomic import check_folder
    from bertkit.runs.compare.run import compare

    check_folder(settings.out)
    return compare(settings)


def lines(result: CompareResult) -> list[str]:
    """A table, what was left out, and the verdict."""
    wide = max(len(row.name) for row in result.contenders)
    rows = [f"{result.headline} on {result.rows:,} rows (95 % interval, p against the best, training, per text, size)"]
    for row in result.contenders:
        low, high = row.interval
        rows.append(
            f"  {row.name:{wide}}  {row.score:.4f}  {low:.3f}–{high:.3f}  "
            f"{_chance(row.p_value)}  {row.train_seconds:8.1f} s  {row.ms_per_text:8.3f} ms  "
            f"{row.megabytes:7.2f} MB"
        )
    rows += [f"  {row.name} was stopped early: {row.stopped}" for row in result.contenders if row.stopped]
    rows += [f"  left out: {row.name}: {row.reason}" for row in result.skipped]
    rows += ["", result.verdict]
    if result.outlook:
        rows.append(result.outlook)
    return [*rows, f"Report: {result.report}"]


def _chance(p: float | None) -> str:
    """The p-value in a fixed width."""
    return "best   " if p is None else "p<0.001" if p < 0.001 else f"p {p:.3f}"


__all__ = ["Settings", "lines", "run"]
