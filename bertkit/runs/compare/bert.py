"""BERT among the contenders: its frozen vectors under logistic regression, and the whole of it fine-tuned."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.baselines.linear import LinearModel, side_by_side
from bertkit.ancestors.baselines.number_rivals import Valued, both_sides
from bertkit.checkpoint.folder import write_folder as write_model
from bertkit.data.examples import TextRow
from bertkit.runs.finetune.split import Split
from bertkit.runs.finetune.run import LEAST_STEPS, MOST_PASSES, Finetuning
from bertkit.settings.finetune import FinetuneSettings
from bertkit.inference.predictor import Predictor
from bertkit.tasks import make
from bertkit.tasks.base import Prediction, Task
from bertkit.training.saving import write_folder

Text = str | tuple[str, str]


class FrozenVectors:
    """The mean vector of a text by an encoder that stays as it is, under logistic regression.

    Of a pair: both vectors, their product, and the size of their difference.
    """

    kind: type[LinearModel] = LinearModel
    reads_pairs = True

    def __init__(self, encoder: Predictor) -> None:
        self.encoder = encoder

    def fit(
        self, texts: Sequence[Text], labels: Sequence[float], count: int, *_: Any, seed: int = 0, **__: Any
    ) -> Self:
        """Weights on standardised vectors."""
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
        return side_by_side(a, b)

    def features(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Standardised vectors."""
        return self._scaled(self._vectors(texts))

    def probabilities(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """(texts, labels)"""
        return self.linear.probabilities(self.features(texts))

    @property
    def parameters(self) -> int:
        """Of the encoder and the weights."""
        return self.encoder.encoder_parameters + self.linear.parameters

    def save(self, folder: Path) -> None:
        """The encoder too: the folder stands by itself."""
        write_model(folder / "encoder", self.encoder.as_written())
        self.linear.save(folder)
        scale = {"shift": self.shift.tolist(), "spread": self.spread.tolist()}
        (folder / "scale.json").write_text(json.dumps(scale), "utf-8")

    @classmethod
    def load(cls, folder: Path, precision: str = "auto") -> Self:
        """What was saved."""
        model = cls(Predictor.load(folder / "encoder", precision))
        model.linear = cls.kind.load(folder)
        scale = json.loads((folder / "scale.json").read_text("utf-8"))
        model.shift, model.spread = np.array(scale["shift"]), np.array(scale["spread"])
        return model


class FrozenNumber(Valued, FrozenVectors):
    """The same vectors under ridge regression."""


class FrozenCosine(FrozenNumber):
    """The cosine of two texts' vectors, and a straight line from that to the number."""

    def _vectors(self, texts: Sequence[Text]) -> NDArray[Any]:
        first, second = (np.asarray(self.encoder.embed(side)) for side in both_sides(texts))
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        return ((first * second).sum(1) / np.maximum(lengths, 1e-9))[:, None]


class FineTuned:
    """A whole encoder (BERT, one of its relatives, or GPT) trained on the task; its folder is any model's folder."""

    def __init__(self, name: str, start: str, threads: int = 0, precision: str = "auto", device: str = "auto") -> None:
        """start: the model to begin with."""
        self.name, self.start, self.threads, self.precision, self.device = name, start, threads, precision, device
        self.shortened = ""

    def fit(self, task: Task, train: Sequence[Any], dev: Sequence[Any], *, seed: int, minutes: float) -> Self:
        """Passes as `finetune` chooses them, fewer if the time is short."""
        self._place = tempfile.TemporaryDirectory(prefix="bertkit-compare-")
        batch = 32
        passes = min(MOST_PASSES, max(3.0, LEAST_STEPS * batch / len(train)))
        settings = FinetuneSettings(
            task=task.name, train=Path("the rows compared"), model=self.start, out=Path(self._place.name) / "run",
            epochs=passes, minutes=minutes, batch=batch, seed=seed, threads=self.threads, precision=self.precision,
            device=self.device,
        )  # fmt: skip
        split = Split({"train": list(train), "dev": list(dev)})
        run = Finetuning(settings, split, task.labels)
        run.go()
        self.shortened = run.shortened
        self.predictor = Predictor.load(settings.out, self.precision, self.device)
        return self

    def predict(self, examples: Sequence[Any]) -> list[Prediction]:
        """By the packed path that `predict` uses."""
        return self.predictor.predict_examples(examples)

    @property
    def parameters(self) -> int:
        """Of encoder and head."""
        return self.predictor.parameters

    def save(self, folder: Path) -> None:
        """The finished folder without its checkpoints."""
        source = Path(self._place.name) / "run"

        def copy(target: Path) -> None:
            for path in source.iterdir():
                if path.is_file() and path.name != ".lock":
                    shutil.copyfile(path, target / path.name)

        write_folder(folder, copy)


class TunedCosine(FrozenCosine):
    """The cosine of vectors that were fine-tuned to be alike where the numbers are high (`finetune embed`)."""

    def __init__(self, encoder: Predictor | None = None, tuned: FineTuned | None = None) -> None:
        """tuned: what learns; without it the encoder has learnt."""
        self.tuned = tuned
        if encoder is not None:
            super().__init__(encoder)

    @property
    def shortened(self) -> str:
        """What the time did not allow."""
        return self.tuned.shortened if self.tuned else ""

    def fit(
        self, texts: Sequence[Text], labels: Sequence[float], count: int, *dev: Any, seed: int = 0, **how: Any
    ) -> Self:
        """The encoder by the order of the numbers, then the line."""
        assert self.tuned is not None
        dev_texts, dev_numbers = dev
        rows, dev_rows = (
            [TextRow(a, b, number) for a, b, number in zip(*both_sides(some), numbers)]
            for some, numbers in ((texts, labels), (dev_texts, dev_numbers))
        )
        self.encoder = self.tuned.fit(make("embed"), rows, dev_rows, seed=seed, minutes=how["minutes"]).predictor
        return super().fit(texts, labels, count, seed=seed)
