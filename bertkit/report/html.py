"""What a report is made of: each block is a value, `render` makes it HTML, `page` puts them on one page.

Data reaches the page as text between tags only: no attribute is ever made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.report.format import NOTHING, as_number, clip, duration, escape, percent, plain, shorten
from bertkit.report.svg.axes import text_width
from bertkit.report.words import name_of, words

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


# ---- Settings, environments and lists of dicts as blocks.


def settings_text(settings: Mapping[str, Any]) -> str:
    """Nested settings the way a TOML file has them."""
    plain_ones = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    lines = [f"{key} = {_toml(value)}" for key, value in plain_ones.items() if value is not None]
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            inner = settings_text(value).replace("\n[", f"\n[{key}.")
            inner = f"[{key}.{inner[1:]}" if inner.startswith("[") else f"[{key}]\n{inner}"
            lines.append(("\n" if lines else "") + inner)
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def facts_of(facts: Mapping[str, Any], lang: str) -> dict[str, Any]:
    """Nested facts as one list of names and values that read well: seconds as time, shares as per cent."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found |= {f"{name_of(key, lang)} · {inner}": told for inner, told in facts_of(value, lang).items()}
        elif value is not None and value != "" and value != []:
            found[name_of(key, lang)] = readable(key, value, lang)
    return found


def readable(key: str, value: Any, lang: str) -> Any:
    """A value in the unit its key names."""
    if isinstance(value, bool) or as_number(value) is None:
        return clip(value, 19) if key.endswith("sha256") else value
    if key == "seconds" or key.endswith("_seconds"):
        return duration(value, lang)
    if key == "share" or key.endswith("_share"):
        return percent(value)
    return value


def table_of(
    caption: str,
    rows: Sequence[Mapping[str, Any]],
    lang: str,
    *,
    only: Sequence[str] = (),
    heat: Sequence[str] = (),
    **look: Any,
) -> list[Block]:
    """Rows of dicts as a table: the keys of `only` that occur, or all keys in order of appearance. No rows: nothing.

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


def between(value: Any, interval: Any = None) -> Between:
    """A score with its interval: from a number and (low, high), or from {"value", "low", "high"}."""
    if isinstance(value, Mapping):
        return Between(*(as_number(value.get(key)) for key in ("value", "low", "high")))
    ends = [as_number(end) for end in interval][:2] if interval else [None, None]
    return Between(as_number(value), *ends)


def notes_of(notes: Sequence[Any], lang: str) -> list[Block]:
    """What was told during the run, each once; many are counted."""
    once = list(dict.fromkeys(map(str, notes)))
    blocks: list[Block] = [Warning_(note) for note in once[:20]]
    if len(once) > 20:
        blocks.append(Text(words(lang)["more"].format(count=len(once) - 20)))
    return blocks


# ---- One self-contained page: a title, the key figures, and sections.

STYLE = Path(__file__).with_name("report.css").read_text("utf-8").strip()  # light, dark, phone and paper
# base-uri and form-action are not covered by default-src, so they are named.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page(
    title: str,
    sections: Sequence[Section],
    *,
    lang: str = "en",
    subtitle: str = "",
    facts: Mapping[str, object] | None = None,
) -> str:
    """The whole HTML document. facts: the few figures to see first. Sections without a body are left out."""
    said = words(lang)
    shown = [section for section in sections if section.body]
    head = f"<h1>{escape(shorten(title, 160, lang))}</h1>"
    if subtitle:
        head += f'<p class="subtitle">{escape(shorten(subtitle, 400, lang))}</p>'
    links = "".join(
        f'<li><a href="#s{n}">{escape(shorten(section.title, 60, lang))}</a></li>' for n, section in enumerate(shown, 1)
    )
    nav = f'<nav aria-label="{escape(said["contents"])}"><ul>{links}</ul></nav>' if len(shown) > 2 else ""
    body = "".join(
        f'<section id="s{n}"><h2>{escape(shorten(section.title, 160, lang))}</h2>'
        f"{render(section.body, lang)}</section>\n"
        for n, section in enumerate(shown, 1)
    )
    return (
        f'<!doctype html>\n<html lang="{lang}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(shorten(title, 160, lang))}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header>{head}{facts_list(facts or {}, 'tiles', lang)}{nav}</header>\n"
        f"<main>\n{body}</main>\n<footer>{escape(said['footer'])}</footer>\n</body>\n</html>\n"
    )
