"""`bertkit index`: make your documents searchable."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.config import option
from bertkit.settings.finetune import TextSettings

FIRST = 2000  # characters of a document, by which its language is told


@dataclass(frozen=True, kw_only=True)
class Settings(TextSettings):
    """Options of `bertkit index`."""

    files: tuple[Path, ...] = option(
        help="txt (an empty line between documents), jsonl, csv, parquet, or folders.", argument=True
    )
    model: str = option(
        "auto",
        "The embedding model: embedded name, folder, or hub name; auto: the embedded one of the texts' language.",
    )
    out: Path = option(Path("index"), "The folder to write the index to.")
    id: str = option("id", "The column of document ids; without one, ids are made of the file's name and a number.")
    passage: int = option(96, "Approximate tokens per passage: whole sentences up to this length.", at_least=8)


def run(settings: Settings) -> dict[str, Any]:
    """Split documents into passages, and store their vectors and words for `search` and `ask`."""
    from bertkit import machine
    from bertkit.config import to_plain, to_toml
    from bertkit.data.readers import read_documents
    from bertkit.files.atomic import check_folder
    from bertkit.inference.predictor import Predictor
    from bertkit.notify import track
    from bertkit.retrieval.index import build
    from bertkit.retrieval.passages import read_passages, read_with_ids
    from bertkit.runs.finetune.start import LOOKED_AT, report_unknown, starting_model
    from bertkit.tasks import make

    check_folder(settings.out)
    machine.limit_onednn_cache()
    machine.set_up(settings.threads)
    task = make("classify")
    files = _files(settings)
    texts = read_documents(files, text=settings.text, encoding=settings.encoding)
    some = task.from_inputs([text[:FIRST] for text in islice(texts, LOOKED_AT)])
    model = starting_model(settings.model, task, some)
    predictor = Predictor.load(model, settings.precision, settings.device)
    documents = read_with_ids(files, settings.text, settings.id, settings.encoding)
    passages = read_passages(documents, predictor.tokenizer, settings.passage)
    start = time.perf_counter()
    facts = build(
        predictor, model, iter(track(passages, "indexing")), settings.out, to_toml(to_plain(settings)),
        passage=settings.passage,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    facts["unknown_share"] = report_unknown(predictor, model)
    return {"folder": str(settings.out), "model": model, **facts, "seconds": round(seconds, 2)}


def _files(settings: Settings) -> list[Path]:
    """The files to read: never an index, which may be among the documents it was made from."""
    from bertkit.data.readers import document_files
    from bertkit.errors import UserError
    from bertkit.retrieval.index import is_index

    if any(str(path) == "-" for path in settings.files):
        raise UserError("`bertkit index` reads its files twice, so it cannot read from a pipe. Pass a file.")
    if own := next(filter(is_index, settings.files), None):
        raise UserError(f"{own} is itself an index. Pass the documents, and a different folder with --out.")
    return document_files(settings.files, leave_out=is_index)


def lines(result: dict[str, Any]) -> list[str]:
    """What `bertkit index` prints: the index and its size, as one line."""
    return [
        f"{result['folder']}: {result['passages']:,} passages from {result['files']:,} files, "
        f"{result['tokens']:,} tokens, vectors by {result['model']}, {result['seconds']} s"
    ]
