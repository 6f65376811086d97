"""Which column is which: by name, by number (from 1), or by one of the names the well-known data sets use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertkit.errors import UserError, suggest
from bertkit.notify import note

# Other names of a default column, as GLUE, SNLI, CLUE and the common review sets spell them (compared without case).
ALIASES: dict[str, tuple[str, ...]] = {
    "text": ("sentence", "text_a", "review", "content", "message", "comment", "tweet", "question", "headline", "body"),
    "label": ("gold_label", "labels", "score", "class", "category", "target", "sentiment", "quality", "is_duplicate"),
}
# Names that come in twos.
PAIRS: tuple[tuple[str, str], ...] = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("question", "sentence"),
    ("#1 string", "#2 string"),
)
KNOWN = {"text", "text_b", "label", *ALIASES["text"], *ALIASES["label"], *(name for pair in PAIRS for name in pair)}


def looks_like_header(cells: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a first row names columns: it has a column that was asked for, or one whose name is well known.

    Where all columns are asked for by number, only the cells at those places count: a well-known name may also be a
    label (a kind of message called 'question').
    """
    stripped = [cell.strip() for cell in cells]
    if any(name in stripped for name in wanted if as_number(name) is None):
        return True
    places = [as_number(name) for name in wanted]
    if not places or None in places:
        return not KNOWN.isdisjoint(cell.casefold() for cell in stripped)
    first, *others = (stripped[n].casefold() if n is not None and n < len(stripped) else "" for n in places)
    return first in KNOWN or not {"label", *ALIASES["label"]}.isdisjoint(others)


def asks_for_pairs(columns: Sequence[str], text_b: str) -> bool:
    """Whether second texts are meant: their column was named, or is there under the usual names."""
    return text_b != "text_b" or text_b in columns or has_pair(columns)


def has_pair(columns: Sequence[str]) -> bool:
    """Whether there are two columns of texts by names that come in twos."""
    names = {column.strip().casefold() for column in columns}
    return any(names.issuperset(pair) for pair in (("text", "text_b"), *PAIRS))


def as_number(name: str) -> int | None:
    """The position (from 0) that '2' means, or None for a name."""
    return int(name) - 1 if name.isascii() and name.isdigit() and 0 < len(name) < 6 else None


def resolve(
    path: str | Path, columns: Sequence[str], *, text: str, text_b: str | None, label: str | None, label_needed: bool
) -> dict[str, str | None]:
    """The file's names for the wanted columns; well-known other names are used, and told, where a default is absent.

    Returns {"text": name, "text_b": name or None, "label": name or None}.
    """
    by_case = {column.strip().casefold(): column for column in columns}
    found: dict[str, str | None] = {"text": text, "text_b": text_b, "label": label}
    if text_b is not None and (text, text_b) == ("text", "text_b") and not (text in columns and text_b in columns):
        pairs = [(by_case[a], by_case[b]) for a, b in (("text", "text_b"), *PAIRS) if a in by_case and b in by_case]
        if len(pairs) == 1:
            found["text"], found["text_b"] = pairs[0]
    elif text == "text" and text not in columns and text_b is None:
        found["text"] = _alias("text", by_case) or text
    if label == "label" and label not in columns:
        found["label"] = _alias("label", by_case) or label
    for role, name in found.items():
        if name is None or name in columns:
            continue
        if role == "label" and not label_needed:
            found[role] = None
            continue
        raise UserError(_no_column(path, columns, role, name))
    used = {name for name in found.values() if name}
    if len(used) < sum(name is not None for name in found.values()):
        raise UserError(f"{path}: one column is to be two things: {_shown(found)}. Name three different ones.")
    if found != {"text": text, "text_b": text_b, "label": found["label"] and label}:
        note(f"{path}: reading {_shown(found)}.")
    return found


def _alias(role: str, by_case: dict[str, str]) -> str | None:
    names = [by_case[alias] for alias in (role, *ALIASES[role]) if alias in by_case]
    return names[0] if len(names) == 1 else None


def _shown(found: dict[str, str | None]) -> str:
    return ", ".join(f"{role} from column {name!r}" for role, name in found.items() if name)


def _no_column(path: str | Path, columns: Sequence[str], role: str, name: str) -> str:
    option = "--" + role.replace("_", "-")
    shown = [column if len(column) <= 30 else column[:29] + "…" for column in columns[:20]]
    close = suggest(name, shown) if shown else ""
    close = close + " " if close.startswith("Did you mean") else ""
    return (
        f"{path}: there is no column {name!r}. {close}The columns are: {' | '.join(shown)}. "
        f"Name one with {option} NAME, or in a file without header by its number ({option} 2)."
    )
