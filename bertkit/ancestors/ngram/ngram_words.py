"""How an n-gram model cuts a text into sentences and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from bertkit.errors import UserError, suggest

# Ideographs: the unified blocks, their extensions A and B onwards, and the compatibility forms.
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = rf"[^\W{HAN}]+(?:['’][^\W{HAN}]+)*|[^\w\s]|\n"
_WORDS = re.compile(rf"[{HAN}]|{_WORD}")
_RUNS = re.compile(rf"[{HAN}]+|{_WORD}")
_HAN_FIRST = re.compile(f"[{HAN}]")


def _segmented(text: str) -> list[str]:
    try:
        import rjieba
    except ImportError as problem:
        raise UserError(
            "units 'jieba' needs the package rjieba. Run: pip install rjieba, or choose units 'words'."
        ) from problem
    words: list[str] = []
    for run in _RUNS.findall(text):
        words.extend(rjieba.cut(run) if _HAN_FIRST.match(run) else (run,))
    return words


UNITS: dict[str, Callable[[str], list[str]]] = {
    "words": _WORDS.findall,  # English words with their apostrophes, marks, and every ideograph by itself
    "jieba": _segmented,  # the same, but runs of ideographs are cut into words by rjieba
    "characters": list,  # every character, spaces too
}


def check_units(units: str) -> None:
    """Refuse a way of cutting that does not exist."""
    if units not in UNITS:
        raise UserError(f"units '{units}' is not a way to cut text. {suggest(units, list(UNITS))}")


def sentences(text: str) -> list[str]:
    """The lines of a text that hold anything. Each line is a sentence to the model."""
    return [line for line in text.splitlines() if line and not line.isspace()]


def blocks(texts: Iterable[str], characters: int) -> Iterator[str]:
    """The sentences of all texts in blocks of about so many characters, a line break after each sentence."""
    held: list[str] = []
    size = 0
    for text in texts:
        for line in sentences(text):
            held.append(line)
            size += len(line) + 1
            if size >= characters:
                yield "\n".join(held) + "\n"
                held, size = [], 0
    if held:
        yield "\n".join(held) + "\n"


def cut(block: str, units: str, cased: bool) -> list[str]:
    """The words of a block; a line break is a word of its own and ends a sentence."""
    return UNITS[units](block if cased else block.lower())
