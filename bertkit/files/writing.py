"""New folders, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bertkit.files.atomic import check_new_folder, write_folder


def write_new(out: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` fill a folder that becomes `out` when it is complete; refuse to write over anything."""
    check_new_folder(out)
    there = out.exists()
    try:
        write_folder(out, fill)
    except BaseException:
        if not there:
            with suppress(OSError):  # nothing but an empty folder was made so far
                out.rmdir()
        raise
