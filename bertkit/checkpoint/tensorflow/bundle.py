"""TensorFlow's V2 checkpoints ("tensor bundles") without TensorFlow.

`PREFIX.index` is a sorted table of blocks (LevelDB's layout): the key "" holds the header, every other key is a
variable's name with its dtype, shape, place and checksum as a protocol buffer. `PREFIX.data-00000-of-0000N` are
the raw numbers. Every block and every tensor carries a CRC32C, and all of them are checked here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bertkit.errors import DamagedFile, UserError
from bertkit.files.guarded import LARGEST, open_regular

# ---- Sorted tables of keys and values in LevelDB's layout, as TensorFlow writes a checkpoint's index.
#
# Blocks of entries come first, each with a CRC32C; then a block that says where those lie; then a footer of fixed
# length that says where that one lies. An entry gives its key as what it shares with the key before, and the rest.

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # one byte for the compression, four for the checksum
LONGEST_NAME = 4096  # keys share prefixes: without a limit a small hostile file unfolds to terabytes


class Malformed(Exception):
    """Bytes that do not follow TensorFlow's bundle format; the caller adds the file's name for the user."""


def read_table(index: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All (key, value) pairs of the index file of a TensorFlow bundle, in order."""
    if len(index) < FOOTER_BYTES or index[-8:] != MAGIC:
        raise Malformed("it does not end like a TensorFlow checkpoint index: the file is truncated, or of another kind")
    footer = index[-FOOTER_BYTES:-8]
    _, _, at = _handle(footer, 0)  # the table of filters, which checkpoints leave empty
    offset, size, _ = _handle(footer, at)
    data_end, previous = 0, b""
    first = True
    for _, value in _block(index, offset, size):
        offset, size, _ = _handle(value, 0)
        if offset < data_end:
            raise Malformed(f"block at byte {offset} overlaps the one before it")
        data_end = offset + size + TRAILER_BYTES
        for key, entry in _block(index, offset, size):
            if not first and key <= previous:
                raise Malformed(f"key {key!r} is out of order")
            first, previous = False, key
            yield key, entry


def _block(index: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) pairs of the block at `offset` of a TensorFlow bundle, after verifying its checksum."""
    end = offset + size
    if end + TRAILER_BYTES > len(index) - FOOTER_BYTES or size < 4:
        raise Malformed(f"block at byte {offset} of {size} bytes lies outside the file ({len(index)} bytes)")
    stored = int.from_bytes(index[end + 1 : end + TRAILER_BYTES], "little")
    if masked_crc32c(index[offset : end + 1]) != stored:
        raise Malformed(f"block at byte {offset} is damaged (its CRC32C checksum does not match)")
    if index[end] != 0:
        raise Malformed(
            f"block at byte {offset} is compressed (type {index[end]}), which is not supported; save it uncompressed"
        )
    restarts = int.from_bytes(index[end - 4 : end], "little")
    limit = size - 4 - 4 * restarts
    if limit < 0:
        raise Malformed(f"block at byte {offset} claims {restarts} restart points, more than it has room for")
    block, at, key = index[offset : offset + limit], 0, b""
    while at < limit:
        shared, at = varint(block, at)
        unshared, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + unshared + length > limit or shared + unshared > LONGEST_NAME:
            raise Malformed(f"block at byte {offset} has an entry that runs past its end")
        key = key[:shared] + block[at : at + unshared]
        at += unshared
        yield key, block[at : at + length]
        at += length


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    """A TensorFlow block's (offset, size), and the position after it."""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return offset, size, at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of a TensorFlow bundle in groups of seven bits, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Malformed("a number is truncated")
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Malformed("a number is longer than ten bytes")


# ---- TensorFlow's V2 checkpoints ("tensor bundles") without TensorFlow.

MOST_AXES = 8
AGAIN = "Download or copy the checkpoint again, all its files together."

# TensorFlow's number of a dtype -> how the numbers lie on disk, and what they are called.
BFLOAT16 = 14
DTYPES = {
    1: ("<f4", "float32"),
    2: ("<f8", "float64"),
    3: ("<i4", "int32"),
    9: ("<i8", "int64"),
    BFLOAT16: ("<u2", "bfloat16"),  # numpy has no such dtype; the bits become the upper half of a float32
    19: ("<f2", "float16"),
}


@dataclass(frozen=True)
class Entry:
    """Where a TensorFlow bundle stores a tensor: its dtype number, shape, file number, byte range and masked CRC32C."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int


class Bundle(Mapping[str, np.ndarray]):
    """The tensors of one TensorFlow checkpoint by name; names and shapes are read at once, values on demand."""

    def __init__(self, prefix: Path, entries: dict[str, Entry], shards: int) -> None:
        self.prefix = prefix
        self.entries = entries
        self.shards = shards
        self.shapes = {name: entry.shape for name, entry in entries.items()}

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def shard_path(self, shard: int) -> Path:
        """The TensorFlow bundle's data file with number `shard`."""
        return Path(f"{self.prefix}.data-{shard:05d}-of-{self.shards:05d}")

    def dtype(self, name: str) -> str:
        """The dtype a TensorFlow tensor is stored in, in numpy's words ("bfloat16" is read as float32)."""
        number = self.entries[name].dtype
        return DTYPES[number][1] if number in DTYPES else f"TensorFlow type {number}"

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self.entries[name]
        path = self.shard_path(entry.shard)
        if entry.dtype not in DTYPES:
            known = ", ".join(word for _, word in DTYPES.values())
            raise UserError(
                f"{path}: tensor '{name}' holds {self.dtype(name)}, which is not a supported array type "
                f"(supported: {known}). Leave this tensor out."
            )
        layout = np.dtype(DTYPES[entry.dtype][0])
        try:
            with open_regular(path) as file:
                file.seek(entry.offset)
                numbers = np.fromfile(file, dtype=layout, count=entry.size // layout.itemsize)
        except OSError as error:
            raise DamagedFile(f"{path}: tensor '{name}' cannot be read: {error}. {AGAIN}") from error
        if numbers.nbytes != entry.size or masked_crc32c(numbers) != entry.crc:
            raise DamagedFile(f"{path}: tensor '{name}' is damaged (its CRC32C checksum does not match). {AGAIN}")
        if entry.dtype == BFLOAT16:
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        return numbers.reshape(entry.shape)


def read_bundle(prefix: str | Path) -> Bundle:
    """Open the TensorFlow checkpoint PREFIX.index + PREFIX.data-… (with or without `.index` at the end of `prefix`)."""
    prefix = Path(str(prefix).removesuffix(".index"))
    path = Path(f"{prefix}.index")
    try:
        with open_regular(path, LARGEST) as file:
            index = file.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise UserError(
            f"{path} cannot be read ({reason}). A TensorFlow V2 checkpoint has a .index file next to its data files: "
            "pass the prefix they share, such as bert_model.ckpt."
        ) from error
    try:
        table = dict(read_table(index))
        bundle = _bundle(prefix, table)
    except Malformed as error:
        raise DamagedFile(f"{path}: {error}. {AGAIN}") from error
    _check_shards(bundle)
    return bundle


def is_bundle_index(path: Path) -> bool:
    """Whether the file ends like the index of a TensorFlow checkpoint. Never raises."""
    try:
        with path.open("rb") as file:
            file.seek(-len(MAGIC), 2)
            return file.read() == MAGIC
    except (OSError, ValueError):
        return False


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The (field number, value) pairs of a protocol buffer message in a TensorFlow bundle."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = varint(message, at)
            yield number, value
            continue
        if wire == 2:
            length, at = varint(message, at)
        elif wire in (1, 5):
            length = {1: 8, 5: 4}[wire]
        else:
            raise Malformed(f"wire type {wire} is unknown")
        if at + length > len(message):
            raise Malformed("a field is truncated")
        body = message[at : at + length]
        yield number, body if wire == 2 else int.from_bytes(body, "little")
        at += length


def _bundle(prefix: Path, table: dict[bytes, bytes]) -> Bundle:
    """A TensorFlow checkpoint's entries from its index table."""
    if b"" not in table:
        raise Malformed("the header entry is missing")
    header = _numbers(table.pop(b""))
    shards = header.get(1, 0)
    if header.get(2, 0) != 0:
        raise UserError(
            f"{prefix}.index: the numbers are big-endian, which is not supported. Save it on a little-endian machine."
        )
    if not 1 <= shards <= 99_999:
        raise Malformed(f"the header claims {shards} data files")
    entries = {}
    for key, message in table.items():
        if key.startswith(b"\0") or any(number == 7 for number, _ in _fields(message)):
            name = key.strip(b"\0").decode("utf-8", "replace")
            raise UserError(
                f"{prefix}.index: variable '{name}' is partitioned (stored in slices), which is not supported. "
                "Load it in TensorFlow without a partitioner and save it again."
            )
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise Malformed(f"the name {key!r} is not UTF-8") from None
        entries[name] = _entry(name, message, shards)
    return Bundle(prefix, entries, shards)


def _numbers(message: bytes) -> dict[int, int]:
    return {number: value for number, value in _fields(message) if isinstance(value, int)}


def _entry(name: str, message: bytes, shards: int) -> Entry:
    """One BundleEntryProto, with every number checked that does not need the data file."""
    number = _numbers(message)
    shape: list[int] = []
    for shapes in (value for field, value in _fields(message) if field == 2 and isinstance(value, bytes)):
        shape += [_numbers(axis).get(1, 0) for field, axis in _fields(shapes) if field == 2 and isinstance(axis, bytes)]
    shard, offset, size, crc = (number.get(field, 0) for field in (3, 4, 5, 6))
    entry = Entry(number.get(1, 0), tuple(shape), shard, offset, size, crc)
    if entry.shard >= shards:
        raise Malformed(f"tensor '{name}' lies in data file {entry.shard} of {shards}")
    if entry.dtype in DTYPES:
        item = np.dtype(DTYPES[entry.dtype][0]).itemsize
        largest = math.prod(max(axis, 1) for axis in shape) * item  # numpy refuses even an empty array beyond this
        if len(shape) > MOST_AXES or largest >= 1 << 62 or math.prod(shape) * item != entry.size:
            raise Malformed(f"tensor '{name}' of shape {shape} does not match its {entry.size} bytes")
    return entry


def _check_shards(bundle: Bundle) -> None:
    """Check, before anything is allocated, that every TensorFlow tensor is inside an existing file."""
    sizes: dict[int, int] = {}
    for name, entry in bundle.entries.items():
        path = bundle.shard_path(entry.shard)
        if entry.shard not in sizes:
            try:
                sizes[entry.shard] = path.stat().st_size
            except OSError as error:
                raise DamagedFile(f"{path} is missing, and tensor '{name}' is stored in it. {AGAIN}") from error
        if entry.offset + entry.size > sizes[entry.shard]:
            raise DamagedFile(
                f"{path} is truncated: tensor '{name}' ends at byte {entry.offset + entry.size}, "
                f"but the file ends at {sizes[entry.shard]}. {AGAIN}"
            )


# ---- The CRC32C checksum in numpy, fast enough for checkpoints of hundreds of megabytes.
#
# A CRC is the remainder of a long polynomial, so a long buffer may first be *folded*: cut into rows of equal width,
# each row carried onto the next by one fixed linear map (two table look-ups per word). What remains is one short row
# with the same checksum as the whole.

POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed
ROWS = (1 << 16, 1 << 8)  # bytes a row: the wide row for speed, then the narrow one to leave little to the plain loop
MASK_DELTA = 0xA282EAD8


def _shift_byte(state: int) -> int:
    """CRC-32C: shift the register by eight zero bits."""
    for _ in range(8):
        state = (state >> 1) ^ (POLYNOMIAL if state & 1 else 0)
    return state


_BYTE_TABLE = [_shift_byte(byte) for byte in range(256)]


@cache
def _carry_tables(row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """What CRC-32C makes of each lower and upper half of a word when `row_bytes` (a power of two) zeros follow."""
    columns = [_shift_byte(1 << bit) for bit in range(32)]
    for _ in range(row_bytes.bit_length() - 1):
        columns = [_apply(columns, column) for column in columns]
    return _spread(columns[:16]), _spread(columns[16:])


def _apply(columns: list[int], word: int) -> int:
    """CRC-32C: multiply a matrix over GF(2), as columns of bits, with a word."""
    total = 0
    for bit, column in enumerate(columns):
        if word >> bit & 1:
            total ^= column
    return total


def _spread(columns: list[int]) -> np.ndarray:
    """CRC-32C: the products of a matrix with all numbers of as many bits, as a table."""
    table = np.zeros(1, dtype=np.uint32)
    for column in columns:
        table = np.concatenate([table, table ^ np.uint32(column)])
    return table


def _fold(data: np.ndarray, start: int, row_bytes: int) -> np.ndarray:
    """One row with the CRC-32C of all of `data` (bytes,), at least one row; `start`: the state before."""
    low, high = _carry_tables(row_bytes)
    head_bytes = len(data) % row_bytes + row_bytes
    head = np.zeros(2 * row_bytes, dtype=np.uint8)  # zeros in front leave a remainder as it is
    head[len(head) - head_bytes :] = data[:head_bytes]
    first = len(head) - head_bytes
    head[first : first + 4] ^= np.frombuffer(start.to_bytes(4, "little"), dtype=np.uint8)
    state, row = head.view("<u4").reshape(2, -1)
    state = low[state & 0xFFFF] ^ high[state >> 16] ^ row
    for row in data[head_bytes:].view("<u4").reshape(-1, row_bytes // 4):
        state = low[state & 0xFFFF] ^ high[state >> 16] ^ row
    return state.astype("<u4").view(np.uint8)


def crc32c(data: bytes | np.ndarray) -> int:
    """The CRC32C, TensorFlow's checksum, of bytes or of an array's bytes (in memory order)."""
    rest = np.frombuffer(data, dtype=np.uint8) if isinstance(data, bytes) else data.reshape(-1).view(np.uint8)
    state = 0xFFFFFFFF
    for row_bytes in ROWS:
        if len(rest) > row_bytes:
            rest, state = _fold(rest, state, row_bytes), 0
    for byte in rest.tolist():
        state = _BYTE_TABLE[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """The CRC32C as TensorFlow stores it: rotated and shifted, so that a checksum of checksums stays safe."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF
