"""Documents of files, with their ids and columns, split into passages of whole sentences."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from bertkit.data.readers import read_documents, read_rows
from bertkit.data.readers.rows import cells_of
from bertkit.errors import UserError
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
    """The passages of documents, in order."""
    for document in documents:
        for text in cut(document.text, tokenizer, size):
            yield Passage(text, document.file, document.number, document.id, document.columns)


def read_with_ids(
    paths: Sequence[Path], text: str = "text", key: str = "id", encoding: str = "utf-8"
) -> Iterator[Document]:
    """The documents of files, in order. text, key: the columns of texts and ids, where there are columns."""
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
    """The rows of a table; what is neither text nor id is kept as a column, unless it is a list or an object."""
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
        """A block, or the beginning of what is not shown."""
        self.hidden += tag in self.HIDDEN
        if tag not in self.INLINE:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """The end of either."""
        self.hidden = max(0, self.hidden - (tag in self.HIDDEN))
        if tag not in self.INLINE:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        """Text, if it is shown."""
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
    """As many whole sentences as fit `size` tokens; a longer sentence is its own passage.

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
