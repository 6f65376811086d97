"""Baselines on n-grams and on word vectors: one n-gram model per label, and the mean of a text's word vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from bertkit.ancestors import folder as storage
from bertkit.ancestors.baselines.linear import LinearModel, Text, Valued, flat, side_by_side
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.vectors.corpus import words_of
from bertkit.ancestors.vectors.vectors import VectorsFolder, WordVectors
from bertkit.text.words import without_spaces

Floats = NDArray[np.float64]


class NgramClassifier:
    """One n-gram model per label; the label under which the text is likeliest, weighted by the label's frequency."""

    name = "one n-gram model per label"
    LAYOUT = Layout("n-gram classifier", "seen.json")

    def fit(self, texts: Sequence[str], labels: Sequence[int], count: int, *_: Any, **__: Any) -> Self:
        """Fit the baseline: one n-gram model per label."""
        from bertkit.ancestors.ngram.model import NgramModel, NgramSettings

        rows = np.asarray(labels)
        # A word counts as seen from its first time: each label's text is small.
        settings = NgramSettings(order=3, min_count=1, cased=False)
        self.seen = np.bincount(rows, minlength=count)
        self.models = {
            int(label): NgramModel(settings).fit([text for text, number in zip(texts, labels) if number == label])
            for label in np.flatnonzero(self.seen)
        }
        return self

    def probabilities(self, texts: Sequence[str]) -> Floats:
        """Labels by Bayes' rule from the n-gram models' likelihoods: (texts, labels)."""
        logs = np.full((len(texts), len(self.seen)), -np.inf)
        for label, model in self.models.items():
            logs[:, label] = np.array(model.score(texts)) + np.log(self.seen[label] / self.seen.sum())
        return softmax(logs, axis=1)

    @property
    def parameters(self) -> int:
        """Number of n-grams of the baseline's models together."""
        return sum(sum(model.ngrams) for model in self.models.values())

    def save(self, folder: Path) -> None:
        """Write the baseline's n-gram models, one folder per label."""

        def write_models(path: Path) -> None:
            for label, model in self.models.items():
                model.write(path / f"label-{label}")

        storage.save(folder, self.LAYOUT, self.seen.tolist(), also=write_models)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open the saved baseline of one n-gram model per label."""
        from bertkit.ancestors.ngram.model import NgramModel

        model = cls()
        with storage.opened(folder, cls.LAYOUT):
            model.seen = np.array(storage.load(folder, cls.LAYOUT)[0], np.int64)
            model.models = {int(n): NgramModel.load(folder / f"label-{n}") for n in np.flatnonzero(model.seen)}
        return model


@dataclass
class MeanOfVectors:
    """The mean of a text's word vectors under logistic regression; of a pair both, their product and difference.

    source: existing vectors; without them they are learned from the training texts. how: word2vec or glove, or
    "given" with a source.
    """

    how: str = "word2vec"
    source: WordVectors | None = None
    kind: ClassVar[type[LinearModel]] = LinearModel
    reads_pairs: ClassVar[bool] = True
    LAYOUT: ClassVar[Layout] = Layout("mean of word vectors", "vectors.json")

    @property
    def name(self) -> str:
        """Which word vectors the baseline averages."""
        return {
            "word2vec": "word2vec, averaged", "glove": "GloVe, averaged", "given": "given vectors, averaged",
        }[self.how]  # fmt: skip

    def fit(self, texts: Sequence[Text], labels: Sequence[int], count: int, *_: Any, seed: int = 0, **__: Any) -> Self:
        """Fit the baseline: learn word vectors if there are none, then the weights."""
        single = flat(texts)
        self.units = "jieba" if without_spaces(single) else "words"
        self.vectors = self.source or self._learnt([words_of(text, self.units) for text in single], seed)
        self.linear = self.kind().fit(
            self.features(texts), np.asarray(labels), count, strengths=(0.1, 1.0, 10.0, 100.0), seed=seed
        )
        return self

    def _learnt(self, sentences: list[list[str]], seed: int) -> WordVectors:
        from bertkit.ancestors.vectors import glove, word2vec

        words = sum(map(len, sentences))
        passes = int(np.clip(2_000_000 // max(1, words), 5, 50))  # a small text is read more often
        # Co-occurrence counts need no more passes than this; window and width are each program's own.
        if self.how == "glove":
            return glove.train(sentences, glove.GloveSettings(min_count=2, epochs=25, seed=seed))
        return word2vec.train(sentences, word2vec.Word2VecSettings(min_count=2, epochs=passes, seed=seed))

    def features(self, texts: Sequence[Text]) -> Floats:
        """Mean word vectors of texts: (texts, width) of length 1; four times as wide for pairs."""
        if any(isinstance(text, tuple) for text in texts):
            return side_by_side(*(self.features([pair[side] for pair in texts]) for side in (0, 1)))
        means = np.stack([self.vectors.mean_of(str(text), self.units) for text in texts]).astype(np.float64)
        return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)

    def probabilities(self, texts: Sequence[Text]) -> Floats:
        """The probabilities of the baseline on mean word vectors: (texts, labels)."""
        return self.linear.probabilities(self.features(texts))

    @property
    def parameters(self) -> int:
        """Size of the baseline's word vectors and its weights."""
        return self.vectors.matrix.size + self.linear.parameters

    def save(self, folder: Path) -> None:
        """Write the baseline's word vectors in word2vec's format, and its weights."""
        self.linear.save(folder)
        described = {"how": self.how, "units": self.units}
        storage.save(folder, self.LAYOUT, described, also=lambda path: self.vectors.save(path / "vectors.bin"))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open the saved baseline on mean word vectors."""
        with storage.opened(folder, cls.LAYOUT):
            described, _ = storage.load(folder, cls.LAYOUT)
            model = cls(described["how"])
            model.units = described["units"]
            model.vectors, model.linear = VectorsFolder.load(folder), cls.kind.load(folder)
        return model


class VectorsNumber(Valued, MeanOfVectors):
    """Means of word vectors under ridge regression."""
