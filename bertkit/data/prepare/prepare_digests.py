"""The documents seen so far, remembered by digest in little memory."""

from __future__ import annotations

import hashlib

WIDTH = 16
_EMPTY = bytes(WIDTH)


def digest_of(document: str) -> bytes:
    """16 bytes that stand for the document; spaces and line ends do not matter.

    Two different documents share a digest with a chance of 1 in 10^20 among a thousand million.
    """
    return hashlib.blake2b(" ".join(document.split()).encode(), digest_size=WIDTH).digest()


class Digests:
    """A set of digests in one block of memory: 24 to 48 bytes each, where Python's own set takes over 90."""

    def __init__(self) -> None:
        self._slots = bytearray(1024 * WIDTH)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, digest: bytes) -> bool:
        """Remember a digest. Returns whether it is new."""
        at = self._find(digest)
        if self._slots[at : at + WIDTH] == digest:
            return False
        self._slots[at : at + WIDTH] = digest
        self._count += 1
        if self._count * WIDTH * 3 > len(self._slots) * 2:
            self._grow()
        return True

    def _find(self, digest: bytes) -> int:
        slots, size = self._slots, len(self._slots)
        at = int.from_bytes(digest[:8], "little") * WIDTH % size
        while (held := slots[at : at + WIDTH]) != digest and held != _EMPTY:
            at = (at + WIDTH) % size
        return at

    def _grow(self) -> None:
        old = self._slots
        self._slots = bytearray(2 * len(old))
        for start in range(0, len(old), WIDTH):
            digest = bytes(old[start : start + WIDTH])
            if digest != _EMPTY:
                at = self._find(digest)
                self._slots[at : at + WIDTH] = digest
