"""A BiLSTM over the frozen features of another model, kept together in one folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from bertkit.ancestors.lstm.bilstm import BiLstmClassifier, BiLstmTagger
from bertkit.settings.bilstm_settings import BiLstmSettings
from bertkit.ancestors.elmo.elmo import Elmo
from bertkit.ancestors.features import WordFeatures
from bertkit.checkpoint.folder import write_folder as write_model
from bertkit.inference.predictor import Predictor


class Source(Protocol):
    """Gives features of words. units: how it cuts a text into words."""

    units: str

    @property
    def parameters(self) -> int:
        """Numbers inside."""

    def features(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """(layers, words, width) a sentence."""

    def save(self, folder: Path) -> None:
        """Into a folder."""


class ElmoSource:
    """ELMo's three layers."""

    def __init__(self, elmo: Elmo) -> None:
        self.elmo, self.parameters, self.units = elmo, elmo.parameters, elmo.lexicon.units

    def features(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Its layers, to be mixed."""
        return list(self.elmo.layers(sentences))

    def save(self, folder: Path) -> None:
        """As ELMo does."""
        self.elmo.save(folder)

    @classmethod
    def load(cls, folder: Path, precision: str = "auto") -> Self:
        """What was saved."""
        return cls(Elmo.load(folder))


class BertSource:
    """The last four layers of an encoder side by side, the best of the paper's six choices."""

    units = "words"

    def __init__(self, encoder: Predictor) -> None:
        self.encoder = encoder
        self.features = WordFeatures(encoder, "concat-last-4")
        self.parameters = encoder.encoder_parameters

    def save(self, folder: Path) -> None:
        """The encoder's folder; how it makes sentence vectors does not matter here."""
        write_model(folder, replace(self.encoder.as_written(), pooling=None))

    @classmethod
    def load(cls, folder: Path, precision: str = "auto") -> Self:
        """What was saved."""
        return cls(Predictor.load(folder, precision))


class OnFeatures:
    """kind: the BiLSTM that learns. Once the source's features are computed for a set of rows they are kept."""

    kind: type[BiLstmTagger] | type[BiLstmClassifier]
    source_kind: type[ElmoSource] | type[BertSource]

    def __init__(self, source: Any) -> None:
        self.source: Source = source
        self.inner = self.kind(BiLstmSettings(units=source.units), features=source.features)

    def fit(self, *rows: Any, **how: Any) -> Self:
        """As the BiLSTM learns."""
        self.inner.fit(*rows, **how)
        return self

    @property
    def parameters(self) -> int:
        """Of both."""
        return self.source.parameters + self.inner.parameters

    def save(self, folder: Path) -> None:
        """Both."""
        self.source.save(folder / "source")
        self.inner.save(folder / "bilstm")

    @classmethod
    def load(cls, folder: Path, precision: str = "auto") -> Self:
        """What was saved."""
        model = cls(cls.source_kind.load(folder / "source", precision))
        model.inner = cls.kind.load(folder / "bilstm", features=model.source.features)
        return model

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """`tag`, `judge` or `probabilities`: what the BiLSTM inside has."""
        if name in ("tag", "judge", "probabilities"):
            return getattr(self.inner, name)
        raise AttributeError(name)


class ElmoTagger(OnFeatures):
    """Words by ELMo, tags by a BiLSTM."""

    kind, source_kind = BiLstmTagger, ElmoSource


class ElmoClassifier(OnFeatures):
    """Words by ELMo, labels by a BiLSTM."""

    kind, source_kind = BiLstmClassifier, ElmoSource


class BertFeaturesTagger(OnFeatures):
    """Words by a frozen BERT, tags by a BiLSTM."""

    kind, source_kind = BiLstmTagger, BertSource
