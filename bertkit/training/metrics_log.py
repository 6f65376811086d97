"""`metrics.jsonl`: one JSON object per line, appended while training, truncated to the checkpoint on resume.

JSON has no NaN and no infinities, so they are written as the strings "NaN", "Infinity" and "-Infinity":
Python's `float` and JavaScript's `Number` convert them back. `read_metrics` does so too, also for a text value
of the same spelling.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from bertkit.errors import DamagedFile, UserError
from bertkit.files import atomic
from bertkit.notify import note

NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class MetricsLog:
    """The metrics file of a run, open for appending. A row that a crash cut short is dropped with a note."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with atomic.explained(f"{path} could not be opened"):
            atomic.make_folder(path.parent)
            is_new = not path.exists()
            self._handle = atomic.calls.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            if is_new:
                atomic.sync_folder(path.parent)
        self._drop_torn_row()

    def write(self, row: dict[str, Any]) -> None:
        """Append one row to the metrics: readers see it at once, and it survives if the process is killed."""
        line = json.dumps(_legal(row), allow_nan=False).encode() + b"\n"
        with atomic.explained(f"{self.path}: a row could not be written"):
            before = self._size()
            try:
                atomic.write_all(self._handle, line)
            except OSError:
                os.ftruncate(self._handle, before)  # no half row before the next one
                raise

    def position(self) -> int:
        """The length of the metrics file in bytes, synced to disk first: what a checkpoint stores."""
        with atomic.explained(f"{self.path} could not be synced"):
            atomic.calls.fsync(self._handle)
        return self._size()

    def truncate(self, position: int) -> None:
        """Remove the rows of metrics after `position`: those of steps after the checkpoint that is resumed."""
        size = self._size()
        if size < position:
            note(
                f"{self.path} has {size:,} bytes, and had {position:,} when the checkpoint was saved: "
                "rows were removed in the meantime. Training continues, and so does the log, from its present end."
            )
            return
        with atomic.explained(f"{self.path} could not be cut back"):
            os.ftruncate(self._handle, position)
        self._drop_torn_row()

    def close(self) -> None:
        """Close the metrics file; closing again does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _size(self) -> int:
        return os.fstat(self._handle).st_size

    def _drop_torn_row(self) -> None:
        """Cut off a last row of metrics.jsonl that a crash left incomplete."""
        size = end = self._size()
        tail = b""
        while end and b"\n" not in tail:
            begin = max(0, end - (1 << 16))
            tail, end = os.pread(self._handle, end - begin, begin), begin
        complete = end + tail.rfind(b"\n") + 1
        if complete < size:
            os.ftruncate(self._handle, complete)
            note(f"{self.path}: the last row was cut short, and its {size - complete} bytes are dropped.")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All rows of a metrics file, also while it is being written: an incomplete last line is left out."""
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Name a run folder that has been trained in."
        ) from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break  # After a power cut the last blocks may have their length but not their content.
            raise DamagedFile(
                f"{path}, line {number} is not a JSON object: {error}. Remove or correct the line."
            ) from error
        rows.append(_numbers_again(row))
    return rows


def _legal(value: Any) -> Any:
    """A row's values as JSON allows them: NaN and infinity become names."""
    if isinstance(value, dict):
        return {key: _legal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_legal(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if hasattr(value, "item"):  # a number of numpy or torch
        return _legal(value.item())
    return value


def _numbers_again(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers_again(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers_again(item) for item in value]
    return NUMBERS.get(value, value) if isinstance(value, str) else value
