"""How weights are changed, as numbers. Apart from the loop so that the command line reads it without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.config import Common, option
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


@dataclass(frozen=True, kw_only=True)
class RunSettings(Common):
    """What every long run needs: its folder, its budget, and how often it evaluates, saves and logs."""

    out: Path = option(Path("runs/pretrain"), "The run's folder.")
    minutes: float = option(0.0, "Time budget: the schedule ends when it does.")
    steps: int = option(0, "Budget in steps.")
    tokens: int = option(0, "Budget in tokens.")
    resume: bool = option(False, "Continue the run in --out.")
    other_settings: bool = option(False, "Resume with other settings than the run was begun with.")
    held_out: float = option(0.01, "Share of the documents kept for evaluation.")
    eval_every: int = option(0, "Evaluate every so many steps; 0: ten times a run.")
    save_minutes: float = option(10.0, "Save at least this often.")
    save_every: int = option(0, "Save every so many steps too; 0: by the clock alone.")
    log_every: int = option(10, "Steps between two rows of metrics.jsonl.")
