"""One self-contained page: a title, the key figures, and sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertkit.report.html import (
    Between,
    Block,
    Code,
    Facts,
    Figure,
    Good,
    Section,
    Table,
    Text,
    Warning_,
    facts_list,
    render,
)
from bertkit.report.style import STYLE
from bertkit.report.words import words
from bertkit.report.writing import escape, shorten

__all__ = ["Between", "Block", "Code", "Facts", "Figure", "Good", "Section", "Table", "Text", "Warning_", "page"]

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
