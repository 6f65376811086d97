"""Values to readable text: numbers, durations, sizes, facts and settings; and text made safe for a drawing."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from bertkit.config import to_toml
from bertkit.report.words import name_of, words

NOTHING = "–"
GLUE = "\N{NO-BREAK SPACE}"  # between a number and its unit
LONGEST_CELL = 280
LARGEST = 1e150  # so that sums and squares of drawn values stay finite
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class Between(NamedTuple):
    """A score with its confidence interval: 0.913 (0.890 to 0.935)."""

    value: float | None
    low: float | None = None
    high: float | None = None


def printable(text: object) -> str:
    """Text for a report with control characters and lone surrogates as visible signs."""
    return _UNPRINTABLE.sub(_sign, str(text))


def escape(text: object) -> str:
    """Text that is safe between the tags of a drawing. The templates escape by themselves."""
    return html.escape(printable(text))


def _sign(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else "\N{SYMBOL FOR DELETE}" if code == 0x7F else "\ufffd"


def shorten(text: object, limit: int = LONGEST_CELL, lang: str = "en") -> str:
    """Text for a report of at most about `limit` characters; a shortened one ends with its full length. Not escaped."""
    full = str(text)
    if len(full) <= limit:
        return full
    return f"{full[:limit].rstrip()}… {words(lang)['shortened'].format(length=f'{len(full):,}')}"


def clip(text: object, limit: int) -> str:
    """A name short enough to stand beside a plot: its two ends, with … between them. Not yet escaped."""
    full = " ".join(str(text).split())
    if len(full) <= limit:
        return full
    tail = max(0, (limit - 1) // 3)
    return full[: limit - 1 - tail] + "…" + (full[-tail:] if tail else "")


def as_number(value: Any) -> float | None:
    """A value of a report as a number, or None for texts, NaN, None and absurdly large numbers."""
    if isinstance(value, (str, bytes)) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if not abs(number) < LARGEST else number if abs(number) > 1 / LARGEST else 0.0


def plain(value: Any, digits: int = 4) -> str:
    """A number formatted for a report: 12,345 · 0.9134 · 0.00045 · 3.2e-5; NaN and nothing are –. Not yet escaped.

    digits: how many decimals; a small number has more, so that two significant digits are shown.
    """
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
    power = math.floor(math.log10(abs(number)))
    if power >= 0:
        return f"{number:.{max(0, digits - power - 1)}f}"
    text = f"{number:.{max(digits, 1 - power)}f}"
    spare = len(text.partition(".")[2]) - digits
    return text[:-spare] + text[-spare:].rstrip("0") if spare > 0 else text


def _short_power(text: str) -> str:
    mantissa, power = text.split("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(power)}"


def percent(share: Any, places: int = 1) -> str:
    """A share formatted for a report: 0.123 → 12.3 %."""
    number = as_number(share)
    return NOTHING if number is None else f"{100 * number:.{places}f}{GLUE}%"


def large(value: Any) -> str:
    """A count formatted for a report: 950 · 12.3 k · 4.4 M · 1.2 B."""
    number = as_number(value)
    if number is None:
        return NOTHING
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if letter == 'k' else size):.3g}{GLUE}{letter}"
    return plain(round(number) if number == int(number) else number)


def duration(seconds: Any, lang: str = "en") -> str:
    """A time formatted for a report: 0.42 s · 1 min 5 s · 2 h 3 min."""
    number = as_number(seconds)
    if number is None:
        return NOTHING
    strings = words(lang)
    total = round(number)
    if total < 60:
        return f"{number:.3g}{GLUE}{strings['s']}" if number < 10 else f"{total}{GLUE}{strings['s']}"
    hours, minutes = divmod(total // 60, 60)
    if hours:
        return f"{hours:,}{GLUE}{strings['h']} {minutes}{GLUE}{strings['min']}"
    return f"{minutes}{GLUE}{strings['min']} {total % 60}{GLUE}{strings['s']}"


def between(value: Any, interval: Any = None) -> Between:
    """A score formatted for a report with its interval: a number and (low, high), or {"value", "low", "high"}."""
    if isinstance(value, Mapping):
        return Between(*(as_number(value.get(key)) for key in ("value", "low", "high")))
    ends = [as_number(end) for end in interval][:2] if interval else [None, None]
    return Between(as_number(value), *ends)


def facts_of(facts: Mapping[str, Any], lang: str, table: str = "facts") -> dict[str, Any]:
    """Nested facts formatted as one list of names and values: seconds as time, shares as per cent.

    table: where the outer names are looked up first.
    """
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        name = name_of(key, lang, table)
        if isinstance(value, Mapping):
            flat |= {f"{name} · {inner}": text for inner, text in facts_of(value, lang).items()}
        elif value is not None and value != "" and value != []:
            flat[name] = readable(key, value, lang)
    return flat


def readable(key: str, value: Any, lang: str) -> Any:
    """A value formatted for a report in the unit its key names."""
    if isinstance(value, bool) or as_number(value) is None:
        return clip(value, 19) if key.endswith("sha256") else value
    if key == "seconds" or key.endswith("_seconds"):
        return duration(value, lang)
    if key == "share" or key.endswith("_share"):
        return percent(value)
    return value


def settings_text(settings: Mapping[str, Any]) -> str:
    """Nested settings formatted as a TOML file has them; what is not set is left out."""
    return to_toml(_set(settings)).strip()


def _set(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as TOML has them, without those that are not set."""
    plain_values = {key: _set(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    simple = (bool, int, float, str, list, tuple, dict)
    return {
        key: value if isinstance(value, simple) else str(value)
        for key, value in plain_values.items()
        if value is not None and value != {}
    }
