"""Files as users have them, some of them damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support import folders

FIXTURES = Path(__file__).parents[1] / "fixtures" / "google" / "bert"


def latin(folder: Path) -> Path:
    (folder / "rows.csv").write_bytes("text\ncafé crème\n".encode("latin-1"))
    return folder / "rows.csv"


def written(folder: Path, name: str, content: str | bytes) -> Path:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def copied(model: Path, folder: Path, **config) -> Path:
    shutil.copytree(model, folder / "copy")
    if config:
        folders.change(folder / "copy", **config)
    return folder / "copy"


def torn(model: Path, folder: Path) -> Path:
    path = copied(model, folder) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return path.parent


def torn_google(folder: Path) -> Path:
    shutil.copytree(FIXTURES, folder / "google")
    data = next((folder / "google").glob("*.data-*"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    return folder / "google"
