"""`bertkit embed`: texts to vectors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What `embed` needs."""

    model: str = option(help="Embedded name, folder, or hub name.", argument=True)
    file: Path = option(help="csv, tsv, jsonl, parquet or txt (one text a line).", argument=True)
    out: Path = option(help="Where to: .npy, .parquet or .jsonl.", default=Path("embeddings.npy"))
    layers: str = option(
        "last",
        "embeddings, last, second-to-last, sum-last-4, concat-last-4, sum-all, or layer numbers (-1,-2).",
    )
    pool: str = option("mean", "How a text's token vectors become one.", choices=("mean", "cls", "max", "none"))
    text: str = option("text", "Name (or number) of the text column.")
    on_long: str = option(
        "window", "Texts longer than the model sees: read in windows, cut, or refuse.",
        choices=("window", "truncate", "error"),
    )  # fmt: skip
    normalize: bool = option(False, "Give every vector length one.")
    encoding: str = option("utf-8", "Encoding of the file.")


def run(settings: Settings) -> dict[str, Any]:
    """Turn the texts of a file into vectors, in order and in bounded memory."""
    from bertkit import machine
    from bertkit.data.readers import read_rows
    from bertkit.data.write_vectors import open_vectors
    from bertkit.predictor import AT_ONCE, Predictor
    from bertkit.telling import note, track

    machine.set_up(settings.threads)
    predictor = Predictor.load(settings.model, settings.precision, settings.device)
    note(f"{settings.model}: {predictor.precision} on {predictor.device}.")
    rows = read_rows(settings.file, text=settings.text, labelled=False, encoding=settings.encoding)
    texts = (row.text for row in track(rows, f"embedding {settings.file.name}"))
    start = time.perf_counter()
    width = 0
    with open_vectors(settings.out) as out:
        while chunk := list(islice(texts, AT_ONCE)):
            vectors = predictor.embed(chunk, settings.layers, settings.pool, settings.on_long, settings.normalize)
            width = vectors[0].shape[-1]
            if isinstance(vectors, list):
                out.write_tokens(chunk, vectors)
            else:
                out.write(chunk, vectors)
    seconds = time.perf_counter() - start
    return {
        "file": str(settings.out), "rows": out.count, "width": width, "layers": settings.layers, "pool": settings.pool,
        "precision": predictor.precision, "seconds": round(seconds, 2),
        "texts_per_second": round(out.count / seconds, 1),
    }  # fmt: skip


def lines(result: dict[str, Any]) -> list[str]:
    """One line."""
    return [
        f"{result['file']}: {result['rows']:,} texts × {result['width']} ({result['layers']}, {result['pool']}, "
        f"{result['precision']}), {result['seconds']} s, {result['texts_per_second']} texts/s"
    ]
