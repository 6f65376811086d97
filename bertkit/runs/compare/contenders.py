"""What can be compared: the interfaces of contenders, and the table of all of them, cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, cast

from bertkit.ancestors.baselines.adapters import INSIDE, Adapter, Inner, Numbers, Tags, Texts
from bertkit.ancestors.baselines.fasttext import FastText
from bertkit.ancestors.baselines.models import (
    Majority,
    MeanNumber,
    MeanOfVectors,
    NaiveBayes,
    NgramClassifier,
    SharedWords,
    TfIdf,
    TfIdfNumber,
    VectorsNumber,
)
from bertkit.ancestors.hmm import FrequentTag, Hmm
from bertkit.ancestors.language_model.model import LanguageModel
from bertkit.ancestors.lstm.bilstm import BiLstmClassifier, BiLstmTagger
from bertkit.ancestors.lstm.classifiers import DaiLe, Ulmfit
from bertkit.ancestors.vectors.vectors import open_vectors
from bertkit.errors import UserError, suggest
from bertkit.inference.predictor import Predictor
from bertkit.runs.compare.encoder_contenders import (
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
from bertkit.settings.finetune import COMPARED_TASKS
from bertkit.tasks.base import Prediction, Task

# ---- What can be compared: anything that learns from rows and returns the task's own predictions.


class ContenderModel(Protocol):
    """Anything `compare` can run, BERT or n-gram."""

    name: str

    def fit(self, task: Task, train: Sequence[Any], dev: Sequence[Any], *, seed: int, minutes: float) -> Self:
        """A contender learns from the training examples; the dev examples choose the best pass. minutes 0: no limit."""

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """A contender's predictions, as the task has them."""

    def save(self, folder: Path) -> None:
        """Write a contender's folder, which `bertkit.load` opens."""

    @property
    def parameters(self) -> int:
        """A contender's number of parameters."""

    @property
    def progress(self) -> Progress | None:
        """Progress of a contender's training in steps; None for others."""


# ---- The table, cheapest first: each contender's name, its tasks, and how it is made and loaded.

TEXT = ("classify", "pair")


@dataclass(frozen=True)
class Resources:
    """Models that the user trained beforehand and contenders need.

    A missing one is made from the rows, or they are skipped.
    """

    models: tuple[str, ...] = ()
    vectors: str = ""
    lm: str = ""
    elmo: str = ""
    gpt: str = ""
    threads: int = 0
    precision: str = "auto"
    device: str = "auto"


@dataclass(frozen=True)
class Contender(Generic[Inner]):
    """A row of the table of contenders: `compare` makes models from it, and `bertkit.load` opens them again.

    adapter: how rows are passed to the model (see its Protocol). model: its class. build: makes one from the resources;
    by default the class is called without arguments. title: its name in tables; by default the model's own. lacks: why
    the resources are not enough, or "". load: opens a model with an encoder inside, at a precision.
    """

    key: str
    tasks: tuple[str, ...]
    adapter: type[Adapter[Inner]]
    model: type[Inner]
    build: Callable[[Resources], Inner] | None = None
    title: Callable[[Resources], str] | None = None
    lacks: Callable[[Resources], str] = lambda resources: ""
    load: Callable[[Path, str], Inner] | None = None

    def make(self, resources: Resources) -> ContenderModel:
        """A fresh model of this row of the contender table."""
        model: Any = self.build(resources) if self.build else self.model()
        return cast(ContenderModel, self.adapter(self.key, self.title(resources) if self.title else model.name, model))

    def open(self, folder: Path, about: dict[str, Any], precision: str = "auto") -> Texts | Numbers | Tags:
        """Load a saved contender. about: its bertkit.json."""
        inside = folder / INSIDE
        model = self.load(inside, precision) if self.load else self.model.load(inside)
        return cast(Texts | Numbers | Tags, self.adapter(self.key, about["name"], model).restore(about))


@dataclass(frozen=True)
class WholeEncoder:
    """A contender: an encoder fine-tuned whole, saved as a model folder. start: the model to begin with."""

    key: str
    tasks: tuple[str, ...]
    name: str
    start: Callable[[Resources], str]
    lacks: Callable[[Resources], str] = lambda resources: ""

    def make(self, resources: Resources) -> ContenderModel:
        """A fresh fine-tuned BERT as a contender."""
        start = self.start(resources)
        name = f"{self.name} ({_short(start, resources)})"
        return FineTuned(name, start, resources.threads, resources.precision, resources.device)


Entry = Contender[Any] | WholeEncoder


def _vectors_of(resources: Resources, how: str, kind: type[MeanOfVectors]) -> MeanOfVectors:
    """Mean word vectors under a linear model: the user's vectors, or ones learned from the rows."""
    if resources.vectors and how == "word2vec":  # the user's vectors replace it
        return kind("given", open_vectors(resources.vectors).writable())
    return kind(how)


def _encoder(resources: Resources) -> Predictor:
    return Predictor.load(resources.models[0], resources.precision, resources.device)


def _lm(resources: Resources) -> LanguageModel:
    return LanguageModel.load(Path(resources.lm))


def _elmo(resources: Resources) -> ElmoSource:
    return ElmoSource.load(Path(resources.elmo))


def _tuned_cosine(resources: Resources) -> TunedCosine:
    start = resources.models[0]
    return TunedCosine(tuned=FineTuned("", start, resources.threads, resources.precision, resources.device))


def _titled(name: str) -> Callable[[Resources], str]:
    """A contender's name, with the encoder's in place of {}."""
    return lambda resources: name.format(_short(resources.models[0], resources)) if "{}" in name else name


def _short(model: str, resources: Resources) -> str:
    """An encoder's name among the contenders: the last part of its path, unless two share it."""
    ends = [Path(other).name for other in resources.models]
    return model if ends.count(Path(model).name) > 1 else Path(model).name


def _needs(what: str, option: str, how: str) -> Callable[[Resources], str]:
    return lambda resources: "" if getattr(resources, what) else f"it needs {option}: {how}"


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
    Contender("word2vec", TEXT, Texts, MeanOfVectors, lambda r: _vectors_of(r, "word2vec", MeanOfVectors)),
    Contender("glove", TEXT, Texts, MeanOfVectors, lambda r: _vectors_of(r, "glove", MeanOfVectors)),
    Contender("mean", ("regress",), Numbers, MeanNumber),
    Contender("overlap", ("regress",), Numbers, SharedWords),
    Contender("tfidf-numbers", ("regress",), Numbers, TfIdfNumber),
    Contender(
        "word2vec-numbers", ("regress",), Numbers, VectorsNumber,
        lambda r: _vectors_of(r, "word2vec", VectorsNumber),
    ),
    Contender(
        "glove-numbers", ("regress",), Numbers, VectorsNumber,
        lambda r: _vectors_of(r, "glove", VectorsNumber),
    ),
    Contender(
        "features", TEXT, Texts, FrozenVectors, lambda r: FrozenVectors(_encoder(r)),
        _titled("BERT vectors, frozen ({})"), _NEEDS_MODEL, FrozenVectors.load,
    ),
    Contender(
        "cosine", ("regress",), Numbers, FrozenCosine, lambda r: FrozenCosine(_encoder(r)),
        _titled("cosine of BERT vectors, frozen ({})"), _NEEDS_MODEL, FrozenCosine.load,
    ),
    Contender(
        "features-numbers", ("regress",), Numbers, FrozenNumber, lambda r: FrozenNumber(_encoder(r)),
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
        lambda r: BertFeaturesTagger(BertSource(_encoder(r))),
        _titled("BERT frozen + BiLSTM ({})"), _NEEDS_MODEL, BertFeaturesTagger.load,
    ),
    Contender(
        "elmo", TEXT, Texts, ElmoClassifier, lambda r: ElmoClassifier(_elmo(r)), _titled("ELMo + BiLSTM"),
        _NEEDS_ELMO,
    ),
    Contender(
        "elmo-tags", ("tag",), Tags, ElmoTagger, lambda r: ElmoTagger(_elmo(r)), _titled("ELMo + BiLSTM"),
        _NEEDS_ELMO,
    ),
    Contender(
        "lstm-lm", TEXT, Texts, DaiLe, lambda r: DaiLe(_lm(r), start="language-model"),
        _titled("LSTM started from a language model"), _NEEDS_LM,
    ),
    Contender(
        "lstm-autoencoder", TEXT, Texts, DaiLe, lambda r: DaiLe(_lm(r), start="autoencoder"),
        _titled("LSTM started from an autoencoder"), _NEEDS_LM,
    ),
    Contender("ulmfit", TEXT, Texts, Ulmfit, lambda r: Ulmfit(_lm(r)), _titled("ULMFiT"), _NEEDS_LM),
    WholeEncoder("gpt", (*TEXT, "regress"), "GPT fine-tuned", lambda r: r.gpt, _NEEDS_GPT),
)
# fmt: on


def saved(key: str) -> Contender[Any] | None:
    """The row of a contender by the key in its folder; None if this version does not have it."""
    return next((row for row in CONTENDERS if isinstance(row, Contender) and row.key == key), None)


def contenders_for(task: str, wanted: tuple[str, ...], resources: Resources) -> list[Entry]:
    """The contenders of a task, cheapest first, then a fine-tuned BERT per model; only the `wanted` ones, if any."""
    berts = [_bert(model) for model in resources.models]
    entries = [entry for entry in (*CONTENDERS, *berts) if task in entry.tasks]
    if not entries:
        raise UserError(f"compare knows the tasks {', '.join(COMPARED_TASKS)}, not '{task}'.")
    by_plain_name = {_plain(name): name for entry in entries for name in _names(entry)}
    for name in wanted:
        if _plain(name) not in by_plain_name:
            hint = "Pass --models." if name == "bert" else suggest(name, sorted(by_plain_name.values()))
            raise UserError(f"There is no contender '{name}' for {task}. {hint}")
    wanted_plain = {_plain(name) for name in wanted}
    return [entry for entry in entries if not wanted or {_plain(name) for name in _names(entry)} & wanted_plain]


def _bert(model: str) -> WholeEncoder:
    return WholeEncoder(f"bert:{model}", COMPARED_TASKS, "BERT fine-tuned", lambda resources: model)


def _names(entry: Entry) -> tuple[str, ...]:
    """The names a user may write for a contender: in full, without its task, or one for all BERTs."""
    others = ("majority",) if entry.key in ("frequent-tag", "mean") else ()
    return entry.key, entry.key.removesuffix("-tags").removesuffix("-numbers"), entry.key.split(":")[0], *others


def _plain(name: str) -> str:
    """A contender's name without capitals and hyphens: n-gram, TF-IDF and GloVe as users may spell them."""
    return name if ":" in name else name.lower().replace("-", "")
