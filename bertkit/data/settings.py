"""How tokens are hidden, as numbers. Apart from masking.py so that the command line reads it without numpy."""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.config import option
from bertkit.errors import UserError


@dataclass(frozen=True)
class MaskSettings:
    """How tokens are hidden."""

    rate: float = option(0.15, "Share of the tokens that is hidden.")
    rate_end: float = option(0.0, "The share falls (or rises) to this by the end; 0: it stays.")
    mask: float = option(0.8, "Of those, the share replaced by [MASK].")
    random: float = option(0.1, "Of those, the share replaced by a random piece; the rest stays as it is.")
    unit: str = option("token", "What is hidden together.", choices=("token", "word", "span"))
    most_span: int = option(3, "The longest span, in words.")
    copies: int = option(0, "Static masking with this many copies; 0: fresh masks on every pass.")
    most: int = option(0, "At most this many hidden tokens an example; 0: no limit.")

    def __post_init__(self) -> None:
        """Refuse shares that cannot be."""
        for name in ("rate", "rate_end", "mask", "random"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"masking.{name} is {getattr(self, name)}; it must lie between 0 and 1.")
        if self.mask + self.random > 1:
            raise UserError(f"masking.mask {self.mask} and masking.random {self.random} are more than 1 together.")

    def at(self, progress: float) -> float:
        """The rate at this point of the run (0 to 1)."""
        return self.rate + (self.rate_end - self.rate) * progress if self.rate_end else self.rate
