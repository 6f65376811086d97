"""Settings, environments and lists of dicts as blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.report.html import Between, Block, Table, Text, Warning_
from bertkit.report.words import name_of, words
from bertkit.report.writing import as_number, clip, duration, percent


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


def told(notes: Sequence[Any], lang: str) -> list[Block]:
    """What was told during the run, each once; many are counted."""
    once = list(dict.fromkeys(map(str, notes)))
    blocks: list[Block] = [Warning_(note) for note in once[:20]]
    if len(once) > 20:
        blocks.append(Text(words(lang)["more"].format(count=len(once) - 20)))
    return blocks
