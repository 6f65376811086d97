"""Tables whose cells have types: parquet, Excel sheets, and tables in memory (pandas, polars, datasets, lists).

A table in memory is read like a file under a name of its own, `memory:NAME-DIGEST.rows`, for as long as `in_memory`
lasts. The digest is of the rows, so a `run.toml` that holds the name holds what the run was trained on.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import IO, Any
from uuid import uuid4

from bertkit.errors import DamagedFile, UserError
from bertkit.files.open import COMPRESSIONS, DAMAGE, check_file, open_bytes
from bertkit.notify import called, note, renamed

BATCH = 1024
MEMORY = "memory:"
Numbered = tuple[int, dict[str, Any]]  # row from 1, values by column


# ---- Parquet, a batch of rows at a time.


def read_parquet(path: str | Path) -> Iterator[Numbered]:
    """(row from 1, values by column) of a parquet file."""
    number = 0
    # Whatever a damaged file makes the library raise is the file's fault; it has many exception classes.
    try:
        with _opened(path, _parquet) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                rows = batch.to_pylist()
                for row in rows:
                    number += 1
                    yield number, row
    except UserError:
        raise
    except Exception as error:
        raise DamagedFile(f"{path}, after row {number}: not a valid parquet file: {_first_line(error)}") from error


def parquet_columns(path: str | Path) -> list[str]:
    """The names of a parquet file's columns, in their order."""
    with _opened(path, _parquet) as file:
        return [str(name) for name in file.schema_arrow.names]


@contextmanager
def _opened(path: str | Path, library: Callable[[Path, Path | IO[bytes]], Any]) -> Iterator[Any]:
    path = check_file(path)
    packed = path.suffix.lower() in COMPRESSIONS
    with _unpacked(path) if packed else nullcontext(path) as source, library(path, source) as file:
        yield file


@contextmanager
def _unpacked(path: Path) -> Iterator[IO[bytes]]:
    """A packed .parquet or .xlsx file's bytes in a temporary file: these formats are read from their end."""
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
    """Open a parquet file with pyarrow."""
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


# ---- Excel: the first sheet, row by row.


def read_sheet(path: str | Path) -> Iterator[tuple[int, list[Any]]]:
    """(row from 1, cells) of the first visible sheet of an .xlsx file; empty rows are skipped, and so are empty cells
    beyond the last column of the first row. Formulas give the value that was last computed.
    """
    number = 0
    try:
        with _opened(path, _workbook) as sheet:
            width = 0
            for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
                cells = [plain_value(cell) for cell in row]
                while cells and cells[-1] is None and len(cells) > width:
                    cells.pop()
                if all(cell is None for cell in cells):
                    continue
                width = width or len(cells)
                yield number, cells + [None] * (width - len(cells))
    except UserError:
        raise
    except Exception as error:
        raise DamagedFile(f"{path}, after row {number}: not a valid .xlsx file: {_first_line(error)}") from error


@contextmanager
def _workbook(path: Path, source: Path | IO[bytes]) -> Iterator[Any]:
    """Open an .xlsx file with openpyxl: its first visible sheet."""
    try:
        import openpyxl
    except ImportError as error:
        raise UserError(f"{path}: reading .xlsx needs an extra library: pip install 'bertkit[excel]'") from error
    book = openpyxl.load_workbook(source, read_only=True, data_only=True)
    try:
        visible = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"] or book.worksheets
        if not visible:
            raise UserError(f"{path}: the workbook has no sheet of cells.")
        if len(visible) > 1:
            names = ", ".join(repr(sheet.title) for sheet in visible[1:6])
            note(f"{path}: the sheet {visible[0].title!r} is read; {names} {'are' if len(visible) > 2 else 'is'} not.")
        if hasattr(visible[0], "reset_dimensions"):
            visible[0].reset_dimensions()  # the size that the file states may be wrong
        yield visible[0]
    finally:
        book.close()


# ---- Tables in memory, by what they can do: none of their libraries is imported.

_tables: dict[str, tuple[Any, str]] = {}  # name → table and SHA-256 of its rows, while `in_memory` lasts
_users: Counter[str] = Counter()  # name → blocks of `in_memory` that have it: the same rows have the same name
_changing = Lock()


def is_frame(value: Any) -> bool:
    """Whether a value is a table of a library: a pandas or polars DataFrame, an Arrow table, a `datasets.Dataset`."""
    return any(hasattr(value, name) for name in ("column_names", "itertuples", "iter_rows", "collect_schema"))


def texts_of(given: Any) -> list[Any]:
    """Texts as a user passes them in Python: one, several, or a table with a column `text`."""
    if isinstance(given, str):
        note_file_name(given)
        return [given]
    if not is_frame(given) and not isinstance(given, Mapping):
        return list(given)
    rows = list(rows_in(given, "The table"))
    if missing := next((list(row) for row in rows if "text" not in row), None):
        names = " | ".join(missing[:12])
        raise UserError(f"The table has no column 'text', only {names}. Pass the column that holds the texts.")
    return [row["text"] for row in rows]


def note_file_name(text: str) -> None:
    """Say so if a text that a user passes by itself is the name of a file: its rows are not read."""
    if len(text) < 200 and "\0" not in text and Path(text).is_file():
        note(f"{text!r} is taken as a text; the rows of the file of that name are not read.")


@contextmanager
def in_memory(tables: Mapping[str, Any], *, digest: bool = True) -> Iterator[dict[str, Path]]:
    """Names under which tables in memory can be read like files, until the block ends.

    tables: role → table (anything `rows_in` takes); messages call it by its role. digest: put a digest of all rows into
    the name.
    """
    paths: dict[str, Path] = {}
    try:
        for role, table in tables.items():
            mark = digest_of(rows_in(table, role)) if digest else uuid4().hex
            path = Path(f"{MEMORY}{role}-{mark[:16]}.rows")
            with _changing:
                _tables[str(path)] = table, mark
                _users[str(path)] += 1
                called[str(path)] = role
            paths[role] = path
        yield paths
    except UserError as error:
        error.args = (renamed(str(error)),)
        raise
    finally:
        with _changing:
            for name in map(str, paths.values()):
                _users[name] -= 1
                if not _users[name]:
                    del _tables[name], _users[name], called[name]


def is_memory(path: Any) -> bool:
    """Whether a path is the name of a data frame that `in_memory` gave."""
    return str(path).startswith(MEMORY)


def memory_digest(path: str | Path) -> str:
    """SHA-256 of the rows of a data frame that `in_memory` holds."""
    return _tables[str(path)][1]


def read_memory(path: str | Path) -> Iterator[Numbered]:
    """(row from 1, values by column) of a data frame that `in_memory` holds."""
    if str(path) not in _tables:
        raise UserError(
            f"{path}: these rows were in the memory of another process. Pass the same rows again from Python, or "
            "write them to a file."
        )
    yield from enumerate(rows_in(_tables[str(path)][0], str(path)), start=1)


def rows_in(table: Any, where: str) -> Iterator[dict[str, Any]]:
    """The rows of a data frame as dicts of plain values; missing values are None, class numbers are names."""
    names_of = _class_names(table)
    for row in _raw_rows(table, where):
        plain = {str(name): plain_value(value) for name, value in row.items()}
        yield plain | {name: _named(plain[name], names) for name, names in names_of.items() if name in plain}


def _raw_rows(table: Any, where: str) -> Iterator[Mapping[Any, Any]]:
    """The rows of a table in memory, whichever library it comes from."""
    if hasattr(table, "collect_schema") and not hasattr(table, "iter_rows"):
        raise UserError(f"{where} is a lazy table. Pass the result of its .collect().")
    if hasattr(table, "columns") and len(set(map(str, table.columns))) < len(list(table.columns)):
        raise UserError(f"{where}: two columns have the same name: {', '.join(map(str, table.columns))}. Rename one.")
    if hasattr(table, "iter_rows") and hasattr(table, "columns"):  # polars
        yield from table.iter_rows(named=True)
    elif hasattr(table, "itertuples"):  # pandas
        columns = list(table.columns)
        yield from (dict(zip(columns, row)) for row in table.itertuples(index=False, name=None))
    elif hasattr(table, "to_batches"):  # Arrow
        for batch in table.to_batches(max_chunksize=BATCH):
            yield from batch.to_pylist()
    elif hasattr(table, "column_names") and not isinstance(table, Mapping):  # datasets
        yield from table
    elif isinstance(table, Mapping):
        yield from _from_columns(table, where)
    elif isinstance(table, Iterable) and not isinstance(table, (str, bytes)):
        for number, row in enumerate(table, start=1):
            if not isinstance(row, (str, Mapping)):
                raise UserError(f"{where}, row {number} is {row!r:.60}; it must be a dict or a text.")
            yield {"text": row} if isinstance(row, str) else row
    else:
        raise UserError(
            f"{where} is {type(table).__name__}; it must be a file's name, a DataFrame, a Dataset, or a list of dicts."
        )


def _from_columns(table: Mapping[Any, Any], where: str) -> Iterator[dict[Any, Any]]:
    """Rows of a data frame given as {column: values}."""
    if inner := [str(name) for name, part in table.items() if is_frame(part)]:
        raise UserError(f"{where} holds several tables: {', '.join(inner)}. Pass one of them, e.g. [{inner[0]!r}].")
    try:
        columns = {name: list(values) for name, values in table.items() if not isinstance(values, str)}
    except TypeError:
        columns = {}
    if len(columns) < len(table) or len({len(values) for values in columns.values()}) != 1:
        raise UserError(f"{where} is a dict; it must hold one list per column, all of the same length.")
    yield from (dict(zip(columns, row)) for row in zip(*columns.values()))


def _class_names(table: Any) -> dict[str, list[str]]:
    """Column → label names, for the columns of a `datasets.Dataset` that hold numbers of classes."""
    features = getattr(table, "features", None)
    if not isinstance(features, Mapping):
        return {}
    names = {name: getattr(kind, "names", None) or getattr(getattr(kind, "feature", None), "names", None)
             for name, kind in features.items()}  # fmt: skip
    return {name: list(known) for name, known in names.items() if known}


def _named(value: Any, names: list[str]) -> Any:
    """Class numbers of a `datasets` column as names."""
    if isinstance(value, list):
        return [_named(part, names) for part in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else None  # -1: not labelled
    return value


def plain_value(value: Any) -> Any:
    """A cell of a data frame as a plain Python value: missing values are None, dates are text."""
    if value is None or isinstance(value, (str, bool, int)):
        return str(value) if isinstance(value, str) else value
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float):
        return None if value != value else float(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return plain_value(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain_value(part) for part in value]
    if isinstance(value, Mapping):
        return {str(name): plain_value(part) for name, part in value.items()}
    return value


def digest_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 of the rows of a data frame, of all their columns in order."""
    total = hashlib.sha256()
    for row in rows:
        total.update(json.dumps(row, ensure_ascii=True, default=repr).encode() + b"\n")
    return total.hexdigest()
