"""What word2vec prepares from the counts of words: who is thinned out, who is drawn, and the Huffman tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.floating]


def kept_of_2_32(counts: Integers, sample: float) -> NDArray[np.uint64]:
    """In how many of 2**32 cases each word is used: sqrt(t/f) + t/f for a word with share f and t = sample."""
    ratio = sample * counts.sum() / counts
    kept = np.minimum(np.sqrt(ratio) + ratio, 1) if sample else np.ones(len(counts))
    return (kept * 2.0**32).astype(np.uint64)


def alias_tables(weights: Floats) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Tables to draw words in proportion to weights with one look (Walker): place p gives the word p in
    thresholds[p] of 2**32 cases, and others[p] in the rest.
    """
    share = weights * (len(weights) / weights.sum())
    others = np.arange(len(weights), dtype=np.int32)
    poor, rich = np.flatnonzero(share < 1).tolist(), np.flatnonzero(share >= 1).tolist()
    while poor and rich:
        place, giver = poor.pop(), rich[-1]
        others[place] = giver
        share[giver] -= 1 - share[place]
        if share[giver] < 1:
            poor.append(rich.pop())
    share[poor + rich] = 1  # what rounding left over
    return (share * 2.0**32).astype(np.uint64), others


def huffman_paths(counts: Integers) -> tuple[Integers, NDArray[np.int32], NDArray[np.uint8]]:
    """The Huffman tree of words with falling counts, as paths from the root (number len - 2) to every word.

    Returns starts, nodes, codes: word w turns codes[i] at the inner node nodes[i] for i in starts[w]:starts[w + 1].
    """
    size = len(counts)
    # Words in rising order and inner nodes in the order they are made are two sorted queues.
    weight = [*counts.tolist(), *[0] * (size - 1)]
    above, turns = [0] * (2 * size - 1), [0] * (2 * size - 1)
    word, inner = size - 1, size
    for made in range(size, 2 * size - 1):
        for side in (0, 1):
            if word >= 0 and (inner >= made or weight[word] <= weight[inner]):
                node, word = word, word - 1
            else:
                node, inner = inner, inner + 1
            weight[made] += weight[node]
            above[node], turns[node] = made, side
    depth = [0] * (2 * size - 1)
    for node in range(2 * size - 3, -1, -1):
        depth[node] = depth[above[node]] + 1
    parent, turn = np.array(above), np.array(turns, np.uint8)
    starts = np.concatenate([[0], np.cumsum(depth[:size])])
    nodes, codes = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.uint8)
    here, place = np.arange(size), starts[1:] - 1
    while len(here):  # all words climb to the root together
        nodes[place], codes[place] = parent[here] - size, turn[here]
        here, place = parent[here], place - 1
        climbing = here != 2 * size - 2
        here, place = here[climbing], place[climbing]
    return starts, nodes, codes
