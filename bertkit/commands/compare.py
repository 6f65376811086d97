"""`bertkit compare`: on your own rows, is BERT worth its cost?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.notify import columns, padded
from bertkit.settings.finetune import CompareSettings as Settings

if TYPE_CHECKING:
    from bertkit.retrieval.evaluate import Search
    from bertkit.retrieval.index import Index
    from bertkit.runs.compare.run import CompareResult


def run(settings: Settings) -> CompareResult | dict[str, Any]:
    """Compare models on the same rows, from the most frequent label to BERT, or ways to search; with a verdict."""
    from bertkit.files.atomic import check_folder
    from bertkit.runs.compare.run import compare

    check_folder(settings.out)
    return _search(settings) if settings.task == "search" else compare(settings)


def lines(result: CompareResult | dict[str, Any]) -> list[str]:
    """The output of the command `compare`: a table, what was left out, and the verdict."""
    if isinstance(result, dict):
        from bertkit.commands.evaluate import search_lines

        return search_lines(result)
    wide = max(columns(row.name) for row in result.contenders)
    rows = [f"{result.headline} on {result.rows:,} rows (95 % interval, p against the best, training, per text, size)"]
    for row in result.contenders:
        low, high = row.interval
        rows.append(
            f"  {padded(row.name, wide)}  {row.score:.4f}  {low:.3f}–{high:.3f}  "
            f"{_chance(row.p_value)}  {row.train_seconds:8.1f} s  {row.ms_per_text:8.3f} ms  "
            f"{row.megabytes:7.2f} MB"
        )
    rows += [f"  {row.name} was stopped early: {row.stopped}" for row in result.contenders if row.stopped]
    rows += [f"  left out: {row.name}: {row.reason}" for row in result.skipped]
    rows += ["", result.verdict]
    if result.outlook:
        rows.append(result.outlook)
    return [*rows, f"Report: {result.report}"]


def _chance(p: float | None) -> str:
    """A comparison's p-value in a fixed width."""
    return "best   " if p is None else "p<0.001" if p < 0.001 else f"p {p:.3f}"


# ---- `compare search`: an index by each model, and the same queries for all.


def _search(settings: Settings) -> dict[str, Any]:
    """`compare search`: index with each model and answer the same queries with all of them."""
    from functools import partial

    from bertkit import machine
    from bertkit.commands import index
    from bertkit.errors import UserError
    from bertkit.report.comparison import search_report
    from bertkit.retrieval.evaluate import Measured, Reranker, measure, ranked, read_queries, relevant_ids
    from bertkit.retrieval.index import Index

    machine.set_up(settings.threads)
    if settings.test is None:
        raise UserError("There are no queries. Pass them with --test: rows with a query and its relevant ids or texts.")
    queries = read_queries(settings.test, settings.encoding)
    first: Index | None = None
    measured: list[Measured] = []
    for model in _names(settings.models):
        made = index.run(
            index.Settings(
                files=(settings.train,), model=model, out=settings.out / f"index-{model.strip('./').replace('/', '-')}",
                text=settings.text, encoding=settings.encoding, threads=settings.threads, device=settings.device,
                precision=settings.precision,
            )
        )  # fmt: skip
        opened = Index.open(Path(made["folder"]))
        count, size, name = len(opened), opened.megabytes + _megabytes(made["model"]), made["model"]
        if first is None:
            first = opened
            gold = relevant_ids(queries, opened.documents(), settings.test)
            measured.append(
                measure("words (BM25)", partial(opened.search, by="words"), queries, count, opened.megabytes)
            )
            if settings.vectors:
                search, megabytes = _by_word_vectors(opened, settings.vectors)
                measured.append(measure(f"word vectors {settings.vectors.name}", search, queries, count, megabytes))
        for by in ("vectors", "both"):
            measured.append(measure(f"{by}, {name}", partial(opened.search, by=by), queries, count, size))
        for other in _names(settings.rerank):
            reranker = Reranker(other, settings.precision, settings.device)
            search = partial(opened.search, by="both", reranker=reranker)
            megabytes = size + _megabytes(other)
            measured.append(measure(f"both, {name}, reranked by {other}", search, queries, count, megabytes))
    if first is None:
        raise UserError("--models names no model. Name at least one, or leave the option out.")
    sizes = {"queries": len(queries), "passages": len(first)}
    result = {"documents": str(settings.train), "file": str(settings.test)} | sizes
    return search_report(result | ranked(measured, queries, gold, settings.seed), settings.out, settings.lang)


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


def _megabytes(model: str) -> float:
    from bertkit.checkpoint.locate import locate

    return sum(path.stat().st_size for path in locate(model).glob("*.safetensors")) / 1e6


def _by_word_vectors(index: Index, path: Path) -> tuple[Search, float]:
    """A search that `compare search` measures: cosines of mean word vectors; and the megabytes of all vectors."""
    import numpy as np

    from bertkit.ancestors.vectors.vectors import WordVectors
    from bertkit.retrieval.index import best_of
    from bertkit.text.words import segment

    words = WordVectors.load(path)

    def embed(text: str) -> np.ndarray:
        spelled = [text[start:end] for start, end in segment(text)]
        places = [words.places.get(word, words.places.get(word.lower())) for word in spelled]
        known = words.unit[[place for place in places if place is not None]]
        mean = known.mean(0) if len(known) else np.zeros(words.width, np.float32)
        return mean / max(float(np.linalg.norm(mean)), 1e-9)

    passages = [index.passage(number) for number in range(len(index))]
    matrix = np.stack([embed(row["text"]) for row in passages])

    def search(question: str, top: int) -> list[dict[str, Any]]:
        scores = matrix @ embed(question)
        return [passages[n] | {"score": float(scores[n])} for n in best_of(scores, top)]

    return search, (words.matrix.nbytes + matrix.nbytes) / 1e6


__all__ = ["Settings", "lines", "run"]
