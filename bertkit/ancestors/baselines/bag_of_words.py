"""The cheapest rivals: the most frequent label, and counted words under naive Bayes or logistic regression."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.baselines.linear import LinearModel

Floats = NDArray[np.float64]
Text = str | tuple[str, str]  # one text, or the two of a pair


class Majority:
    """Always says how often each label was seen."""

    name = "majority"

    def fit(self, texts: Sequence[Text], labels: Sequence[int], count: int, *_: Any, **__: Any) -> Self:
        """Count."""
        self.shares = np.bincount(labels, minlength=count) / len(labels)
        return self

    def probabilities(self, texts: Sequence[Text]) -> Floats:
        """The same for every text. (texts, labels)"""
        return np.tile(self.shares, (len(texts), 1))

    @property
    def parameters(self) -> int:
        """One number a label."""
        return len(self.shares)

    def save(self, folder: Path) -> None:
        """Into an existing folder."""
        (folder / "majority.json").write_text(json.dumps(self.shares.tolist()), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        model = cls()
        model.shares = np.array(json.loads((folder / "majority.json").read_text("utf-8")))
        return model


class CountedWords:
    """Words and word pairs (for Chinese: runs of one to three characters), weighed by how telling they are.

    A pair of texts becomes four blocks: the words of each, those they share, and those they do not.
    """

    def fit(self, texts: Sequence[Text]) -> Self:
        """Learn which terms there are and how rare they are."""
        single = flat(texts)
        self.how: dict[str, Any] = (
            {"analyzer": "char", "ngram_range": [1, 3]} if without_spaces(single) else {"ngram_range": [1, 2]}
        )
        self._vectorizer = self._make()
        self._vectorizer.fit(single)
        return self

    def _make(self, **more: Any) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer

        how = {**self.how, "ngram_range": tuple(self.how["ngram_range"])}
        return TfidfVectorizer(sublinear_tf=True, dtype=np.float64, **how, **more)

    def matrix(self, texts: Sequence[Text]) -> Any:
        """(texts, terms), sparse; four times as wide for pairs."""
        from scipy.sparse import hstack

        if not any(isinstance(text, tuple) for text in texts):
            return self._vectorizer.transform(texts)
        first, second = (self._vectorizer.transform([pair[side] for pair in texts]) for side in (0, 1))
        return hstack([first, second, first.multiply(second), abs(first - second)]).tocsr()

    def save(self, folder: Path) -> None:
        """Terms and weights as JSON."""
        terms = [str(term) for term in self._vectorizer.get_feature_names_out()]
        described = {"how": self.how, "terms": terms, "idf": self._vectorizer.idf_.tolist()}
        (folder / "terms.json").write_text(json.dumps(described, ensure_ascii=False), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        described = json.loads((folder / "terms.json").read_text("utf-8"))
        words = cls()
        words.how = described["how"]
        words._vectorizer = words._make(vocabulary={term: n for n, term in enumerate(described["terms"])})
        words._vectorizer.idf_ = np.array(described["idf"])
        return words


class TfIdf:
    """Counted words under logistic regression; how strongly it is held back is chosen by cross-validation."""

    name = "TF-IDF + logistic regression"
    kind: type[LinearModel] = LinearModel
    reads_pairs = True
    strengths: Sequence[float] = (1.0, 10.0, 100.0)

    def fit(self, texts: Sequence[Text], labels: Sequence[int], count: int, *_: Any, seed: int = 0, **__: Any) -> Self:
        """Learn weights from the training rows alone."""
        self.words = CountedWords().fit(texts)
        self.linear = self.kind().fit(
            self.features(texts), np.asarray(labels), count, strengths=self.strengths, seed=seed
        )
        return self

    def features(self, texts: Sequence[Text]) -> Any:
        """(texts, terms), sparse"""
        return self.words.matrix(texts)

    def probabilities(self, texts: Sequence[Text]) -> Floats:
        """(texts, labels)"""
        return self.linear.probabilities(self.features(texts))

    @property
    def parameters(self) -> int:
        """Weights."""
        return self.linear.parameters

    def save(self, folder: Path) -> None:
        """Terms and weights."""
        self.words.save(folder)
        self.linear.save(folder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        model = cls()
        model.words, model.linear = CountedWords.load(folder), cls.kind.load(folder)
        return model


class NaiveBayes(TfIdf):
    """Counted words under multinomial naive Bayes: a linear model whose weights are log frequencies."""

    name = "TF-IDF + naive Bayes"

    def fit(self, texts: Sequence[Text], labels: Sequence[int], count: int, *_: Any, seed: int = 0, **__: Any) -> Self:
        """Count."""
        from sklearn.naive_bayes import MultinomialNB

        self.words = CountedWords().fit(texts)
        bayes = MultinomialNB(alpha=0.1).fit(self.words.matrix(texts), np.asarray(labels))
        self.linear = LinearModel.of(bayes.classes_, bayes.feature_log_prob_, bayes.class_log_prior_, count)
        return self


def frequent(labels: Sequence[int]) -> int:
    """The most frequent label."""
    return Counter(labels).most_common(1)[0][0]


def without_spaces(texts: Sequence[str]) -> bool:
    """Whether a quarter of the characters or more are of a script such as Chinese."""
    return sum(ord(c) > 0x2E7F for text in texts for c in text) > sum(map(len, texts)) / 4


def flat(texts: Sequence[Text]) -> list[str]:
    """Every text by itself."""
    return [part for text in texts for part in ([text] if isinstance(text, str) else text)]
