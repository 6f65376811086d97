"""How library code notifies without printing: notes and progress go to a listener.

`note` is for what the user must know (rows dropped, tokens truncated, precision used); `track` wraps a
long iteration. By default, notes go to the `bertkit` logger and progress is discarded; the command
line installs a terminal listener.

Messages are written in English. `translated` gives a line in the language of the program (`speak`), by the table of
templates `messages/zh.toml`; the command line calls it where a line leaves the program.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol, TypeVar
from unicodedata import category, east_asian_width

Item = TypeVar("Item")
_log = logging.getLogger("bertkit")


class Listener(Protocol):
    """Who is notified: where notes and progress go."""

    def note(self, message: str) -> None:
        """Show a note that the user must know about."""

    def status(self, message: str) -> None:
        """Show the progress of a long run."""

    def track(self, items: Iterable[Item], label: str, total: int | None) -> Iterator[Item]:
        """Yield the items while showing progress."""
        yield from items


class _Logger:
    def note(self, message: str) -> None:
        _log.warning(message)

    def status(self, message: str) -> None:
        _log.info(message)

    def track(self, items: Iterable[Item], label: str, total: int | None) -> Iterator[Item]:
        yield from items


_listener: Listener = _Logger()
called: dict[str, str] = {}  # names that mean nothing to the user → what messages say instead


def listen(listener: Listener) -> None:
    """Send notes and progress to `listener` from now on."""
    global _listener
    _listener = listener


class _Nobody:
    def note(self, message: str) -> None:
        pass

    status = note

    def track(self, items: Iterable[Item], label: str, total: int | None) -> Iterator[Item]:
        yield from items


@contextmanager
def unheard() -> Iterator[None]:
    """Notify nobody for a while: of what is read twice, the other reading tells the user."""
    listener = _listener
    listen(_Nobody())
    try:
        yield
    finally:
        listen(listener)


def note(message: str) -> None:
    """Notify the user of something they must know."""
    _listener.note(renamed(message))


def status(message: str) -> None:
    """Report progress of a long run; the next status replaces this one."""
    _listener.status(renamed(message))


def track(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """Iterate over items while the listener shows progress. `total`: the number of items."""
    yield from _listener.track(items, renamed(label), total)


def renamed(message: str) -> str:
    """A message with the user's own names for what has another inside (`called`)."""
    for name, users in tuple(called.items()):
        message = message.replace(name, users)
    return message


# What a terminal takes for a command or that turns the writing direction: C0 without tab and newline, DEL, C1, the
# marks, embeddings, overrides and isolates of the bidirectional algorithm, line and paragraph separators.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def visible(message: str) -> str:
    """Text from anywhere, safe for a terminal: control characters and changes of direction are spelled out.

    They become `\\u001b` and the like, which inside a JSON string mean the same characters.
    """
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", message)


def columns(text: str) -> int:
    """How many columns a terminal shows a text in: a Chinese character takes two, an accent or a joiner none."""
    wide = sum(east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(category(character) in ("Mn", "Me", "Cf") for character in text)


def padded(text: str, width: int) -> str:
    """A text with spaces behind it, as many as fill the columns of a terminal that it leaves free."""
    return text + " " * (width - columns(text))


# What stays together at the end of a line: a word, or one Chinese character, with the punctuation around it.
_UNBROKEN = re.compile(r" *[（“《「]*(?:[^\s\u2e80-\uffef“”]+|[\u2e80-\uffef“”])[，。；：、？！）”》」]*")


def wrapped(text: str, width: int) -> list[str]:
    """A text in lines of so many columns, broken at spaces and between Chinese characters, never inside a word."""
    lines = [""]
    for piece in _UNBROKEN.findall(text):
        if lines[-1] and columns(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip(" ")
    return lines


def duration(seconds: float) -> str:
    """A time for the terminal: 4 min 05 s, or 2 h 03 min."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def short_count(count: float) -> str:
    """A large count for the terminal: 7.2M, 35k, or 812 as it is."""
    if count >= 999_500:
        return f"{count / 1e6:.1f}M"
    return f"{count / 1e3:.0f}k" if count >= 9_950 else f"{count:,.0f}"


# ---- The language of what is printed.

LANGUAGES = ("en", "zh")
MESSAGES = Path(__file__).parent / "messages"
DEEPEST = 8  # messages inside each other
_language = "en"


def speak(language: str) -> None:
    """Notify in this language from now on."""
    global _language
    _language = language


def language() -> str:
    """The language of messages, and of reports whose settings name none."""
    return _language


def translated(line: str, language: str = "", *, is_part: bool = False) -> str:
    """A message to the user in a language (default: the program's); as it is if the table has no template for it.

    Values are left alone, except where the table asks for it: a suggestion is a message inside a message. is_part: it
    is not a line but what may stand in one, such as the reason why something is left out.
    """
    language = language or _language
    return line if language == "en" or not line.strip() else _translated(line, language, int(is_part))


@lru_cache(1024)
def _translated(line: str, language: str, level: int = 0) -> str:
    """A message in a language. level: in how many others it is."""
    exact, templates = _table(language, nested=level > 0)
    if line in exact:
        return exact[line]
    if level == 0 and (row := _row(line, language)):
        return row
    text = line.strip()
    start = line.index(text)
    for parts, words in templates if level < DEEPEST else ():
        found = values_of(parts, text)
        if found is None:
            continue
        values = [_Value(value, language, level + 1) for value in found]
        for value, before in zip(values, parts):
            if before:
                break
            value.is_place = _PLACE.fullmatch(value.value) is not None
        if all(f"{values[int(n)]:T}" != found[int(n)].strip() for n in _NESTED.findall(words)):
            return line[:start] + words.format(*values) + line[start + len(text) :]
    return line


def _row(line: str, language: str) -> str:
    """A row of a table whose first column is in the section `rows`: with its Chinese, as wide; "" for other lines."""
    found = _ROW.fullmatch(line)
    names = _rows(language) if found else {}
    if found is None or found[2] not in names:
        return ""
    indent, name, gap, rest = found.groups()
    return indent + padded(names[name], len(name + gap)) + _translated(rest, language, 1)


def values_of(parts: Sequence[str], text: str) -> list[str] | None:
    """The values that a message has between the parts of a template, each as short as can be; None: it is another one.

    Not a regular expression: one of five values takes seconds to find out that a paragraph is another message.
    """
    first, *between, last = parts
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return None
    values = []
    for part in between:
        place = text.find(part, at, end)
        if place < 0:
            return None
        values.append(text[at:place])
        at = place + len(part)
    return [*values, text[at:end]]


# A row of a table: its name, two spaces or more, and the numbers.
_ROW = re.compile(r"( *)(\S.*?)( {2,})(\S.*)")
# Where in a file something is, which a message begins with.
_PLACE = re.compile(r".+, (line|row) [\d,]+", re.DOTALL)
# A value that has to be a message itself: a template of few words, such as "{}: {}.", holds only where it is.
_NESTED = re.compile(r"\{(\d+):T\}")


class _Value:
    """A value of a message; in the table, {0:t} translates it, and {0:T} makes the template depend on that."""

    def __init__(self, value: str, language: str, level: int) -> None:
        self.value, self.language, self.level = value, language, level
        self.is_place = False

    def __format__(self, how: str) -> str:
        asked = how in ("t", "T") or self.is_place
        return _translated(self.value.strip(), self.language, self.level) if asked else self.value


@cache
def _sections(language: str) -> dict[str, dict[str, str]]:
    """The file of translated messages, by section."""
    import tomllib

    return tomllib.loads((MESSAGES / f"{language}.toml").read_text("utf-8"))


def _rows(language: str) -> dict[str, str]:
    """The names of rows in tables that the program prints."""
    return _sections(language).get("rows", {})


@cache
def _table(language: str, nested: bool) -> tuple[dict[str, str], list[tuple[list[str], str]]]:
    """The table of translated messages: whole lines, and templates in their parts, those with the most words first.

    nested: also its section `values`, of parts of messages that would be found in a user's own lines.
    """
    tables = _sections(language)
    parts = [table for name, table in tables.items() if nested or name != "values"]
    entries = {english: words for table in parts for english, words in table.items()}
    by_length = sorted((english for english in entries if "{}" in english), key=lambda e: -len(e.replace("{}", "")))
    return {english: words for english, words in entries.items() if "{}" not in english}, [
        (english.strip().split("{}"), entries[english]) for english in by_length
    ]
