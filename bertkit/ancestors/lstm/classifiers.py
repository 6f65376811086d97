"""Text classifiers that start from a recurrent language model: Dai and Le (2015), and ULMFiT (2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from bertkit.ancestors.language_model.model import LanguageModel
from bertkit.ancestors.language_model.networks import LanguageModelObjective, add_bos_eos
from bertkit.ancestors.lstm.transfer import Reader, RecurrentClassifier, StageSettings, TextFeed, cut_rows
from bertkit.data.batch import Batch
from bertkit.errors import UserError

# ---- Semi-supervised sequence learning (Dai and Le 2015): where an LSTM that classifies texts should start from.
#
# - random: random weights;
# - language-model: the weights of a network trained to predict the next piece;
# - autoencoder: those of one trained to read a text and then to reproduce it from its state alone.
#   Reader and writer are one network: it reads `[CLS] text [SEP]` and then predicts `text [SEP]`.
#
# The classifier sees only the last state.

STARTS = ("random", "language-model", "autoencoder")


@dataclass(frozen=True)
class DaiLeSettings:
    """Settings of Dai and Le's classifier.

    reading_…: how the autoencoder learns; reading_length: pieces it must remember at once.
    """

    epochs: int = 6
    lr: float = 3e-3
    batch: int = 32
    dropout: float = 0.2
    reading_epochs: int = 3
    reading_lr: float = 2e-3
    reading_length: int = 64
    reading_share: float = 0.3  # of a time budget


class Autoencode(LanguageModelObjective):
    """Dai and Le's autoencoder, on rows `[CLS] text [SEP] text [SEP]`: only what follows the first [SEP] is guessed."""

    def guessed(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """(texts, time - 1): whether Dai and Le's autoencoder has to guess the piece after this place."""
        return super().guessed(ids, lengths) & (
            torch.arange(1, ids.shape[1], device=ids.device) >= (lengths[:, None] + 1) // 2
        )

    def counts(self, batch: Batch) -> dict[str, int]:
        """The pieces Dai and Le's autoencoder guesses: the second half of each row."""
        return {"next": sum(length // 2 for length in batch.lengths)}


def doubled(row: list[int]) -> list[int]:
    """A row of Dai and Le's autoencoder: `[CLS] text [SEP]` → `[CLS] text [SEP] text [SEP]`."""
    return [*row, *row[1:]]


class DaiLe(RecurrentClassifier):
    """Dai and Le's LSTM classifier (2015): shape and tokenizer of a language model, started in one of three ways.

    reading: texts the autoencoder learns from; without them, those of the task.
    """

    ancestor = "sequence-learning"

    def __init__(
        self, source: LanguageModel | str | Path | None, start: str = "language-model",
        settings: DaiLeSettings | None = None, reading: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(source)
        if start not in STARTS:
            raise UserError(f"start is {start!r}; it must be one of {', '.join(STARTS)}.")
        self.start, self.settings, self.reading = start, settings or DaiLeSettings(), reading

    @property
    def name(self) -> str:
        """The name of Dai and Le's classifier in tables."""
        kind = (self.source.network if self.source else self._reader.network).shape.kind.upper()
        return f"{kind} classifier, {self.start} start"

    def fit(
        self, texts: Sequence[str], labels: Sequence[int], labels_count: int, dev_texts: Sequence[str] = (),
        dev_labels: Sequence[int] = (), *, seed: int = 0, minutes: float = 0.0,
    ) -> Self:  # fmt: skip
        """Dai and Le: start, then learn; the best weights on dev are kept. minutes: about; 0: `epochs` passes."""
        s, seconds = self.settings, minutes * 60
        rows = self._begin(texts, labels, labels_count)
        network = self._network(self.start == "language-model", s.dropout, seed)
        if self.start == "autoencoder" and s.reading_epochs:
            texts_as_rows = add_bos_eos(self.tokenizer, list(self.reading)) if self.reading else rows
            reading_rows = cut_rows(texts_as_rows, s.reading_length)
            self._read_on(
                Autoencode(network), [doubled(row) for row in reading_rows],
                StageSettings(s.reading_epochs, s.reading_lr, seed, seconds * s.reading_share), batch=s.batch,
            )  # fmt: skip
            seconds *= 1 - s.reading_share
        reader = Reader(network, "last", labels_count, 0, s.dropout)
        self._start(reader)
        feed = TextFeed(rows, labels, batch=s.batch, seed=seed)
        stage = StageSettings(s.epochs, s.lr, seed, seconds)
        self._stage(feed, (dev_texts, dev_labels), stage, groups=reader.groups)
        return self._finish()

    def _about(self) -> dict[str, Any]:
        return {"start": self.start}

    @classmethod
    def _from(cls, about: dict[str, Any]) -> Self:
        return cls(None, str(about.get("start", "random")))


# ---- ULMFiT (Howard and Ruder 2018): a language model becomes a text classifier in three steps.
#
# 1. The language model has learnt general text (bertkit.ancestors.language_model.train).
# 2. It reads on in the task's own texts; each layer learns 2.6 times slower than the one above it.
# 3. A head reads the last, the highest and the mean of the top layer's vectors. The layers thaw one group a pass,
#    from the top, so that what was learned is not lost while the head is still untrained.


@dataclass(frozen=True)
class UlmfitSettings:
    """Settings of ULMFiT. divisor: how much slower each lower layer learns.

    epochs: passes with all groups thawed, after one per group.

    Each time a group thaws the rate of the head is halved, as the authors' later code does.
    """

    lm_epochs: int = 2
    lm_lr: float = 2e-3
    lm_length: int = 128
    epochs: int = 3
    lr: float = 1e-2
    batch: int = 32
    divisor: float = 2.6
    inner: int = 50
    dropout: float = 0.2
    lm_share: float = 0.3  # of a time budget


class Ulmfit(RecurrentClassifier):
    """ULMFiT from a recurrent language model (or its folder)."""

    ancestor = "ulmfit"

    def __init__(self, source: LanguageModel | str | Path | None, settings: UlmfitSettings | None = None) -> None:
        super().__init__(source)
        self.settings = settings or UlmfitSettings()

    @property
    def name(self) -> str:
        """ULMFiT's name in tables."""
        return "ULMFiT"

    def fit(
        self, texts: Sequence[str], labels: Sequence[int], labels_count: int, dev_texts: Sequence[str] = (),
        dev_labels: Sequence[int] = (), *, seed: int = 0, minutes: float = 0.0,
    ) -> Self:  # fmt: skip
        """ULMFiT's steps 2 and 3; the best weights on dev are kept. minutes: about; 0: the settings' passes."""
        s, seconds = self.settings, minutes * 60
        rows = self._begin(texts, labels, labels_count)
        network = self._network(True, s.dropout, seed)
        if s.lm_epochs:
            self._read_on(
                LanguageModelObjective(network), cut_rows(rows, s.lm_length),
                StageSettings(s.lm_epochs, s.lm_lr, seed, seconds * s.lm_share, s.divisor), batch=s.batch,
            )  # fmt: skip
            seconds *= 1 - s.lm_share
        reader = Reader(network, "concat", labels_count, s.inner, s.dropout)
        self._start(reader)
        feed = TextFeed(rows, labels, batch=s.batch, seed=seed)
        for groups in range(1, reader.groups + 1):
            last = groups == reader.groups
            epochs = s.epochs if last else 1
            time = seconds * epochs / (s.epochs + reader.groups - 1)  # every pass has the same share
            stage = StageSettings(epochs, s.lr * 0.5 ** (groups - 1), seed + groups, time, s.divisor)
            self._stage(feed, (dev_texts, dev_labels), stage, groups=groups)
        return self._finish()
