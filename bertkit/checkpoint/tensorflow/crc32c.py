"""The CRC32C checksum in numpy, fast enough for checkpoints of hundreds of megabytes.

A CRC is the remainder of a long polynomial, so a long buffer may first be *folded*: cut into rows of equal
width, each row carried onto the next by one fixed linear map (two table look-ups per word). What remains is one
short row with the same checksum as the whole.
"""

from __future__ import annotations

from functools import cache

import numpy as np

POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed
ROWS = (1 << 16, 1 << 8)  # bytes a row: the wide row for speed, then the narrow one to leave little to the plain loop
MASK_DELTA = 0xA282EAD8


def _shift_byte(state: int) -> int:
    for _ in range(8):
        state = (state >> 1) ^ (POLYNOMIAL if state & 1 else 0)
    return state


_BYTE_TABLE = [_shift_byte(byte) for byte in range(256)]


@cache
def _carry_tables(row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """What each lower and each upper half of a word becomes when `row_bytes` (a power of two) zero bytes follow it."""
    columns = [_shift_byte(1 << bit) for bit in range(32)]
    for _ in range(row_bytes.bit_length() - 1):
        columns = [_apply(columns, column) for column in columns]
    return _spread(columns[:16]), _spread(columns[16:])


def _apply(columns: list[int], word: int) -> int:
    total = 0
    for bit, column in enumerate(columns):
        if word >> bit & 1:
            total ^= column
    return total


def _spread(columns: list[int]) -> np.ndarray:
    table = np.zeros(1, dtype=np.uint32)
    for column in columns:
        table = np.concatenate([table, table ^ np.uint32(column)])
    return table


def _fold(data: np.ndarray, start: int, row_bytes: int) -> np.ndarray:
    """One row with the checksum of all of `data`. data: (bytes,), at least one row; `start` is the state before it."""
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
    """The CRC32C of bytes or of an array's bytes (in memory order)."""
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
