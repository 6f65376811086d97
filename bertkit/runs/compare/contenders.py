"""The rungs of the ladder, cheapest first: what each contender is called, what it can do, and how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.runs.compare.contender import Contender, Numbers, Tags, Texts
from bertkit.settings.compare import TASK_NAMES
from bertkit.errors import UserError, suggest

TEXT = ("classify", "pair")


@dataclass(frozen=True)
class Given:
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
class Rung:
    """make: a fresh contender from what is given. lacks: why it cannot be made from that, or nothing."""

    key: str
    tasks: tuple[str, ...]
    make: Callable[[Given], Contender]
    lacks: Callable[[Given], str] = field(default=lambda given: "")


def _texts(key: str, where: str, kind: str) -> Rung:
    """A classifier that needs nothing but the rows."""

    def make(given: Given) -> Contender:
        model = _class(where, kind)()
        return Texts(key, model.name, model)

    return Rung(key, TEXT, make)


def _class(where: str, kind: str) -> Any:
    from importlib import import_module

    return getattr(import_module(f"bertkit.{where}"), kind)


def _tagger(key: str, where: str, kind: str) -> Rung:
    def make(given: Given) -> Contender:
        model = _class(where, kind)()
        return Tags(key, model.name, model)

    return Rung(key, ("tag",), make)


def _number(key: str, kind: str) -> Rung:
    def make(given: Given) -> Contender:
        model = _class("ancestors.baselines.number_rivals", kind)()
        return Numbers(key, model.name, model)

    return Rung(key, ("regress",), make)


def _vectors(how: str, form: type[Texts] = Texts) -> Rung:
    """form: what they answer with, labels or numbers."""
    key, where, kind, tasks = {
        Texts: (how, "ancestors.baselines.rows", "MeanOfVectors", TEXT),
        Numbers: (f"{how}-numbers", "ancestors.baselines.number_rivals", "VectorsNumber", ("regress",)),
    }[form]

    def make(given: Given) -> Contender:
        from bertkit.ancestors.vectors.vectors import open_vectors

        own = given.vectors and how == "word2vec"  # they take its place
        made = _class(where, kind)
        model = made("given", open_vectors(given.vectors).writable()) if own else made(how)
        return form(key, model.name, model)

    return Rung(key, tasks, make)


def _bilstm_texts(given: Given) -> Contender:
    model = _class("ancestors.lstm.bilstm", "BiLstmClassifier")()
    return Texts("bilstm", "BiLSTM", model)


def _bilstm_tags(given: Given) -> Contender:
    model = _class("ancestors.lstm.bilstm", "BiLstmTagger")()
    return Tags("bilstm-tags", "BiLSTM", model)


def _elmo(kind: str) -> Callable[[Given], Contender]:
    def make(given: Given) -> Contender:
        source = _class("runs.compare.on_features", "ElmoSource").load(Path(given.elmo))
        model = _class("runs.compare.on_features", kind)(source)
        if kind == "ElmoTagger":
            return Tags("elmo-tags", "ELMo + BiLSTM", model)
        return Texts("elmo", "ELMo + BiLSTM", model)

    return make


def _sequence(key: str, start: str, name: str) -> Callable[[Given], Contender]:
    def make(given: Given) -> Contender:
        lm = _class("ancestors.language_model.model", "LeftToRight").load(Path(given.lm))
        return Texts(key, name, _class("ancestors.lstm.dai_le", "SequenceLearning")(lm, start=start))

    return make


def _ulmfit(given: Given) -> Contender:
    lm = _class("ancestors.language_model.model", "LeftToRight").load(Path(given.lm))
    return Texts("ulmfit", "ULMFiT", _class("ancestors.lstm.ulmfit", "Ulmfit")(lm))


def _frozen(key: str, kind: str, name: str, form: type[Texts] = Texts) -> Callable[[Given], Contender]:
    def make(given: Given) -> Contender:
        from bertkit.inference.predictor import Predictor

        encoder = Predictor.load(given.models[0], given.precision, given.device)
        model = _class("runs.compare.bert", kind)(encoder)
        return form(key, f"{name}, frozen ({_short(given.models[0], given)})", model)

    return make


def _frozen_tags(given: Given) -> Contender:
    source = _class("runs.compare.on_features", "BertSource").load(given.models[0], given.precision)
    model = _class("runs.compare.on_features", "BertFeaturesTagger")(source)
    return Tags("features-tags", f"BERT frozen + BiLSTM ({_short(given.models[0], given)})", model)


def _fine_tuned(name: str, start: Callable[[Given], str]) -> Callable[[Given], Contender]:
    def make(given: Given) -> Contender:
        from bertkit.runs.compare.bert import FineTuned

        model = start(given)
        return FineTuned(f"{name} ({_short(model, given)})", model, given.threads, given.precision, given.device)

    return make


def _tuned_cosine(given: Given) -> Contender:
    model = given.models[0]
    tuned = _class("runs.compare.bert", "FineTuned")("", model, given.threads, given.precision, given.device)
    inside = _class("runs.compare.bert", "TunedCosine")(tuned=tuned)
    return Numbers("vectors", f"BERT fine-tuned as sentence vectors ({_short(model, given)})", inside)


def _short(model: str, given: Given) -> str:
    """The last part of a path, unless two models end alike."""
    ends = [Path(other).name for other in given.models]
    return model if ends.count(Path(model).name) > 1 else Path(model).name


def _needs(what: str, option: str, how: str) -> Callable[[Given], str]:
    return lambda given: "" if getattr(given, what) else f"it needs {option}: {how}"


_NEEDS_LM = _needs("lm", "--lm FOLDER", "a language model of running text (bertkit learn lstm)")
_NEEDS_ELMO = _needs("elmo", "--elmo FOLDER", "a bidirectional language model of running text (bertkit learn elmo)")
_NEEDS_GPT = _needs("gpt", "--gpt MODEL", "a causal model (bertkit pretrain --preset gpt-mini)")
_NEEDS_MODEL = _needs("models", "--models MODEL", "an encoder's folder, embedded or hub name")

RUNGS = (
    _texts("majority", "ancestors.baselines.bag_of_words", "Majority"),
    _texts("bayes", "ancestors.baselines.bag_of_words", "NaiveBayes"),
    _texts("tfidf", "ancestors.baselines.bag_of_words", "TfIdf"),
    _tagger("frequent-tag", "ancestors.tag_rivals", "FrequentTag"),
    _tagger("hmm", "ancestors.tag_rivals", "Hmm"),
    _texts("ngram", "ancestors.baselines.rows", "NgramClassifier"),
    _texts("averaged", "ancestors.baselines.fasttext", "Averaged"),
    _vectors("word2vec"),
    _vectors("glove"),
    _number("mean", "MeanNumber"),
    _number("overlap", "SharedWords"),
    _number("tfidf-numbers", "TfIdfNumber"),
    _vectors("word2vec", Numbers),
    _vectors("glove", Numbers),
    Rung("features", TEXT, _frozen("features", "FrozenVectors", "BERT vectors"), _NEEDS_MODEL),
    Rung("cosine", ("regress",), _frozen("cosine", "FrozenCosine", "cosine of BERT vectors", Numbers), _NEEDS_MODEL),
    Rung(
        "features-numbers",
        ("regress",),
        _frozen("features-numbers", "FrozenNumber", "BERT vectors", Numbers),
        _NEEDS_MODEL,
    ),
    Rung("vectors", ("regress",), _tuned_cosine, _NEEDS_MODEL),
    Rung("bilstm", TEXT, _bilstm_texts),
    Rung("bilstm-tags", ("tag",), _bilstm_tags),
    Rung("features-tags", ("tag",), _frozen_tags, _NEEDS_MODEL),
    Rung("elmo", TEXT, _elmo("ElmoClassifier"), _NEEDS_ELMO),
    Rung("elmo-tags", ("tag",), _elmo("ElmoTagger"), _NEEDS_ELMO),
    Rung("lstm-lm", TEXT, _sequence("lstm-lm", "language-model", "LSTM started from a language model"), _NEEDS_LM),
    Rung(
        "lstm-autoencoder",
        TEXT,
        _sequence("lstm-autoencoder", "autoencoder", "LSTM started from an autoencoder"),
        _NEEDS_LM,
    ),
    Rung("ulmfit", TEXT, _ulmfit, _NEEDS_LM),
    Rung("gpt", (*TEXT, "regress"), _fine_tuned("GPT fine-tuned", lambda given: given.gpt), _NEEDS_GPT),
)


def ladder(task: str, wanted: tuple[str, ...], given: Given) -> list[Rung]:
    """The rungs of a task, cheapest first, a fine-tuned BERT for every model given last; only the `wanted`, if any."""
    berts = [
        Rung(f"bert:{model}", TASK_NAMES, _fine_tuned("BERT fine-tuned", lambda given, m=model: m))  # type: ignore[misc]
        for model in given.models
    ]
    rungs = [rung for rung in (*RUNGS, *berts) if task in rung.tasks]
    if not rungs:
        raise UserError(f"compare knows the tasks {', '.join(TASK_NAMES)}, not '{task}'.")
    known = {_plain(name): name for rung in rungs for name in _names(rung)}
    for name in wanted:
        if _plain(name) not in known:
            hint = "Give --models." if name == "bert" else suggest(name, sorted(known.values()))
            raise UserError(f"There is no contender '{name}' for {task}. {hint}")
    asked = {_plain(name) for name in wanted}
    return [rung for rung in rungs if not wanted or {_plain(name) for name in _names(rung)} & asked]


def _names(rung: Rung) -> tuple[str, ...]:
    """What a user may call it: in full, without its task, or all BERTs at once."""
    others = ("majority",) if rung.key in ("frequent-tag", "mean") else ()
    return rung.key, rung.key.removesuffix("-tags").removesuffix("-numbers"), rung.key.split(":")[0], *others


def _plain(name: str) -> str:
    """n-gram, TF-IDF and GloVe as the table spells them."""
    return name if ":" in name else name.lower().replace("-", "")
