"""A segment: passages that were indexed together. An index is its first segment and those that were added later.

Files of a segment's folder:
- `passages.jsonl`  {"text", "file", "document", "id", "columns"}, one per line; `lines.npy` says where each begins
- `vectors.f16` …   (passages, width) of length one, and copies of them
- `starts.npy` …    which passages contain which terms (bm25.py)
- `keys.npy`        (passages, 2): hashes of the document's id and of its file's name
- `columns.json` …  the columns of the documents (passages.py)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from bertkit.errors import DamagedFile, UserError
from bertkit.files.guarded import open_regular, parse_json, read_array
from bertkit.inference.predictor import AT_ONCE, Predictor
from bertkit.retrieval.bm25 import BM25, Terms
from bertkit.retrieval.conditions import Columns
from bertkit.retrieval.passages import Passage
from bertkit.text.tokenizer import Tokenizer

# ---- Vectors: compared one by one, or through a graph (usearch's HNSW), in 16 bits, 8 or one. `vectors.f16` always
# holds all of them. Where there is a smaller copy (`vectors.i8`, `vectors.b1`) or a graph (`vectors.usearch`), it only
# proposes candidates; their cosines come from `vectors.f16`.

BLOCK = 65_536  # vectors compared at once
EXACT_UP_TO = 200_000  # passages of a segment; more get a graph, where usearch is installed
KINDS = ("f16", "int8", "binary")
ENGINES = ("auto", "exact", "usearch")
OVERSAMPLE = {"f16": 4, "int8": 4, "binary": 20}  # candidates per requested passage
FEWEST = 200  # candidates at least
SAMPLE = 200  # vectors that measure how many true neighbours a search without all cosines finds
NEIGHBOURS, EFFORT = 16, 64  # edges per vector of the graph, and candidates kept while it is built
_COUNTS = np.array([bin(number).count("1") for number in range(256)], np.uint8)


def shortened(vectors: np.ndarray, width: int) -> np.ndarray:
    """The first `width` numbers of each of a segment's vectors, of length one again: a model may be trained for it."""
    if not 0 < width < vectors.shape[1]:
        return vectors
    first = vectors[:, :width]
    shorter: np.ndarray = first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-12)
    return shorter


def write_copies(folder: Path, width: int, kind: str, engine: str) -> dict[str, Any]:
    """Write a segment's smaller copy and graph that were asked for. Returns what was made, and its recall."""
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
    """The usearch library, which makes and searches graphs of vectors."""
    try:
        from usearch import index
    except ImportError:
        if needed:
            raise UserError("A graph of vectors needs usearch. Run: pip install 'bertkit[index]'") from None
        return None
    return index


def _write_graph(folder: Path, vectors: np.ndarray, kind: str) -> None:
    """Write a graph of a segment's vectors."""
    form = {"f16": {"dtype": "f16", "metric": "ip"}, "int8": {"dtype": "i8", "metric": "ip"},
            "binary": {"dtype": "b1", "metric": "hamming"}}[kind]  # fmt: skip
    graph = _usearch().Index(ndim=vectors.shape[1], connectivity=NEIGHBOURS, expansion_add=EFFORT, **form)
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
        self.kind = "binary" if self.bits is not None else "int8" if self.bytes is not None else "f16"

    def __len__(self) -> int:
        """How many there are."""
        return len(self.exact)

    @property
    def proposes(self) -> bool:
        """Whether a segment finds candidates without computing every cosine."""
        return self.graph is not None or self.kind != "f16"

    def cosines(self, asked: np.ndarray) -> np.ndarray:
        """A question's cosines with every vector of a segment: (vectors,)."""
        return np.concatenate([part.astype(np.float32) @ asked for part in _blocks(self.exact)] or [np.zeros(0)])

    def cosines_of(self, asked: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """A question's cosines with some vectors of a segment: (numbers,)."""
        return np.asarray(self.exact[numbers], np.float32) @ asked

    def candidates(self, asked: np.ndarray, top: int) -> np.ndarray:
        """The numbers of a segment's vectors among which the nearest `top` are likely to be."""
        count = min(len(self), max(FEWEST, top * OVERSAMPLE[self.kind]))
        if self.graph is not None:
            self.graph.expansion_search = count
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
        asked = np.asarray(self.exact[some], np.float32)
        for row, true in zip(asked, self.nearest(asked, top)):
            hits += len(np.intersect1d(true, self.candidates(row, top)))
        return round(hits / (top * len(some)), 4)

    def nearest(self, asked: np.ndarray, top: int) -> np.ndarray:
        """The nearest `top` in a segment by all cosines, for several vectors at once: (asked, top)."""
        best = np.zeros((len(asked), 0), np.float32)
        numbers = np.zeros((len(asked), 0), np.int64)
        for start, part in zip(range(0, len(self), BLOCK), _blocks(self.exact)):
            near = np.concatenate([best, asked @ part.astype(np.float32).T], axis=1)
            every = np.concatenate([numbers, np.tile(np.arange(start, start + len(part)), (len(asked), 1))], axis=1)
            chosen = np.argpartition(-near, min(top, near.shape[1]) - 1, axis=1)[:, :top]
            best, numbers = np.take_along_axis(near, chosen, 1), np.take_along_axis(every, chosen, 1)
        return numbers


# ---- Segments


def key_of(name: str) -> int:
    """The key of an id or a file's name in a segment: a hash of 64 bits."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def embedded(predictor: Predictor, texts: Sequence[str], dimensions: int = 0, role: str = "document") -> np.ndarray:
    """Vectors for a segment, of length one, with the model's prompt for this side of a search, if it has one."""
    prompt = predictor.pooling.prompt_for(role)
    return shortened(np.asarray(predictor.embed(texts, normalize=True, prompt_text=prompt)), dimensions)


def write_segment(
    folder: Path,
    predictor: Predictor,
    passages: Iterator[Passage],
    dimensions: int,
    kind: str,
    engine: str,
    embed: Callable[[list[str]], np.ndarray] | None = None,
) -> dict[str, Any]:
    """Embed passages in order and write a segment's files. dimensions: numbers of a vector that are kept; 0: all.

    embed: gives texts their vectors of length one instead of the predictor, AT_ONCE at a time.
    Texts and vectors are written as they arrive; terms are kept in memory, four bytes each, until they are inverted.
    Returns counts, and the recall of a copy or graph.
    """
    terms = Terms(predictor.tokenizer)
    lines, rows, keys, columns, files, width = [0], [], [], [], set(), 0
    with (folder / "passages.jsonl").open("wb") as texts, (folder / "vectors.f16").open("wb") as vectors:
        while chunk := list(islice(passages, AT_ONCE)):
            given = [passage.text for passage in chunk]
            made = shortened(embed(given), dimensions) if embed else embedded(predictor, given, dimensions)
            vectors.write(made.astype(np.float16).tobytes())
            for passage in chunk:
                line = json.dumps(passage.plain(), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
                lines.append(lines[-1] + texts.write(line))
                keys.append((key_of(passage.id), key_of(passage.file)))
                columns.append({**passage.columns, "file": passage.file, "id": passage.id})
            rows += terms.of(given)
            files |= {passage.file for passage in chunk}
            width = made.shape[1]
    if not rows:
        raise UserError("There is no text to index.")
    np.save(folder / "lines.npy", np.array(lines, np.int64))
    np.save(folder / "keys.npy", np.array(keys, np.uint64))
    Columns.of(columns).save(folder)
    BM25.of(rows, terms.numbers(rows)).save(folder)
    tokens = sum(map(terms.pieces_in, rows))
    counts = {"passages": len(rows), "tokens": tokens, "files": len(files), "width": width}
    return counts | write_copies(folder, width, kind, engine)


def merge(folder: Path, segments: Sequence[Segment], width: int, kind: str, engine: str) -> dict[str, Any]:
    """Write one segment with the passages of several that are alive; nothing is embedded again."""
    lines, total = [0], 0
    with (folder / "passages.jsonl").open("wb") as texts, (folder / "vectors.f16").open("wb") as vectors:
        for segment in segments:
            for number in np.flatnonzero(segment.alive).tolist():
                lines.append(lines[-1] + texts.write(segment.line(number)))
            vectors.write(np.ascontiguousarray(segment.vectors.exact[segment.alive]).tobytes())
            total += int(segment.alive.sum())
    np.save(folder / "lines.npy", np.array(lines, np.int64))
    np.save(folder / "keys.npy", np.concatenate([segment.keys[segment.alive] for segment in segments]))
    columns = [
        {name: given[n] for (name, given), n in zip(segment.columns.values.items(), row) if n >= 0}
        for segment in segments
        for row in segment.columns.numbers[segment.alive].tolist()
    ]
    Columns.of(columns).save(folder)
    BM25.joined([(segment.words, segment.alive) for segment in segments]).save(folder)
    return {"passages": total, "width": width} | write_copies(folder, width, kind, engine)


@dataclass
class Segment:
    """An open segment. alive: which of its passages have not been deleted or replaced."""

    folder: Path
    vectors: Vectors
    lines: np.ndarray
    words: BM25
    passages: IO[bytes]  # stays open, so that an index that is rebuilt meanwhile does not mix with this one
    alive: np.ndarray
    files: tuple[IO[bytes], np.ndarray] | None = None  # of the columns: open for the same reason, read when needed
    hashes: np.ndarray | None = None  # of ids and files, as they are on the disk

    @classmethod
    def open(cls, folder: Path, width: int) -> Segment:
        """Open a segment memory-mapped; ValueError where the files do not fit each other."""
        lines = np.array(read_array(folder / "lines.npy"))
        passages = open_regular(folder / "passages.jsonl")
        size = os.fstat(passages.fileno()).st_size
        vectors, words = Vectors(folder, width), BM25.open(folder)
        if not len(vectors) == len(lines) - 1 == len(words.lengths):
            raise DamagedFile(f"{folder} is damaged: its files disagree about the number of passages. Rebuild it.")
        words.check(len(vectors))
        if size != lines[-1] or lines[0] != 0 or not (np.diff(lines) > 0).all():
            raise DamagedFile(
                f"{folder / 'passages.jsonl'} is damaged: it has {size:,} bytes, but {int(lines[-1]):,} were written. "
                "Rebuild the index with `bertkit index`."
            )
        files = hashes = None
        if (folder / "columns.json").is_file():
            files = open_regular(folder / "columns.json"), read_array(folder / "columns.npy")
        if (folder / "keys.npy").is_file():
            hashes = read_array(folder / "keys.npy")
        return cls(folder, vectors, lines, words, passages, np.ones(len(vectors), bool), files, hashes)

    def __len__(self) -> int:
        """The number of passages, also of deleted ones."""
        return len(self.vectors)

    def line(self, number: int) -> bytes:
        """A segment's passage as its line."""
        begin, end = int(self.lines[number]), int(self.lines[number + 1])
        return os.pread(self.passages.fileno(), end - begin, begin)

    def passage(self, number: int) -> dict[str, Any]:
        """A segment's passage with this number, read from its line."""
        where = f"{self.folder / 'passages.jsonl'}, line {number + 1}"
        try:
            row: dict[str, Any] = parse_json(self.line(number).decode("utf-8", "surrogatepass"), where)
            if not all(isinstance(row[key], str) for key in ("text", "file")):
                raise TypeError("not text")
        except (ValueError, KeyError, TypeError, UserError):
            raise DamagedFile(f"{where}: the passage is damaged. Rebuild the index with `bertkit index`.") from None
        return {"id": f"{row['file']}#{row.get('document')}", **row}  # earlier versions wrote no ids

    def pieces(self, some: np.ndarray, tokenizer: Tokenizer) -> int:
        """How many pieces the passages of a segment have for which `some` (passages,) is true."""
        texts = [self.passage(number)["text"] for number in np.flatnonzero(some).tolist()]
        return sum(map(len, tokenizer.pieces_batch(texts)))

    @cached_property
    def keys(self) -> np.ndarray:
        """A segment's hashes of ids and of files' names: (passages, 2)."""
        if self.hashes is not None:
            keys = np.array(self.hashes)
            if keys.shape != (len(self), 2) or keys.dtype != np.uint64:
                raise DamagedFile(f"{self.folder / 'keys.npy'} is damaged. Rebuild the index with `bertkit index`.")
            return keys
        rows = map(self.passage, range(len(self)))
        return np.array([(key_of(row["id"]), key_of(row["file"])) for row in rows], np.uint64).reshape(-1, 2)

    @cached_property
    def columns(self) -> Columns:
        """The columns of a segment's documents."""
        if self.files is None:
            return Columns({}, np.zeros((len(self), 0), np.int32))
        file, numbers = self.files
        try:
            text = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode("utf-8")
            return Columns.read(parse_json(text, str(self.folder / "columns.json")), numbers, len(self))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedFile(f"{self.folder}: its columns are damaged ({error}). Rebuild the index.") from None
