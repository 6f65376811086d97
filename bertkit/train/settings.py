"""How weights are changed, as numbers. Apart from the loop so that the command line reads it without torch."""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.config import option
from bertkit.train.schedule import SHAPES


@dataclass(frozen=True)
class LoopSettings:
    """How weights are changed."""

    optimizer: str = option(
        "adamw",
        "What changes the weights; muon: the layers' matrices by Muon, the rest by AdamW.",
        choices=("adamw", "muon"),
    )
    lr: float = option(1e-3, "Peak learning rate.")
    warmup: float = option(0.1, "Share of the steps in which the rate rises.")
    schedule: str = option("linear", "How the rate falls.", choices=tuple(SHAPES))
    floor: float = option(0.0, "The rate ends at this share of its peak.")
    decay: float = option(0.01, "Weight decay, decoupled; none on norms and biases.")
    beta1: float = option(0.9, "AdamW's memory of gradients.")
    beta2: float = option(0.999, "AdamW's memory of squares.")
    eps: float = option(1e-8, "AdamW's smallest divisor.")
    clip: float = option(1.0, "Longest gradient; 0: no limit.")
    ema: float = option(0.0, "Averaging of weights, e.g. 0.999; 0: none.")
