"""How good a search is, on queries whose relevant documents are known.

Documents are ranked, not passages: a document stands where its best passage does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit import metrics
from bertkit.data.examples import TextRow
from bertkit.data.readers.rows import cells_of
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.metrics.numbers import NAMES, RECALL_AT, per_query
from bertkit.notify import note, track
from bertkit.retrieval.bm25 import fused

if TYPE_CHECKING:
    from bertkit.retrieval.index import Index

DEPTH = max(RECALL_AT)  # documents that are ranked for a query
WORST = 20  # queries that are listed
FEW = 5  # a relevant text found in more documents than this is reported as vague
Search = Callable[[str, int], list[dict[str, Any]]]  # (query, passages wanted) → passages with their `id`, best first


@dataclass(frozen=True)
class Query:
    """A query, and its relevant documents as the file gives them: ids, or texts."""

    text: str
    relevant: tuple[str, ...]
    line: int


@dataclass
class Measured:
    """A way to search, measured. ranked: the document ids of every query, best first; ms: median per query."""

    name: str
    ranked: list[list[str]]
    ms: float
    megabytes: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    p_value: float | None = None  # of its nDCG@10 against the best one's; None for the best itself

    def plain(self) -> dict[str, Any]:
        """A measured way to search as values for JSON."""
        intervals = {name: list(pair) for name, pair in self.intervals.items()}
        costs = {"ms_per_query": round(self.ms, 3), "megabytes": round(self.megabytes, 4)}
        return {"name": self.name, "metrics": self.metrics, "intervals": intervals, "p_value": self.p_value, **costs}


def read_queries(path: Path, encoding: str = "utf-8") -> list[Query]:
    """Queries to evaluate a search with: rows with `query` and `relevant`, an id or a text, or a list of them."""
    queries = []
    for line, row in cells_of(path, ["query", "relevant"], encoding):
        where = f"{path}, line {line}"
        for name in ("query", "relevant"):
            if name not in row:
                raise UserError(
                    f"{where}: there is no {name!r}, only {', '.join(map(str, row)) or 'nothing'}. Each row needs a "
                    "query and its relevant ids or texts."
                )
        given = row["relevant"] if isinstance(row["relevant"], (list, tuple)) else [row["relevant"]]
        if not isinstance(row["query"], str) or not row["query"].strip():
            raise UserError(f"{where}: the query is {row['query']!r:.60}; it must be text.")
        if not given or not all(isinstance(value, (str, int)) and str(value).strip() for value in given):
            raise UserError(f"{where}: 'relevant' is {row['relevant']!r:.60}; give at least one id or text.")
        queries.append(Query(row["query"], tuple(str(value).strip() for value in given), line))
    if not queries:
        raise UserError(f"{path} contains no queries.")
    return queries


def relevant_ids(queries: Sequence[Query], documents: dict[str, list[str]], path: Path) -> list[set[str]]:
    """The relevant document ids of every query. documents: id → the texts of its passages.

    What is not an id is a text: it means the documents that have it in a passage, or consist of passages of it.
    """
    squeezed = {name: [" ".join(text.split()) for text in texts] for name, texts in documents.items()}
    by_text: dict[str, set[str]] = {}
    for name, texts in squeezed.items():
        by_text.setdefault(" ".join(texts), set()).add(name)
    resolved: dict[str, set[str]] = {}
    vague: list[str] = []
    for query in queries:
        for value in query.relevant:
            if value in documents:
                resolved[value] = {value}
            elif value not in resolved:
                wanted = " ".join(value.split())
                # A number is an id that is missing, not a text: it would be found in every year and price.
                containing = set() if wanted.isdigit() else _containing(wanted, squeezed)
                resolved[value] = by_text.get(wanted) or containing
                if len(resolved[value]) > FEW:
                    vague.append(f"line {query.line}: {value!r:.40} in {len(resolved[value]):,} documents")
            if not resolved[value]:
                raise UserError(
                    f"{path}, line {query.line}: {value!r:.80} is neither an id nor a text of the index. Index the "
                    "document, or correct the line."
                )
    if vague:
        note(
            f"{path}: {len(vague):,} relevant texts are found in more than {FEW} documents, which all count as "
            f"relevant ({vague[0]}). Were they meant to be ids?"
        )
    return [set().union(*(resolved[value] for value in query.relevant)) for query in queries]


def _containing(wanted: str, documents: dict[str, list[str]]) -> set[str]:
    """The documents that contain a relevant text, or are parts of it."""
    return {
        name
        for name, texts in documents.items()
        if any(wanted in text for text in texts) or all(text in wanted for text in texts)
    }


def measure(name: str, search: Search, queries: Sequence[Query], passages: int, megabytes: float = 0.0) -> Measured:
    """Evaluate a search: rank the documents of every query. passages: how many there are to be found."""
    wanted = min(2 * DEPTH, passages)
    search(queries[0].text, wanted)  # warm-up: one-time preparation is not part of the cost per query
    ranked, seconds = [], []
    for query in track(queries, f"searching by {name}", len(queries)):
        start = time.perf_counter()
        hits = search(query.text, wanted)
        seconds.append(time.perf_counter() - start)
        order, more = dict.fromkeys(hit["id"] for hit in hits), wanted
        while len(order) < DEPTH and len(hits) == more < passages:  # long documents fill the places with their passages
            more = min(4 * more, passages)
            hits = search(query.text, more)
            order = dict.fromkeys(hit["id"] for hit in hits)
        ranked.append(list(order)[:DEPTH])
    return Measured(name, ranked, 1000 * float(np.median(seconds)), megabytes)


def judge(contenders: Sequence[Measured], gold: Sequence[set[str]], seed: int = 0) -> list[Measured]:
    """Score all measured ways to search, each with intervals and its p-value against the best; the best first."""
    for each in contenders:
        each.metrics = dict(metrics.ranking(gold, each.ranked))
        if len(gold) > 1:
            each.intervals = metrics.bootstrap(metrics.ranking, gold, each.ranked, seed=seed)
    ordered = sorted(contenders, key=lambda each: -each.metrics[NAMES[0]])
    for each in ordered[1:]:
        if len(gold) > 1:
            against = metrics.paired_difference(gold, ordered[0].ranked, each.ranked, metrics.ranking, seed=seed)
            each.p_value = against.p_value
    return ordered


def ranked(
    measured: Sequence[Measured], queries: Sequence[Query], gold: Sequence[set[str]], seed: int = 0
) -> dict[str, Any]:
    """The result of measured ways to search: {headline, ranked_by, worst}, the best way first."""
    ordered = judge(measured, gold, seed)
    return {
        "headline": next(iter(ordered[0].metrics)), "ranked_by": [each.plain() for each in ordered],
        "worst": worst_queries(ordered[0], queries, gold),
    }  # fmt: skip


def worst_queries(best: Measured, queries: Sequence[Query], gold: Sequence[set[str]]) -> list[dict[str, Any]]:
    """The queries of a measured search with the lowest nDCG@10, what was relevant and what was first instead."""
    values = per_query(gold, best.ranked)[:, 0]
    rows = []
    for n in np.argsort(values, kind="stable")[:WORST].tolist():
        if values[n] >= 1:
            break
        ranks = {name: rank for rank, name in enumerate(best.ranked[n], 1)}
        rank = min((ranks[name] for name in gold[n] if name in ranks), default=None)
        rows.append(
            {
                "line": queries[n].line, "query": queries[n].text, NAMES[0]: float(values[n]),
                "relevant": ", ".join(sorted(gold[n])), "rank": rank, "first": next(iter(best.ranked[n]), ""),
            }
        )  # fmt: skip
    return rows


# ---- Reranking: a cross-encoder reads the question and a passage together: slower than vectors, and more exact.

RERANKED = 50  # passages that a reranker reads for a question
RERANKER_WEIGHT = 0.5  # of its scores beside those of the search: alone, a small model loses what words know
YES = ("1", "yes", "true", "relevant", "positive", "entailment", "duplicate")  # labels of pairs that belong together


class Reranker:
    """A model that scores pairs of texts, by its one number or by the probability that they belong together."""

    def __init__(self, name: str | Path, precision: str = "auto", device: str = "auto") -> None:
        self.name, self.predictor = str(name), Predictor.load(name, precision, device)
        task = self.predictor.task
        wrong = f"{name} cannot rerank: "
        if "rerank" not in task.abilities or task.makes_vectors or task.options.get("paired") is False:
            raise UserError(f"{wrong}it does not read pairs of texts. Train one with `bertkit finetune pair --rank`.")
        self.label = next((label for label in task.labels if label.casefold() in YES), "")
        if task.labelled_by_name and not self.label:
            raise UserError(
                f"{wrong}none of its labels ({', '.join(task.labels)}) says that two texts belong together. Train one "
                "with `bertkit finetune pair --rank`."
            )
        self.predictor.task = task if task.reads_pairs else task.for_pairs() or task
        self._last: tuple[str, dict[str, float]] = ("", {})  # a question, and the scores of the texts it was read with

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """The reranker's score of each text as an answer. A question asked again for more texts reads only those."""
        known = self._last[1] if self._last[0] == question else {}
        new = list(dict.fromkeys(text for text in texts if text not in known))
        predictions = self.predictor.predict([{"text": question, "text_b": text} for text in new]) if new else []
        values = (float(each["scores"][self.label] if self.label else each["value"]) for each in predictions)
        self._last = (question, known | dict(zip(new, values)))
        return [self._last[1][text] for text in texts]

    def rank(self, question: str, hits: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The first RERANKED hits, by the mean of the reranker's scores and the search's; the others after them."""
        if not hits:
            return []
        scores = self.scores(question, [hit["text"] for hit in hits[:RERANKED]])
        first = [hit["score"] for hit in hits[:RERANKED]]
        together = fused(np.array(scores), np.array(first), RERANKER_WEIGHT).tolist()
        read = [
            hit | {"score": total, "rerank_score": score, "first_score": hit["score"]}
            for hit, score, total in zip(hits, scores, together)
        ]
        return sorted(read, key=lambda hit: -hit["score"]) + hits[RERANKED:]


# ---- Hard negatives: passages that look right and are not, for `finetune embed` and `finetune pair --rank`.

LOOKED_THROUGH = 20  # passages of a question, among which a wrong one is chosen


def mine(rows: Sequence[TextRow], index: Index, by: str = "both", spread: bool = False) -> list[TextRow]:
    """Hard negatives: each right pair with, as its text_c, the best passage of the index that is not right for it.

    Pairs are right unless labelled 0: those stay as they are. Right is every right text_b of the same question, with
    its parts. A text_c that is there stays. A pair for which everything found is right has none. spread: of the best
    wrong ones, take the one that has been wrong least often beyond the times it is right. A reranker sees passages one
    at a time: were the short ones always wrong, it would learn their length instead of reading the question
    (docs/benchmarks.md).
    """
    rights: dict[str, dict[str, None]] = {}
    surplus: Counter[str] = Counter()  # of times as a wrong passage over times as a right one
    for row in rows:
        text = " ".join((row.text_b or "").split())
        if row.label != 0:
            rights.setdefault(row.text, {})[text] = None
        surplus[text] += 1 if row.label == 0 else -1
    mined = []
    for row in track(rows, "mining negatives", len(rows)):
        wrong = row.text_c
        if wrong is None and row.label != 0 and row.text.strip():
            texts = [" ".join(hit["text"].split()) for hit in index.search(row.text, LOOKED_THROUGH, by)]
            known = rights[row.text]
            wrongs = [text for text in texts if not any(text in it or it in text for it in known)]
            wrong = min(wrongs, key=lambda text: surplus[text] if spread else 0, default=None)  # of equals, the best
            surplus[wrong or ""] += 1
        mined.append(replace(row, text_c=wrong))
    return mined
