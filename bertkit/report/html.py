"""What a report is made of: each block is a value, and `render` makes it HTML.

Data reaches the page as text between tags only: no attribute is ever made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from bertkit.report.axes import text_width
from bertkit.report.words import words
from bertkit.report.writing import NOTHING, as_number, escape, plain, shorten

HALF = 58  # letters that fit into half the page


class Between(NamedTuple):
    """A cell with its confidence interval: 0.913 (0.890 to 0.935)."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Text:
    """Paragraphs; a blank line begins a new one."""

    text: str


@dataclass(frozen=True)
class Table:
    """rows: cells by column; a cell is text, a number or a Between.

    align: one letter a column, l, r or c ("" picks by content). heat: column number → (least, most), to shade numbers.
    best: the row to print in bold. digits: of numbers that are not whole. row_names: the first column names the row;
    without them, a phone shows each row as a card.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    align: str = ""
    heat: Mapping[int, tuple[float, float]] | None = None
    best: int | None = None
    digits: int = 4
    row_names: bool = True


@dataclass(frozen=True)
class Figure:
    """svg: markup from `plots`, the one thing that is not escaped. wide: takes the whole row.

    narrow_svg: drawn instead of `svg` on a phone, where a wide drawing would be too small to read.
    """

    caption: str
    svg: str
    wide: bool = False
    narrow_svg: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and their values."""

    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Warning_:
    """Something the reader must not overlook."""

    text: str


@dataclass(frozen=True)
class Good:
    """Something that is as it should be, or a verdict."""

    text: str


@dataclass(frozen=True)
class Code:
    """Text as it was typed."""

    text: str


Block = Text | Table | Figure | Facts | Warning_ | Good | Code


@dataclass(frozen=True)
class Section:
    """A heading and what is under it."""

    title: str
    body: Sequence[Block] = field(default_factory=list)


def render(blocks: Iterable[Block], lang: str) -> str:
    """The HTML of blocks in order; figures, and tables and facts as narrow as they, stand side by side."""
    parts = []
    for is_narrow, run in groupby(blocks, key=lambda block: _is_narrow(block, lang)):
        inside = "".join(RENDER[type(block)](block, lang) for block in run)
        parts.append(f'<div class="beside">{inside}</div>' if is_narrow else inside)
    return "".join(parts)


def _is_narrow(block: Block, lang: str) -> bool:
    if isinstance(block, Table):
        cells = [[*row] for row in (block.columns, *block.rows)]
        columns = [[_letters(row[c], block.digits) for row in cells if c < len(row)] for c in range(len(block.columns))]
        return sum(max(column) + 4 for column in columns) <= HALF
    if isinstance(block, Facts):
        names = max((_letters(name_, 4) for name_ in block.facts), default=0)
        return names + max((_letters(value, 4) for value in block.facts.values()), default=0) <= HALF - 8
    return isinstance(block, Figure)


def _letters(value: Any, digits: int) -> float:
    """How wide a value is, counted in letters."""
    if isinstance(value, Between):
        return 20.0
    return text_width(str(value) if isinstance(value, str) else plain(value, digits), 1.7)


def facts_list(facts: Mapping[str, Any], kind: str, lang: str) -> str:
    """A description list of class `kind`."""
    across = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 3, 9: 3}.get(len(facts), 4)
    rows = "".join(
        f"<div><dt>{escape(shorten(name, 120, lang))}</dt><dd>{cell_text(value, lang)}</dd></div>"
        for name, value in facts.items()
    )
    return f'<dl class="{kind} across{across}">{rows}</dl>' if facts else ""


def cell_text(value: Any, lang: str, digits: int = 4) -> str:
    """One value as safe markup, whatever it is."""
    if isinstance(value, Between):
        middle = escape(plain(value.value))
        if value.low is None or value.high is None:
            return middle
        return f"{middle}<small>{escape(plain(value.low, 3))} – {escape(plain(value.high, 3))}</small>"
    if isinstance(value, bool):
        return escape(words(lang)["yes" if value else "no"])
    if isinstance(value, (list, tuple, set, frozenset)):
        return escape(shorten(", ".join(plain(item, digits) for item in value), lang=lang)) if value else NOTHING
    return escape(shorten(plain(value, digits), lang=lang))


def _text(block: Text, lang: str) -> str:
    return "".join(f"<p>{escape(part)}</p>" for part in shorten(block.text, 4000, lang).split("\n\n") if part.strip())


def _table(block: Table, lang: str) -> str:
    align = [block.align[c : c + 1] or _side(block.rows, c) for c in range(len(block.columns))]
    head = "".join(
        f'<th scope="col"{_class(align[c], "h" if block.heat and c in block.heat else "")}>'
        f"{escape(shorten(name, 80, lang))}</th>"
        for c, name in enumerate(block.columns)
    )
    is_long = [any(c < len(row) and _is_long(row[c]) for row in block.rows) for c in range(len(block.columns))]
    body = "".join(_row(block, r, align, is_long, lang) for r in range(len(block.rows)))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(words(lang)["table"])}">'
        f"<table{_class('' if block.row_names else 'stack')}>"
        f"<caption><span>{escape(shorten(block.caption, 400, lang))}</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(block: Table, number: int, align: Sequence[str], is_long: Sequence[bool], lang: str) -> str:
    cells = []
    for c, value in enumerate(list(block.rows[number])[: len(block.columns)]):
        tag = 'th scope="row"' if c == 0 and block.row_names and align[0] == "l" else "td"
        shade = _shade(value, block.heat.get(c)) if block.heat and c in block.heat else ""
        marks = _class(align[c], shade, "long" if is_long[c] else "")
        key = "" if block.row_names else f'<span class="k">{escape(shorten(block.columns[c], 80, lang))}</span>'
        cells.append(f"<{tag}{marks}>{key}{cell_text(value, lang, block.digits)}</{tag[:2]}>")
    return f"<tr{_class('best' if number == block.best else '')}>{''.join(cells)}</tr>"


def _class(*names: str) -> str:
    kept = [name for name in names if name and name != "l"]
    return f' class="{" ".join(kept)}"' if kept else ""


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > 28


def _side(rows: Sequence[Sequence[Any]], column: int) -> str:
    values = [row[column] for row in rows if column < len(row) and row[column] is not None]
    numbers = [isinstance(value, Between) or (as_number(value) is not None) for value in values]
    return "r" if values and all(numbers) and not isinstance(values[0], bool) else "l"


def _shade(value: Any, ends: tuple[float, float] | None) -> str:
    number = as_number(value.value if isinstance(value, Between) else value)
    if ends is None or number is None:
        return "h"
    share = (number - ends[0]) / (ends[1] - ends[0]) if ends[1] != ends[0] else 0.5
    return f"h h{max(0, min(5, round(5 * share)))}"


def _figure(block: Figure, lang: str) -> str:
    caption = escape(shorten(block.caption, 400, lang))
    kind = _class("wide" if block.wide else "", "two" if block.narrow_svg else "")
    return f"<figure{kind}><figcaption>{caption}</figcaption>{block.svg}{block.narrow_svg}</figure>"


def _callout(kind: str, word: str, sign: str) -> Callable[[Any, str], str]:
    def make(block: Warning_ | Good, lang: str) -> str:
        label = words(lang)[word]
        text = escape(shorten(block.text, 1200, lang))
        return f'<div{_class("callout", kind)} role="note" aria-label="{escape(label)}"><b>{sign}</b>{text}</div>'

    return make


RENDER: dict[type, Callable[[Any, str], str]] = {
    Text: _text,
    Table: _table,
    Figure: _figure,
    Facts: lambda block, lang: facts_list(block.facts, "facts", lang),
    Warning_: _callout("", "note", "!"),
    Good: _callout("good", "result", "✓"),
    Code: lambda block, lang: f"<pre>{escape(shorten(block.text, 8000, lang))}</pre>",
}
