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
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

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


def listen(listener: Listener) -> None:
    """Send notes and progress to `listener` from now on."""
    global _listener
    _listener = listener


def note(message: str) -> None:
    """Notify the user of something they must know."""
    _listener.note(message)


def status(message: str) -> None:
    """Report progress of a long run; the next status replaces this one."""
    _listener.status(message)


def track(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """Iterate over items while the listener shows progress. `total`: the number of items."""
    yield from _listener.track(items, label, total)


# What a terminal takes for a command or that turns the writing direction: C0 without tab and newline, DEL, C1, the
# marks, embeddings, overrides and isolates of the bidirectional algorithm, line and paragraph separators.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def visible(message: str) -> str:
    """Text from anywhere, safe for a terminal: control characters and changes of direction are spelled out.

    They become `\\u001b` and the like, which inside a JSON string mean the same characters.
    """
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", message)


def duration(seconds: float) -> str:
    """A time for the terminal: 4 min 05 s, or 2 h 03 min."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


# ---- The language of what is printed.

LANGUAGES = ("en", "zh")
MESSAGES = Path(__file__).parent / "messages"
_language = "en"


def speak(language: str) -> None:
    """Notify in this language from now on."""
    global _language
    _language = language


def language() -> str:
    """The language of messages, and of reports whose settings name none."""
    return _language


def translated(line: str, language: str = "") -> str:
    """A message to the user in a language (default: the program's); as it is if the table has no template for it.

    Values are left alone, except where the table asks for it: a suggestion is a message inside a message.
    """
    language = language or _language
    if language == "en" or not line.strip():
        return line
    exact, templates = _table(language)
    if line in exact:
        return exact[line]
    text = line.strip()
    start = line.index(text)
    for pattern, words in templates:
        match = pattern.fullmatch(text)
        if match and all(translated(match[int(n) + 1], language) != match[int(n) + 1] for n in _NESTED.findall(words)):
            values = [_Value(value, language) for value in match.groups()]
            return line[:start] + words.format(*values) + line[start + len(text) :]
    return line


# A value that has to be a message itself: a template of few words, such as "{}: {}.", holds only where it is.
_NESTED = re.compile(r"\{(\d+):T\}")


class _Value:
    """A value of a message; in the table, {0:t} translates it, and {0:T} makes the template depend on that."""

    def __init__(self, value: str, language: str) -> None:
        self.value, self.language = value, language

    def __format__(self, how: str) -> str:
        return translated(self.value.strip(), self.language) if how in ("t", "T") else self.value


@cache
def _table(language: str) -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """The table of translated messages: whole lines, and templates as patterns, those with the most words first."""
    import tomllib

    tables = tomllib.loads((MESSAGES / f"{language}.toml").read_text("utf-8"))
    entries = {english: words for table in tables.values() for english, words in table.items()}
    by_length = sorted((english for english in entries if "{}" in english), key=lambda e: -len(e.replace("{}", "")))
    return {english: words for english, words in entries.items() if "{}" not in english}, [
        (re.compile(re.escape(english.strip()).replace(r"\{\}", "(.*?)"), re.DOTALL), entries[english])
        for english in by_length
    ]
