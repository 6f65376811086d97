"""Settings of the optimizer, of long runs, and of masking."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from bertkit.config import Common, option
from bertkit.errors import UserError

# ---- How weights are changed, as numbers.

SCHEDULES = ("linear", "cosine", "trapezoid", "constant")  # training/optimizer.py has the formulas


@dataclass(frozen=True)
class LoopSettings:
    """Settings of training's optimizer and its schedule."""

    optimizer: str = option(
        "adamw",
        "Optimizer; muon: Muon for the layers' matrices, AdamW for the rest.",
        choices=("adamw", "muon"),
    )
    lr: float = option(1e-3, "Peak learning rate.", at_least=0, at_most=1)
    warmup: float = option(0.1, "Warm-up, as a fraction of all steps.", at_least=0, at_most=1)
    schedule: str = option("linear", "Learning-rate schedule.", choices=SCHEDULES)
    floor: float = option(0.0, "Final learning rate, as a fraction of the peak.", at_least=0, at_most=1)
    decay: float = option(0.01, "Decoupled weight decay; not applied to norms and biases.", at_least=0)
    beta1: float = option(0.9, "AdamW beta1.", at_least=0, at_most=0.99999)
    beta2: float = option(0.999, "AdamW beta2.", at_least=0, at_most=0.99999)
    eps: float = option(1e-8, "AdamW epsilon.", at_least=0)
    clip: float = option(1.0, "Maximum gradient norm (0: no clipping).", at_least=0)
    ema: float = option(
        0.0, "Decay of the moving average of weights, e.g. 0.999; 0: no averaging.", at_least=0, at_most=0.99999
    )
    exchange: str = option(
        "fp32",
        "Under torchrun: precision in which gradients are exchanged; bf16 halves the traffic.",
        choices=("fp32", "bf16"),
    )


BUDGETS = ("steps", "tokens", "minutes")  # of several that are asked for, the first counts


@dataclass(frozen=True)
class Plan:
    """The budget and rhythm of a training run, whatever its settings call them.

    steps: what a budget in steps, tokens or passes comes to; 0: as many as fit into the minutes.
    capped: steps and minutes both count: the steps are shortened to what fits into the minutes.
    deadline: the run ends when the minutes are over, wherever its steps are.
    share: of the minutes, for training; the rest is for what follows the last step.
    patience: evaluations without a better score after which the run ends, once it made `patience_from` steps; 0: never.
    evals: evaluations per run, where eval_every (in steps) is 0.
    ignored: a note about budgets that do not count, because another was given too.
    """

    steps: int = 0
    minutes: float = 0.0
    capped: bool = False
    deadline: bool = False
    share: float = 1.0
    patience: int = 0
    patience_from: int = 0
    evals: int = 10
    eval_every: int = 0
    save_minutes: float = math.inf
    save_every: int = 0
    log_every: int = 1
    ignored: str = ""

    @property
    def timed(self) -> bool:
        """Whether the clock sets the last step of a run's plan."""
        return bool(self.minutes) and (self.capped or not self.steps)

    @property
    def seconds(self) -> float:
        """Seconds of training in a run's plan."""
        return self.minutes * 60 * self.share

    def fitting(self, done: int, passed: float, seconds_per_step: float) -> int:
        """The plan's last step, when `done` steps were made in `passed` seconds and the next ones take this long."""
        last = done + max(1, round((self.seconds - passed) / seconds_per_step))
        return max(done, min(last, self.steps)) if self.capped else last


@dataclass(frozen=True, kw_only=True)
class BudgetSettings(Common):
    """How long a training run takes, whatever it trains."""

    minutes: float = option(0.0, "Time budget in minutes; the schedule ends with it.", at_least=0)
    steps: int = option(0, "Budget in steps.", at_least=0)


@dataclass(frozen=True, kw_only=True)
class PassSettings(BudgetSettings):
    """How long a training run over a set of rows takes."""

    epochs: float = option(0.0, "Passes over the training rows; with --minutes, at most this many.", at_least=0)


@dataclass(frozen=True, kw_only=True)
class RunSettings(BudgetSettings):
    """Options of every long run: its folder, its budget, and how often it evaluates, saves and logs."""

    out: Path = option(Path("runs/pretrain"), "The run folder.")
    tokens: int = option(0, "Budget in tokens.", at_least=0)
    resume: bool = option(False, "Continue the run in --out.")
    allow_changed_settings: bool = option(
        False, "Resume with different settings from those the run started with.", aliases=("--other-settings",)
    )
    held_out: float = option(0.01, "Fraction of the documents held out for evaluation.", at_least=0, at_most=0.99)
    eval_every: int = option(0, "Evaluate every N steps; 0: ten times per run.", at_least=0)
    save_minutes: float = option(10.0, "Save at least this often.", at_least=0)
    save_every: int = option(0, "Also save every N steps; 0: only by time.", at_least=0)
    log_every: int = option(10, "Steps between rows of metrics.jsonl.", at_least=1)

    def run_plan(self, tokens_per_step: int) -> Plan:
        """A run's settings of minutes, steps or tokens as its plan in steps."""
        asked = [name for name in BUDGETS if getattr(self, name)]
        if not asked:
            raise UserError("No training budget: pass --minutes, --steps or --tokens.")
        first, *others = asked
        ignored = " and ".join(f"--{name} {getattr(self, name):,}" for name in others)
        steps = self.steps or (max(1, self.tokens // tokens_per_step) if self.tokens else 0)
        return Plan(
            steps, 0.0 if steps else self.minutes, eval_every=self.eval_every, save_minutes=self.save_minutes,
            save_every=self.save_every, log_every=self.log_every,
            ignored=f"--{first} {getattr(self, first):,} takes precedence; {ignored} "
            f"{'is' if len(others) == 1 else 'are'} ignored. Pass --{first} 0 to use --{others[0]}." if others else "",
        )  # fmt: skip


# ---- How tokens are hidden, as numbers.


@dataclass(frozen=True)
class MaskSettings:
    """How tokens are masked in training."""

    rate: float = option(0.15, "Fraction of the tokens that is masked.", at_least=0, at_most=1)
    rate_end: float = option(0.0, "Masking rate at the end of the run; 0: constant.", at_least=0, at_most=1)
    mask: float = option(0.8, "Fraction of the masked tokens replaced by [MASK].", at_least=0, at_most=1)
    random: float = option(
        0.1, "Fraction of the masked tokens replaced by a random piece; the rest are kept.", at_least=0, at_most=1
    )
    unit: str = option("token", "What is masked together.", choices=("token", "word", "span"))
    most_span: int = option(3, "Maximum span length, in words.", at_least=1)
    copies: int = option(0, "Static masking with this many copies; 0: new masks on every pass.", at_least=0)
    most: int = option(0, "Maximum masked tokens per example; 0: no limit.", at_least=0)

    def __post_init__(self) -> None:
        """Refuse fractions that add up to more than 1; each one's range is checked separately."""
        if self.mask + self.random > 1:
            raise UserError(f"masking.mask {self.mask} and masking.random {self.random} add up to more than 1.")

    def at(self, progress: float) -> float:
        """The settings' masking rate at this point of the run (0 to 1)."""
        return self.rate + (self.rate_end - self.rate) * progress if self.rate_end else self.rate


# ---- What a page may ask of a model that learns while one looks on (inference/live.py).

LIVE_STEPS = 600
LIVE_SECONDS = 40.0
LIVE_CHARACTERS = 20_000  # of a text that is learnt from
LIVE_ROWS = 200  # that a classifier is trained on
