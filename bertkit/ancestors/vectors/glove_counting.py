"""Which words stand near which, counted in bounded memory.

A table of fixed size sums pairs of words; when it is full, its pairs are sorted and written to disk as a run.
Runs are merged one range of keys after another. A pair is kept once, whichever word comes first in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.ancestors.ngram.counting import BYTES_PER_ENTRY, Ids, Keys, Run, merge
from bertkit.ancestors.vectors.compiled import kernel, scramble
from bertkit.ancestors.vectors.vector_corpus import Corpus

Opener = Callable[[], Run]  # gives a run that is held, or that waits on disk
# A pair at distance d adds UNIT / d: a whole number for every d up to 16, so sums are exact in any order.
UNIT = 720_720


def count_pairs(corpus: Corpus, window: int, budget: int, folder: Path) -> list[Opener]:
    """Openers of sorted runs of (smaller word << 32 | larger word, sum of UNIT / distance).

    Beyond `budget` bytes they wait in `folder`.
    """
    longest = int(np.diff(corpus.ends).max())
    # An eighth to a quarter of the budget, since sorting takes three times as much; but any one sentence must fit.
    wanted = min(budget // 4 // BYTES_PER_ENTRY, 2 * len(corpus.words) * window)
    slots = 1 << (max(wanted // 2, 2 * longest * window, 16) - 1).bit_length()
    keys, counts = np.zeros(slots, np.uint64), np.zeros(slots, np.int64)
    runs: list[Opener] = []
    sentence, last = 0, len(corpus.ends) - 1
    while sentence < last:
        sentence = fill(corpus.words, corpus.ends, sentence, window, keys, counts)
        used = np.flatnonzero(keys)
        order = used[np.argsort(keys[used])]
        run = keys[order] - np.uint64(1), counts[order]
        alone = sentence == last and not runs
        runs.append(partial(_same, run) if alone else _on_disk(run, folder / f"pairs-{len(runs)}"))
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
    """All pairs in rising order with whole sums, in pieces of about `budget` bytes."""
    entries = max(len(runs), budget // (4 * BYTES_PER_ENTRY))
    step = max(1, entries // len(runs) // 8)
    sample = np.sort(np.concatenate([np.array(run()[0][::step]) for run in runs]))
    begins = [0] * len(runs)
    for border in [*np.unique(sample[:: max(1, entries // step)][1:]), None]:
        slices: list[Run] = []
        for place, run in enumerate(runs):
            keys, sums = run()  # opened anew for each range: pages of a file that stays open add up
            begin, end = begins[place], len(keys) if border is None else int(np.searchsorted(keys, border))
            begins[place] = end
            if end > begin:
                slices.append((np.array(keys[begin:end]), np.array(sums[begin:end])))
        if slices:
            yield merge(slices)


def unpack(keys: Keys) -> tuple[Ids, Ids]:
    """The two words of each pair."""
    return (keys >> np.uint64(32)).astype(np.int64), (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


@kernel
def fill(words: Any, ends: Any, sentence: Any, window: Any, keys: Any, counts: Any) -> Any:
    """Sum pairs into an open-addressed table (a key is stored plus one; zero is free) while there surely is room.

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
