"""Sorted tables of keys and values in LevelDB's layout, as TensorFlow writes a checkpoint's index.

Blocks of entries come first, each with a CRC32C; then a block that says where those lie; then a footer of fixed
length that says where that one lies. An entry gives its key as what it shares with the key before, and the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from bertkit.checkpoint.tensorflow.crc32c import masked_crc32c

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # one byte for the compression, four for the checksum
LONGEST_NAME = 4096  # keys share prefixes: without a limit a small hostile file unfolds to terabytes


class Malformed(Exception):
    """Bytes that do not follow the format; the caller knows the file's name and tells the user."""


def read_table(index: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All (key, value) pairs of an index file, in order."""
    if len(index) < FOOTER_BYTES or index[-8:] != MAGIC:
        raise Malformed(
            "it does not end as a TensorFlow checkpoint index does: it is cut short, or another kind of file"
        )
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
    """The (key, value) pairs of the block at `offset`, once its checksum is found right."""
    end = offset + size
    if end + TRAILER_BYTES > len(index) - FOOTER_BYTES or size < 4:
        raise Malformed(f"block at byte {offset} of {size} bytes lies outside the file ({len(index)} bytes)")
    stored = int.from_bytes(index[end + 1 : end + TRAILER_BYTES], "little")
    if masked_crc32c(index[offset : end + 1]) != stored:
        raise Malformed(f"block at byte {offset} is damaged (its CRC32C checksum does not fit)")
    if index[end] != 0:
        raise Malformed(
            f"block at byte {offset} is compressed (type {index[end]}), which cannot be read; save it uncompressed"
        )
    restarts = int.from_bytes(index[end - 4 : end], "little")
    limit = size - 4 - 4 * restarts
    if limit < 0:
        raise Malformed(f"block at byte {offset} claims {restarts} restart points, more than fit")
    block, at, key = index[offset : offset + limit], 0, b""
    while at < limit:
        shared, at = varint(block, at)
        unshared, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + unshared + length > limit or shared + unshared > LONGEST_NAME:
            raise Malformed(f"block at byte {offset} has an entry that does not fit")
        key = key[:shared] + block[at : at + unshared]
        at += unshared
        yield key, block[at : at + length]
        at += length


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    """A block's (offset, size), and where reading goes on."""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return offset, size, at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where reading goes on."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Malformed("a number is cut short")
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Malformed("a number is longer than ten bytes")
