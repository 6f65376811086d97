"""`bertkit search`: find the passages of an index that match a question."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit search`."""

    index: Path = option(help="The index folder, made by `bertkit index`.", argument=True)
    query: str = option(help="What to search for.", argument=True)
    k: int = option(10, "Number of passages.", short="-k", at_least=1)
    by: str = option(
        "both", "Rank by vector similarity, by shared words (BM25), or by both.", choices=("both", "vectors", "words")
    )
    model: str = option("", "The index's model, if it has moved.")


def run(settings: Settings) -> dict[str, Any]:
    """Find the nearest passages, best first."""
    from bertkit import machine
    from bertkit.retrieval.index import Index

    machine.set_up(settings.threads)
    index = Index.open(settings.index, settings.model, settings.precision, settings.device)
    return {"query": settings.query, "found": index.search(settings.query, settings.k, settings.by)}


def lines(result: dict[str, Any]) -> list[str]:
    """One passage per line, with its file and document."""
    return [
        f"{one['score']:6.3f}  {' '.join(one['text'].split())}  ({one['file']}, document {one['document']})"
        for one in result["found"]
    ] or ["nothing found"]
