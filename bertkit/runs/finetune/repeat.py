"""The same run several times: seeds, folds, and a search for better numbers."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import machine
from bertkit.errors import UserError
from bertkit.files.atomic import write_folder
from bertkit.notify import note
from bertkit.report.finetuning import FinetuneResult
from bertkit.runs.finetune import split as splits
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks.base import Task
from bertkit.training import distributed as worlds


def seeded(settings: FinetuneSettings) -> FinetuneResult:
    """Repeat a fine-tuning with several seeds on the same rows.

    Keep the best by dev score, and report mean and spread.
    """
    from bertkit.runs.finetune.outcome import report
    from bertkit.runs.finetune.run import Finetuning

    results: list[FinetuneResult] = []
    split = settings.seed if settings.split_seed < 0 else settings.split_seed
    for number in range(settings.seeds):
        out = settings.out / f"seed-{number}"
        run = Finetuning(replace(settings, seed=settings.seed + number, split_seed=split, seeds=1, out=out))
        results.append(run.go())
    scores = [result.score for result in results]
    best = max(results, key=lambda result: result.dev_score)
    spread = {"mean": float(np.mean(scores)), "spread": float(np.std(scores)), "scores": scores}
    note(f"{best.headline} over {len(scores)} seeds: {spread['mean']:.4f} ± {spread['spread']:.4f}")
    source = Path(str(best.out))

    def copy(target: Path) -> None:
        for path in source.rglob("*"):
            name = path.relative_to(source)
            if path.is_file() and path.name != ".lock" and name.parts[0] != "checkpoints":
                (target / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(path, target / name)

    seeds = [{"seed": seed, best.headline: score} for seed, score in enumerate(scores, settings.seed)]
    result = replace(best, run={**(best.run or {}), "seeds": seeds}, out=str(settings.out), seeds=spread)
    if run.world.is_main:
        write_folder(settings.out, copy)
        report(settings, result)
    return result


def check_repeats(settings: FinetuneSettings) -> None:
    """Refuse, before hours of training, settings that repeated fine-tunings cannot use."""
    if settings.seeds > 1 and settings.folds > 1:
        raise UserError("--seeds and --folds each train many times. Ask for one of them.")
    several = settings.search or settings.seeds > 1 or settings.folds > 1
    if several and (settings.out / "config.json").is_file() and not settings.overwrite and not settings.resume:
        raise UserError(f"{settings.out} holds a finished model. Choose another --out, or replace it with --overwrite.")
    if settings.search and settings.folds > 1:
        _folded(settings)


def _folded(settings: FinetuneSettings) -> tuple[Task, list[Any], np.ndarray]:
    """The task of a fine-tuning over folds, its training rows, and the fold of each."""
    task = splits.task_of(settings)
    examples = task.read(settings.train, splits.reading_of(settings))
    folds = splits.fold_of(examples, settings.folds, settings.seed, task)
    if (parts := len(set(folds.tolist()))) < settings.folds:
        raise UserError(
            f"--folds is {settings.folds}, and {settings.train} has only {parts} different texts: a part would be "
            f"empty. Ask for at most {parts}."
        )
    return task, examples, folds


def cross_validated(settings: FinetuneSettings) -> FinetuneResult:
    """Repeat a fine-tuning over folds: every training row is scored by a model that never saw it.

    Then train the final model, and rank suspicious labels.

    The best pass of each model is chosen on --dev, or on a part of its own training rows: never on the rows it scores.
    """
    from bertkit.runs.finetune.outcome import MOST_ERRORS, suspects
    from bertkit.runs.finetune.run import Finetuning

    task, examples, folds = _folded(settings)
    if task.labelled_by_name:
        task.fit_labels(examples)
    chooses = task.read(settings.dev, splits.reading_of(settings)) if settings.dev else None
    scores, ranked = [], []
    for fold in range(settings.folds):
        others = [example for example, own in zip(examples, folds) if own != fold]
        # The best pass is chosen on rows that are not scored, else the score would be too good.
        train, dev = (others, chooses) if chooses else splits.held_out(others, settings.held_out, settings.seed, task)
        if not dev:
            raise UserError(
                f"--folds {settings.folds} leaves {len(others)} training rows, of which none can be held out to choose "
                "the best pass. Pass a --dev file or a larger --held-out, or add rows."
            )
        scored = [example for example, own in zip(examples, folds) if own == fold]
        run = Finetuning(
            replace(settings, folds=0, test=None, baseline=False, out=settings.out / f"fold-{fold}"),
            splits.Split({"train": train, "dev": dev, "test": scored}),
            task.labels,
        )
        scores.append(run.go().score)
        ranked += suspects(run, "test")
    final = Finetuning(replace(settings, folds=0))
    result = final.go()
    ranked.sort(key=lambda row: row["score"])
    folded = {
        "mean": float(np.mean(scores)), "spread": float(np.std(scores)), "scores": scores, "rows": len(examples),
    }  # fmt: skip
    note(
        f"{result.headline} over {settings.folds} folds: {folded['mean']:.4f} ± {folded['spread']:.4f} on all "
        f"{len(examples):,} rows of {settings.train}, each scored by a model that was neither trained on it nor chosen "
        "by it."
    )
    result = replace(result, suspects=ranked[:MOST_ERRORS], suspect_count=len(ranked), folds=folded)
    final.write_report(result)
    return result


def searched(settings: FinetuneSettings) -> FinetuneSettings:
    """Repeat short fine-tunings to find the best learning rate, batch and layer decay within half of --minutes."""
    from bertkit.runs.finetune.run import Finetuning

    if not settings.minutes:
        raise UserError("--search needs a time budget: --minutes M.")
    try:
        import optuna
    except ImportError:
        raise UserError("The search needs Optuna: pip install 'bertkit[search]'.") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    end = time.monotonic() + settings.minutes * 30
    each = max(settings.minutes / 12, min(0.2, settings.minutes / 4))  # too short a try says nothing

    def trial(chance: Any) -> float:
        tried = replace(
            settings,
            lr=chance.suggest_float("lr", 1e-5, 6e-4, log=True),
            batch=chance.suggest_categorical("batch", [16, 32, 64]),
            layer_decay=chance.suggest_categorical("layer_decay", [1.0, 0.9]),
            minutes=each, search=False, seeds=1, folds=0, test=None, baseline=False,
            out=settings.out / "search" / f"trial-{chance.number}",
        )  # fmt: skip
        return Finetuning(tried).go().dev_score

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=settings.seed))
    world = worlds.join(machine.device_for(settings.device))
    while world.most(int(time.monotonic() < end)):  # the ranks' clocks differ
        study.optimize(trial, n_trials=1)
    note(f"The best of {len(study.trials)} tries: {study.best_params} with {study.best_value:.4f}.")
    return replace(settings, search=False, minutes=settings.minutes / 2, **study.best_params)
