"""Every word of the reports, from `words/en.toml` and `words/zh.toml`, which have the same keys.

`words` gives the sentences; `name_of` the name of a metric, a setting or a fact, or its key made readable.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from bertkit.errors import UserError, suggest

LANGUAGES = ("en", "zh")
FOLDER = Path(__file__).parent / "words"


@cache
def tables(lang: str) -> dict[str, dict[str, str]]:
    """All tables of a language: `text` holds the sentences, the others names."""
    if lang not in LANGUAGES:
        raise UserError(f"lang is {lang!r}; reports are written in en or zh. {suggest(lang, list(LANGUAGES))}")
    return tomllib.loads((FOLDER / f"{lang}.toml").read_text("utf-8"))


def words(lang: str) -> dict[str, str]:
    """The sentences of a language."""
    return tables(lang)["text"]


def name_of(key: str, lang: str) -> str:
    """A key in the reader's words; an unknown key has its underscores replaced."""
    names = tables(lang)["names"]
    head, dot, rest = key.partition(" · ")
    return names.get(key) or (f"{names.get(head, head)}{dot}{rest}" if dot else key.replace("_", " "))
