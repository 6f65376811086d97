"""A fine-tuning run from data to a finished, calibrated, reported model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertkit import machine
from bertkit.checkpoint.folder import Folder, read_folder
from bertkit.checkpoint.locate import locate
from bertkit.checkpoint.pooling import Pooling
from bertkit.data.windows import Windows
from bertkit.errors import Stopped, UserError
from bertkit.model.crf import Crf
from bertkit.model.heads import Head, Model
from bertkit.model.inference import choose
from bertkit.model.layers import initialise
from bertkit.notify import note, status
from bertkit.objectives.supervised import Supervised
from bertkit.report.finetuning import FinetuneResult
from bertkit.runs.finetune import split as splits
from bertkit.runs.finetune.outcome import finish, finished_result, report
from bertkit.runs.finetune.start import starting_model, tell_unknown
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.training import LoopSettings
from bertkit.tasks.base import Item, Task
from bertkit.tasks.batches import SupervisedFeed, outputs_of
from bertkit.text.checks import by_line
from bertkit.training import distributed as worlds
from bertkit.training.checkpoints import under_current_names
from bertkit.training.loop import Training
from bertkit.training.objective import Objective
from bertkit.training.optimizer import named
from bertkit.training.run_folder import RunFolder, Signals

# ---- How fast each parameter learns in a fine-tuning.

WORDS_LIKE_BERTS = 0.04  # the size (root mean square) of BERT's word vectors, which the usual rates are made for
CRF_RATE = 1e-2  # a CRF's scores start from nothing and are compared with logits: at an encoder's rate they stay there


class Rates:
    """The peak rate of a run, and every parameter's share of it."""

    def __init__(self, settings: FinetuneSettings, model: Model) -> None:
        self.settings, self.model = settings, model
        self.peak = settings.lr or self._chosen()
        self.words = 1.0 if settings.freeze else self._words()

    def _chosen(self) -> float:
        """By width (narrow models learn faster); heads alone bear much more."""
        if self.settings.freeze:
            return 2e-3
        # 5e-5 for BERT-base. At width 256 six times that was seven points better on SST-2 (docs/results.md).
        narrow = 768 / self.model.config.width
        return 5e-5 * max(narrow, min(12.0, narrow**2))

    def _words(self) -> float:
        """Word vectors that grew larger than BERT's take larger steps: a rare word must be able to change its meaning.

        Some pretrainings (Muon's) leave them several times as large. On 6,000 rows of SST-2 `en` gained three points,
        on all 67,349 none (docs/results.md).
        """
        size = float(self.model.encoder.embeddings.tokens.weight.detach().float().square().mean().sqrt())
        return min(10.0, max(1.0, round(size / max(WORDS_LIKE_BERTS, self.model.config.init_std), 2)))

    def share(self, name: str) -> float:
        """A parameter's share of the rate: less in the layers below where so asked, more for large word vectors."""
        decay, depth = self.settings.layer_decay, self.model.config.unique_layers
        parts = name.split(".")
        if "crf" in parts:
            return CRF_RATE / self.peak
        if "encoder" not in parts:
            return 1.0
        number = int(parts[parts.index("layers") + 1]) if "layers" in parts else -1
        return float(decay ** (depth - number)) * (self.words if "tokens" in parts else 1.0)


# ---- A fine-tuning run from data to a finished, calibrated, reported model.

LEAST_STEPS = 300  # tiny sets need more passes: fewer steps are the main cause of failed fine-tuning
MOST_PASSES = 20


class Finetuning:
    """One run. After `go`, `result` holds all that is known of it. facts: more for the model's card."""

    facts: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self, settings: FinetuneSettings, split: splits.Split | None = None, labels: tuple[str, ...] = ()
    ) -> None:
        """split, labels: rows and label names that are in memory already, instead of those `settings` name."""
        self.settings = s = settings
        self.threads = machine.set_up(s.threads)
        self.world = worlds.join(machine.device_for(s.device))
        torch.manual_seed(s.seed)
        self.task: Task = self._task(labels)
        self.split = split or self._split()
        self.task.fit_labels(self.split.examples["train"])
        model = starting_model(s.model, self.task, self.split.examples["train"])
        self.settings = s = replace(s, model=model)
        for role in ("dev", "test"):
            self.task.check(self.split.examples.get(role, ()), str(getattr(s, role) or s.train))
        if s.class_weights:
            self.task.options["class_weights"] = splits.class_weights(self.task, self.split.examples["train"])
        self.folder = self._open()
        self.model: Model = self.folder.model
        self._shape_model()
        limit = s.max_tokens or min(self.model.config.max_tokens, 512)
        if limit > self.model.config.max_tokens:
            raise UserError(f"--max-tokens {limit} is more than this model sees ({self.model.config.max_tokens}).")
        self.windows = Windows(limit, s.on_long, s.overlap)
        self.items = {role: self._encoded(role, examples) for role, examples in self.split.examples.items()}
        self._tell_cut()
        tell_unknown(self.folder.tokenizer, self.items["train"], s.model)

    def _encoded(self, role: str, examples: Sequence[Any]) -> list[Item]:
        """The rows of a role as ids; one that cannot be is told by its line."""
        with by_line(
            [getattr(example, "line", 0) for example in examples],
            str(getattr(self.settings, role) or self.settings.train),
        ):
            return self.task.encode(examples, self.folder.tokenizer, self.windows)

    def _task(self, labels: tuple[str, ...]) -> Task:
        return splits.task_of(self.settings, labels)

    def _split(self) -> splits.Split:
        return splits.read_split(self.settings, self.task)

    def _open(self) -> Folder:
        """The starting model with this task's head."""
        s = self.settings
        heads = {self.task.head: self.task.outputs()} if self.task.head else {}
        # A model pretrained without dropout loses much by it: entity F1 75 → 70 with `en` (docs/results.md).
        numbers = dict.fromkeys(("dropout", "attention_dropout", "head_dropout"), s.dropout) if s.dropout >= 0 else {}
        folder = read_folder(locate(s.model), heads=heads, labels=self.task.labels, numbers=numbers)
        if s.language:
            config = folder.model.config
            if not config.causal or config.word_head != "plain" or not config.tied:
                raise UserError(f"--language {s.language:g} needs a GPT model; {s.model} is none. Leave it out.")
            # It has no weights of its own: the word vectors guess. It is taken away before the model is written.
            folder.model.heads["mlm"] = Head("mlm", config, 0, folder.model.encoder.dropout_masks)
        if not self.task.labels:
            folder.labels = self.task.output_names
        for key in ("id2label", "problem_type"):  # those of another task
            folder.raw_config.pop(key, None)
        folder.model.crf = Crf(len(self.task.labels)) if s.crf else None
        folder.pooling = self._pooling(folder.pooling) if self.task.makes_vectors else None
        return folder

    def _pooling(self, given: Pooling | None) -> Pooling:
        """How vectors are made: as the starting folder makes them where that can be done, else by the mean."""
        if given and given.refused:
            note(f"{self.settings.model} makes its vectors with {given.refused}; here they are learnt without.")
        # Prompts were not learnt with, so they stay behind.
        pooling = replace(given, kept={}) if given and not given.refused else Pooling()
        self.task.options["pool"] = pooling.mode
        return pooling

    def _shape_model(self) -> None:
        """Re-initialise top layers, freeze the encoder: as asked."""
        s, encoder = self.settings, self.model.encoder
        if s.reinit > len(encoder.layers):
            raise UserError(
                f"--reinit is {s.reinit}; the model has {len(encoder.layers)} layers. Ask for at most that."
            )
        if s.reinit:
            for layer in encoder.layers[-s.reinit :]:
                initialise(layer, self.model.config)
        if s.freeze:
            encoder.requires_grad_(False)
        encoder.dtype = choose(s.precision, self.world.device)
        self.model.to(self.world.device)

    def _tell_cut(self) -> None:
        for role, items in self.items.items():
            facts = splits.cut_facts(items)
            if facts["tokens_cut"]:
                note(
                    f"{role}: {facts['rows_cut']} of {facts['rows']} rows are cut, "
                    f"{facts['tokens_cut'] / facts['tokens']:.1%} of the tokens."
                )

    def _steps(self, a_pass: int) -> int:
        s = self.settings
        if s.steps:
            return s.steps
        passes = s.epochs or min(MOST_PASSES, max(3.0, LEAST_STEPS / a_pass))
        return max(1, math.ceil(passes * a_pass))

    def _feed(self) -> SupervisedFeed:
        return SupervisedFeed(self.items["train"], self.task, **self._sharing())

    def _sharing(self) -> dict[str, int]:
        """How the rows are cut into steps and shared out."""
        s = self.settings
        return {
            "batch": s.batch, "seed": s.seed, "micro_tokens": s.micro_tokens,
            "rank": self.world.rank, "ranks": self.world.size,
        }  # fmt: skip

    def _objective(self) -> Objective:
        return Supervised(self.model, self.task, self.settings.language)

    @property
    def command(self) -> str:
        """What makes this run again."""
        return f"bertkit finetune {self.settings.task} --config {self.settings.out}/run.toml --out OTHER"

    def go(self) -> FinetuneResult:
        """Train, keep the best, finish."""
        s = self.settings
        if done := finished_result(self):
            self.result = done
            return done
        feed = self._feed()
        self.rates = Rates(s, self.model)
        loop = LoopSettings(
            lr=self.rates.peak, warmup=s.warmup, schedule=s.schedule, decay=s.decay, clip=s.clip, eps=1e-8, beta2=0.999
        )
        training = Training(
            self._objective(), feed, self._steps(feed.steps_a_pass), loop, s.seed, self.world, scale=self.rates.share
        )
        about = {
            "model": repr(self.model.config), "labels": list(self.task.labels),
            "set of training rows": splits.digest(self.items["train"], self.task),
        }  # fmt: skip
        with RunFolder(s.out, self.world, resume=s.resume, overwrite=s.overwrite) as run, Signals() as signals:
            self._train(training, feed, run, signals, about)
            self.result = finish(self, run, training, feed)
            run.forget()
        return self.result

    def _train(
        self, training: Training, feed: SupervisedFeed, run: RunFolder, signals: Signals, about: dict[str, Any]
    ) -> None:
        s = self.settings
        own = run.begin(training, s, about)
        if own and (s.steps or s.epochs) and not s.minutes:  # the end may have been moved
            training.steps = max(self._steps(feed.steps_a_pass), training.done)
        elif own and not s.steps and own.get("minutes", s.minutes) != s.minutes and training.done > 4:
            training.steps = self._steps(feed.steps_a_pass)
            if s.minutes:
                self._fit_into_time(training, run.elapsed() / training.done, run.elapsed())
        self.best = float(own.get("best", -math.inf))
        self.best_step = int(own.get("best_step", 0))
        bad = int(own.get("bad", 0))
        best = run.generation.tensors("best") if run.generation and own else {}
        self.best_weights = under_current_names(best, self.model.state_dict())
        evals = s.evals or min(20, max(5, round(training.steps / feed.steps_a_pass)))
        every = max(1, training.steps // evals)
        if self.world.is_main:
            self._introduce(training, feed)
        seconds: list[float] = []
        last = time.monotonic()
        self.stopped = self.shortened = ""
        if s.patience and bad >= s.patience and training.done < training.steps:  # the signal came at that very step
            self.stopped = self._early(bad)
        for step in training if not self.stopped else ():
            now = time.monotonic()
            seconds, last = [*seconds[-50:], now - last], now
            if self.world.is_main:
                run.metrics.write({"step": step.step + 1, "loss": step.loss, "lr": step.lr, "grad_norm": step.gradient})
                left = (training.steps - step.step - 1) * float(np.mean(seconds))
                status(f"step {step.step + 1:,}/{training.steps:,}  loss {step.loss:.3f}  about {left:.0f} s to go")
            done = step.step + 1
            out_of_time = self.world.anywhere(bool(s.minutes) and run.elapsed() > s.minutes * 60)
            if s.minutes and done == 5 and not s.steps:
                self._fit_into_time(training, float(np.mean(seconds[1:] or seconds)), run.elapsed())
                every = max(1, training.steps // evals)
            if done % every == 0 or done == training.steps or out_of_time:
                bad = 0 if self._evaluate(run, done) else bad + 1
                if s.patience and bad >= s.patience and done < training.steps:
                    self.stopped = self._early(bad)
                if out_of_time and done < training.steps:
                    self.stopped = f"stopped after {s.minutes:g} minutes"
            stop = self.world.anywhere(bool(signals.asked))
            if stop or time.monotonic() - run.last_save > s.save_minutes * 60:
                self._save(run, training, about, bad)
            if stop:
                raise Stopped(
                    signals.asked, f"saved at step {done} of {training.steps} in {s.out}; continue with --resume."
                )
            if self.stopped:
                note(self.stopped + ".")
                break
        self._save(run, training, about, bad)  # so that nothing is lost if what follows fails: a full disk, a signal
        if self.best_weights:
            self.model.load_state_dict(self.best_weights, strict=False)
        if self.task.head:  # a task of vectors trains no summary
            self.model.untrained = ()
        if s.language:
            del self.model.heads["mlm"]
        self.task.finalize(self.model)

    def _save(self, run: RunFolder, training: Training, about: dict[str, Any], bad: int) -> None:
        state = {"best": self.best, "best_step": self.best_step, "bad": bad, "minutes": self.settings.minutes}
        run.save(training, about, state, {"best": self.best_weights or self._weights()})

    def _fit_into_time(self, training: Training, seconds_a_step: float, passed: float) -> None:
        """Steps for the time there is; where passes were asked for, never more than those, and fewer is told."""
        s, planned = self.settings, training.steps
        left = max(0.0, s.minutes * 60 * 0.85 - passed)
        mine = training.done + left / seconds_a_step if self.world.is_main else 0.0
        fits = max(10, int(self.world.sums({"steps": mine})["steps"]))
        training.set_steps(min(fits, planned) if s.epochs else fits)
        if s.epochs and fits < planned:
            self.shortened = f"{fits:,} of {planned:,} steps fit into {s.minutes:.1f} minutes"
            note(self.shortened + ".")

    @staticmethod
    def _early(bad: int) -> str:
        return f"stopped early: {bad} evaluations without a better score"

    def _weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in named(self.model).items()}

    def _evaluate(self, run: RunFolder, done: int) -> bool:
        """Score the dev rows; keep the weights if they are the best so far. Returns whether they are."""
        scores = self.task.score(*self.predictions("dev"))
        value = next(iter(scores.values()))
        better = value > self.best
        if (
            value >= self.best
        ):  # of equals the later: it has learnt more that this score does not show (scale, certainty)
            self.best, self.best_step, self.best_weights = value, done, self._weights()
        if self.world.is_main:
            run.metrics.write({"step": done, "eval": True, **scores})
            note(f"step {done:,}: {'  '.join(f'{k} {v:.4f}' for k, v in scores.items())}{'  ← best' if better else ''}")
        return better

    def outputs(self, role: str) -> list[np.ndarray]:
        """The head's numbers for the rows of a role."""
        self.model.eval()
        return outputs_of(self.model, self.task, self.items[role], self.world.device)

    def predictions(self, role: str) -> tuple[list[Any], list[dict[str, Any]]]:
        """Examples of a role and what the model says of them."""
        items = self.items[role]
        decoded = [self.task.decode(item, output) for item, output in zip(items, self.outputs(role))]
        return [item.example for item in items], decoded

    def write_report(self, result: FinetuneResult) -> None:
        """The report again, with more in it."""
        if self.world.is_main:
            report(self, result)

    def _introduce(self, training: Training, feed: SupervisedFeed) -> None:
        s = self.settings
        precision = {torch.float32: "fp32", torch.bfloat16: "bf16"}[self.model.encoder.dtype]
        labels = f"{len(self.task.labels)} labels, " if self.task.labels else ""
        share = self.rates.words
        words = f" (word vectors {share * training.settings.lr:.2e})" if share > 1 else ""
        note(
            f"{s.task} from {s.model}: {len(self.items['train']):,} rows, {labels}{training.steps:,} steps of "
            f"{feed.batch} ({training.steps / feed.steps_a_pass:.1f} passes), "
            f"learning rate {training.settings.lr:.2e}{words}, dropout {self.model.config.dropout:g}, {precision}, "
            f"{self.threads} threads."
        )


def finetune(settings: FinetuneSettings) -> dict[str, Any]:
    """Run it, with seeds, folds or search where asked. Returns the result that the report shows."""
    from bertkit.runs.finetune.repeat import cross_validated, searched, seeded

    try:
        if settings.search:
            settings = searched(settings)
        if settings.seeds > 1 and settings.folds > 1:
            raise UserError("--seeds and --folds each train many times. Ask for one of them.")
        if settings.seeds > 1:
            return seeded(settings).to_dict()
        if settings.folds > 1:
            return cross_validated(settings).to_dict()
        return Finetuning(settings).go().to_dict()
    finally:
        worlds.leave()
