"""How good is a ranking? nDCG, reciprocal rank and recall of the relevant documents, averaged over queries."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from bertkit.errors import UserError
from bertkit.metrics.tally import Array, Measures, Scores, Tally, check_same_length, score

NEAR = 10  # places that count for nDCG and the reciprocal rank
RECALL_AT = (1, 5, 10, 100)
NAMES = (f"ndcg@{NEAR}", f"mrr@{NEAR}", *(f"recall@{k}" for k in RECALL_AT))


def ranking(gold: Sequence[Collection[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """gold: the relevant ids of each query; predicted: the ids as they were ranked, best first, each once.

    Relevance is binary: nDCG@10 is the sum of 1 / log2(1 + rank) over the relevant among the first ten, divided by the
    most that is possible; MRR@10 is 1 / rank of the first relevant one, 0 beyond ten places.
    """
    return score(ranking_tallies(gold, predicted))


def per_query(gold: Sequence[Collection[str]], predicted: Sequence[Sequence[str]]) -> Array:
    """Every metric of every query: (queries, metrics), in the order of NAMES."""
    check_same_length(gold, predicted, "queries")
    rows = []
    for number, (relevant, ranked) in enumerate(zip(gold, predicted), 1):
        wanted = set(relevant)
        if not wanted:
            raise UserError(f"Query {number} has no relevant document. Give at least one, or leave the query out.")
        ranks = [rank for rank, name in enumerate(ranked, 1) if name in wanted]
        gains = 1 / np.log2(1 + np.array([rank for rank in ranks if rank <= NEAR], float))
        most = 1 / np.log2(1 + np.arange(1, min(NEAR, len(wanted)) + 1))
        first = 1 / ranks[0] if ranks and ranks[0] <= NEAR else 0.0
        recalls = [sum(rank <= k for rank in ranks) / len(wanted) for k in RECALL_AT]
        rows.append([gains.sum() / most.sum(), first, *recalls])
    return np.array(rows, float)


def ranking_tallies(gold: Sequence[Collection[str]], predicted: Sequence[Sequence[str]]) -> list[Tally]:
    """The metrics of queries, averaged by their weights."""

    def measure(columns: Array, weights: Array) -> Measures:
        means = weights @ columns / weights.sum(1, keepdims=True)
        return {name: means[:, n] for n, name in enumerate(NAMES)}

    return [Tally(per_query(gold, predicted), measure)]
