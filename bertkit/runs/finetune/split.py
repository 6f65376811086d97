"""The rows of a run: read, split, checked against each other, encoded."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

import numpy as np

from bertkit.errors import UserError
from bertkit.notify import note, renamed
from bertkit.settings.finetune import FinetuneSettings, SupervisedSettings
from bertkit.tasks import TASKS, make, task_class, task_classes
from bertkit.tasks.base import Item, Labelled, Reading, Task
from bertkit.tasks.classify import Classify
from bertkit.tasks.embed import Taught, Teacher
from bertkit.tasks.regress import Rank


@dataclass
class Split:
    """The split of labelled rows: examples by role (train, dev, test), and what is worth reporting of them."""

    examples: dict[str, list[Any]]
    facts: dict[str, Any] = field(default_factory=dict)


def reading_of(settings: SupervisedSettings) -> Reading:
    """Which columns of the split's files are read."""
    return Reading(settings.text, settings.text_b, settings.label, settings.encoding, settings.label_separator)


DEFAULTS = {entry.name: entry.default for entry in fields(FinetuneSettings)}


def check_settings(settings: FinetuneSettings) -> None:
    """Refuse a setting that the task does not understand and another does, before the split is read."""
    takers: dict[str, list[str]] = {}
    for task, kind in task_classes().items():
        for name in kind.accepted_settings:
            takers.setdefault(name, []).append(task)
    for name, tasks in takers.items():
        value = getattr(settings, name)  # False: what is off asks for nothing
        if value is not False and value != DEFAULTS[name] and settings.task not in tasks:
            raise UserError(
                f"--{name.replace('_', '-')} has no meaning for the task {settings.task}; it is for "
                f"{', '.join(tasks)}. Leave it out."
            )
    if settings.negatives and settings.task == "pair" and not settings.rank:
        raise UserError("--negatives is for rerankers: pass --rank too, or leave it out.")
    if settings.rank and settings.symmetric:
        raise UserError("--rank reads a question and a passage, which are not interchangeable. Drop --symmetric.")
    for name in ("labels", "multi_label", "class_weights") if settings.rank else ():
        if getattr(settings, name):
            raise UserError(
                f"--{name.replace('_', '-')} has no meaning with --rank, whose labels are 0 and 1. Leave it out."
            )


def task_of(settings: FinetuneSettings, labels: tuple[str, ...] = ()) -> Task:
    """The task of a fine-tuning as the settings want it; `labels` instead of those the settings name."""
    check_settings(settings)
    given = labels or tuple(name.strip() for name in settings.labels.split(",") if name.strip())
    if twice := [name for name, count in Counter(given).items() if count > 1]:
        raise UserError(f"--labels is {settings.labels}: {', '.join(twice)} is listed twice. Name each label once.")
    options = task_class(settings.task).options_of(settings)
    if settings.teacher:
        return Taught(options=options, teacher=_teacher(settings))
    task = Rank(options=options) if settings.rank else make(settings.task, labels=given, options=options)
    task.merge = settings.merge or ("mean" if settings.symmetric else task.merge)
    return task


def _teacher(s: FinetuneSettings) -> Teacher:
    from bertkit.inference.teacher import teacher

    return teacher(s.teacher, s.out / "teacher", s.precision, s.device)


def class_weights(task: Task, examples: Sequence[Any]) -> dict[str, float]:
    """Weights of labels from a split's training rows, so that all count alike; of several, so that yes and no do."""
    counts = label_counts(task, examples)
    if task.options.get("multi_label"):
        return {name: max(1, len(examples) - count) / count for name, count in counts.items()}
    mean = sum(counts.values()) / max(1, len(counts))
    return {name: mean / count for name, count in counts.items()}


def read_split(settings: SupervisedSettings, task: Task, labelled: Labelled = True) -> Split:
    """Read every file of a split; hold rows out where no dev file is given; tell overlap and duplicates."""
    reading = reading_of(settings)
    examples = {"train": task.read(settings.train, reading, labelled)}
    note_amounts(examples["train"], task, str(settings.train), "finetune")
    for role, path in (("dev", settings.dev), ("test", settings.test)):
        if path is not None:
            examples[role] = task.read(path, reading, labelled)
    files = [
        {"role": role, "name": renamed(str(getattr(settings, role) or settings.train)), "rows": len(rows)}
        for role, rows in examples.items()
    ]
    duplicates = len(examples["train"]) - len({task.key(example) for example in examples["train"]})
    if "dev" not in examples:
        if not settings.held_out:
            raise UserError(
                "--held-out is 0 and there is no --dev file: a run needs rows for model selection. Pass one of them."
            )
        seed = settings.seed if settings.split_seed < 0 else settings.split_seed
        examples["train"], examples["dev"] = held_out(examples["train"], settings.held_out, seed, task)
        if not examples["dev"]:
            raise UserError(
                f"{settings.train}: none of {len(examples['train'])} rows can be held out: there are too few different "
                "texts, or too few of each label. Is --label the right column? If so, give a --dev file."
            )
        shares = len({task.stratum(example) for example in examples["train"]}) > 1
        note(
            f"No --dev file: {len(examples['dev'])} of {len(examples['train']) + len(examples['dev'])} rows of "
            f"{settings.train} are held out{', in equal shares of every label' if shares else ''}."
        )
        files[0]["rows"] = len(examples["train"])
        files.insert(
            1, {"role": "dev", "name": f"held out of {renamed(str(settings.train))}", "rows": len(examples["dev"])}
        )
    facts: dict[str, Any] = {"files": files}
    known = {task.key(example) for example in examples["train"]}
    if duplicates:
        facts["duplicates"] = duplicates
        note(f"{settings.train}: {duplicates} rows repeat an earlier text.")
    for role in ("dev", "test"):
        both = sum(task.key(example) in known for example in examples.get(role, ()))
        if both:
            facts[f"{role}_overlap"] = both
            note(f"{both} of {len(examples[role])} {role} rows are also training rows; scores will be too optimistic.")
    return Split(examples, facts)


MOST_CLASSES = 20  # numbers that may well be names of classes


def note_amounts(examples: Sequence[Any], task: Task, file: str, command: str) -> None:
    """Say so if the labels of a split look like amounts: many different numbers, but not 0 … N or 1 … N."""
    counts = label_counts(task, examples) if isinstance(task, Classify) else {}
    try:
        values = {float(name) for name in counts}
    except ValueError:
        return
    numbered = [{float(n) for n in range(first, first + len(counts))} for first in (0, 1)]
    if len(counts) > MOST_CLASSES and (values not in numbered or sum(counts.values()) < 5 * len(counts)):
        note(
            f"{file}: the labels are {len(counts):,} different numbers, each learned as a name. If they are amounts, "
            f"learn them as numbers: bertkit {command} regress"
        )


def _task_of(example: Any) -> Task:
    """The first task that reads such examples, to split rows without a task."""
    return next(task_class(name) for name in TASKS if isinstance(example, task_class(name).example_type))()


def key_of(example: Any) -> tuple[Any, ...]:
    """What makes two examples of a split the same text."""
    return _task_of(example).key(example)


def names_of(example: Any) -> tuple[str, ...]:
    """The label names of an example, to stratify a split by; none where labels are not names."""
    return _task_of(example).labels_of(example)


def held_out(examples: Sequence[Any], share: float, seed: int, task: Task | None = None) -> tuple[list[Any], list[Any]]:
    """A stratified split of labelled rows: (kept, held out), each in the file's order."""
    if len(examples) < 4:
        raise UserError(f"{len(examples)} rows are too few to hold any out. Give a --dev file, or more rows.")
    task = task or _task_of(examples[0])
    part = Fraction(share).limit_denominator(10**9)  # 0.1 is a tenth, and a third a third
    keeps = [(turn * part) // 1 == ((turn - 1) * part) // 1 for turn in turns_of(examples, seed, task).tolist()]
    # A label that only held-out rows have could not be learnt: those rows stay.
    taught = {name for example, keep in zip(examples, keeps) if keep for name in task.labels_of(example)}
    stays = [keep or not taught.issuperset(task.labels_of(example)) for example, keep in zip(examples, keeps)]
    training = [example for example, stay in zip(examples, stays) if stay]
    return training, [example for example, stay in zip(examples, stays) if not stay]


def fold_of(examples: Sequence[Any], folds: int, seed: int, task: Task | None = None) -> np.ndarray:
    """A split into folds: each example's fold, equal in every stratum; the same text is always in the same fold."""
    return turns_of(examples, seed, task or _task_of(examples[0])) % folds


def turns_of(examples: Sequence[Any], seed: int, task: Task) -> np.ndarray:
    """Every example's turn (0, 1, …) when a split deals out rows, stratum by stratum in a random order.

    Twins share one.
    """
    chance = np.random.default_rng((seed, 3, len(examples)))
    answer = np.zeros(len(examples), int)
    first: dict[tuple[Any, ...], int] = {}
    groups: dict[str, list[int]] = {}
    for n, example in enumerate(examples):
        twin = first.setdefault(task.key(example), n)
        if twin == n:
            groups.setdefault(task.stratum(example), []).append(n)
    turn = 0
    for name in sorted(groups):
        for n in chance.permutation(groups[name]):
            answer[n] = turn
            turn += 1
    for n, example in enumerate(examples):
        answer[n] = answer[first[task.key(example)]]
    return answer


def cut_facts(items: Sequence[Item]) -> dict[str, int]:
    """Rows and tokens of a split that were cut."""
    return {
        "rows": len(items), "rows_cut": sum(item.cut > 0 for item in items),
        "tokens": sum(item.tokens + item.cut for item in items), "tokens_cut": sum(item.cut for item in items),
    }  # fmt: skip


def digest(items: Sequence[Item], task: Task) -> str:
    """A digest that tells the rows of a split from others."""
    total = hashlib.sha256()
    for item in items:
        for row in item.rows:
            total.update(np.asarray(row.ids, np.int32).tobytes())
        total.update(repr((task.digest_of(item.example), task.labels_of(item.example))).encode())
    return total.hexdigest()


def label_counts(task: Task, examples: Sequence[Any]) -> dict[str, int]:
    """How often each label name occurs in the rows of a split; empty where labels are not names."""
    counts: Counter[str] = Counter()
    for example in examples:
        counts.update(task.labels_of(example))
    return dict(sorted(counts.items()))
