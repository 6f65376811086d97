"""Outputs kept as files: what a command, a page or a short run gave when it was last looked at.

BERTKIT_WRITE_SNAPSHOTS=1 writes them again; look at the difference before it is committed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

EXPECTED = Path(__file__).parents[1] / "snapshots" / "expected"


def is_writing() -> bool:
    """Whether this run writes the files instead of comparing with them."""
    return os.environ.get("BERTKIT_WRITE_SNAPSHOTS", "") not in ("", "0")


def same_text(name: str, text: str) -> None:
    """The text is that of the file, to the last character."""
    path = EXPECTED / name
    if is_writing():
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8"), f"{name} is not what it was"


def same_rows(name: str, rows: list[dict[str, Any]]) -> None:
    """The rows are those of the file; numbers agree to about four digits, which every CPU keeps to."""
    path = EXPECTED / name
    short = [{key: _short(value) for key, value in row.items()} for row in rows]
    if is_writing():
        path.write_text("".join(json.dumps(row) + "\n" for row in short), "utf-8")
    wanted = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [list(row) for row in short] == [list(row) for row in wanted]
    for row, other in zip(short, wanted, strict=True):
        for key, value in row.items():
            expected = pytest.approx(other[key], rel=1e-3) if isinstance(value, float) else other[key]
            assert value == expected, f"{name}, step {row.get('step')}: {key}"


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
