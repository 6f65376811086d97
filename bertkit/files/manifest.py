"""The manifest of a folder (size and SHA-256 of every file that decides an answer), and the one way to open a folder.

Model folders, indexes, token stores, exported folders, folders of ancestors and checkpoints carry the same
`MANIFEST.json`. A folder without one (from transformers, or of an early version) is opened as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar

from bertkit.errors import DamagedFile, Stopped, UserError
from bertkit.files.guarded import open_regular, parse_json, read_bytes

MANIFEST = "MANIFEST.json"
FORMAT = 1
# For people, or a log: nobody is answered by what is in them, and people edit them.
NOT_LISTED = ("README.md", "report.html", "report.txt", "result.json", "run.toml", "metrics.jsonl", "timing.jsonl")
BLOCK = 1 << 20
SWAP = ".swap-model"  # a folder that is complete, and whose files are being moved into place (atomic.py)
Result = TypeVar("Result")
Entries: TypeAlias = dict[str, dict[str, Any]]


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest file, with a seal (a digest of its content)."""
    seal = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps({**manifest, "seal": seal}, sort_keys=True, indent=1).encode()


def unsealed(raw: bytes) -> dict[str, Any]:
    """The content of a manifest file; ValueError unless its seal fits every byte."""
    try:
        manifest = parse_json(raw.decode(), MANIFEST)
    except DamagedFile as reason:
        raise ValueError(str(reason)) from None
    if not isinstance(manifest, dict) or manifest.pop("seal", None) is None or sealed({**manifest}) != raw:
        raise ValueError("its checksum does not match its content")
    return manifest


def of_files(entries: Entries) -> bytes:
    """The manifest of a folder with these files: their sizes and SHA-256."""
    return sealed({"format": FORMAT, "files": entries})


def describe(folder: Path) -> Entries:
    """Size and SHA-256 of every file below a folder that its manifest lists."""
    listed = [path for path in sorted(folder.rglob("*")) if path.is_file() and is_listed(path.relative_to(folder))]
    return {path.relative_to(folder).as_posix(): facts_of(path) for path in listed}


def is_listed(name: PurePosixPath | Path) -> bool:
    """Whether a manifest lists a file with this name, relative to the folder. Hidden files are ours for a moment."""
    return name.name not in (*NOT_LISTED, MANIFEST) and not any(part.startswith(".") for part in name.parts)


def facts_of(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, as a manifest holds them."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        return {"bytes": size, "sha256": digest_of(file.fileno())}


def digest_of(handle: int) -> str:
    """SHA-256 of an open file in hex, as a manifest holds it."""
    digest = hashlib.sha256()
    for block in blocks(handle):
        digest.update(block)
    return digest.hexdigest()


def blocks(handle: int) -> Iterator[bytes]:
    """The bytes of an open file from its beginning, for a manifest's digest; the position in it stays."""
    offset = 0
    while block := os.pread(handle, BLOCK, offset):
        yield block
        offset += len(block)


def read_manifest(folder: Path) -> Entries | None:
    """What a folder's manifest lists; None without one."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return None
    raw = read_bytes(path)
    try:
        manifest = unsealed(raw)
        if manifest["format"] != FORMAT:
            raise DamagedFile(f"{path}: has format {manifest['format']!r:.20}; this version of bertkit reads {FORMAT}.")
        entries = {str(name): {"bytes": int(row["bytes"]), "sha256": str(row["sha256"])}
                   for name, row in manifest["files"].items()}  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedFile(f"{path} is damaged: its checksum does not match its content. {_fix(folder)}") from None
    _refuse_outside(folder, entries)
    return entries


def _refuse_outside(folder: Path, entries: Entries) -> None:
    """Refuse a manifest that lists a file outside its folder."""
    for name in entries:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
            raise DamagedFile(f"{folder}: lists {name!r:.80}, which is outside the folder, so it was not opened.")


def accept(folder: Path) -> int:
    """Write the manifest of a folder's listed files as they are now. Returns how many; 0 where nothing is listed."""
    from bertkit.files.atomic import atomic_write  # which writes manifests

    count = 0
    for path in sorted(folder.rglob(MANIFEST)):
        if not set(path.relative_to(folder).parts) & {"checkpoints", SWAP}:  # checkpoints are never changed by hand
            entries = {name: facts_of(path.parent / name) for name in _names(path) if (path.parent / name).is_file()}
            atomic_write(path, of_files(entries))
            count = max(count, len(entries))
    return count


def _names(path: Path) -> list[str]:
    """The files that a manifest lists; if it is damaged, all files beside and below it that one would list."""
    try:
        return list(read_manifest(path.parent) or {})
    except DamagedFile:
        below = [file.relative_to(path.parent) for file in sorted(path.parent.rglob("*")) if file.is_file()]
        return [name.as_posix() for name in below if is_listed(name) and name.parts[0] != "checkpoints"]


def check(folder: Path, entries: Entries, contents: bool = True) -> None:
    """Refuse a folder where a file its manifest lists is missing or changed.

    contents: compare SHA-256, not sizes alone.
    """
    _refuse_outside(folder, entries)
    for name, facts in entries.items():
        path = folder / name
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != facts["bytes"]:
                    raise _damage(folder, name, f"it has {size:,} bytes instead of {facts['bytes']:,}")
                if contents and digest_of(file.fileno()) != facts["sha256"]:
                    raise _damage(folder, name, f"its SHA-256 is not the one in {MANIFEST}")
        except FileNotFoundError:
            raise DamagedFile(f"{path} is missing, but {MANIFEST} lists it. {_fix(folder)}") from None
        except OSError as reason:
            raise DamagedFile(f"{path}: cannot be read ({reason.strerror}). {_fix(folder)}") from None


def _damage(folder: Path, name: str, reason: str) -> DamagedFile:
    return DamagedFile(f"{folder / name} is damaged or was changed: {reason}. {_fix(folder)}")


def _fix(folder: Path) -> str:
    return (
        "Make it again, or restore the folder from a backup. If you changed it on purpose, accept its files as "
        f"they are now: bertkit doctor {folder} --accept"
    )


# ---- Opening a folder

READS, PAUSE = 40, 0.05
PATIENT = 10  # reads that may be disturbed; from then on, writers have to wait for the reader
# Folders that are open and compared with their manifests, which list the files of folders inside them too.
_checked: ContextVar[tuple[Path, ...]] = ContextVar("checked", default=())
_held: ContextVar[tuple[Path, ...]] = ContextVar("held", default=())  # folders whose writers wait


def read_whole(folder: Path, read: Callable[[], Result], *, verify: bool = True, what: str = "folder") -> Result:
    """What `read` makes of a folder with a manifest, seen as it was before a write or after it, never between.

    Every file is first compared with the manifest, if there is one (verify: by SHA-256, else by size). When a writer
    changed the folder meanwhile, everything is done again. Whatever `read` stumbles over in the files is a
    DamagedFile. what: the kind of folder, for that message.
    """
    is_mended = True
    for attempt in range(READS):
        with _still(folder) if attempt >= PATIENT and is_mended else nullcontext():
            is_mended = _is_mended(folder)
            before = _mark(folder)
            try:
                if is_mended:
                    with reading(folder, verify=verify, what=what):
                        result = read()
            except UserError:
                if _mark(folder) == before:
                    raise
                continue
            if is_mended and _mark(folder) == before:
                return result
        time.sleep(PAUSE)
    raise UserError(
        f"{folder} is being written, or was left half-written and cannot be finished without write permission. Try "
        f"again later, or let its owner run: bertkit doctor {folder}"
    )


@contextmanager
def reading(folder: Path, *, verify: bool = True, what: str = "folder") -> Iterator[None]:
    """Read a folder with a manifest in a block that cannot be repeated: a folder replaced meanwhile is refused."""
    outer = _checked.get()
    token = _checked.set(outer)
    try:
        if not any(folder == parent or parent in folder.parents for parent in outer):
            _is_mended(folder)
            before = _mark(folder)
            if (entries := read_manifest(folder)) is not None:
                _checked.set((*outer, folder))
                check(folder, entries, verify)
            yield
            if _mark(folder) != before:
                raise UserError(f"{folder} was replaced while it was read. Open it again.")
        else:
            yield
    except (UserError, Stopped, ModuleNotFoundError):
        raise
    except FileNotFoundError as problem:
        missing = Path(problem.filename).name if problem.filename else "a file"
        raise UserError(f"{folder} holds no {what}: {missing} is missing.") from problem
    except MemoryError as problem:
        raise UserError(f"{folder}: the {what} does not fit into the memory of this machine.") from problem
    except Exception as problem:
        reason = f"{problem} is missing" if isinstance(problem, KeyError) else str(problem) or type(problem).__name__
        raise DamagedFile(
            f"{folder}: the {what} is damaged ({reason.splitlines()[0]:.300}). Copy it again, or make it again."
        ) from problem
    finally:
        _checked.reset(token)


@contextmanager
def _still(folder: Path) -> Iterator[None]:
    """Writers of a folder wait until the block ends: they may prepare, but move nothing."""
    from bertkit.files.atomic import alone, finish_write  # which writes manifests

    if folder in _held.get():
        yield
        return
    with alone(folder):
        finish_write(folder)
        token = _held.set((*_held.get(), folder))
        try:
            yield
        finally:
            _held.reset(token)


def _is_mended(folder: Path) -> bool:
    """Whether no write to a folder with a manifest is left half done, after finishing one if possible."""
    from bertkit.files.atomic import mend_folder  # which writes manifests

    if folder in _held.get():
        return True  # what has been prepared since is for after the block
    try:
        mend_folder(folder)
    except DamagedFile:
        raise
    except UserError:
        return False
    return True


def _mark(folder: Path) -> tuple[int, ...]:
    """What differs after every write to a folder with a manifest."""
    marks: list[int] = []
    for name in (MANIFEST,) if folder in _held.get() else (MANIFEST, SWAP):
        try:
            facts = (folder / name).lstat()
            marks += [facts.st_ino, facts.st_mtime_ns, facts.st_size]
        except OSError:
            marks += [0]
    return tuple(marks)
