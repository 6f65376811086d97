"""Metrics of labels: one label per row, several labels per row, one of several choices."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import UserError
from bertkit.metrics.tally import Array, Measures, Scores, Tally, check_same_length, check_scores, codes, score, share


def classification(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str], scores: object = None
) -> Scores:
    """Metrics of labels: accuracy, macro_f1, micro_f1, mcc, and with scores (rows, labels) auc.

    macro_f1 is the mean over labels that occur in gold or predicted, as in scikit-learn. auc takes the last of
    two labels as positive, and is the mean of one-against-the-rest for more; it needs rows of every label in gold.
    """
    return score(classification_tallies(gold, predicted, labels, scores))


def classification_tallies(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str], scores: object = None
) -> list[Tally]:
    """The tally that `classification` is computed from."""
    check_same_length(gold, predicted)
    truth, guess = codes(gold, labels, "gold"), codes(predicted, labels, "predicted")

    def measure(columns: Array, weights: Array) -> Measures:
        return label_measures(*label_counts(columns, weights, len(labels)))

    tallies = [Tally(np.column_stack([truth, guess]), measure)]
    if scores is not None:
        table = check_scores(scores, len(gold), labels)
        missing = [label for code, label in enumerate(labels) if code not in truth]
        reason = f"auc needs gold rows of every label, but there are none of {', '.join(map(repr, missing))}"
        tallies.append(Tally(np.column_stack([truth, table]), _rest_auc, {"auc": reason}))
    return tallies


def label_counts(columns: Array, weights: Array, labels: int) -> tuple[Array, Array, Array]:
    """Counts for F1 of labels: how often each is right, gold and predicted: three arrays of (resamples, labels)."""
    truth, guess = (columns[:, [side]] == np.arange(labels) for side in (0, 1))
    return weights @ (truth & guess), weights @ truth, weights @ guess


def label_measures(right: Array, truth: Array, guess: Array) -> Measures:
    """Metrics of one label per item, from counts of (resamples, labels)."""
    rows, hits = truth.sum(1), right.sum(1)
    # Matthews' correlation for any number of labels: Gorodkin 2004, eq. 8.
    spread = np.sqrt((rows**2 - (guess**2).sum(1)) * (rows**2 - (truth**2).sum(1)))
    return {
        "accuracy": share(hits, rows),
        "macro_f1": macro_f1(right, truth, guess),
        "micro_f1": share(2 * hits, rows + guess.sum(1)),
        "mcc": share(hits * rows - (truth * guess).sum(1), spread),
    }


def macro_f1(right: Array, truth: Array, guess: Array) -> Array:
    """The mean F1 of the labels that occur at all: (resamples, labels) to (resamples,)."""
    occurs = (truth + guess) > 0
    return share((share(2 * right, truth + guess) * occurs).sum(1), occurs.sum(1))


def auc(scores: Array, positive: NDArray[np.bool_], weights: Array) -> Array:
    """AUC of a label: how often a positive item outscores a negative one, ties as half. scores, positive: (items,)."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    ordered = weights[:, order]
    up = np.add.reduceat(ordered * positive[order], starts, axis=1)
    down = np.add.reduceat(ordered * ~positive[order], starts, axis=1)
    beaten = np.cumsum(down, axis=1) - down / 2
    return share((up * beaten).sum(1), up.sum(1) * down.sum(1), otherwise=np.nan)


def _rest_auc(columns: Array, weights: Array) -> Measures:
    """AUC of each label against the rest, averaged."""
    truth, table = columns[:, 0], columns[:, 1:]
    against_rest = range(table.shape[1]) if table.shape[1] != 2 else [1]
    return {"auc": np.mean([auc(table[:, code], truth == code, weights) for code in against_rest], axis=0)}


def confusion(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """The confusion matrix of labels: how often each (row) was predicted as each (column): (labels, labels)."""
    check_same_length(gold, predicted)
    cell = codes(gold, labels, "gold") * len(labels) + codes(predicted, labels, "predicted")
    return np.bincount(cell.astype(int), minlength=len(labels) ** 2).reshape(len(labels), len(labels))


def per_class(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> list[dict[str, str | float]]:
    """Metrics of each label: precision, recall, f1, and how often it is gold and predicted."""
    table = confusion(gold, predicted, labels).astype(float)
    return class_rows(labels, table.diagonal(), table.sum(1), table.sum(0))


def class_rows(labels: Sequence[str], right: Array, truth: Array, guess: Array) -> list[dict[str, str | float]]:
    """Rows of a per-label table of metrics, from counts of (labels,)."""
    columns = share(right, guess), share(right, truth), share(2 * right, truth + guess)
    return [
        {"label": label, "precision": p, "recall": r, "f1": f, "gold": int(g), "predicted": int(s)}
        for label, p, r, f, g, s in zip(labels, *(column.tolist() for column in columns), truth, guess)
    ]


def multi_label(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str], scores: object = None
) -> Scores:
    """Metrics of several labels per text: micro_f1, macro_f1, exact_match, hamming_loss, and with scores auc.

    macro_f1 is the mean over labels that occur in gold or predicted. auc is the mean over labels that some gold
    rows have and others do not. Where nothing is gold and nothing is predicted, F1 is 0.
    """
    return score(multi_label_tallies(gold, predicted, labels, scores))


def multi_label_tallies(
    gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]], labels: Sequence[str], scores: object = None
) -> list[Tally]:
    """The tally that `multi_label` is computed from."""
    check_same_length(gold, predicted)
    truth, guess = _flags(gold, labels, "gold"), _flags(predicted, labels, "predicted")

    def measure(columns: Array, weights: Array) -> Measures:
        guessed, gold = columns[:, len(labels) :], columns[:, : len(labels)]
        right, true, predicted = weights @ (guessed * gold), weights @ gold, weights @ guessed
        wrong = np.abs(guessed - gold)
        return {
            "micro_f1": share(2 * right.sum(1), true.sum(1) + predicted.sum(1)),
            "macro_f1": macro_f1(right, true, predicted),
            "exact_match": share(weights @ ~wrong.any(1), weights.sum(1)),
            "hamming_loss": share(weights @ wrong.mean(1), weights.sum(1)),
        }

    tallies = [Tally(np.column_stack([truth, guess]), measure)]
    if scores is not None:
        table = check_scores(scores, len(gold), labels)
        reason = "auc needs a label that some gold rows have and others do not, and there is none"
        tallies.append(Tally(np.column_stack([truth, table]), _each_auc, {"auc": reason}))
    return tallies


def _each_auc(columns: Array, weights: Array) -> Measures:
    truth, table = np.split(columns, 2, axis=1)
    per_label = np.array([auc(score, flag > 0, weights) for flag, score in zip(truth.T, table.T)])
    return {"auc": share(np.nansum(per_label, axis=0), (~np.isnan(per_label)).sum(0), otherwise=np.nan)}


def _flags(rows: Sequence[Collection[str]], labels: Sequence[str], side: str) -> Array:
    """Sets of labels as a table of zeros and ones: (rows, labels)."""
    for number, row in enumerate(rows, 1):
        if isinstance(row, str):
            raise UserError(f"Row {number}: the {side} labels are the text {row!r}. Give a set of labels: {{{row!r}}}.")
    flags = np.zeros((len(rows), len(labels)))
    row_of = np.repeat(np.arange(len(rows)), [len(set(row)) for row in rows])
    try:
        flags[row_of, codes([label for row in rows for label in set(row)], labels, side).astype(int)] = 1
    except UserError:
        for number, row in enumerate(rows, 1):
            for unknown in sorted(set(row) - set(labels)):
                raise UserError(
                    f"Row {number}: the {side} label {unknown!r} is not one of {', '.join(labels)}. "
                    "Correct the row, or add it to the labels."
                ) from None
        raise
    return flags


def choice(gold: Sequence[int], predicted: Sequence[int]) -> Scores:
    """Metric of multiple choice: accuracy, from the labels (positions) of the right and of the chosen one."""
    return score(choice_tallies(gold, predicted))


def choice_tallies(gold: Sequence[int], predicted: Sequence[int]) -> list[Tally]:
    """The tally that `choice` is computed from."""
    check_same_length(gold, predicted)
    right = np.asarray(gold) == np.asarray(predicted)
    return [Tally(right[:, None].astype(float), lambda c, w: {"accuracy": share(w @ c[:, 0], w.sum(1))})]
