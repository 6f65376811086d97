"""Writes embeddings to files: .npy, .parquet or .jsonl, as they arrive, completely or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from bertkit.data.write_rows import arrow_for, as_json
from bertkit.errors import UserError, suggest
from bertkit.files.atomic import open_writer_of, write_errors
from bertkit.files.open import kind_of

_NPY_HEADER = 128  # bytes: room for any shape, so that the header can be written again at the end


@contextmanager
def open_vectors(path: str | Path) -> Iterator[VectorWriter]:
    """A writer of vectors by the file's ending; the file appears when the block ends without an error.

    .npy: a float32 array (texts, width), without the texts. .parquet: columns text and vector (a list of float32).
    .jsonl: {"text", "vector"}. Vectors per token go to .parquet and .jsonl only:
    {"text", "tokens", "offsets", "vectors"}.
    """
    kind = kind_of(path)
    if kind not in VECTOR_WRITERS:
        raise UserError(f"{path}: cannot write vectors as '{kind}'. {suggest(kind, list(VECTOR_WRITERS))}")
    with open_writer_of(VECTOR_WRITERS[kind], path) as writer:
        yield writer


class VectorWriter:
    """Takes batches of texts with one vector per text, or one per token."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file, self._path = file, path
        self._width: int | None = None
        self.count = 0

    def write(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Append vectors to the file: (texts, width)."""
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise ValueError(f"{len(texts)} texts and vectors of shape {vectors.shape}")
        self._check_width(vectors.shape[1])
        with write_errors(self._path):
            self._put(texts, vectors)
        self.count += len(texts)

    def write_tokens(
        self,
        texts: Sequence[str],
        vectors: Sequence[np.ndarray],
        tokens: Sequence[Sequence[str]] | None = None,
        offsets: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> None:
        """Append token vectors: one (tokens, width) per text; tokens: their strings; offsets: [start, end) of each."""
        rows = [np.ascontiguousarray(each, dtype=np.float32) for each in vectors]
        if len(rows) != len(texts) or any(each.ndim != 2 for each in rows):
            raise ValueError(f"{len(texts)} texts and {len(rows)} arrays, which must be (tokens, width) each")
        for each in rows:
            self._check_width(each.shape[1])
        with write_errors(self._path):
            named = {"tokens": tokens, "offsets": offsets}
            self._put_tokens(texts, rows, {name: list(each) for name, each in named.items() if each is not None})
        self.count += len(texts)

    def close(self) -> None:
        """Write what is left of the vectors."""

    def _check_width(self, width: int) -> None:
        self._width = width if self._width is None else self._width
        if width != self._width:
            raise ValueError(f"vectors of width {width} after ones of width {self._width}")

    def _put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        raise NotImplementedError

    def _put_tokens(self, texts: Sequence[str], rows: list[np.ndarray], named: dict[str, list[Any]]) -> None:
        raise NotImplementedError


class _Npy(VectorWriter):
    def _put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Append vectors to a .npy file."""
        if self._file.tell() == 0:
            self._file.write(_npy_header(0, vectors.shape[1]))
        self._file.write(vectors.astype("<f4", copy=False).tobytes())

    def _put_tokens(self, texts: Sequence[str], rows: list[np.ndarray], named: dict[str, list[Any]]) -> None:
        what = f"{self._path}: texts differ in their number of tokens, which .npy cannot hold"
        raise UserError(f"{what}. Use .parquet or .jsonl, or pool the tokens.")

    def close(self) -> None:
        self._file.seek(0)
        self._file.write(_npy_header(self.count, self._width or 0))
        self._file.seek(0, 2)


def _npy_header(count: int, width: int) -> bytes:
    """The header of a .npy file of vectors, format 1.0: magic, version, length, a Python dict padded with spaces."""
    fields = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count}, {width}), }}"
    start = b"\x93NUMPY\x01\x00" + (_NPY_HEADER - 10).to_bytes(2, "little")
    return start + fields.ljust(_NPY_HEADER - 11).encode("ascii") + b"\n"


class _Jsonl(VectorWriter):
    def _put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        lines = (f'{{"text": {as_json(text)}, "vector": {_numbers(each)}}}\n' for text, each in zip(texts, vectors))
        self._file.write("".join(lines).encode())

    def _put_tokens(self, texts: Sequence[str], rows: list[np.ndarray], named: dict[str, list[Any]]) -> None:
        for index, (text, each) in enumerate(zip(texts, rows)):
            names = "".join(f'"{name}": {as_json(values[index])}, ' for name, values in named.items())
            vectors = ", ".join(_numbers(vector) for vector in each)
            self._file.write(f'{{"text": {as_json(text)}, {names}"vectors": [{vectors}]}}\n'.encode())


def _numbers(vector: np.ndarray) -> str:
    # Nine digits give every float32 back exactly.
    if not np.isfinite(vector).all():
        raise ValueError("a vector is not finite")
    return "[" + ", ".join(["%.9g"] * len(vector)) % tuple(vector.tolist()) + "]"


class _Parquet(VectorWriter):
    _writer: Any = None

    def _put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        arrow = arrow_for(self._path)
        self._write({"text": arrow.array(list(texts), arrow.string()), "vector": _lists(arrow, vectors)})

    def _put_tokens(self, texts: Sequence[str], rows: list[np.ndarray], named: dict[str, list[Any]]) -> None:
        arrow = arrow_for(self._path)
        columns = {"text": arrow.array(list(texts), arrow.string())}
        kinds = {"tokens": arrow.string(), "offsets": arrow.list_(arrow.int32())}
        columns |= {name: arrow.array(values, arrow.list_(kinds[name])) for name, values in named.items()}
        flat = np.concatenate(rows) if rows else np.zeros((0, self._width or 0), np.float32)
        starts = np.cumsum([0, *(len(each) for each in rows)]).astype(np.int32)
        columns["vectors"] = arrow.ListArray.from_arrays(arrow.array(starts), _lists(arrow, flat))
        self._write(columns)

    def _write(self, columns: dict[str, Any]) -> None:
        arrow = arrow_for(self._path)
        table = arrow.table(columns)
        if self._writer is None:
            self._writer = arrow.parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is None:
            self._put([], np.zeros((0, 0), np.float32))
        self._writer.close()


def _lists(arrow: Any, vectors: np.ndarray) -> Any:
    """Vectors (n, width) as an arrow column of lists of float32."""
    starts = np.arange(len(vectors) + 1, dtype=np.int32) * vectors.shape[1]
    return arrow.ListArray.from_arrays(
        arrow.array(starts, arrow.int32()), arrow.array(vectors.reshape(-1), arrow.float32())
    )


VECTOR_WRITERS: dict[str, Callable[[IO[bytes], str], VectorWriter]] = {
    "npy": _Npy,
    "parquet": _Parquet,
    "jsonl": _Jsonl,
}
