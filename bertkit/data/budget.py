"""Batches by length and tokens: the order in which many texts are computed fastest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

TOKENS = 2048  # a batch: large enough for full matrix speed, small enough to share out evenly over the cores


def budgeted(lengths: Sequence[int], tokens: int = TOKENS) -> list[list[int]]:
    """Indices of texts, longest first, cut into batches of about `tokens` tokens (never less than one text).

    Longest first, so that the largest batch comes first and a lack of memory shows at once.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    if not len(order):
        return []
    total = max(1, int(sizes.sum()))
    # Equal shares: a last batch of a few tokens would cost as much overhead as a full one.
    share = total / max(1, round(total / tokens))
    bounds = np.floor((np.cumsum(sizes[order]) - sizes[order]) / share).astype(np.int64)
    cuts = np.flatnonzero(np.diff(bounds)) + 1
    return [part.tolist() for part in np.split(order, cuts)]
