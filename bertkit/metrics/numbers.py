"""Metrics of numbers: regression, perplexity, which of two texts scores higher, and how good a ranking is."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from bertkit.errors import UserError
from bertkit.metrics.tally import Array, Measures, Scores, Tally, check_same_length, score, share


def regression(gold: Sequence[float], predicted: Sequence[float]) -> Scores:
    """Metrics of predicted numbers: spearman, pearson, mae (mean absolute error), rmse (root mean square error).

    A correlation with a constant is undefined; it counts as 0, since a constant says nothing about order.
    """
    return score(regression_tallies(gold, predicted))


def regression_tallies(gold: Sequence[float], predicted: Sequence[float]) -> list[Tally]:
    """The tally that `regression` is computed from."""
    return [Tally(_finite_pairs(gold, predicted, ("gold", "predicted"), "values"), _regression_measures)]


def _regression_measures(columns: Array, weights: Array) -> Measures:
    """Spearman, Pearson and errors of weighted pairs of numbers."""
    truth, guess = columns.T
    error, items = np.abs(truth - guess), weights.sum(1)
    return {
        "spearman": correlation(midranks(truth, weights), midranks(guess, weights), weights),
        "pearson": correlation(truth[None], guess[None], weights),
        "mae": share(weights @ error, items),
        "rmse": np.sqrt(share(weights @ error**2, items)),
    }


def midranks(values: Array, weights: Array) -> Array:
    """Each value's rank for rank correlation, ties sharing their mean: (resamples, items).

    An item stands there weight times.
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-np.inf))
    tied = np.add.reduceat(weights[:, order], starts, axis=1)
    by_value = np.cumsum(tied, axis=1) - tied / 2 + 0.5
    ranks = np.empty_like(weights, dtype=float)
    ranks[:, order] = np.repeat(by_value, np.diff(starts, append=len(values)), axis=1)
    return ranks


def correlation(x: Array, y: Array, weights: Array) -> Array:
    """Pearson's correlation of weighted items, 0 for a constant. x, y: (resamples or 1, items)."""
    items = weights.sum(1, keepdims=True)
    means = [(weights * side).sum(1, keepdims=True) / items for side in (x, y)]
    dx, dy = x - means[0], y - means[1]
    spreads = [np.sqrt((weights * side**2).sum(1)) for side in (dx, dy)]
    # A constant leaves rounding noise around its mean: below this it is no spread at all.
    noise = [1e-13 * np.abs(mean[:, 0]) * np.sqrt(items[:, 0]) for mean in means]
    varies = (spreads[0] > noise[0]) & (spreads[1] > noise[1])
    return np.clip(share((weights * dx * dy).sum(1) * varies, spreads[0] * spreads[1]), -1, 1)


def minimal_pairs(good: Sequence[float], bad: Sequence[float]) -> Scores:
    """Metric of minimal pairs: how often the good text scores higher; ties (no preference) are wrong and counted."""
    return score(minimal_pairs_tallies(good, bad))


def minimal_pairs_tallies(good: Sequence[float], bad: Sequence[float]) -> list[Tally]:
    """The tally that `minimal_pairs` is computed from."""
    high, low = _finite_pairs(good, bad, ("good", "bad"), "scores").T
    columns = np.column_stack([high > low, high == low]).astype(float)
    return [
        Tally(columns, lambda c, w: dict(zip(("accuracy", "ties"), (share(w @ column, w.sum(1)) for column in c.T))))
    ]


def perplexity(loss: float) -> float:
    """The metric of language models: exp of the mean loss per token in nats."""
    if math.isnan(loss):
        raise UserError(
            "The loss is nan, so perplexity cannot be computed. Lower the learning rate, or look for empty batches."
        )
    return math.exp(loss) if loss < 709 else math.inf


def _finite_pairs(left: Sequence[float], right: Sequence[float], sides: tuple[str, str], items: str) -> Array:
    """Two lists of numbers as pairs, checked to be finite."""
    check_same_length(left, right, items)
    pairs = np.column_stack([np.asarray(left, dtype=float), np.asarray(right, dtype=float)])
    if not np.isfinite(pairs).all():
        row, side = np.argwhere(~np.isfinite(pairs))[0]
        raise UserError(
            f"Row {row + 1}: the {sides[side]} value is {pairs[row, side]}, which is not a finite number. "
            "Correct or remove the row; if a model predicted it, its training has diverged."
        )
    return pairs


# ---- Rankings: nDCG, reciprocal rank and recall of the relevant documents, averaged over queries.

NEAR = 10  # places that count for nDCG and the reciprocal rank
RECALL_AT = (1, 5, 10, 100)
NAMES = (f"ndcg@{NEAR}", f"mrr@{NEAR}", *(f"recall@{k}" for k in RECALL_AT))


def ranking(gold: Sequence[Collection[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """Metrics of ranking. gold: each query's relevant ids; predicted: the ids as ranked, best first, each once.

    Relevance is binary: nDCG@10 is the sum of 1 / log2(1 + rank) over the relevant among the first ten, divided by the
    most that is possible; MRR@10 is 1 / rank of the first relevant one, 0 beyond ten places.
    """
    return score(ranking_tallies(gold, predicted))


def per_query(gold: Sequence[Collection[str]], predicted: Sequence[Sequence[str]]) -> Array:
    """Every metric of every ranked query: (queries, metrics), in the order of NAMES."""
    check_same_length(gold, predicted, "queries")
    rows = []
    for number, (relevant, ranked) in enumerate(zip(gold, predicted), 1):
        wanted = set(relevant)
        if not wanted:
            raise UserError(f"Query {number} has no relevant document. Give at least one, or leave the query out.")
        ranks = [rank for rank, name in enumerate(ranked, 1) if name in wanted]
        gains = 1 / np.log2(1 + np.array([rank for rank in ranks if rank <= NEAR], float))
        most = 1 / np.log2(1 + np.arange(1, min(NEAR, len(wanted)) + 1))
        first = 1 / ranks[0] if ranks and ranks[0] <= NEAR else 0.0
        recalls = [sum(rank <= k for rank in ranks) / len(wanted) for k in RECALL_AT]
        rows.append([gains.sum() / most.sum(), first, *recalls])
    return np.array(rows, float)


def ranking_tallies(gold: Sequence[Collection[str]], predicted: Sequence[Sequence[str]]) -> list[Tally]:
    """The tally that `ranking` is computed from: the metrics of queries, averaged by their weights."""

    def measure(columns: Array, weights: Array) -> Measures:
        means = weights @ columns / weights.sum(1, keepdims=True)
        return {name: means[:, n] for n, name in enumerate(NAMES)}

    return [Tally(per_query(gold, predicted), measure)]
