"""One self-contained page: a title, the key figures, and sections of blocks, each block a value.

`templates/` turns them into HTML and escapes everything but our own style sheet and drawings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from bertkit.notify import translated
from bertkit.report.format import NOTHING, Between, as_number, between, plain, printable, readable, shorten
from bertkit.report.svg.axes import text_width
from bertkit.report.words import name_of, words

HALF = 58  # characters that fit into half the page
FOLDER = Path(__file__).parent
# base-uri and form-action are not covered by default-src, so they are named.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Text:
    """Paragraphs of an HTML page; a blank line begins a new one."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table of an HTML page. rows: cells by column; a cell is text, a number or a Between.

    align: one letter per column, l, r or c ("" picks by content). heat: column number → (least, most), for shading.
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
    """A figure of an HTML page. svg: markup from `svg/`, the one thing that is not escaped. wide: takes the whole row.

    narrow_svg: drawn instead of `svg` on a phone, where a wide drawing would be too small to read.
    is_grid: svg holds several small drawings, as many beside each other as fit.
    """

    caption: str
    svg: str
    wide: bool = False
    narrow_svg: str = ""
    is_grid: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and their values in an HTML page."""

    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Warning_:
    """Something the reader of an HTML page must not overlook."""

    text: str


@dataclass(frozen=True)
class Good:
    """A block of a page: something that is as it should be, or a verdict."""

    text: str


@dataclass(frozen=True)
class Code:
    """A block of a page: text as it was typed."""

    text: str


Block = Text | Table | Figure | Facts | Warning_ | Good | Code


@dataclass(frozen=True)
class Section:
    """A heading of an HTML page and what is under it."""

    title: str
    body: Sequence[Block] = field(default_factory=list)


class Shown(NamedTuple):
    """A value as the HTML templates print it."""

    text: str
    interval: str = ""


def page(
    title: str,
    sections: Sequence[Section],
    *,
    lang: str = "en",
    subtitle: str = "",
    facts: Mapping[str, object] | None = None,
) -> str:
    """The whole HTML document. facts: the few figures to see first. Sections without a body are left out."""
    return _template("page.html").render(
        lang=lang,
        words=words(lang),
        policy=POLICY,
        css=_style(),
        title=shorten(title, 160, lang),
        subtitle=shorten(subtitle, 400, lang),
        tiles=_facts(facts or {}, lang),
        sections=[_section(section, lang) for section in sections if section.body],
    )


@cache
def _style() -> str:
    return (FOLDER / "report.css").read_text("utf-8").strip()


@cache
def _template(name: str) -> jinja2.Template:
    """A template of the reports, with autoescape on."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def _section(section: Section, lang: str) -> dict[str, Any]:
    """A section of the HTML page: figures, and tables and facts that are as narrow, are placed side by side."""
    groups = groupby(section.body, key=_is_narrow)
    return {
        "title": shorten(section.title, 160, lang),
        "link": shorten(section.title, 60, lang),
        "groups": [(is_narrow, [VIEWS[type(block)](block, lang) for block in run]) for is_narrow, run in groups],
    }


def _is_narrow(block: Block) -> bool:
    """Whether a report's block takes half the page's width."""
    if isinstance(block, Table):
        cells = [[*row] for row in (block.columns, *block.rows)]
        columns = [[_letters(row[c], block.digits) for row in cells if c < len(row)] for c in range(len(block.columns))]
        return sum(max(column) + 4 for column in columns) <= HALF
    if isinstance(block, Facts):
        names = max((_letters(name_, 4) for name_ in block.facts), default=0)
        return names + max((_letters(value, 4) for value in block.facts.values()), default=0) <= HALF - 8
    return isinstance(block, Figure)


def _letters(value: Any, digits: int) -> float:
    """The width of a value in an HTML table, in characters."""
    if isinstance(value, Between):
        return 20.0
    return text_width(str(value) if isinstance(value, str) else plain(value, digits), 1.7)


def shown(value: Any, lang: str, digits: int = 4) -> Shown:
    """One value as the HTML templates print it, whatever it is."""
    if isinstance(value, Between):
        has_interval = value.low is not None and value.high is not None
        return Shown(plain(value.value), f"{plain(value.low, 3)} – {plain(value.high, 3)}" if has_interval else "")
    if isinstance(value, bool):
        return Shown(words(lang)["yes" if value else "no"])
    if isinstance(value, (list, tuple, set, frozenset)):
        return Shown(shorten(", ".join(plain(item, digits) for item in value), lang=lang) if value else NOTHING)
    return Shown(shorten(plain(value, digits), lang=lang))


def _facts(facts: Mapping[str, Any], lang: str) -> list[tuple[str, Shown]]:
    return [(shorten(name, 120, lang), shown(value, lang)) for name, value in facts.items()]


def _text(block: Text, lang: str) -> dict[str, Any]:
    return {"paragraphs": [part for part in shorten(block.text, 4000, lang).split("\n\n") if part.strip()]}


def _table(block: Table, lang: str) -> dict[str, Any]:
    """A table of a report as its template needs it."""
    align = [block.align[c : c + 1] or _side(block.rows, c) for c in range(len(block.columns))]
    is_long = [any(c < len(row) and _is_long(row[c]) for row in block.rows) for c in range(len(block.columns))]
    names = [shorten(name, 80, lang) for name in block.columns]
    heat = block.heat or {}
    return {
        "classes": "" if block.row_names else "stack",
        "caption": shorten(block.caption, 400, lang),
        "columns": [
            {"name": name, "classes": _classes(align[c], "h" if c in heat else "")} for c, name in enumerate(names)
        ],
        "rows": [
            {
                "classes": "best" if number == block.best else "",
                "cells": [
                    {
                        "value": shown(value, lang, block.digits),
                        "names_row": c == 0 and block.row_names and align[0] == "l",
                        "key": None if block.row_names else names[c],
                        "classes": _classes(
                            align[c], _shade(value, heat[c]) if c in heat else "", "long" if is_long[c] else ""
                        ),
                    }
                    for c, value in enumerate(list(row)[: len(names)])
                ],
            }
            for number, row in enumerate(block.rows)
        ],
    }


def _classes(*names: str) -> str:
    return " ".join(name for name in names if name and name != "l")


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > 28


def _side(rows: Sequence[Sequence[Any]], column: int) -> str:
    values = [row[column] for row in rows if column < len(row) and row[column] is not None]
    numbers = [isinstance(value, Between) or (as_number(value) is not None) for value in values]
    return "r" if values and all(numbers) and not isinstance(values[0], bool) else "l"


def _shade(value: Any, ends: tuple[float, float] | None) -> str:
    """The class that colours a cell of a report's table by its value."""
    number = as_number(value.value if isinstance(value, Between) else value)
    if ends is None or number is None:
        return "h"
    share = (number - ends[0]) / (ends[1] - ends[0]) if ends[1] != ends[0] else 0.5
    return f"h h{max(0, min(5, round(5 * share)))}"


def _figure(block: Figure, lang: str) -> dict[str, Any]:
    marks = {"wide": block.wide, "two": bool(block.narrow_svg), "grid-of": block.is_grid}
    classes = _classes(*(name for name, applies in marks.items() if applies))
    return {"classes": classes, "caption": shorten(block.caption, 400, lang), "svg": block.svg + block.narrow_svg}


# The data for the template of each kind of block.
VIEWS: dict[type, Callable[[Any, str], dict[str, Any]]] = {
    Text: lambda block, lang: {"kind": "text", **_text(block, lang)},
    Table: lambda block, lang: {"kind": "table", **_table(block, lang)},
    Figure: lambda block, lang: {"kind": "figure", **_figure(block, lang)},
    Facts: lambda block, lang: {"kind": "facts", "rows": _facts(block.facts, lang)},
    Warning_: lambda block, lang: {"kind": "warning", "text": shorten(block.text, 1200, lang)},
    Good: lambda block, lang: {"kind": "good", "text": shorten(block.text, 1200, lang)},
    Code: lambda block, lang: {"kind": "code", "text": shorten(block.text, 8000, lang)},
}


def table_of(
    caption: str,
    rows: Sequence[Mapping[str, Any]],
    lang: str,
    *,
    only: Sequence[str] = (),
    heat: Sequence[str] = (),
    **look: Any,
) -> list[Block]:
    """Rows of dicts as an HTML table: the keys of `only` that occur, or all keys in order. No rows: nothing.

    heat: the keys whose shares are shaded. look: other fields of the Table.
    """
    keys = [
        key for key in (only or dict.fromkeys(key for row in rows for key in row)) if any(key in row for row in rows)
    ]
    if not keys:
        return []
    cells = [[_cell(key, row.get(key), lang) for key in keys] for row in rows]
    shaded = {n: (0.0, 1.0) for n, key in enumerate(keys) if key in heat}
    return [Table(caption, [name_of(key, lang) for key in keys], cells, heat=shaded, **look)]


def _cell(key: str, value: Any, lang: str) -> Any:
    if isinstance(value, Mapping):
        return between(value)
    return readable(key, value, lang) if key.endswith(("seconds", "sha256", "share")) else value


def notes_of(notes: Sequence[Any], lang: str) -> list[Block]:
    """The notes of a run for its HTML page, each once and in its language; of many, the number is shown."""
    distinct = list(dict.fromkeys(map(str, notes)))
    blocks: list[Block] = [Warning_(translated(note, lang)) for note in distinct[:20]]
    if len(distinct) > 20:
        blocks.append(Text(words(lang)["more"].format(count=len(distinct) - 20)))
    return blocks
