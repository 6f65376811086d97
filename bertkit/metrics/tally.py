"""A metric as a function of weighted items: weights of one give the score, resampled weights its interval.

The score and its interval come from the same formula, and a thousand resamples are one array operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import UserError, suggest

Array = NDArray[np.float64]
Measures = dict[str, Array]


class Scores(dict[str, float]):
    """Metrics by name, headline first. `absent` says why a requested metric is missing."""

    absent: dict[str, str]

    def __init__(self, scores: Mapping[str, float], absent: Mapping[str, str] | None = None) -> None:
        super().__init__(scores)
        self.absent = dict(absent or {})


@dataclass(frozen=True)
class Tally:
    """A tally: the data a group of metrics is computed from, as a function of weighted items.

    columns: (items, facts), one row per item. measure(columns, weights: (resamples, items)) gives each metric
    as (resamples,), NaN where it is undefined; undefined says why, by metric.
    """

    columns: Array
    measure: Callable[[Array, Array], Measures]
    undefined: Mapping[str, str] = field(default_factory=dict)


def score(tallies: Sequence[Tally]) -> Scores:
    """Score the items of a tally, each counted once. Undefined metrics are left out, with the reason in `absent`."""
    scores: dict[str, float] = {}
    absent: dict[str, str] = {}
    for tally in tallies:
        for name, value in tally.measure(tally.columns, np.ones((1, len(tally.columns)))).items():
            if np.isnan(value[0]):
                absent[name] = tally.undefined.get(name, f"{name} is undefined on these rows")
            else:
                scores[name] = float(value[0])
    return Scores(scores, absent)


def share(part: Array, whole: Array, otherwise: float = 0.0) -> Array:
    """A part of a tally's whole, or `otherwise` where the whole is 0."""
    part, whole = np.broadcast_arrays(np.asarray(part, float), np.asarray(whole, float))
    return np.divide(part, whole, out=np.full(part.shape, otherwise), where=whole > 0)


def check_same_length(gold: Sequence | np.ndarray, predicted: Sequence | np.ndarray, items: str = "rows") -> None:
    """Refuse to tally empty lists and lists of different lengths."""
    if len(gold) != len(predicted):
        raise UserError(
            f"There are {len(gold)} gold {items} and {len(predicted)} predicted {items}. "
            f"Give one prediction per gold item, in the same order."
        )
    if len(gold) == 0:
        raise UserError(f"There is nothing to score: no {items} were given. Give at least one.")


def codes(values: Sequence[str], labels: Sequence[str], side: str) -> Array:
    """The position of each tallied value among the labels: (items,). `side` names the list in the error."""
    if len(set(labels)) != len(labels):
        raise UserError(f"The labels {', '.join(labels)} contain duplicates. Name each label once.")
    position = {label: index for index, label in enumerate(labels)}
    try:
        return np.fromiter((position[value] for value in values), float, len(values))
    except KeyError as unknown:
        row = next(row for row, value in enumerate(values, 1) if value not in position)
        raise UserError(
            f"Row {row}: the {side} label {unknown.args[0]!r} is not among the {len(labels)} labels. "
            f"{suggest(str(unknown.args[0]), list(labels))} Correct the row, or add it to the labels."
        ) from None


def check_scores(scores: object, rows: int, labels: Sequence[str]) -> Array:
    """Scores to tally as (rows, labels) floats; one column for two labels is that of the last label."""
    table = np.asarray(scores, dtype=float)
    if len(labels) == 2 and table.shape in {(rows,), (rows, 1)}:
        table = np.column_stack([-table.reshape(rows), table.reshape(rows)])
    if table.shape != (rows, len(labels)):
        raise UserError(
            f"The scores have shape {table.shape}; {rows} rows and {len(labels)} labels need "
            f"({rows}, {len(labels)}). Give one score per row and label."
        )
    if not np.isfinite(table).all():
        row, column = np.argwhere(~np.isfinite(table))[0]
        raise UserError(
            f"Row {row + 1}: the score of label {labels[column]!r} is {table[row, column]}. "
            "Look for a diverged model or a division by zero, or leave the scores out."
        )
    return table
