"""Adapters: a task's rows become what a cheap model learns from, and the numbers it gives the task's predictions.

`Texts`, `Numbers` and `Tags` wrap any model with the methods of their Protocol; BASELINES has one for each task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bertkit import __version__, metrics
from bertkit.ancestors.baselines.models import CountedWords, LinearModel, NaiveBayes, TfIdf, TfIdfNumber
from bertkit.ancestors.hmm import Hmm
from bertkit.ancestors.ngram.model import UNITS
from bertkit.data.examples import TaggedSentence
from bertkit.errors import UserError
from bertkit.files.atomic import atomic_write, write_folder
from bertkit.metrics.calibration import label_thresholds
from bertkit.tasks import make
from bertkit.tasks.base import Item, Prediction, Task
from bertkit.tasks.tag import Words

INSIDE = "model"  # the model's own folder in an adapter's
SMALLEST = 1e-12  # of a probability, before its logarithm


class SavedModel(Protocol):
    """What the class of every row of `CONTENDERS` has, besides the methods of its adapter below."""

    @property
    def parameters(self) -> int:
        """Number of parameters of a model that an adapter wraps."""

    def save(self, folder: Path) -> None:
        """Write all files of a model that an adapter wraps into a folder, or none."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved model that an adapter wraps."""


class TextClassifier(SavedModel, Protocol):
    """A classifier that the adapter `Texts` holds. Pairs of texts are tuples, if its class says `reads_pairs`."""

    def fit(
        self, texts: Sequence[Any], labels: Sequence[int], count: int, dev_texts: Sequence[Any],
        dev_labels: Sequence[int], /, *, seed: int, minutes: float,
    ) -> Self:  # fmt: skip
        """What the adapter `Texts` calls to learn labels, numbers below `count`; the dev texts choose the best pass.

        minutes: time limit; 0: none.
        """

    def probabilities(self, texts: Sequence[Any], /) -> NDArray[Any]:
        """What the adapter `Texts` asks a model for: (texts, labels)."""


class TextRegressor(SavedModel, Protocol):
    """A regressor of texts that the adapter `Numbers` holds."""

    def fit(
        self, texts: Sequence[Any], numbers: Sequence[float], count: int, dev_texts: Sequence[Any],
        dev_numbers: Sequence[float], /, *, seed: int, minutes: float,
    ) -> Self:  # fmt: skip
        """What the adapter `Numbers` calls to learn a number per text; `count` is 1."""

    def values(self, texts: Sequence[Any], /) -> NDArray[Any]:
        """What the adapter `Numbers` asks a model for: (texts,)."""


class SentenceTagger(SavedModel, Protocol):
    """A tagger that the adapter `Tags` holds."""

    def fit(
        self, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[int]], count: int,
        dev_sentences: Sequence[Sequence[str]], dev_tags: Sequence[Sequence[int]], /, *, seed: int, minutes: float,
        measure: Callable[[list[list[int]], list[list[int]]], float],
    ) -> Self:  # fmt: skip
        """What the adapter `Tags` asks of any tagger: learn tags below `count`.

        measure(gold, predicted) chooses the best pass.
        """

    def judge(self, sentences: Sequence[Sequence[str]], /) -> Sequence[tuple[list[int], NDArray[Any]]]:
        """What the adapter `Tags` asks of each sentence: its tags, and their log-probabilities (words, labels)."""


@runtime_checkable
class TrainedInSteps(Protocol):
    """A contender whose training has steps."""

    progress: Any


Inner = TypeVar("Inner", bound=SavedModel)


class Adapter(Generic[Inner]):
    """A cheap model of a task's rows: what is written beside it, and predictions by the task's own decoder."""

    def __init__(self, key: str, name: str, model: Inner) -> None:
        self.key, self.name, self.model = key, name, model
        self.task: Task = Task()

    @property
    def parameters(self) -> int:
        """Parameters of the model inside the adapter."""
        return int(self.model.parameters)

    @property
    def progress(self) -> Any:
        """Progress of an adapter's training in steps; None for others."""
        return self.model.progress if isinstance(self.model, TrainedInSteps) else None

    def save(self, folder: Path) -> None:
        """Write the adapter's model, and the `bertkit.json` that identifies it."""
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
        """Restore the adapter's task from `bertkit.json`."""
        self.task = make(about["task"], labels=tuple(about["labels"]), options=dict(about["options"]))
        return self


class _OfTexts(Adapter[Inner]):
    """A model of texts, or of pairs of texts: as tuples if the model says `reads_pairs`, else joined."""

    def _texts(self, rows: Sequence[Any]) -> list[Any]:
        """A task's rows as texts, or as pairs where the contender reads pairs."""
        if getattr(self.model, "reads_pairs", False):
            return [(row.text, row.text_b) if row.text_b is not None else row.text for row in rows]
        return [row.text if row.text_b is None else f"{row.text} / {row.text_b}" for row in rows]


class Texts(_OfTexts[TextClassifier]):
    """The adapter of a baseline that classifies texts, or pairs of texts."""

    def fit(self, task: Task, train: Sequence[Any], dev: Sequence[Any], *, seed: int, minutes: float) -> Self:
        """Fit the adapter's model on labels as numbers."""
        self.task = task
        if task.options.get("multi_label"):
            raise UserError("compare takes one label per text. Fine-tune with --multi-label instead.")
        labels, dev_labels = ([task.labels.index(row.label) for row in rows] for rows in (train, dev))
        self.model.fit(
            self._texts(train), labels, len(task.labels), self._texts(dev), dev_labels, seed=seed, minutes=minutes
        )
        return self

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """Probabilities of the adapter's model as the task decodes them. Every text is read in full."""
        texts = self._texts(examples)
        scores = np.log(np.maximum(self.model.probabilities(texts), SMALLEST)) if texts else []
        return [
            self.task.decode(Item(example, [], len(_pieces(text)), 0), row)
            for example, text, row in zip(examples, texts, scores)
        ]


class Numbers(_OfTexts[TextRegressor]):
    """The adapter of a baseline that gives a number for a text, or for a pair of texts."""

    def fit(self, task: Task, train: Sequence[Any], dev: Sequence[Any], *, seed: int, minutes: float) -> Self:
        """Fit the adapter's model on the user's own numbers."""
        self.task = task
        numbers, dev_numbers = ([float(row.label) for row in rows] for rows in (train, dev))
        self.model.fit(self._texts(train), numbers, 1, self._texts(dev), dev_numbers, seed=seed, minutes=minutes)
        return self

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """Numbers of the adapter's model as the task decodes them. Every text is read in full."""
        texts = self._texts(examples)
        values: Iterable[float] = self.model.values(texts) if texts else []
        return [
            self.task.decode(Item(example, [], len(_pieces(text)), 0), np.array([value]))
            for example, text, value in zip(examples, texts, values)
        ]


class Tags(Adapter[SentenceTagger]):
    """The adapter of a baseline that tags sentences."""

    def fit(self, task: Task, train: Sequence[Any], dev: Sequence[Any], *, seed: int, minutes: float) -> Self:
        """Fit the adapter's model on tags as numbers."""
        self.task = task
        (sentences, tags), (dev_sentences, dev_tags) = (self._split(rows) for rows in (train, dev))
        self.model.fit(
            sentences, tags, len(task.labels), dev_sentences, dev_tags, seed=seed, minutes=minutes,
            measure=self._headline,
        )  # fmt: skip
        return self

    def _headline(self, gold: list[list[int]], predicted: list[list[int]]) -> float:
        """The adapter's score of a tagger, the same for all contenders: entity F1 if the tags mark chunks."""
        named = ([[self.task.labels[n] for n in tags] for tags in side] for side in (gold, predicted))
        return float(next(iter(metrics.tagging(*named).values())))

    def _split(self, rows: Sequence[Words]) -> tuple[list[list[str]], list[list[int]]]:
        """The sentences of tagging rows, and the numbers of their tags."""
        number = {label: n for n, label in enumerate(self.task.labels)}
        return (
            [list(row.sentence.tokens) for row in rows],
            [[number[tag] for tag in row.sentence.tags or ()] for row in rows],
        )

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """The adapter's tag of each word; plain texts are split into words and punctuation."""
        rows = [_with_words(example) for example in examples]
        judged = self.model.judge([list(row.sentence.tokens) for row in rows])
        return [
            self.task.decode(Item(row, [], len(numbers), 0), np.column_stack([numbers, shares]))
            for row, (numbers, shares) in zip(rows, judged)
        ]


def _pieces(text: Any) -> list[str]:
    return UNITS["words"](text if isinstance(text, str) else " ".join(text))


def _with_words(example: Words) -> Words:
    """A tagging row without words split into words, with their places in the text."""
    if example.spans or not example.text:
        return example
    spans, end = [], 0
    for word in UNITS["words"](example.text):
        start = example.text.index(word, end)
        end = start + len(word)
        if not word.isspace():
            spans.append((start, end))
    tokens = tuple(example.text[a:b] for a, b in spans)
    return Words(TaggedSentence(tokens, None, example.sentence.line), example.text, tuple(spans))


# ---- The baseline of each task: the strongest model that takes seconds.


class OneStrength(TfIdf):
    """TF-IDF under logistic regression of one strength that suits most texts. Choosing it takes ten times as long."""

    strengths = (10.0,)


def _texts_baseline(size: int) -> Texts:
    """The baseline of texts, by how long logistic regression would take: that grows with rows and labels."""
    kinds: tuple[tuple[float, type[TfIdf]], ...] = ((3_000, TfIdf), (20_000, OneStrength), (inf, NaiveBayes))
    kind = next(kind for most, kind in kinds if size <= most)
    return Texts("tfidf", kind.name, kind())


class Baseline(Protocol):
    """What stands beside a score."""

    name: str

    def fit(self, task: Any, train: list[Any], dev: list[Any], *, seed: int, minutes: float) -> Any:
        """Fit a task's baseline to its examples."""

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """A baseline's predictions, as the task has them."""


class SeveralLabels:
    """TF-IDF, and a logistic regression of one strength for each label; thresholds as the task chooses them."""

    name = "TF-IDF + logistic regression per label"
    MOST = 40_000  # rows times labels: some seconds

    def fit(self, task: Any, train: list[Any], dev: list[Any], *, seed: int, minutes: float) -> SeveralLabels:
        """Fit the baseline of several labels: each label by itself, from as many rows as take seconds."""
        self.labels: tuple[str, ...] = task.labels
        most = max(500, self.MOST // len(self.labels))
        if len(train) > most:
            places = np.random.default_rng((seed, 6)).choice(len(train), most, replace=False)
            train = [train[place] for place in sorted(places)]
        self.words = CountedWords().fit([row.text for row in train])
        features, has = self.words.matrix([row.text for row in train]), self._has(train)
        self.models = [
            LinearModel().fit(features, has[:, n].astype(int), 2, strengths=(10.0,), seed=seed)
            if 0 < share < 1
            else share
            for n, share in enumerate(has.mean(axis=0))
        ]
        self.thresholds = label_thresholds(self._probabilities(dev), self._has(dev))
        return self

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """The baseline's {labels, scores} of each text."""
        return [
            {
                "labels": [name for name, p, least in zip(self.labels, row, self.thresholds) if p >= least],
                "scores": dict(zip(self.labels, row.tolist())),
            }
            for row in self._probabilities(examples)
        ]

    def _has(self, rows: Sequence[Any]) -> NDArray[Any]:
        return np.array([[name in (row.label or ()) for name in self.labels] for row in rows])

    def _probabilities(self, rows: Sequence[Any]) -> NDArray[Any]:
        """Each label's own logistic regression: (texts, labels)."""
        features = self.words.matrix([row.text for row in rows])
        columns = [
            model.probabilities(features)[:, 1] if isinstance(model, LinearModel) else np.full(len(rows), float(model))
            for model in self.models
        ]
        return np.column_stack(columns)


class PairSimilarity:
    """Two texts are alike as far as they share words, weighted by TF-IDF. Nothing else is learned."""

    name = "TF-IDF cosine"

    def fit(self, task: Any, train: list[Any], dev: list[Any], *, seed: int, minutes: float) -> Self:
        """Fit the baseline of similar pairs: learn how frequent each word is."""
        self.task, self.words = task, CountedWords().fit([text for row in train for text in self._texts(row)])
        return self

    def _texts(self, example: Any) -> list[str]:
        return [example.text, example.text_b or ""]

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """The baseline's {similarity, vectors} of each pair; vectors over the words of these pairs alone."""
        sides = [self.words.matrix([self._texts(row)[side] for row in examples]) for side in (0, 1)]
        shared = np.flatnonzero((sides[0].getnnz(axis=0) > 0) & (sides[1].getnnz(axis=0) > 0))
        similarity = np.asarray(sides[0].multiply(sides[1]).sum(axis=1)).ravel()
        # Words of one side alone change no product; of the others, the matrix keeps as many as fit into memory.
        cosines = shared[
            np.argsort(-sides[0][:, shared].getnnz(axis=0), kind="stable")[: 50_000_000 // max(1, len(examples))]
        ]
        first, second = (side[:, cosines].astype(np.float32).toarray() for side in sides)
        return [
            {"similarity": float(cosine), "vectors": np.stack(pair)}
            for cosine, pair in zip(similarity, zip(first, second))
        ]


class ChoiceSimilarity(PairSimilarity):
    """The choice that shares most words with the text."""

    def _texts(self, example: Any) -> list[str]:
        return [example.text, *example.choices]

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """The baseline's {choice, scores} of each question, by the words a choice shares with it."""
        predictions = []
        for example in examples:
            matrix = self.words.matrix(self._texts(example))
            cosines = np.asarray((matrix[1:] @ matrix[0].T).todense()).ravel()
            predictions.append(self.task.decode(Item(example, [], 0, 0), cosines))
        return predictions


BASELINES: dict[str, Callable[[int], Baseline]] = {  # task → its baseline for a size: training rows times labels
    "classify": _texts_baseline,
    "pair": _texts_baseline,
    "regress": lambda size: Numbers("tfidf-numbers", TfIdfNumber.name, cast(Any, TfIdfNumber())),
    "tag": lambda size: Tags("hmm", Hmm.name, Hmm()),
    "multi-label": lambda size: SeveralLabels(),
    "embed": lambda size: PairSimilarity(),
    "choose": lambda size: ChoiceSimilarity(),
}
