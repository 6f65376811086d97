"""`bertkit predict`: a model's answers to the rows of a file, in order, in constant memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What `predict` needs."""

    model: str = option(help="A fine-tuned model's folder.", argument=True)
    file: str = option(help="Rows to answer, or - for lines from standard input.", argument=True)
    out: Path | None = option(
        None, "Where to: .jsonl, .csv or .parquet; without it JSON lines (--json: an array) on standard output."
    )
    text: str = option("text", "Name (or number) of the text column.")
    text_b: str = option("text_b", "Name (or number) of the second text's column.")
    on_long: str = option("", "Long texts; as in training unless said.", choices=("", "window", "truncate", "error"))
    encoding: str = option("utf-8", "Encoding of the file.")


@dataclass
class Count:
    """What was answered so far."""

    rows: int = 0
    rows_cut: int = 0
    tokens_cut: int = 0
    tokens: int = 0
    seconds: float = 0.0


def run(settings: Settings) -> dict[str, Any] | Iterator[dict[str, Any]]:
    """Answer every row of a file."""
    from bertkit import machine
    from bertkit.data.write_rows import write_all
    from bertkit.errors import UserError
    from bertkit.files.atomic import not_the_input
    from bertkit.loading import open_model

    not_the_input(settings.out, settings.file)
    machine.limit_onednn_cache()
    machine.set_up(settings.threads)
    predictor = open_model(settings.model, settings.precision, settings.device)
    if not hasattr(predictor, "predict_examples"):
        raise UserError(
            f"{settings.model} answers no rows: it is no fine-tuned model. Use bertkit finetune or compare."
        )
    count = Count()
    answers = _answers(settings, predictor, count)
    if settings.out is None:  # whoever called prints them while they come
        return answers
    write_all(settings.out, answers)
    return {"file": str(settings.out), **asdict(count)}


def _answers(settings: Settings, predictor: Any, count: Count) -> Iterator[dict[str, Any]]:
    """Each row's answer, in order and in constant memory; what was cut is told at the end."""
    from bertkit import machine
    from bertkit.inference.predictor import AT_ONCE
    from bertkit.notify import note, track

    start = time.perf_counter()
    source = iter(track(examples(settings, predictor), f"predicting {settings.file}"))
    while chunk := list(islice(source, AT_ONCE)):
        for answer in predictor.predict_examples(chunk, settings.on_long, file=settings.file):
            answer.pop("vectors", None)  # `embed` writes those
            count.rows += 1
            count.rows_cut += answer["cut"] > 0
            count.tokens_cut += answer["cut"]
            count.tokens += answer.get("seen", answer.get("tokens", 0))
            yield answer
        chunk.clear()  # before the next is read: two at once would be the peak
        machine.trim_memory()
    if cut := count.tokens_cut:
        note(f"{count.rows_cut} of {count.rows} rows were cut: {cut} of {cut + count.tokens} tokens were not seen.")
    count.seconds = seconds = time.perf_counter() - start
    note(f"{count.rows:,} rows in {seconds:.1f} s ({count.rows / seconds:,.0f} a second), {predictor.precision}.")


def examples(settings: Settings, predictor: Any) -> Iterator[Any]:
    """The file's examples as the model's task reads them; lines of standard input are texts."""
    if settings.file == "-":
        from bertkit.files.open import open_text

        for number, line in enumerate(open_text("-", settings.encoding), 1):
            yield from predictor.task.from_inputs([_said(line)], number)
        return
    yield from predictor.task.stream(settings.file, _reading(settings))


def _said(line: str) -> Any:
    """A line of standard input: an object where it is one, else the text itself."""
    try:
        return json.loads(line) if line.startswith("{") else line
    except ValueError:
        return line


def _reading(settings: Settings) -> Any:
    from bertkit.tasks.base import Reading

    return Reading(settings.text, settings.text_b, "label", settings.encoding)


def lines(result: dict[str, Any]) -> list[str]:
    """One line."""
    return [f"{result['file']}: {result['rows']:,} rows"]
