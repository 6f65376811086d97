"""GloVe: vectors whose products are the logarithms of how often words stand near each other (Pennington, 2014)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit import machine
from bertkit.ancestors.ngram.counting import BYTES_PER_ENTRY, Ids, Keys, Run, merge
from bertkit.ancestors.vectors.corpus import Corpus, number
from bertkit.ancestors.vectors.kernels import kernel, scramble
from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.ancestors.vectors.word2vec import rows
from bertkit.errors import UserError
from bertkit.notify import note, track

Floats = NDArray[np.float32]
PAIR = np.dtype([("word", "<i4"), ("other", "<i4"), ("near", "<f4")])
JOB = 50_000  # pairs


@dataclass(frozen=True)
class GloveSettings:
    """Settings of GloVe.

    window: the farthest word that counts as near; a pair at distance d counts 1/d, in both directions.

    x_max, alpha: a pair that was counted x times weighs (x / x_max) ** alpha, at most 1. The paper's 100 suits billions
    of words; with a few million 10 gave twice the analogies (docs/results.md).
    memory_mb: what counting and shuffling may hold beside the text itself; the rest waits on disk.
    threads: 0 is all cores. With one thread the same seed gives the same vectors; more threads work without locks.
    """

    dim: int = 100
    window: int = 10
    min_count: int = 5
    x_max: float = 10.0
    alpha: float = 0.75
    epochs: int = 15
    rate: float = 0.05
    memory_mb: float = 1024.0
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        for name in ("dim", "window", "min_count", "epochs"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be 1 or more.")
        for name in ("x_max", "rate", "memory_mb"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be above 0.")
        for name in ("alpha", "seed", "threads"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be 0 or more.")


def train(sentences: Iterable[list[str]], settings: GloveSettings | None = None) -> WordVectors:
    """Train GloVe vectors of the frequent words of the sentences (lists of words; see `read_sentences`)."""
    settings = settings or GloveSettings()
    corpus = number(sentences, settings.min_count)
    with TemporaryDirectory(prefix="glove-") as folder:
        model = Glove(len(corpus.names), settings)
        buckets = shuffled_pairs(corpus, settings, Path(folder))
        for loss in track(model.learn(buckets), "glove", settings.epochs):
            last = loss
    note(f"GloVe: the mean weighted squared error of a pair is {last:.4f} after {settings.epochs} passes.")
    return WordVectors(corpus.names, model.vectors())


def shuffled_pairs(corpus: Corpus, settings: GloveSettings, folder: Path) -> list[Path]:
    """GloVe's co-occurrences: count all pairs and scatter them at random over files that fit into memory.

    Both directions.
    """

    budget = int(settings.memory_mb * 2**20)
    runs = count_pairs(corpus, settings.window, budget, folder)
    most = 2 * sum(len(run()[0]) for run in runs) * PAIR.itemsize
    paths = [folder / f"bucket-{place}" for place in range(1 + 6 * most // budget)]
    if not most:
        raise UserError(
            "No two words occur near each other: every sentence has only one frequent word. Give longer sentences."
        )
    rng = np.random.default_rng(settings.seed)
    for keys, sums in merged(runs, budget // 4):
        word, other = unpack(keys)
        distinct = word != other
        near = sums / np.where(distinct, UNIT, UNIT / 2)  # a word near itself is near it in both directions
        pairs = np.empty(len(keys) + int(distinct.sum()), PAIR)
        pairs["word"] = np.concatenate([word, other[distinct]])
        pairs["other"] = np.concatenate([other, word[distinct]])
        pairs["near"] = np.concatenate([near, near[distinct]])
        bucket = rng.integers(len(paths), size=len(pairs))
        pairs = pairs[np.argsort(bucket, kind="stable")]
        borders = np.cumsum(np.bincount(bucket, minlength=len(paths)))
        for path, part in zip(paths, np.split(pairs, borders[:-1])):
            with path.open("ab") as file:
                part.tofile(file)
    return paths


class Glove:
    """GloVe's parameters: two vectors of every word (itself, and the other one), each with its bias in column `dim`."""

    def __init__(self, words: int, settings: GloveSettings) -> None:
        """Random vectors around zero; the sums of squares that slow AdaGrad down begin at one."""
        self.settings = settings
        self.sides, self.squares = [], []
        rng = np.random.default_rng((settings.seed, 1))
        dim = settings.dim
        for _ in range(2):
            side, square = rows(words, dim + 1), rows(words, dim + 1)
            side[:, : dim + 1] = (rng.random((words, dim + 1), np.float32) - 0.5) / dim
            square[:] = 1
            self.sides.append(side)
            self.squares.append(square)

    def learn(self, buckets: list[Path]) -> Iterator[float]:
        """GloVe passes over all pairs once an epoch, in a new order each time. Yields the mean loss of a pair."""
        with ThreadPoolExecutor(self.settings.threads or machine.threads()) as pool:
            for epoch in range(self.settings.epochs):
                rng = np.random.default_rng((self.settings.seed, 2, epoch))
                total, count = 0.0, 0
                for place in rng.permutation(len(buckets)):
                    pairs = np.fromfile(buckets[place], PAIR)
                    total += sum(pool.map(self.step, self._jobs(pairs[rng.permutation(len(pairs))])))
                    count += len(pairs)
                yield total / max(1, count)

    def _jobs(self, pairs: NDArray[np.void]) -> list[NDArray[np.void]]:
        return [pairs[begin : begin + JOB] for begin in range(0, len(pairs), JOB)]

    def step(self, pairs: NDArray[np.void]) -> float:
        """GloVe learns from some pairs, one after the other. Returns the sum of their losses before each was learnt."""
        from bertkit.ancestors.vectors.kernels import learn

        near = pairs["near"]
        weights = np.minimum((near / self.settings.x_max) ** self.settings.alpha, 1).astype(np.float32)
        words, others = np.ascontiguousarray(pairs["word"]), np.ascontiguousarray(pairs["other"])
        rate, dim = np.float32(self.settings.rate), self.settings.dim
        return float(learn(words, others, np.log(near), weights, *self.sides, *self.squares, dim, rate))

    def vectors(self) -> Floats:
        """Both of GloVe's vectors of every word added: (words, dim)."""
        return (self.sides[0] + self.sides[1])[:, : self.settings.dim]


# ---- Which words stand near which, counted in bounded memory.
#
# A table of fixed size sums pairs of words; when it is full, its pairs are sorted and written to disk as a run. Runs
# are merged one range of keys after another. A pair is kept once, whichever word comes first in the text.

Opener = Callable[[], Run]  # gives a run that is held, or that waits on disk
# A pair at distance d adds UNIT / d: a whole number for every d up to 16, so sums are exact in any order.
UNIT = 720_720


def count_pairs(corpus: Corpus, window: int, budget: int, folder: Path) -> list[Opener]:
    """Count GloVe's co-occurrences: openers of sorted runs of (smaller word << 32 | larger word, sum of weights).

    Beyond `budget` bytes they wait in `folder`.
    """
    longest = int(np.diff(corpus.ends).max())
    # An eighth to a quarter of the budget, since sorting takes three times as much; but any one sentence must fit.
    entries = min(budget // 4 // BYTES_PER_ENTRY, 2 * len(corpus.words) * window)
    slots = 1 << (max(entries // 2, 2 * longest * window, 16) - 1).bit_length()
    keys, counts = np.zeros(slots, np.uint64), np.zeros(slots, np.int64)
    runs: list[Opener] = []
    sentence, last = 0, len(corpus.ends) - 1
    while sentence < last:
        sentence = fill(corpus.words, corpus.ends, sentence, window, keys, counts)
        used = np.flatnonzero(keys)
        order = used[np.argsort(keys[used])]
        run = keys[order] - np.uint64(1), counts[order]
        is_only_run = sentence == last and not runs
        runs.append(partial(_same, run) if is_only_run else _on_disk(run, folder / f"pairs-{len(runs)}"))
        keys[:], counts[:] = 0, 0
    return runs


def _same(run: Run) -> Run:
    return run


def _on_disk(run: Run, stem: Path) -> Opener:
    paths = stem.with_suffix(".keys.npy"), stem.with_suffix(".sums.npy")
    for path, part in zip(paths, run):
        np.save(path, part)
    return lambda: (np.load(paths[0], mmap_mode="r"), np.load(paths[1], mmap_mode="r"))


def merged(runs: list[Opener], budget: int) -> Iterator[Run]:
    """All of GloVe's co-occurrences in rising order with whole sums, in pieces of about `budget` bytes."""
    entries = max(len(runs), budget // (4 * BYTES_PER_ENTRY))
    step = max(1, entries // len(runs) // 8)
    sample = np.sort(np.concatenate([np.array(run()[0][::step]) for run in runs]))
    begins = [0] * len(runs)
    for border in [*np.unique(sample[:: max(1, entries // step)][1:]), None]:
        slices: list[Run] = []
        for place, run in enumerate(runs):
            keys, sums = run()  # opened again for each range: pages of a file that stays open add up
            begin, end = begins[place], len(keys) if border is None else int(np.searchsorted(keys, border))
            begins[place] = end
            if end > begin:
                slices.append((np.array(keys[begin:end]), np.array(sums[begin:end])))
        if slices:
            yield merge(slices)


def unpack(keys: Keys) -> tuple[Ids, Ids]:
    """The two words of each of GloVe's co-occurrences."""
    return (keys >> np.uint64(32)).astype(np.int64), (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


@kernel
def fill(words: Any, ends: Any, sentence: Any, window: Any, keys: Any, counts: Any) -> Any:
    """Sum GloVe's co-occurrences into an open-addressed table while there is room.

    A key is stored plus one; zero is free.

    Returns the first sentence that was not counted.
    """
    used, mask = 0, np.uint64(len(keys) - 1)
    while sentence < len(ends) - 1:
        begin, end = ends[sentence], ends[sentence + 1]
        if used + (end - begin) * window > len(keys) - len(keys) // 4 and used:
            break
        for place in range(begin, end):
            for near in range(max(begin, place - window), place):
                low, high = min(words[near], words[place]), max(words[near], words[place])
                key = ((np.uint64(low) << np.uint64(32)) | np.uint64(high)) + np.uint64(1)
                slot = scramble(key) & mask
                while keys[slot] != key and keys[slot] != 0:
                    slot = (slot + np.uint64(1)) & mask
                used += keys[slot] == 0
                keys[slot] = key
                counts[slot] += (UNIT + (place - near) // 2) // (place - near)
        sentence += 1
    return sentence
