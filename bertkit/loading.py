"""Any folder of ours as something that answers: an encoder, or a contender that a comparison saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bertkit.errors import DamagedFile, UserError
from bertkit.inference.predictor import Predictor
from bertkit.runs.compare.contenders import INSIDE, Numbers, Tags, Texts
from bertkit.tasks.base import Reading, Task

# contender's key → (form, module, class); how a saved one is opened again
SAVED: dict[str, tuple[type[Texts] | type[Tags], str, str]] = {
    "majority": (Texts, "ancestors.baselines.linear", "Majority"),
    "bayes": (Texts, "ancestors.baselines.linear", "NaiveBayes"),
    "tfidf": (Texts, "ancestors.baselines.linear", "TfIdf"),
    "ngram": (Texts, "ancestors.baselines.rows", "NgramClassifier"),
    "averaged": (Texts, "ancestors.baselines.fasttext", "FastText"),
    "word2vec": (Texts, "ancestors.baselines.rows", "MeanOfVectors"),
    "glove": (Texts, "ancestors.baselines.rows", "MeanOfVectors"),
    "features": (Texts, "runs.compare.bert", "FrozenVectors"),
    "mean": (Numbers, "ancestors.baselines.rows", "MeanNumber"),
    "overlap": (Numbers, "ancestors.baselines.rows", "SharedWords"),
    "tfidf-numbers": (Numbers, "ancestors.baselines.rows", "TfIdfNumber"),
    "word2vec-numbers": (Numbers, "ancestors.baselines.rows", "VectorsNumber"),
    "glove-numbers": (Numbers, "ancestors.baselines.rows", "VectorsNumber"),
    "cosine": (Numbers, "runs.compare.bert", "FrozenCosine"),
    "vectors": (Numbers, "runs.compare.bert", "TunedCosine"),
    "features-numbers": (Numbers, "runs.compare.bert", "FrozenNumber"),
    "bilstm": (Texts, "ancestors.lstm.bilstm", "BiLstmClassifier"),
    "bilstm-tags": (Tags, "ancestors.lstm.bilstm", "BiLstmTagger"),
    "features-tags": (Tags, "runs.compare.bert", "BertFeaturesTagger"),
    "elmo": (Texts, "runs.compare.bert", "ElmoClassifier"),
    "elmo-tags": (Tags, "runs.compare.bert", "ElmoTagger"),
    "lstm-lm": (Texts, "ancestors.lstm.dai_le", "DaiLe"),
    "lstm-autoencoder": (Texts, "ancestors.lstm.dai_le", "DaiLe"),
    "ulmfit": (Texts, "ancestors.lstm.ulmfit", "Ulmfit"),
    "frequent-tag": (Tags, "ancestors.hmm", "FrequentTag"),
    "hmm": (Tags, "ancestors.hmm", "Hmm"),
}
# those with an encoder inside, which has a precision
ENCODED = {"features", "features-tags", "cosine", "vectors", "features-numbers"}
# a language model's or vectors' folder → the class whose `load` opens it
ANCESTORS: dict[str, tuple[str, str]] = {
    "ngram": ("ancestors.ngram.model", "NgramModel"),
    "piece-ngram": ("ancestors.ngram.pieces", "PieceNgram"),
    "nnlm": ("ancestors.language_model.model", "LanguageModel"),
    "rnnlm": ("ancestors.language_model.model", "LanguageModel"),
    "elmo": ("ancestors.elmo.model", "Elmo"),
    "seq2seq": ("ancestors.transformer.train", "Seq2Seq"),
    "word2vec": ("ancestors.vectors.vectors", "VectorsFolder"),
    "glove": ("ancestors.vectors.vectors", "VectorsFolder"),
}


class ContenderPredictor:
    """A saved contender with the face of a Predictor, as far as it goes: it predicts and is evaluated."""

    precision, device = "fp32", "cpu"

    def __init__(self, contender: Texts | Tags) -> None:
        self.contender = contender

    @property
    def task(self) -> Task:
        """The task it learnt."""
        return self.contender.task

    def predict(self, inputs: Any, on_long: str = "") -> list[dict[str, Any]]:
        """Predictions for texts, pairs or word lists, in order. Texts are read whole whatever their length."""
        single = isinstance(inputs, (str, dict))
        return self.predict_examples(self.task.from_inputs([inputs] if single else list(inputs)), on_long)

    def predict_examples(self, examples: Sequence[Any], on_long: str = "", file: str = "") -> list[dict[str, Any]]:
        """Predictions for examples that a reader gave. Any text has one, so none is ever named."""
        return self.contender.predict(examples)

    def evaluate(self, path: str | Path, **columns: str) -> dict[str, float]:
        """Every metric on a labelled file."""
        examples = self.task.read(path, Reading(**columns))
        self.task.check(examples, str(path))
        return dict(self.task.score(examples, self.predict_examples(examples)))

    def __getattr__(self, name: str) -> Any:
        """What an encoder can and this cannot."""
        if name in ("embed", "fill", "score"):
            raise UserError(f"{self.contender.name} cannot {name}: it is no encoder. Use a model such as 'en'.")
        raise AttributeError(name)


def open_model(name: str | Path, precision: str = "auto", device: str = "auto") -> Any:
    """A Predictor, or where the folder says so a contender or an ancestor with the same methods."""
    about = _about(Path(name))
    if key := about.get("contender"):
        return ContenderPredictor(_contender(Path(name), str(key), about, precision))
    if kind := about.get("ancestor"):
        return _class(*_known(ANCESTORS, str(kind), Path(name))).load(Path(name))
    return Predictor.load(name, precision, device)


def _about(folder: Path) -> dict[str, Any]:
    path = folder / "bertkit.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as problem:
        raise DamagedFile(f"{path}: not JSON ({problem}). Write the folder again.") from None
    return found if isinstance(found, dict) else {}


def _contender(folder: Path, key: str, about: dict[str, Any], precision: str) -> Texts | Tags:
    form, module, kind = _known(SAVED, key, folder)
    how = {"precision": precision} if key in ENCODED else {}
    model = _class(module, kind).load(folder / INSIDE, **how)
    return form(key, about["name"], model).restore(about)


def _known(table: dict[str, Any], key: str, folder: Path) -> Any:
    if key not in table:
        raise UserError(f"{folder / 'bertkit.json'}: '{key}' is a model of a kind this version does not know.")
    return table[key]


def _class(module: str, kind: str) -> Any:
    return getattr(import_module(f"bertkit.{module}"), kind)
