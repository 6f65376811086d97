"""What can be compared: the forms a contender has, and the table of all of them, cheapest first."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from bertkit import __version__, metrics
from bertkit.ancestors.ngram.model import UNITS
from bertkit.data.examples import TaggedSentence
from bertkit.errors import UserError, suggest
from bertkit.files.atomic import atomic_write, write_folder
from bertkit.settings.compare import TASK_NAMES
from bertkit.tasks import make
from bertkit.tasks.base import Item, Prediction, Task
from bertkit.tasks.tag import Words

# ---- What can be compared: anything that learns from rows and answers with the task's own predictions.

INSIDE = "model"  # the model's own folder in a contender's
SMALLEST = 1e-12  # of a probability, before its logarithm


class ContenderModel(Protocol):
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


class _ContenderModel:
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


class Texts(_ContenderModel):
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


class Tags(_ContenderModel):
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


# ---- The entries of the ladder, cheapest first: what each contender is called, what it can do, and how it is made.

TEXT = ("classify", "pair")


@dataclass(frozen=True)
class Resources:
    """What the user brings: models that were learnt beforehand. An empty one is made from the rows, or left out."""

    models: tuple[str, ...] = ()
    vectors: str = ""
    lm: str = ""
    elmo: str = ""
    gpt: str = ""
    threads: int = 0
    precision: str = "auto"
    device: str = "auto"


@dataclass(frozen=True)
class Contender:
    """make: a fresh contender from what is given. lacks: why it cannot be made from that, or nothing."""

    key: str
    tasks: tuple[str, ...]
    make: Callable[[Resources], ContenderModel]
    lacks: Callable[[Resources], str] = field(default=lambda given: "")


def _texts(key: str, where: str, kind: str) -> Contender:
    """A classifier that needs nothing but the rows."""

    def make(given: Resources) -> ContenderModel:
        model = _class(where, kind)()
        return Texts(key, model.name, model)

    return Contender(key, TEXT, make)


def _class(where: str, kind: str) -> Any:
    from importlib import import_module

    return getattr(import_module(f"bertkit.{where}"), kind)


def _tagger(key: str, where: str, kind: str) -> Contender:
    def make(given: Resources) -> ContenderModel:
        model = _class(where, kind)()
        return Tags(key, model.name, model)

    return Contender(key, ("tag",), make)


def _number(key: str, kind: str) -> Contender:
    def make(given: Resources) -> ContenderModel:
        model = _class("ancestors.baselines.rows", kind)()
        return Numbers(key, model.name, model)

    return Contender(key, ("regress",), make)


def _vectors(how: str, form: type[Texts] = Texts) -> Contender:
    """form: what they answer with, labels or numbers."""
    key, where, kind, tasks = {
        Texts: (how, "ancestors.baselines.rows", "MeanOfVectors", TEXT),
        Numbers: (f"{how}-numbers", "ancestors.baselines.rows", "VectorsNumber", ("regress",)),
    }[form]

    def make(given: Resources) -> ContenderModel:
        from bertkit.ancestors.vectors.vectors import open_vectors

        own = given.vectors and how == "word2vec"  # they take its place
        made = _class(where, kind)
        model = made("given", open_vectors(given.vectors).writable()) if own else made(how)
        return form(key, model.name, model)

    return Contender(key, tasks, make)


def _bilstm_texts(given: Resources) -> ContenderModel:
    model = _class("ancestors.lstm.bilstm", "BiLstmClassifier")()
    return Texts("bilstm", "BiLSTM", model)


def _bilstm_tags(given: Resources) -> ContenderModel:
    model = _class("ancestors.lstm.bilstm", "BiLstmTagger")()
    return Tags("bilstm-tags", "BiLSTM", model)


def _elmo(kind: str) -> Callable[[Resources], ContenderModel]:
    def make(given: Resources) -> ContenderModel:
        source = _class("runs.compare.bert", "ElmoSource").load(Path(given.elmo))
        model = _class("runs.compare.bert", kind)(source)
        if kind == "ElmoTagger":
            return Tags("elmo-tags", "ELMo + BiLSTM", model)
        return Texts("elmo", "ELMo + BiLSTM", model)

    return make


def _sequence(key: str, start: str, name: str) -> Callable[[Resources], ContenderModel]:
    def make(given: Resources) -> ContenderModel:
        lm = _class("ancestors.language_model.model", "LanguageModel").load(Path(given.lm))
        return Texts(key, name, _class("ancestors.lstm.dai_le", "DaiLe")(lm, start=start))

    return make


def _ulmfit(given: Resources) -> ContenderModel:
    lm = _class("ancestors.language_model.model", "LanguageModel").load(Path(given.lm))
    return Texts("ulmfit", "ULMFiT", _class("ancestors.lstm.ulmfit", "Ulmfit")(lm))


def _frozen(key: str, kind: str, name: str, form: type[Texts] = Texts) -> Callable[[Resources], ContenderModel]:
    def make(given: Resources) -> ContenderModel:
        from bertkit.inference.predictor import Predictor

        encoder = Predictor.load(given.models[0], given.precision, given.device)
        model = _class("runs.compare.bert", kind)(encoder)
        return form(key, f"{name}, frozen ({_short(given.models[0], given)})", model)

    return make


def _frozen_tags(given: Resources) -> ContenderModel:
    source = _class("runs.compare.bert", "BertSource").load(given.models[0], given.precision)
    model = _class("runs.compare.bert", "BertFeaturesTagger")(source)
    return Tags("features-tags", f"BERT frozen + BiLSTM ({_short(given.models[0], given)})", model)


def _fine_tuned(name: str, start: Callable[[Resources], str]) -> Callable[[Resources], ContenderModel]:
    def make(given: Resources) -> ContenderModel:
        from bertkit.runs.compare.bert import FineTuned

        model = start(given)
        return FineTuned(f"{name} ({_short(model, given)})", model, given.threads, given.precision, given.device)

    return make


def _tuned_cosine(given: Resources) -> ContenderModel:
    model = given.models[0]
    tuned = _class("runs.compare.bert", "FineTuned")("", model, given.threads, given.precision, given.device)
    inside = _class("runs.compare.bert", "TunedCosine")(tuned=tuned)
    return Numbers("vectors", f"BERT fine-tuned as sentence vectors ({_short(model, given)})", inside)


def _short(model: str, given: Resources) -> str:
    """The last part of a path, unless two models end alike."""
    ends = [Path(other).name for other in given.models]
    return model if ends.count(Path(model).name) > 1 else Path(model).name


def _needs(what: str, option: str, how: str) -> Callable[[Resources], str]:
    return lambda given: "" if getattr(given, what) else f"it needs {option}: {how}"


_NEEDS_LM = _needs("lm", "--lm FOLDER", "a language model of running text (bertkit learn lstm)")
_NEEDS_ELMO = _needs("elmo", "--elmo FOLDER", "a bidirectional language model of running text (bertkit learn elmo)")
_NEEDS_GPT = _needs("gpt", "--gpt MODEL", "a causal model (bertkit pretrain --preset gpt-mini)")
_NEEDS_MODEL = _needs("models", "--models MODEL", "an encoder's folder, embedded or hub name")

CONTENDERS = (
    _texts("majority", "ancestors.baselines.linear", "Majority"),
    _texts("bayes", "ancestors.baselines.linear", "NaiveBayes"),
    _texts("tfidf", "ancestors.baselines.linear", "TfIdf"),
    _tagger("frequent-tag", "ancestors.hmm", "FrequentTag"),
    _tagger("hmm", "ancestors.hmm", "Hmm"),
    _texts("ngram", "ancestors.baselines.rows", "NgramClassifier"),
    _texts("averaged", "ancestors.baselines.fasttext", "FastText"),
    _vectors("word2vec"),
    _vectors("glove"),
    _number("mean", "MeanNumber"),
    _number("overlap", "SharedWords"),
    _number("tfidf-numbers", "TfIdfNumber"),
    _vectors("word2vec", Numbers),
    _vectors("glove", Numbers),
    Contender("features", TEXT, _frozen("features", "FrozenVectors", "BERT vectors"), _NEEDS_MODEL),
    Contender(
        "cosine", ("regress",), _frozen("cosine", "FrozenCosine", "cosine of BERT vectors", Numbers), _NEEDS_MODEL
    ),
    Contender(
        "features-numbers",
        ("regress",),
        _frozen("features-numbers", "FrozenNumber", "BERT vectors", Numbers),
        _NEEDS_MODEL,
    ),
    Contender("vectors", ("regress",), _tuned_cosine, _NEEDS_MODEL),
    Contender("bilstm", TEXT, _bilstm_texts),
    Contender("bilstm-tags", ("tag",), _bilstm_tags),
    Contender("features-tags", ("tag",), _frozen_tags, _NEEDS_MODEL),
    Contender("elmo", TEXT, _elmo("ElmoClassifier"), _NEEDS_ELMO),
    Contender("elmo-tags", ("tag",), _elmo("ElmoTagger"), _NEEDS_ELMO),
    Contender("lstm-lm", TEXT, _sequence("lstm-lm", "language-model", "LSTM started from a language model"), _NEEDS_LM),
    Contender(
        "lstm-autoencoder",
        TEXT,
        _sequence("lstm-autoencoder", "autoencoder", "LSTM started from an autoencoder"),
        _NEEDS_LM,
    ),
    Contender("ulmfit", TEXT, _ulmfit, _NEEDS_LM),
    Contender("gpt", (*TEXT, "regress"), _fine_tuned("GPT fine-tuned", lambda given: given.gpt), _NEEDS_GPT),
)


def contenders_for(task: str, wanted: tuple[str, ...], given: Resources) -> list[Contender]:
    """Those of a task, cheapest first, a fine-tuned BERT for every model given last; only the `wanted`, if any."""
    berts = [
        Contender(f"bert:{model}", TASK_NAMES, _fine_tuned("BERT fine-tuned", lambda given, m=model: m))  # type: ignore[misc]
        for model in given.models
    ]
    entries = [entry for entry in (*CONTENDERS, *berts) if task in entry.tasks]
    if not entries:
        raise UserError(f"compare knows the tasks {', '.join(TASK_NAMES)}, not '{task}'.")
    known = {_plain(name): name for entry in entries for name in _names(entry)}
    for name in wanted:
        if _plain(name) not in known:
            hint = "Give --models." if name == "bert" else suggest(name, sorted(known.values()))
            raise UserError(f"There is no contender '{name}' for {task}. {hint}")
    asked = {_plain(name) for name in wanted}
    return [entry for entry in entries if not wanted or {_plain(name) for name in _names(entry)} & asked]


def _names(entry: Contender) -> tuple[str, ...]:
    """What a user may call it: in full, without its task, or all BERTs at once."""
    others = ("majority",) if entry.key in ("frequent-tag", "mean") else ()
    return entry.key, entry.key.removesuffix("-tags").removesuffix("-numbers"), entry.key.split(":")[0], *others


def _plain(name: str) -> str:
    """n-gram, TF-IDF and GloVe as the table spells them."""
    return name if ":" in name else name.lower().replace("-", "")
