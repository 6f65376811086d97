"""A run that teaches a left-to-right model, from start (or resume) to the finished folder."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import asdict
from typing import Any

import torch

from bertkit import machine
from bertkit.ancestors.learn_settings import LearnSettings
from bertkit.ancestors.left_to_right import LeftToRight, fill, network_of
from bertkit.ancestors.next_piece import NextPiece, Shape
from bertkit.ancestors.text_of_store import held_out_batches, plan, split, training_feed
from bertkit.data.store import Store
from bertkit.errors import Stopped, UserError
from bertkit.model.prepare import choose
from bertkit.telling import note, status
from bertkit.train import world as worlds
from bertkit.train.running import RunFolder, Signals
from bertkit.train.training import Step, Training
from bertkit.train.world import World

REPLAN = (0.05, 0.25, 0.5, 0.75, 0.9, 0.97)  # shares of a time budget at which the end is estimated anew


def learn(settings: LearnSettings) -> dict[str, Any]:
    """Run it. Returns what was reached; the folder opens with LeftToRight.load."""
    machine.set_up(settings.threads)
    world = worlds.join(machine.device_for(settings.device))
    try:
        with RunFolder(settings.out, world, resume=settings.resume) as run, Signals() as signals:
            return _Learning(settings, world, run, signals).go()
    finally:
        worlds.leave()


class _Learning:
    def __init__(self, settings: LearnSettings, world: World, run: RunFolder, signals: Signals) -> None:
        self.settings, self.world, self.run, self.signals = s, *_ = settings, world, run, signals
        steps = s.steps or (max(1, s.tokens // s.batch_tokens) if s.tokens else 0)
        if not steps and not s.minutes:
            raise UserError("How long shall it learn? Give --minutes, --steps or --tokens.")
        self.timed = not steps
        self.store = Store.open(s.data)
        documents, held_out = split(self.store, s.held_out, s.seed)
        # Rows of the word table: a multiple of 64 multiplies faster.
        vocabulary = -(-self.store.tokenizer.size // 64) * 64
        self.shape = Shape(s.kind, vocabulary, s.width, s.hidden, s.layers, s.context, s.direct, s.dropout)
        torch.manual_seed(s.seed)
        self.objective = NextPiece(network_of(self.shape))
        self.objective.set_precision(choose(s.precision, world.device))
        self.objective.to(world.device)
        self.feed = training_feed(self.store, documents, steps or 1000, s, world)
        self.training = Training(self.objective, self.feed, steps or 1000, s.loop, s.seed, world)
        self.held_out = held_out_batches(self.store, held_out, s)
        self.about = {"tokenizer": self.store.fingerprint, "model": repr(asdict(self.shape))}
        self.tokens = self.replanned = 0
        self.found: dict[str, float] = {}

    def go(self) -> dict[str, Any]:
        wanted = self.training.steps
        own = self.run.begin(self.training, self.settings, self.about)
        self.tokens, self.replanned = int(own.get("tokens", 0)), int(own.get("replanned", 0))
        self.found = dict(own.get("evaluation", {}))
        if not self.timed and self.training.steps != wanted:
            note(f"The run now ends at step {wanted:,}, not at {self.training.steps:,}.")
            self.training.steps = max(wanted, self.training.done)
        if self.timed and not own:
            self.training.steps = self._steps_left(self._seconds_a_step())
        self.feed.plan = plan(self.training.steps, self.settings)
        self._introduce()
        self.began, self.first = self.run.elapsed(), self.training.done
        for step in self.training:
            self.tokens += step.tokens
            self._log(step)
            self._replan()
            if self._due(self.settings.eval_every or math.ceil(self.training.steps / 10)):
                self._evaluate()
            stop = self.world.anywhere(bool(self.signals.asked))
            if stop or self._save_due():
                self._save()
            if stop:
                self._finish()
                raise Stopped(
                    self.signals.asked or 15,
                    f"saved at step {self.training.done} of {self.training.steps} in {self.settings.out}; "
                    "continue with --resume.",
                )
        if not self.found:
            self._evaluate()
        self._save()
        return self._finish()

    def _introduce(self) -> None:
        s = self.settings
        numbers = sum(p.numel() for p in self.objective.parameters())
        precision = str(self.objective.network.dtype).removeprefix("torch.")
        if self.world.speaks:
            note(
                f"{s.kind}: {numbers / 1e6:.1f}M parameters, the vocabulary's product in {precision}; "
                f"{self.training.steps:,} steps of about {s.batch_tokens:,} tokens."
            )

    # ---- the clock

    def _seconds_a_step(self) -> float:
        """From a few steps of a copy; the run itself is untouched."""
        trial = Training(copy.deepcopy(self.objective), self.feed, 1000, self.settings.loop, self.settings.seed)
        times = [time.perf_counter()]
        for _ in trial:
            times.append(time.perf_counter())
            if len(times) > 4 and times[-1] - times[0] > min(10.0, self.settings.minutes * 60 * 0.04):
                break
        return (times[-1] - times[2]) / (len(times) - 3)  # the first steps fill caches and are slower

    def _steps_left(self, seconds_a_step: float) -> int:
        """The last step, by this speed: rank 0's word counts."""
        left = (self.settings.minutes * 60 - self.run.elapsed()) / seconds_a_step
        steps = self.training.done + max(1, round(left))
        return round(self.world.sums({"steps": float(steps) if self.world.speaks else 0.0})["steps"])

    def _replan(self) -> None:
        """At each mark of a time budget, set the end of the run by the speed seen so far."""
        done = self.training.done - self.first
        if not self.timed or self.replanned >= len(REPLAN) or done < 10:
            return
        passed = self.run.elapsed() / (self.settings.minutes * 60)
        passed = self.world.sums({"passed": passed if self.world.speaks else 0.0})["passed"]
        if passed < REPLAN[self.replanned]:
            return
        self.replanned = sum(passed >= mark for mark in REPLAN)
        steps = self._steps_left((self.run.elapsed() - self.began) / done)
        if self.world.speaks:
            self.run.metrics.write({"step": self.training.done, "event": "replan", "steps": steps})
        self.training.set_steps(steps)
        self.feed.plan = plan(steps, self.settings)

    def _due(self, every: int) -> bool:
        return self.training.done % max(1, every) == 0 or self.training.done == self.training.steps

    def _save_due(self) -> bool:
        by_clock = self.world.anywhere(time.monotonic() - self.run.last_save > self.settings.save_minutes * 60)
        return by_clock or bool(self.settings.save_every and self.training.done % self.settings.save_every == 0)

    # ---- telling and keeping

    def _log(self, step: Step) -> None:
        done, seconds = step.step + 1, self.run.elapsed()
        if not self.world.speaks:
            return
        if self._due(self.settings.log_every) or not step.step:
            row = {"loss": step.loss, "lr": step.lr, "grad_norm": step.gradient, "epoch": self.feed.epoch(step.step)}
            self.run.metrics.write({"step": done, "tokens": self.tokens, **row})
            memory = machine.peak_memory() / 2**30
            self.run.timing.write({"step": done, "seconds": seconds, "memory_gb": memory})
        status(f"step {done:,}/{self.training.steps:,}  loss {step.loss:.3f}  {self.tokens / seconds:,.0f} tokens/s")

    def _evaluate(self) -> None:
        """Loss, accuracy and perplexity on the held-out text, under the names a GPT run gives them."""
        if not self.held_out:
            return
        objective = self.objective.eval()
        sums = {"next": 0.0, "next:right": 0.0, "count": 0.0}
        for batch in self.held_out:
            for name, value in objective.judge(batch.to(self.world.device)).items():
                sums[name] += value
            sums["count"] += objective.counts(batch)["next"]
        loss = sums["next"] / sums["count"]
        self.found = {
            "lm_loss": loss, "lm_accuracy": sums["next:right"] / sums["count"], "perplexity": math.exp(min(50.0, loss)),
        }  # fmt: skip
        if self.world.speaks:
            self.run.metrics.write({"step": self.training.done, "tokens": self.tokens, "eval": True, **self.found})
            note(f"step {self.training.done:,}: " + "  ".join(f"{k} {v:.4g}" for k, v in self.found.items()))

    def _save(self) -> None:
        own = {"tokens": self.tokens, "replanned": self.replanned, "evaluation": self.found}
        self.run.save(self.training, self.about, own)

    def _finish(self) -> dict[str, Any]:
        """Write the model into the run's folder."""
        seconds = self.run.elapsed()
        result = {
            "folder": str(self.settings.out), "steps": self.training.done, "tokens": self.tokens,
            "seconds": round(seconds, 1), "tokens_per_second": round(self.tokens / max(seconds, 1e-9), 1), **self.found,
        }  # fmt: skip
        weights = self.training.tensors()
        if self.world.speaks:
            chosen = weights.get("average", weights["weights"])
            with torch.device("meta"):
                network = network_of(self.shape)
            fill(network, {k.removeprefix("network."): v.cpu() for k, v in chosen.items()}, "the run")
            LeftToRight(network, self.store.tokenizer, {"result": result}).save(self.settings.out)
        return result
