"""ULMFiT (Howard and Ruder 2018): a language model becomes a text classifier in three steps.

1. The language model has learnt general text (bertkit.ancestors.language_model.train).
2. It reads on in the task's own texts; each layer learns 2.6 times slower than the one above it.
3. A head reads the last, the highest and the mean of the top layer's vectors. The layers thaw one group a pass,
   from the top, so that what was learned is not lost while the head is still untrained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bertkit.ancestors.language_model.base import LanguageModelObjective
from bertkit.ancestors.language_model.model import LanguageModel
from bertkit.ancestors.lstm.transfer import Reader, RecurrentClassifier, StageSettings, TextFeed, cut_rows


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
        """The name in tables."""
        return "ULMFiT"

    def fit(
        self, texts: Sequence[str], labels: Sequence[int], labels_count: int, dev_texts: Sequence[str] = (),
        dev_labels: Sequence[int] = (), *, seed: int = 0, minutes: float = 0.0,
    ) -> Self:  # fmt: skip
        """Steps 2 and 3; the weights that do best on dev are kept. minutes: about how long; 0: the settings' passes."""
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
