"""Parquet, a batch of rows at a time (pyarrow is only imported when a parquet file is read)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from bertkit.errors import DamagedFile, UserError
from bertkit.files.open import COMPRESSIONS, DAMAGE, check_file, open_bytes

BATCH = 1024


def read_parquet(path: str | Path, columns: list[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row from 1, values by column) of a parquet file."""
    number = 0
    # Whatever a damaged file makes the library raise is the file's fault; it has many exception classes.
    try:
        with _opened(path) as file:
            for batch in file.iter_batches(batch_size=BATCH, columns=columns):
                rows = batch.to_pylist()
                for row in rows:
                    number += 1
                    yield number, row
    except UserError:
        raise
    except Exception as error:
        raise DamagedFile(f"{path}, after row {number}: not a valid parquet file: {_first_line(error)}") from error


def parquet_columns(path: str | Path) -> list[str]:
    """The names of the columns, in their order."""
    with _opened(path) as file:
        return [str(name) for name in file.schema_arrow.names]


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    path = check_file(path)
    packed = path.suffix.lower() in COMPRESSIONS
    with _unpacked(path) if packed else nullcontext(path) as source, _parquet(path, source) as file:
        yield file


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes in a temporary file: parquet is read from its end, which no packed stream can give."""
    with tempfile.TemporaryFile() as room:
        try:
            with open_bytes(path) as packed:
                shutil.copyfileobj(packed, room, 1 << 20)
            room.seek(0)
        except (OSError, *DAMAGE) as error:
            raise DamagedFile(
                f"{path} could not be unpacked into {tempfile.gettempdir()} ({error}). Is the file complete, and is "
                "there enough space?"
            ) from error
        yield room


def _parquet(path: Path, source: Path | IO[bytes]) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{path}: reading parquet needs an extra library: pip install 'bertkit[parquet]'") from error
    try:
        return parquet.ParquetFile(source)
    except Exception as error:
        raise DamagedFile(f"{path}: not a valid parquet file: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
