"""The safetensors format, streamed: written without a second copy in memory, read from an open file.

The library's own writer opens the file itself, which leaves no place to hash or to sync on the way; its
reader wants a path, which may be rotated away while it is read. The format is small: 8 bytes of header
length, a JSON header, then the tensors' bytes end to end. https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from bertkit.errors import DamagedFile
from bertkit.files import atomic

if TYPE_CHECKING:
    from torch import Tensor

    Tensors: TypeAlias = Mapping[str, "Tensor | np.ndarray"]

# The format's name of a type → torch's, and numpy's where it has the type.
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "BOOL": "bool", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64",
}  # fmt: skip
NAMES = {f"torch.{dtype}": name for name, dtype in DTYPES.items()}
Read = TypeVar("Read")


def size(tensors: Tensors) -> int:
    """The size of a safetensors file with these tensors, in bytes."""
    return len(_header(tensors)) + sum(tensor.nbytes for tensor in tensors.values())


def chunks(tensors: Tensors) -> Iterator[memoryview]:
    """The bytes of a safetensors file, one chunk per tensor: at most one tensor is copied at a time."""
    import torch

    yield memoryview(_header(tensors))
    for name in _order(tensors):
        flat = _as_tensor(tensors[name]).detach().cpu().contiguous().reshape(-1)
        if flat.numel():  # numpy gives an empty array no stride, and torch then refuses to view its bytes
            yield flat.view(torch.uint8).numpy().data


def write(path: Path, tensors: Tensors) -> tuple[str, int]:
    """Write a new safetensors file and sync it. Returns (SHA-256 in hex, bytes).

    Unlike the library's `save_file`, it leaves the file readable to whomever the user's umask allows.
    """
    return atomic.write_file(path, chunks(tensors))


def read(handle: int, where: str) -> dict[str, Tensor]:
    """All tensors of an open safetensors file, read directly into their memory.

    where: the file's name, for messages.
    """
    return _read(handle, where, _as_read)


def read_arrays(handle: int, where: str) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file without torch, as float32 arrays where they hold real numbers."""
    return _read(handle, where, _array)


def _read(handle: int, where: str, made_of: Callable[[bytearray, str, list[int]], Read]) -> dict[str, Read]:
    """The tensors of an open safetensors file, after checking its header."""
    length = os.fstat(handle).st_size
    try:
        header_length = int.from_bytes(_fetch(handle, 8, 0), "little")
        if header_length > length - 8:
            raise ValueError(f"its header claims {header_length} bytes")
        header = json.loads(_fetch(handle, header_length, 8))
        header.pop("__metadata__", None)
        places = sorted((*row["data_offsets"], name) for name, row in header.items())
        # Ranges must tile the data: overlapping ones would let a small file ask for endless memory.
        edges = [0, *(end for _, end, _ in places)]
        if edges[-1] != length - 8 - header_length or any(begin != edge for (begin, _, _), edge in zip(places, edges)):
            raise ValueError("its tensors do not cover its bytes")
        return {name: _load(handle, header[name], 8 + header_length + begin, made_of) for begin, _, name in places}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError) as error:
        raise DamagedFile(f"{where} is not a valid safetensors file: {error}. Restore it from a backup.") from error


def _load(handle: int, row: dict, offset: int, made_of: Callable[[bytearray, str, list[int]], Read]) -> Read:
    """One tensor of an open safetensors file."""
    kind, shape = row["dtype"], row["shape"]
    begin, end = row["data_offsets"]
    width = 1 if kind == "BOOL" else int("".join(filter(str.isdigit, kind.partition("_")[0]))) // 8
    if kind not in DTYPES or math.prod(shape) * width != end - begin:
        raise ValueError(f"shape {shape} of {kind} does not take {end - begin} bytes")
    return made_of(_fetch(handle, end - begin, offset), DTYPES[kind], shape)


def _as_read(content: bytearray, kind: str, shape: list[int]) -> Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, kind)
    return torch.frombuffer(content, dtype=dtype).reshape(shape) if content else torch.empty(shape, dtype=dtype)


def _array(content: bytearray, kind: str, shape: list[int]) -> np.ndarray:
    if kind == "bfloat16":  # the upper half of a float32
        return (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if kind.startswith("float8"):
        raise ValueError(f"it holds {kind}, which only torch reads")
    numbers = np.frombuffer(content, np.dtype(kind)).reshape(shape)
    return numbers.astype(np.float32, copy=False) if numbers.dtype.kind == "f" else numbers


def _fetch(handle: int, count: int, offset: int) -> bytearray:
    """Bytes of an open safetensors file at an offset."""
    buffer = bytearray(count)
    rest = memoryview(buffer)
    while len(rest):
        got = os.preadv(handle, [rest], offset + count - len(rest))
        if not got:
            raise ValueError("it ends too early")
        rest = rest[got:]
    return buffer


def _as_tensor(values: Tensor | np.ndarray) -> Tensor:
    import torch

    return values if isinstance(values, torch.Tensor) else torch.from_numpy(np.require(values, requirements=["C", "W"]))


def _order(tensors: Tensors) -> list[str]:
    # Widest numbers first: every tensor then begins at a multiple of its number's width.
    return sorted(tensors, key=lambda name: (-_as_tensor(tensors[name]).element_size(), name))


def _header(tensors: Tensors) -> bytes:
    """The header of a safetensors file: dtype, shape and place of every tensor."""
    rows: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name in _order(tensors):
        tensor = _as_tensor(tensors[name])
        if str(tensor.dtype) not in NAMES:
            raise TypeError(f"tensor '{name}': safetensors has no {tensor.dtype}; save it as another type")
        end = begin + tensor.nbytes
        rows[name] = {"dtype": NAMES[str(tensor.dtype)], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(rows).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
