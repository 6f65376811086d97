"""A fine-tuned teacher teaches a smaller student: a fine-tuning run with another loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bertkit import config as settings_of
from bertkit import machine
from bertkit.checkpoint.folder import Folder, write_folder
from bertkit.checkpoint.locate import content_of_model, locate
from bertkit.data.batch import Batch
from bertkit.errors import UserError
from bertkit.files import atomic
from bertkit.inference.predictor import Predictor
from bertkit.model.heads import Model
from bertkit.notify import note
from bertkit.objectives.supervised import Distill
from bertkit.runs.compress.measure import compared
from bertkit.runs.compress.prune import chosen, with_layers
from bertkit.runs.finetune import split as splits
from bertkit.runs.finetune.run import SupervisedRun
from bertkit.settings.compress import DistillSettings
from bertkit.settings.model import Config
from bertkit.tasks import make
from bertkit.tasks.base import Item, Task
from bertkit.tasks.batches import SupervisedFeed, outputs_of
from bertkit.training import distributed as worlds

# What a teacher's calibration or chain decided: the student finds its own, or has none.
TEACHERS_OWN = ("temperature", "abstain", "crf", "rules", "class_weights")


class TaughtFeed(SupervisedFeed):
    """Distillation's feed: batches that carry the teacher's numbers ("taught") and whose answers are "known"."""

    def __init__(
        self, items: Sequence[Item], task: Task, taught: Sequence[np.ndarray], known: Sequence[bool], **how: int
    ) -> None:
        super().__init__(items, task, **how)
        self.lessons = {id(item): lesson for item, lesson in zip(items, zip(taught, known, strict=True), strict=True)}

    def collate(self, items: Sequence[Item]) -> Batch:
        """Distillation's items with the teacher's outputs and their own answers."""
        batch = super().collate(items)
        taught, known = zip(*(self.lessons[id(item)] for item in items))
        batch.extra |= self.task.lessons(batch, taught, known)
        return batch


class Distilling(SupervisedRun):
    """One distillation run: fine-tuning with a teacher."""

    settings: DistillSettings

    def __init__(self, settings: DistillSettings) -> None:
        self.teacher = Predictor.load(settings.teacher, settings.precision, settings.device)
        task = self.teacher.task
        name = task.name
        if not task.answer_kind:
            raise UserError(
                f"{settings.teacher} was fine-tuned for {name}, which is not distilled. {task.not_distilled}"
            )
        if settings.task not in ("", name):
            raise UserError(f"--task is {settings.task}, but {settings.teacher} was fine-tuned for {name}.")
        if settings.out.exists() and settings.out.samefile(locate(settings.teacher)):
            raise UserError(f"--out {settings.out} is the teacher's own folder. Choose another.")
        self.facts, self.fixed = {"teacher": settings.teacher}, {"teacher": content_of_model(settings.teacher)}
        super().__init__(replace(settings, task=name, model=_start(settings, self.teacher)))

    def _task(self, labels: tuple[str, ...]) -> Task:
        """Distillation's task: the teacher's, with its labels in its order."""
        own = self.teacher.task
        options = {key: value for key, value in own.options.items() if key not in TEACHERS_OWN}
        task = make(own.name, labels=own.labels if own.labelled_by_name else (), options=options)
        task.merge = own.merge
        return task

    def _split(self) -> splits.Split:
        """Distillation's rows, all answered: by their file where it has an answer, else by the teacher."""
        split = splits.read_split(self.settings, self.task, "maybe")
        self.known: dict[str, list[bool]] = {}
        for role, examples in split.examples.items():
            self.known[role] = [self.task.answer_of(example) is not None for example in examples]
            if not all(self.known[role]):
                predictions = self.teacher.predict_examples(examples)
                split.examples[role] = [
                    example if known else self.task.with_answer(example, prediction)
                    for example, prediction, known in zip(examples, predictions, self.known[role])
                ]
                note(f"{role}: the teacher answers the {self.known[role].count(False):,} rows without an answer.")
        role = "test" if "test" in self.known else "dev"
        if not all(self.known[role]):
            note(
                f"The teacher's answers to the {role} rows are taken as correct: "
                "the scores show how closely the student follows."
            )
        return split

    def _open(self) -> Folder:
        """The student: the teacher's layers, or a smaller model of its own."""
        folder = super()._open()
        number = self.settings.layers or (folder.model.config.depth + 1) // 2
        if self.settings.layers or self.settings.model == self.settings.teacher:
            layers = chosen(folder.model.config, number)
            folder.model = with_layers(folder.model, layers)
            note(
                f"The student starts from the layers {', '.join(str(n + 1) for n in layers)} of {self.settings.model}."
            )
        return folder

    def _feed(self) -> SupervisedFeed:
        """The student's feed, with the logits that the teacher predicts for all rows."""
        task, teacher = self.task, self.teacher
        items = teacher.task.encode(self.split.examples["train"], teacher.tokenizer, teacher.windows())
        note(f"{self.settings.teacher} predicts {len(items):,} rows.")
        taught = [task.as_logits(output) for output in outputs_of(teacher.engine, teacher.task, items)]
        return TaughtFeed(self.items["train"], task, taught, self.known["train"], **self._sharing())

    def _objective(self) -> Distill:
        alpha = self.settings.alpha if any(self.known["train"]) else 0.0
        return Distill(self.model, self.task, self.settings.temperature, alpha)

    @property
    def command(self) -> str:
        """What makes this distillation again."""
        return f"bertkit distill {self.settings.teacher} --config {self.settings.out}/run.toml --out OTHER"


def distill(settings: DistillSettings) -> dict[str, Any]:
    """Distill a teacher into a student, and put both side by side on the rows they are scored on."""
    try:
        run = Distilling(settings)
        result = run.go()
        if not run.world.is_main:
            return result.to_dict()
        student = Predictor.load(settings.out, settings.precision, settings.device)
        role = str(result.scored_on)
        rows = run.split.examples[role]
        names = (settings.teacher, str(settings.out))
        both = compared(run.teacher, student, names, rows, scored=rows if all(run.known[role]) else None)
        return result.to_dict() | {"compared": both}
    finally:
        worlds.leave()


def _start(s: DistillSettings, teacher: Predictor) -> str:
    """What a distillation's student starts from. A preset's name: a new model of that shape, the teacher's vocabulary.

    It is made at every start: the same seed gives the same model, and nothing of another run's can be left in it.
    """
    shape = settings_of.PRESETS / f"{s.model}.toml"
    if not s.model or not shape.is_file() or "/" in s.model:
        return s.model or s.teacher
    folder = s.out / "start"
    world = worlds.join(machine.device_for(s.device))
    if world.is_main:
        torch.manual_seed(s.seed)
        table = settings_of.preset(s.model)
        numbers = {"vocabulary": teacher.config.vocabulary, "padding": teacher.tokenizer.pad_id or 0}
        made = Folder(Model(Config(**table["model"] | numbers), {}), teacher.tokenizer, table["family"])
        atomic.write_folder(folder, lambda path: write_folder(path, made))
    world.wait()
    note(f"The student is a new {s.model}: all it knows comes from this run.")
    return str(locate(folder))
