"""How weights are changed and tokens hidden, as numbers."""

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


BUDGETS = ("steps", "tokens", "minutes")  # of several that are asked for, the first counts


@dataclass(frozen=True)
class Plan:
    """A run's budget and rhythm, whatever its settings call them.

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
        """Whether the clock sets the last step."""
        return bool(self.minutes) and (self.capped or not self.steps)

    @property
    def seconds(self) -> float:
        """Of training."""
        return self.minutes * 60 * self.share

    def fitting(self, done: int, passed: float, seconds_per_step: float) -> int:
        """The last step, when `done` steps were made in `passed` seconds and the next ones take this long."""
        last = done + max(1, round((self.seconds - passed) / seconds_per_step))
        return max(done, min(last, self.steps)) if self.capped else last


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

    def run_plan(self, tokens_per_step: int) -> Plan:
        """The budget in minutes, steps or tokens as steps."""
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
