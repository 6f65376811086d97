"""Conditions on the columns of documents, such as `year > 2020 and lang = "zh"`. Parsed; nothing is run as code.

    condition   = all ("or" all)*
    all         = single ("and" single)*
    single      = "not" single | "(" condition ")" | COLUMN OPERATOR VALUE | COLUMN "in" "(" VALUE ("," VALUE)* ")"
    OPERATOR    = "=" | "!=" | "<" | "<=" | ">" | ">=" | "contains"
    VALUE       = "text" | 'text' | number | true | false

A document without the column matches no comparison with it.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from bertkit.errors import UserError, suggest

Test = Callable[[Any, Any], bool]
TESTS: dict[str, Test] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "contains": lambda value, given: str(given) in str(value),
}  # fmt: skip
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w]))
    |(?P<name>[^\W\d][\w.-]*|`[^`]+`)
    |(?P<sign><=|>=|!=|==|[=<>(),]))""",
    re.VERBOSE,
)
# A number as text, for Python and PostgreSQL alike; longer ones are text.
NUMBER = r"^ *[-+]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][-+]?[0-9]{1,3})? *$"
LONGEST_NUMBER = 300  # characters; Python reads 4,300 digits, and a float has at most 309 before its point
DEEPEST = 50  # brackets and nots inside each other


class Columns:
    """The columns of the passages of an index: every distinct value once, and its number for each passage."""

    def __init__(self, values: dict[str, list[Any]], numbers: np.ndarray) -> None:
        self.values, self.numbers = values, numbers

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> Columns:
        """The passages' columns. rows: the values of each passage by column."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        places: list[dict[tuple[type, Any], int]] = [{} for _ in names]
        numbers = np.full((len(rows), len(names)), -1, np.int32)
        for n, row in enumerate(rows):
            for column, name in enumerate(names):
                if name in row:
                    key = (type(row[name]), row[name])  # True is not 1
                    numbers[n, column] = places[column].setdefault(key, len(places[column]))
        return cls({name: [value for _, value in places[n]] for n, name in enumerate(names)}, numbers)

    def save(self, folder: Path) -> None:
        """Save the passages' columns as columns.json and columns.npy."""
        (folder / "columns.json").write_text(json.dumps(self.values, ensure_ascii=False), "utf-8")
        np.save(folder / "columns.npy", self.numbers)

    @classmethod
    def read(cls, values: dict[str, list[Any]], numbers: np.ndarray, passages: int) -> Columns:
        """The passages' columns as columns.json and columns.npy have them."""
        if numbers.shape != (passages, len(values)) or any(
            passages and numbers[:, n].max() >= len(given) for n, given in enumerate(values.values())
        ):
            raise ValueError("columns.json and columns.npy do not fit each other")
        return cls(values, numbers)

    def matching(self, name: str, test: Callable[[Any], bool]) -> np.ndarray:
        """Which passages have a value in the column that passes: (passages,)."""
        if name not in self.values:
            return np.zeros(len(self.numbers), bool)
        passes = np.array([*(test(value) for value in self.values[name]), False], bool)  # the last: no value
        return passes[self.numbers[:, list(self.values).index(name)]]


class Where:
    """A parsed condition."""

    def __init__(self, condition: str) -> None:
        self.condition = condition
        self.tokens = _tokens(condition)
        self.at = self.depth = 0
        self.names: set[str] = set()
        self.tree = self._any()
        if self.at < len(self.tokens):
            self._refuse(f"{self.tokens[self.at][1]!r} was not expected there")

    def mask(self, columns: Columns) -> np.ndarray:
        """Which passages a condition on columns holds for: (passages,)."""
        return _mask(self.tree, columns)

    def check(self, known: Sequence[str]) -> None:
        """Refuse a condition on a column that no document has."""
        for name in sorted(self.names - set(known)):
            has = suggest(name, list(known)) if known else "The documents have no columns."
            raise UserError(f"--where {self.condition}: no document has a column {name!r}. {has}")

    # ---- The parser, a method for each rule of the grammar

    def _any(self) -> tuple[Any, ...]:
        """Parse conditions joined by "or"."""
        parts = [self._all()]
        while self._take("name", "or"):
            parts.append(self._all())
        return ("or", *parts) if len(parts) > 1 else parts[0]

    def _all(self) -> tuple[Any, ...]:
        """Parse conditions joined by "and"."""
        parts = [self._single()]
        while self._take("name", "and"):
            parts.append(self._single())
        return ("and", *parts) if len(parts) > 1 else parts[0]

    def _single(self) -> tuple[Any, ...]:
        """Parse a single condition, not too deeply nested."""
        self.depth += 1
        if self.depth > DEEPEST:
            self._refuse("it is nested too deeply")
        tree = self._bare()
        self.depth -= 1
        return tree

    def _bare(self) -> tuple[Any, ...]:
        """Parse a condition that is negated, in brackets, or a comparison of a column."""
        if self._take("name", "not"):
            return "not", self._single()
        if self._take("sign", "("):
            inside = self._any()
            self._need("sign", ")")
            return inside
        name = self._need("name").strip("`")
        self.names.add(name)
        if self._take("name", "in"):
            self._need("sign", "(")
            values = [self._value()]
            while self._take("sign", ","):
                values.append(self._value())
            self._need("sign", ")")
            return ("or", *(("=", name, value) for value in values))
        kind, sign, _ = self._next()
        if sign.lower() not in TESTS or kind == "text":
            self._refuse(f"after {name} there must be one of {' '.join(TESTS)} in, not {sign!r}")
        self.at += 1
        return sign.lower(), name, self._value()

    def _value(self) -> Any:
        """Parse a value that a condition compares with."""
        kind, spelled, value = self._next()
        if kind == "name" and spelled.lower() in ("true", "false"):
            value, kind = spelled.lower() == "true", "number"
        if kind not in ("text", "number"):
            self._refuse(f'{spelled!r} is not a value: write numbers as they are, and text in quotes: "{spelled}"')
        self.at += 1
        return value

    def _next(self) -> tuple[str, str, Any]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "the end", None)

    def _take(self, kind: str, spelled: str) -> bool:
        """Step over the next token of a condition if it is this one."""
        there = self._next()
        if there[0] == kind and there[1].lower() == spelled:
            self.at += 1
            return True
        return False

    def _need(self, kind: str, spelled: str = "") -> str:
        """Step over the next token of a condition, which must be this one."""
        there = self._next()
        if there[0] != kind or (spelled and there[1] != spelled):
            self._refuse(f"{there[1]!r} is where {spelled or 'a column'} is needed")
        self.at += 1
        return there[1]

    def _refuse(self, reason: str) -> NoReturn:
        raise UserError(f"--where {self.condition}: {reason}. Example: --where 'year > 2020 and lang = \"zh\"'")


def _tokens(condition: str) -> list[tuple[str, str, Any]]:
    """The tokens of a condition: texts, numbers, names and signs."""
    tokens, at = [], 0
    while condition[at:].strip():
        match = _TOKEN.match(condition, at)
        if match is None:
            raise UserError(
                f"--where {condition}: {condition[at:].strip()[:20]!r} cannot be read. Example: --where "
                "'year > 2020 and lang = \"zh\"'"
            )
        kind = str(match.lastgroup)
        spelled = match[kind]
        value: Any = spelled
        if kind == "number":
            if len(spelled) > LONGEST_NUMBER:
                raise UserError(
                    f"--where: the number {spelled[:20]}… has {len(spelled):,} characters. Write one of at most "
                    f"{LONGEST_NUMBER}."
                )
            value = float(spelled) if re.search(r"[.eE]", spelled) else int(spelled)
        elif kind == "text":
            value = re.sub(r"\\(.)", r"\1", spelled[1:-1])
        tokens.append((kind, spelled, value))
        at = match.end()
    if not tokens:
        raise UserError("--where is empty. Leave it out, or give a condition: --where 'year > 2020'")
    return tokens


def _mask(tree: tuple[Any, ...], columns: Columns) -> np.ndarray:
    """Which passages a parsed condition holds for."""
    kind, *parts = tree
    if kind == "not":
        return ~_mask(parts[0], columns)
    if kind in ("and", "or"):
        join = np.logical_and if kind == "and" else np.logical_or
        return join.reduce([_mask(part, columns) for part in parts])
    name, given = parts
    return columns.matching(name, lambda value: holds(kind, value, given))


def truth(value: Any) -> Any:
    """The truth value that a passage's cell is or spells; else the cell."""
    return {"true": True, "false": False}.get(value.strip().lower(), value) if isinstance(value, str) else value


def holds(sign: str, value: Any, given: Any) -> bool:
    """Whether a condition on a passage's column holds. Numbers, true and false may be spelled as text."""
    if sign == "contains":
        return TESTS[sign](value, given)
    if isinstance(truth(given), bool) and isinstance(truth(value), bool):
        return TESTS[sign](truth(value), truth(given))
    if isinstance(given, bool) or isinstance(value, bool):
        return sign == "!="
    if isinstance(given, (int, float)) and isinstance(value, str):
        if not re.fullmatch(NUMBER[1:-1], value):
            return sign == "!="
        value, given = Decimal(value.strip()), Decimal(str(given))
    if isinstance(given, str) and not isinstance(value, str):
        value = str(value)
    return TESTS[sign](value, given)
