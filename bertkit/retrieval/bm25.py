"""BM25 over the pieces of a tokenizer: which passages share the question's rarer words. Works for any language."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from bertkit.errors import DamagedFile
from bertkit.files.json import read_array

SATURATION, LENGTH = 1.2, 0.75  # Robertson's k1 and b
ARRAYS = ("starts", "passages", "counts", "lengths")


class BM25:
    """For every piece, the passages that contain it: `passages[starts[p]:starts[p + 1]]`, with their `counts`."""

    def __init__(self, starts: np.ndarray, passages: np.ndarray, counts: np.ndarray, lengths: np.ndarray) -> None:
        self.starts, self.passages, self.counts, self.lengths = starts, passages, counts, lengths
        self.mean = max(1.0, float(lengths.mean())) if len(lengths) else 1.0

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | np.ndarray], vocabulary: int) -> BM25:
        """Build the table from the piece ids of every passage."""
        pieces, counts, sizes, lengths = [], [], [], []
        for row in rows:
            found, often = np.unique(np.asarray(row, np.int32), return_counts=True)
            pieces.append(found)
            counts.append(np.minimum(often, 255).astype(np.uint8))
            sizes.append(len(found))
            lengths.append(len(row))
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        joined = [np.concatenate(part) if part else np.zeros(0, np.uint8) for part in (counts, pieces)]
        table = sparse.csr_matrix((joined[0], joined[1], starts), shape=(len(sizes), vocabulary)).tocsc()
        return cls(
            table.indptr.astype(np.int64), table.indices.astype(np.int32), table.data, np.array(lengths, np.int32)
        )

    def save(self, folder: Path) -> None:
        """Save one file per array."""
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def open(cls, folder: Path) -> BM25:
        """Open the table memory-mapped: a question reads only its own pieces."""
        return cls(*(read_array(folder / f"{name}.npy") for name in ARRAYS))

    def check(self, passages: int) -> None:
        """Refuse a table whose numbers point outside it. passages: how many the index has."""
        starts = self.starts
        if not (starts.ndim == self.passages.ndim == self.counts.ndim == 1 and len(self.passages) == len(self.counts)):
            raise DamagedFile("The table of words has another shape. Rebuild the index with `bertkit index`.")
        ordered = len(starts) and starts[0] == 0 and starts[-1] == len(self.passages) and (np.diff(starts) >= 0).all()
        if not ordered or (len(self.passages) and not 0 <= self.passages.min() <= self.passages.max() < passages):
            raise DamagedFile(
                "The table of words names passages that do not exist. Rebuild the index with `bertkit index`."
            )

    def scores(self, pieces: Sequence[int]) -> np.ndarray:
        """BM25 of every passage for a question's pieces: (passages,)."""
        total = np.zeros(len(self.lengths), np.float32)
        for piece in dict.fromkeys(pieces):
            here = slice(int(self.starts[piece]), int(self.starts[piece + 1]))
            which, often = self.passages[here], self.counts[here].astype(np.float32)
            rarity = np.log1p((len(total) - len(which) + 0.5) / (len(which) + 0.5))
            long = 1 - LENGTH + LENGTH * self.lengths[which] / self.mean
            total[which] += rarity * often * (SATURATION + 1) / (often + SATURATION * long)
        return total
