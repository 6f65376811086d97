"""A segment: passages that were indexed together. An index is its first segment and those that were added later.

Files of a segment's folder:
- `passages.jsonl`  {"text", "file", "document", "id", "columns"}, one per line; `lines.npy` says where each begins
- `vectors.f16` …   (passages, width) of length one, and copies of them (vectors.py)
- `starts.npy` …    which passages contain which terms (bm25.py)
- `keys.npy`        (passages, 2): hashes of the document's id and of its file's name
- `columns.json` …  the columns of the documents (where.py)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from bertkit.errors import DamagedFile, UserError
from bertkit.files.json import open_regular, parse_json, read_array
from bertkit.inference.predictor import AT_ONCE, Predictor
from bertkit.retrieval.bm25 import BM25, Terms
from bertkit.retrieval.passages import Passage
from bertkit.retrieval.vectors import Vectors, shortened, write_copies
from bertkit.retrieval.where import Columns


def key_of(name: str) -> int:
    """A hash of an id or a file's name, 64 bits."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def embedded(predictor: Predictor, texts: Sequence[str], dimensions: int = 0, role: str = "document") -> np.ndarray:
    """Vectors of length one, with the model's prompt for this side of a search, if it has one."""
    prompt = predictor.pooling.prompt_for(role)
    return shortened(np.asarray(predictor.embed(texts, normalize=True, prompt_text=prompt)), dimensions)


def write_segment(
    folder: Path, predictor: Predictor, passages: Iterator[Passage], dimensions: int, kind: str, engine: str
) -> dict[str, Any]:
    """Embed passages in order and write their files. dimensions: numbers of a vector that are kept; 0: all.

    Texts and vectors are written as they arrive; terms are kept in memory, four bytes each, until they are inverted.
    Returns counts, and the recall of a copy or graph.
    """
    terms = Terms(predictor.tokenizer)
    lines, rows, keys, columns, files, width = [0], [], [], [], set(), 0
    with (folder / "passages.jsonl").open("wb") as texts, (folder / "vectors.f16").open("wb") as vectors:
        while chunk := list(islice(passages, AT_ONCE)):
            made = embedded(predictor, [passage.text for passage in chunk], dimensions)
            vectors.write(made.astype(np.float16).tobytes())
            for passage in chunk:
                line = json.dumps(passage.plain(), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
                lines.append(lines[-1] + texts.write(line))
                keys.append((key_of(passage.id), key_of(passage.file)))
                columns.append({**passage.columns, "file": passage.file, "id": passage.id})
            rows += terms.of([passage.text for passage in chunk])
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

    @classmethod
    def open(cls, folder: Path, width: int) -> Segment:
        """Open memory-mapped; ValueError where the files do not fit each other."""
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
        return cls(folder, vectors, lines, words, passages, np.ones(len(vectors), bool))

    def __len__(self) -> int:
        """The number of passages, also of deleted ones."""
        return len(self.vectors)

    def line(self, number: int) -> bytes:
        """The passage as its line."""
        begin, end = int(self.lines[number]), int(self.lines[number + 1])
        return os.pread(self.passages.fileno(), end - begin, begin)

    def passage(self, number: int) -> dict[str, Any]:
        """The passage with this number, read from its line."""
        where = f"{self.folder / 'passages.jsonl'}, line {number + 1}"
        try:
            row: dict[str, Any] = parse_json(self.line(number).decode("utf-8", "surrogatepass"), where)
            if not all(isinstance(row[key], str) for key in ("text", "file")):
                raise TypeError("not text")
        except (ValueError, KeyError, TypeError, UserError):
            raise DamagedFile(f"{where}: the passage is damaged. Rebuild the index with `bertkit index`.") from None
        return {"id": f"{row['file']}#{row.get('document')}", **row}  # earlier versions wrote no ids

    @cached_property
    def keys(self) -> np.ndarray:
        """Hashes of ids and of files' names: (passages, 2)."""
        if (self.folder / "keys.npy").is_file():
            keys = np.array(read_array(self.folder / "keys.npy"))
            if keys.shape != (len(self), 2) or keys.dtype != np.uint64:
                raise DamagedFile(f"{self.folder / 'keys.npy'} is damaged. Rebuild the index with `bertkit index`.")
            return keys
        rows = map(self.passage, range(len(self)))
        return np.array([(key_of(row["id"]), key_of(row["file"])) for row in rows], np.uint64).reshape(-1, 2)

    @cached_property
    def columns(self) -> Columns:
        """The columns of the documents."""
        try:
            return Columns.open(self.folder, len(self))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedFile(f"{self.folder}: its columns are damaged ({error}). Rebuild the index.") from None
