"""One run, for everything that trains: budget, evaluation, best weights and patience, saving, signals, resume, log.

What is trained, how it is scored and how it is written at the end are the subclass's business. Whatever ranks must
agree on (saving, stopping, the last step) is decided by all of them together, never by one rank's clock or signal.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from bertkit import machine
from bertkit.data.feed import CountedFeed
from bertkit.errors import Stopped
from bertkit.notify import duration, note, status
from bertkit.settings.training import Plan
from bertkit.training.checkpoints import under_current_names
from bertkit.training.loop import Step, Training, try_out
from bertkit.training.optimizer import named
from bertkit.training.run_folder import MemoryFolder, RunFolder, Signals

FIRST_GUESS = 1000  # steps of a run whose speed is not known yet
REPLAN = (0.05, 0.25, 0.5, 0.75, 0.9, 0.97)  # fractions of a time budget at which the end is estimated again
FEWEST_TIMED = 5  # steps before the first estimate
SEEN = 200  # number of latest steps from which speed is measured
Result = TypeVar("Result")  # what a finished run returns


class Run(Generic[Result]):
    """One training run, from start or resume to the finished folder. After `go`:

    scores: the newest evaluation. tokens: all tokens seen, also before an interruption.
    best, best_step: the best evaluation and its step.
    stopped: why the run ended before its last step; "" if it did not.
    shortened: how many of the planned steps fit into the minutes; "" if all did.
    """

    unit = ""  # what is counted ("tokens", "words") in the rows of metrics.jsonl; "": nothing is

    def __init__(
        self,
        settings: Any,
        plan: Plan,
        training: Training,
        run: RunFolder | MemoryFolder,
        signals: Signals | None = None,
        about: Mapping[str, Any] | None = None,
        *,
        feed: CountedFeed | None = None,
        keep_best: nn.Module | None = None,
    ) -> None:
        """settings: as written to run.toml. about: what must not change when the run is resumed.

        feed: the training's feed, if it counts passes. keep_best: the module that gets the weights of the best
        evaluation at the end; without it, the last weights stay.
        """
        self.run_settings, self.plan, self.training, self.run = settings, plan, training, run
        self.signals, self.about, self.feed, self.keep_best = signals or Signals(), about or {}, feed, keep_best
        self.world = training.world
        self.tokens = self.replanned = self.best_step = self.bad_evaluations = 0
        self.saved_step = -1  # of the newest checkpoint
        self.scores: dict[str, float] = {}
        self.best: dict[str, float] = {}
        self.best_rank: tuple[float, ...] = ()
        self.best_weights: dict[str, Tensor] = {}
        self.stopped = self.shortened = ""
        self.recent: list[tuple[float, int]] = []

    # ---- what a subclass overrides

    def introduce(self) -> str:
        """Every run: the message before the first step; "" for none."""
        return ""

    def planned(self) -> None:
        """Called when a run's last step is known or has changed, to plan the data by it."""

    def evaluate(self) -> dict[str, float]:
        """Every run: its scores on the held-out data; {} if there is none."""
        return {}

    def rank(self, scores: dict[str, float]) -> tuple[float, ...]:
        """Every run: the key that makes one evaluation the best, larger is better; the first score by default."""
        return (next(iter(scores.values())),)

    def eval_interval(self) -> int:
        """Every run: the steps between evaluations; the last step is always evaluated."""
        return self.plan.eval_every or math.ceil(self.training.steps / self.plan.evals)

    def finish(self) -> Result:
        """Every run: write the model as it is now. Returns the run's result."""
        raise NotImplementedError

    def logged(self, row: dict[str, Any]) -> None:
        """Called after a run has written a row to metrics.jsonl."""

    def tell(self, message: str) -> None:
        """Report how a run goes; runs in memory only update the status line."""
        if self.world.is_main:
            note(message)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights of a run's `keep_best`."""
        assert self.keep_best is not None
        return {name: parameter.detach().clone() for name, parameter in named(self.keep_best).items()}

    def restore_best(self) -> None:
        """Load a run's best weights in place of the last."""
        if self.keep_best is not None and self.best_weights:
            self.keep_best.load_state_dict(self.best_weights, strict=False)

    # ---- the run

    def go(self) -> Result:
        """A run from the first step, or the newest checkpoint, to the last."""
        self._begin()
        if self._out_of_patience():  # the signal came at that very step
            self.stopped = self._early()
        else:
            self._train()
        if not self.scores and not self.best:
            self._evaluate()
        if self.saved_step != self.training.done:
            self._save()  # so that nothing is lost if what follows fails: a full disk, a signal
        self.restore_best()
        return self.finish()

    def _train(self) -> None:
        """Train to the end, or until time, patience or a signal stops the run."""
        for step in self.training:
            self.tokens += step.tokens
            self._log(step)
            self._replan()
            late = self._late()
            if self._due(self.eval_interval()) or late:
                self._evaluate()
                if self._out_of_patience():
                    self.stopped = self._early()
                if late and self.training.done < self.training.steps:
                    self.stopped = f"stopped after {self.plan.minutes:g} minutes"
            # A rank that received no signal stops with the number of the one that did.
            stop = self.world.most(self.signals.asked)
            if stop or self._save_due():
                self._save()
            if stop:
                self._interrupt(stop)
            if self.stopped:
                self.tell(self.stopped + ".")
                break

    def _interrupt(self, signal: int) -> None:
        """End a run that a signal stopped, after saving."""
        if self.keep_best is None:  # otherwise the best weights are not chosen yet, and the last ones are not a result
            self.finish()
        raise Stopped(
            signal,
            f"saved at step {self.training.done} of {self.training.steps} in {self.run.path}; continue with --resume.",
        )

    def _begin(self) -> None:
        """Begin a run or resume it from its checkpoint, and plan its steps."""
        plan, training, planned = self.plan, self.training, self.training.steps
        if plan.ignored:
            self.tell(plan.ignored)
        saved = self.run.begin(training, self.run_settings, self.about)
        self._restore(saved)
        self.saved_step = training.done if saved else -1
        if saved and not plan.timed and training.steps != planned:
            self.tell(f"The run now ends at step {planned:,}, not at {training.steps:,}.")
            training.steps = max(planned, training.done)
        if plan.timed and not plan.capped and not saved:
            moment = min(20.0, plan.seconds * 0.04)
            training.steps = self._last_step(try_out(training, moment).seconds_per_step)
        if plan.timed and training.done and saved.get("minutes", plan.minutes) != plan.minutes:
            before, self.replanned = training.steps, 0
            training.steps = self._last_step(self.run.elapsed() / training.done)
            self.tell(
                f"The run now ends after {plan.minutes:g} minutes, about step {training.steps:,}, not at {before:,}."
            )
        self.planned()
        if introduction := self.introduce():
            self.tell(introduction)

    def _restore(self, saved: dict[str, Any]) -> None:
        """Restore what a run's `_save` saved."""
        self.tokens, self.replanned = int(saved.get("tokens", 0)), int(saved.get("replanned", 0))
        self.scores = dict(saved.get("evaluation", {}))
        self.best_step, self.bad_evaluations = int(saved.get("best_step", 0)), int(saved.get("bad", 0))
        if not self.best_step:
            return
        best = saved["best"]
        self.best = dict(best) if isinstance(best, dict) else {"score": float(best)}  # earlier versions saved a number
        self.best_rank = self.rank(self.best)
        if self.keep_best is not None and self.run.generation:
            tensors = self.run.generation.tensors("best")
            self.best_weights = under_current_names(tensors, self.keep_best.state_dict())

    def result(self) -> dict[str, Any]:
        """A summary of the run."""
        seconds = self.run.elapsed()
        return {
            "folder": str(self.run.path), "steps": self.training.done, "tokens": self.tokens,
            "seconds": round(seconds, 1), "tokens_per_second": round(self.tokens / max(seconds, 1e-9), 1),
            **self.scores,
        }  # fmt: skip

    # ---- the clock

    def _last_step(self, seconds_per_step: float) -> int:
        """The last step of the run at this speed; rank 0 decides."""
        last = self.plan.fitting(self.training.done, self.run.elapsed(), seconds_per_step)
        return round(self.world.sums({"steps": float(last) if self.world.is_main else 0.0})["steps"])

    def _replan(self) -> None:
        """Set the end of a training run by its speed so far, at each mark of a time budget."""
        if not self.plan.timed or self.replanned >= len(REPLAN) or len(self.recent) < FEWEST_TIMED:
            return
        passed = self.run.elapsed() / self.plan.seconds
        passed = self.world.sums({"passed": passed if self.world.is_main else 0.0})["passed"]
        if passed < REPLAN[self.replanned]:
            return
        self.replanned = sum(passed >= mark for mark in REPLAN)
        # The speed includes evaluations and saves, so future ones are accounted for.
        steps = self._last_step(self._seconds_per_step())
        if self.plan.capped:
            self._report_shortened(steps)
            if steps == self.training.steps:
                return
        if self.world.is_main:
            self.run.metrics.write({"step": self.training.done, "event": "replan", "steps": steps})
        self.training.set_steps(steps)
        self.planned()

    def _report_shortened(self, steps: int) -> None:
        """Report how many of the planned steps fit into the time."""
        before, plan = self.shortened, self.plan
        fits = f"{steps:,} of {plan.steps:,} steps fit into {plan.minutes:.1f} minutes"
        self.shortened = fits if steps < plan.steps else ""
        if self.shortened and not before:
            self.tell(self.shortened + ".")

    def _late(self) -> bool:
        plan = self.plan
        return plan.deadline and bool(plan.minutes) and self.world.anywhere(self.run.elapsed() > plan.minutes * 60)

    def _speed(self) -> float:
        (t0, n0), (t1, n1) = self.recent[0], self.recent[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def _seconds_per_step(self) -> float:
        (t0, _), (t1, _) = self.recent[0], self.recent[-1]
        return max(1e-9, (t1 - t0) / max(1, len(self.recent) - 1))

    def _due(self, every: int) -> bool:
        return self.training.done % max(1, every) == 0 or self.training.done == self.training.steps

    def _save_due(self) -> bool:
        by_clock = self.world.anywhere(time.monotonic() - self.run.last_save > self.plan.save_minutes * 60)
        return by_clock or bool(self.plan.save_every and self.training.done % self.plan.save_every == 0)

    # ---- log, evaluation, saving

    def _log(self, step: Step) -> None:
        """Write a step's row to metrics.jsonl and timing.jsonl, and report progress."""
        now, done = self.run.elapsed(), step.step + 1
        self.recent = [*self.recent[-SEEN:], (now, self.tokens)]
        if not self.world.is_main:
            return
        memory = machine.peak_memory() / 2**30
        if self._due(self.plan.log_every) or done == 1:
            row = self._row(step)
            self.run.metrics.write(row)
            timing = {"seconds": now, "tokens_per_second": self._speed(), "memory_gb": memory}
            self.run.timing.write({"step": done, **timing})
            self.logged(row)
        step_of, loss, lr = f"{done:,}/{self.training.steps:,}", f"{step.loss:.3f}", f"{step.lr:.2e}"
        used, left = f"{memory:.1f} GB", duration((self.training.steps - done) * self._seconds_per_step())
        if len(self.recent) < 2:  # a speed needs two steps
            status(f"step {step_of}  loss {loss}  lr {lr}  {used}")
        elif self.unit:
            speed = f"{self._speed():,.0f}"
            status(f"step {step_of}  loss {loss}  lr {lr}  {speed} {self.unit}/s  {used}  {left} to go")
        else:
            status(f"step {step_of}  loss {loss}  lr {lr}  {used}  {left} to go")

    def _row(self, step: Step) -> dict[str, Any]:
        """A run's step in metrics.jsonl."""
        rates = {"lr": step.lr, "grad_norm": step.gradient}
        if not self.unit or self.feed is None:
            return {"step": step.step + 1, "loss": step.loss, **rates}
        terms = {f"{name}_loss": value for name, value in step.losses.items()} if len(step.losses) > 1 else {}
        counted = {"step": step.step + 1, "tokens": self.tokens}
        return {**counted, "loss": step.loss, **terms, **rates, "epoch": self.feed.epoch(step.step)}

    def _evaluate(self) -> None:
        """A run scores the held-out data and keeps the weights if they are the best so far."""
        with self.training.averaged():  # averaged weights are the ones that are written
            scores = self.evaluate()
        if not scores:
            return
        self.scores, rank, done = scores, self.rank(scores), self.training.done
        better = rank > self.best_rank
        self.bad_evaluations = 0 if better else self.bad_evaluations + 1
        kept = rank >= self.best_rank  # on a tie the later one: it has trained longer
        if kept:
            self.best, self.best_rank, self.best_step = scores, rank, done
            if self.keep_best is not None:
                self.best_weights = self.weights()
        if self.world.is_main:
            counted = {"tokens": self.tokens} if self.unit else {}
            self.run.metrics.write({"step": done, **counted, "eval": True, **scores})
        listing = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
        marked = kept and self.keep_best is not None
        self.tell(f"step {done:,}: {listing}  ← best" if marked else f"step {done:,}: {listing}")

    def _out_of_patience(self) -> bool:
        plan, done = self.plan, self.training.done
        enough = plan.patience and self.bad_evaluations >= plan.patience
        return bool(enough) and plan.patience_from <= done < self.training.steps

    def _early(self) -> str:
        return f"stopped early: {self.bad_evaluations} evaluations without a better score"

    def _save(self) -> None:
        """Save a checkpoint with the run's own state: tokens, best score, patience."""
        state = {
            "tokens": self.tokens, "replanned": self.replanned, "evaluation": self.scores,
            "minutes": self.plan.minutes, "best": self.best, "best_step": self.best_step, "bad": self.bad_evaluations,
        }  # fmt: skip
        self.run.save(self.training, self.about, state, {"best": self.best_weights} if self.best_weights else None)
        self.saved_step = self.training.done
        machine.trim_memory()  # batches of every shape leave gaps in the heap: without this it grows for hours


class MemoryRun(Run[dict[str, Any]]):
    """A training run of seconds or minutes inside another program.

    It leaves no files, and only updates the status line.
    """

    def __init__(self, plan: Plan, training: Training, folder: MemoryFolder, keep_best: nn.Module | None) -> None:
        super().__init__(None, plan, training, folder, keep_best=keep_best)

    def tell(self, message: str) -> None:
        """A training run in memory updates the status line."""
        status(message)

    def finish(self) -> dict[str, Any]:
        """A training run in memory writes nothing: the caller already has the model."""
        return {}


def run_in_view(
    training: Training, seconds: float, every: int, shown: Callable[[], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Train for some seconds in front of someone: {step, loss, seconds} and what is `shown`, every few steps.

    The last event is {end: steps or seconds}, by which of them ended it.
    """
    began, spent, last = time.monotonic(), 0.0, False
    for step in training:
        spent, last = time.monotonic() - began, step.step + 1 == training.steps
        if (step.step + 1) % every == 0 or last or spent > seconds:
            training.objective.eval()
            yield {"step": step.step + 1, "loss": step.loss, "seconds": spent, **shown()}
            training.objective.train()
        if spent > seconds:
            break
    training.objective.eval()
    yield {"end": "steps" if last else "seconds"}
