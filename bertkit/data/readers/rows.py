"""Labelled rows from csv, tsv, jsonl, parquet, xlsx, txt and tables in memory: one generator, whatever the format.

The rules, format by format:
- **csv** is read with quoting (a quoted cell may hold commas and newlines; `""` is a quote). Where the first line has
  no comma, `;` or a tab is used as the separator, and reported.
- **tsv** has no quoting: a `"` is a character, a tab always ends a cell (as in GLUE's files).
- **txt** is one text per line without labels; a .txt whose columns are given by number, or whose labels are
  needed, is read as tsv.
- **jsonl** is one object per line; **json** is the same, or one list of objects.
- **xlsx** is the first sheet, its first row the header; numbers in the text column become text.
Blank lines are skipped. A row with more or fewer cells than the first is an error that names its line.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from bertkit.data.examples import Label, TextRow
from bertkit.data.readers.frames import is_memory, parquet_columns, read_parquet, read_sheet
from bertkit.data.readers.json import check_text, read_objects, scalar, short
from bertkit.errors import UserError, suggest
from bertkit.files.open import LONGEST_LINE, check_file, kind_of, open_text
from bertkit.notify import note

# ---- Which column is which: by name, by number (from 1), or by one of the names the well-known data sets use.

# Other names of a default column, as GLUE, SNLI, CLUE and the common review sets spell them (compared without case).
ALIASES: dict[str, tuple[str, ...]] = {
    "text": ("sentence", "text_a", "review", "content", "message", "comment", "tweet", "question", "headline", "body",
             "文本", "内容", "正文", "句子", "评论", "标题"),
    "label": ("gold_label", "labels", "score", "class", "category", "target", "sentiment", "quality", "is_duplicate",
              "标签", "类别", "分类", "情感", "得分", "分数"),
}  # fmt: skip
# Names that come in twos.
PAIRS: tuple[tuple[str, str], ...] = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("question", "sentence"),
    ("#1 string", "#2 string"),
    ("文本1", "文本2"),
    ("句子1", "句子2"),
    ("问题1", "问题2"),
)
KNOWN = {"text", "text_b", "label", *ALIASES["text"], *ALIASES["label"], *(name for pair in PAIRS for name in pair)}


def looks_like_header(cells: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the first row of a table names columns: it has a requested column, or one with a well-known name.

    If all columns are given by number, only the cells at those places count: a well-known name may also be a
    label (a kind of message called 'question').
    """
    stripped = [cell.strip() for cell in cells]
    if any(name in stripped for name in wanted if as_number(name) is None):
        return True
    places = [as_number(name) for name in wanted]
    if not places or None in places:
        return not KNOWN.isdisjoint(cell.casefold() for cell in stripped)
    first, *others = (stripped[n].casefold() if n is not None and n < len(stripped) else "" for n in places)
    return first in KNOWN or not {"label", *ALIASES["label"]}.isdisjoint(others)


def asks_for_pairs(columns: Sequence[str], text_b: str) -> bool:
    """Whether the rows of a table have second texts: their column was named, or exists under a usual name."""
    return text_b != "text_b" or text_b in columns or has_pair(columns)


def has_pair(columns: Sequence[str]) -> bool:
    """Whether two columns of a table have names that usually come in pairs."""
    names = {column.strip().casefold() for column in columns}
    return any(names.issuperset(pair) for pair in (("text", "text_b"), *PAIRS))


def as_number(name: str) -> int | None:
    """The position (from 0) that the column '2' means, or None for a name."""
    return int(name) - 1 if name.isascii() and name.isdigit() and 0 < len(name) < 6 else None


def resolve(
    path: str | Path, columns: Sequence[str], *, text: str, text_b: str | None, label: str | None, label_needed: bool
) -> dict[str, str | None]:
    """A table's names for the wanted columns; if a default is absent, well-known other names are used and reported.

    Returns {"text": name, "text_b": name or None, "label": name or None}.
    """
    by_case = {column.strip().casefold(): column for column in columns}
    columns_by_role: dict[str, str | None] = {"text": text, "text_b": text_b, "label": label}
    if text_b is not None and (text, text_b) == ("text", "text_b") and not (text in columns and text_b in columns):
        pairs = [(by_case[a], by_case[b]) for a, b in (("text", "text_b"), *PAIRS) if a in by_case and b in by_case]
        if len(pairs) == 1:
            columns_by_role["text"], columns_by_role["text_b"] = pairs[0]
    elif text == "text" and text not in columns and text_b is None:
        columns_by_role["text"] = _alias("text", by_case) or text
    if label == "label" and label not in columns:
        columns_by_role["label"] = _alias("label", by_case) or label
    for role, name in columns_by_role.items():
        if name is None or name in columns:
            continue
        if role == "label" and not label_needed:
            columns_by_role[role] = None
            continue
        raise UserError(_no_column(path, columns, role, name))
    used = {name for name in columns_by_role.values() if name}
    if len(used) < sum(name is not None for name in columns_by_role.values()):
        raise UserError(f"{path}: one column is used twice: {_shown(columns_by_role)}. Name three different columns.")
    if columns_by_role != {"text": text, "text_b": text_b, "label": columns_by_role["label"] and label}:
        note(f"{path}: reading {_shown(columns_by_role)}.")
    return columns_by_role


def _alias(role: str, by_case: dict[str, str]) -> str | None:
    names = [by_case[alias] for alias in (role, *ALIASES[role]) if alias in by_case]
    return names[0] if len(names) == 1 else None


def _shown(by_role: dict[str, str | None]) -> str:
    return ", ".join(f"{role} from column {name!r}" for role, name in by_role.items() if name)


def _no_column(path: str | Path, columns: Sequence[str], role: str, name: str) -> str:
    """The error for a column that a table does not have."""
    names = [column if len(column) <= 30 else column[:29] + "…" for column in columns[:20]]
    close = suggest(name, names) if names else ""
    close = close + " " if close.startswith("Did you mean") else ""
    columns_shown = f"{path}: there is no column {name!r}. {close}The columns are: {' | '.join(names)}. "
    if is_memory(path):
        return columns_shown + f'Pass {role}="NAME".'
    option = "--" + role.replace("_", "-")
    return f"{columns_shown}Pass {option} NAME, or, for a file without a header, its number ({option} 2)."


# ---- Labelled rows, whatever the format.

Cells = tuple[int, dict[str, Any]]  # line, and the row's values by column
ROW_KINDS = ("csv", "tsv", "jsonl", "json", "parquet", "xlsx", "txt")
COUNT_ROWS = ("parquet", "xlsx", "rows")  # whose places are rows, not lines


def read_rows(
    path: str | Path,
    *,
    text: str = "text",
    text_b: str | None = None,
    label: str = "label",
    labelled: bool | Literal["maybe"] = True,
    multi_label: bool = False,
    separator: str = "|",
    number: bool = False,
    strip: bool = True,
    bad: list[UserError] | None = None,
    header: bool | Literal["auto"] = "auto",
    encoding: str = "utf-8",
    kind: str | None = None,
    known: Collection[str] = (),
) -> Iterator[TextRow]:
    """Each row of a file with a column of texts.

    text, text_b, label: column names, or numbers from 1 for files without header; text_b=None reads single texts.
    A pair's column `text_c` is read where there is one.
    labelled: True: every row must have a label; "maybe": labels are optional; False: none are read.
    multi_label: labels are lists, or names with `separator` between them. number: labels are numbers.
    strip: without the spaces around labels. bad: where to put the errors of single rows, which are then left out.
    kind: the format, if not by the ending. known: labels of a model, in whose spelling true and false are read; without
    them, `True`, `TRUE` and a boolean cell are the label `true`.
    """
    kind = kind or kind_of(path)
    wanted = [name for name in (text, text_b, label if labelled else None) if name]
    rows = _cells(path, kind, wanted, header, encoding, needs_label=labelled is True, bad=bad)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path} contains no rows.")
    asked = label if labelled else None
    names = resolve(path, list(first[1]), text=text, text_b=text_b, label=asked, label_needed=labelled is True)
    if kind in ("jsonl", "json", "rows") and names["label"] is None:
        names["label"] = asked  # an object may have what the first one has not
    how = (separator if multi_label else None, number, strip, labelled is True, known)
    count = empty = 0
    for line, row in chain([first], rows):
        where = f"{path}, row {line}" if kind in COUNT_ROWS else f"{path}, line {line}"
        try:
            example = _example(where, row, names, kind, line, how)
        except UserError as error:
            if bad is None:
                raise
            bad.append(error)
            continue
        empty += not example.text.strip() or (example.text_b is not None and not example.text_b.strip())
        count += 1
        yield example
    if empty:
        note(f"{path}: {empty} of {count} rows have an empty text.")


def _example(
    where: str, row: dict[str, Any], names: dict[str, str | None], kind: str, line: int, how: tuple[Any, ...]
) -> TextRow:
    """A labelled row from the cells of a table."""
    answer = _label(where, row, names["label"], *how)
    if kind in ("xlsx", "rows"):
        row = row | {name: _as_shown(row.get(name)) for name in (names["text"], names["text_b"]) if name}
    text = _text(where, row, str(names["text"]))
    second = _text(where, row, names["text_b"]) if names["text_b"] else None
    third = _text(where, row, "text_c") if second is not None and row.get("text_c") else None
    return TextRow(text, second, answer, line, third)


def columns_of(path: str | Path, wanted: Collection[str] = (), encoding: str = "utf-8") -> list[str]:
    """A table's column names; numbers ('1', '2', …) where it has no header."""
    kind = kind_of(path)
    if kind == "parquet":
        return parquet_columns(path)
    first = next(cells_of(path, wanted, encoding), None)
    return list(first[1]) if first else []


def cells_of(path: str | Path, wanted: Collection[str] = (), encoding: str = "utf-8") -> Iterator[Cells]:
    """(line, values by column) of every row of a table, all columns as the file has them."""
    return _cells(path, kind_of(path), list(wanted), "auto", encoding, needs_label=False)


def _cells(
    path: str | Path,
    kind: str,
    wanted: list[str],
    header: bool | str,
    encoding: str,
    needs_label: bool,
    bad: list[UserError] | None = None,
) -> Iterator[Cells]:
    """The rows of a table as dicts, whatever its format."""
    if kind in ("jsonl", "json", "rows"):
        return read_objects(path, encoding, kind, bad)
    if kind == "parquet":
        return read_parquet(path)
    if kind == "xlsx":
        return _table(path, read_sheet(path), wanted, header, kind, bad)
    if kind not in ROW_KINDS:
        check_file(path)
        raise UserError(f"{path}: cannot tell the format from the ending '{kind}'. {suggest(kind, list(ROW_KINDS))}")
    lines = enumerate(open_text(path, encoding), start=1)
    if kind == "csv":
        return _table(path, _csv_rows(path, lines, wanted), wanted, header, "csv", bad)
    if kind == "txt" and not needs_label and as_number(wanted[0] if wanted else "text") is None:
        return _texts(path, lines)
    return _table(path, _tsv_rows(lines), wanted, header, kind, bad)


def _texts(path: str | Path, lines: Iterable[tuple[int, str]]) -> Iterator[Cells]:
    """The texts of a file with one on each line."""
    skipped = 0
    for number, line in lines:
        if line.strip():
            yield number, {"text": line}
        else:
            skipped += 1
    if skipped:
        note(f"{path}: {skipped} empty lines were skipped.")


def _tsv_rows(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in lines if line.strip())


_EXCEL = re.compile(r'"?sep=(.)"?', re.IGNORECASE)


def _csv_rows(path: str | Path, lines: Iterator[tuple[int, str]], wanted: list[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows of CSV, whose cells may span lines; Excel's `sep=` line is understood."""
    first = next((pair for pair in lines if pair[1].strip()), None)
    if first is None:
        return
    separator = ""
    if excel := _EXCEL.fullmatch(first[1].strip()):  # Excel's own line, before the header
        separator, first = excel[1], next((pair for pair in lines if pair[1].strip()), None)
        if first is None:
            return
    start, opening = first
    separator = separator or _separator(opening, wanted)
    if separator != ",":
        note(f"{path}: the columns are separated by {'tabs' if separator == chr(9) else repr(separator)}, not commas.")
    both = chain([first], lines)
    if separator == "\t":
        yield from _tsv_rows(both)
        return
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader((line + "\n" for _, line in both), delimiter=separator, strict=True)
    line = start
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                yield line, row
            line = start + reader.line_num
    except csv.Error as error:
        hint = 'Is a quote (") left open or unescaped? Inside a quoted cell it is written twice.'
        raise UserError(f"{path}, line {line}: not a CSV row ({error}). {hint}") from error


def _likely_numbers(cells: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
    """A number for each option of columns: the longest cells are the texts, two where a pair is wanted, then the label,
    where there is one to read."""
    has_label = len(wanted) > 1 and wanted[-1] != "text_b"
    longest = sorted(range(len(cells)), key=lambda n: -len(cells[n]))[: len(wanted) - has_label or 1]
    texts, others = sorted(longest), [n for n in range(len(cells)) if n not in longest]
    places = [*zip(("--text", "--text-b"), texts), *(("--label", n) for n in others[-1:] if has_label)]
    return {option: n + 1 for option, n in places}


def _separator(opening: str, wanted: list[str]) -> str:
    for separator in ",\t;":
        if separator in opening and looks_like_header(opening.replace('"', "").split(separator), wanted):
            return separator
    return next((separator for separator in "\t,;" if separator in opening), ",")


def _table(
    path: str | Path,
    rows: Iterator[tuple[int, list[Any]]],
    wanted: list[str],
    header: bool | str,
    kind: str,
    bad: list[UserError] | None,
) -> Iterator[Cells]:
    """Rows under their column names: those of the header, or numbers where there is none."""
    opening = next(rows, None)
    if opening is None:
        return
    first = opening[0], ["" if cell is None else str(cell) for cell in opening[1]]
    numbered = any(as_number(name) is not None for name in wanted)  # a number is always a place, never a name
    named = looks_like_header(first[1], wanted) if header == "auto" else bool(header)
    if kind == "txt" and len(first[1]) == 1:
        raise UserError(
            f"{path}: a .txt file has no labels, but labels are needed. Pass a csv, tsv or jsonl file with a label "
            "column."
        )
    columns = [cell.strip() for cell in first[1]] if named else [str(n) for n in range(1, len(first[1]) + 1)]
    for name in {*wanted, *KNOWN} & set(columns):
        if columns.count(name) > 1:
            raise UserError(f"{path}, line {first[0]}: two columns are named {name!r}. Rename one.")
    if not named and not numbered and header == "auto":
        text = wanted[0] if wanted else "text"
        cells = " | ".join(cell if len(cell) <= 30 else cell[:29] + "…" for cell in first[1][:12])
        if kind == "csv" and len(first[1]) == 1 and "，" in first[1][0]:
            raise UserError(
                f"{path}, line {first[0]}: the cells are separated by the full-width comma ，; the line is: {cells}. "
                "Put the comma , between cells, and quotes around texts that contain it."
            )
        likely = _likely_numbers(first[1], wanted)
        names, numbers = (" ".join(map("{} {}".format, likely, values)) for values in (["NAME"] * 3, likely.values()))
        raise UserError(
            f"{path}, line {first[0]}: there is no header with {text!r}; the line is: {cells}. "
            f"Pass the columns' names ({names}) or numbers ({numbers})."
        )
    if named and numbered:
        note(f"{path}: the first line is read as a header: {' | '.join(columns[:12])}.")
    places = {name: n for name in wanted if (n := as_number(name)) is not None and n < len(columns)} if named else {}
    for line, row in rows if named else chain([opening], rows):
        if len(row) != len(columns):
            error = UserError(
                f"{path}, {'row' if kind in COUNT_ROWS else 'line'} {line}: {len(row)} columns, but the first line has "
                f"{len(columns)}. {_ragged_hint(kind)}"
            )
            if bad is None:
                raise error
            bad.append(error)
            continue
        yield line, dict(zip(columns, row)) | {name: row[n] for name, n in places.items()}


def _ragged_hint(kind: str) -> str:
    if kind == "xlsx":
        return "Give every column a name in the first row."
    if kind == "csv":
        return "Quote cells that contain a comma or newline."
    return (
        "A tab ends a cell even inside quotes: TSV has no quoting. Replace tabs and newlines inside texts with spaces."
    )


def _text(where: str, row: dict[str, Any], name: str) -> str:
    """The text of a row, or an error that names the line."""
    if name not in row:
        raise UserError(f"{where}: there is no {name!r}. {suggest(name, list(row) or ['nothing'])}")
    value = row[name]
    if not isinstance(value, str):
        raise UserError(f"{where}: {name!r} is {short(value)}; it must be text.")
    return check_text(where, value)


def _as_shown(cell: Any) -> Any:
    """A table's cell (of a sheet or a DataFrame) as text: an empty one is empty, a number is its digits."""
    return "" if cell is None else scalar("", cell) if isinstance(cell, (int, float)) else cell


def _label(
    where: str, row: dict[str, Any], name: str | None, separator: str | None, number: bool, strip: bool, needed: bool,
    known: Collection[str],
) -> Label:  # fmt: skip
    """The label of a row: a name, several names, or a number."""
    if name is None:
        return None
    value = row.get(name)
    if isinstance(value, str):
        value = check_text(where, value).strip() if strip or not value.strip() else check_text(where, value)
    if value is None or (value == "" and separator is None):
        if not needed:
            return None
        raise UserError(f"{where}: {name!r} has no label. Add one, or remove the row.")
    if number:
        return _number(where, name, value)
    if separator is not None:
        parts = _listed(value)
        if parts is None:
            parts = str(scalar(f"{where}: {name!r}", value)).split(separator or None)
        names = (_label_name(scalar(f"{where}: {name!r}", part).strip(), known) for part in parts)
        return tuple(dict.fromkeys(part for part in names if part))
    if isinstance(value, list):
        raise UserError(
            f"{where}: {name!r} is a list, {short(value)}. If rows have several labels, pass --multi-label."
        )
    return _label_name(scalar(f"{where}: {name!r}", value), known)


def _label_name(label: str, known: Collection[str]) -> str:
    """The label of a row; true and false in one spelling, however the format writes them."""
    if label in known or label.strip().lower() not in ("true", "false"):
        return label
    return next((name for name in known if name.lower() == label.strip().lower()), label.lower())


# ---- Several labels in one cell.

SEPARATORS = "|｜;；,，、"  # the rarer a sign is inside names, the earlier
LOOKED_AT = 1000  # rows by which the separator is judged


def label_separator(path: str | Path, *, text: str, label: str, encoding: str, known: Collection[str] = ()) -> str:
    """The sign between the labels in one cell of a table, by its first rows; what was taken is reported.

    known: labels of a model; a cell that is one of them holds one label, whatever signs are in it.
    """
    cells = list(islice(cells_of(path, [text, label], encoding), LOOKED_AT))
    by_case = {name.strip().casefold(): name for _, row in cells for name in row}
    name = label if label in by_case.values() or label != "label" else _alias("label", by_case)
    values = [row.get(name or label) for _, row in cells]
    lists = sum(_listed(value) is not None for value in values)
    names = [value for value in values if isinstance(value, str) and value not in known and _listed(value) is None]
    for separator in SEPARATORS:
        if count := sum(separator in value for value in names):
            note(
                f"{path}: labels in one cell are separated by {separator!r} ({count:,} of the first {len(values):,} "
                "rows have several). If that is wrong, pass --label-separator."
            )
            return separator
    what = f"labels are lists (in {lists:,} of" if lists else "no cell holds several labels (of"
    note(f"{path}: {what} the first {len(values):,} rows).")
    return SEPARATORS[0]


def _listed(value: Any) -> list[Any] | None:
    """The items of a table's cell that holds a list, or spells one: ["a", "b"], or Python's ['a', 'b']."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if not isinstance(value, str) or not (value.strip().startswith("[") and value.strip().endswith("]")):
        return None
    for parser in (json.loads, ast.literal_eval):
        try:
            items = parser(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(items, list) and all(isinstance(item, (str, int, float)) for item in items):
            return items
    return None


def _number(where: str, name: str, value: Any) -> float:
    """A row's label as a number."""
    try:
        if isinstance(value, bool):
            raise ValueError
        result = float(value)
        if not math.isfinite(result):
            raise ValueError
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{where}: {name!r} is {short(value)}; it must be a number.") from error
    return result
