"""Values to safe, readable text: escaping, shortening, numbers, durations and sizes."""

from __future__ import annotations

import html
import math
import re
from typing import Any

from bertkit.report.words import words

NOTHING = "–"
GLUE = "\N{NO-BREAK SPACE}"  # between a number and its unit
LONGEST_CELL = 280
LARGEST = 1e150  # so that sums and squares of what is drawn stay finite
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def escape(text: object) -> str:
    """Text that is safe between tags. Control characters and lone surrogates become visible signs."""
    return html.escape(_UNPRINTABLE.sub(_sign, str(text)))


def _sign(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else "\N{SYMBOL FOR DELETE}" if code == 0x7F else "\ufffd"


def shorten(text: object, limit: int = LONGEST_CELL, lang: str = "en") -> str:
    """At most about `limit` characters; what was left out is told with the full length. Not yet escaped."""
    whole = str(text)
    if len(whole) <= limit:
        return whole
    return f"{whole[:limit].rstrip()}… {words(lang)['shortened'].format(length=f'{len(whole):,}')}"


def clip(text: object, limit: int) -> str:
    """A name short enough to stand beside a plot: its two ends, with … between them. Not yet escaped."""
    whole = " ".join(str(text).split())
    if len(whole) <= limit:
        return whole
    tail = max(0, (limit - 1) // 3)
    return whole[: limit - 1 - tail] + "…" + (whole[-tail:] if tail else "")


def as_number(value: Any) -> float | None:
    """The number that `value` is, or None: for texts, NaN, nothing, and what is too large to draw or to believe."""
    if isinstance(value, (str, bytes)) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if not abs(number) < LARGEST else number if abs(number) > 1 / LARGEST else 0.0


def plain(value: Any, digits: int = 4) -> str:
    """A number for people: 12,345 · 0.9134 · 3.2e-05; NaN and nothing are –. Not yet escaped."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    number = as_number(value)
    if number is None:
        return str(value)
    if number == int(number) and (not isinstance(value, float) or abs(number) >= 1000):
        return f"{int(number):,}"
    if number == 0:
        return "0"
    if abs(number) < 1e-4 or abs(number) >= 1e12:
        return _short_power(f"{number:.{max(0, digits - 2)}e}")
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    places = max(0, digits - max(1, math.floor(math.log10(abs(number))) + 1)) if abs(number) >= 1 else digits
    return f"{number:.{places}f}"


def _short_power(text: str) -> str:
    mantissa, power = text.split("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(power)}"


def percent(share: Any, places: int = 1) -> str:
    """0.123 → 12.3 %."""
    number = as_number(share)
    return NOTHING if number is None else f"{100 * number:.{places}f}{GLUE}%"


def large(value: Any) -> str:
    """A count at a glance: 950 · 12.3 k · 4.4 M · 1.2 B."""
    number = as_number(value)
    if number is None:
        return NOTHING
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if letter == 'k' else size):.3g}{GLUE}{letter}"
    return plain(round(number) if number == int(number) else number)


def duration(seconds: Any, lang: str = "en") -> str:
    """0.42 s · 1 min 5 s · 2 h 3 min."""
    number = as_number(seconds)
    if number is None:
        return NOTHING
    said = words(lang)
    if number < 60:
        return f"{number:.3g}{GLUE}{said['s']}" if number < 10 else f"{number:.0f}{GLUE}{said['s']}"
    whole = round(number)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours:,}{GLUE}{said['h']} {minutes}{GLUE}{said['min']}"
    return f"{minutes}{GLUE}{said['min']} {whole % 60}{GLUE}{said['s']}"
