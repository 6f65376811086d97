"""The safetensors format, streamed: written without a second copy in memory, read from an open file.

The library's own writer opens the file itself, which leaves no place to hash or to sync on the way; its
reader wants a path, which may be rotated away while it is read. The format is small: 8 bytes of header
length, a JSON header, then the tensors' bytes end to end. https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertkit.errors import DamagedFile
from bertkit.files import atomic

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "BOOL": torch.bool,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
Tensors = Mapping[str, Tensor | np.ndarray]


def size(tensors: Tensors) -> int:
    """The size of a safetensors file with these tensors, in bytes."""
    return len(_header(tensors)) + sum(tensor.nbytes for tensor in tensors.values())


def chunks(tensors: Tensors) -> Iterator[memoryview]:
    """The bytes of a safetensors file, one chunk per tensor: at most one tensor is copied at a time."""
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
        return {name: _load(handle, header[name], 8 + header_length + begin) for begin, _, name in places}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError) as error:
        raise DamagedFile(f"{where} is not a valid safetensors file: {error}. Restore it from a backup.") from error


def _load(handle: int, row: dict, offset: int) -> Tensor:
    dtype, shape = DTYPES[row["dtype"]], row["shape"]
    begin, end = row["data_offsets"]
    if math.prod(shape) * dtype.itemsize != end - begin:
        raise ValueError(f"shape {shape} of {row['dtype']} does not take {end - begin} bytes")
    return torch.frombuffer(_fetch(handle, end - begin, offset), dtype=dtype).reshape(shape) if end > begin else (
        torch.empty(shape, dtype=dtype)
    )  # fmt: skip


def _fetch(handle: int, count: int, offset: int) -> bytearray:
    buffer = bytearray(count)
    rest = memoryview(buffer)
    while len(rest):
        got = os.preadv(handle, [rest], offset + count - len(rest))
        if not got:
            raise ValueError("it ends too early")
        rest = rest[got:]
    return buffer


def _as_tensor(values: Tensor | np.ndarray) -> Tensor:
    return values if isinstance(values, Tensor) else torch.from_numpy(np.require(values, requirements=["C", "W"]))


def _order(tensors: Tensors) -> list[str]:
    # Widest numbers first: every tensor then begins at a multiple of its number's width.
    return sorted(tensors, key=lambda name: (-_as_tensor(tensors[name]).element_size(), name))


def _header(tensors: Tensors) -> bytes:
    rows: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name in _order(tensors):
        tensor = _as_tensor(tensors[name])
        if tensor.dtype not in NAMES:
            raise TypeError(f"tensor '{name}': safetensors has no {tensor.dtype}; save it as another type")
        end = begin + tensor.nbytes
        rows[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(rows).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
