"""JSON files of model folders, read with messages that name file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertkit.errors import DamagedFile, UserError


def read_json(path: Path, kind: type = dict) -> Any:
    """A JSON object (or, with `kind` list, an array) from a file."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent}: this folder contains no {path.name}. Is it a model folder?") from None
    except OSError as reason:
        raise DamagedFile(f"{path}: cannot be read ({reason.strerror}). Copy or download it again.") from None
    except UnicodeDecodeError:
        raise DamagedFile(f"{path}: not UTF-8 text. Copy or download it again.") from None
    except json.JSONDecodeError as reason:
        raise DamagedFile(
            f"{path}, line {reason.lineno}: not JSON ({reason.msg}). Copy or download it again."
        ) from None
    except RecursionError:
        raise DamagedFile(f"{path}: nested too deeply. Copy or download it again.") from None
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else "a list"
        raise DamagedFile(f"{path}: holds a {type(value).__name__}, not {wanted}. Copy or download it again.")
    return value


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
