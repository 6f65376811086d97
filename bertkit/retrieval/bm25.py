"""BM25 over the terms of texts: which passages share the question's rarer words. Works for any language."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from bertkit.errors import DamagedFile
from bertkit.files.guarded import read_array
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import is_cjk

SATURATION, LENGTH = 1.2, 0.75  # Robertson's k1 and b
PAIRS = 1 << 18  # pairs of characters are numbered by a hash of this size, after the pieces
SPREAD = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplier: 2^64 divided by the golden ratio
ARRAYS = ("starts", "passages", "counts", "lengths")


class Terms:
    """Texts as terms: their pieces, and every two neighbouring Chinese characters.

    A vocabulary has Chinese characters as single pieces, but most Chinese words have two: with the pairs, the right
    document was first 95 times of 100 instead of 86 to 93 (docs/benchmarks.md).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        pieces = (tokenizer.id_to_token(number) or "" for number in range(tokenizer.size))
        self.tokenizer = tokenizer
        self.is_chinese = np.array([len(piece) == 1 and is_cjk(piece) for piece in pieces], bool)

    def of(self, texts: Sequence[str]) -> list[np.ndarray]:
        """BM25's term numbers of each text, pieces first."""
        return [self._with_pairs(np.asarray(ids, np.int32)) for ids in self.tokenizer.pieces_batch(texts)]

    def _with_pairs(self, ids: np.ndarray) -> np.ndarray:
        """Term ids for BM25, with pairs of neighbouring Chinese characters added."""
        both = self.is_chinese[ids[:-1]] & self.is_chinese[ids[1:]]
        if not both.any():
            return ids
        keys = ids[:-1][both].astype(np.uint64) * np.uint64(self.tokenizer.size) + ids[1:][both].astype(np.uint64)
        hashes = (keys * SPREAD) >> np.uint64(64 - PAIRS.bit_length() + 1)
        return np.concatenate([ids, self.tokenizer.size + hashes.astype(np.int32)])

    def pieces_in(self, row: np.ndarray) -> int:
        """How many of BM25's terms of a text are pieces."""
        return int((row < self.tokenizer.size).sum())

    def numbers(self, rows: Iterable[np.ndarray]) -> int:
        """The size of BM25's table that these texts need: without Chinese, only the pieces."""
        paired = any(len(row) and row[-1] >= self.tokenizer.size for row in rows)
        return self.tokenizer.size + (PAIRS if paired else 0)


class BM25:
    """The passages that contain each term: `passages[starts[t]:starts[t + 1]]`, with their `counts`."""

    def __init__(self, starts: np.ndarray, passages: np.ndarray, counts: np.ndarray, lengths: np.ndarray) -> None:
        self.starts, self.passages, self.counts, self.lengths = starts, passages, counts, lengths

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | np.ndarray], vocabulary: int) -> BM25:
        """Build BM25's table from the terms of every passage. vocabulary: how many different terms there may be."""
        pieces, counts, sizes, lengths = [], [], [], []
        for row in rows:
            distinct, often = np.unique(np.asarray(row, np.int32), return_counts=True)
            pieces.append(distinct)
            counts.append(np.minimum(often, 255).astype(np.uint8))
            sizes.append(len(distinct))
            lengths.append(len(row))
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        joined = [np.concatenate(part) if part else np.zeros(0, np.uint8) for part in (counts, pieces)]
        from scipy import sparse

        table = sparse.csr_matrix((joined[0], joined[1], starts), shape=(len(sizes), vocabulary)).tocsc()
        return cls(
            table.indptr.astype(np.int64), table.indices.astype(np.int32), table.data, np.array(lengths, np.int32)
        )

    def save(self, folder: Path) -> None:
        """Save BM25's table, one file per array."""
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def open(cls, folder: Path) -> BM25:
        """Open BM25's table memory-mapped: a question reads only its own terms."""
        return cls(*(read_array(folder / f"{name}.npy") for name in ARRAYS))

    def check(self, passages: int) -> None:
        """Refuse a BM25 table whose numbers point outside it. passages: how many the index has."""
        starts = self.starts
        if not (starts.ndim == self.passages.ndim == self.counts.ndim == 1 and len(self.passages) == len(self.counts)):
            raise DamagedFile("The table of words has the wrong shape. Rebuild the index with `bertkit index`.")
        ordered = len(starts) and starts[0] == 0 and starts[-1] == len(self.passages) and (np.diff(starts) >= 0).all()
        if not ordered or (len(self.passages) and not 0 <= self.passages.min() <= self.passages.max() < passages):
            raise DamagedFile(
                "The table of words names passages that do not exist. Rebuild the index with `bertkit index`."
            )

    @classmethod
    def joined(cls, parts: Sequence[tuple[BM25, np.ndarray]]) -> BM25:
        """One BM25 table of several, with the passages that are alive: (table, whether each passage is)."""
        from scipy import sparse

        terms = max(len(table.starts) for table, _ in parts) - 1
        rows = []
        for table, alive in parts:
            starts = np.concatenate([table.starts, np.full(terms + 1 - len(table.starts), table.starts[-1])])
            shape = (len(table.lengths), terms)
            matrix = sparse.csc_matrix((np.array(table.counts), np.array(table.passages), starts), shape=shape)
            rows.append(matrix.tocsr()[np.flatnonzero(alive)])
        whole = sparse.vstack(rows).tocsc()
        lengths = np.concatenate([table.lengths[alive] for table, alive in parts])
        return cls(whole.indptr.astype(np.int64), whole.indices.astype(np.int32), whole.data, lengths.astype(np.int32))

    def scores(self, terms: Sequence[int] | np.ndarray) -> np.ndarray:
        """BM25 of every passage for a question's terms: (passages,). Terms beyond the table are in no passage."""
        return scores([self], terms)

    def having(self, term: int) -> tuple[np.ndarray, np.ndarray]:
        """The passages that contain a term of BM25's table, and how often each does."""
        if term >= len(self.starts) - 1:
            return self.passages[:0], self.counts[:0]
        here = slice(int(self.starts[term]), int(self.starts[term + 1]))
        return self.passages[here], self.counts[here]


def scores(
    tables: Sequence[BM25], terms: Sequence[int] | np.ndarray, alive: Sequence[np.ndarray] | None = None
) -> np.ndarray:
    """BM25 of all passages of several tables, as if they were one: (passages,). Those not alive do not count."""
    offsets = np.cumsum([0, *(len(table.lengths) for table in tables)])
    if alive is None:
        count, pieces = int(offsets[-1]), float(sum(table.lengths.sum(dtype=np.int64) for table in tables))
    else:
        count = int(sum(mask.sum() for mask in alive))
        pieces = float(sum(table.lengths[mask].sum(dtype=np.int64) for table, mask in zip(tables, alive)))
    mean = max(1.0, pieces / max(1, count))
    total = np.zeros(int(offsets[-1]), np.float32)
    for term in dict.fromkeys(int(term) for term in terms):
        parts = []
        for n, table in enumerate(tables):
            which, often = table.having(term)
            if alive is not None:
                there = alive[n][which]
                which, often = which[there], often[there]
            parts.append((which, often.astype(np.float32), table.lengths[which], offsets[n]))
        having = sum(len(which) for which, *_ in parts)
        rarity = np.log1p((count - having + 0.5) / (having + 0.5))
        for which, often, lengths, offset in parts:
            long = 1 - LENGTH + LENGTH * lengths / mean
            total[which + offset] += rarity * often * (SATURATION + 1) / (often + SATURATION * long)
    return total


# ---- The best of some scores, and two kinds of scores as one


def best_of(scores: np.ndarray, top: int) -> np.ndarray:
    """Passages with the highest scores (BM25, or cosines), best first; ties go to the earlier."""
    top = min(top, len(scores))
    some = np.flatnonzero(scores >= np.partition(scores, len(scores) - top)[len(scores) - top])
    return some[np.argsort(-scores[some], kind="stable")][:top]


def fused(cosines: np.ndarray, words: np.ndarray, weight: float) -> np.ndarray:
    """Combine BM25 and cosine of every passage, each scaled to 0 … 1; weight: of the cosines.

    Scores, not ranks: a passage that shares a rare word is far ahead by BM25, and its rank would not say so.
    """
    return weight * _scaled(cosines) + (1 - weight) * _scaled(words)


def _scaled(scores: np.ndarray) -> np.ndarray:
    low, high = float(scores.min()), float(scores.max())
    return (scores - low) / (high - low) if high > low else np.full_like(scores, high > 0)
