"""After training: calibration, final scores, the model folder and the report."""

from __future__ import annotations

import hashlib
import json
import platform
import time
import warnings as warnings_module
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit import __version__, machine, metrics
from bertkit.ancestors.baselines.adapters import BASELINES
from bertkit.checkpoint import folder as model_folder
from bertkit.config import to_plain
from bertkit.data.readers.frames import is_memory, memory_digest
from bertkit.errors import UserError
from bertkit.files.atomic import atomic_write, write_folder
from bertkit.files.guarded import read_json
from bertkit.metrics import calibration
from bertkit.notify import note
from bertkit.report.finetuning import FinetuneResult, finetuning_report
from bertkit.runs.finetune import split as splits
from bertkit.training.checkpoints import newest_generation
from bertkit.training.metrics_log import read_metrics
from bertkit.training.run_folder import FREE_AFTERWARDS, changed_settings

if TYPE_CHECKING:
    from bertkit.runs.finetune.run import SupervisedRun
    from bertkit.settings.finetune import SupervisedSettings
    from bertkit.tasks.base import Task
    from bertkit.tasks.batches import SupervisedFeed
    from bertkit.training.loop import Training
    from bertkit.training.run_folder import RunFolder

MOST_ERRORS = 40
ROLES = ("train", "dev", "test")
FEW_ROWS, WIDE = 50, 0.2  # fewer scored rows, or a wider interval, are worth a warning


def finish(run: SupervisedRun, folder: RunFolder, training: Training, feed: SupervisedFeed) -> FinetuneResult:
    """Finish a fine-tuning run: calibrate, score, write. Returns what the report shows."""
    s, task = run.settings, run.task
    calibrated = calibrate(run) if task.calibrates else {}
    role = "test" if "test" in run.items else "dev"
    chosen = task.choose_thresholds(run.items["dev"], run.outputs("dev")) if task.has_thresholds else {}
    examples, predictions = run.predictions(role)
    metric, gold, predicted, extra = task.metric_inputs(examples, predictions)
    scores = metric(gold, predicted, **extra)
    intervals = metrics.bootstrap(metric, gold, predicted, seed=s.seed, **extra) if len(gold) > 1 else {}
    wrong = mistakes(run, examples, predictions)
    headline = next(iter(scores))
    warnings = []
    if task.answers_vary and (same := one_answer(gold, predicted)):
        warnings.append(
            f"Every {role} row got the same answer ({same}) although the right ones differ: nothing was learned from "
            f"the texts. Try a lower --lr (it was {training.settings.lr:.1e}; e.g. {training.settings.lr / 4:.1e}), "
            "more --epochs, or more rows."
        )
    if role == "dev" or s.test:  # else it is a fold: the score is of all of them
        warnings += uncertain(headline, intervals.get(headline), len(gold), role)
    seconds = folder.elapsed()  # without the baseline's, which has its own
    compares = run.wants_baseline and run.world.is_main
    compared = against_baseline(run, role, scores, examples, predictions) if compares else {}
    warnings += [text] if (text := not_better(headline, compared)) else []
    for warning in warnings:
        note(warning)
    result = FinetuneResult(
        task=s.task, model=s.model, out=str(s.out), headline=headline, metrics=dict(scores),
        intervals={name: list(pair) for name, pair in intervals.items()}, rows=len(gold), scored_on=role,
        data={
            **run.split.facts,
            "labels": {r: splits.label_counts(task, e) for r, e in run.split.examples.items()} if task.labels else {},
            "lengths": {"values": [item.tokens for item in run.items["train"]][:20000], "limit": run.windows.limit},
            "cut": {r: splits.cut_facts(items) for r, items in run.items.items()},
        },
        run={
            "settings": to_plain(s), "steps": training.done, "passes": training.done / feed.steps_per_pass,
            "best_step": run.best_step, "seconds": seconds, "stopped": run.stopped,
            "learning_rate": training.settings.lr, "precision": str(run.model.encoder.dtype).removeprefix("torch."),
        },
        errors=wrong[:MOST_ERRORS],
        error_count=len(wrong),
        environment=environment(run.threads),
        command=run.command,
        notes=warnings or None,
        dev_metrics=dict(task.score(*run.predictions("dev"))) if role == "test" else None,
        **chosen,
        **calibrated,
        **compared,
        **task.by_label(gold, predicted),
    )  # fmt: skip
    if run.world.is_main:
        write_model(run, result)
        report(s, result)
    return result


def uncertain(headline: str, interval: tuple[float, float] | None, rows: int, role: str) -> list[str]:
    """The outcome's warning where so few rows were scored that the score says little."""
    width = interval[1] - interval[0] if interval else 0.0
    if rows >= FEW_ROWS and width <= WIDE:
        return []
    range_of_score = f": its 95 % interval is {interval[0]:.2f} to {interval[1]:.2f}" if interval and width else ""
    more = "--test rows" if role == "test" else "--dev rows (or a larger --held-out, or --folds)"
    return [
        f"{headline} was measured on only {rows} {role} rows{range_of_score}. Use more {more} before relying on it."
    ]


# ---- A cheap model of the same rows: what the score has to be compared with.

MOST_BASELINE_ROWS = 10_000  # the most a baseline is trained on: it takes seconds, however many rows there are


def against_baseline(
    run: SupervisedRun, role: str, scores: Mapping[str, float], examples: list[Any], predictions: list[dict[str, Any]]
) -> dict[str, Any]:
    """`baselines` and `baseline` of the result: the task's baseline on the same rows, and the paired difference."""
    task, seed = run.task, run.settings.seed
    if task.baseline not in BASELINES:
        return {}
    started = time.perf_counter()
    train, dev = run.split.examples["train"], run.split.examples["dev"]
    if len(train) > MOST_BASELINE_ROWS:
        places = np.random.default_rng((seed, 5)).choice(len(train), MOST_BASELINE_ROWS, replace=False)
        train = [train[place] for place in sorted(places)]
    baseline = BASELINES[task.baseline](len(train) * max(1, len(task.labels)))
    with warnings_module.catch_warnings():
        warnings_module.simplefilter("ignore")  # that it did not converge does not make it less of a baseline
        try:
            answers = baseline.fit(task, train, dev, seed=seed, minutes=0.0).predict(examples)
        except ValueError as reason:  # scikit-learn's: no words at all, or one label only
            note(f"No baseline: {baseline.name} cannot be trained on these rows ({reason}).")
            return {}
    metric, gold, ours, extra = task.metric_inputs(examples, predictions)
    _, _, theirs, other = task.metric_inputs(examples, answers)
    headline = next(iter(scores))
    facts = {
        "name": baseline.name, "metric": headline, "scored_on": role, "rows": len(gold), "trained_on": len(train),
        "seconds": round(time.perf_counter() - started, 2),
    }  # fmt: skip
    values = dict(metric(gold, theirs, **other))
    if len(gold) > 1 and headline in values:
        both = extra | ({"scores": (extra["scores"], other["scores"])} if "scores" in extra else {})
        facts |= metrics.paired_difference(gold, ours, theirs, metric, name=headline, seed=seed, **both)._asdict()
    return {"baselines": {baseline.name: values}, "baseline": facts}


def not_better(headline: str, compared: Mapping[str, Any]) -> str:
    """The outcome's warning where the fine-tuned model is not clearly better than the baseline."""
    facts = compared.get("baseline", {})
    if facts.get("low", 1.0) > 0:
        return ""
    score = compared["baselines"][facts["name"]][headline]
    return (
        f"This model is not clearly better than {facts['name']} ({headline} {score:.4f} on the same {facts['rows']:,} "
        f"{facts['scored_on']} rows, trained in {facts['seconds']:.1f} s). `bertkit compare` shows what each costs."
    )


def one_answer(gold: list[Any], predicted: list[Any]) -> str:
    """The outcome's warning: the answer that every row, or word, got although the right ones differ; else empty."""
    right, given = (
        [part for row in rows for part in (row if isinstance(row, (list, tuple)) else [row])]
        for rows in (gold, predicted)
    )
    if len(set(right)) < 2 or not given:
        return ""
    if isinstance(given[0], float):
        return f"{np.mean(given):g}" if np.ptp(given) < 0.01 * np.std(right) else ""
    return str(given[0]) if len(set(given)) == 1 else ""


def finished_result(run: SupervisedRun) -> FinetuneResult | None:
    """What a finished fine-tuning reached, and its model in place of the starting one; None if there is work left."""
    s = run.settings
    if not s.resume or not (s.out / "result.json").is_file() or newest_generation(s.out / "checkpoints"):
        return None
    _check_same_run(run)
    note(f"{s.out} is finished: nothing is left to train.")
    run.folder = model_folder.read_folder(s.out)
    run.folder.model.encoder.dtype = run.model.encoder.dtype
    run.model = run.folder.model.to(run.world.device)
    run.task.options |= run.folder.about["options"]
    result = FinetuneResult.from_dict(json.loads((s.out / "result.json").read_text("utf-8")))
    wrong = mistakes(run, *run.predictions(str(result.scored_on)))
    return replace(result, errors=wrong[:MOST_ERRORS], error_count=len(wrong))


def _check_same_run(run: SupervisedRun) -> None:
    """Refuse other settings or rows than those that a finished fine-tuning's scores are of."""
    out = run.settings.out
    about = read_json(out / "bertkit.json")
    changed = changed_settings(out, run.settings, FREE_AFTERWARDS)
    stored = about.get("digests")
    if isinstance(stored, dict):
        now = row_digests(run)
        changed += [f"other {role} rows" for role in ROLES if role in stored and stored[role] != now.get(role)]
    else:  # an older folder knows the files, not their rows
        files = {role: table.get("sha256") for role, table in about.get("data", {}).items()}
        paths = {role: path for role in ROLES if (path := getattr(run.settings, role)) and path.is_file()}
        changed += [f"other {role} rows" for role, path in paths.items() if files.get(role, "") != _digest(path)]
    if changed:
        raise UserError(
            f"{out}: the run is finished, with different settings or rows: {', '.join(changed)}. Its scores and "
            "its model belong to those. Choose another --out (--model can continue from this one), or train again "
            "with --overwrite."
        )


def row_digests(run: SupervisedRun) -> dict[str, str]:
    """What tells the rows of a fine-tuning run from others: role → digest."""
    return {role: splits.digest(items, run.task) for role, items in run.items.items()}


def calibrate(run: SupervisedRun) -> dict[str, Any]:
    """Calibrate the fine-tuned head by a temperature: fitted on the dev rows, judged on halves that did not fit it."""
    task = run.task
    logits = np.stack(run.outputs("dev"))
    gold = np.array([task.labels.index(item.example.label) for item in run.items["dev"]])
    if len(gold) < 10 or len(set(gold.tolist())) < 2:
        return {}
    half = np.arange(len(gold)) % 2 == 0
    after = np.empty_like(logits, dtype=np.float64)
    for fitted in (half, ~half):
        temperature = calibration.fit_temperature(logits[fitted], gold[fitted])
        after[~fitted] = calibration.probabilities(logits[~fitted], temperature)
    before = calibration.probabilities(logits)
    task.options["temperature"] = calibration.fit_temperature(logits, gold)
    temperature = task.fold_temperature(run.model)
    final = calibration.probabilities(np.stack(run.outputs("dev")))
    points = calibration.coverage_accuracy(final, gold)
    facts: dict[str, Any] = {
        "calibration": {
            "temperature": temperature,
            "scored_on": "dev",
            "rows": len(gold),
            "ece_before": calibration.expected_calibration_error(before, gold),
            "ece_after": calibration.expected_calibration_error(after, gold),
            "before": [b._asdict() for b in calibration.reliability(before, gold)],
            "after": [b._asdict() for b in calibration.reliability(after, gold)],
        },
        "coverage": [p._asdict() for p in points],
    }
    if run.settings.abstain:
        chosen = calibration.abstain_threshold(final, gold, run.settings.abstain)
        if chosen is None:
            note(f"No threshold reaches an accuracy of {run.settings.abstain:.0%} on the dev rows: it never abstains.")
        else:
            task.options["abstain"] = chosen.threshold
            facts["abstain"] = {**chosen._asdict(), "scored_on": "dev", "rows": len(gold)}
            note(abstaining(facts["abstain"]))
    return facts


def abstaining(chosen: Mapping[str, Any]) -> str:
    """The outcome of fine-tuning with `--abstain`, in one sentence: the chosen threshold and what it does."""
    return (
        f"Answers with a score below {chosen['threshold']:.4f} are marked as abstained: of {chosen['rows']:,} "
        f"{chosen['scored_on']} rows, {chosen['coverage']:.1%} are answered, and {chosen['accuracy']:.1%} of those are "
        "right."
    )


def mistakes(run: SupervisedRun, examples: list[Any], predictions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A fine-tuned model's mistakes, the worst first: the most confident wrong answers, the largest differences."""
    pairs = zip(examples, predictions)
    rows = [row for example, prediction in pairs if (row := run.task.mistake(example, prediction))]
    return sorted(rows, key=lambda row: -float(row["score"]))


def suspects(run: SupervisedRun, role: str) -> list[dict[str, Any]]:
    """Rows of a fine-tuning whose own label an unseen model finds least likely; score: that likelihood."""
    pairs = zip(*run.predictions(role))
    return [row for example, prediction in pairs if (row := run.task.suspicion(example, prediction))]


def write_model(run: SupervisedRun, result: FinetuneResult) -> None:
    """Write a fine-tuned model's folder, which `bertkit.load` and transformers open."""
    s, folder = run.settings, run.folder
    scores, intervals = dict(result.metrics or {}), dict(result.intervals or {})
    shown = {
        name: f"{value:.4f}" + (f" [{pair[0]:.4f}, {pair[1]:.4f}]" if (pair := intervals.get(name)) else "")
        for name, value in scores.items()
    }
    folder.labels = run.task.labels or folder.labels
    if run.task.problem_type:
        folder.raw_config["problem_type"] = run.task.problem_type
    if result.thresholds:  # where other programs, and `export --format hf`, find them
        folder.raw_config["thresholds"] = dict(result.thresholds)
    folder.about = {
        "task": run.task.name, "labels": list(run.task.labels), "merge": run.task.merge, "options": run.task.options,
        "windows": {"limit": run.windows.limit, "on_long": run.windows.on_long, "overlap": run.windows.overlap},
        "calibration": _fitted(run.task, result),
        "base": s.model, "bertkit": __version__, "versions": machine.versions(),
        "metrics": scores, "scored_on": result.scored_on,
        "data": {
            role: {"file": path.name, "sha256": _digest(path)}
            for role in ROLES if (path := getattr(s, role)) and (path.is_file() or is_memory(path))
        },
        "digests": row_digests(run),
        "facts": {"task": s.task, "base": s.model, **run.facts, "rows": len(run.items["train"]), **shown},
    }  # fmt: skip
    write_folder(s.out, lambda path: model_folder.write_folder(path, folder))


def _fitted(task: Task, result: FinetuneResult) -> dict[str, Any]:
    """What was fitted after fine-tuning: the temperature, which the head was divided by, and the options in use."""
    temperature = (result.calibration or {}).get("temperature")
    fitted = ("thresholds", "threshold", "abstain")
    options: dict[str, Any] = {key: task.options[key] for key in fitted if key in task.options}
    return options if temperature is None else {"temperature": temperature, **options}


def report(settings: SupervisedSettings, result: FinetuneResult) -> None:
    """Write `report.html` and `result.json` of a fine-tuning into its --out."""
    curves = read_metrics(settings.out / "metrics.jsonl")
    with_curves = replace(result, run={**(result.run or {}), "curves": curves})
    atomic_write(settings.out / "report.html", finetuning_report(with_curves, lang=settings.lang))
    stored = json.dumps(result.stored(), ensure_ascii=False, indent=1, default=str)
    atomic_write(settings.out / "result.json", stored + "\n")


def environment(threads: int) -> dict[str, Any]:
    """What a fine-tuning run was made with: versions, threads, platform, peak memory."""
    import torch

    return {
        "bertkit": __version__, "python": platform.python_version(), "torch": torch.__version__, "threads": threads,
        "platform": f"{platform.system()} {platform.machine()}", "peak_memory_gb": machine.peak_memory() / 2**30,
    }  # fmt: skip


def _digest(path: Path) -> str:
    if is_memory(path):
        return memory_digest(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
