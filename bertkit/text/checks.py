"""The boundary to the tokenizers library: checks of its input, and messages for its failures."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from bertkit.errors import DamagedFile, UserError

EXAMPLES, BEGINNING = 50, 500  # texts with unknown pieces that are kept, and how many characters of each


@dataclass
class UnknownPieces:
    """How many pieces of all texts so far a tokenizer did not know. examples: the first texts with such pieces."""

    unknown: int = 0
    pieces: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of unknown pieces among all."""
        return self.unknown / max(self.pieces, 1)

    def add(self, text: str, unknown: int, pieces: int) -> None:
        """Count one text's unknown pieces."""
        self.pieces += max(pieces, 0)
        if unknown:
            self.unknown += unknown
            if len(self.examples) < EXAMPLES:
                self.examples.append(text[:BEGINNING])


class BadRow(UserError):
    """One of several texts cannot be used. number: which, from 0; what: its name in messages; fault: why not."""

    def __init__(self, number: int, fault: str, what: str = "Text") -> None:
        super().__init__(f"Text {number + 1} {fault}" if what == "Text" else f"{what} {number + 1} {fault}")
        self.number, self.fault, self.what = number, fault, what


def refuse_bad_text(text: object, where: str) -> None:
    """Raise a UserError that names the place if `text` is not a string, or has a NUL or a lone surrogate."""
    if fault := _fault(text):
        raise UserError(f"{where} {fault}")


def refuse_bad_rows(texts: Sequence[str], what: str = "Row") -> None:
    """Like `refuse_bad_text` for each of many texts; the message counts rows from 1."""
    for number, text in enumerate(texts):
        if fault := _fault(text):
            raise BadRow(number, fault, what)


def _fault(text: object) -> str:
    """What is wrong with a text that the tokenizer cannot take; empty if nothing is."""
    if not isinstance(text, str):
        return f"is {type(text).__name__} {text!r:.60}, not text. Convert it to a string first."
    if "\0" in text:
        return f"has a NUL character at position {text.index(chr(0))}. Remove it."
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return (
                f"has a lone surrogate (U+{ord(text[error.start]):04X}) at position "
                f"{error.start}. The file was read with the wrong encoding: read it again as UTF-8."
            )
    return ""


@contextmanager
def by_line(lines: Sequence[int], file: str = "") -> Iterator[None]:
    """Name a bad text's row by its line in the user's file, not by its index in the batch. lines: one per row."""
    try:
        yield
    except BadRow as bad:
        if not (line := lines[bad.number]):  # made in Python, not read
            raise
        what, why = bad.what.lower(), bad.fault
        message = f"{file}, line {line}: the {what} {why}" if file else f"Line {line}: the {what} {why}"
        raise UserError(message) from None


@contextmanager
def of_row(number: int) -> Iterator[None]:
    """Report a text that cannot be used inside a row (its words, its choices) as an error of row `number`, from 0."""
    try:
        yield
    except UserError as error:
        raise BadRow(number, f"cannot be read. {error}") from None


@contextmanager
def tokenizer_panics(what: str, error_class: type[UserError] = UserError) -> Iterator[None]:
    """Turn a Rust panic into an `error_class` that begins with `what`; every other exception passes."""
    try:
        yield
    except BaseException as error:
        # It reaches Python as PanicException, which is deliberately no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise error_class(f"{what}: the tokenizers library failed ({error}).") from error


@contextmanager
def tokenizer_errors(what: str, error_class: type[UserError] = UserError) -> Iterator[None]:
    """Turn any failure of the tokenizers library into an `error_class` that begins with `what`."""
    try:
        with tokenizer_panics(what, error_class):
            yield
    except UserError:
        raise
    except Exception as error:
        raise error_class(f"{what}: {error}") from error


# ---- Tokenizers that anyone may have written

MOST_GROWTH = 64  # times that the normalizer may lengthen a text: NFKC makes 18 characters of one
MOST_ADDED = 64  # tokens that the template may put around two texts
MOST_GAPS = 16  # ids per piece: a table of rows is made for every id up to the largest


def refuse_harmful(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Refuse a tokenizer that multiplies texts, or whose ids lie far beyond its pieces. path: its file."""
    ids = backend.get_vocab().values()
    if max(ids, default=0) > MOST_GAPS * len(ids) + 65_536:
        raise DamagedFile(f"{path}: has the id {max(ids):,} but only {len(ids):,} pieces. Download it again.")
    growth = math.prod(map(_growth, _rules(backend.normalizer)))
    if growth > MOST_GROWTH:
        raise DamagedFile(f"{path}: its rules may make a text {growth:,.0f} times as long. Use another tokenizer.")
    split = sum(rule.get("type") == "Split" for rule in _rules(backend.pre_tokenizer))
    if split > MOST_ADDED:
        raise DamagedFile(f"{path}: splits every text by {split:,} patterns. Use another tokenizer.")
    with tokenizer_errors(f"{path}: cannot encode a text", DamagedFile):
        around = [backend.encode("", pair).ids for pair in (None, "")]
    if max(map(len, around)) > MOST_ADDED or max(map(_texts, _rules(backend.post_processor)), default=0) > 2:
        raise DamagedFile(f"{path}: its template repeats texts, or adds many tokens to each. Use another tokenizer.")
    if (highest := max((number for some in around for number in some), default=0)) > max(ids, default=0):
        raise DamagedFile(f"{path}: its template adds the id {highest:,}, which has no piece. Download it again.")


def _rules(part: Any) -> Iterator[dict[str, Any]]:
    """The rules of a tokenizer's normalizer, pre-tokenizer or post-processor, laid out flat to be checked."""
    waiting = [json.loads(part.__getstate__())] if part is not None else []
    while waiting:
        rule = waiting.pop()
        yield rule
        for inside in ("normalizers", "pretokenizers", "processors"):
            waiting += rule.get(inside) or []


def _growth(rule: dict[str, Any]) -> float:
    """How many times as long a rule of a tokenizer may make a text."""
    if rule["type"] == "Replace":
        replaced = rule["pattern"].get("String")
        # A regular expression may match the empty string before every character.
        return max(1.0, len(rule["content"]) / len(replaced)) if replaced else 1.0 + len(rule["content"])
    if rule["type"] == "Prepend":
        return 1.0 + len(rule["prepend"]) / 64  # once a text: only a very long one matters
    if rule["type"] == "Precompiled":
        table = base64.b64decode(rule["precompiled_charsmap"])
        texts = table[4 + int.from_bytes(table[:4], "little") :]
        return max(1.0, max(map(len, texts.split(b"\0"))) / MOST_GROWTH)  # whole ligatures are spelled out
    return 1.0


def _texts(rule: dict[str, Any]) -> int:
    """How many texts a tokenizer's template of a pair holds."""
    sides = [[part for part in rule.get(side) or [] if "Sequence" in part] for side in ("single", "pair")]
    return max(len(sides[0]) * 2, len(sides[1]))
