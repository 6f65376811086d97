"""Rivals where a text, or a pair of texts, has a number: the mean, shared words, and ridge regression on features."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.baselines.bag_of_words import Text, TfIdf
from bertkit.ancestors.baselines.linear import LinearModel, Ridge
from bertkit.ancestors.baselines.rows import MeanOfVectors
from bertkit.errors import UserError

Floats = NDArray[np.float64]


class MeanNumber:
    """Always says the mean."""

    name = "the mean"
    reads_pairs = True

    def fit(self, texts: Sequence[Text], numbers: Sequence[float], *_: Any, **__: Any) -> Self:
        """Add up and divide."""
        self.mean = float(np.mean(numbers))
        return self

    def values(self, texts: Sequence[Text]) -> Floats:
        """The same for every text."""
        return np.full(len(texts), self.mean)

    @property
    def parameters(self) -> int:
        """One."""
        return 1

    def save(self, folder: Path) -> None:
        """Into an existing folder."""
        (folder / "mean.json").write_text(json.dumps(self.mean), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        model = cls()
        model.mean = float(json.loads((folder / "mean.json").read_text("utf-8")))
        return model


class Valued:
    """Put before a classifier with `features` and `kind`: it learns numbers instead of labels."""

    kind: ClassVar[type[LinearModel]] = Ridge
    linear: LinearModel

    def values(self, texts: Sequence[Text]) -> Floats:
        """(texts,)"""
        return self.linear.outputs(self.features(texts))[:, 0]  # type: ignore[attr-defined]


class TfIdfNumber(Valued, TfIdf):
    """Counted words under ridge regression."""

    name = "TF-IDF + ridge regression"
    strengths: Sequence[float] = (0.1, 1.0, 10.0)


class SharedWords(TfIdfNumber):
    """The cosine of two texts' TF-IDF, and a straight line from that to the number."""

    name = "shared words"
    strengths = (1000.0,)

    def features(self, texts: Sequence[Text]) -> Floats:
        """(pairs, 1)"""
        first, second = (self.words.matrix(side) for side in both_sides(texts))
        return np.asarray(first.multiply(second).sum(1))


class VectorsNumber(Valued, MeanOfVectors):
    """Means of word vectors under ridge regression."""


def both_sides(texts: Sequence[Text]) -> tuple[list[str], list[str]]:
    """First and second texts."""
    if not all(isinstance(text, tuple) for text in texts):
        raise UserError("it compares two texts, and these rows have one")
    return [text[0] for text in texts], [text[1] for text in texts]
