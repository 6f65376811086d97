"""How long a run trains and how often it evaluates, saves and logs; and what a step costs on this machine."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass

from bertkit.errors import UserError
from bertkit.notify import note
from bertkit.settings.training import RunSettings
from bertkit.training.distributed import World
from bertkit.training.loop import Training

BUDGETS = ("steps", "tokens", "minutes")  # of several that are asked for, the first counts
FIRST_GUESS = 1000  # steps of a run whose speed is not known yet
REPLAN = (0.05, 0.25, 0.5, 0.75, 0.9, 0.97)  # shares of a time budget at which the end is estimated again
FEWEST_TIMED = 5  # steps before a first estimate


@dataclass(frozen=True)
class Plan:
    """A run's budget and rhythm, whatever its settings call them.

    steps: what a budget in steps, tokens or passes comes to; 0: as many as fit into the minutes.
    capped: steps and minutes both count: the steps are shortened to what fits into the minutes.
    deadline: the run ends when the minutes are over, wherever its steps are.
    share: of the minutes, for training; the rest is for what follows the last step.
    patience: evaluations without a better score after which the run ends, once it made `patience_from` steps; 0: never.
    evals: evaluations per run, where eval_every (in steps) is 0.
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


def plan_of(settings: RunSettings, tokens_per_step: int, world: World) -> Plan:
    """The plan of a run whose budget is minutes, steps or tokens; budgets that do not count are told."""
    s = settings
    asked = [name for name in BUDGETS if getattr(s, name)]
    if not asked:
        raise UserError("No training budget: pass --minutes, --steps or --tokens.")
    first, *others = asked
    if others and world.is_main:
        ignored = " and ".join(f"--{name} {getattr(s, name):,}" for name in others)
        note(
            f"--{first} {getattr(s, first):,} takes precedence; {ignored} {'is' if len(others) == 1 else 'are'} "
            f"ignored. Pass --{first} 0 to use --{others[0]}."
        )
    steps = s.steps or (max(1, s.tokens // tokens_per_step) if s.tokens else 0)
    return Plan(
        steps, 0.0 if steps else s.minutes, eval_every=s.eval_every, save_minutes=s.save_minutes,
        save_every=s.save_every, log_every=s.log_every,
    )  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """What a few steps cost, on this machine, now."""

    seconds_a_step: float
    tokens_a_step: float
    steps: int


def try_out(training: Training, seconds: float) -> Trial:
    """Train a copy for a moment; the run itself is untouched."""
    t = training
    times, tokens = [time.perf_counter()], 0
    for step in Training(copy.deepcopy(t.objective), t.feed, t.steps, t.settings, t.seed, t.world, t.scale):
        times.append(time.perf_counter())
        # The first steps fill caches and are slower than all that follow.
        tokens += step.tokens if len(times) > 3 else 0
        if t.world.anywhere(len(times) > 4 and times[-1] - times[0] > seconds):
            break
    measured = max(1, len(times) - 3)
    return Trial((times[-1] - times[-1 - measured]) / measured, tokens / measured, len(times) - 1)
