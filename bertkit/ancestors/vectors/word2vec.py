"""word2vec: words become vectors that predict the words around them (Mikolov and others, 2013)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bertkit import machine
from bertkit.ancestors.vectors.corpus import Corpus, number
from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.errors import UserError, suggest
from bertkit.notify import track

# ---- What word2vec prepares from the counts of words: who is thinned out, who is drawn, and the Huffman tree.

Integers = NDArray[np.int64]
Floats = NDArray[np.floating]


def kept_of_2_32(counts: Integers, sample: float) -> NDArray[np.uint64]:
    """word2vec's subsampling: in how many of 2**32 cases a word is used: sqrt(t/f) + t/f for share f, t = sample."""
    ratio = sample * counts.sum() / counts
    fraction = np.minimum(np.sqrt(ratio) + ratio, 1) if sample else np.ones(len(counts))
    return (fraction * 2.0**32).astype(np.uint64)


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
    for new in range(size, 2 * size - 1):
        for side in (0, 1):
            if word >= 0 and (inner >= new or weight[word] <= weight[inner]):
                node, word = word, word - 1
            else:
                node, inner = inner, inner + 1
            weight[new] += weight[node]
            above[node], turns[node] = new, side
    depth = [0] * (2 * size - 1)
    for node in range(2 * size - 3, -1, -1):
        depth[node] = depth[above[node]] + 1
    parent, turn = np.array(above), np.array(turns, np.uint8)
    starts = np.concatenate([[0], np.cumsum(depth[:size])])
    nodes, codes = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.uint8)
    nodes_now, place = np.arange(size), starts[1:] - 1
    while len(nodes_now):  # all words climb to the root together
        nodes[place], codes[place] = parent[nodes_now] - size, turn[nodes_now]
        nodes_now, place = parent[nodes_now], place - 1
        climbing = nodes_now != 2 * size - 2
        nodes_now, place = nodes_now[climbing], place[climbing]
    return starts, nodes, codes


def nce_shifts(counts: Integers, noise: Floats, negatives: int) -> NDArray[np.float32]:
    """log(k q(w)) - log p(w): noise-contrastive estimation tells a word from k draws of the noise q by the score minus
    log(k q(w)) (Mnih and Kavukcuoglu 2013); the score's bias is fixed at log p(w), the word's share of the text. So the
    product of the vectors tends to log P(word | context) - log p(w).
    """
    return (np.log(negatives * noise / noise.sum()) - np.log(counts / counts.sum())).astype(np.float32)


# ---- word2vec: words become vectors that predict the words around them (Mikolov and others, 2013).

RATES = {"skip-gram": 0.025, "cbow": 0.05}
LOSSES = ("negative", "nce", "hierarchical")
JOB = 10_000  # words between two looks at the learning rate


@dataclass(frozen=True)
class Word2VecSettings:
    """Settings of word2vec.

    architecture: 'skip-gram' (each word around predicts the middle one) or 'cbow' (their mean does).

    loss: 'negative' (tell the word from `negatives` random ones), 'nce' (noise-contrastive estimation: the same, with
    the noise's own probability taken off the score, so that scores tend to log-probabilities) or 'hierarchical' (find
    it in a Huffman tree).
    dim: numbers in a vector. window: the farthest word around; nearer ones are used more often.
    min_count: rarer words are dropped. sample: words above this share of the text are thinned out; 0 keeps all.
    rate falls to min_rate in a straight line over all epochs; None is 0.025, for cbow 0.05.
    threads: 0 is all cores. With one thread the same seed gives the same vectors; more threads work without locks.
    """

    architecture: str = "skip-gram"
    loss: str = "negative"
    dim: int = 100
    window: int = 5
    negatives: int = 5
    min_count: int = 5
    sample: float = 1e-3
    epochs: int = 5
    rate: float | None = None
    min_rate: float = 1e-4
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        for name, value, known in (
            ("architecture", self.architecture, list(RATES)),
            ("loss", self.loss, list(LOSSES)),
        ):
            if value not in known:
                raise UserError(f"{name} '{value}' is not known. {suggest(value, known)}")
        for name in ("dim", "window", "negatives", "min_count", "epochs"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be 1 or more.")
        for name in ("sample", "min_rate", "seed", "threads"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be 0 or more.")
        if self.rate is not None and not 0 < self.rate < 10:
            raise UserError(f"rate is {self.rate}; it must be above 0, and is usually 0.025 or 0.05.")


def train(sentences: Iterable[list[str]], settings: Word2VecSettings | None = None) -> WordVectors:
    """Train word2vec on the sentences (lists of words; see `read_sentences`): a vector for every frequent word."""
    settings = settings or Word2VecSettings()
    return train_corpus(number(sentences, settings.min_count), settings)


def train_corpus(corpus: Corpus, settings: Word2VecSettings) -> WordVectors:
    """Train word2vec on a text whose words are numbered already."""
    from bertkit.ancestors.vectors import kernels

    learn = kernels.KERNELS[settings.architecture]
    longest = int(np.diff(corpus.ends).max())
    text = kernels.Text(corpus.words, corpus.ends, longest, kept_of_2_32(corpus.counts, settings.sample))
    if settings.loss != "hierarchical":
        noise = corpus.counts**0.75
        shifts = nce_shifts(corpus.counts, noise, settings.negatives) if settings.loss == "nce" else kernels.NO_SHIFTS
        choice = kernels.drawn(settings.negatives, *alias_tables(noise), shifts)
    else:
        choice = kernels.along_paths(*huffman_paths(corpus.counts))
    inputs, outputs = (rows(len(corpus.names), settings.dim) for _ in range(2))
    rng = np.random.default_rng(settings.seed)
    # Twice the spread of the original program, as in gensim: short texts are learnt better from it (MEN by 5 %).
    inputs[:, : settings.dim] = (rng.random((len(corpus.names), settings.dim), np.float32) - 0.5) * 2 / settings.dim

    jobs = cut_jobs(corpus.ends)
    total = len(jobs) * settings.epochs
    high, low = settings.rate or RATES[settings.architecture], settings.min_rate

    def work(turn: int) -> None:
        rate = np.float32(max(low, high - (high - low) * turn / total))
        state = np.random.SeedSequence((settings.seed, turn)).generate_state(1, np.uint64)[0]
        learn(text, jobs[turn % len(jobs)], choice, inputs, outputs, settings.window, rate, state)

    with ThreadPoolExecutor(settings.threads or machine.threads()) as pool:
        deque(track(pool.map(work, range(total)), "word2vec", total), maxlen=0)
    return WordVectors(corpus.names, inputs[:, : settings.dim].copy())


def rows(count: int, dim: int) -> NDArray[np.float32]:
    """word2vec's matrix of zeros whose rows fill whole cache lines: (count, dim rounded up to 16)."""
    width = -(-dim // 16) * 16
    raw = np.zeros(count * width + 16, np.float32)
    first = -(raw.ctypes.data // 4) % 16
    return raw[first : first + count * width].reshape(count, width)


def cut_jobs(ends: Integers) -> list[tuple[int, int]]:
    """Shares of word2vec's threads: ranges of sentences of about JOB words each."""
    borders = np.unique(np.searchsorted(ends, np.arange(0, ends[-1] + JOB, JOB)).clip(0, len(ends) - 1))
    return [(int(begin), int(end)) for begin, end in pairwise(borders)]
