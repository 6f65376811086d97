"""One label for two texts: entailment, paraphrase, any relation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bertkit.tasks.classify import Classify


@dataclass
class Pair(Classify):
    """Like classify, with a second text. In long pairs the second text is read in windows."""

    name: ClassVar[str] = "pair"
    paired: ClassVar[bool] = True
