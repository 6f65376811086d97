"""Cheap models of labelled rows made of ancestors, and how a task's rows become what they learn from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from bertkit import __version__, metrics
from bertkit.ancestors import folder as storage
from bertkit.ancestors.baselines.linear import (
    LinearModel,
    NaiveBayes,
    Ridge,
    Text,
    TfIdf,
    flat,
    side_by_side,
    without_spaces,
)
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.hmm import Hmm
from bertkit.ancestors.ngram.model import UNITS
from bertkit.ancestors.vectors.corpus import words_of
from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.data.examples import TaggedSentence
from bertkit.errors import UserError
from bertkit.files.atomic import atomic_write, write_folder
from bertkit.tasks import make
from bertkit.tasks.base import Item, Prediction, Task
from bertkit.tasks.tag import Words

# ---- Text classifiers made of ancestors: one n-gram model per label, and means of word vectors.

Floats = NDArray[np.float64]


class NgramClassifier:
    """Which label's own n-gram model finds the text least surprising, weighed by how frequent the label is."""

    name = "one n-gram model per label"
    LAYOUT = Layout("n-gram classifier", "seen.json")

    def fit(self, texts: Sequence[str], labels: Sequence[int], count: int, *_: Any, **__: Any) -> Self:
        """One model per label."""
        from bertkit.ancestors.ngram.model import NgramModel, NgramSettings

        rows = np.asarray(labels)
        # A word counts as seen from its first time: each label's text is small.
        settings = NgramSettings(order=3, min_count=1, cased=False)
        self.seen = np.bincount(rows, minlength=count)
        self.models = {
            int(label): NgramModel(settings).fit([text for text, own in zip(texts, labels) if own == label])
            for label in np.flatnonzero(self.seen)
        }
        return self

    def probabilities(self, texts: Sequence[str]) -> Floats:
        """Bayes' rule. (texts, labels)"""
        logs = np.full((len(texts), len(self.seen)), -np.inf)
        for label, model in self.models.items():
            logs[:, label] = np.array(model.score(texts)) + np.log(self.seen[label] / self.seen.sum())
        return softmax(logs, axis=1)

    @property
    def parameters(self) -> int:
        """n-grams kept."""
        return sum(sum(model.ngrams) for model in self.models.values())

    def save(self, folder: Path) -> None:
        """One folder per label."""

        def write_models(path: Path) -> None:
            for label, model in self.models.items():
                model.write(path / f"label-{label}")

        storage.save(folder, self.LAYOUT, self.seen.tolist(), also=write_models)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        from bertkit.ancestors.ngram.model import NgramModel

        model = cls()
        with storage.opened(folder, cls.LAYOUT):
            model.seen = np.array(storage.load(folder, cls.LAYOUT)[0], np.int64)
            model.models = {int(n): NgramModel.load(folder / f"label-{n}") for n in np.flatnonzero(model.seen)}
        return model


@dataclass
class MeanOfVectors:
    """The mean of a text's word vectors under logistic regression; of a pair both, their product and difference.

    source: vectors made elsewhere; without it they are learnt from the training texts. how: word2vec or glove, or
    "given" where there is a source.
    """

    how: str = "word2vec"
    source: WordVectors | None = None
    kind: ClassVar[type[LinearModel]] = LinearModel
    reads_pairs: ClassVar[bool] = True
    LAYOUT: ClassVar[Layout] = Layout("mean of word vectors", "vectors.json")

    @property
    def name(self) -> str:
        """Which vectors."""
        return {
            "word2vec": "word2vec, averaged", "glove": "GloVe, averaged", "given": "given vectors, averaged",
        }[self.how]  # fmt: skip

    def fit(self, texts: Sequence[Text], labels: Sequence[int], count: int, *_: Any, seed: int = 0, **__: Any) -> Self:
        """Vectors first where there are none, then weights."""
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
        """(texts, width) of length 1; four times as wide for pairs."""
        if any(isinstance(text, tuple) for text in texts):
            return side_by_side(*(self.features([pair[side] for pair in texts]) for side in (0, 1)))
        means = np.stack([self.vectors.mean_of(str(text), self.units) for text in texts]).astype(np.float64)
        return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)

    def probabilities(self, texts: Sequence[Text]) -> Floats:
        """(texts, labels)"""
        return self.linear.probabilities(self.features(texts))

    @property
    def parameters(self) -> int:
        """Vectors and weights."""
        return self.vectors.matrix.size + self.linear.parameters

    def save(self, folder: Path) -> None:
        """Vectors in word2vec's own format, weights beside them."""
        self.linear.save(folder)
        described = {"how": self.how, "units": self.units}
        storage.save(folder, self.LAYOUT, described, also=lambda path: self.vectors.save(path / "vectors.bin"))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        with storage.opened(folder, cls.LAYOUT):
            described, _ = storage.load(folder, cls.LAYOUT)
            model = cls(described["how"])
            model.units = described["units"]
            model.vectors, model.linear = WordVectors.load(folder / "vectors.bin"), cls.kind.load(folder)
        return model


# ---- Rivals where a text, or a pair of texts, has a number: the mean, shared words, and ridge regression on
# features.


class MeanNumber:
    """Always says the mean."""

    name = "the mean"
    reads_pairs = True
    LAYOUT = Layout("mean of numbers", "mean.json")

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
        storage.save(folder, self.LAYOUT, self.mean)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        model = cls()
        with storage.opened(folder, cls.LAYOUT):
            model.mean = float(storage.load(folder, cls.LAYOUT)[0])
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


# ---- How the rows of a task become what a model learns from, and its numbers the task's predictions.

INSIDE = "model"  # the model's own folder in a form's
SMALLEST = 1e-12  # of a probability, before its logarithm


class Form:
    """A cheap model of a task's rows: what is written beside it, and predictions by the task's own decoder."""

    def __init__(self, key: str, name: str, model: Any) -> None:
        self.key, self.name, self.model = key, name, model
        self.task: Task = Task()

    @property
    def parameters(self) -> int:
        """Of the model inside."""
        return int(self.model.parameters)

    @property
    def progress(self) -> Any:
        """How far training came, where it is made of steps."""
        return getattr(self.model, "progress", None)

    def save(self, folder: Path) -> None:
        """The model and `bertkit.json`, which says what it is."""
        about = {
            "contender": self.key, "name": self.name, "task": self.task.name, "labels": list(self.task.labels),
            "options": self.task.options, "version": __version__,
        }  # fmt: skip

        def write(path: Path) -> None:
            (path / INSIDE).mkdir()
            self.model.save(path / INSIDE)
            atomic_write(path / "bertkit.json", json.dumps(about, ensure_ascii=False, indent=1))

        write_folder(folder, write)

    def restore(self, about: dict[str, Any]) -> Self:
        """The task as `bertkit.json` tells it."""
        self.task = make(about["task"], labels=tuple(about["labels"]), options=dict(about["options"]))
        return self


class Texts(Form):
    """A classifier of texts, or of pairs of texts: as they are where the model says `reads_pairs`, else joined.

    The model inside has `fit(texts, labels, count, dev_texts, dev_labels, seed=, minutes=)` with labels as numbers,
    `probabilities(texts)` (texts, labels), `parameters`, and `save(folder)`.
    """

    def _texts(self, rows: Sequence[Any]) -> list[Any]:
        if getattr(self.model, "reads_pairs", False):
            return [(row.text, row.text_b) if row.text_b is not None else row.text for row in rows]
        return [row.text if row.text_b is None else f"{row.text} / {row.text_b}" for row in rows]

    def fit(self, task: Task, train: Sequence[Any], dev: Sequence[Any], *, seed: int, minutes: float) -> Self:
        """Labels as numbers."""
        self.task = task
        if task.options.get("multi_label"):
            raise UserError("compare takes one label per text. Fine-tune with --multi-label instead.")
        labels, dev_labels = ([task.labels.index(row.label) for row in rows] for rows in (train, dev))
        self.model.fit(
            self._texts(train), labels, len(task.labels), self._texts(dev), dev_labels, seed=seed, minutes=minutes
        )
        return self

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """Probabilities as the task decodes them. Every text is read whole."""
        texts = self._texts(examples)
        scores = np.log(np.maximum(self.model.probabilities(texts), SMALLEST)) if texts else []
        return [
            self.task.decode(Item(example, [], len(_pieces(text)), 0), row)
            for example, text, row in zip(examples, texts, scores)
        ]


class Numbers(Texts):
    """A number for a text, or for a pair of texts. The model inside has `values(texts)` instead of probabilities."""

    def fit(self, task: Task, train: Sequence[Any], dev: Sequence[Any], *, seed: int, minutes: float) -> Self:
        """The user's own numbers."""
        self.task = task
        numbers, dev_numbers = ([float(row.label) for row in rows] for rows in (train, dev))
        self.model.fit(self._texts(train), numbers, 1, self._texts(dev), dev_numbers, seed=seed, minutes=minutes)
        return self

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """Numbers as the task decodes them. Every text is read whole."""
        texts = self._texts(examples)
        values = self.model.values(texts) if texts else []
        return [
            self.task.decode(Item(example, [], len(_pieces(text)), 0), np.array([value]))
            for example, text, value in zip(examples, texts, values)
        ]


class Tags(Form):
    """A tagger of sentences.

    The model inside has `fit(sentences, tags, count, dev_sentences, dev_tags, seed=, minutes=, measure=)` with tags as
    numbers and what its best pass is chosen by, `judge(sentences)` (of each sentence the tags and (words, labels)
    log-probabilities), `parameters`, `save(folder)`.
    """

    def fit(self, task: Task, train: Sequence[Any], dev: Sequence[Any], *, seed: int, minutes: float) -> Self:
        """Tags as numbers."""
        self.task = task
        (sentences, tags), (dev_sentences, dev_tags) = (self._split(rows) for rows in (train, dev))
        self.model.fit(
            sentences, tags, len(task.labels), dev_sentences, dev_tags, seed=seed, minutes=minutes,
            measure=self._headline,
        )  # fmt: skip
        return self

    def _headline(self, right: list[list[int]], said: list[list[int]]) -> float:
        """What all contenders are scored by: entity F1 where tags are chunks."""
        named = ([[self.task.labels[n] for n in tags] for tags in side] for side in (right, said))
        return float(next(iter(metrics.tagging(*named).values())))

    def _split(self, rows: Sequence[Words]) -> tuple[list[list[str]], list[list[int]]]:
        number = {label: n for n, label in enumerate(self.task.labels)}
        return (
            [list(row.sentence.tokens) for row in rows],
            [[number[tag] for tag in row.sentence.tags or ()] for row in rows],
        )

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """One tag a word; plain texts are split into words and marks."""
        rows = [_with_words(example) for example in examples]
        judged = self.model.judge([list(row.sentence.tokens) for row in rows])
        return [
            self.task.decode(Item(row, [], len(numbers), 0), np.column_stack([numbers, shares]))
            for row, (numbers, shares) in zip(rows, judged)
        ]


def _pieces(text: Any) -> list[str]:
    return UNITS["words"](text if isinstance(text, str) else " ".join(text))


def _with_words(example: Words) -> Words:
    if example.spans or not example.text:
        return example
    spans, at = [], 0
    for word in UNITS["words"](example.text):
        start = example.text.index(word, at)
        at = start + len(word)
        if not word.isspace():
            spans.append((start, at))
    tokens = tuple(example.text[a:b] for a, b in spans)
    return Words(TaggedSentence(tokens, None, example.sentence.line), example.text, tuple(spans))


# ---- The baseline of each task: the strongest model that takes seconds.


class OneStrength(TfIdf):
    """Logistic regression with the regularisation that suits most texts: a tenth of the time that choosing it takes."""

    strengths = (10.0,)


def _texts_baseline(size: int) -> Texts:
    """By how long logistic regression would take, which grows with rows and labels."""
    kinds: tuple[tuple[float, type[TfIdf]], ...] = ((3_000, TfIdf), (20_000, OneStrength), (inf, NaiveBayes))
    kind = next(kind for most, kind in kinds if size <= most)
    return Texts("tfidf", kind.name, kind())


BASELINES: dict[str, Callable[[int], Texts | Tags]] = {  # task → its baseline for a size: training rows times labels
    "classify": _texts_baseline,
    "pair": _texts_baseline,
    "regress": lambda size: Numbers("tfidf-numbers", TfIdfNumber.name, TfIdfNumber()),
    "tag": lambda size: Tags("hmm", Hmm.name, Hmm()),
}
