"""Documents of files, with their ids and columns, split into passages of whole sentences; and conditions on columns."""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from bertkit.data.readers import read_documents, read_rows
from bertkit.data.readers.rows import cells_of
from bertkit.errors import UserError, suggest
from bertkit.files.open import kind_of, open_text
from bertkit.notify import note
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import sentences_of

ROWS = ("csv", "tsv", "jsonl", "json", "parquet", "xlsx")
Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Document:
    """A text to be split into passages, with its file, its number in it (from 1), its id, and the row's other columns.

    The id is that of the row; without one, the file's name and the number.
    """

    text: str
    file: str
    number: int
    id: str
    columns: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passage:
    """A run of sentences, as in the document. document: its number in the file, from 1; id: of the document."""

    text: str
    file: str
    document: int
    id: str
    columns: Mapping[str, Value] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The passage as a JSON object."""
        plain = asdict(self)
        return plain if self.columns else {name: value for name, value in plain.items() if name != "columns"}


def read_passages(documents: Iterator[Document], tokenizer: Tokenizer, size: int) -> Iterator[Passage]:
    """The passages of documents to be indexed, in order."""
    for document in documents:
        for text in cut(document.text, tokenizer, size):
            yield Passage(text, document.file, document.number, document.id, document.columns)


def read_with_ids(
    paths: Sequence[Path], text: str = "text", key: str = "id", encoding: str = "utf-8"
) -> Iterator[Document]:
    """The documents of files to be cut into passages, in order. text, key: the columns of texts and ids, if any."""
    for path in paths:
        name = os.fsencode(path).decode("utf-8", "replace")  # a file's name may be any bytes
        kind = kind_of(path)
        if kind in ROWS:
            yield from _rows(path, name, text, key, encoding)
        elif kind in WHOLE:
            whole = WHOLE[kind](path, encoding)
            if not whole.strip():
                note(f"{path}: there is no text in it (a scan has pictures only); it is left out.")
                continue
            yield Document(whole, name, 1, name)
        else:
            for number, document in enumerate(read_documents(path, text=text, encoding=encoding), 1):
                yield Document(document, name, number, f"{name}#{number}")


def _rows(path: Path, name: str, text: str, key: str, encoding: str) -> Iterator[Document]:
    """Documents in the rows of a table; what is neither text nor id is kept as a column, unless a list or an object."""
    lines: dict[str, int] = {}
    nested: set[str] = set()
    number = 0
    rows = read_rows(path, text=text, labelled=False, encoding=encoding)
    for row, (line, cells) in zip(rows, cells_of(path, [text], encoding), strict=True):
        if not row.text.strip():
            continue  # counted and reported by the reader
        number += 1
        given = cells.get(key)
        if given is not None and not isinstance(given, (str, int)):
            raise UserError(f"{path}, line {line}: {key!r} is {given!r:.60}; an id must be text or a whole number.")
        if key != "id" and given in (None, ""):
            raise UserError(f"{path}, line {line}: there is no id in the column {key!r}. Give every row one.")
        identity = str(given).strip() if given not in (None, "") else f"{name}#{number}"
        if identity in lines:
            raise UserError(
                f"{path}, line {line}: the id {identity!r} is that of line {lines[identity]} too. Give every row its "
                "own id, or name another column with --id."
            )
        lines[identity] = line
        nested |= {column for column, value in cells.items() if isinstance(value, (list, dict))}
        columns = {
            column: value
            for column, value in cells.items()
            if column not in (key, text)
            and (text in cells or value != row.text)
            and isinstance(value, (str, int, float, bool))
        }
        yield Document(row.text, name, number, identity, columns)
    if nested:
        note(f"{path}: the columns {', '.join(sorted(nested))} hold lists or objects; they are not kept.")


# ---- Files that are one document each


def _plain(path: Path, encoding: str) -> str:
    return "\n".join(open_text(path, encoding, nul="drop"))


class _Html(HTMLParser):
    """The text of a page, without scripts and styles; a block begins a new line."""

    INLINE = frozenset(
        [
            "a",
            "abbr",
            "b",
            "bdi",
            "bdo",
            "cite",
            "code",
            "em",
            "font",
            "i",
            "kbd",
            "label",
            "mark",
            "q",
            "s",
            "small",
            "span",
            "strong",
            "sub",
            "sup",
            "time",
            "u",
            "var",
        ]
    )
    HIDDEN = frozenset(("script", "style", "template", "noscript"))

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """In an HTML document cut into passages: a block, or the beginning of what is not shown."""
        self.hidden += tag in self.HIDDEN
        if tag not in self.INLINE:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """In an HTML document cut into passages: the end of a block, or of what is not shown."""
        self.hidden = max(0, self.hidden - (tag in self.HIDDEN))
        if tag not in self.INLINE:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        """In an HTML document cut into passages: text, if it is shown."""
        if not self.hidden:
            self.parts.append(" ".join(["", *data.split(), ""]) if data.strip() else " ")


def _html(path: Path, encoding: str) -> str:
    parser = _Html()
    parser.feed(_plain(path, encoding))
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)


def _pdf(path: Path, encoding: str) -> str:
    try:
        import pypdf
    except ImportError:
        raise UserError(f"{path}: reading PDF needs pypdf. Run: pip install 'bertkit[index]'") from None
    try:
        return "\n".join(page.extract_text() for page in pypdf.PdfReader(path).pages)
    except Exception as error:  # a damaged file raises whatever pypdf stumbles over
        raise UserError(f"{path}: cannot be read as PDF ({error}). Is it complete, and without a password?") from error


def _docx(path: Path, encoding: str) -> str:
    try:
        import docx
    except ImportError:
        raise UserError(f"{path}: reading DOCX needs python-docx. Run: pip install 'bertkit[index]'") from None
    try:
        document = docx.Document(str(path))
    except Exception as error:  # a damaged file raises whatever the reader stumbles over
        raise UserError(f"{path}: cannot be read as DOCX ({error}). Is it complete?") from error
    cells = [cell.text for table in document.tables for row in table.rows for cell in row.cells]
    return "\n".join([*(paragraph.text for paragraph in document.paragraphs), *cells])


WHOLE = {"md": _plain, "html": _html, "htm": _html, "pdf": _pdf, "docx": _docx}  # ending → reader


def cut(document: str, tokenizer: Tokenizer, size: int) -> list[str]:
    """Cut a document into passages: as many whole sentences as fit `size` tokens; a longer sentence is its own.

    A passage is the document's text from its first sentence to its last, with everything between them.
    """
    sentences = sentences_of(document)
    spans: list[tuple[int, int]] = []
    room = at = 0
    for sentence, pieces in zip(sentences, tokenizer.pieces_batch(sentences)):
        start = document.index(sentence, at)  # the first there is: only spaces stand between sentences
        at = start + len(sentence)
        if not spans or len(pieces) > room:
            spans.append((start, at))
            room = size
        spans[-1] = (spans[-1][0], at)
        room -= len(pieces)
    return [document[start:end] for start, end in spans]


# ---- Conditions on the columns of documents: `year > 2020 and lang = "zh"`. Parsed here; nothing is run as code.
#
#     condition   = all ("or" all)*
#     all         = single ("and" single)*
#     single      = "not" single | "(" condition ")" | COLUMN OPERATOR VALUE | COLUMN "in" "(" VALUE ("," VALUE)* ")"
#     OPERATOR    = "=" | "!=" | "<" | "<=" | ">" | ">=" | "contains"
#     VALUE       = "text" | 'text' | number | true | false
#
# A document without the column matches no comparison with it.

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
        parts = [self._all()]
        while self._take("name", "or"):
            parts.append(self._all())
        return ("or", *parts) if len(parts) > 1 else parts[0]

    def _all(self) -> tuple[Any, ...]:
        parts = [self._single()]
        while self._take("name", "and"):
            parts.append(self._single())
        return ("and", *parts) if len(parts) > 1 else parts[0]

    def _single(self) -> tuple[Any, ...]:
        self.depth += 1
        if self.depth > DEEPEST:
            self._refuse("it is nested too deeply")
        tree = self._bare()
        self.depth -= 1
        return tree

    def _bare(self) -> tuple[Any, ...]:
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
        there = self._next()
        if there[0] == kind and there[1].lower() == spelled:
            self.at += 1
            return True
        return False

    def _need(self, kind: str, spelled: str = "") -> str:
        there = self._next()
        if there[0] != kind or (spelled and there[1] != spelled):
            self._refuse(f"{there[1]!r} is where {spelled or 'a column'} is needed")
        self.at += 1
        return there[1]

    def _refuse(self, reason: str) -> NoReturn:
        raise UserError(f"--where {self.condition}: {reason}. Example: --where 'year > 2020 and lang = \"zh\"'")


def _tokens(condition: str) -> list[tuple[str, str, Any]]:
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
    kind, *parts = tree
    if kind == "not":
        return ~_mask(parts[0], columns)
    if kind in ("and", "or"):
        join = np.logical_and if kind == "and" else np.logical_or
        return join.reduce([_mask(part, columns) for part in parts])
    name, given = parts
    return columns.matching(name, lambda value: holds(kind, value, given))


def holds(sign: str, value: Any, given: Any) -> bool:
    """Whether a condition on a passage's column holds. Numbers that a table spells as text compare as numbers."""
    if sign == "contains":
        return TESTS[sign](value, given)
    if isinstance(given, bool) or isinstance(value, bool):
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.strip().lower(), value)
        return (type(value) is type(given) and TESTS[sign](value, given)) or (
            sign == "!=" and type(value) is not type(given)
        )
    if isinstance(given, (int, float)) and isinstance(value, str):
        if not re.fullmatch(NUMBER[1:-1], value):
            return sign == "!="
        value, given = Decimal(value.strip()), Decimal(str(given))
    if isinstance(given, str) and not isinstance(value, str):
        value = str(value)
    return TESTS[sign](value, given)
