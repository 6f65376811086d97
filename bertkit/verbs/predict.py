"""`bertkit predict`: a model's answers to the rows of a file, in order, in constant memory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What `predict` needs."""

    model: str = option(help="A fine-tuned model's folder.", argument=True)
    file: str = option(help="Rows to answer, or - for lines from standard input.", argument=True)
    out: Path | None = option(None, "Where to: .jsonl, .csv or .parquet; without it JSON lines on standard output.")
    text: str = option("text", "Name (or number) of the text column.")
    text_b: str = option("text_b", "Name (or number) of the second text's column.")
    on_long: str = option("", "Long texts; as in training unless said.", choices=("", "window", "truncate", "error"))
    encoding: str = option("utf-8", "Encoding of the file.")


def run(settings: Settings) -> dict[str, Any] | None:
    """Answer every row of a file."""
    from contextlib import nullcontext

    from bertkit import machine
    from bertkit.comparing.opening import open_model
    from bertkit.data.writers import open_writer
    from bertkit.errors import UserError
    from bertkit.predictor import AT_ONCE
    from bertkit.telling import note, track

    machine.keep_few_kernels()
    machine.set_up(settings.threads)
    predictor = open_model(settings.model, settings.precision, settings.device)
    if not hasattr(predictor, "predict_examples"):
        raise UserError(
            f"{settings.model} answers no rows: it is no fine-tuned model. Use bertkit finetune or compare."
        )
    start = time.perf_counter()
    rows = cut_rows = cut = tokens = 0
    source = iter(track(examples(settings, predictor), f"predicting {settings.file}"))
    with open_writer(settings.out) if settings.out else nullcontext(_Stdout()) as out:
        while chunk := list(islice(source, AT_ONCE)):
            for answer in predictor.predict_examples(chunk, settings.on_long):
                answer.pop("vectors", None)  # `embed` writes those
                out.write(answer)
                rows += 1
                cut_rows += answer["cut"] > 0
                cut += answer["cut"]
                tokens += answer.get("seen", answer.get("tokens", 0))
            chunk.clear()  # before the next is read: two at once would be the peak
            machine.give_back()
    if cut:
        note(f"{cut_rows} of {rows} rows were cut: {cut} of {cut + tokens} tokens were not seen.")
    seconds = time.perf_counter() - start
    note(f"{rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f} a second), {predictor.precision}.")
    if settings.out is None:
        return None
    return {"file": str(settings.out), "rows": rows, "rows_cut": cut_rows, "tokens_cut": cut, "seconds": seconds}


def examples(settings: Settings, predictor: Any) -> Iterator[Any]:
    """The file's examples as the model's task reads them; lines of standard input are texts."""
    if settings.file == "-":
        for line in sys.stdin:
            text = line.rstrip("\n")
            yield from predictor.task.wrap([_said(text)])
        return
    yield from predictor.task.stream(settings.file, _reading(settings))


def _said(line: str) -> Any:
    """A line of standard input: an object where it is one, else the text itself."""
    try:
        return json.loads(line) if line.startswith("{") else line
    except ValueError:
        return line


def _reading(settings: Settings) -> Any:
    from bertkit.tasks.task import Reading

    return Reading(settings.text, settings.text_b, "label", settings.encoding)


class _Stdout:
    def write(self, row: dict[str, Any]) -> None:
        print(json.dumps(row, ensure_ascii=False))


def lines(result: dict[str, Any]) -> list[str]:
    """One line."""
    return [f"{result['file']}: {result['rows']:,} rows"]
