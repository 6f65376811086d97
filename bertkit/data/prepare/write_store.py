"""A store being written: files that only grow, and a journal of how much of them is valid.

Everything is in `<store>.partial`. What a killed process wrote after its last entry is removed when the next one
continues; at the end the folder is renamed, so that a store under its final name is always complete.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertkit.data.prepare.pieces import Arrays
from bertkit.data.store import FACTS, partial_of
from bertkit.errors import UserError
from bertkit.files import atomic, manifest
from bertkit.files.lock import claim
from bertkit.notify import note

JOURNAL = "journal.json"
DIGESTS = "digests.bin"
GROWING = ("tokens.bin", "words.bin", "sentences.bin", "documents.bin", DIGESTS)


@dataclass
class StoreProgress:
    """How far a store has been written.

    file, document: how many input files, and documents of the next one, are done. read: what the reader counted so
    far. found: what the workers counted so far. sizes: bytes of each growing file. seconds: time spent.
    """

    file: int = 0
    document: int = 0
    read: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROWING, 0))
    tokens: int = 0
    sentences: int = 0
    seconds: float = 0.0


class StoreWriter:
    """A store being written, by one process at a time: `with StoreWriter(out, job) as writer`.

    job: identifies the command and its inputs; the leftovers of another job are not continued.
    journal_every: seconds of work that a power failure may cost.
    """

    def __init__(self, out: Path, job: str, journal_every: float = 5.0) -> None:
        self.out, self.folder = out, partial_of(out)
        self.job, self.journal_every = job, journal_every
        self.progress = StoreProgress()
        self._handles: dict[str, int] = {}
        self._lock: int | None = None

    def __enter__(self) -> Self:
        if self.out.exists():
            raise UserError(f"{self.out} exists already. Remove it, or choose another name with --out.")
        try:
            with self.explained("cannot be made"):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock_folder()
                self._continue_or_clear()
                for name in GROWING:
                    self._handles[name] = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
                    os.ftruncate(self._handles[name], self.progress.sizes[name])
        except BaseException:
            self._close()
            raise
        self._began = self._noted = time.monotonic()
        if not self.progress.sizes["sentences.bin"]:
            self.progress.sizes = self._append(
                {name: np.zeros(1, np.int64) for name in ("sentences.bin", "documents.bin")}
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.folder.exists():
            if self.progress.read:
                with suppress(OSError, UserError):
                    self.write_journal()
            else:  # nothing has been done yet
                self.discard()
        self._close()

    def digests(self) -> bytes:
        """The digests of all documents that a store being written has so far."""
        return (self.folder / DIGESTS).read_bytes()

    def add(self, arrays: Arrays, digests: bytes, file: int, document: int, read: dict[str, int]) -> None:
        """Append a chunk's arrays to the store. file, document, read: as in `Progress`, at the chunk's end."""
        before = self.progress
        sizes = self._append(
            {
                "tokens.bin": arrays.ids,
                "words.bin": arrays.starts,
                "sentences.bin": before.tokens + np.cumsum(arrays.sentences, dtype=np.int64),
                "documents.bin": before.sentences + np.cumsum(arrays.documents, dtype=np.int64),
                DIGESTS: np.frombuffer(digests, np.uint8),
            }
        )
        found = dict(Counter(before.found) + Counter(arrays.counts))
        tokens, sentences = before.tokens + len(arrays.ids), before.sentences + len(arrays.sentences)
        # In one assignment: an interrupt leaves the whole chunk counted, or nothing of it.
        self.progress = StoreProgress(file, document, read, found, sizes, tokens, sentences, before.seconds)
        if time.monotonic() - self._noted >= self.journal_every:
            self.write_journal()

    def write_journal(self) -> None:
        """Sync the store's files and its journal, so that everything so far survives a crash."""
        self._noted = now = time.monotonic()
        self.progress.seconds += now - self._began
        self._began = now
        with self.explained("cannot be written"):
            for handle in self._handles.values():
                os.fsync(handle)
            self._write(JOURNAL, json.dumps({"job": self.job, "progress": asdict(self.progress)}))

    def finish(self, facts: dict[str, Any], report: str) -> None:
        """Write the report and `store.json`, and give the folder its name."""
        with self.explained("cannot be finished"):
            self._write("report.txt", report)
            paths = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
            # The report has the seconds, so it is left out: equal texts give an equal store.json.
            excluded = (DIGESTS, JOURNAL, FACTS, manifest.MANIFEST, "report.txt")
            files = {
                path.relative_to(self.folder).as_posix(): manifest.facts_of(path)
                for path in paths
                if path.name not in excluded
            }
            self._write(FACTS, json.dumps({**facts, "files": files}, indent=1, ensure_ascii=False) + "\n")
            files[FACTS] = manifest.facts_of(self.folder / FACTS)
            self._write(manifest.MANIFEST, manifest.of_files(files).decode())
            atomic.sync_folder(self.folder)
            self.folder.rename(self.out)
            atomic.sync_folder(self.out.parent)
            # Only now: until the folder has its final name, a restart needs the journal.
            for name in (JOURNAL, DIGESTS):
                (self.out / name).unlink()

    def discard(self) -> None:
        """Remove the store that was left unfinished."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _lock_folder(self) -> None:
        """Refuse to write a store that another process is writing."""
        self._lock = os.open(self.folder, os.O_RDONLY)
        if not claim(self._lock, self.folder):
            raise UserError(
                f"{self.folder} is in use: another `bertkit prepare` is writing it. Wait for it, or choose another "
                "--out."
            )

    def _continue_or_clear(self) -> None:
        """Continue the store from its journal, or clear the folder."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            journal = json.loads((self.folder / JOURNAL).read_bytes())
            progress = StoreProgress(**journal["progress"])
            short = [n for n, size in progress.sizes.items() if (self.folder / n).stat().st_size < size]
            if journal["job"] != self.job:
                note(f"{self.folder} belongs to a different command, or its input has changed; starting over.")
            elif not short:
                self.progress = progress
                note(f"{self.folder}: continuing after {progress.read.get('documents', 0):,} documents.")
                return
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _append(self, parts: dict[str, np.ndarray]) -> dict[str, int]:
        """Append arrays to the store's files. Returns their sizes afterwards."""
        needed = sum(part.nbytes for part in parts.values())
        with self.explained(f"could not store {needed:,} more bytes"):
            for name, part in parts.items():
                remaining = memoryview(part.tobytes())
                while len(remaining):
                    remaining = remaining[os.write(self._handles[name], remaining) :]
        sizes = self.progress.sizes
        return sizes | {name: sizes[name] + part.nbytes for name, part in parts.items()}

    def _write(self, name: str, text: str) -> None:
        """Write a small file of the store completely or not at all."""
        draft = self.folder / f".{name}.new"
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.folder / name)

    def explained(self, what: str) -> AbstractContextManager[None]:
        """Turn disk errors while a store is written into messages. what: what failed, e.g. "cannot be written"."""
        return atomic.explained(f"{self.folder} {what}", self._nothing_is_lost)

    def _nothing_is_lost(self) -> str:
        free = ""
        with suppress(OSError):
            free = f"{atomic.calls.free_bytes(self.folder):,} bytes are free. "
        return f"{free}Nothing is lost: run the same command again, and it continues where it stopped."

    def _close(self) -> None:
        for handle in [*self._handles.values(), *([] if self._lock is None else [self._lock])]:
            with suppress(OSError):
                os.close(handle)
        self._handles, self._lock = {}, None
