"""After training: calibration, final scores, the model folder and the report."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit import __version__, machine, metrics
from bertkit.checkpoint import folder as model_folder
from bertkit.config import to_plain
from bertkit.data.readers.frames import is_memory, memory_digest
from bertkit.files.atomic import atomic_write, write_folder
from bertkit.metrics import calibration
from bertkit.notify import note
from bertkit.report.finetuning import FinetuneResult, finetuning_report
from bertkit.runs.finetune import split as splits
from bertkit.training.checkpoints import newest_generation
from bertkit.training.metrics_log import read_metrics

if TYPE_CHECKING:
    from bertkit.runs.finetune.run import Finetuning
    from bertkit.tasks.batches import SupervisedFeed
    from bertkit.training.loop import Training
    from bertkit.training.run_folder import RunFolder

MOST_ERRORS = 40


def finish(run: Finetuning, folder: RunFolder, training: Training, feed: SupervisedFeed) -> FinetuneResult:
    """Calibrate, score, write. Returns what the report shows."""
    s, task = run.settings, run.task
    calibrated = calibrate(run) if task.calibrates else {}
    role = "test" if "test" in run.items else "dev"
    thresholds = task.choose_thresholds(run.items["dev"], run.outputs("dev")) if task.has_thresholds else None
    examples, predictions = run.predictions(role)
    metric, gold, predicted, extra = task.metric_inputs(examples, predictions)
    scores = metric(gold, predicted, **extra)
    intervals = metrics.bootstrap(metric, gold, predicted, seed=s.seed, **extra) if len(gold) > 1 else {}
    wrong = mistakes(run, examples, predictions)
    notes = None
    if task.answers_vary and (same := one_answer(gold, predicted)):
        notes = [
            f"Every {role} row got the same answer ({same}) although the right ones differ: nothing was learnt from "
            f"the texts. Try a lower --lr (it was {training.settings.lr:.1e}; e.g. {training.settings.lr / 4:.1e}), "
            "more --epochs, or more rows."
        ]
        note(notes[0])
    result = FinetuneResult(
        task=s.task, model=s.model, out=str(s.out), headline=next(iter(scores)), metrics=dict(scores),
        intervals={name: list(pair) for name, pair in intervals.items()}, rows=len(gold), scored_on=role,
        data={
            **run.split.facts,
            "labels": {r: splits.label_counts(task, e) for r, e in run.split.examples.items()} if task.labels else {},
            "lengths": {"values": [item.tokens for item in run.items["train"]][:20000], "limit": run.windows.limit},
            "cut": {r: splits.cut_facts(items) for r, items in run.items.items()},
        },
        run={
            "settings": to_plain(s), "steps": training.done, "passes": training.done / feed.steps_a_pass,
            "best_step": run.best_step, "seconds": folder.elapsed(), "stopped": run.stopped,
            "learning_rate": training.settings.lr, "precision": str(run.model.encoder.dtype).removeprefix("torch."),
        },
        errors=wrong[:MOST_ERRORS],
        error_count=len(wrong),
        environment=environment(run.threads),
        command=run.command,
        notes=notes,
        dev_metrics=dict(task.score(*run.predictions("dev"))) if role == "test" else None,
        thresholds=thresholds,
        **calibrated,
        **task.by_label(gold, predicted),
    )  # fmt: skip
    if run.world.is_main:
        write_model(run, result)
        report(run, result)
    return result


def one_answer(gold: list[Any], said: list[Any]) -> str:
    """The answer that every row, or every word, got although the right ones differ; empty where there is none."""
    right, given = (
        [one for row in rows for one in (row if isinstance(row, (list, tuple)) else [row])] for rows in (gold, said)
    )
    if len(set(right)) < 2 or not given:
        return ""
    if isinstance(given[0], float):
        return f"{np.mean(given):g}" if np.ptp(given) < 0.01 * np.std(right) else ""
    return str(given[0]) if len(set(given)) == 1 else ""


def finished_result(run: Finetuning) -> FinetuneResult | None:
    """What a finished run reached, and its model in place of the starting one; None where there is something to do."""
    s = run.settings
    if not s.resume or not (s.out / "result.json").is_file() or newest_generation(s.out / "checkpoints"):
        return None
    note(f"{s.out} is finished: nothing is left to train.")
    run.folder = model_folder.read_folder(s.out)
    run.folder.model.encoder.dtype = run.model.encoder.dtype
    run.model = run.folder.model.to(run.world.device)
    run.task.options |= run.folder.about["options"]
    result = FinetuneResult.from_dict(json.loads((s.out / "result.json").read_text("utf-8")))
    wrong = mistakes(run, *run.predictions(str(result.scored_on)))
    return replace(result, errors=wrong[:MOST_ERRORS], error_count=len(wrong))


def calibrate(run: Finetuning) -> dict[str, Any]:
    """Fit a temperature on the dev rows and judge it on the half it was not fitted on."""
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
    final = calibration.probabilities(logits, task.options["temperature"])
    points = calibration.coverage_accuracy(final, gold)
    found: dict[str, Any] = {
        "calibration": {
            "temperature": task.options["temperature"],
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
            found["abstain"] = chosen._asdict()
    return found


def mistakes(run: Finetuning, examples: list[Any], predictions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst first: the most confident wrong answers, the largest differences."""
    pairs = zip(examples, predictions)
    rows = [row for example, prediction in pairs if (row := run.task.mistake(example, prediction))]
    return sorted(rows, key=lambda row: -float(row["score"]))


def suspects(run: Finetuning, role: str) -> list[dict[str, Any]]:
    """Rows whose own label an unseen model finds least likely; score: that likelihood."""
    pairs = zip(*run.predictions(role))
    return [row for example, prediction in pairs if (row := run.task.suspicion(example, prediction))]


def write_model(run: Finetuning, result: FinetuneResult) -> None:
    """The folder that `bertkit.load` and transformers open."""
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
        "task": s.task, "labels": list(run.task.labels), "merge": run.task.merge, "options": run.task.options,
        "windows": {"limit": run.windows.limit, "on_long": run.windows.on_long, "overlap": run.windows.overlap},
        "calibration": {k: v for k, v in run.task.options.items() if k in ("temperature", "thresholds", "abstain")},
        "base": s.model, "bertkit": __version__, "versions": machine.versions(),
        "metrics": scores, "scored_on": result.scored_on,
        "data": {
            role: {"file": path.name, "sha256": _digest(path)}
            for role, path in (("train", s.train), ("dev", s.dev), ("test", s.test))
            if path and (path.is_file() or is_memory(path))
        },
        "facts": {"task": s.task, "base": s.model, **run.facts, "rows": len(run.items["train"]), **shown},
    }  # fmt: skip
    (s.out / "README.md").unlink(missing_ok=True)
    write_folder(s.out, lambda path: model_folder.write_folder(path, folder))


def report(run: Finetuning, result: FinetuneResult) -> None:
    """Write `report.html` and `result.json` of a fine-tuning run."""
    curves = read_metrics(run.settings.out / "metrics.jsonl")
    shown = replace(result, run={**(result.run or {}), "curves": curves})
    atomic_write(run.settings.out / "report.html", finetuning_report(shown, lang=run.settings.lang))
    stored = json.dumps(result.stored(), ensure_ascii=False, indent=1, default=str)
    atomic_write(run.settings.out / "result.json", stored + "\n")


def environment(threads: int) -> dict[str, Any]:
    """What the run was made with."""
    import torch

    return {
        "bertkit": __version__, "python": platform.python_version(), "torch": torch.__version__, "threads": threads,
        "platform": f"{platform.system()} {platform.machine()}", "peak_memory_gb": machine.peak_memory() / 2**30,
        "command_line": " ".join(Path(word).name if word == sys.argv[0] else word for word in sys.argv[:3]),
    }  # fmt: skip


def _digest(path: Path) -> str:
    if is_memory(path):
        return memory_digest(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()
