"""Every number of an ELMo and of its training. Apart from the model so that a command line reads it without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.config import option
from bertkit.errors import UserError
from bertkit.settings.bilstm_settings import UNITS
from bertkit.settings.training import LoopSettings, RunSettings


@dataclass(frozen=True)
class ElmoNumbers:
    """The model. width: of a word's vector, both directions together."""

    width: int = option(256, "Width of a word's vector; half of it belongs to each direction.", at_least=2)
    cells: int = option(512, "Memory cells of each LSTM; more than half the width.", at_least=1)
    depth: int = option(2, "LSTM layers of each direction.", at_least=1)
    character_width: int = option(16, "Width of a character's vector.", at_least=1)
    filters: tuple[tuple[int, ...], ...] = option(
        ((1, 16), (2, 32), (3, 64), (4, 96), (5, 128)), "Filters over characters: width and number of each kind."
    )
    highways: int = option(1, "Highway layers over the filters.", at_least=0)
    dropout: float = option(0.1, "Share of the numbers dropped between layers.", at_least=0, at_most=0.99)

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2:
            raise UserError(f"width is {self.width}; it must be even, since each direction has half of it.")
        if self.cells <= self.width // 2:
            raise UserError(
                f"cells is {self.cells}; it must be more than half the width ({self.width // 2}), to which each LSTM "
                "projects. Raise cells, or lower width."
            )
        if not self.filters or any(len(kind) != 2 or min(kind) < 1 for kind in self.filters):
            raise UserError(
                f"filters is {self.filters!r}; it must be pairs of width and number, e.g. [[1, 16], [3, 64]]."
            )


@dataclass(frozen=True, kw_only=True)
class ElmoSettings(RunSettings):
    """What training an ELMo needs."""

    texts: tuple[Path, ...] = option(help="Files or folders of running text; each line is a sentence.")
    out: Path = option(Path("runs/elmo"), "The run's folder.")
    units: str = option("words", "How text is cut: words, jieba (Chinese words) or characters.", choices=UNITS)
    cased: bool = option(True, "Keep capitals.")
    vocabulary: int = option(20_000, "Words that can be guessed; any word can be read.", at_least=1)
    length: int = option(64, "Words in a row; longer sentences are learnt in stretches.", at_least=2)
    batch_words: int = option(2048, "Words a step.", at_least=2)
    eval_words: int = option(20_000, "Words of held-out text an evaluation reads.", at_least=1)
    model: ElmoNumbers = option(factory=ElmoNumbers)
    loop: LoopSettings = option(factory=lambda: LoopSettings(lr=2e-3, beta2=0.99))

    def __post_init__(self) -> None:
        if not 2 <= self.length <= self.batch_words:
            raise UserError(
                f"length is {self.length}; it must be from 2 up to the words a step (batch_words, {self.batch_words})."
            )
        if self.precision == "bf16":
            raise UserError("precision is 'bf16'; ELMo's LSTMs are computed in fp32 only. Leave --precision out.")
