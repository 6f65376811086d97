"""A run over a budget of minutes, steps or tokens, with evaluations, saves, signals and a log: once, for every model.

What is trained, how it is judged and how it is written at the end are the subclass's business.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertkit import machine
from bertkit.data.feed import CountedFeed
from bertkit.errors import Stopped, UserError
from bertkit.notify import note, status
from bertkit.settings.training import RunSettings
from bertkit.training.loop import Step, Training
from bertkit.training.run_folder import RunFolder, Signals

BUDGETS = ("steps", "tokens", "minutes")  # of several that are asked for, the first counts
FIRST_GUESS = 1000  # steps of a run whose speed is not known yet
REPLAN = (0.05, 0.25, 0.5, 0.75, 0.9, 0.97)  # shares of a time budget at which the end is estimated anew
SEEN = 200  # the steps by which speed is told


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


def budget(settings: RunSettings, tokens_a_step: int) -> int:
    """Steps that are asked for; 0: as many as fit the minutes."""
    if settings.steps:
        return settings.steps
    if settings.tokens:
        return max(1, settings.tokens // tokens_a_step)
    if not settings.minutes:
        raise UserError("How long shall it train? Give --minutes, --steps or --tokens.")
    return 0


class Run:
    """One run. `found` is the newest evaluation; `tokens` what was seen over all sittings."""

    unit = "tokens"  # what is counted, in words

    def __init__(
        self,
        settings: RunSettings,
        training: Training,
        feed: CountedFeed,
        run: RunFolder,
        signals: Signals,
        about: Mapping[str, Any],
    ) -> None:
        """feed: the training's own. about: what must not change between sittings."""
        self.training, self.run, self.signals, self.about = training, run, signals, about
        self.plan, self.epoch, self.world = settings, feed.epoch, training.world
        self.timed = not settings.steps and not settings.tokens
        self.tokens = self.replanned = 0
        self.found: dict[str, float] = {}
        self.recent: list[tuple[float, int]] = []

    # ---- what a subclass says

    def introduce(self) -> str:
        """One line before the first step."""
        raise NotImplementedError

    def planned(self) -> None:
        """The last step is known, or known better: plan the text by it."""

    def evaluate(self) -> dict[str, float]:
        """Scores on what was held out; {} where nothing is."""
        raise NotImplementedError

    def finish(self) -> dict[str, Any]:
        """Write the model as it is now. Returns what the user is told."""
        raise NotImplementedError

    def logged(self, row: dict[str, Any]) -> None:
        """A row went to metrics.jsonl."""

    # ---- the run

    def go(self) -> dict[str, Any]:
        """From the first step, or the newest checkpoint, to the last."""
        self._begin()
        for step in self.training:
            self.tokens += step.tokens
            self._log(step)
            self._replan()
            if self._due(self.plan.eval_every or math.ceil(self.training.steps / 10)):
                self._evaluate()
            stop = self.world.anywhere(bool(self.signals.asked))
            if stop or self._save_due():
                self._save()
            if stop:
                self.finish()
                raise Stopped(
                    self.signals.asked or 15,
                    f"saved at step {self.training.done} of {self.training.steps} in {self.plan.out}; "
                    "continue with --resume.",
                )
        if not self.found:
            self._evaluate()
        self._save()
        return self.finish()

    def _begin(self) -> None:
        asked = [name for name in BUDGETS if getattr(self.plan, name)]
        if len(asked) > 1 and self.world.is_main:
            note(
                f"--{asked[0]} {getattr(self.plan, asked[0]):,} says when the run ends; "
                + " and ".join(f"--{name} {getattr(self.plan, name):,}" for name in asked[1:])
                + f" is not looked at. For that one instead, add --{asked[0]} 0."
            )
        wanted = self.training.steps
        own = self.run.begin(self.training, self.plan, self.about)
        self.tokens, self.replanned = int(own.get("tokens", 0)), int(own.get("replanned", 0))
        self.found = dict(own.get("evaluation", {}))
        if not self.timed and self.training.steps != wanted:
            note(f"The run now ends at step {wanted:,}, not at {self.training.steps:,}.")
            self.training.steps = max(wanted, self.training.done)
        if self.timed and not own:
            moment = min(20.0, self.plan.minutes * 60 * 0.04)
            self.training.steps = self._last_step(try_out(self.training, moment).seconds_a_step)
        if self.timed and own and own.get("minutes", self.plan.minutes) != self.plan.minutes and self.training.done:
            before = self.training.steps
            self.training.steps = self._last_step(self.run.elapsed() / self.training.done)
            self.replanned = 0
            if self.world.is_main:
                note(
                    f"The run now ends after {self.plan.minutes:g} minutes, about step {self.training.steps:,}, not "
                    f"at {before:,}."
                )
        self.planned()
        if self.world.is_main:
            note(self.introduce())

    def result(self) -> dict[str, Any]:
        """What was reached."""
        seconds = self.run.elapsed()
        return {
            "folder": str(self.plan.out), "steps": self.training.done, "tokens": self.tokens,
            "seconds": round(seconds, 1), "tokens_per_second": round(self.tokens / max(seconds, 1e-9), 1),
            **self.found,
        }  # fmt: skip

    # ---- the clock

    def _last_step(self, seconds_a_step: float) -> int:
        """The end of the run, by this speed: rank 0's word counts."""
        left = (self.plan.minutes * 60 - self.run.elapsed()) / seconds_a_step
        steps = self.training.done + max(1, round(left))
        return round(self.world.sums({"steps": float(steps) if self.world.is_main else 0.0})["steps"])

    def _replan(self) -> None:
        """At each mark of a time budget, set the end of the run by the speed seen so far."""
        if not self.timed or self.replanned >= len(REPLAN) or len(self.recent) < 10:
            return
        passed = self.run.elapsed() / (self.plan.minutes * 60)
        passed = self.world.sums({"passed": passed if self.world.is_main else 0.0})["passed"]
        if passed < REPLAN[self.replanned]:
            return
        self.replanned = sum(passed >= mark for mark in REPLAN)
        # Evaluations and saves still to come take their share, as they did so far.
        steps = self._last_step(self._seconds_a_step())
        if self.world.is_main:
            self.run.metrics.write({"step": self.training.done, "event": "replan", "steps": steps})
        self.training.set_steps(steps)
        self.planned()

    def _speed(self) -> float:
        (t0, n0), (t1, n1) = self.recent[0], self.recent[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def _seconds_a_step(self) -> float:
        (t0, _), (t1, _) = self.recent[0], self.recent[-1]
        return (t1 - t0) / max(1, len(self.recent) - 1)

    def _due(self, every: int) -> bool:
        return self.training.done % max(1, every) == 0 or self.training.done == self.training.steps

    def _save_due(self) -> bool:
        by_clock = self.world.anywhere(time.monotonic() - self.run.last_save > self.plan.save_minutes * 60)
        return by_clock or bool(self.plan.save_every and self.training.done % self.plan.save_every == 0)

    # ---- telling and keeping

    def _log(self, step: Step) -> None:
        now, done = self.run.elapsed(), step.step + 1
        self.recent = [*self.recent[-SEEN:], (now, self.tokens)]
        if not self.world.is_main:
            return
        memory = machine.peak_memory() / 2**30
        if self._due(self.plan.log_every) or done == 1:
            terms = {f"{name}_loss": value for name, value in step.losses.items()} if len(step.losses) > 1 else {}
            row = {
                "step": done, "tokens": self.tokens, "loss": step.loss, **terms, "lr": step.lr,
                "grad_norm": step.gradient, "epoch": self.epoch(step.step),
            }  # fmt: skip
            self.run.metrics.write(row)
            timing = {"seconds": now, "tokens_per_second": self._speed(), "memory_gb": memory}
            self.run.timing.write({"step": done, **timing})
            self.logged(row)
        left = (self.training.steps - done) * self._seconds_a_step()
        status(
            f"step {done:,}/{self.training.steps:,}  loss {step.loss:.3f}  lr {step.lr:.2e}  "
            f"{self._speed():,.0f} {self.unit}/s  {memory:.1f} GB  {_clock(left)} to go"
        )

    def _evaluate(self) -> None:
        found = self.evaluate()
        if not found:
            return
        self.found = found
        if self.world.is_main:
            self.run.metrics.write({"step": self.training.done, "tokens": self.tokens, "eval": True, **found})
            note(f"step {self.training.done:,}: " + "  ".join(f"{name} {value:.4g}" for name, value in found.items()))

    def _save(self) -> None:
        own = {
            "tokens": self.tokens, "replanned": self.replanned, "evaluation": self.found, "minutes": self.plan.minutes
        }  # fmt: skip
        self.run.save(self.training, self.about, own)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"
