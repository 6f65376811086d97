"""How weights are changed and tokens hidden, as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.config import Common, option
from bertkit.errors import UserError

# ---- How weights are changed, as numbers.

SCHEDULES = ("linear", "cosine", "trapezoid", "constant")  # training/optimizer.py has the formulas


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
    allow_changed_settings: bool = option(
        False, "Resume with other settings than the run was begun with.", aliases=("--other-settings",)
    )
    held_out: float = option(0.01, "Share of the documents kept for evaluation.", at_least=0, at_most=0.99)
    eval_every: int = option(0, "Evaluate every so many steps; 0: ten times a run.", at_least=0)
    save_minutes: float = option(10.0, "Save at least this often.", at_least=0)
    save_every: int = option(0, "Save every so many steps too; 0: by the clock alone.", at_least=0)
    log_every: int = option(10, "Steps between two rows of metrics.jsonl.", at_least=1)


# ---- How tokens are hidden, as numbers.


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
