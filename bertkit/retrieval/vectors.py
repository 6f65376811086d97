"""The vectors of passages: compared one by one, or through a graph (usearch's HNSW), in 16 bits, 8 bits or one.

`vectors.f16` always holds all of them. Where there is a smaller copy (`vectors.i8`, `vectors.b1`) or a graph
(`vectors.usearch`), it only proposes candidates; their cosines come from `vectors.f16`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import UserError
from bertkit.files.json import open_regular, read_array

BLOCK = 65_536  # vectors compared at once
EXACT_UP_TO = 200_000  # passages of a segment; more get a graph, where usearch is installed
KINDS = ("f16", "int8", "binary")
ENGINES = ("auto", "exact", "usearch")
OVERSAMPLE = {"f16": 4, "int8": 4, "binary": 20}  # candidates per requested passage
FEWEST = 200  # candidates at least
SAMPLE = 200  # vectors that measure how many true neighbours a search without all cosines finds
NEIGHBOURS, EFFORT = 32, 128  # edges per vector of the graph, and candidates kept while it is built and searched
_COUNTS = np.array([bin(number).count("1") for number in range(256)], np.uint8)


def shortened(vectors: np.ndarray, width: int) -> np.ndarray:
    """The first `width` numbers of each vector, of length one again: of a model trained for it, they suffice."""
    if not 0 < width < vectors.shape[1]:
        return vectors
    first = vectors[:, :width]
    shorter: np.ndarray = first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-12)
    return shorter


def write_copies(folder: Path, width: int, kind: str, engine: str) -> dict[str, Any]:
    """Write the smaller copy and the graph that were asked for. Returns what was made, and its recall."""
    vectors = np.memmap(folder / "vectors.f16", np.float16, "r").reshape(-1, width)
    graph = engine == "usearch" or (engine == "auto" and len(vectors) > EXACT_UP_TO and _usearch(needed=False))
    if kind == "int8":
        most = np.maximum(np.max([np.abs(part).max(0) for part in _blocks(vectors)], axis=0), 1e-6).astype(np.float32)
        np.save(folder / "scales.npy", most / 127)
        with (folder / "vectors.i8").open("wb") as file:
            for part in _blocks(vectors):
                file.write(np.rint(part.astype(np.float32) / (most / 127)).astype(np.int8).tobytes())
    elif kind == "binary":
        with (folder / "vectors.b1").open("wb") as file:
            for part in _blocks(vectors):
                file.write(np.packbits(part > 0, axis=1).tobytes())
    if graph:
        _write_graph(folder, vectors, kind)
    if kind == "f16" and not graph:
        return {}
    made = Vectors(folder, width)
    return {"engine": "usearch" if graph else "exact", "recall": made.recall()}


def _usearch(needed: bool = True) -> Any:
    try:
        from usearch import index
    except ImportError:
        if needed:
            raise UserError("A graph of vectors needs usearch. Run: pip install 'bertkit[index]'") from None
        return None
    return index


def _write_graph(folder: Path, vectors: np.ndarray, kind: str) -> None:
    form = {"f16": {"dtype": "f16", "metric": "ip"}, "int8": {"dtype": "i8", "metric": "cos"},
            "binary": {"dtype": "b1", "metric": "hamming"}}[kind]  # fmt: skip
    graph = _usearch().Index(
        ndim=vectors.shape[1], connectivity=NEIGHBOURS, expansion_add=EFFORT, expansion_search=EFFORT, **form
    )
    for start in range(0, len(vectors), BLOCK):
        part = np.asarray(vectors[start : start + BLOCK], np.float32)
        given = np.packbits(part > 0, axis=1) if kind == "binary" else part
        graph.add(np.arange(start, start + len(part), dtype=np.uint64), given)
    graph.save(str(folder / "vectors.usearch"))


def _blocks(vectors: np.ndarray) -> list[np.ndarray]:
    return [vectors[start : start + BLOCK] for start in range(0, len(vectors), BLOCK)]


class Vectors:
    """The vectors of one segment, memory-mapped."""

    def __init__(self, folder: Path, width: int) -> None:
        open_regular(folder / "vectors.f16").close()
        self.exact = np.memmap(folder / "vectors.f16", np.float16, "r").reshape(-1, width)
        self.bytes = self.bits = self.scales = self.graph = None
        if (folder / "vectors.i8").is_file():
            self.bytes = np.memmap(folder / "vectors.i8", np.int8, "r").reshape(len(self.exact), width)
            self.scales = np.array(read_array(folder / "scales.npy"))
        if (folder / "vectors.b1").is_file():
            self.bits = np.memmap(folder / "vectors.b1", np.uint8, "r").reshape(len(self.exact), -1)
        if (folder / "vectors.usearch").is_file():
            self.graph = _usearch().Index.restore(str(folder / "vectors.usearch"), view=True)
            if self.graph is None or len(self.graph) != len(self.exact):
                raise ValueError("vectors.usearch and vectors.f16 do not fit each other")
            self.graph.expansion_search = EFFORT
        self.kind = "binary" if self.bits is not None else "int8" if self.bytes is not None else "f16"

    def __len__(self) -> int:
        """How many there are."""
        return len(self.exact)

    @property
    def proposes(self) -> bool:
        """Whether candidates are found without computing every cosine."""
        return self.graph is not None or self.kind != "f16"

    def cosines(self, asked: np.ndarray) -> np.ndarray:
        """With every vector: (vectors,)."""
        return np.concatenate([part.astype(np.float32) @ asked for part in _blocks(self.exact)] or [np.zeros(0)])

    def cosines_of(self, asked: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """With some of them: (numbers,)."""
        return np.asarray(self.exact[numbers], np.float32) @ asked

    def candidates(self, asked: np.ndarray, top: int) -> np.ndarray:
        """The numbers of vectors among which the nearest `top` are likely to be."""
        count = min(len(self), max(FEWEST, top * OVERSAMPLE[self.kind]))
        if self.graph is not None:
            self.graph.expansion_search = max(EFFORT, count)
            given = np.packbits(asked > 0) if self.kind == "binary" else asked.astype(np.float32)
            return np.asarray(self.graph.search(given, count).keys, np.int64)
        if self.bits is not None:
            given = np.packbits(asked > 0)
            near = np.concatenate([-_COUNTS[part ^ given].sum(1, dtype=np.int32) for part in _blocks(self.bits)])
        elif self.bytes is not None and self.scales is not None:
            scaled = asked * self.scales
            near = np.concatenate([part.astype(np.float32) @ scaled for part in _blocks(self.bytes)])
        else:
            near = self.cosines(asked)
        return np.argpartition(-near, count - 1)[:count]

    def recall(self, top: int = 10) -> float:
        """The share of the true nearest `top` that candidates contain, for vectors spread over the segment."""
        some = np.unique(np.linspace(0, len(self) - 1, min(SAMPLE, len(self))).astype(int))
        top, hits = min(top, len(self)), 0
        for number in some:
            asked = np.asarray(self.exact[number], np.float32)
            true = np.argpartition(-self.cosines(asked), top - 1)[:top]
            hits += len(np.intersect1d(true, self.candidates(asked, top)))
        return round(hits / (top * len(some)), 4)
