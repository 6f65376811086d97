"""scikit-learn estimators over texts: `BertClassifier`, `BertRegressor`, `BertEmbedder`.

X is a list, array, series or single column of texts. Training uses a temporary folder. A fitted estimator keeps
its model's files as bytes, so that a joblib or pickle file is self-contained on any machine.
"""

from __future__ import annotations

import re
import tempfile
import weakref
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from bertkit.checkpoint.locate import embedded, locate
from bertkit.checkpoint.weights import has_weights
from bertkit.config import build
from bertkit.data.examples import TextRow
from bertkit.errors import Stopped
from bertkit.inference.predictor import Predictor

KEPT = (".json", ".txt", ".safetensors", ".model", ".md")  # the files of a model, not those of its run
OURS = {"metrics.jsonl", "timing.jsonl", "result.json"}
MODULE = re.compile(r"\d+_\w+")  # a folder of sentence-transformers, such as 1_Pooling
CHOOSING = 8  # rows looked at once at the end where none are held out: too few to calibrate on


def texts_of(X: Any) -> list[str]:
    """The X of a scikit-learn estimator as a list of texts.

    Anything else is a ValueError (a TypeError for one text or a sparse matrix).
    """
    if isinstance(X, (str, bytes, dict)) or hasattr(X, "toarray") or not hasattr(X, "__len__"):
        raise TypeError(
            f"X is of type {type(X).__name__}; pass a list or a dense array-like of texts, not sparse data."
        )
    table = np.asarray(X, dtype=object)
    if table.ndim == 2 and table.shape[1] == 1:
        table = table[:, 0]
    if table.ndim != 1:
        raise ValueError(f"X has shape {table.shape}; pass a list of texts, or one column of them.")
    if not len(table):
        raise ValueError("X holds 0 sample(s), while a minimum of 1 is required: pass at least one text.")
    for place, text in enumerate(table):
        if not isinstance(text, str):
            raise ValueError(f"X, row {place}: {text!r} is of type {type(text).__name__}, not text.")
    return [str(text) for text in table]


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a model folder by their paths inside it, to pickle a scikit-learn estimator with.

    Those of sentence-transformers' modules are among them; weights in another format, where there are no others.
    """
    places = [folder, *(path for path in sorted(folder.iterdir()) if MODULE.fullmatch(path.name) and path.is_dir())]
    chosen = [path for place in places for path in sorted(place.iterdir()) if path.suffix in KEPT]
    for place in places:
        chosen += [] if any(place.glob("model*.safetensors")) else sorted(place.glob("pytorch_model*.bin"))
    chosen += [] if has_weights(folder) else sorted(folder.glob("onnx/*.onnx"))
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in chosen
        if path.is_file() and path.name not in OURS
    }


class _OverTexts(BaseEstimator):
    """The common base: texts in, a model opened on first use, and pickling without it."""

    model_files_: dict[str, bytes]
    _open: Predictor | None = None

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn that X is text, not a table of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle: everything but the opened model."""
        return {name: value for name, value in super().__getstate__().items() if name != "_open"}

    def _texts(self, X: Any) -> list[str]:
        return texts_of(X)

    def _opened(self) -> Predictor:
        if self._open is None:
            precision, device = self.get_params()["precision"], self.get_params()["device"]
            place = tempfile.TemporaryDirectory(prefix="bertkit-")
            self.save(place.name)
            self._open = Predictor.load(place.name, precision, device)
            weakref.finalize(self._open, place.cleanup)  # not before: an ONNX file may be opened a second time
        return self._open

    def save(self, folder: str | Path) -> None:
        """Save a scikit-learn estimator's model as a folder that `bertkit.load` and transformers open."""
        check_is_fitted(self)
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in self.model_files_.items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)


class _FineTuned(_OverTexts):
    """An estimator whose fit is a fine-tuning run. Parameters are those of `bertkit finetune`.

    held_out: the fraction of rows used to select the best checkpoint and calibrate; 0 trains on all rows to the end.
    Notes (rows held out, tokens truncated) go to the logger `bertkit`.
    """

    def __init__(
        self, model: str = "auto", *, epochs: float = 0.0, steps: int = 0, minutes: float = 0.0, lr: float = 0.0,
        batch: int = 32, warmup: float = 0.1, decay: float = 0.01, dropout: float = -1.0, layer_decay: float = 1.0,
        freeze: bool = False, class_weights: bool = False, max_tokens: int = 0, on_long: str = "window",
        held_out: float = 0.1, patience: int = 0, seed: int = 0, threads: int = 0, precision: str = "auto",
        device: str = "auto",
    ) -> None:  # fmt: skip
        self.model, self.epochs, self.steps, self.minutes, self.lr = model, epochs, steps, minutes, lr
        self.batch, self.warmup, self.decay, self.dropout, self.layer_decay = batch, warmup, decay, dropout, layer_decay
        self.freeze, self.class_weights, self.max_tokens, self.on_long = freeze, class_weights, max_tokens, on_long
        self.held_out, self.patience, self.seed, self.threads = held_out, patience, seed, threads
        self.precision, self.device = precision, device

    def _checked(self, X: Any, y: Any) -> tuple[list[str], np.ndarray]:
        """Texts and targets of an estimator, checked as scikit-learn does."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        texts, answers = self._texts(X), column_or_1d(y, warn=True)
        check_consistent_length(texts, answers)
        for place, answer in enumerate(answers):
            if answer is None or answer != answer:
                raise ValueError(f"y contains NaN or None (row {place}: {answer!r}). Drop such rows, or label them.")
        return texts, answers

    def _fit(self, task: str, rows: list[TextRow], labels: tuple[str, ...] = ()) -> Self:
        """Fine-tune the estimator's model on rows in memory."""
        from bertkit.runs.finetune.run import Finetuning
        from bertkit.runs.finetune.split import Split, held_out
        from bertkit.settings.finetune import FinetuneSettings

        values = {k: v.item() if isinstance(v, np.generic) else v for k, v in self.get_params(deep=False).items()}
        values["model"] = str(values["model"])
        share = float(values.pop("held_out"))
        enough = len(rows) >= 4 and len(rows) * share >= 1
        train, dev = held_out(rows, share, int(self.seed)) if enough else (rows, [])
        if not dev:
            dev = rows[:CHOOSING]
            values |= {"evals": 1, "patience": 0}
        with tempfile.TemporaryDirectory(prefix="bertkit-") as folder:
            more = {"task": task, "train": Path(), "out": Path(folder), "baseline": False}
            settings = build(FinetuneSettings, values | more, type(self).__name__)
            try:
                self.result_ = Finetuning(settings, Split({"train": train, "dev": dev}), labels).go().to_dict()
            except Stopped as stopped:
                raise KeyboardInterrupt from stopped
            self.model_files_ = files_of(Path(folder))
            self._open = Predictor.load(folder, self.precision, self.device)
        return self

    def _predictions(self, X: Any) -> list[dict[str, Any]]:
        check_is_fitted(self)
        return self._opened().predict(self._texts(X))


class BertClassifier(ClassifierMixin, _FineTuned):
    """A scikit-learn classifier: one label per text. After fit: `classes_` (as in y), `result_` (scores and more)."""

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune (scikit-learn's way) on texts X and labels y of any type it accepts."""
        texts, answers = self._checked(X, y)
        check_classification_targets(answers)
        self.classes_, numbers = np.unique(answers, return_inverse=True)
        names = tuple(str(name) for name in self.classes_)
        if len(names) < 2:
            raise ValueError(f"{type(self).__name__} needs at least two classes; y holds one class: {names}.")
        if len(set(names)) < len(names):
            raise ValueError(f"The classes {names} have the same name when written as text. Give them different names.")
        rows = [TextRow(text, label=names[n], line=place) for place, (text, n) in enumerate(zip(texts, numbers))]
        return self._fit("classify", rows, names)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The scikit-learn classifier's calibrated probabilities: (texts, classes), columns as in `classes_`."""
        return np.array([list(prediction["scores"].values()) for prediction in self._predictions(X)], dtype=np.float64)

    def predict(self, X: Any) -> np.ndarray:
        """The scikit-learn classifier's most likely class of each text."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]


class BertRegressor(RegressorMixin, _FineTuned):
    """A scikit-learn regressor: one number per text. After fit: `result_` (scores and more)."""

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune (scikit-learn's way) on texts X and numbers y."""
        texts, answers = self._checked(X, y)
        numbers = check_array(answers, ensure_2d=False, dtype=np.float64, input_name="y")
        rows = [TextRow(text, label=float(n), line=place) for place, (text, n) in enumerate(zip(texts, numbers))]
        return self._fit("regress", rows)

    def predict(self, X: Any) -> np.ndarray:
        """The scikit-learn regressor's number of each text: (texts,)."""
        return np.array([prediction["value"] for prediction in self._predictions(X)], dtype=np.float64)


class BertEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _OverTexts):
    """A scikit-learn transformer: texts to vectors, the first step of a pipeline. Nothing is trained.

    model: auto is the embedded model of the texts' language, chosen by fit (`model_`). pool, normalize: by default as
    the model's sentence-transformers files say, else the unscaled mean. prompt: the name of one of its prompts.
    """

    def __init__(
        self, model: str = "auto", *, layers: str | list[int] = "last", pool: str = "", normalize: bool | None = None,
        prompt: str | None = None, on_long: str = "window", precision: str = "auto", device: str = "auto",
    ) -> None:  # fmt: skip
        self.model, self.layers, self.pool, self.normalize, self.prompt = model, layers, pool, normalize, prompt
        self.on_long, self.precision, self.device = on_long, precision, device

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn that the output is float32 for any input."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Open the model, and keep its files (except for an embedded model, which every installation has)."""
        from bertkit.checkpoint.vocabulary_fit import starting_model
        from bertkit.tasks import make

        texts = self._texts(X)
        task = make("classify")
        self.model_ = starting_model(str(self.model), task, task.from_inputs(texts))
        place = locate(self.model_)
        self.model_files_ = {} if self.model_ in embedded() or not place.is_dir() else files_of(place)
        self._open = None
        self._n_features_out = self._vectors(texts[:1]).shape[1]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The scikit-learn embedder's vectors: float32 (texts, width)."""
        check_is_fitted(self)
        return self._vectors(self._texts(X))

    def _vectors(self, texts: list[str]) -> np.ndarray:
        """The vectors that scikit-learn's embedder gives texts."""
        if self.pool == "none":
            raise ValueError(
                "pool is 'none', which gives one vector per token. An estimator needs one per text: mean, cls or max."
            )
        chosen = (self.layers, self.pool, self.on_long, self.normalize, self.prompt)
        return np.asarray(self._opened().embed(texts, *chosen))

    def _opened(self) -> Predictor:
        if self._open is None and not self.model_files_:
            self._open = Predictor.load(self.model_, self.precision, self.device)
        return super()._opened()
