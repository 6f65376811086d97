"""Counting n-grams in bounded memory: windows of words become 64-bit keys, and sorted keys count themselves.

Five words of a large vocabulary do not fit into 64 bits. Two words do, and there are never more
different pairs than words in the text; so pairs are numbered first (in sorted order), then pairs of pairs,
until the window fits. The numbering keeps the order of keys that of the words read backwards from the
last one, which is the order Kneser-Ney counting wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Ids = NDArray[np.int64]
Words = NDArray[np.int32]
Run = tuple[Keys, Ids]
# A chunk of t words needs about ten arrays of t 64-bit numbers while it is packed, sorted and counted.
BYTES_PER_WORD = 80
BYTES_PER_ENTRY = 16


def tally(keys: Keys) -> Run:
    """Counting n-grams: the distinct keys, sorted, and how often each occurs."""
    keys = np.sort(keys)
    first = _first_of_each(keys)
    return keys[first], np.diff(np.append(first, len(keys)))


def sorting(keys: Keys) -> Ids:
    """Counting n-grams: the order that sorts the keys."""
    places = len(keys).bit_length()
    if len(keys) and int(keys.max()).bit_length() + places <= 64:
        # numpy sorts numbers about twice as fast as it finds their order: let each key carry its place.
        packed = np.sort((keys << np.uint64(places)) | np.arange(len(keys), dtype=np.uint64))
        return (packed & np.uint64((1 << places) - 1)).astype(np.int64)
    return np.argsort(keys)


def merge(runs: list[Run]) -> Run:
    """Counting n-grams: one sorted run out of many; counts of equal keys are added."""
    if len(runs) == 1:
        return runs[0]
    keys = np.concatenate([run[0] for run in runs]) if runs else np.empty(0, np.uint64)
    counts = np.concatenate([run[1] for run in runs]) if runs else np.empty(0, np.int64)
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")  # Runs are sorted already, and the stable sort feeds on that.
    keys = keys[order]
    first = _first_of_each(keys)
    return keys[first], np.add.reduceat(counts[order], first)


def _first_of_each(ordered: Keys) -> Ids:
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return np.flatnonzero(is_first)


class Runs:
    """Sorted runs of n-gram keys and counts. What is beyond `budget` bytes waits in `folder`."""

    def __init__(self, budget: int, folder: Path) -> None:
        """An empty collection; `folder` must exist, and belongs to the caller."""
        self.budget, self.folder = budget, folder
        self.held: list[Run] = []
        self.spilled: list[Run] = []

    def add(self, keys: Keys) -> None:
        """Count the n-grams (keys) of one chunk."""
        self.held.append(tally(keys))
        if sum(len(run[0]) for run in self.held) * BYTES_PER_ENTRY > self.budget:
            paths = [self.folder / f"run-{id(self)}-{len(self.spilled)}-{part}.npy" for part in ("keys", "counts")]
            for path, part in zip(paths, merge(self.held)):
                np.save(path, part)
            self.spilled.append((np.load(paths[0], mmap_mode="r"), np.load(paths[1], mmap_mode="r")))
            self.held = []

    def merged(self) -> Run:
        """All runs of counted n-grams as one. Spilled runs are merged one range of keys after another."""
        runs = self.spilled + self.held
        if not self.spilled:
            return merge(runs)
        parts: list[Run] = []
        begins = [0] * len(runs)
        for border in [*self._borders(runs), None]:
            ends = [len(run[0]) if border is None else int(np.searchsorted(run[0], border)) for run in runs]
            slices = [(np.array(k[b:e]), np.array(c[b:e])) for (k, c), b, e in zip(runs, begins, ends) if e > b]
            parts.append(merge(slices))
            begins = ends
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _borders(self, runs: list[Run]) -> Keys:
        """Keys that cut all runs of counted n-grams into ranges of about `budget` bytes together."""
        entries = max(len(runs), self.budget // BYTES_PER_ENTRY)
        step = max(1, entries // len(runs) // 8)
        sample = np.sort(np.concatenate([run[0][::step] for run in runs]))
        return np.unique(sample[:: max(1, entries // step)][1:])


class Spool:
    """Counting n-grams in bounded memory: word numbers in the order they came.

    Beyond `budget` bytes they wait in `folder`.
    """

    def __init__(self, budget: int, folder: Path) -> None:
        """An empty spool."""
        self.budget, self.path = budget, folder / f"words-{id(self)}.u32"
        self.held: list[NDArray[np.uint32]] = []
        self.lengths: list[int] = []

    def append(self, ids: NDArray[np.uint32]) -> None:
        """Put one array at the end of the file that counting spills to."""
        self.held.append(ids)
        if sum(part.nbytes for part in self.held) > self.budget:
            with self.path.open("ab") as file:
                for part in self.held:
                    part.tofile(file)
                    self.lengths.append(len(part))
            self.held = []

    def __iter__(self) -> Iterator[NDArray[np.uint32]]:
        """The arrays as they were appended."""
        if self.lengths:
            with self.path.open("rb") as file:
                for length in self.lengths:
                    yield np.fromfile(file, np.uint32, length)
        yield from self.held


class NgramWindows:
    """Counting n-grams: packs windows of `order` words into 64-bit keys, and unpacks them."""

    def __init__(self, order: int, vocabulary: int) -> None:
        """`vocabulary` is the number of different words."""
        self.order = order
        self.sizes = {1: vocabulary}  # length of a span of words -> number of different spans
        self.tables: dict[int, Keys] = {}  # length of a span -> the sorted keys of its spans; rank = place in it

    def pieces(self, order: int) -> list[tuple[int, int]]:
        """The known spans that cover a window of words: (length, words between its end and the window's end)."""
        lengths = [length for length in self.sizes if length < order] or [1]
        longest, offset, cover = max(lengths), 0, []
        while order - offset >= longest:
            cover.append((longest, offset))
            offset += longest
        if offset < order:  # The last piece may overlap its neighbour: equal words, so order and identity stay.
            length = min(length for length in lengths if length >= order - offset)
            cover.append((length, order - length))
        return cover

    def bits(self, length: int) -> int:
        """How many bits number all spans of words of this length."""
        return max(1, (self.sizes[length] - 1).bit_length())

    def fits(self) -> bool:
        """Whether an n-gram's key has room in 64 bits with the spans known so far."""
        return sum(self.bits(length) for length, _ in self.pieces(self.order)) <= 64

    def pack(self, words: Ids, order: int) -> Keys:
        """The key of every n-gram of `order` words. words: (t,). Returns (t - order + 1,)."""
        ranks = {1: words.astype(np.uint64)}
        for length in self.tables:
            if length < order:
                ranks[length] = _places(self.tables[length], self._join(ranks, length))
        return self._join(ranks, order)

    def _join(self, ranks: dict[int, Keys], order: int) -> Keys:
        """Keys of all windows of an order, joined from the ranks of shorter ones."""
        windows = max(0, len(ranks[1]) - order + 1)
        keys = np.zeros(windows, np.uint64)
        for length, offset in self.pieces(order):
            begin = order - offset - length
            keys = (keys << np.uint64(self.bits(length))) | ranks[length][begin : begin + windows]
        return keys

    def unpack(self, keys: Keys, order: int) -> list[Words]:
        """The words of each n-gram's key, the last word first: `order` arrays like keys."""
        if order == 1:
            return [keys.astype(np.int32)]
        columns: list[Words] = [np.empty(0, np.int32)] * order
        for length, offset in reversed(self.pieces(order)):
            bits = np.uint64(self.bits(length))
            ranks, keys = keys & ((np.uint64(1) << bits) - np.uint64(1)), keys >> bits
            inner = ranks if length == 1 else self.tables[length][ranks]
            columns[offset : offset + length] = self.unpack(inner, length)
        return columns


def _places(table: Keys, keys: Keys) -> Keys:
    """The place of every counted key in the sorted table, which holds them all."""
    order = sorting(keys)  # Sorted questions walk the table once; random ones miss the cache every time.
    ordered = keys[order]
    first = _first_of_each(ordered)
    places = np.searchsorted(table, ordered[first])
    answer = np.empty(len(keys), np.uint64)
    answer[order] = np.repeat(places, np.diff(np.append(first, len(keys))))
    return answer


def count_windows(
    chunks: Callable[[], Iterable[Ids]], order: int, vocabulary: int, start: int, budget: int, folder: Path
) -> tuple[list[Words], Ids]:
    """Counting n-grams: every window of `order` words that does not end in `start`.

    `chunks` starts the text over at each call; each chunk must begin with order - 1 times `start`.
    Returns the words of the different windows, the last word first (`order` arrays, sorted by these columns),
    and their counts.
    """
    windows = NgramWindows(order, vocabulary)
    while not windows.fits():
        length = 2 * max(windows.sizes)
        runs = Runs(budget // 2, folder)
        for words in chunks():
            runs.add(windows.pack(words, length))
        windows.tables[length] = runs.merged()[0]
        windows.sizes[length] = len(windows.tables[length])
    runs = Runs(budget // 2, folder)
    for words in chunks():
        keys = windows.pack(words, order)
        runs.add(keys[words[order - 1 :] != start])
    keys, counts = runs.merged()
    return windows.unpack(keys, order), counts
