"""A file that is whole or not there at all: the temporary name, the sync and the rename in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from bertkit.errors import UserError
from bertkit.files.open import COMPRESSIONS, kind_of


@contextmanager
def open_new(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary file that takes its name, packed as its ending says, when the block ends without an error."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder, and a file is to be written. Add a name.")
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Devices and pipes cannot be renamed onto.
        special = path.exists() and not path.is_file()
        draft = path if special else path.with_name(f".{path.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        raw = draft.open("wb")
    try:
        packed = _packed(path, raw)
        yield packed
        with told(path):
            if packed is not raw:
                packed.close()
            raw.flush()
            if not special:
                os.fsync(raw.fileno())
            raw.close()
            if not special:
                draft.replace(path)
                _sync_folder(path.parent)
    finally:
        with suppress(OSError):  # a full disk says so a second time at closing
            raw.close()
        if not special:
            draft.unlink(missing_ok=True)


def not_the_input(out: str | Path | None, *sources: str | Path | None) -> None:
    """Refuse to write over a file that is to be read; links are followed."""
    for source in sources:
        if out and source and Path(out).is_file() and Path(source).is_file() and Path(out).samefile(source):
            raise UserError(f"--out {out} is the very file that is read. Choose another name.")


@contextmanager
def closed_at_end(writer: Any, path: str | Path) -> Iterator[None]:
    """Close a writer before its file is, also after an error, when what it still says no longer matters."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            writer.close()
        raise
    with told(path):
        writer.close()


@contextmanager
def told(path: str | Path) -> Iterator[None]:
    """Trouble with the disk as a message to the user."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}. Nothing is left under its name."
        ) from error


def _packed(path: Path, raw: IO[bytes]) -> IO[bytes]:
    ending = path.suffix.lower()
    if ending not in COMPRESSIONS:
        return raw
    if kind_of(path) in ("parquet", "npy"):
        raise UserError(f"{path}: a {kind_of(path)} file is not packed again. Leave {ending} off.")
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


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
