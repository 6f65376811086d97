"""Which of BERT's six layer choices suits a task, measured by a linear classifier on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bertkit.errors import UserError
from bertkit.model.layer_choice import CHOICES, choose
from bertkit.notify import note

MOST_ROWS = 2000  # more rows change the result little, and take longer
FOLDS = 5
Embed = Callable[..., Any]  # Predictor.embed


def probe(
    embed: Embed, depth: int, texts: Sequence[str], labels: Sequence[str], seed: int = 0, pool: str = "mean"
) -> list[dict[str, Any]]:
    """One row per choice, in the order of CHOICES: {choice, accuracy, spread}: 5-fold logistic regression on vectors.

    embed, depth: the model's. pool: mean or cls; other ways are probed by the mean.
    At most 2,000 rows are used, drawn at random; this is reported.
    """
    if len(texts) > MOST_ROWS:
        sample = np.sort(np.random.default_rng(seed).permutation(len(texts))[:MOST_ROWS])
        note(f"The probe uses {MOST_ROWS:,} of {len(texts):,} labelled rows, drawn at random.")
        texts, labels = [texts[n] for n in sample], [labels[n] for n in sample]
    folds = _folds(labels)
    # Pooling and joining layers commute, so one pass gives all six choices.
    pool = pool if pool == "cls" else "mean"
    all_layers = embed(texts, layers=list(range(depth + 1)), pool=pool).reshape(len(texts), depth + 1, -1)
    return [{"choice": choice, **_judge(_joined(all_layers, choice), labels, folds, seed)} for choice in CHOICES]


def best_layers(rows: Sequence[dict[str, Any]]) -> str:
    """The choice with the highest accuracy; of several equal ones, `last` if among them, else the first."""
    return str(max(rows, key=lambda row: (row["accuracy"], row["choice"] == "last"))["choice"])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a sentence for the user."""
    listed = ", ".join(f"{row['choice']} {row['accuracy']:.1%} ± {row['spread']:.1%}" for row in rows)
    return f"Accuracy of a linear probe by layers: {listed}. {best_layers(rows)} is used."


def _folds(labels: Sequence[str]) -> int:
    counts = Counter(labels)
    if len(counts) < 2:
        raise UserError(f"The --probe rows have {len(counts)} different labels; at least two are needed.")
    rarest, least = min(counts.items(), key=lambda pair: pair[1])
    if least < 2:
        raise UserError(
            f"Only one --probe row is labelled {rarest!r}, but each label needs two. Add a row, or remove this one."
        )
    return min(FOLDS, least)


def _joined(all_layers: np.ndarray, choice: str) -> np.ndarray:
    """(rows, depth + 1, width) → (rows, width of the choice)."""
    picked = choose(choice, all_layers.shape[1] - 1)
    parts = all_layers[:, list(picked.numbers)]
    return parts.sum(1) if picked.join == "sum" else parts.reshape(len(parts), -1)


def _judge(vectors: np.ndarray, labels: Sequence[str], folds: int, seed: int) -> dict[str, float]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    scores = cross_val_score(model, vectors, np.array(labels), cv=parts)
    return {"accuracy": float(scores.mean()), "spread": float(scores.std())}
