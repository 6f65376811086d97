"""How tokens are hidden, as numbers. Apart from masking.py so that the command line reads it without numpy."""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.config import option
from bertkit.errors import UserError


@dataclass(frozen=True)
class MaskSettings:
    """How tokens are hidden."""

    rate: float = option(0.15, "Share of the tokens that is hidden.", at_least=0, at_most=1)
    rate_end: float = option(0.0, "The share falls (or rises) to this by the end; 0: it stays.", at_least=0, at_most=1)
    mask: float = option(0.8, "Of those, the share replaced by [MASK].", at_least=0, at_most=1)
    random: float = option(
        0.1, "Of those, the share replaced by a random piece; the rest stays as it is.", at_least=0, at_most=1
    )
    unit: str = option("token", "What is hidden together.", choices=("token", "word", "span"))
    most_span: int = option(3, "The longest span, in words.", at_least=1)
    copies: int = option(0, "Static masking with this many copies; 0: fresh masks on every pass.", at_least=0)
    most: int = option(0, "At most this many hidden tokens an example; 0: no limit.", at_least=0)

    def __post_init__(self) -> None:
        """Refuse shares that cannot be together; each by itself has its range."""
        if self.mask + self.random > 1:
            raise UserError(f"masking.mask {self.mask} and masking.random {self.random} are more than 1 together.")

    def at(self, progress: float) -> float:
        """The rate at this point of the run (0 to 1)."""
        return self.rate + (self.rate_end - self.rate) * progress if self.rate_end else self.rate
