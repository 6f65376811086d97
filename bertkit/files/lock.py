"""One training process per run folder: a second one is refused, and a dead one holds no lock."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import weakref
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Self

from bertkit.errors import UserError
from bertkit.files import atomic
from bertkit.notify import note


def claim(handle: int, path: Path) -> bool:
    """Lock an open file or folder for this process; False if another process has locked it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        note(
            f"{path}: this filesystem does not support file locks ({error.strerror}). Make sure no other process "
            "writes here."
        )
    return True


class RunLock:
    """Hold `<run>/.lock` while training in it: `with RunLock(folder): …`. Readers need no lock.

    The kernel releases it when the process ends, however it ends, so a leftover file means nothing.
    Under torchrun, only the first process takes it.
    """

    def __init__(self, folder: Path, doing: str = "training in") -> None:
        self.path, self.doing = folder / ".lock", doing
        self._handle: int | None = None

    def __enter__(self) -> Self:
        with atomic.explained(f"{self.path} could not be opened"):
            atomic.make_folder(self.path.parent)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        if not claim(handle, self.path):
            holder = _holder(handle)
            os.close(handle)
            raise UserError(
                f"{self.path.parent} is in use: {holder} is {self.doing} it. Wait for it, stop it, or choose another "
                "folder."
            )
        facts = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now().astimezone().isoformat("T", "seconds"),
        }
        with suppress(OSError):  # the name helps a second trainer; the lock itself holds without it
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(facts).encode(), 0)
        self._handle = handle
        _held.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        # The file stays: removing it could take it from under a trainer that opened it just now.
        if self._handle is not None:
            with suppress(OSError):
                os.ftruncate(self._handle, 0)
            self._let_go()

    def _let_go(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked loader worker shares the lock, and would hold it on for a trainer that was killed.
    for lock in list(_held):
        lock._let_go()
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _holder(handle: int) -> str:
    """Which process holds the lock, as far as the lock file tells."""
    try:
        facts = json.loads(os.pread(handle, 4096, 0))
        return f"process {facts['pid']} on {facts['host']}, since {facts['since']},"
    except (ValueError, KeyError, TypeError):
        return "another process"
