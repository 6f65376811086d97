"""Writes rows to files: jsonl, csv, tsv, xlsx or parquet by the ending, compressed or not, completely or not at all.

A file appears under its name only when it is complete: rows go to a temporary name in the same folder, which is
synced and renamed at the end, so a crash never leaves half a file where a whole one is expected.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from bertkit.errors import UserError, suggest
from bertkit.files.atomic import open_writer_of, write_errors
from bertkit.files.open import kind_of
from bertkit.notify import note

BATCH = 1024
# A spreadsheet runs a cell that begins so as a formula; a leading apostrophe makes it text. Numbers are harmless.
_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d+(?:[.,]\d+)*(?:[eE][+-]?\d+)?%?\Z)", re.ASCII)
MOST_CELL, MOST_ROWS = 32_767, 1_048_576  # characters of a cell and rows of a sheet: Excel's limits
_NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


class RowWriter(Protocol):
    """What `open_writer` yields."""

    def write(self, row: dict[str, Any]) -> None:
        """Append one row to the output file; the first row's keys are the columns."""


@contextmanager
def open_writer(path: str | Path) -> Iterator[RowWriter]:
    """A writer of rows (dicts) to .jsonl, .csv, .tsv, .xlsx or .parquet; the file appears when the block succeeds.

    In csv, tsv and xlsx, lists and dicts become JSON in their cell. In csv and tsv, texts that a spreadsheet would run
    as a formula get a leading apostrophe, which is reported; in xlsx they are marked as text and keep every character.
    Tsv has no quoting: tabs and newlines inside texts become spaces, which is reported.
    """
    kind = kind_of(path)
    if kind not in WRITERS:
        raise UserError(f"{path}: cannot write the format '{kind}'. {suggest(kind, list(WRITERS))}")
    with open_writer_of(WRITERS[kind], path) as writer:
        yield writer


def write_all(path: str | Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write every row to a new output file as it arrives."""
    with open_writer(path) as out:
        for row in rows:
            out.write(row)


def plain(value: Any) -> Any:
    """Numpy scalars and arrays of a row as Python values, to write it as JSON (json's `default`)."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if type(value).__name__ == "Decimal":
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def as_json(value: Any) -> str:
    """A row as one line of standard JSON in plain characters, ready to be written."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain)


class _Jsonl:
    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file, self._path = file, path

    def write(self, row: dict[str, Any]) -> None:
        line = as_json(row).encode() + b"\n"
        with write_errors(self._path):
            self._file.write(line)

    def close(self) -> None:
        pass


class _Columns:
    """Rows of one set of columns, which the first row decides; `_put` writes the values of a row, or the header."""

    _path: str
    _columns: list[str] | None = None

    def write(self, row: dict[str, Any]) -> None:
        """Write a row in the columns of the first."""
        if self._columns is None:
            self._columns = list(row)
            self._put(self._columns)
        if row.keys() != set(self._columns):
            raise _other_columns(self._path, row, self._columns)
        self._put([row[column] for column in self._columns])

    def _put(self, values: list[Any]) -> None:
        raise NotImplementedError


class _Table(_Columns):
    """Csv and tsv: the first row's keys are the header."""

    def __init__(self, file: IO[bytes], path: str, separator: str) -> None:
        self._file, self._path, self._separator = file, path, separator
        self._line, self._changed, self._formulas = io.StringIO(), 0, 0
        self._csv = csv.writer(self._line, lineterminator="\r\n")  # so that it quotes cells with either in them

    def _put(self, values: list[Any]) -> None:
        """Write a row of csv or tsv; cells that look like formulas get an apostrophe."""
        cells = [_cell(value) for value in values]
        for n, value in enumerate(values):
            if isinstance(value, str) and _FORMULA.match(value):
                cells[n] = "'" + value
                self._formulas += 1
        if self._separator == "\t":
            spaced = [" ".join(cell.replace("\r\n", "\n").translate(_SPACED).split("\n")) for cell in cells]
            self._changed += spaced != cells
            text = "\t".join(spaced) + "\n"
        else:
            self._csv.writerow(cells)
            text = self._line.getvalue().removesuffix("\r\n") + "\n"
            self._line.seek(0)
            self._line.truncate()
        with write_errors(self._path):
            self._file.write(text.encode())

    def close(self) -> None:
        if self._changed:
            note(
                f"{self._path}: tabs and newlines were replaced with spaces in {self._changed} rows (TSV has no "
                "quoting)."
            )
        if self._formulas:
            note(
                f"{self._path}: {self._formulas} cells begin like a formula (= + - @) and were given a leading "
                "apostrophe, so that no spreadsheet runs them. A .xlsx, .parquet or .jsonl file keeps them as they are."
            )


_SPACED = str.maketrans("\t\r", "  ")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(float(value))
    return as_json(value)


def _csv_writer(file: IO[bytes], path: str) -> _Table:
    return _Table(file, path, ",")


def _tsv_writer(file: IO[bytes], path: str) -> _Table:
    return _Table(file, path, "\t")


class _Xlsx(_Columns):
    """One sheet: the first row's keys are the header; texts are text even where they begin like a formula."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        try:
            import openpyxl
        except ImportError as error:
            raise UserError(f"{path}: writing .xlsx needs an extra library: pip install 'bertkit[excel]'") from error
        from openpyxl.cell import WriteOnlyCell

        self._file, self._path, self._cell_class = file, path, WriteOnlyCell
        self._book = openpyxl.Workbook(write_only=True)
        self._sheet = self._book.create_sheet("predictions")
        self._sheet.freeze_panes = "A2"
        self._rows = self._shortened = self._cleaned = 0

    def _put(self, values: list[Any]) -> None:
        """Write a row of an .xlsx file."""
        self._rows += 1
        if self._rows > MOST_ROWS:
            raise UserError(f"{self._path}: a sheet has at most {MOST_ROWS:,} rows. Write a .csv or .parquet instead.")
        with write_errors(self._path):
            self._sheet.append([self._cell(value) for value in values])

    def _cell(self, value: Any) -> Any:
        if hasattr(value, "tolist"):
            value = value.tolist()
        if value is None or isinstance(value, (bool, int, float)):
            return value
        text = value if isinstance(value, str) else as_json(value)
        clean = _NOT_IN_XML.sub("", text)
        self._cleaned += clean != text
        self._shortened += len(clean) > MOST_CELL
        cell = self._cell_class(self._sheet, value=clean[:MOST_CELL])
        cell.data_type = "s"  # never a formula
        return cell

    def close(self) -> None:
        with write_errors(self._path):
            self._book.save(self._file)
        if self._shortened:
            note(
                f"{self._path}: {self._shortened} cells have more than {MOST_CELL:,} characters, Excel's limit, and "
                "were cut. A .csv or .parquet file keeps them whole."
            )
        if self._cleaned:
            note(f"{self._path}: control characters, which .xlsx cannot hold, were removed from {self._cleaned} cells.")


def _other_columns(path: str, row: dict[str, Any], columns: list[str]) -> UserError:
    other = sorted(map(str, row.keys() ^ set(columns)))
    return UserError(
        f"{path}: a row has different columns from the first ({', '.join(other)}). Write a .jsonl instead."
    )


class _Parquet:
    """Parquet in batches; the first batch decides the columns' types."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self._file, self._path = file, path
        self._arrow = arrow_for(path)
        self._rows: list[dict[str, Any]] = []
        self._schema: Any = None
        self._writer: Any = None

    def write(self, row: dict[str, Any]) -> None:
        self._rows.append({name: plain(value) if hasattr(value, "tolist") else value for name, value in row.items()})
        if len(self._rows) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        """Write the waiting rows as a group of the parquet file."""
        arrow = self._arrow
        try:
            if self._writer is None:
                self._schema = _without_nulls(arrow, arrow.Table.from_pylist(self._rows).schema)
                self._writer = arrow.parquet.ParquetWriter(self._file, self._schema)
            for row in self._rows:
                if row.keys() - set(self._schema.names):
                    raise arrow.ArrowInvalid(f"new columns {sorted(row.keys() - set(self._schema.names))}")
            table = arrow.Table.from_pylist(self._rows, schema=self._schema)
        except (arrow.ArrowInvalid, arrow.ArrowTypeError) as error:
            raise UserError(
                f"{self._path}: a row does not match the earlier ones ({error}). Write a .jsonl instead."
            ) from error
        with write_errors(self._path):
            self._writer.write_table(table)
        self._rows = []

    def close(self) -> None:
        try:
            if self._rows or self._writer is None:
                self._flush()
        finally:
            if self._writer is not None:
                self._writer.close()


def _without_nulls(arrow: Any, schema: Any) -> Any:
    """The schema of parquet rows; a column that is empty in the first batch may hold texts later."""
    return arrow.schema([f.with_type(arrow.string()) if arrow.types.is_null(f.type) else f for f in schema])


def arrow_for(path: str | Path) -> Any:
    """Import pyarrow with its parquet module to write rows, or say how to install it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path}: writing parquet needs an extra library: pip install 'bertkit[parquet]'") from error
    return pyarrow


WRITERS: dict[str, Callable[[IO[bytes], str], Any]] = {
    "jsonl": _Jsonl,
    "csv": _csv_writer,
    "tsv": _tsv_writer,
    "xlsx": _Xlsx,
    "parquet": _Parquet,
}
