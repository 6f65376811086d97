"""Ids that remember the characters they came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text, or a pair of texts, as the model sees it. All lists are as long as `ids`.

    offsets: half-open character ranges in the user's own text (of its own side for a pair, of its own
    word for pre-split words). special: True for what the template put in, such as [CLS]; a [MASK] that the
    user typed is not special. sides: -1 special, 0 first text, 1 second text. words: index of the word
    within its side, -1 for special.
    """

    ids: list[int]
    segments: list[int]
    offsets: list[tuple[int, int]]
    special: list[bool]
    sides: list[int]
    words: list[int]

    def __len__(self) -> int:
        return len(self.ids)

    def picked(self, positions: Iterable[int]) -> Encoding:
        """The same encoding with only these positions, in this order."""
        chosen = list(positions)
        return Encoding(
            ids=[self.ids[i] for i in chosen],
            segments=[self.segments[i] for i in chosen],
            offsets=[self.offsets[i] for i in chosen],
            special=[self.special[i] for i in chosen],
            sides=[self.sides[i] for i in chosen],
            words=[self.words[i] for i in chosen],
        )


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a long encoding that fits the model.

    core: the token range [start, end) within `encoding.ids` that this window owns. The cores of all windows
    together hold every token of the long side exactly once.
    """

    encoding: Encoding
    core: tuple[int, int]
