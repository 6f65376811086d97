"""Logistic and ridge regression on given features, kept as two plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
IMPOSSIBLE = -50.0  # the logit of a label that no training row had


class LinearModel:
    """weights: (labels, features). bias: (labels,)."""

    def fit(
        self, features: Any, labels: NDArray[Any], count: int, *, strengths: Sequence[float] = (1.0,), seed: int = 0
    ) -> Self:
        """Learn; of several inverse strengths of regularisation the best in threefold cross-validation is taken.

        Labels with fewer than three rows have no say in it; with fewer than two others the middle strength is taken.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV, StratifiedKFold

        strength = strengths[len(strengths) // 2]
        common = np.flatnonzero(np.bincount(labels)[labels] >= 3)
        if len(strengths) > 1 and len(np.unique(labels[common])) > 1:
            folds = StratifiedKFold(3, shuffle=True, random_state=seed)
            trial = LogisticRegression(max_iter=1000, random_state=seed)
            search = GridSearchCV(trial, {"C": list(strengths)}, cv=folds)
            strength = search.fit(features[common], labels[common]).best_params_["C"]
        model = LogisticRegression(max_iter=1000, C=strength, random_state=seed).fit(features, labels)
        weights, bias = model.coef_, model.intercept_
        if len(weights) == 1:  # two labels: scikit-learn keeps the second one's logit alone
            weights, bias = np.vstack([np.zeros_like(weights), weights]), np.concatenate([[0.0], bias])
        return self._take(model.classes_, weights, bias, count)

    @classmethod
    def of(cls, classes: NDArray[Any], weights: Floats, bias: Floats, count: int) -> Self:
        """From weights made elsewhere, a row for each of these classes."""
        return cls()._take(classes, weights, bias, count)

    def _take(self, classes: NDArray[Any], weights: Floats, bias: Floats, count: int) -> Self:
        self.weights = np.zeros((count, weights.shape[1]))
        self.bias = np.full(count, IMPOSSIBLE)
        self.weights[classes], self.bias[classes] = weights, bias
        return self

    def outputs(self, features: Any) -> Floats:
        """(rows, labels), before they are made probabilities."""
        return np.asarray(features @ self.weights.T) + self.bias

    def probabilities(self, features: Any) -> Floats:
        """(rows, labels)"""
        logits = self.outputs(features)
        raised = np.exp(logits - logits.max(1, keepdims=True))
        return raised / raised.sum(1, keepdims=True)

    @property
    def parameters(self) -> int:
        """Numbers learnt."""
        return self.weights.size + self.bias.size

    def save(self, folder: Path) -> None:
        """As safetensors, in half the precision it was learnt in."""
        from safetensors.numpy import save_file

        arrays = {"weights": self.weights.astype(np.float32), "bias": self.bias.astype(np.float32)}
        save_file(arrays, folder / "linear.safetensors")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        from safetensors.numpy import load_file

        model = cls()
        arrays = load_file(folder / "linear.safetensors")
        model.weights, model.bias = arrays["weights"].astype(np.float64), arrays["bias"].astype(np.float64)
        return model


class Ridge(LinearModel):
    """Learns a number instead of labels: `outputs` is (rows, 1)."""

    def fit(
        self, features: Any, labels: NDArray[Any], count: int = 1, *, strengths: Sequence[float] = (1.0,), seed: int = 0
    ) -> Self:
        """Least squares; of several inverse strengths of regularisation the best in threefold cross-validation."""
        from sklearn.linear_model import Ridge as Regression
        from sklearn.model_selection import GridSearchCV, KFold

        search = GridSearchCV(
            Regression(), {"alpha": [1 / strength for strength in strengths]},
            cv=KFold(3, shuffle=True, random_state=seed), scoring="neg_mean_squared_error",
        )  # fmt: skip
        best = search.fit(features, labels).best_estimator_
        return self._take(np.array([0]), best.coef_[None], np.array([best.intercept_]), count)


def side_by_side(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """The vectors of two texts as one row: both, their product, and the size of their difference."""
    return np.hstack([first, second, first * second, abs(first - second)])
