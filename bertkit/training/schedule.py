"""Learning rates as pure functions of the step; every schedule ends exactly at the last step."""

from __future__ import annotations

import math
from collections.abc import Callable

# progress after the warm-up (0 to 1) → share of the peak
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: 0.5 * (1 + math.cos(math.pi * x)),
    "trapezoid": lambda x: min(1.0, (1 - x) / 0.2),  # flat, then down over the last fifth
    "constant": lambda x: 1.0,
}


def rate(
    step: int, steps: int, peak: float, *, warmup: float = 0.0, shape: str = "linear", floor: float = 0.0
) -> float:
    """The learning rate of this step (counted from 0): up over the first `warmup` share, then down by `shape`."""
    up = round(warmup * steps)
    if step < up:
        return peak * (step + 1) / up
    progress = (step - up) / max(1, steps - up)
    return peak * (floor + (1 - floor) * SHAPES[shape](min(1.0, progress)))
