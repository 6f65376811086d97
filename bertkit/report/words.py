"""Every word of the reports, from `words/en.toml` and `words/zh.toml`, which have the same keys.

`words` gives the sentences, `sentence_of` fills one in, `rows_of` says which rows they are about, and `name_of` is the
name of a metric, a column, a task, a role or a fact.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from bertkit.errors import UserError, suggest

LANGUAGES = ("en", "zh")
_BETWEEN_CHINESE = re.compile(r"(?<=[\u4e00-\u9fff]) (?=[\u4e00-\u9fff])")
FOLDER = Path(__file__).parent / "words"


@cache
def tables(lang: str) -> dict[str, dict[str, str]]:
    """All words of a report's language: `text` holds the sentences, the others names."""
    if lang not in LANGUAGES:
        raise UserError(f"lang is {lang!r}; reports are written in en or zh. {suggest(lang, list(LANGUAGES))}")
    return tomllib.loads((FOLDER / f"{lang}.toml").read_text("utf-8"))


def words(lang: str) -> dict[str, str]:
    """The sentences of a report's language."""
    return tables(lang)["text"]


def sentence_of(key: str, lang: str, **values: object) -> str:
    """A sentence of a report with its values. Where a value is Chinese, the spaces beside it go."""
    return _BETWEEN_CHINESE.sub("", words(lang)[key].format(**values))


def rows_of(role: object, lang: str) -> str:
    """The report's words for the rows of a role inside a sentence: the test rows. Unknown: held-out rows."""
    table = tables(lang)["rows"]
    return table.get(str(role), table["held_out"])


def name_of(key: str, lang: str, table: str = "names") -> str:
    """A key in the words of a report's reader, by `table` first; an unknown key has its underscores replaced.

    One key may mean two things: `precision` is a metric, and in `facts` the precision of numbers; `choose` is a role
    of rows in `roles`, and in `tasks` multiple choice.
    """
    names = tables(lang)["names"] | tables(lang)[table]
    head, dot, rest = key.partition(" · ")
    return names.get(key) or (f"{names.get(head, head)}{dot}{rest}" if dot else key.replace("_", " "))
