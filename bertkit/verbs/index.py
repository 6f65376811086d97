"""`bertkit index`: own documents, made searchable."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What `index` needs."""

    files: tuple[Path, ...] = option(
        help="txt (an empty line between documents), jsonl, csv, parquet, or folders.", argument=True
    )
    model: str = option("en", "Whose sentence vectors: embedded name, folder, or hub name.")
    out: Path = option(Path("index"), "The index's folder.")
    passage: int = option(96, "Tokens of a passage, about: whole sentences up to this.")
    text: str = option("text", "Name (or number) of the text column.")
    encoding: str = option("utf-8", "Encoding of the files.")


def run(settings: Settings) -> dict[str, Any]:
    """Cut documents into passages, and keep their vectors and words for `search` and `ask`."""
    from bertkit import machine
    from bertkit.errors import UserError
    from bertkit.predictor import Predictor
    from bertkit.searching.index import build
    from bertkit.searching.passages import read_passages
    from bertkit.telling import track

    if settings.passage < 8:
        raise UserError(f"--passage is {settings.passage}; a passage has at least 8 tokens.")
    machine.keep_few_kernels()
    machine.set_up(settings.threads)
    predictor = Predictor.load(settings.model, settings.precision, settings.device)
    passages = read_passages(settings.files, predictor.tokenizer, settings.passage, settings.text, settings.encoding)
    start = time.perf_counter()
    facts = build(
        predictor, settings.model, iter(track(passages, "indexing")), settings.out, passage=settings.passage
    )  # fmt: skip
    seconds = time.perf_counter() - start
    return {"folder": str(settings.out), **facts, "seconds": round(seconds, 2)}


def lines(result: dict[str, Any]) -> list[str]:
    """One line."""
    return [
        f"{result['folder']}: {result['passages']:,} passages of {result['files']:,} files, "
        f"{result['tokens']:,} tokens, {result['seconds']} s"
    ]
