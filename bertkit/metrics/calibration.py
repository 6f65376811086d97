"""Is a score of 0.9 right nine times in ten? Temperature, calibration error, and when to abstain.

Logits and probabilities are (rows, labels); gold is the column of the right label of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import UserError
from bertkit.metrics.tally import check_same_length

Array = NDArray[np.float64]
Gold = Sequence[int] | NDArray[np.int64]

COOLEST, HOTTEST = 0.05, 20.0


class Abstention(NamedTuple):
    """Answer if the confidence is at least `threshold`: the fraction answered, and the fraction of it that is right."""

    threshold: float
    coverage: float
    accuracy: float


class Bin(NamedTuple):
    """Rows whose confidence is in (low, high]: how many, their mean confidence, and their accuracy."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


def probabilities(logits: object, temperature: float = 1.0) -> Array:
    """Calibrated softmax of logits / temperature: (rows, labels), each row summing to 1."""
    if not temperature > 0:
        raise UserError(f"temperature={temperature} is not above 0. Use 1 to leave the model as it is.")
    return softmax(np.asarray(logits, dtype=float) / temperature)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of logits, over the last axis."""
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(exp / exp.sum(-1, keepdims=True))


def fit_temperature(logits: object, gold: Gold) -> float:
    """The temperature that makes the gold labels likeliest, between 0.05 and 20. Above 1: the model was overconfident.

    If the largest logit is right in every row, there is no error to learn from, and the temperature is 1.
    """
    table, truth = _checked(logits, gold, "logits")
    gold_logits = table[np.arange(len(truth)), truth]
    if (gold_logits == table.max(axis=1)).all():
        return 1.0
    from scipy.optimize import minimize_scalar
    from scipy.special import logsumexp

    def surprise(log_temperature: float) -> float:
        sharpness = np.exp(-log_temperature)
        return float(np.mean(logsumexp(table * sharpness, axis=1) - gold_logits * sharpness))

    limits = float(np.log(COOLEST)), float(np.log(HOTTEST))
    return float(np.exp(minimize_scalar(surprise, bounds=limits, method="bounded", options={"xatol": 1e-6}).x))


def reliability(probabilities: object, gold: Gold, bins: int = 15) -> list[Bin]:
    """Calibration in bins: non-empty, equally wide in confidence, least confident first."""
    if bins < 1:
        raise UserError(f"bins={bins} is too few. Use 15, or at least 1.")
    confidence, right = _confidence(probabilities, gold)
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    rows, sure, hits = (np.bincount(place, weights, minlength=bins) for weights in (None, confidence, right))
    return [
        Bin(b / bins, (b + 1) / bins, int(rows[b]), float(sure[b] / rows[b]), float(hits[b] / rows[b]))
        for b in np.flatnonzero(rows).tolist()
    ]


def expected_calibration_error(probabilities: object, gold: Gold, bins: int = 15) -> float:
    """The gap between confidence and accuracy, averaged over rows by bin: 0 is perfect (Guo et al. 2017)."""
    table = reliability(probabilities, gold, bins)
    return sum(row.rows * abs(row.accuracy - row.confidence) for row in table) / sum(row.rows for row in table)


def coverage_accuracy(probabilities: object, gold: Gold) -> list[Abstention]:
    """Coverage and accuracy when abstaining below each confidence, strictest first; equal rows stay together."""
    confidence, right = _confidence(probabilities, gold)
    order = np.argsort(-confidence, kind="stable")
    answered, hits = np.arange(1, len(order) + 1), np.cumsum(right[order])
    last = np.flatnonzero(np.diff(confidence[order], append=-np.inf))
    columns = confidence[order][last], answered[last] / len(order), hits[last] / answered[last]
    return [Abstention(*row) for row in zip(*(column.tolist() for column in columns))]


def abstain_threshold(probabilities: object, gold: Gold, target_accuracy: float) -> Abstention | None:
    """The threshold that answers most rows while being right `target_accuracy` of the time, or None.

    It is halfway to the next confidence below: at a row's own, rounding would decide whether the row is answered.
    """
    if not 0 < target_accuracy <= 1:
        raise UserError(f"target_accuracy={target_accuracy} is not between 0 and 1. Use 0.95 for 95 %.")
    points = coverage_accuracy(probabilities, gold)
    last = max((n for n, point in enumerate(points) if point.accuracy >= target_accuracy), default=None)
    if last is None:
        return None
    below = points[last + 1].threshold if last + 1 < len(points) else 0.0
    return points[last]._replace(threshold=(points[last].threshold + below) / 2)


LEAST_ROWS = 10  # rows with a label, and without it, that a threshold of its own needs


def label_thresholds(probabilities: object, gold: object) -> list[float]:
    """Calibration of several labels per text: the probability from which on each is given, so that its F1 is highest.

    probabilities, gold: (rows, labels). A label with fewer than ten rows on either side gets the threshold that is best
    for all labels together, and so does one whose own is no better; 0.5 where there are too few rows for that as well.
    """
    scores, truth = np.asarray(probabilities, dtype=float), np.asarray(gold, dtype=bool)
    shared = 0.5
    if min(truth.sum(), (~truth).sum()) >= LEAST_ROWS:
        shared = _best_threshold(scores.ravel(), truth.ravel())
    chosen = []
    for column, right in zip(scores.T, truth.T):
        own = _best_threshold(column, right) if min(right.sum(), (~right).sum()) >= LEAST_ROWS else shared
        chosen.append(own if _f1(column, right, own) > _f1(column, right, shared) else shared)
    return chosen


def _best_threshold(scores: Array, truth: NDArray[np.bool_]) -> float:
    """The threshold of the highest F1, halfway between two scores; of equally good ones the nearest to 0.5."""
    order = np.argsort(-scores, kind="stable")
    sorted_scores, hits = scores[order], np.cumsum(truth[order])
    last = np.flatnonzero(np.diff(sorted_scores, append=-np.inf))  # equal scores are kept together
    f1 = 2 * hits[last] / (last + 1 + truth.sum())
    between = (sorted_scores[last] + np.append(sorted_scores[last[:-1] + 1], 0.0)) / 2
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(between[best[np.argmin(np.abs(between[best] - 0.5))]])


def no_answer_threshold(margins: object, answered: object, unanswered: object) -> float:
    """Calibration of no answer: the largest margin with which a question is still answered, for the highest score.

    margins: (rows,), how much likelier no answer is than the best one; answered, unanswered: (rows,), what either would
    score. As good as SQuAD 2.0's best_f1_thresh; halfway between two margins, and of equally good ones nearest to 0.
    """
    order = np.argsort(np.asarray(margins, dtype=float), kind="stable")
    ends = np.asarray(margins, dtype=float)[order]
    gains = (np.asarray(answered, dtype=float) - np.asarray(unanswered, dtype=float))[order]
    total = np.append(0.0, np.cumsum(gains))  # with the first n answered: a threshold from `low` on, below `high`
    low, high = np.append(ends[:1] - 2, ends), np.append(ends, ends[-1:] + 2)
    total[low >= high] = -np.inf  # equal margins are kept together
    between = (low + high) / 2
    between[(np.append(-np.inf, ends) <= 0) & (np.append(ends, np.inf) > 0)] = 0.0
    best = np.flatnonzero(total >= total.max() - 1e-9)
    return float(between[best[np.argmin(np.abs(between[best]))]])


def _f1(scores: Array, truth: NDArray[np.bool_], threshold: float) -> float:
    given = scores >= threshold
    return float(2 * (given & truth).sum() / max(1, given.sum() + truth.sum()))


def _confidence(probabilities: object, gold: Gold) -> tuple[Array, Array]:
    """The confidence of each row's best label, and whether it is right: two arrays of (rows,)."""
    table, truth = _checked(probabilities, gold, "probabilities")
    off = np.abs(table.sum(axis=1) - 1)
    if table.min() < 0 or off.max() > 1e-3:
        row = int(np.argmin(table.min(axis=1)) if table.min() < 0 else np.argmax(off))
        raise UserError(
            f"Row {row + 1}: {np.round(table[row], 4).tolist()} are not probabilities that sum to 1. "
            "Turn logits into probabilities first (bertkit.metrics.calibration.probabilities)."
        )
    return table.max(axis=1), (table.argmax(axis=1) == truth).astype(float)


def _checked(table: object, gold: Gold, what: str) -> tuple[Array, NDArray[np.int64]]:
    """Scores and gold labels as arrays, checked to fit each other."""
    array, truth = np.asarray(table, dtype=float), np.asarray(gold)
    if array.ndim != 2:
        raise UserError(f"The {what} have shape {array.shape}. Give one row per text and one column per label.")
    check_same_length(truth, array)
    if not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise UserError(
            f"Row {row + 1}: the {what} {array[row].tolist()} are not all finite. Correct or remove the row."
        )
    outside = (truth < 0) | (truth >= array.shape[1]) | (truth != truth.astype(int))
    if outside.any():
        row = int(np.argmax(outside))
        raise UserError(
            f"Row {row + 1}: gold column {truth[row]} does not exist; the {what} have {array.shape[1]} columns, "
            f"counted from 0. Give the position of each gold label."
        )
    return array, truth.astype(np.int64)
