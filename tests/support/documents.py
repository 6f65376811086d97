"""Documents with ids and columns, for indexes that grow and are filtered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def rows(first: int, last: int, text: Callable[[int], str]) -> list[dict[str, Any]]:
    """Documents d`first` to d`last` (exclusive) with a year and a language. text: what number n says."""
    return [
        {"id": f"d{n}", "text": text(n), "year": 2000 + n, "lang": "zh" if n % 2 else "en"} for n in range(first, last)
    ]


def write(path: Path, given: Iterable[dict[str, Any]]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in given), "utf-8")
    return path
