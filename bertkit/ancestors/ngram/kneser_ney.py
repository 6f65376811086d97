"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman, 1998), all n-grams of an order at once.

    p(w | c) = (a(c w) - D(a(c w))) / sum_x a(c x)  +  gamma(c) * p(w | c without its first word)

a is the count at the highest order and for n-grams that begin a sentence; elsewhere it is the number of
different words seen before the n-gram. At the bottom stands the uniform distribution over the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.ngram.counting import sorting

Ids = NDArray[np.int64]
Words = NDArray[np.int32]
Floats = NDArray[np.float64]
FALLBACK = (0.5, 1.0, 1.5)
NEVER = -99.0  # log10 probability of what is never predicted: the start of a sentence. ARPA files write it so.


@dataclass
class Level:
    """Kneser-Ney's table of one order, sorted. An n-gram's rank is its place here; a single word's rank is its id.

    keys: (n,) uint64, rank of the n-gram without its last word * vocabulary + last word; empty at order 1.
    log_prob: (n,) float32, log10 p(last word | the words before it).
    back_off: (n,) float32, log10 gamma of the n-gram as a context; empty at the highest order.
    """

    keys: NDArray[np.uint64]
    log_prob: NDArray[np.float32]
    back_off: NDArray[np.float32]


@dataclass
class Grams:
    """Kneser-Ney's different n-grams of one order, sorted by their last word, then the one before it, and so on.

    first, last: (n,) words; shorter: (n,) place of the n-gram without its first word among the Grams one
    order down; counts: (n,) a in the formula above.
    """

    first: Words
    last: Words
    shorter: Ids
    counts: Ids


def gather(columns: list[Words], counts: Ids, start: int) -> list[Grams]:
    """The n-grams of every order that Kneser-Ney smoothing needs, from the counted windows of the highest.

    columns: as `ngram_counting.count_windows` gives them; places before the sentence hold `start`.
    """
    changed = np.zeros(len(counts), bool)
    changed[0] = True
    begins: list[Ids] = []
    for k, column in enumerate(columns):
        changed[1:] |= column[1:] != column[:-1]
        padding = (column == start) & (columns[k - 1] == start) if k else np.zeros_like(changed)
        begins.append(np.flatnonzero(changed & ~padding))
    orders: list[Grams] = []
    for k in reversed(range(len(columns))):
        begin = begins[k]
        amount = counts[begin]
        if orders:
            # An n-gram at the start of a sentence has nothing before it: its one window holds its count.
            before = np.bincount(orders[-1].shorter, minlength=len(begin))
            amount = np.where(columns[k][begin] == start, amount, before)
        shorter = np.searchsorted(begins[k - 1], begin, side="right") - 1 if k else np.zeros(0, np.int64)
        orders.append(Grams(columns[k][begin], columns[0][begin], shorter, amount))
    return orders[::-1]


def discounts(counts: Ids) -> tuple[tuple[float, float, float], bool]:
    """Kneser-Ney's discounts: what is taken off counts of 1, 2, and 3 or more, and whether it could be estimated.

    The estimate divides by the numbers of n-grams counted once to four times, which small or odd texts lack;
    then the fallback 0.5, 1, 1.5 stands in for all three.
    """
    n1, n2, n3, n4 = (int(n) for n in np.bincount(np.minimum(counts, 5), minlength=6)[1:5])
    if not (n1 and n2 and n3 and n4):
        return FALLBACK, False
    share = n1 / (n1 + 2 * n2)
    estimated = (1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3)
    usable = all(0 < amount <= most for amount, most in zip(estimated, (1, 2, 3)))
    return (estimated, True) if usable else (FALLBACK, False)


def estimate(orders: list[Grams], vocabulary: int, start: int, end: int) -> tuple[list[Level], list[int]]:
    """Modified Kneser-Ney: probabilities and back-off weights of every order, and the orders whose discounts fell back.

    Empties `orders` as it goes: they are the largest thing in memory.
    """
    amounts, usable = zip(*(discounts(grams.counts) for grams in orders))
    fallen = [k for k, (grams, good) in enumerate(zip(orders, usable), 1) if len(grams.counts) and not good]
    words = orders.pop(0)
    prob = _single_words(words, amounts[0], vocabulary, start)
    levels = [Level(np.empty(0, np.uint64), _log10(prob), np.empty(0, np.float32))]
    rank = words.last.astype(np.int64)
    for discount in amounts[1:]:
        grams = orders.pop(0)
        below = levels[-1]
        below.back_off = np.zeros(len(below.log_prob), np.float32)
        if not len(grams.counts):  # Every sentence is shorter than this order.
            levels.append(Level(np.empty(0, np.uint64), np.empty(0, np.float32), np.empty(0, np.float32)))
            continue
        # Rank of (first word, rest) in reading order, from the rank of the rest.
        place = grams.first.astype(np.uint64) * np.uint64(len(prob)) + rank[grams.shorter].astype(np.uint64)
        order = sorting(place)
        first, shorter = grams.first[order], rank[grams.shorter[order]]
        context = _contexts(first, shorter, below.keys, vocabulary, end)
        begins = np.flatnonzero(np.append(True, context[1:] != context[:-1]))
        lengths = np.diff(np.append(begins, len(context)))
        counts = grams.counts[order]
        discounted = np.array((0.0, *discount))[np.minimum(counts, 3)]
        total = np.add.reduceat(counts, begins)
        gamma = np.add.reduceat(discounted, begins) / total
        prob = (counts - discounted) / np.repeat(total, lengths) + np.repeat(gamma, lengths) * prob[shorter]
        below.back_off[context[begins]] = np.log10(gamma)
        keys = context.astype(np.uint64) * np.uint64(vocabulary) + grams.last[order].astype(np.uint64)
        levels.append(Level(keys, _log10(prob), np.empty(0, np.float32)))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
    return levels, fallen


def _single_words(grams: Grams, discount: tuple[float, float, float], vocabulary: int, start: int) -> Floats:
    """Smoothed probabilities of single words; what is discounted goes to all words alike."""
    discounted = np.array((0.0, *discount))[np.minimum(grams.counts, 3)]
    total = grams.counts.sum()
    prob = np.full(vocabulary, discounted.sum() / total / (vocabulary - 1))
    prob[grams.last] += (grams.counts - discounted) / total
    prob[start] = 0.0
    return prob


def _contexts(first: Words, shorter: Ids, keys: NDArray[np.uint64], vocabulary: int, end: int) -> Ids:
    """The rank of each n-gram without its last word, for Kneser-Ney's back-off; keys are those one order down."""
    if not len(keys):
        return first.astype(np.int64)
    middle = keys[shorter] // np.uint64(vocabulary)
    is_new = np.append(True, (first[1:] != first[:-1]) | (middle[1:] != middle[:-1]))
    # Whatever does not end a sentence is continued somewhere: the contexts are the shorter n-grams, in order.
    continued = np.flatnonzero(keys % np.uint64(vocabulary) != np.uint64(end))
    return continued[np.cumsum(is_new) - 1]


def _log10(prob: Floats) -> NDArray[np.float32]:
    with np.errstate(divide="ignore"):
        return np.maximum(np.log10(prob), NEVER).astype(np.float32)
