"""Parquet, a batch of rows at a time (pyarrow is only imported when a parquet file is read)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.data.open import COMPRESSIONS, check_file
from bertkit.errors import DamagedFile, UserError

BATCH = 1024


def read_parquet(path: str | Path, columns: list[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row from 1, values by column) of a parquet file."""
    number = 0
    # Whatever a damaged file makes the library raise is the file's fault; it has many exception classes.
    try:
        for batch in _opened(path).iter_batches(batch_size=BATCH, columns=columns):
            rows = batch.to_pylist()
            for row in rows:
                number += 1
                yield number, row
    except UserError:
        raise
    except Exception as error:
        raise DamagedFile(f"{path}, after row {number}: not a sound parquet file: {_first_line(error)}") from error


def parquet_columns(path: str | Path) -> list[str]:
    """The names of the columns, in their order."""
    return [str(name) for name in _opened(path).schema_arrow.names]


def _opened(path: str | Path) -> Any:
    path = check_file(path)
    if path.suffix.lower() in COMPRESSIONS:
        raise UserError(
            f"{path}: parquet is compressed inside already and cannot be read through {path.suffix}. Unpack it."
        )
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{path}: reading parquet needs an extra library: pip install 'bertkit[parquet]'") from error
    try:
        return parquet.ParquetFile(path)
    except Exception as error:
        raise DamagedFile(f"{path}: not a sound parquet file: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
