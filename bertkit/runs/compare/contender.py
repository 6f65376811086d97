"""What can be compared: anything that learns from rows and answers with the task's own predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from bertkit import __version__, metrics
from bertkit.ancestors.ngram.ngram_words import UNITS
from bertkit.data.examples import TaggedSentence
from bertkit.errors import UserError
from bertkit.tasks import make
from bertkit.tasks.tag import Words
from bertkit.tasks.base import Item, Prediction, Task
from bertkit.training.saving import atomic_write, write_folder

INSIDE = "model"  # the model's own folder in a contender's
SMALLEST = 1e-12  # of a probability, before its logarithm


class Contender(Protocol):
    """Anything `compare` can run, BERT or n-gram."""

    name: str

    def fit(self, task: Task, train: Sequence[Any], dev: Sequence[Any], *, seed: int, minutes: float) -> Self:
        """Learn from the training examples; the dev examples choose. minutes: the most it may take; 0: as it likes."""

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """The task's predictions."""

    def save(self, folder: Path) -> None:
        """A folder that `open_model` opens."""

    @property
    def parameters(self) -> int:
        """Numbers learnt or kept."""


class _Contender:
    """The common half: what is written beside the model, and predictions by the task's own decoder."""

    def __init__(self, key: str, name: str, model: Any) -> None:
        self.key, self.name, self.model = key, name, model
        self.task: Task = Task()

    @property
    def parameters(self) -> int:
        """Of the model inside."""
        return int(self.model.parameters)

    @property
    def shortened(self) -> str:
        """What the time did not allow, where the model tells."""
        return getattr(self.model, "shortened", "")

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


class Texts(_Contender):
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
            raise UserError("compare takes one label a text. Fine-tune with --multi-label instead.")
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


class Tags(_Contender):
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
        found = self.model.judge([list(row.sentence.tokens) for row in rows])
        return [
            self.task.decode(Item(row, [], len(numbers), 0), np.column_stack([numbers, shares]))
            for row, (numbers, shares) in zip(rows, found)
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
