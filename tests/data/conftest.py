"""Files of a test's own."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def put(tmp_path: Path) -> Any:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        return path

    return write
