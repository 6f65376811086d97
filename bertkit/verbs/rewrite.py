"""`bertkit rewrite`: what a Transformer makes of the texts of a file, in order."""

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

AT_ONCE = 512  # texts read before they are sorted by length and written


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What `rewrite` needs."""

    model: Path = option(help="A folder that `bertkit seq2seq` wrote.", argument=True)
    file: str = option(help="Rows with a text each, or - for lines from standard input.", argument=True)
    out: Path | None = option(None, "Where to: .jsonl, .csv or .parquet; without it JSON lines on standard output.")
    beam: int = option(4, "Hypotheses kept; 1 is greedy.", at_least=1)
    penalty: float = option(0.6, "Length penalty; 0: none, which favours short targets.", at_least=0)
    text: str = option("text", "Name (or number) of the text column.")
    encoding: str = option("utf-8", "Encoding of the file.")


def run(settings: Settings) -> dict[str, Any] | None:
    """Write the best target found for every text of a file."""
    from contextlib import nullcontext

    from bertkit import machine
    from bertkit.ancestors.seq2seq import Seq2Seq
    from bertkit.data.writers import open_writer
    from bertkit.telling import note, track

    machine.set_up(settings.threads)
    model = Seq2Seq.load(settings.model, settings.precision, machine.device_for(settings.device))
    start = time.perf_counter()
    rows = cut_rows = cut = broken = 0
    source = iter(track(_texts(settings), f"rewriting {settings.file}"))
    with open_writer(settings.out) if settings.out else nullcontext(_Stdout()) as out:
        while chunk := list(islice(source, AT_ONCE)):
            for answer in model.rewrite(chunk, settings.beam, settings.penalty):
                out.write(answer)
                rows += 1
                cut_rows += answer["cut"] > 0
                cut += answer["cut"]
                broken += not answer["finished"]
    if cut:
        note(f"{cut_rows} of {rows} texts were cut: {cut} of their tokens were not seen.")
    if broken:
        note(f"{broken} of {rows} targets did not come to an end and were broken off.")
    seconds = time.perf_counter() - start
    note(f"{rows:,} texts in {seconds:.1f} s.")
    if settings.out is None:
        return None
    return {
        "file": str(settings.out), "rows": rows, "rows_cut": cut_rows, "tokens_cut": cut, "unfinished": broken,
        "seconds": seconds,
    }  # fmt: skip


def _texts(settings: Settings) -> Iterator[str]:
    """The file's texts; of standard input every line is one."""
    from bertkit.ancestors.seq2seq_data import read_sources

    if settings.file == "-":
        return (line.rstrip("\n") for line in sys.stdin)
    return read_sources(Path(settings.file), settings.text, settings.encoding)


class _Stdout:
    def write(self, row: dict[str, Any]) -> None:
        print(json.dumps(row, ensure_ascii=False))


def lines(result: dict[str, Any]) -> list[str]:
    """One line."""
    return [f"{result['file']}: {result['rows']:,} texts"]
