"""How certain is a score? Bootstrap intervals, and the difference between two systems on the same items.

Items with the same facts are drawn together: a resample of 10,000 rows of a two-label task is four numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertkit.errors import UserError, suggest
from bertkit.metrics.answers import answers, answers_tallies
from bertkit.metrics.labels import (
    choice,
    choice_tallies,
    classification,
    classification_tallies,
    multi_label,
    multi_label_tallies,
)
from bertkit.metrics.numbers import (
    minimal_pairs,
    minimal_pairs_tallies,
    ranking,
    ranking_tallies,
    regression,
    regression_tallies,
)
from bertkit.metrics.tags import tagging, tagging_tallies
from bertkit.metrics.tally import Array, Measures, Tally, check_same_length, score

Metric = Callable[..., Mapping[str, float]]
TALLIES: dict[Metric, Callable[..., list[Tally]]] = {
    classification: classification_tallies,
    multi_label: multi_label_tallies,
    regression: regression_tallies,
    tagging: tagging_tallies,
    answers: answers_tallies,
    choice: choice_tallies,
    minimal_pairs: minimal_pairs_tallies,
    ranking: ranking_tallies,
}
_ONE_ANSWER_PER_ITEM: tuple[Metric, ...] = (classification, choice)
_NUMBERS_AT_ONCE = 2_000_000


class Difference(NamedTuple):
    """The difference of two scores: a minus b, its interval, and how likely one so large is by chance."""

    difference: float
    low: float
    high: float
    p_value: float


def bootstrap(
    metric: Metric,
    gold: Sequence,
    predicted: Sequence,
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    **settings: Any,
) -> dict[str, tuple[float, float]]:
    """The (low, high) percentile interval of every metric that `metric(gold, predicted, **settings)` gives.

    The metrics of this package are resampled as arrays. Any other function of two lists that returns a dictionary
    works too, with one call per resample. Resamples where a metric is undefined do not count for it.
    """
    edges = _edges(resamples, level)
    random = np.random.default_rng(seed)
    intervals: dict[str, tuple[float, float]] = {}
    for tally in _tallies(metric, gold, predicted, settings):
        rows, counts = _distinct(tally.columns)
        resampled = [tally.measure(rows, weights) for weights in _resample(counts, resamples, random)]
        for name in score([tally]):
            low, high = np.nanpercentile(np.concatenate([part[name] for part in resampled]), edges)
            intervals[name] = float(low), float(high)
    return intervals


def paired_difference(
    gold: Sequence,
    a: Sequence,
    b: Sequence,
    metric: Metric,
    *,
    name: str | None = None,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    **settings: Any,
) -> Difference:
    """How much better a is than b on the same items, by the metric `name` (the headline if None).

    Settings go to the metric; `scores`, if given, is the pair (scores of a, scores of b). The interval is a paired
    bootstrap. The p-value, two-sided, is McNemar's exact test for the accuracy of single answers, and otherwise
    approximate randomization: the fraction of random exchanges between the sides that give as large a difference.
    """
    edges = _edges(resamples, level)
    name, tally = _named(name, _pooled_tallies(metric, gold, a, b, settings))
    pair = np.split(tally.columns, 2)
    joint, counts = _distinct(np.hstack(pair))
    (ours, theirs), random = np.split(joint, 2, axis=1), np.random.default_rng(seed)

    def gaps(rows: tuple[Array, Array], weights: tuple[Array, Array]) -> Array:
        return np.subtract(*(tally.measure(side, weight)[name] for side, weight in zip(rows, weights)))

    difference = float(gaps((ours, theirs), (counts[None] * 1.0,) * 2)[0])
    resampled = [gaps((ours, theirs), (weights, weights)) for weights in _resample(counts, resamples, random)]
    low, high = np.nanpercentile(np.concatenate(resampled), edges)
    if name == "accuracy" and metric in _ONE_ANSWER_PER_ITEM:
        return Difference(difference, float(low), float(high), _mcnemar(*(_right(tally, side) for side in pair)))
    both, larger = np.vstack([ours, theirs]), 0
    for batch in _batches(resamples, 2 * len(counts)):
        swapped = random.binomial(counts, 0.5, size=(batch, len(counts))).astype(float)
        unswapped = counts - swapped
        chance = gaps((both, both), (np.hstack([unswapped, swapped]), np.hstack([swapped, unswapped])))
        # Undefined counts as large: doubt never makes a difference significant.
        larger += int((~(np.abs(chance) < abs(difference) - 1e-12)).sum())
    return Difference(difference, float(low), float(high), (1 + larger) / (1 + resamples))


def _mcnemar(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The two-sided exact test on the items where exactly one of two systems is right."""
    from scipy.stats import binomtest

    only_ours, only_theirs = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    return float(binomtest(only_ours, only_ours + only_theirs).pvalue) if only_ours + only_theirs else 1.0


def _right(tally: Tally, columns: Array) -> np.ndarray:
    """Which items are right, for McNemar's test, from the accuracy of each alone: (items,) booleans."""
    rows, row_of = np.unique(columns, axis=0, return_inverse=True)
    return tally.measure(rows, np.eye(len(rows)))["accuracy"][row_of.reshape(-1)] > 0.5


def _edges(resamples: int, level: float) -> list[float]:
    if not 0 < level < 1:
        raise UserError(f"level={level} is not between 0 and 1. Use 0.95 for a 95 % interval.")
    if resamples < 1:
        raise UserError(f"resamples={resamples} is too few. Use 1000, or at least 1.")
    return [50 * (1 - level), 50 * (1 + level)]


def _tallies(metric: Metric, gold: Sequence, predicted: Sequence, settings: Mapping[str, Any]) -> list[Tally]:
    """A metric's columns per item and its formula, from which bootstrap resamples."""
    if metric in TALLIES:
        return TALLIES[metric](gold, predicted, **settings)
    check_same_length(gold, predicted)

    def measure(columns: Array, weights: Array) -> Measures:
        rows = []
        for counts in weights:
            items = np.repeat(columns[:, 0], counts.astype(int)).astype(int).tolist()
            rows.append(metric([gold[item] for item in items], [predicted[item] for item in items], **settings))
        return {name: np.array([row.get(name, np.nan) for row in rows]) for row in rows for name in row}

    return [Tally(np.arange(len(gold), dtype=float)[:, None], measure)]


def _pooled_tallies(
    metric: Metric, gold: Sequence, a: Sequence, b: Sequence, settings: Mapping[str, Any]
) -> list[Tally]:
    """Tallies of twice the items, with a's answers, then b's, so that a paired test measures both alike."""
    for side in (a, b):
        check_same_length(gold, side)
    scores = settings.get("scores", (None, None))
    shared = {key: value for key, value in settings.items() if key != "scores"}
    pooled = shared if scores[0] is None else shared | {"scores": np.concatenate([np.asarray(s) for s in scores])}
    try:
        return _tallies(metric, [*gold, *gold], [*a, *b], pooled)
    except UserError:
        for side, side_scores in zip((a, b), scores):  # Again one by one, so that the message names the right row.
            _tallies(metric, gold, side, shared if side_scores is None else shared | {"scores": side_scores})
        raise


def _named(name: str | None, tallies: list[Tally]) -> tuple[str, Tally]:
    """The name of the metric whose interval is wanted, and the tally that measures it."""
    by_name = {metric: tally for tally in tallies for metric in score([tally])}
    name = name or next(iter(by_name))
    if name not in by_name:
        reason = score(tallies).absent.get(name, f"There is no metric {name!r} here")
        raise UserError(f"{reason}. {suggest(name, list(by_name))}")
    return name, by_name[name]


def _distinct(columns: Array) -> tuple[Array, np.ndarray]:
    """The distinct rows of a tally, which are what is resampled, and how many items have each."""
    rows, counts = np.unique(columns, axis=0, return_counts=True)
    return rows, counts


def _resample(counts: np.ndarray, resamples: int, random: np.random.Generator) -> Iterator[Array]:
    """Bootstrap: draw as many items as there are, with replacement, `resamples` times: (batch, distinct rows)."""
    items = int(counts.sum())
    for batch in _batches(resamples, len(counts)):
        yield random.multinomial(items, counts / items, size=batch).astype(float)


def _batches(resamples: int, width: int) -> Iterator[int]:
    size = max(1, _NUMBERS_AT_ONCE // width)
    for start in range(0, resamples, size):
        yield min(size, resamples - start)
