"""Ids that remember the characters they came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from bertkit.errors import UserError


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text, or a pair of texts, as the model sees it. All lists are as long as `ids`.

    offsets: half-open character ranges in the user's own text (of its own side for a pair, of its own
    word for pre-split words). special: True for what the template added, such as [CLS]; a [MASK] that the
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
        """The same encoding of a text with only these positions, in this order."""
        indices = list(positions)
        return Encoding(
            ids=[self.ids[i] for i in indices],
            segments=[self.segments[i] for i in indices],
            offsets=[self.offsets[i] for i in indices],
            special=[self.special[i] for i in indices],
            sides=[self.sides[i] for i in indices],
            words=[self.words[i] for i in indices],
        )


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a long encoding that fits the model, and the tokens it owns.

    core: the token range [start, end) within `encoding.ids` that this window owns. The cores of all windows
    together hold every token of the long side exactly once.
    """

    encoding: Encoding
    core: tuple[int, int]


# ---- Long encodings split into overlapping windows, or truncated: pure functions of an Encoding.


def windows_of(encoding: Encoding, *, limit: int, overlap: int, side: int = 1) -> list[Window]:
    """Windows of an encoding with at most `limit` tokens over the long side, neighbours sharing `overlap` tokens.

    The long side is text `side` of a pair, else the only text; the rest (the other text and special tokens) is
    repeated in full in every window. A token belongs to the window in which it has most context: neighbours
    meet in the middle of what they share, and the last window reaches back so that it is as full as the others.
    """
    if limit < 1 or overlap < 0:
        raise UserError(f"Windows of {limit} tokens that share {overlap} are impossible. Use limit >= 1, overlap >= 0.")
    is_pair = 1 in encoding.sides
    side = side if is_pair else 0
    body = [i for i, owner in enumerate(encoding.sides) if owner == side]
    start, end = (body[0], body[-1] + 1) if body else (len(encoding), len(encoding))
    if len(encoding) <= limit:
        return [Window(encoding, (start, end))]
    room = limit - (len(encoding) - len(body))
    _check_room(room, limit, overlap, is_pair, other=encoding.sides.count(1 - side))
    last = len(body) - room
    starts = [*range(0, last, room - overlap), last]
    meets = [(a + room + b + 1) // 2 for a, b in pairwise(starts)]
    windows = []
    for begin, own_from, own_to in zip(starts, [0, *meets], [*meets, len(body)]):
        positions = [*range(start), *range(start + begin, start + begin + room), *range(end, len(encoding))]
        windows.append(Window(encoding.picked(positions), (start + own_from - begin, start + own_to - begin)))
    return windows


def truncated(encoding: Encoding, limit: int, from_start: bool = False) -> tuple[Encoding, int]:
    """The encoding truncated to `limit` tokens, and how many were removed. Special tokens are kept.

    A pair loses tokens of the longer text until both are equal, then of both; from the end unless `from_start`.
    """
    cut = len(encoding) - limit
    if cut <= 0:
        return encoding, 0
    first, second = encoding.sides.count(0), encoding.sides.count(1)
    room = first + second - cut
    if room < 0:
        raise UserError(f"A limit of {limit} tokens has no room for the special tokens. Use at least {limit - room}.")
    keep = dict(zip((0, 1), _shares(first, second, room)))
    positions = []
    for position, side in reversed([*enumerate(encoding.sides)]) if from_start else enumerate(encoding.sides):
        if side in keep:
            keep[side] -= 1
        if side not in keep or keep[side] >= 0:
            positions.append(position)
    return encoding.picked(sorted(positions)), cut


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens of each text of a pair that fit `room` when it is truncated: all of the shorter if it fits half."""
    half = room // 2
    if min(first, second) <= half:
        return (first, room - first) if first <= second else (room - second, second)
    # The odd token goes to the longer text, or to the second of two equally long ones, as in `tokenizers`.
    return (half, room - half) if first <= second else (room - half, half)


def _check_room(room: int, limit: int, overlap: int, is_pair: bool, other: int) -> None:
    """Refuse windows that leave too little room for their text."""
    if is_pair and 4 * room < limit:
        raise UserError(
            f"One text of a pair takes {other} of {limit} tokens and leaves {max(room, 0)} for windows over the other, "
            "less than a quarter. Shorten it, truncate both (--on-long truncate), or use a model with a higher limit."
        )
    if room < 1:
        raise UserError(f"A limit of {limit} tokens leaves no room besides the special tokens. Raise the limit.")
    if overlap >= room:
        raise UserError(
            f"Windows with room for {room} tokens of text cannot share {overlap}. Use an overlap below {room}, "
            f"for example {room // 4}."
        )
