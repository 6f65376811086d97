"""A pretraining run from start (or resume) to the finished folder."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from torch import Tensor

from bertkit import machine
from bertkit.checkpoint import folder as model_folder
from bertkit.data.feed import PretrainingFeed, phases
from bertkit.errors import Stopped, UserError
from bertkit.model.heads import Model
from bertkit.pretraining.build import Built, build, make_feed
from bertkit.pretraining.cost import measure
from bertkit.pretraining.evaluate import Evaluation
from bertkit.pretraining.settings import PretrainSettings
from bertkit.telling import note, status
from bertkit.train import world as worlds
from bertkit.train.metrics_log import read_metrics
from bertkit.train.running import RunFolder, Signals
from bertkit.train.saving import atomic_write, write_folder
from bertkit.train.training import Step, Training
from bertkit.train.world import whole

REPLAN = (0.25, 0.5, 0.75, 0.9, 0.97)  # shares of a time budget at which the end is estimated anew


def pretrain(settings: PretrainSettings) -> dict[str, Any]:
    """Run it. Returns what was reached."""
    threads = machine.set_up(settings.threads)
    world = worlds.join(machine.device_for(settings.device))
    try:
        built = build(settings, world)
        run = RunFolder(settings.out, world, resume=settings.resume)
        with run, Signals() as signals:
            return _Run(built, run, signals, world, threads).go()
    finally:
        worlds.leave()


class _Run:
    def __init__(self, built: Built, run: RunFolder, signals: Signals, world: worlds.World, threads: int) -> None:
        self.built, self.run, self.signals, self.world, self.threads = built, run, signals, world, threads
        self.settings = s = built.settings
        self.about = {"tokenizer": built.store.fingerprint, "model": _identity(built)}
        steps = s.steps or (max(1, s.tokens // s.batch_tokens) if s.tokens else 0)
        if not steps and not s.minutes:
            raise UserError(
                "How long shall it train? Give --minutes, --steps or --tokens (and --plan to see the cost)."
            )
        self.timed = not steps
        self.feed = make_feed(built, steps or 1000, world)
        self.training = Training(built.objective, self.feed, steps or 1000, s.loop, s.seed, world)
        self.evaluation = self._evaluation()
        self.tokens = 0
        self.recent: list[tuple[float, int]] = []

    def _evaluation(self) -> Evaluation | None:
        """None where nothing is held out, or what is held out is too short for this packing."""
        if not len(self.built.held_out):
            return None
        try:
            return Evaluation(self.built, self.world)
        except UserError as reason:
            if self.world.speaks:
                note(f"No evaluation while training: of the held-out documents alone, this is true: {reason}")
            return None

    def go(self) -> dict[str, Any]:
        wanted = self.training.steps
        own = self.run.begin(self.training, self.settings, self.about)
        if not self.timed and self.training.steps != wanted:
            note(f"The run now ends at step {wanted:,}, not at {self.training.steps:,}.")
            self.training.steps = max(wanted, self.training.done)
        self.tokens = int(own.get("tokens", 0))
        self.replanned = int(own.get("replanned", 0))
        if self.timed and not own:
            per_step = measure(
                self.built, self.world, seconds=min(20.0, self.settings.minutes * 60 * 0.04)
            ).seconds_a_step
            left = self.settings.minutes * 60 - self.run.elapsed()
            shared = self.world.sums({"steps": left / per_step if self.world.speaks else 0.0})
            self.training.steps = max(1, round(shared["steps"]))
        self.feed.plan = self._phases()
        if self.world.speaks:
            self._introduce()
        best: dict[str, float] = dict(own.get("evaluation", {}))
        for step in self.training:
            self.tokens += step.tokens
            self._log(step)
            if self.timed:
                self._replan()
            if self._due(step.step + 1, self._eval_every()):
                best = self._evaluate()
            stop = self.world.anywhere(bool(self.signals.asked)) if self.world.size > 1 else bool(self.signals.asked)
            if stop or self._save_due(step.step + 1):
                self._save(best)
            if stop:
                self._finish(best)
                raise Stopped(
                    self.signals.asked or 15,
                    f"saved at step {self.training.done} of {self.training.steps} in {self.settings.out}; "
                    "continue with --resume.",
                )
        if self.evaluation and not best:
            best = self._evaluate()
        self._save(best)
        return self._finish(best)

    def _phases(self) -> list[Any]:
        s = self.settings
        return phases(self.training.steps, s.length_plan, s.batch_tokens, s.ramp)

    def _eval_every(self) -> int:
        return self.settings.eval_every or max(1, math.ceil(self.training.steps / 10))

    def _due(self, done: int, every: int) -> bool:
        return bool(every) and (done % every == 0 or done == self.training.steps)

    def _save_due(self, done: int) -> bool:
        by_clock = time.monotonic() - self.run.last_save > self.settings.save_minutes * 60
        by_clock = self.world.anywhere(by_clock) if self.world.size > 1 else by_clock
        return by_clock or (bool(self.settings.save_every) and done % self.settings.save_every == 0)

    def _introduce(self) -> None:
        model, s = self.built.model, self.settings
        parameters = sum(p.numel() for p in self.built.objective.parameters())
        precision = {"torch.float32": "fp32", "torch.bfloat16": "bf16"}[str(model.encoder.dtype)]
        note(
            f"{s.init or s.preset}: {parameters / 1e6:.1f}M parameters, {precision}, {self.threads} threads"
            f"{f', {self.world.size} processes' if self.world.size > 1 else ''}; "
            f"{len(self.built.train_documents):,} documents, {len(self.built.held_out):,} held out; "
            f"{self.training.steps:,} steps of about {s.batch_tokens:,} tokens."
        )

    def _log(self, step: Step) -> None:
        now = self.run.elapsed()
        self.recent = [*self.recent[-200:], (now, self.tokens)]
        if not self.world.speaks:
            return
        if self._due(step.step + 1, self.settings.log_every) or step.step == 0:
            row = {
                "step": step.step + 1, "tokens": self.tokens, "loss": step.loss, **_terms(step),
                "lr": step.lr, "grad_norm": step.gradient, "epoch": self.feed.epoch(step.step),
            }  # fmt: skip
            self.run.metrics.write(row)
            self.run.timing.write(
                {
                    "step": step.step + 1, "seconds": now, "tokens_per_second": self._speed(),
                    "memory_gb": machine.peak_memory() / 2**30,
                }
            )  # fmt: skip
            self._tensorboard(row)
        left = (self.training.steps - step.step - 1) * self._seconds_a_step()
        status(
            f"step {step.step + 1:,}/{self.training.steps:,}  loss {step.loss:.3f}  lr {step.lr:.2e}  "
            f"{self._speed():,.0f} tokens/s  {machine.peak_memory() / 2**30:.1f} GB  {_clock(left)} to go"
        )

    def _speed(self) -> float:
        (t0, n0), (t1, n1) = self.recent[0], self.recent[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def _seconds_a_step(self) -> float:
        (t0, _), (t1, _) = self.recent[0], self.recent[-1]
        return (t1 - t0) / max(1, len(self.recent) - 1)

    def _replan(self) -> None:
        """Near each mark of a time budget, set the end of the run by the speed seen so far."""
        if self.replanned >= len(REPLAN) or len(self.recent) < 10:
            return
        budget = self.settings.minutes * 60
        passed = self.run.elapsed() / budget
        passed = self.world.sums({"passed": passed if self.world.speaks else 0.0})["passed"]
        if passed < REPLAN[self.replanned]:
            return
        while self.replanned < len(REPLAN) and passed >= REPLAN[self.replanned]:
            self.replanned += 1
        # Evaluations and saves still to come take their share, as they did so far.
        per_step = self._seconds_a_step()
        left = self.world.sums({"left": budget * (1 - passed) / per_step if self.world.speaks else 0.0})["left"]
        steps = self.training.done + max(1, round(left))
        if self.world.speaks:
            self.run.metrics.write({"step": self.training.done, "event": "replan", "steps": steps})
        self.training.set_steps(steps)
        self.feed.plan = self._phases()

    def _evaluate(self) -> dict[str, float]:
        if self.evaluation is None:
            return {}
        found = self.evaluation()
        if self.world.speaks:
            self.run.metrics.write({"step": self.training.done, "tokens": self.tokens, "eval": True, **found})
            shown = "  ".join(f"{name} {value:.4g}" for name, value in found.items())
            note(f"step {self.training.done:,}: {shown}")
        return found

    def _save(self, evaluation: dict[str, float]) -> None:
        own = {"tokens": self.tokens, "replanned": self.replanned, "evaluation": evaluation}
        self.run.save(self.training, self.about, own)

    def _tensorboard(self, row: dict[str, Any]) -> None:
        if not self.settings.tensorboard:
            return
        if not hasattr(self, "board"):
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError("TensorBoard is not installed: pip install 'bertkit[tensorboard]'.") from None
            self.board = SummaryWriter(self.settings.out / "tensorboard")
        for name, value in row.items():
            if isinstance(value, (int, float)) and name != "step":
                self.board.add_scalar(name, value, row["step"])

    def _finish(self, evaluation: dict[str, float]) -> dict[str, Any]:
        """Write the model folder and the report."""
        seconds = self.run.elapsed()
        result = {
            "folder": str(self.settings.out), "steps": self.training.done, "tokens": self.tokens,
            "seconds": round(seconds, 1), "tokens_per_second": round(self.tokens / max(seconds, 1e-9), 1), **evaluation,
        }  # fmt: skip
        weights = self.training.tensors()
        if not self.world.speaks:
            return result
        for name, folder in self.built.folders.items():
            folder.about["facts"] = {
                "trained": f"{self.training.done:,} steps, {self.tokens:,} tokens, {seconds / 3600:.2f} hours",
                **{key: f"{value:.4g}" for key, value in evaluation.items()},
            }
            folder.about |= {"preset": self.settings.preset, "result": result}
            target = self.settings.out / name
            final = self._with(folder, weights.get("average", weights["weights"]))
            write_folder(target, lambda path, f=final: model_folder.write_folder(path, f))  # type: ignore[misc]
        self._report(result)
        return result

    def _with(self, folder: model_folder.Folder, weights: dict[str, Tensor]) -> model_folder.Folder:
        """The folder with these weights of the run (averaged, or gathered from all ranks) in a model of its own."""
        prefix = "generator." if folder is self.built.folders.get("generator") else "model."
        state = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        shared = {k: v for k, v in folder.model.state_dict().items() if k not in state}  # tied to the other model
        summary = folder.model.summary is not None
        model = Model(folder.model.config, dict.fromkeys(folder.model.heads, 0), summary=summary)
        model.load_state_dict({**{k: whole(v) for k, v in shared.items()}, **state})
        return replace(folder, model=model)

    def _report(self, result: dict[str, Any]) -> None:
        from bertkit.config import to_plain
        from bertkit.report.pretraining import pretraining_report

        timing = {row["step"]: row for row in read_metrics(self.run.path / "timing.jsonl")}
        rows = [row | timing.get(row["step"], {}) for row in read_metrics(self.run.path / "metrics.jsonl")]
        run = to_plain(self.settings) | {"about": result | {"machine": machine.look(self.threads)}}
        atomic_write(self.run.path / "report.html", pretraining_report(run, rows, lang="en"))


def _identity(built: Built) -> str:
    """The model's numbers as one line: a resumed run must have the same."""
    return repr(built.model.config)


def _terms(step: Step) -> dict[str, float]:
    return {f"{name}_loss": value for name, value in step.losses.items()} if len(step.losses) > 1 else {}


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


__all__ = ["PretrainingFeed", "pretrain"]
