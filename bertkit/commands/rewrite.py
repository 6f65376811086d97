"""`bertkit rewrite`: what a Transformer makes of the texts of a file, in order."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.config import Common, option

AT_ONCE = 512  # texts read before they are sorted by length and written


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What `rewrite` needs."""

    model: Path = option(help="A folder that `bertkit seq2seq` wrote.", argument=True)
    file: str = option(help="Rows with a text each, or - for lines from standard input.", argument=True)
    out: Path | None = option(
        None, "Where to: .jsonl, .csv or .parquet; without it JSON lines (--json: an array) on standard output."
    )
    beam: int = option(4, "Hypotheses kept; 1 is greedy.", at_least=1)
    penalty: float = option(0.6, "Length penalty; 0: none, which favours short targets.", at_least=0)
    text: str = option("text", "Name (or number) of the text column.")
    encoding: str = option("utf-8", "Encoding of the file.")


@dataclass
class Count:
    """What was rewritten so far."""

    rows: int = 0
    rows_cut: int = 0
    tokens_cut: int = 0
    unfinished: int = 0
    seconds: float = 0.0


def run(settings: Settings) -> dict[str, Any] | Iterator[dict[str, Any]]:
    """Write the best target found for every text of a file."""
    from bertkit import machine
    from bertkit.ancestors.transformer.model import Seq2Seq
    from bertkit.data.write_rows import write_all
    from bertkit.files.atomic import not_the_input

    not_the_input(settings.out, settings.file)
    machine.set_up(settings.threads)
    model = Seq2Seq.load(settings.model, settings.precision, machine.device_for(settings.device))
    count = Count()
    targets = _targets(settings, model, count)
    if settings.out is None:  # whoever called prints them while they come
        return targets
    write_all(settings.out, targets)
    return {"file": str(settings.out), **asdict(count)}


def _targets(settings: Settings, model: Any, count: Count) -> Iterator[dict[str, Any]]:
    """Each text's target, in order; what was cut or broken off is told at the end."""
    from bertkit.notify import note, track

    start = time.perf_counter()
    source = iter(track(_texts(settings), f"rewriting {settings.file}"))
    while chunk := list(islice(source, AT_ONCE)):
        for answer in model.rewrite(chunk, settings.beam, settings.penalty):
            count.rows += 1
            count.rows_cut += answer["cut"] > 0
            count.tokens_cut += answer["cut"]
            count.unfinished += not answer["finished"]
            yield answer
    if count.tokens_cut:
        note(f"{count.rows_cut} of {count.rows} texts were cut: {count.tokens_cut} of their tokens were not seen.")
    if count.unfinished:
        note(f"{count.unfinished} of {count.rows} targets did not come to an end and were broken off.")
    count.seconds = time.perf_counter() - start
    note(f"{count.rows:,} texts in {count.seconds:.1f} s.")


def _texts(settings: Settings) -> Iterator[str]:
    """The file's texts; of standard input every line is one."""
    from bertkit.ancestors.transformer.data import read_sources

    if settings.file == "-":
        return (line.rstrip("\n") for line in sys.stdin)
    return read_sources(Path(settings.file), settings.text, settings.encoding)


def lines(result: dict[str, Any]) -> list[str]:
    """One line."""
    return [f"{result['file']}: {result['rows']:,} texts"]
