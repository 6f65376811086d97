"""Training an ELMo, from running text (or a saved checkpoint) to the finished folder."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import numpy as np
import torch

from bertkit import machine
from bertkit.ancestors.elmo import Elmo
from bertkit.ancestors.elmo_feed import WordFeed, stretches
from bertkit.ancestors.elmo_model import GuessBothWays
from bertkit.ancestors.elmo_settings import ElmoSettings
from bertkit.ancestors.elmo_words import Ids, Numbered, read_text
from bertkit.data.read_documents import read_documents
from bertkit.errors import Stopped, UserError
from bertkit.telling import note, status
from bertkit.train.running import RunFolder, Signals
from bertkit.train.training import Step, Training
from bertkit.train.world import World

REPLAN = (0.25, 0.5, 0.75, 0.9, 0.97)  # shares of a time budget at which the end is estimated anew
FIRST_GUESS = 1000  # steps of a run whose speed is not known yet


def train(settings: ElmoSettings) -> dict[str, Any]:
    """Run it. Returns what was reached; the model is in settings.out."""
    machine.set_up(settings.threads)
    world = World(device=machine.device_for(settings.device))
    lexicon, text = read_text(
        read_documents(settings.texts), vocabulary=settings.vocabulary, units=settings.units, cased=settings.cased
    )
    elmo = Elmo(lexicon, settings.model, settings.seed)
    elmo.model.to(world.device)
    with RunFolder(settings.out, world, resume=settings.resume) as run, Signals() as signals:
        return _Run(settings, elmo, text, run, signals, world).go()


class _Run:
    def __init__(
        self, settings: ElmoSettings, elmo: Elmo, text: Numbered, run: RunFolder, signals: Signals, world: World
    ) -> None:
        self.elmo, self.run, self.signals, self.world = elmo, run, signals, world
        self.settings = s = settings
        kept, held = _split(text, s.held_out, s.seed)
        rows = [stretches(text.ends[numbers], text.ends[numbers + 1], s.length) for numbers in (kept, held)]
        self.feed = WordFeed(text, rows[0], batch_words=s.batch_words, seed=s.seed)
        enough = np.cumsum(rows[1][:, 1] - rows[1][:, 0]) <= s.eval_words
        self.held_out = WordFeed(text, rows[1][enough], batch_words=s.batch_words, seed=0) if enough.any() else None
        self.timed = not s.steps
        self.objective = GuessBothWays(elmo.model)
        self.training = Training(self.objective, self.feed, s.steps or FIRST_GUESS, s.loop, s.seed, world)
        self.about = {"lexicon": elmo.lexicon.fingerprint, "model": repr(s.model)}
        self.tokens = self.replanned = 0

    def go(self) -> dict[str, Any]:
        s, training = self.settings, self.training
        own = self.run.begin(training, s, self.about)
        if not self.timed and training.steps != s.steps:
            note(f"The run now ends at step {s.steps:,}, not at {training.steps:,}.")
            training.steps = max(s.steps, training.done)
        self.tokens, self.replanned = int(own.get("tokens", 0)), int(own.get("replanned", 0))
        found: dict[str, float] = dict(own.get("evaluation", {}))
        if self.timed and not own:
            left = s.minutes * 60 - self.run.elapsed()
            training.steps = max(1, round(left / self._measured(min(10.0, left * 0.04))))
        self.sitting = (time.monotonic(), training.done)
        note(
            f"ELMo: {self.elmo.parameters / 1e6:.1f}M parameters, {training.steps:,} steps of {s.batch_words:,} words."
        )
        for step in training:
            self.tokens += step.tokens
            self._log(step)
            if self.timed:
                self._replan()
            done = step.step + 1
            if self.held_out and (done % self._eval_every() == 0 or done == training.steps):
                found = self._evaluate(self.held_out)
            stop = self.signals.asked
            late = time.monotonic() - self.run.last_save > s.save_minutes * 60
            if stop or late or (s.save_every and done % s.save_every == 0):
                self._save(found)
            if stop:
                self._finish(found)
                raise Stopped(stop, f"saved at step {done} of {training.steps} in {s.out}; continue with --resume.")
        self._save(found)
        return self._finish(found)

    def _measured(self, seconds: float) -> float:
        """Seconds a step takes: a copy is trained for a moment."""
        times = [time.perf_counter()]
        for _ in Training(copy.deepcopy(self.objective), self.feed, FIRST_GUESS, self.settings.loop, 0, self.world):
            times.append(time.perf_counter())
            if len(times) > 4 and times[-1] - times[0] > seconds:
                break
        return (times[-1] - times[2]) / (len(times) - 3)  # the first steps are slower than all that follow

    def _replan(self) -> None:
        """Near each mark of the time budget, set the end of the run by the speed seen so far."""
        budget = self.settings.minutes * 60
        passed = self.run.elapsed() / budget
        since, done_before = self.sitting
        done = self.training.done - done_before
        if self.replanned >= len(REPLAN) or passed < REPLAN[self.replanned] or done < 3:
            return
        while self.replanned < len(REPLAN) and passed >= REPLAN[self.replanned]:
            self.replanned += 1
        # Evaluations and saves still to come take their share, as they did so far.
        left = max(0.0, budget * (1 - passed)) / ((time.monotonic() - since) / done)
        self.training.set_steps(self.training.done + max(1, round(left)))

    def _eval_every(self) -> int:
        return self.settings.eval_every or max(1, math.ceil(self.training.steps / 10))

    @torch.no_grad()
    def _evaluate(self, held_out: WordFeed) -> dict[str, float]:
        """Mean losses and the perplexity ahead on the held-out text."""
        self.objective.eval()
        sums, count = dict.fromkeys(self.objective.weights, 0.0), 0
        for number in range(held_out.batches):
            (batch,) = held_out.step(number)
            judged = self.objective.judge(batch.to(self.world.device))
            sums = {name: value + judged[name] for name, value in sums.items()}
            count += batch.tokens - batch.texts
        found = {f"held_out_{name}": value / max(1, count) for name, value in sums.items()}
        found["perplexity"] = math.exp(min(700.0, found["held_out_ahead"]))
        self.run.metrics.write({"step": self.training.done, "tokens": self.tokens, "eval": True, **found})
        note(f"step {self.training.done:,}: " + "  ".join(f"{name} {value:.4g}" for name, value in found.items()))
        return found

    def _log(self, step: Step) -> None:
        done, s = step.step + 1, self.settings
        seconds = self.run.elapsed()
        if step.step == 0 or done % s.log_every == 0 or done == self.training.steps:
            losses = {f"{name}_loss": value for name, value in step.losses.items()}
            row = {"step": done, "tokens": self.tokens, "loss": step.loss, **losses}
            row |= {"lr": step.lr, "grad_norm": step.gradient, "epoch": self.feed.epoch(step.step)}
            self.run.metrics.write(row)
            self.run.timing.write({"step": done, "seconds": seconds, "memory_gb": machine.peak_memory() / 2**30})
        status(f"step {done:,}/{self.training.steps:,}  loss {step.loss:.3f}  {self.tokens / seconds:,.0f} words/s")

    def _save(self, evaluation: dict[str, float]) -> None:
        own = {"tokens": self.tokens, "replanned": self.replanned, "evaluation": evaluation}
        self.run.save(self.training, self.about, own)

    def _finish(self, evaluation: dict[str, float]) -> dict[str, Any]:
        s, done = self.settings, self.training.done
        result = {
            "folder": str(s.out), "steps": done, "tokens": self.tokens, "parameters": self.elmo.parameters,
            "seconds": round(self.run.elapsed(), 1), **evaluation,
        }  # fmt: skip
        weights = self.training.average or dict(self.objective.named_parameters())
        final = Elmo(self.elmo.lexicon, s.model)
        final.model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()})
        final.about = {"result": result}
        final.save(s.out)
        return result


def _split(text: Numbered, share: float, seed: int) -> tuple[Ids, Ids]:
    """Numbers of the sentences to learn from, and of those held out."""
    if not 0 <= share < 1:
        raise UserError(f"held_out is {share}; it must be from 0 up to 1.")
    order = np.random.default_rng((seed, 4)).permutation(len(text))
    held = min(round(len(text) * share), len(text) - 1)
    return np.sort(order[held:]), order[:held]
