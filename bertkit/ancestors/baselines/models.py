"""The cheapest models: the most frequent label, the mean, and Bayes' rule or a linear model over counts and vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from bertkit.ancestors import folder as storage
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.vectors.corpus import words_of
from bertkit.ancestors.vectors.vectors import VectorsFolder, WordVectors
from bertkit.errors import UserError
from bertkit.text.words import without_spaces

# ---- Logistic and ridge regression on features, stored as two plain arrays.

Floats = NDArray[np.float64]
IMPOSSIBLE = -50.0  # the logit of a label that no training row had


class LinearModel:
    """Linear baseline on features of texts. weights: (labels, features). bias: (labels,)."""

    LAYOUT = Layout("linear model", tensors="linear.safetensors")

    def fit(
        self, features: Any, labels: NDArray[Any], count: int, *, strengths: Sequence[float] = (1.0,), seed: int = 0
    ) -> Self:
        """Fit a linear model; of several inverse regularization strengths, the best in threefold cross-validation.

        The best by log-loss: on few rows accuracies tie, and the first of them would predict the majority for all.
        Labels with fewer than three rows are left out of it; with fewer than two others, the middle strength is used.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV, StratifiedKFold

        strength = strengths[len(strengths) // 2]
        common = np.flatnonzero(np.bincount(labels)[labels] >= 3)
        if len(strengths) > 1 and len(np.unique(labels[common])) > 1:
            folds = StratifiedKFold(3, shuffle=True, random_state=seed)
            trial = LogisticRegression(max_iter=1000, random_state=seed)
            search = GridSearchCV(trial, {"C": list(strengths)}, cv=folds, scoring="neg_log_loss")
            strength = search.fit(features[common], labels[common]).best_params_["C"]
        model = LogisticRegression(max_iter=1000, C=strength, random_state=seed).fit(features, labels)
        weights, bias = model.coef_, model.intercept_
        if len(weights) == 1:  # two labels: scikit-learn has only the second one's logit
            weights, bias = np.vstack([np.zeros_like(weights), weights]), np.concatenate([[0.0], bias])
        return self._take(model.classes_, weights, bias, count)

    @classmethod
    def of(cls, classes: NDArray[Any], weights: Floats, bias: Floats, count: int) -> Self:
        """A linear model with existing weights, one row for each of these classes."""
        return cls()._take(classes, weights, bias, count)

    def _take(self, classes: NDArray[Any], weights: Floats, bias: Floats, count: int) -> Self:
        self.weights = np.zeros((count, weights.shape[1]))
        self.bias = np.full(count, IMPOSSIBLE)
        self.weights[classes], self.bias[classes] = weights, bias
        return self

    def outputs(self, features: Any) -> Floats:
        """The linear model's logits: (rows, labels), before the softmax."""
        return np.asarray(features @ self.weights.T) + self.bias

    def probabilities(self, features: Any) -> Floats:
        """The linear model's probabilities: (rows, labels)."""
        return softmax(self.outputs(features), axis=1)

    @property
    def parameters(self) -> int:
        """Number of the linear model's weights."""
        return self.weights.size + self.bias.size

    def save(self, folder: Path) -> None:
        """Write a linear model as safetensors in float32."""
        arrays = {"weights": self.weights.astype(np.float32), "bias": self.bias.astype(np.float32)}
        storage.save(folder, self.LAYOUT, tensors=arrays)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved linear model."""
        model = cls()
        with storage.opened(folder, cls.LAYOUT):
            arrays = storage.arrays(storage.load(folder, cls.LAYOUT)[1])
            model.weights, model.bias = arrays["weights"].astype(np.float64), arrays["bias"].astype(np.float64)
        return model


class Ridge(LinearModel):
    """Linear baseline under ridge regression: learns a number instead of labels. `outputs` is (rows, 1)."""

    def fit(
        self, features: Any, labels: NDArray[Any], count: int = 1, *, strengths: Sequence[float] = (1.0,), seed: int = 0
    ) -> Self:
        """Linear least squares; of several inverse regularization strengths, the best in threefold cross-validation."""
        from sklearn.linear_model import Ridge as Regression
        from sklearn.model_selection import GridSearchCV, KFold

        search = GridSearchCV(
            Regression(), {"alpha": [1 / strength for strength in strengths]},
            cv=KFold(3, shuffle=True, random_state=seed), scoring="neg_mean_squared_error",
        )  # fmt: skip
        best = search.fit(features, labels).best_estimator_
        return self._take(np.array([0]), best.coef_[None], np.array([best.intercept_]), count)


def pair_features(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Features of a pair for a linear model: both texts' vectors, their product, the size of their difference."""
    return np.hstack([first, second, first * second, abs(first - second)])


# ---- The cheapest baselines: the most frequent label, and counted words under naive Bayes or logistic regression.

Text = str | tuple[str, str]  # one text, or the two of a pair


class Majority:
    """The simplest baseline: predicts the frequency of each label for every text."""

    name = "majority"
    LAYOUT = Layout("shares of labels", "majority.json")

    def fit(self, texts: Sequence[Text], labels: Sequence[int], count: int, *_: Any, **__: Any) -> Self:
        """Count the labels, for the majority baseline."""
        self.shares = np.bincount(labels, minlength=count) / len(labels)
        return self

    def probabilities(self, texts: Sequence[Text]) -> Floats:
        """The majority baseline's shares of the labels, the same for every text: (texts, labels)."""
        return np.tile(self.shares, (len(texts), 1))

    @property
    def parameters(self) -> int:
        """The majority baseline's one number per label."""
        return len(self.shares)

    def save(self, folder: Path) -> None:
        """Write the majority baseline's frequencies into a folder."""
        storage.save(folder, self.LAYOUT, self.shares.tolist())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved majority baseline."""
        model = cls()
        with storage.opened(folder, cls.LAYOUT):
            model.shares = np.array(storage.load(folder, cls.LAYOUT)[0], np.float64)
        return model


class CountedWords:
    """Words and word pairs (for Chinese: runs of one to three characters), weighted by TF-IDF.

    A pair of texts becomes four blocks: the words of each, those they share, and those they do not.
    """

    LAYOUT = Layout("table of terms", "terms.json")

    def fit(self, texts: Sequence[Text]) -> Self:
        """Learn the terms of TF-IDF or naive Bayes and their frequencies."""
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
        """The terms of texts for a linear model: (texts, terms), sparse; four times as wide for pairs."""
        from scipy.sparse import hstack

        if not any(isinstance(text, tuple) for text in texts):
            return self._vectorizer.transform(texts)
        first, second = (self._vectorizer.transform([pair[side] for pair in texts]) for side in (0, 1))
        return hstack([first, second, first.multiply(second), abs(first - second)]).tocsr()

    def save(self, folder: Path) -> None:
        """Write the terms of TF-IDF or naive Bayes and their weights as JSON."""
        terms = [str(term) for term in self._vectorizer.get_feature_names_out()]
        described = {"how": self.how, "terms": terms, "idf": self._vectorizer.idf_.tolist()}
        storage.save(folder, self.LAYOUT, described)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open the saved terms of TF-IDF or naive Bayes."""
        words = cls()
        with storage.opened(folder, cls.LAYOUT):
            described, _ = storage.load(folder, cls.LAYOUT)
            words.how = described["how"]
            words._vectorizer = words._make(vocabulary={term: n for n, term in enumerate(described["terms"])})
            words._vectorizer.idf_ = np.array(described["idf"])
        return words


class TfIdf:
    """Counted words under logistic regression; its regularization is chosen by cross-validation."""

    name = "TF-IDF + logistic regression"
    kind: type[LinearModel] = LinearModel
    reads_pairs = True
    strengths: Sequence[float] = (1.0, 10.0, 100.0)

    def fit(self, texts: Sequence[Text], labels: Sequence[int], count: int, *_: Any, seed: int = 0, **__: Any) -> Self:
        """Learn TF-IDF's terms and weights from the training rows only."""
        self.words = CountedWords().fit(texts)
        self.linear = self.kind().fit(
            self.features(texts), np.asarray(labels), count, strengths=self.strengths, seed=seed
        )
        return self

    def features(self, texts: Sequence[Text]) -> Any:
        """TF-IDF of texts: (texts, terms), sparse."""
        return self.words.matrix(texts)

    def probabilities(self, texts: Sequence[Text]) -> Floats:
        """The probabilities of logistic regression on TF-IDF: (texts, labels)."""
        return self.linear.probabilities(self.features(texts))

    @property
    def parameters(self) -> int:
        """Number of weights of the linear model on TF-IDF."""
        return self.linear.parameters

    def save(self, folder: Path) -> None:
        """Write TF-IDF's terms and the linear model's weights."""
        self.words.save(folder)
        self.linear.save(folder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved linear model on TF-IDF."""
        model = cls()
        model.words, model.linear = CountedWords.load(folder), cls.kind.load(folder)
        return model


class NaiveBayes(TfIdf):
    """Counted words under multinomial naive Bayes: a linear model whose weights are log frequencies."""

    name = "TF-IDF + naive Bayes"

    def fit(self, texts: Sequence[Text], labels: Sequence[int], count: int, *_: Any, seed: int = 0, **__: Any) -> Self:
        """Count the words of each label, for naive Bayes."""
        from sklearn.naive_bayes import MultinomialNB

        self.words = CountedWords().fit(texts)
        bayes = MultinomialNB(alpha=0.1).fit(self.words.matrix(texts), np.asarray(labels))
        self.linear = LinearModel.of(bayes.classes_, bayes.feature_log_prob_, bayes.class_log_prior_, count)
        return self


def frequent(labels: Sequence[int]) -> int:
    """The most frequent label, which the majority baseline predicts."""
    return Counter(labels).most_common(1)[0][0]


def flat(texts: Sequence[Text]) -> list[str]:
    """The single texts a linear baseline reads, with pairs taken apart."""
    return [part for text in texts for part in ([text] if isinstance(text, str) else text)]


# ---- Baselines for numbers: the mean, shared words, and ridge regression on features.


class MeanNumber:
    """Always predicts the mean."""

    name = "the mean"
    reads_pairs = True
    LAYOUT = Layout("mean of numbers", "mean.json")

    def fit(self, texts: Sequence[Text], numbers: Sequence[float], *_: Any, **__: Any) -> Self:
        """Fit the cheapest baseline of regression: compute the mean."""
        self.mean = float(np.mean(numbers))
        return self

    def values(self, texts: Sequence[Text]) -> Floats:
        """The mean baseline's number, the same for every text."""
        return np.full(len(texts), self.mean)

    @property
    def parameters(self) -> int:
        """The mean baseline's one number."""
        return 1

    def save(self, folder: Path) -> None:
        """Write the mean baseline's number into a folder."""
        storage.save(folder, self.LAYOUT, self.mean)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved mean baseline."""
        model = cls()
        with storage.opened(folder, cls.LAYOUT):
            model.mean = float(storage.load(folder, cls.LAYOUT)[0])
        return model


class PredictsNumbers:
    """A mix-in for a classifier with `features` and `kind`: it learns numbers instead of labels."""

    kind: ClassVar[type[LinearModel]] = Ridge
    linear: LinearModel

    def values(self, texts: Sequence[Text]) -> Floats:
        """The numbers a linear baseline predicts: (texts,)."""
        return self.linear.outputs(self.features(texts))[:, 0]  # type: ignore[attr-defined]


class TfIdfNumber(PredictsNumbers, TfIdf):
    """Counted words under ridge regression."""

    name = "TF-IDF + ridge regression"
    strengths: Sequence[float] = (0.1, 1.0, 10.0)


class SharedWords(TfIdfNumber):
    """The cosine of two texts' TF-IDF, and a straight line from that to the number."""

    name = "shared words"
    strengths = (1000.0,)

    def features(self, texts: Sequence[Text]) -> Floats:
        """The one feature of a linear baseline of pairs, the share of common words: (pairs, 1)."""
        first, second = (self.words.matrix(side) for side in both_sides(texts))
        return np.asarray(first.multiply(second).sum(1))


def both_sides(texts: Sequence[Text]) -> tuple[list[str], list[str]]:
    """First and second texts of pairs, for a linear baseline."""
    if not all(isinstance(text, tuple) for text in texts):
        raise UserError("it compares two texts, and these rows have one")
    return [text[0] for text in texts], [text[1] for text in texts]


# ---- An n-gram model per label, and the mean of a text's word vectors


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
        """The n-gram baseline's probabilities, by Bayes' rule from its models' likelihoods: (texts, labels)."""
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
        """Word vectors learned from the baseline's training texts."""
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
            return pair_features(*(self.features([pair[side] for pair in texts]) for side in (0, 1)))
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


class VectorsNumber(PredictsNumbers, MeanOfVectors):
    """Means of word vectors under ridge regression."""
