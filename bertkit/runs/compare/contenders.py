"""What can be compared: the forms a contender has, and the table of all of them, cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from bertkit.ancestors.baselines.fasttext import FastText
from bertkit.ancestors.baselines.linear import Majority, NaiveBayes, TfIdf
from bertkit.ancestors.baselines.rows import (
    INSIDE,
    MeanNumber,
    MeanOfVectors,
    NgramClassifier,
    Numbers,
    SharedWords,
    Tags,
    Texts,
    TfIdfNumber,
    VectorsNumber,
)
from bertkit.ancestors.hmm import FrequentTag, Hmm
from bertkit.ancestors.language_model.model import LanguageModel
from bertkit.ancestors.lstm.bilstm import BiLstmClassifier, BiLstmTagger
from bertkit.ancestors.lstm.dai_le import DaiLe
from bertkit.ancestors.lstm.ulmfit import Ulmfit
from bertkit.ancestors.vectors.vectors import open_vectors
from bertkit.errors import UserError, suggest
from bertkit.inference.predictor import Predictor
from bertkit.runs.compare.bert import (
    BertFeaturesTagger,
    BertSource,
    ElmoClassifier,
    ElmoSource,
    ElmoTagger,
    FineTuned,
    FrozenCosine,
    FrozenNumber,
    FrozenVectors,
    Progress,
    TunedCosine,
)
from bertkit.settings.compare import TASK_NAMES
from bertkit.tasks.base import Prediction, Task

# ---- What can be compared: anything that learns from rows and answers with the task's own predictions.


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

    @property
    def progress(self) -> Progress | None:
        """How far training came, where it is made of steps."""


class SavedModel(Protocol):
    """What a contender's model has, besides `fit` and the method its form asks for answers."""

    @property
    def parameters(self) -> int:
        """Numbers learnt or kept."""

    def save(self, folder: Path) -> None:
        """Into a folder, whole."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""


# ---- The table, cheapest first: what each contender is called, what it can do, how it is made and opened again.

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
    """A row of the table: `compare` makes models from it, `bertkit.load` opens them again.

    form: how rows become what the model learns from. model: its class. build: makes one from what is given; without it
    the class is called with nothing. title: its name in tables; without it the model's own. lacks: why it cannot be
    made from what is given, or nothing. load: opens it at a precision, where an encoder is inside.
    """

    key: str
    tasks: tuple[str, ...]
    form: type[Texts] | type[Tags]
    model: type[SavedModel]
    build: Callable[[Resources], SavedModel] | None = None
    title: Callable[[Resources], str] | None = None
    lacks: Callable[[Resources], str] = lambda given: ""
    load: Callable[[Path, str], SavedModel] | None = None

    def make(self, given: Resources) -> ContenderModel:
        """A fresh one."""
        model: Any = self.build(given) if self.build else self.model()
        return self.form(self.key, self.title(given) if self.title else model.name, model)

    def open(self, folder: Path, about: dict[str, Any], precision: str = "auto") -> Texts | Tags:
        """One that was saved. about: its bertkit.json."""
        inside = folder / INSIDE
        model = self.load(inside, precision) if self.load else self.model.load(inside)
        return self.form(self.key, about["name"], model).restore(about)


@dataclass(frozen=True)
class WholeEncoder:
    """An encoder that is fine-tuned whole: what it writes is any model's folder. start: the model to begin with."""

    key: str
    tasks: tuple[str, ...]
    name: str
    start: Callable[[Resources], str]
    lacks: Callable[[Resources], str] = lambda given: ""

    def make(self, given: Resources) -> ContenderModel:
        """A fresh one."""
        start = self.start(given)
        name = f"{self.name} ({_short(start, given)})"
        return FineTuned(name, start, given.threads, given.precision, given.device)


Entry = Contender | WholeEncoder


def _vectors_of(given: Resources, how: str, kind: type[MeanOfVectors]) -> MeanOfVectors:
    if given.vectors and how == "word2vec":  # they take its place
        return kind("given", open_vectors(given.vectors).writable())
    return kind(how)


def _encoder(given: Resources) -> Predictor:
    return Predictor.load(given.models[0], given.precision, given.device)


def _lm(given: Resources) -> LanguageModel:
    return LanguageModel.load(Path(given.lm))


def _elmo(given: Resources) -> ElmoSource:
    return ElmoSource.load(Path(given.elmo))


def _tuned_cosine(given: Resources) -> TunedCosine:
    return TunedCosine(tuned=FineTuned("", given.models[0], given.threads, given.precision, given.device))


def _titled(name: str) -> Callable[[Resources], str]:
    """A name, with the encoder's in place of {}."""
    return lambda given: name.format(_short(given.models[0], given)) if "{}" in name else name


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

# fmt: off
CONTENDERS: tuple[Entry, ...] = (
    Contender("majority", TEXT, Texts, Majority),
    Contender("bayes", TEXT, Texts, NaiveBayes),
    Contender("tfidf", TEXT, Texts, TfIdf),
    Contender("frequent-tag", ("tag",), Tags, FrequentTag),
    Contender("hmm", ("tag",), Tags, Hmm),
    Contender("ngram", TEXT, Texts, NgramClassifier),
    Contender("averaged", TEXT, Texts, FastText),
    Contender("word2vec", TEXT, Texts, MeanOfVectors, lambda given: _vectors_of(given, "word2vec", MeanOfVectors)),
    Contender("glove", TEXT, Texts, MeanOfVectors, lambda given: _vectors_of(given, "glove", MeanOfVectors)),
    Contender("mean", ("regress",), Numbers, MeanNumber),
    Contender("overlap", ("regress",), Numbers, SharedWords),
    Contender("tfidf-numbers", ("regress",), Numbers, TfIdfNumber),
    Contender(
        "word2vec-numbers", ("regress",), Numbers, VectorsNumber,
        lambda given: _vectors_of(given, "word2vec", VectorsNumber),
    ),
    Contender(
        "glove-numbers", ("regress",), Numbers, VectorsNumber,
        lambda given: _vectors_of(given, "glove", VectorsNumber),
    ),
    Contender(
        "features", TEXT, Texts, FrozenVectors, lambda given: FrozenVectors(_encoder(given)),
        _titled("BERT vectors, frozen ({})"), _NEEDS_MODEL, FrozenVectors.load,
    ),
    Contender(
        "cosine", ("regress",), Numbers, FrozenCosine, lambda given: FrozenCosine(_encoder(given)),
        _titled("cosine of BERT vectors, frozen ({})"), _NEEDS_MODEL, FrozenCosine.load,
    ),
    Contender(
        "features-numbers", ("regress",), Numbers, FrozenNumber, lambda given: FrozenNumber(_encoder(given)),
        _titled("BERT vectors, frozen ({})"), _NEEDS_MODEL, FrozenNumber.load,
    ),
    Contender(
        "vectors", ("regress",), Numbers, TunedCosine, _tuned_cosine,
        _titled("BERT fine-tuned as sentence vectors ({})"), _NEEDS_MODEL, TunedCosine.load,
    ),
    Contender("bilstm", TEXT, Texts, BiLstmClassifier),
    Contender("bilstm-tags", ("tag",), Tags, BiLstmTagger),
    Contender(
        "features-tags", ("tag",), Tags, BertFeaturesTagger,
        lambda given: BertFeaturesTagger(BertSource(_encoder(given))),
        _titled("BERT frozen + BiLSTM ({})"), _NEEDS_MODEL, BertFeaturesTagger.load,
    ),
    Contender(
        "elmo", TEXT, Texts, ElmoClassifier, lambda given: ElmoClassifier(_elmo(given)), _titled("ELMo + BiLSTM"),
        _NEEDS_ELMO,
    ),
    Contender(
        "elmo-tags", ("tag",), Tags, ElmoTagger, lambda given: ElmoTagger(_elmo(given)), _titled("ELMo + BiLSTM"),
        _NEEDS_ELMO,
    ),
    Contender(
        "lstm-lm", TEXT, Texts, DaiLe, lambda given: DaiLe(_lm(given), start="language-model"),
        _titled("LSTM started from a language model"), _NEEDS_LM,
    ),
    Contender(
        "lstm-autoencoder", TEXT, Texts, DaiLe, lambda given: DaiLe(_lm(given), start="autoencoder"),
        _titled("LSTM started from an autoencoder"), _NEEDS_LM,
    ),
    Contender("ulmfit", TEXT, Texts, Ulmfit, lambda given: Ulmfit(_lm(given)), _titled("ULMFiT"), _NEEDS_LM),
    WholeEncoder("gpt", (*TEXT, "regress"), "GPT fine-tuned", lambda given: given.gpt, _NEEDS_GPT),
)
# fmt: on


def saved(key: str) -> Contender | None:
    """The row of a contender whose folder names it; None: this version does not know it."""
    return next((row for row in CONTENDERS if isinstance(row, Contender) and row.key == key), None)


def contenders_for(task: str, wanted: tuple[str, ...], given: Resources) -> list[Entry]:
    """Those of a task, cheapest first, a fine-tuned BERT for every model given last; only the `wanted`, if any."""
    berts = [_bert(model) for model in given.models]
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


def _bert(model: str) -> WholeEncoder:
    return WholeEncoder(f"bert:{model}", TASK_NAMES, "BERT fine-tuned", lambda given: model)


def _names(entry: Entry) -> tuple[str, ...]:
    """What a user may call it: in full, without its task, or all BERTs at once."""
    others = ("majority",) if entry.key in ("frequent-tag", "mean") else ()
    return entry.key, entry.key.removesuffix("-tags").removesuffix("-numbers"), entry.key.split(":")[0], *others


def _plain(name: str) -> str:
    """n-gram, TF-IDF and GloVe as the table spells them."""
    return name if ":" in name else name.lower().replace("-", "")
