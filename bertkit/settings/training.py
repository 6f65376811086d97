"""How weights are changed, as numbers. Apart from the loop so that the command line reads it without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.config import Common, option

SCHEDULES = ("linear", "cosine", "trapezoid", "constant")  # training/schedule.py has the formulas


@dataclass(frozen=True)
class LoopSettings:
    """How weights are changed."""

    optimizer: str = option(
        "adamw",
        "What changes the weights; muon: the layers' matrices by Muon, the rest by AdamW.",
        choices=("adamw", "muon"),
    )
    lr: float = option(1e-3, "Peak learning rate.", at_least=0, at_most=1)
    warmup: float = option(0.1, "Share of the steps in which the rate rises.", at_least=0, at_most=1)
    schedule: str = option("linear", "How the rate falls.", choices=SCHEDULES)
    floor: float = option(0.0, "The rate ends at this share of its peak.", at_least=0, at_most=1)
    decay: float = option(0.01, "Weight decay, decoupled; none on norms and biases.", at_least=0)
    beta1: float = option(0.9, "AdamW's memory of gradients.", at_least=0, at_most=0.99999)
    beta2: float = option(0.999, "AdamW's memory of squares.", at_least=0, at_most=0.99999)
    eps: float = option(1e-8, "AdamW's smallest divisor.", at_least=0)
    clip: float = option(1.0, "Longest gradient; 0: no limit.", at_least=0)
    ema: float = option(0.0, "Averaging of weights, e.g. 0.999; 0: none.", at_least=0, at_most=0.99999)


@dataclass(frozen=True, kw_only=True)
class RunSettings(Common):
    """What every long run needs: its folder, its budget, and how often it evaluates, saves and logs."""

    out: Path = option(Path("runs/pretrain"), "The run's folder.")
    minutes: float = option(0.0, "Time budget: the schedule ends when it does.", at_least=0)
    steps: int = option(0, "Budget in steps.", at_least=0)
    tokens: int = option(0, "Budget in tokens.", at_least=0)
    resume: bool = option(False, "Continue the run in --out.")
    other_settings: bool = option(False, "Resume with other settings than the run was begun with.")
    held_out: float = option(0.01, "Share of the documents kept for evaluation.", at_least=0, at_most=0.99)
    eval_every: int = option(0, "Evaluate every so many steps; 0: ten times a run.", at_least=0)
    save_minutes: float = option(10.0, "Save at least this often.", at_least=0)
    save_every: int = option(0, "Save every so many steps too; 0: by the clock alone.", at_least=0)
    log_every: int = option(10, "Steps between two rows of metrics.jsonl.", at_least=1)
