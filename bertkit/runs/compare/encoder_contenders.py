"""BERT and ELMo as contenders: frozen features under a small model, and all of the encoder fine-tuned."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors import folder as storage
from bertkit.ancestors.baselines.models import LinearModel, PredictsNumbers, both_sides, pair_features
from bertkit.ancestors.bert_features import WordFeatures
from bertkit.ancestors.elmo.model import Elmo
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.lstm.bilstm import BiLstmClassifier, BiLstmTagger
from bertkit.checkpoint.folder import write_folder as write_model
from bertkit.data.examples import TextRow
from bertkit.files.atomic import write_folder
from bertkit.files.guarded import read_json
from bertkit.inference.predictor import Predictor
from bertkit.runs.finetune.run import LEAST_STEPS, MOST_PASSES, Finetuning
from bertkit.runs.finetune.split import Split
from bertkit.settings.ancestors import BiLstmSettings
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks import make
from bertkit.tasks.base import Prediction, Task

# ---- BERT as a contender: its frozen vectors under logistic regression, and all of it fine-tuned.

Text = str | tuple[str, str]


class FrozenVectors:
    """The contender of a frozen BERT: the mean vector of a text under logistic regression.

    Of a pair: both vectors, their product, and the size of their difference.
    """

    kind: type[LinearModel] = LinearModel
    reads_pairs = True
    LAYOUT = Layout("scale of frozen vectors", "scale.json")

    def __init__(self, encoder: Predictor) -> None:
        self.encoder = encoder

    def fit(
        self, texts: Sequence[Text], labels: Sequence[float], count: int, *_: Any, seed: int = 0, **__: Any
    ) -> Self:
        """Learn the weights of a contender on a frozen BERT's standardized vectors."""
        vectors = self._vectors(texts)
        self.shift, self.spread = vectors.mean(0), vectors.std(0) + 1e-6
        self.linear = self.kind().fit(
            self._scaled(vectors), np.asarray(labels), count, strengths=(0.001, 0.01, 0.1, 1.0), seed=seed
        )
        return self

    def _scaled(self, vectors: NDArray[Any]) -> NDArray[np.float64]:
        return ((vectors - self.shift) / self.spread).astype(np.float64)

    def _vectors(self, texts: Sequence[Text]) -> NDArray[Any]:
        if not any(isinstance(text, tuple) for text in texts):
            return np.asarray(self.encoder.embed([str(text) for text in texts]))
        a, b = (np.asarray(self.encoder.embed([pair[side] for pair in texts])) for side in (0, 1))
        return pair_features(a, b)

    def features(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """A frozen BERT's standardized vectors: (texts, width)."""
        return self._scaled(self._vectors(texts))

    def probabilities(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Probabilities from a frozen BERT's vectors: (texts, labels)."""
        return self.linear.probabilities(self.features(texts))

    @property
    def parameters(self) -> int:
        """Parameters of the frozen BERT and the weights on its vectors."""
        return self.encoder.encoder_parameters + self.linear.parameters

    def save(self, folder: Path) -> None:
        """Write the weights and the frozen BERT, so that the folder is self-contained."""
        write_model(folder / "encoder", self.encoder.as_written())
        self.linear.save(folder)
        storage.save(folder, self.LAYOUT, {"shift": self.shift.tolist(), "spread": self.spread.tolist()})

    @classmethod
    def load(cls, folder: Path, precision: str = "auto") -> Self:
        """Open a saved contender on a frozen BERT's vectors."""
        model = cls(Predictor.load(folder / "encoder", precision))
        model.linear = cls.kind.load(folder)
        with storage.opened(folder, cls.LAYOUT):
            scale, _ = storage.load(folder, cls.LAYOUT)
            model.shift, model.spread = np.array(scale["shift"]), np.array(scale["spread"])
        return model


class FrozenNumber(PredictsNumbers, FrozenVectors):
    """The contender of a frozen BERT for numbers: the mean vector of a text under ridge regression."""


class FrozenCosine(FrozenNumber):
    """The contender of a frozen BERT for pairs: the cosine of two texts' vectors, and a straight line to the number."""

    def _vectors(self, texts: Sequence[Text]) -> NDArray[Any]:
        first, second = (np.asarray(self.encoder.embed(side)) for side in both_sides(texts))
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        return ((first * second).sum(1) / np.maximum(lengths, 1e-9))[:, None]


@dataclass(frozen=True)
class Progress:
    """A comparison's training of BERT: steps run and planned, and whether the time ran out before the last."""

    steps: int
    planned: int
    stopped: bool


class FineTuned:
    """The contender of BERT (a relative, or GPT) fine-tuned whole on the task; it is saved as a model folder."""

    def __init__(self, name: str, start: str, threads: int = 0, precision: str = "auto", device: str = "auto") -> None:
        """start: the model to begin with."""
        self.name, self.start, self.threads, self.precision, self.device = name, start, threads, precision, device
        self.progress: Progress | None = None

    def fit(self, task: Task, train: Sequence[Any], dev: Sequence[Any], *, seed: int, minutes: float) -> Self:
        """A comparison's BERT: train for as many passes as `finetune` would, or fewer if the time is short."""
        self._place = tempfile.TemporaryDirectory(prefix="bertkit-compare-")
        batch = 32
        passes = min(MOST_PASSES, max(3.0, LEAST_STEPS * batch / len(train)))
        settings = FinetuneSettings(
            task=task.name, train=Path("the rows compared"), model=self.start, out=Path(self._place.name) / "run",
            epochs=passes, minutes=minutes, batch=batch, seed=seed, threads=self.threads, precision=self.precision,
            device=self.device, baseline=False, **task.options.get("columns", {}),
        )  # fmt: skip
        split = Split({"train": list(train), "dev": list(dev)})
        run = Finetuning(settings, split, task.labels)
        run.go()
        self.progress = _progress(settings)
        self.predictor = Predictor.load(settings.out, self.precision, self.device)
        return self

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """The predictions of a comparison's BERT by the path that `predict` uses."""
        return self.predictor.predict_examples(examples)

    @property
    def parameters(self) -> int:
        """Parameters of a comparison's BERT and its head."""
        return self.predictor.parameters

    def save(self, folder: Path) -> None:
        """Write the finished folder of a comparison's BERT without its checkpoints."""
        source = Path(self._place.name) / "run"

        def copy(target: Path) -> None:
            for path in source.iterdir():
                if path.is_file() and path.name != ".lock":
                    shutil.copyfile(path, target / path.name)

        write_folder(folder, copy)


def _progress(settings: FinetuneSettings) -> Progress:
    """The progress recorded in the finished folder of a comparison's BERT."""
    run = read_json(settings.out / "result.json")["run"]
    planned = max(1, math.ceil(settings.epochs * run["steps"] / run["passes"] - 1e-6))
    return Progress(run["steps"], planned, stopped=bool(run["stopped"]))


class TunedCosine(FrozenCosine):
    """The contender of BERT fine-tuned for similarity (`finetune embed`): the cosine of its vectors is the number."""

    def __init__(self, encoder: Predictor | None = None, tuned: FineTuned | None = None) -> None:
        """tuned: the model to train; without it, the encoder is already trained."""
        self.tuned = tuned
        if encoder is not None:
            super().__init__(encoder)

    @property
    def progress(self) -> Progress | None:
        """Progress of fine-tuning a comparison's BERT for cosines."""
        return self.tuned.progress if self.tuned else None

    def fit(
        self, texts: Sequence[Text], labels: Sequence[float], count: int, *dev: Any, seed: int = 0, **options: Any
    ) -> Self:
        """A comparison's BERT for cosines: train it on the order of the numbers, then fit the line."""
        assert self.tuned is not None
        dev_texts, dev_numbers = dev
        rows, dev_rows = (
            [TextRow(a, b, number) for a, b, number in zip(*both_sides(part), numbers)]
            for part, numbers in ((texts, labels), (dev_texts, dev_numbers))
        )
        self.encoder = self.tuned.fit(make("embed"), rows, dev_rows, seed=seed, minutes=options["minutes"]).predictor
        return super().fit(texts, labels, count, seed=seed)


# ---- A BiLSTM over the frozen features of another model, saved together in one folder.


class Source(Protocol):
    """What gives contenders features of words (BERT, ELMo). units: how it splits a text into words."""

    units: str

    @property
    def parameters(self) -> int:
        """Parameters of the BERT or ELMo that gives a comparison's features."""

    def features(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Features of a comparison's BERT or ELMo: (layers, words, width) per sentence."""

    def save(self, folder: Path) -> None:
        """Write the BERT or ELMo that gives a comparison's features into a folder."""


class ElmoSource:
    """ELMo's features for contenders: its three layers."""

    def __init__(self, elmo: Elmo) -> None:
        self.elmo, self.parameters, self.units = elmo, elmo.parameters, elmo.lexicon.units

    def features(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """ELMo's layers, to be mixed by a contender of the comparison."""
        return list(self.elmo.layers(sentences))

    def save(self, folder: Path) -> None:
        """Write ELMo's folder, in the folder of a contender of the comparison."""
        self.elmo.save(folder)

    @classmethod
    def load(cls, folder: Path, precision: str = "auto") -> Self:
        """Open the saved ELMo of a comparison's contender."""
        return cls(Elmo.load(folder))


class BertSource:
    """BERT's features for contenders: the last four layers side by side, the best of the paper's six choices."""

    units = "words"

    def __init__(self, encoder: Predictor) -> None:
        self.encoder = encoder
        self.features = WordFeatures(encoder, "concat-last-4")
        self.parameters = encoder.encoder_parameters

    def save(self, folder: Path) -> None:
        """Write the folder of the BERT that gives a comparison's features, without its pooling."""
        write_model(folder, replace(self.encoder.as_written(), pooling=None))

    @classmethod
    def load(cls, folder: Path, precision: str = "auto") -> Self:
        """Open the saved BERT whose features a contender reads."""
        return cls(Predictor.load(folder, precision))


Inner = TypeVar("Inner", BiLstmTagger, BiLstmClassifier)


class OnFeatures(Generic[Inner]):
    """A contender's BiLSTM (`kind`) over features of BERT or ELMo; those of a set of rows are computed once."""

    kind: type[Inner]
    source_kind: type[ElmoSource] | type[BertSource]

    def __init__(self, source: Any) -> None:
        self.source: Source = source
        self.inner: Inner = self.kind(BiLstmSettings(units=source.units), features=source.features)

    def fit(self, *rows: Any, **options: Any) -> Self:
        """Train this contender: a BiLSTM on the features of an encoder, BERT or ELMo."""
        self.inner.fit(*rows, **options)
        return self

    @property
    def parameters(self) -> int:
        """Parameters of the BERT or ELMo and of the BiLSTM on its features."""
        return self.source.parameters + self.inner.parameters

    def save(self, folder: Path) -> None:
        """Write the BERT or ELMo and the BiLSTM on its features."""
        self.source.save(folder / "source")
        self.inner.save(folder / "bilstm")

    @classmethod
    def load(cls, folder: Path, precision: str = "auto") -> Self:
        """Open a saved contender: a BiLSTM on the features of an encoder, BERT or ELMo."""
        model = cls(cls.source_kind.load(folder / "source", precision))
        model.inner = cls.kind.load(folder / "bilstm", features=model.source.features)
        return model


class TaggerOnFeatures(OnFeatures[BiLstmTagger]):
    """The contender of a BiLSTM tagger over the features of BERT or ELMo."""

    kind = BiLstmTagger

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[int]]:
        """The most likely label of every word, by a BiLSTM on features of BERT or ELMo."""
        return self.inner.tag(sentences)

    def judge(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], np.ndarray]]:
        """Most likely labels and all log-probabilities (words, labels), by a BiLSTM on features of BERT or ELMo."""
        return self.inner.judge(sentences)


class ElmoTagger(TaggerOnFeatures):
    """The contender of a BiLSTM tagger over ELMo's layers."""

    source_kind = ElmoSource


class BertFeaturesTagger(TaggerOnFeatures):
    """The contender of a BiLSTM tagger over a frozen BERT."""

    source_kind = BertSource


class ElmoClassifier(OnFeatures[BiLstmClassifier]):
    """The contender of a BiLSTM classifier over ELMo's layers."""

    kind, source_kind = BiLstmClassifier, ElmoSource

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Probabilities of a BiLSTM on ELMo's features: (texts, labels)."""
        return self.inner.probabilities(texts)
