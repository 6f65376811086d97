"""Files and folders that are complete or absent, even after a crash or power failure.

Everything is first made in a staging folder `.tmp-<pid>-<label>`, synced, and only then renamed to its
name. Every call that changes the disk goes through `calls`: tests stop, fail or record each one there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Protocol, TypeVar, cast

from bertkit.errors import DamagedFile, UserError
from bertkit.files import manifest
from bertkit.files.manifest import MANIFEST, SWAP
from bertkit.files.open import COMPRESSIONS, kind_of
from bertkit.notify import note

calls = SimpleNamespace(
    mkdir=os.mkdir,
    open=os.open,
    write=os.write,
    fsync=os.fsync,
    rename=os.replace,
    unlink=os.unlink,
    rmdir=os.rmdir,
    free_bytes=lambda folder: shutil.disk_usage(folder).free,
)
CHUNK = 1 << 24
MEND_TRIES = 250
FIXES = {
    errno.ENOSPC: "Free some space on this disk, or choose a folder on another disk.",
    errno.EDQUOT: "Your quota on this disk is used up: free some space, or choose a folder on another disk.",
    errno.EFBIG: "The file is larger than the limit allows: raise it (ulimit -f), or choose a folder on another disk.",
    errno.EACCES: "Choose a folder you can write to, or get write permission for this one.",
    errno.EPERM: "Choose a folder you can write to, or get write permission for this one.",
    errno.EROFS: "This disk is mounted read-only: choose a folder on another disk.",
    errno.ENOTDIR: "A file is where a folder is needed: choose another name for the folder.",
    errno.EEXIST: "A file is where a folder is needed: choose another name for the folder.",
    errno.EIO: "The disk reports an error: check it, and use a folder on another disk meanwhile.",
}


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path`: after a crash at any moment, it has the old or the new content."""
    content = data.encode() if isinstance(data, str) else data
    with explained(f"{path} could not be written"):
        sweep(path.parent, re.escape(path.name))
        with staged(path.parent, path.name) as staging:
            write_file(staging / path.name, [content])
            calls.rename(staging / path.name, path)
            sync_folder(path.parent)


def write_folder(
    target: Path, write: Callable[[Path], None], *, add: bool = False, without: Callable[[], Iterable[str]] = tuple
) -> None:
    """Let `write` fill an empty folder, then move its files into `target`; other files of `target` are kept.

    The guarantee: until everything is written and synced, `target` is untouched. Then one rename decides: from that
    moment the new content is what `read_whole` gives, and whoever opens the folder finishes the move if the writer
    could not (`mend_folder`). The files go into place one by one, `config.json` next to last, so that a program that
    knows nothing of this does not take a new folder for a model before it is complete; the manifest goes last. Files
    that the manifest before listed and the new one does not are removed: they belong to what was replaced.

    add: the files join those listed before, and none is removed but those below the folders that `without` names
    when everything is written.
    """
    with explained(f"{target} could not be written"):
        make_folder(target)
        mend_folder(target)
        sweep(target, "model")
        with staged(target, "model") as staging:
            write(staging)
            (staging / MANIFEST).unlink(missing_ok=True)  # copied with the files of another folder
            before = (manifest.read_manifest(target) or {}) if add else {}
            gone = tuple(f"{name}/" for name in without())
            before = {name: facts for name, facts in before.items() if not name.startswith(gone)} if gone else before
            write_file(staging / MANIFEST, [manifest.of_files(before | manifest.describe(staging))])
            for folder, _, files in os.walk(staging):
                for name in files:
                    sync_folder(Path(folder, name))
                sync_folder(Path(folder))
            calls.rename(staging, target / SWAP)
            sync_folder(target)
        mend_folder(target)


def mend_folder(target: Path) -> bool:
    """Finish an interrupted `write_folder`. Returns whether there was one; costs one lookup if not."""
    swap = target / SWAP
    if not swap.is_dir() or swap.is_symlink():
        return False
    with explained(f"{target} was left half-written, and finishing it failed"), alone(target):
        _finish(target, swap)
    return True


def finish_write(target: Path) -> None:
    """As `mend_folder`, for whoever is alone in the folder already."""
    if (swap := target / SWAP).is_dir() and not swap.is_symlink():
        with explained(f"{target} was left half-written, and finishing it failed"):
            _finish(target, swap)


def _finish(target: Path, swap: Path) -> None:
    """Move the files of an interrupted write to their places."""
    files = [Path(folder, name).relative_to(swap) for folder, _, names in os.walk(swap) for name in names]
    last = [Path(MANIFEST)] if Path(MANIFEST) in files else []
    for name in sorted(set(files) - set(last), key=lambda name: (name == Path("config.json"), name)):
        make_folder(_inside(target, name).parent)
        _move(swap / name, target / name)
    for name in _replaced(target, swap) if last else []:
        with suppress(FileNotFoundError):
            calls.unlink(_inside(target, name))
    for folder in {(target / name).parent for name in files} | {target}:
        sync_folder(folder)
    for name in last:
        _move(swap / name, target / name)
        sync_folder(target)
    for empty, _, _ in os.walk(swap, topdown=False):
        # Not `remove`: a writer may have put its next files there meanwhile, and they must be moved, not lost.
        try:
            calls.rmdir(empty)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """One process at a time mends an atomic write that was cut off: a slow one must not remove a later write."""
    handle = os.open(target, os.O_RDONLY)
    try:
        for _ in range(MEND_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break  # some network disks know no locks
        else:
            raise UserError(f"{target} is being written by another process. Try again when it has finished.")
        yield
    finally:
        os.close(handle)


def _move(source: Path, target: Path) -> None:
    # Whoever opens the folder meanwhile mends it too, and may have moved this file already.
    with suppress(FileNotFoundError):
        calls.rename(source, target)


def _inside(target: Path, name: Path) -> Path:
    """The place of a file of a folder being mended, unless a link on the way leads out of it."""
    place = target / name
    if not place.parent.resolve().is_relative_to(target.resolve()):
        raise DamagedFile(f"{place.parent} leads out of {target}, so {name} was not touched. Remove the link.")
    return place


def _replaced(target: Path, swap: Path) -> list[Path]:
    """What the manifest in `target` lists and the one in `swap` does not: files that an interrupted write replaces."""
    try:
        before, after = manifest.read_manifest(target), manifest.read_manifest(swap)
    except UserError:
        return []
    return [Path(name) for name in before if name not in after] if before and after is not None else []


@contextmanager
def staged(parent: Path, label: str) -> Iterator[Path]:
    """An empty folder `.tmp-<pid>-<label>` to write in, inside `parent`; removed at the end unless it was renamed."""
    path = parent / f".tmp-{os.getpid()}-{label}"
    calls.mkdir(path)
    handle = calls.open(path, os.O_RDONLY)
    try:
        # Tells `sweep` that the maker is alive: the kernel drops the claim with the process, and a process
        # number that is used again cannot deceive it. Some network disks know no locks; RunLock guards there.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    finally:
        os.close(handle)
        if path.exists():
            _clear(path)


def sweep(parent: Path, label: str) -> None:
    """Remove the staging and discarded folders that interrupted writes of dead processes left.

    `label`: a pattern.
    """
    leftover = re.compile(rf"\.(tmp|old)-\d+-{label}")
    for path in sorted(parent.iterdir()):
        if leftover.fullmatch(path.name) and not _is_claimed(path):
            _clear(path)


def _clear(path: Path) -> None:
    try:
        remove(path)
    except OSError as error:
        note(f"{path} could not be removed ({error.strerror}); the next save tries again.")


def _is_claimed(path: Path) -> bool:
    """Whether a process that is alive writes this draft."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[str, int]:
    """Write a new file atomically and sync it to the disk. chunks: its bytes, in order. Returns (SHA-256, bytes)."""
    digest, size = hashlib.sha256(), 0
    handle = calls.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            write_all(handle, chunk)
        calls.fsync(handle)
    finally:
        os.close(handle)
    return digest.hexdigest(), size


def write_all(handle: int, content: bytes | memoryview) -> None:
    """Write every byte to a file descriptor: one system call may take only a part."""
    rest = memoryview(content)
    while len(rest):
        rest = rest[calls.write(handle, rest[:CHUNK]) :]


def sync_folder(path: Path) -> None:
    """Sync a folder (or a file), so that the names in it survive a power failure."""
    handle = calls.open(path, os.O_RDONLY)
    try:
        calls.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, each name synced to the disk."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        calls.mkdir(path)
    except FileExistsError:
        if not path.is_dir():
            raise
    sync_folder(path.parent)


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be made or written, before long work starts. Changes nothing."""
    with explained(f"{path} cannot be written to"):
        nearest = next(folder for folder in (path, *path.absolute().parents) if os.path.lexists(folder))
        if not nearest.is_dir():
            raise OSError(errno.ENOTDIR, str(nearest))
        if not os.access(nearest, os.W_OK | os.X_OK):
            is_read_only = os.statvfs(nearest).f_flag & os.ST_RDONLY
            raise OSError(errno.EROFS if is_read_only else errno.EACCES, str(nearest))


def check_new_folder(path: Path) -> None:
    """Refuse a folder that cannot be made or written, or that exists and is not empty. Changes nothing."""
    if path.is_dir() and any(path.iterdir()):
        raise UserError(f"{path} exists and is not empty. Choose another folder, or empty it.")
    check_folder(path)


def remove(path: Path) -> None:
    """Remove a file, or a folder with everything in it, by calls that the crash tests can watch."""
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            remove(child)
        calls.rmdir(path)
    else:
        calls.unlink(path)


@contextmanager
def explained(what: str, hint: Callable[[], str] = str) -> Iterator[None]:
    """Turn disk errors while a folder is written into a UserError: what, why, and the fix. hint: adds a sentence."""
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number is None:
            raise
        more = ""
        with suppress(OSError):
            more = hint()
        words = [f"{what}: {os.strerror(number)}.", more, FIXES.get(number, f"({error})")]
        raise UserError(" ".join(filter(None, words))) from error


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    # The safetensors library wraps what the system said into its own text: "… (os error 28)".
    match = re.search(r"os error (\d+)", str(error)) if type(error).__name__ == "SafetensorError" else None
    return int(match[1]) if match else None


def require_space(folder: Path, needed: int) -> None:
    """Refuse before writing if the disk of `folder` does not have `needed` bytes free."""
    free = calls.free_bytes(folder)
    if free < needed:
        raise UserError(
            f"{folder}: saving needs {needed:,} bytes and {free:,} are free. {FIXES[errno.ENOSPC]} "
            "Nothing was written, and existing checkpoints are untouched."
        )


# ---- New folders, whole or not at all.


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


# ---- A file that is whole or not there at all: the temporary name, the sync and the rename in one place.


@contextmanager
def open_new(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary file, compressed by its ending, that appears when the block ends without an error."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder, but a file name is needed. Add a file name.")
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Devices and pipes cannot be renamed onto.
        special = path.exists() and not path.is_file()
        draft = path if special else path.with_name(f".{path.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        raw = draft.open("wb")
    try:
        packed = _packed(path, raw)
        yield packed
        with write_errors(path):
            if packed is not raw:
                packed.close()
            raw.flush()
            if not special:
                os.fsync(raw.fileno())
            raw.close()
            if not special:
                draft.replace(path)
                sync_folder(path.parent)
    finally:
        with suppress(OSError):  # a full disk says so a second time at closing
            raw.close()
        if not special:
            draft.unlink(missing_ok=True)


def not_the_input(out: str | Path | None, *sources: str | Path | None) -> None:
    """Refuse to overwrite the input file; links are followed."""
    for source in sources:
        if out and source and Path(out).is_file() and Path(source).is_file() and Path(out).samefile(source):
            raise UserError(f"--out {out} is also the input file. Choose another name.")


class Closes(Protocol):
    """A writer of one format."""

    def close(self) -> None:
        """Write what is left of the file."""


Writer = TypeVar("Writer", bound=Closes)


@contextmanager
def open_writer_of(kind: Callable[[IO[bytes], str], Writer], path: str | Path) -> Iterator[Writer]:
    """A writer of this kind to a file that appears when complete; after an error, its own errors no longer matter."""
    with open_new(path) as file:
        writer = kind(file, str(path))
        try:
            yield writer
        except BaseException:
            with suppress(Exception):
                writer.close()
            raise
        with write_errors(path):
            writer.close()


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Turn disk errors while a file is written into messages for the user."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}. Nothing is left under its name."
        ) from error


def _packed(path: Path, raw: IO[bytes]) -> IO[bytes]:
    """The file that is being written atomically, compressed as its ending asks."""
    ending = path.suffix.lower()
    if ending not in COMPRESSIONS:
        return raw
    if kind_of(path) in ("parquet", "npy"):
        raise UserError(f"{path}: a {kind_of(path)} file is not compressed further. Leave off {ending}.")
    return PACKERS[ending](raw)


def _gzip(raw: IO[bytes]) -> IO[bytes]:
    import gzip

    return cast(
        IO[bytes], gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)
    )  # no time inside: same rows, same bytes


def _xz(raw: IO[bytes]) -> IO[bytes]:
    import lzma

    return lzma.LZMAFile(raw, "wb")


def _bz2(raw: IO[bytes]) -> IO[bytes]:
    import bz2

    return bz2.BZ2File(raw, "wb")


def _zstd(raw: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise UserError("Writing .zst needs the zstandard library: pip install zstandard") from error
    return zstandard.ZstdCompressor().stream_writer(raw, closefd=False)


PACKERS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {".gz": _gzip, ".xz": _xz, ".zst": _zstd, ".bz2": _bz2}
