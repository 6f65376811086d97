"""Multiple choice and minimal pairs: both are JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from bertkit.data.examples import Choice, MinimalPair
from bertkit.data.readers.json import read_objects, scalar, short, string, strings
from bertkit.errors import UserError
from bertkit.files.open import kind_of


def read_choices(
    path: str | Path, *, labelled: bool | Literal["maybe"] = True, encoding: str = "utf-8", kind: str | None = None
) -> Iterator[Choice]:
    """Each row of a JSONL file {"text", "choices": […], "label": index from 0}."""
    found = False
    for line, row in read_objects(path, encoding, kind):
        where = f"{path}, line {line}"
        choices = strings(where, row, "choices")
        if len(choices) < 2:
            raise UserError(f"{where}: {len(choices)} choices; there must be at least two.")
        label = _index(where, row.get("label"), len(choices), needed=labelled is True) if labelled else None
        found = True
        yield Choice(string(where, row, "text"), choices, label, line)
    if not found:
        raise UserError(f"{path} contains no rows.")


def _index(where: str, value: Any, count: int, needed: bool) -> int | None:
    if value is None and not needed:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:9])
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        fix = f"but it must be a number from 0 to {count - 1}: the index of the right choice."
        raise UserError(f"{where}: 'label' is {short(value)}, {fix}")
    return value


def read_minimal_pairs(path: str | Path, *, encoding: str = "utf-8") -> Iterator[MinimalPair]:
    """Each pair {"sentence_good", "sentence_bad"} of a JSONL file, or of all JSONL files of a folder (by name)."""
    files = [Path(path)]
    if files[0].is_dir():
        files = sorted(file for file in files[0].rglob("*") if kind_of(file) == "jsonl" and file.is_file())
        if not files:
            raise UserError(f"{path}: this folder contains no .jsonl file.")
    for file in files:
        found = False
        stem = file.name.split(".")[0]
        for line, row in read_objects(file, encoding):
            where = f"{file}, line {line}"
            good, bad = string(where, row, "sentence_good"), string(where, row, "sentence_bad")
            group = scalar(f"{where}: 'UID'", row["UID"]) if row.get("UID") is not None else stem
            found = True
            yield MinimalPair(good, bad, group, line)
        if not found:
            raise UserError(f"{file} contains no pairs.")
