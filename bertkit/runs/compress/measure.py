"""Compares two models in one run: size, speed, how similarly they answer, and their scores."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit import samples
from bertkit.checkpoint.locate import locate
from bertkit.data.readers import read_rows
from bertkit.errors import UserError
from bertkit.files.atomic import atomic_write, write_folder
from bertkit.files.guarded import read_json, write_json
from bertkit.inference.predictor import Predictor
from bertkit.settings.compress import MeasureSettings
from bertkit.tasks.base import Reading

MOST = 512  # rows that are timed
TURNS = 3  # per model, interleaved: the speed of a shared machine changes within minutes
SECONDS = 1.0  # approximate duration of a turn
WEIGHTS = ("*.safetensors", "*.onnx", "*.onnx.data", "pytorch_model.bin")


def compared(
    before: Predictor,
    after: Predictor,
    names: tuple[str, str],
    rows: Sequence[Any],
    scored: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Measure what changed between two models. names: of both, to find their sizes. rows: examples of the task, or
    texts of a model without one; scored: examples with gold answers, all of which are scored.
    """
    sides = (before, after)
    timed_rows = list(rows)[:MOST]
    answers = [_answers(side, timed_rows) for side in sides]
    speeds = speed([lambda side=side: _answers(side, timed_rows) for side in sides])  # type: ignore[misc]
    result: dict[str, Any] = {
        key: {
            "model": name, "megabytes": megabytes(locate(name)), "precision": side.precision,
            "texts_per_second": len(timed_rows) / seconds,
        }
        for key, name, side, seconds in zip(("before", "after"), names, sides, speeds)
    }  # fmt: skip
    result |= {
        "rows": len(timed_rows),
        "threads": torch.get_num_threads(),
        "parity": parity(*(_alone(side, timed_rows) for side, timed_rows in zip(sides, answers))),
    }
    if scored is not None:
        scores = [dict(side.task.score(scored, side.predict_examples(scored))) for side in sides]
        result["metrics"] = {name: [score[name] for score in scores] for name in scores[0]}
        result["rows_scored"] = len(scored)
    return result


def _answers(model: Predictor, rows: Sequence[Any]) -> Any:
    return model.predict_examples(rows) if has_task(model) else model.embed(list(rows))


def _alone(model: Predictor, answers: Any) -> Any:
    """Answers without their scores, one by one, to measure agreement by; vectors as they are."""
    if isinstance(answers, np.ndarray):
        return answers
    return [answer for prediction in answers for answer in model.task.answers_in(prediction)]


def has_task(model: Predictor) -> bool:
    """Whether the measured model has been fine-tuned for a task."""
    try:
        return bool(model.task)
    except UserError:
        return False


def rows_to_score(settings: MeasureSettings, before: Predictor) -> list[Any] | None:
    """The rows of --eval to measure a smaller model on, if given.

    Read before writing anything, so that a wrong file costs nothing.
    """
    if settings.eval is None:
        return None
    if not has_task(before):
        raise UserError(f"{settings.model} has not been fine-tuned, so it has no score to compare. Leave --eval out.")
    reading = Reading(settings.text, settings.text_b, settings.label, settings.encoding, settings.label_separator)
    rows = before.task.read(settings.eval, before.task.reading_of(settings.eval, reading))
    before.task.check(rows, str(settings.eval))
    return rows


def side_by_side(
    settings: MeasureSettings,
    before: Predictor,
    after: Predictor,
    scored: Sequence[Any] | None,
    file: Path | None = None,
) -> dict[str, Any]:
    """Compare a model with its smaller version (or one file of it), on the rows to score, else on sample rows."""
    names = (settings.model, str(file or settings.out))
    return compared(before, after, names, sample_rows(before) if scored is None else scored, scored)


def keep_scores(settings: MeasureSettings, comparison: dict[str, Any]) -> None:
    """Write the measured scores into bertkit.json and onto the card, if rows to score were given."""
    if settings.eval is None:
        return
    after = {name: pair[1] for name, pair in comparison["metrics"].items()}
    formatted = {name: f"{value:.4f}" for name, value in after.items()}
    about = read_json(settings.out / "bertkit.json")
    about |= {"metrics": after, "scored_on": settings.eval.name, "facts": about["facts"] | formatted}
    write_folder(settings.out, lambda folder: write_json(folder / "bertkit.json", about), add=True)
    card = settings.out / "README.md"
    lines = [f"| {name} | {value} |" for name, value in formatted.items()]
    title = f"Measured on {comparison['rows_scored']:,} rows of {settings.eval.name}"
    table = "\n".join(["", f"## {title}", "", "| | |", "|---|---|", *lines, ""])
    atomic_write(card, card.read_text("utf-8") + table)


def sample_rows(model: Predictor) -> list[Any]:
    """Rows to measure on: examples of the model's task, or texts where it has none, in a language it knows."""
    if has_task(model):
        return model.task.read(_sample(model, model.task.sample), Reading(), labelled=False)
    return [row.text for row in read_rows(_sample(model, "messages_dev.csv"), labelled=False)]


def _sample(model: Predictor, name: str) -> Path:
    """The sample file to measure on: of the language whose words the vocabulary knows better."""
    unknown = model.tokenizer.unk_id

    def strangers(lang: str) -> float:
        ids = [i for row in model.tokenizer.ids_batch(samples.path(lang, "fresh.txt").read_text("utf-8").split("\n"))
               for i in row]  # fmt: skip
        return ids.count(unknown) / len(ids) if unknown is not None else len(ids)

    return samples.path(min(samples.LANGUAGES, key=strangers), name)


def speed(contestants: Sequence[Callable[[], Any]]) -> list[float]:
    """Measure two models' seconds per call: the median of interleaved runs, after a warm-up."""
    timings: list[list[float]] = [[] for _ in contestants]
    for _ in range(TURNS):
        for seconds, contestant in zip(timings, contestants):
            start, times = time.perf_counter(), 0
            while not times or (time.perf_counter() - start) * (times + 1) / times < SECONDS:
                contestant()
                times += 1
            seconds.append((time.perf_counter() - start) / times)
    return [statistics.median(seconds) for seconds in timings]


def megabytes(folder: Path) -> float:
    """Measure the size of the weights on disk, in megabytes."""
    files = {path for pattern in WEIGHTS for path in folder.glob(pattern)} if folder.is_dir() else {folder}
    return sum(path.stat().st_size for path in files if path.is_file()) / 1e6


def parity(before: Any, after: Any) -> dict[str, float]:
    """Measure how similarly two models answer the same rows: {name: value}, where 1 means identical."""
    if isinstance(before, np.ndarray):
        return {"cosine": float(np.mean(_cosines(before, after)))}
    if before and isinstance(before[0], np.ndarray):
        return {"cosine": float(np.mean([_cosines(a, b) for a, b in zip(before, after)]))}
    if before and isinstance(before[0], float):
        values = np.array([before, after])
        spread = values.std(1)
        return {"correlation": float(np.corrcoef(values)[0, 1]) if spread.all() else float(np.array_equal(*values))}
    return {"agreement": sum(a == b for a, b in zip(before, after)) / max(1, len(before))}


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / np.maximum(lengths, 1e-12)


WIDE = 48  # columns of the comparison's table


def lines(comparison: dict[str, Any]) -> list[str]:
    """What is measured of two models as lines for the terminal."""
    before, after = comparison["before"], comparison["after"]
    sizes, speeds = ([side[key] for side in (before, after)] for key in ("megabytes", "texts_per_second"))
    rows = [
        "                              before       after",
        f"weights, MB             {sizes[0]:12.2f}{sizes[1]:12.2f}  "
        f"({sizes[1] / max(sizes[0], 1e-9):.2f} times the size)",
        f"texts per second        {speeds[0]:12.0f}{speeds[1]:12.0f}  ({speeds[1] / speeds[0]:.2f} times the speed; "
        f"{before['precision']} → {after['precision']}, {comparison['threads']} threads, {comparison['rows']} rows)",
    ]
    for name, value in comparison["parity"].items():
        rows.append(f"{name} (before/after)   {value:{WIDE - 18 - len(name)}.4f}")
    for name, (old, new) in comparison.get("metrics", {}).items():
        rows.append(f"{name:24}{old:12.4f}{new:12.4f}   {new - old:+.4f}")
    if "rows_scored" in comparison:
        rows.append(f"scored on {comparison['rows_scored']:,} rows")
    return rows
