"""A fine-tuning run from data to a finished, calibrated, reported model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from bertkit import machine
from bertkit.checkpoint.folder import Folder, read_folder
from bertkit.checkpoint.locate import content_of_model, locate
from bertkit.checkpoint.vocabulary_fit import report_unknown, starting_model
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.model.heads import Crf, Head, Model
from bertkit.model.inference import TorchEngine, choose
from bertkit.model.layers import initialise
from bertkit.model.pooling import Pooling
from bertkit.notify import note
from bertkit.objectives.supervised import Supervised
from bertkit.report.finetuning import FinetuneResult
from bertkit.runs.finetune import split as splits
from bertkit.runs.finetune.outcome import finish, finished_result, report
from bertkit.settings.finetune import FinetuneSettings, SupervisedSettings
from bertkit.settings.training import LoopSettings, Plan
from bertkit.tasks.base import Item, Task
from bertkit.tasks.batches import SupervisedFeed, outputs_of
from bertkit.tasks.embed import POOLS
from bertkit.text.checks import by_line
from bertkit.training import distributed as worlds
from bertkit.training.loop import Objective, Training
from bertkit.training.run import FIRST_GUESS, Run
from bertkit.training.run_folder import RunFolder, Signals

# ---- How fast each parameter learns in a fine-tuning.

WORDS_LIKE_BERTS = 0.04  # the size (root mean square) of BERT's word vectors, which the usual rates are made for
CRF_RATE = 1e-2  # a CRF's scores start from nothing and are compared with logits: at an encoder's rate they stay there


class Rates:
    """The peak learning rate of a fine-tuning run, and every parameter's share of it."""

    def __init__(self, settings: SupervisedSettings, model: Model) -> None:
        self.settings, self.model = settings, model
        self.peak = settings.lr or self._chosen()
        self.words = 1.0 if settings.freeze else self._words()

    def _chosen(self) -> float:
        """A fine-tuning's rate by width (narrow models learn faster); heads alone bear much more."""
        if self.settings.freeze:
            return 2e-3
        # 5e-5 for BERT-base. At width 256 six times that was seven points better on SST-2 (docs/results.md).
        narrow = 768 / self.model.config.width
        return 5e-5 * max(narrow, min(12.0, narrow**2))

    def _words(self) -> float:
        """How much larger than BERT's the word vectors are; fine-tuning takes larger steps, so rare ones can change.

        Some pretrainings (Muon's) leave them several times as large. On 6,000 rows of SST-2 `en` gained three points,
        on all 67,349 none (docs/results.md).
        """
        size = float(self.model.encoder.embeddings.tokens.weight.detach().float().square().mean().sqrt())
        return min(10.0, max(1.0, round(size / max(WORDS_LIKE_BERTS, self.model.config.init_std), 2)))

    def share(self, name: str) -> float:
        """A parameter's share of the fine-tuning's rate: less in lower layers if asked, more for large word vectors."""
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
FOR_STEPS = 0.85  # of a time budget; the rest is for calibration, final scores and writing


class SupervisedRun:
    """One run on labelled rows: fine-tuning or distillation. After `go`, `result` holds all that is known of it.

    facts: more for the model's card. fixed: what must be the same when the run is resumed, besides rows and settings.

    language: weight of an extra language-modelling loss. wants_baseline: whether a cheap model is scored too.
    """

    settings: SupervisedSettings
    language, wants_baseline = 0.0, False
    facts: Mapping[str, Any] = MappingProxyType({})
    fixed: Mapping[str, Any] = MappingProxyType({})
    best_step, stopped, shortened = 0, "", ""  # of the run, once it is over

    def __init__(
        self, settings: SupervisedSettings, split: splits.Split | None = None, labels: tuple[str, ...] = ()
    ) -> None:
        """split, labels: rows and label names that are in memory already, instead of those `settings` name."""
        self.settings = s = settings
        machine.limit_onednn_cache(machine.TRAINING_KERNELS)
        self.threads = machine.set_up(s.threads)
        self.world = worlds.join(machine.device_for(s.device))
        torch.manual_seed(s.seed)
        self.task: Task = self._task(labels)
        self.task.keep_columns(splits.reading_of(s))
        if s.abstain and not self.task.calibrates:
            raise UserError(
                "--abstain needs a calibrated score of one label per text (classify or pair, without --multi-label and "
                "--rank). Leave it out."
            )
        if s.freeze and not self.task.head:
            raise UserError(f"--freeze trains the head alone, and {self.task.name} has none. Leave it out.")
        self.split = split or self._split()
        self._learn_labels()
        model = starting_model(s.model, self.task, self.split.examples["train"])
        self.settings = s = replace(self.settings, model=model)
        for role in ("dev", "test"):
            self.task.check(self.split.examples.get(role, ()), str(getattr(s, role) or s.train))
        self.folder = self._open()
        self.model: Model = self.folder.model
        self._shape_model()
        limit = s.max_tokens or min(self.model.config.max_tokens, 512)
        if limit > self.model.config.max_tokens:
            raise UserError(f"--max-tokens {limit} is more than this model sees ({self.model.config.max_tokens}).")
        self.windows = Windows(limit, s.on_long, s.overlap)
        self.items = {role: self._encoded(role, examples) for role, examples in self.split.examples.items()}
        self._report_cut()
        report_unknown(self.folder, s.model)

    def _encoded(self, role: str, examples: Sequence[Any]) -> list[Item]:
        """A fine-tuning's rows of a role as ids; a row that cannot be encoded is reported by its line."""
        with by_line(
            [getattr(example, "line", 0) for example in examples],
            str(getattr(self.settings, role) or self.settings.train),
        ):
            return self.task.encode(examples, self.folder.tokenizer, self.windows)

    def _task(self, labels: tuple[str, ...]) -> Task:
        """A fine-tuning's task, with these label names where there are any."""
        raise NotImplementedError

    def _learn_labels(self) -> None:
        """Tell a fine-tuning's task what it must know of all rows."""
        self.task.fit_labels(self.split.examples["train"])

    def _split(self) -> splits.Split:
        return splits.read_split(self.settings, self.task)

    def _open(self) -> Folder:
        """A fine-tuning's starting model with this task's head."""
        s = self.settings
        heads = {self.task.head: self.task.outputs()} if self.task.head else {}
        # A model pretrained without dropout loses much by it: entity F1 75 → 70 with `en` (docs/results.md).
        numbers = dict.fromkeys(("dropout", "attention_dropout", "head_dropout"), s.dropout) if s.dropout >= 0 else {}
        folder = read_folder(locate(s.model), heads=heads, labels=self.task.labels, task=s.task, numbers=numbers)
        if folder.model.config.causal:
            bordered = folder.tokenizer.with_borders()
            if bordered.sep_id != folder.model.config.padding:  # transformers reads the last token that is no padding
                folder.tokenizer = bordered
        if self.language:
            config = folder.model.config
            if not config.causal or config.word_head != "plain" or not config.tied:
                raise UserError(f"--language {self.language:g} needs a GPT model; {s.model} is not one. Leave it out.")
            # It has no weights of its own: the word vectors guess. It is taken away before the model is written.
            folder.model.heads["mlm"] = Head("mlm", config, 0, folder.model.encoder.dropout_masks)
        if not self.task.labels:
            folder.labels = self.task.output_names
        for key in ("id2label", "problem_type", "thresholds"):  # those of another task
            folder.raw_config.pop(key, None)
        folder.model.crf = Crf(len(self.task.labels)) if self.task.options.get("crf") else None
        folder.pooling = self._pooling(folder.pooling) if self.task.makes_vectors else None
        return folder

    def _pooling(self, given: Pooling | None) -> Pooling:
        """How a fine-tuned model makes vectors: as its starting folder where that can be learnt, else by the mean."""
        given = given or Pooling()
        parts = [given.refused] if given.refused else [*map(str, given.steps)]
        parts += [] if given.mode in POOLS else [f"the pooling {given.mode}"]
        if parts:
            note(f"{self.settings.model} computes its vectors with {' and '.join(parts)}; the new model does not.")
        if prompts := [name for name, text in given.prompts.items() if text]:
            note(
                f"{self.settings.model} has prompts ({', '.join(prompts)}); the rows are used as they are, and the "
                "new folder has none. To train with a prompt, put it before the texts of your file."
            )
        lower = {key: given.kept[key] for key in ("do_lower_case",) if key in given.kept}
        mode = given.mode if given.mode in POOLS else "mean"
        pooling = Pooling(mode, given.normalize, max_tokens=given.max_tokens, kept=lower)
        self.task.options["pool"] = pooling.mode
        return pooling

    def _shape_model(self) -> None:
        """Re-initialise top layers and freeze the encoder before fine-tuning, as asked."""
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

    def _report_cut(self) -> None:
        """Report the rows of each set that are truncated."""
        for role, items in self.items.items():
            facts = splits.cut_facts(items)
            if facts["tokens_cut"]:
                note(
                    f"{role}: {facts['rows_cut']} of {facts['rows']} rows are cut, "
                    f"{facts['tokens_cut'] / facts['tokens']:.1%} of the tokens."
                )

    def _feed(self) -> SupervisedFeed:
        return SupervisedFeed(self.items["train"], self.task, **self._sharing())

    def _sharing(self) -> dict[str, int]:
        """How a fine-tuning's rows are cut into steps and shared out."""
        s = self.settings
        return {
            "batch": s.batch, "seed": s.seed, "micro_tokens": s.micro_tokens,
            "rank": self.world.rank, "ranks": self.world.size,
        }  # fmt: skip

    def _objective(self) -> Objective:
        return Supervised(self.model, self.task, self.language)

    @property
    def command(self) -> str:
        """What makes this fine-tuning again."""
        raise NotImplementedError

    def go(self) -> FinetuneResult:
        """Run a fine-tuning: train, keep the best, finish."""
        s = self.settings
        if done := finished_result(self):
            self.result = done
            return done
        feed = self._feed()
        self.rates = Rates(s, self.model)
        with RunFolder(s.out, self.world, resume=s.resume, overwrite=s.overwrite) as folder, Signals() as signals:
            self.result = _Run(self, feed, folder, signals).go()
            folder.forget()
        return self.result

    def plan(self, steps_per_pass: int) -> Plan:
        """A fine-tuning's passes: those that were asked for, or those that a set of this size needs."""
        s = self.settings
        passes = s.epochs or min(MOST_PASSES, max(3.0, LEAST_STEPS / steps_per_pass))
        by_clock = s.minutes and not s.steps and not s.epochs
        steps = s.steps or (0 if by_clock else max(1, math.ceil(passes * steps_per_pass)))
        return Plan(
            steps, s.minutes, capped=bool(s.minutes) and not s.steps and bool(s.epochs), deadline=True, share=FOR_STEPS,
            patience=s.patience, evals=s.evals, save_minutes=s.save_minutes,
        )  # fmt: skip

    def outputs(self, role: str) -> list[np.ndarray]:
        """The head's numbers for the rows of a role of a fine-tuning run."""
        self.model.eval()
        return outputs_of(TorchEngine(self.model, str(self.world.device)), self.task, self.items[role])

    def predictions(self, role: str) -> tuple[list[Any], list[dict[str, Any]]]:
        """Examples of a role of a fine-tuning run, and what the model says of them."""
        items = self.items[role]
        decoded = [self.task.decode(item, output) for item, output in zip(items, self.outputs(role))]
        return [item.example for item in items], decoded

    def write_report(self, result: FinetuneResult) -> None:
        """A fine-tuning's report again, with more in it."""
        if self.world.is_main:
            report(self.settings, result)


class Finetuning(SupervisedRun):
    """A run of `bertkit finetune`."""

    settings: FinetuneSettings

    def __init__(
        self, settings: FinetuneSettings, split: splits.Split | None = None, labels: tuple[str, ...] = ()
    ) -> None:
        self.language = settings.language
        if settings.teacher:
            self.fixed = {f"teacher {settings.teacher}": content_of_model(settings.teacher)}
        self.wants_baseline = settings.baseline and not settings.teacher  # no labels, so nothing a cheap model learns
        super().__init__(settings, split, labels)

    def _task(self, labels: tuple[str, ...]) -> Task:
        return splits.task_of(self.settings, labels)

    def _learn_labels(self) -> None:
        """Learn the label names from the training rows, and weigh the labels if asked."""
        super()._learn_labels()
        if self.settings.class_weights:
            self.task.options["class_weights"] = splits.class_weights(self.task, self.split.examples["train"])
        # run.toml holds what the rows decided, so that a resumed run is the same.
        undecided = [name for name in self.task.stored_settings if getattr(self.settings, name) is None]
        decided: dict[str, Any] = {name: bool(self.task.options.get(name)) for name in undecided}
        self.settings = replace(self.settings, **decided)

    @property
    def command(self) -> str:
        """The command that makes this fine-tuning again."""
        return f"bertkit finetune {self.settings.task} --config {self.settings.out}/run.toml --out OTHER"


class _Run(Run[FinetuneResult]):
    """The steps of a fine-tuning, and what follows the last one."""

    def __init__(self, tuning: SupervisedRun, feed: SupervisedFeed, folder: RunFolder, signals: Signals) -> None:
        s, rates = tuning.settings, tuning.rates
        self.tuning, self.rows, self.folder = tuning, feed, folder
        plan = tuning.plan(feed.steps_per_pass)
        loop = LoopSettings(
            lr=rates.peak, warmup=s.warmup, schedule=s.schedule, decay=s.decay, clip=s.clip, eps=1e-8, beta2=0.999
        )
        training = Training(
            tuning._objective(), feed, plan.steps or FIRST_GUESS, loop, s.seed, tuning.world, scale=rates.share
        )
        about = {
            "model": repr(tuning.model.config), "labels": list(tuning.task.labels),
            "set of training rows": splits.digest(tuning.items["train"], tuning.task),
            "set of dev rows": splits.digest(tuning.items["dev"], tuning.task),
            **tuning.fixed,
        }  # fmt: skip
        super().__init__(s, plan, training, folder, signals, about, keep_best=tuning.model)

    def introduce(self) -> str:
        """The message before a fine-tuning: task, rows, steps and rates."""
        tuning, training, feed = self.tuning, self.training, self.rows
        s, config, share = tuning.settings, tuning.model.config, tuning.rates.words
        precision = {torch.float32: "fp32", torch.bfloat16: "bf16"}[tuning.model.encoder.dtype]
        labels = f", {len(tuning.task.labels)} labels" if tuning.task.labels else ""
        words = f"of word vectors {share * training.settings.lr:.2e}, " if share > 1 else ""
        return (
            f"{s.task} from {s.model}: {len(tuning.items['train']):,} rows{labels}; {training.steps:,} steps of "
            f"{feed.batch} ({training.steps / feed.steps_per_pass:.1f} passes), "
            f"learning rate {training.settings.lr:.2e}, {words}dropout {config.dropout:g}, {precision}, "
            f"{tuning.threads} threads."
        )

    def eval_interval(self) -> int:
        """A fine-tuning is evaluated once per pass, at least 5 and at most 20 times, unless a number was asked for."""
        steps = self.training.steps
        return max(1, steps // (self.plan.evals or min(20, max(5, round(steps / self.rows.steps_per_pass)))))

    def evaluate(self) -> dict[str, float]:
        """A fine-tuning's scores on the dev rows; the first chooses."""
        return self.tuning.task.score(*self.tuning.predictions("dev"))

    def finish(self) -> FinetuneResult:
        """End a fine-tuning: calibrate, score and write the model with its best weights."""
        tuning = self.tuning
        tuning.best_step, tuning.stopped, tuning.shortened = self.best_step, self.stopped, self.shortened
        if tuning.task.head:  # a task of vectors trains no pooler
            tuning.model.untrained = ()
        if tuning.language:
            del tuning.model.heads["mlm"]
        tuning.task.finalize(tuning.model)
        return finish(tuning, self.folder, self.training, self.rows)


def finetune(settings: FinetuneSettings) -> dict[str, Any]:
    """Run a fine-tuning, with seeds, folds or search where asked. Returns the result that the report shows."""
    from bertkit.runs.finetune.repeat import check_repeats, cross_validated, searched, seeded

    try:
        check_repeats(settings)
        if settings.search:
            settings = searched(settings)
        if settings.seeds > 1:
            return seeded(settings).to_dict()
        if settings.folds > 1:
            return cross_validated(settings).to_dict()
        return Finetuning(settings).go().to_dict()
    finally:
        worlds.leave()
