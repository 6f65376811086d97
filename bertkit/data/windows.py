"""Texts as sequences for the encoder: one row if a text fits, several windows if it does not.

The one place where a text is read in windows, truncated or refused; truncated tokens are always counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertkit.errors import UserError
from bertkit.text.checks import BadRow, of_row
from bertkit.text.encoding import Encoding
from bertkit.text.tokenizer import Tokenizer

ON_LONG = ("window", "truncate", "error")


@dataclass(frozen=True, slots=True)
class Row:
    """One row for the encoder: a text, or a window of a long one. core: the tokens [a, b) it owns.

    whole: the only row of its text.
    """

    ids: list[int]
    segments: list[int] | None
    core: tuple[int, int]
    whole: bool = True
    encoding: Encoding | None = None


@dataclass(frozen=True)
class Windows:
    """How long texts are read: in windows, truncated, or refused.

    side: the text of a pair that is read in windows, the other whole in each; the longer of the two by default.
    from_start: truncate the beginning of a text, not its end.
    """

    limit: int
    on_long: str = "window"
    overlap: int = 64
    side: int | None = None
    from_start: bool = False

    def __post_init__(self) -> None:
        if self.on_long not in ON_LONG:
            raise UserError(f"on_long is {self.on_long!r}; it must be one of {', '.join(ON_LONG)}.")


@dataclass(slots=True)
class Rows:
    """A text's rows, one per window. tokens: how many of its tokens are seen; cut: how many are not. skip: how many of
    the first are a prompt's, which its vector leaves out."""

    rows: list[Row]
    tokens: int
    cut: int = 0
    skip: int = 0


def encode_rows(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, windows: Windows, *, keep: bool = False
) -> list[Rows]:
    """Texts as rows of ids, in windows where they are long.

    `keep`: every row keeps its Encoding (offsets, words), which is slower.
    """
    if keep or pairs is not None:
        encodings = tokenizer.encode_batch(texts, pairs)
        return [rows_of(tokenizer, encoding, windows, n) for n, encoding in enumerate(encodings)]
    results = []
    for number, ids in enumerate(tokenizer.ids_batch(texts)):
        if len(ids) <= windows.limit:
            results.append(Rows([Row(ids, None, (0, len(ids)))], len(ids)))
        else:
            results.append(rows_of(tokenizer, tokenizer.encode(texts[number]), windows, number))
    return results


def rows_of(tokenizer: Tokenizer, encoding: Encoding, windows: Windows, number: int = 0) -> Rows:
    """One encoding's rows (windows where it is long); `number` names the text in messages."""
    size, limit = len(encoding), windows.limit
    if size <= limit:
        window = tokenizer.windows_of(encoding, limit=limit, overlap=0)[0]
        return Rows([Row(encoding.ids, encoding.segments, window.core, True, encoding)], size)
    if windows.on_long == "error":
        fix = "Shorten it, or choose --on-long window or truncate."
        raise BadRow(number, f"has {size} tokens; the model's limit is {limit}. {fix}")
    if windows.on_long == "truncate":
        short, cut = tokenizer.truncated(encoding, limit, windows.from_start)
        core = tokenizer.windows_of(short, limit=limit, overlap=0)[0].core
        return Rows([Row(short.ids, short.segments, core, True, short)], len(short), cut)
    longer = int(encoding.sides.count(1) >= encoding.sides.count(0))
    side = longer if windows.side is None or 1 not in encoding.sides else windows.side
    # At most half of the room: where the other text leaves little of it, windows would move on token by token.
    room = limit - size + encoding.sides.count(side)
    overlap = min(windows.overlap, limit // 4, max(0, room // 2))
    with of_row(number):
        parts = tokenizer.windows_of(encoding, limit=limit, overlap=overlap, side=side)
    return Rows([Row(w.encoding.ids, w.encoding.segments, w.core, False, w.encoding) for w in parts], size)
