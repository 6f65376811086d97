"""Which characters a text has, how often, and which of them stand inside words."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import tokenizers

from bertkit.text.words import is_cjk

CODES = 0x110000
AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Survey:
    """counts: how often each character occurs. inside: those that follow a character of the same word."""

    counts: Counter[str]
    inside: frozenset[str]

    def chinese_share(self) -> float:
        """How much of the text is Chinese characters."""
        chinese = sum(count for char, count in self.counts.items() if is_cjk(char))
        return chinese / max(self.counts.total(), 1)

    def normalized(self, normalizer: tokenizers.normalizers.Normalizer) -> Survey:
        """The same after the normalizer, which is applied to each character alone; spaces are gone."""
        counts: Counter[str] = Counter()
        inside: set[str] = set()
        for char, count in self.counts.items():
            parts = normalizer.normalize_str(char).strip()
            for part in parts:
                counts[part] += count
            inside.update(parts if char in self.inside else parts[1:])
        return Survey(counts, frozenset(inside))


def survey(texts: Iterable[str]) -> Survey:
    """Count the characters of all texts; memory does not grow with them."""
    counts = np.zeros(CODES, dtype=np.int64)
    inside = np.zeros(CODES, dtype=bool)
    breaks = np.zeros(CODES, dtype=bool)
    known = np.zeros(CODES, dtype=bool)
    breaks[ord("\n")] = known[ord("\n")] = True
    waiting: list[str] = []
    size = 0

    def flush() -> None:
        codes = np.frombuffer("\n".join(["", *waiting]).encode("utf-32-le"), dtype=np.uint32)
        found = np.bincount(codes, minlength=CODES)
        found[ord("\n")] -= len(waiting)
        counts[:] += found
        for code in np.flatnonzero((found > 0) & ~known):
            known[code] = True
            breaks[code] = _ends_word(chr(code))
        inside[codes[1:][~breaks[codes[:-1]] & ~breaks[codes[1:]]]] = True
        waiting.clear()

    for text in texts:
        waiting.append(text)
        size += len(text)
        if size >= AT_ONCE:
            flush()
            size = 0
    flush()
    present = np.flatnonzero(counts)
    return Survey(
        Counter({chr(code): int(counts[code]) for code in present}), frozenset(map(chr, np.flatnonzero(inside)))
    )


def _ends_word(char: str) -> bool:
    """Does BERT's rule end a word at this character? Symbols of ASCII count as punctuation."""
    if char.isspace() or is_cjk(char) or unicodedata.category(char)[0] in "PZ":
        return True
    return char.isascii() and char.isprintable() and not char.isalnum()
