"""Strict JSON for the readers: objects, one per line, with values of the right type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from bertkit.data.readers.frames import read_memory
from bertkit.errors import UserError, suggest
from bertkit.files.open import kind_of, open_text, open_whole

_BAD_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def read_objects(
    path: str | Path, encoding: str = "utf-8", kind: str | None = None, bad: list[UserError] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) for each line of a JSONL file; a `.json` file may also be one list (then read whole).

    Tables in memory (kind "rows") have their rows for objects. bad: where to put the errors of single lines, which are
    then left out.
    """
    if (kind or kind_of(path)) == "rows":
        yield from read_memory(path)
        return
    lines = open_text(path, encoding)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if (kind or kind_of(path)) == "json" and line.lstrip().startswith("["):
            yield from _list_items(path, encoding)
            return
        try:
            row = as_object(where, parse(where, line))
        except UserError as error:
            if bad is None:
                raise
            bad.append(error)
            continue
        yield number, row


def _list_items(path: str | Path, encoding: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON list, numbered from 1."""
    items = parse(str(path), open_whole(path, encoding))
    for number, item in enumerate(items, start=1):
        yield number, as_object(f"{path}, item {number}", item)


def parse(where: str, text: str) -> Any:
    """Parse a line or file of user's JSON data strictly: no NaN, no lone surrogates, no NUL, no unlimited nesting."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if "\n" in text else ""
        hint = " Is it JSONL, with one JSON object per line?" if text.strip() in "{[" else ""
        raise UserError(f"{where}{line}: not JSON: {error.msg} at character {error.colno}.{hint}") from error
    except (ValueError, RecursionError) as error:  # NaN, a number of thousands of digits, nesting too deep
        raise UserError(f"{where}: not valid JSON: {error}.") from error
    if _BAD_ESCAPE.search(text):
        _check_strings(where, value)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _check_strings(where: str, value: Any) -> None:
    """Refuse JSON whose strings, at any depth, are not text."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            check_text(where, item)
        elif isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())


def check_text(where: str, text: str) -> str:
    """The text of a JSON row, unless it has a NUL or half a surrogate pair, which no file can take."""
    if "\0" in text:
        raise UserError(f"{where}: the text contains a NUL character. Remove it.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise UserError(f"{where}: {half} is half of a surrogate pair, not a character. Correct the text.") from error
    return text


def as_object(where: str, value: Any) -> dict[str, Any]:
    """The value of a JSON row, if it is an object."""
    if not isinstance(value, dict):
        raise UserError(f'{where}: expected an object such as {{"text": …}}, got {short(value)}.')
    return value


def field(where: str, row: dict[str, Any], *names: str) -> Any:
    """The value of a JSON row under the first of `names` that it has."""
    for name in names:
        if name in row:
            return row[name]
    raise UserError(f"{where}: there is no {names[0]!r}. {suggest(names[0], list(row) or ['nothing'])}")


def string(where: str, row: dict[str, Any], *names: str) -> str:
    """The string of a JSON row under the first of `names` that it has."""
    value = field(where, row, *names)
    if not isinstance(value, str):
        raise UserError(f"{where}: {names[0]!r} is {short(value)}; it must be text in quotes.")
    return value


def strings(where: str, row: dict[str, Any], *names: str) -> tuple[str, ...]:
    """The list of strings of a JSON row under the first of `names` that it has.

    Numbers become their strings.
    """
    value = field(where, row, *names)
    if not isinstance(value, list):
        raise UserError(f"{where}: {names[0]!r} is {short(value)}; it must be a list of texts.")
    return tuple(scalar(f"{where}: {names[0]!r}", item) for item in value)


def scalar(where: str, value: Any) -> str:
    """A value of a JSON row as text: a string as it is; numbers and true/false as the file spells them."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise UserError(f"{where}: expected text or a number, got {short(value)}.")


def short(value: Any) -> str:
    """A JSON value shortened for an error message of a reader."""
    spelled = (
        repr(value) if not isinstance(value, (dict, list)) else json.dumps(value, ensure_ascii=False, default=repr)
    )
    return "null" if value is None else spelled if len(spelled) <= 60 else spelled[:57] + "…"
