"""Every number of a BiLSTM. Apart from the model so that it is read without torch."""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.config import option
from bertkit.errors import UserError, suggest

UNITS = ("words", "jieba", "characters")  # how a text is cut into words; ancestors/ngram does it
POOLS = ("max", "mean")


@dataclass(frozen=True)
class BiLstmSettings:
    """The model and its training."""

    cells: int = option(200, "Memory cells of each direction.", at_least=1)
    depth: int = option(2, "Layers.", at_least=1)
    word_width: int = option(100, "Width of the word vectors, where they are learnt from nothing.", at_least=1)
    dropout: float = option(0.3, "Share of the numbers dropped before every layer.", at_least=0, at_most=0.99)
    pool: str = option("max", "How a text's word vectors become one.", choices=POOLS)
    units: str = option("words", "How a text is cut into words.", choices=UNITS)
    cased: bool = option(True, "Keep capitals.")
    batch: int = option(32, "Sentences a step.", at_least=1)
    lr: float = option(1e-3, "Learning rate of Adam.", at_least=0, at_most=1)
    epochs: int = option(30, "Passes over the sentences, at most.", at_least=1)
    patience: int = option(5, "Stop after so many passes without a better one.", at_least=1)

    def __post_init__(self) -> None:
        for name in ("cells", "depth", "word_width", "batch", "epochs", "patience"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be 1 or more.")
        for name, known in (("pool", POOLS), ("units", UNITS)):
            if getattr(self, name) not in known:
                raise UserError(f"{name} is {getattr(self, name)!r}. {suggest(getattr(self, name), list(known))}")
