"""The guarded reader for files of folders that anyone may have written: regular, bounded, and one message per fault.

A file that a folder names may be a pipe that never ends, a device, a gigabyte of brackets or a number of a million
digits. Everything that opens a folder reads its files through here.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertkit.errors import DamagedFile, UserError

if TYPE_CHECKING:
    import numpy as np

AGAIN = "Copy or download it again."
LARGEST = 64 << 20  # of a file that is read whole: the tokenizer.json of 250,000 pieces has 17 MB
LARGEST_UNPACKED = 256 << 20  # of the arrays in an .npz file
MOST_VALUES = 8_000_000  # in one JSON file: a list of empty lists takes twenty times its size in memory
DEEPEST = 100  # levels of lists and objects
MOST_DIGITS = 40  # of a whole number; transformers writes 31 for "no limit"
# A file of this size with fewer than one block in HOLES on the disk is nothing but holes.
SPARSE, HOLES = 1 << 30, 16


def open_regular(path: Path, largest: int | None = None) -> IO[bytes]:
    """Open a folder's file for guarded reading, if it is a regular file of at most `largest` bytes.

    FileNotFoundError passes.
    """
    try:
        # Without O_NONBLOCK a pipe under a file's name would wait for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as reason:
        raise DamagedFile(f"{path}: cannot be read ({getattr(reason, 'strerror', None) or reason}). {AGAIN}") from None
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise DamagedFile(f"{path}: not a regular file. Replace it with a copy of the file that belongs there.")
    if largest is not None and facts.st_size > largest:
        os.close(handle)
        raise DamagedFile(f"{path}: has {facts.st_size:,} bytes; a file of this kind has at most {largest:,}. {AGAIN}")
    if facts.st_size > SPARSE and facts.st_blocks * 512 * HOLES < facts.st_size:
        os.close(handle)
        raise DamagedFile(f"{path}: claims {facts.st_size:,} bytes but is empty on the disk. {AGAIN}")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, largest: int = LARGEST) -> bytes:
    """Guarded reading of a whole file of a folder. A missing one is a UserError that names its folder."""
    try:
        with open_regular(path, largest) as file:
            return file.read(largest)
    except FileNotFoundError:
        raise UserError(f"{path.parent}: this folder contains no {path.name}. Is it a model folder?") from None
    except OSError as reason:
        raise DamagedFile(f"{path}: cannot be read ({reason.strerror}). {AGAIN}") from None


def read_text(path: Path, largest: int = LARGEST) -> str:
    """Guarded reading of a whole UTF-8 file of a folder, with or without a byte order mark."""
    try:
        return read_bytes(path, largest).decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        raise DamagedFile(f"{path}: not UTF-8 at byte {reason.start}. {AGAIN}") from None


def read_json(path: Path, kind: type | tuple[type, ...] = dict) -> Any:
    """Guarded reading of a JSON file: an object (or, with `kind` list, an array; with object, any value)."""
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, kind):
        wanted = {dict: "an object", list: "a list"}.get(kind, "the expected kind of value")  # type: ignore[call-overload]
        raise DamagedFile(f"{path}: holds a {type(value).__name__}, not {wanted}. {AGAIN}")
    return value


def parse_json(text: str, where: str) -> Any:
    """Guarded parsing of a JSON value of bounded depth, size and numbers. where: the file, for messages."""
    if (count := sum(map(text.count, ",[{"))) > MOST_VALUES:
        raise DamagedFile(f"{where}: holds {count:,} values; at most {MOST_VALUES:,} are read. {AGAIN}")
    try:
        value = json.loads(text, parse_int=_whole_number)
    except json.JSONDecodeError as reason:
        raise DamagedFile(f"{where}, line {reason.lineno}: not JSON ({reason.msg}). {AGAIN}") from None
    except RecursionError:
        raise DamagedFile(f"{where}: nested too deeply. {AGAIN}") from None
    except ValueError as reason:
        raise DamagedFile(f"{where}: {reason}. {AGAIN}") from None
    if sum(map(text.count, "[{")) > DEEPEST and _is_deep(value):
        raise DamagedFile(f"{where}: nested too deeply. {AGAIN}")
    return value


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits):,} digits ({digits[:10]}…)")
    return int(digits)


def _is_deep(value: Any) -> bool:
    """Whether JSON is nested too deeply to be meant."""
    level: Iterable[Any] = [value]
    for _ in range(DEEPEST):
        inside = [
            child.values() if isinstance(child, dict) else child for child in level if isinstance(child, (dict, list))
        ]
        if not inside:
            return False
        level = [child for children in inside for child in children]
    return True


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


# ---- Arrays


def read_array(path: Path) -> np.ndarray:
    """Guarded reading of an .npy file, memory-mapped: a header that claims more than the file holds takes no memory."""
    import math

    from numpy.lib.format import open_memmap

    try:
        with open_regular(path) as file:
            shape, _, dtype = _header(file)
            if math.prod(shape) * dtype.itemsize > os.fstat(file.fileno()).st_size:
                raise ValueError(f"it claims the shape {shape}, which it does not hold")
        return open_memmap(path, mode="r")
    except (ValueError, TypeError, OSError, EOFError, ArithmeticError, SyntaxError, MemoryError) as reason:
        if isinstance(reason, FileNotFoundError):
            raise
        raise DamagedFile(f"{path}: not a complete .npy file ({_first_line(reason)}). {AGAIN}") from None


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Guarded reading of an .npz file: no array is larger than its header and the archive agree on."""
    import zipfile
    import zlib

    import numpy as np

    try:
        with open_regular(path, LARGEST) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > LARGEST_UNPACKED:
                raise ValueError(f"unpacks to more than {LARGEST_UNPACKED:,} bytes")
            for member in members:
                with archive.open(member) as inside:
                    shape, _, dtype = _header(inside)
                    if dtype.hasobject or int(np.prod(shape, dtype=object)) * dtype.itemsize > member.file_size:
                        raise ValueError(f"{member.filename} claims the shape {shape}, which it does not hold")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except (ValueError, TypeError, KeyError, OSError, EOFError, OverflowError, SyntaxError, MemoryError, zlib.error,
            zipfile.BadZipFile, RuntimeError, NotImplementedError) as reason:  # fmt: skip
        if isinstance(reason, FileNotFoundError):
            raise
        raise DamagedFile(f"{path}: not a complete .npz file ({_first_line(reason)}). {AGAIN}") from None


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The header of a .npy file: shape, order and dtype."""
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"format {version}")
    return readers[version](file)


def _first_line(reason: BaseException) -> str:
    return (str(reason) or type(reason).__name__).splitlines()[0][:200]
