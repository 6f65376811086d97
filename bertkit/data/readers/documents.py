"""Running text for vocabularies, pretraining and search: documents, one string each, in bounded memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from bertkit.data.examples import Document
from bertkit.data.readers.rows import cells_of, read_rows
from bertkit.errors import UserError
from bertkit.files.open import check_file, kind_of, open_text
from bertkit.notify import note

# A longer document is cut at a line end (a longer line at a space), so that memory stays bounded for files without
# blank lines. A million characters is far beyond any context a model sees.
LONGEST_DOCUMENT = 1_000_000
_IN_ROWS = ("csv", "tsv", "jsonl", "json", "parquet", "xlsx")
_IN_FOLDERS = ("txt", "tokens", "md", "jsonl", "json", "parquet")
_TITLE = re.compile(r" = [^=].*[^=] = | = [^= ] = ")  # WikiText marks an article's title with one = on each side


def read_documents(
    paths: str | Path | Iterable[str | Path], *, text: str = "text", encoding: str = "utf-8"
) -> Iterator[str]:
    """The documents of files and folders (walked in order of names), paragraphs joined by newlines.

    `.txt` and any unknown ending: an empty line ends a document (one of spaces alone does not).
    `.tokens` (WikiText): a title begins one.
    `.jsonl`, `.parquet`, `.csv`, `.tsv`, `.xlsx`: the column `text`, one document per row. All may be compressed.
    Documents above a million characters are split at a line end, and reported.
    """
    cut = 0
    for path in document_files(paths):
        kind = kind_of(path)
        if kind in _IN_ROWS:
            documents = _row_documents(path, text, encoding)
        else:
            documents = _line_documents(path, encoding, titles=kind == "tokens")
        for whole, document in documents:
            cut += not whole
            yield document
    if cut:
        note(f"documents longer than {LONGEST_DOCUMENT:,} characters were split at line ends, {cut} times.")


def document_files(
    paths: str | Path | Iterable[str | Path],
    leave_out: Callable[[Path], bool] = lambda folder: False,
    more: tuple[str, ...] = (),
) -> list[Path]:
    """The files that `read_documents` reads, in its order; files of other formats inside folders are reported.

    leave_out: folders inside the given ones to skip; they are reported. more: other endings to take from folders.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files: list[Path] = []
    for path in map(Path, given):
        if not path.is_dir():
            files.append(path if str(path) == "-" else check_file(path))
            continue
        inside = [file for file in _walk(path, leave_out) if file.stat().st_size]
        known = [file for file in inside if kind_of(file) in (*_IN_FOLDERS, *more)]
        if not known:
            raise UserError(
                f"{path}: this folder contains no text files (.{', .'.join((*_IN_FOLDERS, *more))}, compressed or not)."
            )
        if len(known) < len(inside):
            note(f"{path}: {len(inside) - len(known)} files of other formats are skipped, {len(known)} are read.")
        files.extend(known)
    if not files:
        raise UserError("No text files were given.")
    return files


def _walk(folder: Path, leave_out: Callable[[Path], bool]) -> Iterator[Path]:
    """The files of a folder and its subfolders, in order of names, without hidden ones."""
    for here, folders, names in os.walk(folder):
        visible = sorted(name for name in folders if not name.startswith("."))
        folders[:] = [name for name in visible if not leave_out(Path(here, name))]
        if len(folders) < len(visible):
            note(f"Left out: {', '.join(str(Path(here, name)) for name in visible if name not in folders)}.")
        for name in sorted(names):
            path = Path(here) / name
            if not name.startswith(".") and path.is_file():
                yield path


def _line_documents(path: Path, encoding: str, titles: bool) -> Iterator[tuple[bool, str]]:
    """(where the file ends it, document) of running text in lines."""
    lines: list[str] = []
    size, is_any = 0, False
    for line in open_text(path, encoding, split=LONGEST_DOCUMENT, nul="drop"):
        blank = not line.strip()
        over = size + len(line) > LONGEST_DOCUMENT
        if lines and (over or (_TITLE.fullmatch(line) if titles else not line)):
            is_any = True
            yield not over or not line, "\n".join(lines)
            lines, size = [], 0
        if not blank:
            lines.append(line)
            size += len(line) + 1
    if lines:
        yield True, "\n".join(lines)
    elif not is_any:
        raise UserError(f"{path} contains no text.")


def _row_documents(path: Path, text: str, encoding: str) -> Iterator[tuple[bool, str]]:
    """(whether the row ends with it, document) of the texts of a table."""
    for row in read_rows(path, text=text, labelled=False, encoding=encoding):
        start = 0
        while len(row.text) - start > LONGEST_DOCUMENT:
            end = start + LONGEST_DOCUMENT
            end = row.text.rfind("\n", start, end) + 1 or row.text.rfind(" ", start, end) + 1 or end
            yield False, row.text[start:end]
            start = end
        if row.text[start:].strip():
            yield True, row.text[start:]


# ---- Documents with ids and columns, as an index keeps them


def read_documents_with_ids(
    paths: Sequence[Path], text: str = "text", key: str = "id", encoding: str = "utf-8"
) -> Iterator[Document]:
    """The documents of files with their ids and columns, in order. text, key: the columns of texts and ids, if any.

    Two rows with one id are refused: files that are read together have no order in which one could replace the other.
    """
    known: dict[str, tuple[Path, int]] = {}  # id → file and line
    for path in paths:
        name = os.fsencode(path).decode("utf-8", "replace")  # a file's name may be any bytes
        kind = kind_of(path)
        if kind in _IN_ROWS:
            yield from _rows_with_ids(path, name, text, key, encoding, known)
        elif kind in WHOLE_FILES:
            whole = WHOLE_FILES[kind](path, encoding)
            if not whole.strip():
                note(f"{path}: contains no text (a scan has only images); it is left out.")
                continue
            yield Document(whole, name, 1, name)
        else:
            for number, document in enumerate(read_documents(path, text=text, encoding=encoding), 1):
                yield Document(document, name, number, f"{name}#{number}")


def _rows_with_ids(
    path: Path, name: str, text: str, key: str, encoding: str, known: dict[str, tuple[Path, int]]
) -> Iterator[Document]:
    """Documents in the rows of a table; what is neither text nor id is kept as a column, unless a list or an object."""
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
        if identity in known:
            file, other = known[identity]
            if file == path:
                raise UserError(
                    f"{path}, line {line}: the id {identity!r} is that of line {other} too. Give every row its "
                    "own id, or name another column with --id."
                )
            raise UserError(
                f"{path}, line {line}: the id {identity!r} is that of {file}, line {other}, too. Give every row its "
                "own id; or index one file and then add the other with --add, which replaces rows with the same id."
            )
        known[identity] = path, line
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


def _plain_document(path: Path, encoding: str) -> str:
    return "\n".join(open_text(path, encoding, nul="drop"))


class _HtmlText(HTMLParser):
    """The text of a page, without scripts and styles; a block begins a new line."""

    INLINE = frozenset([
        "a", "abbr", "b", "bdi", "bdo", "cite", "code", "em", "font", "i", "kbd", "label", "mark", "q", "s", "small",
        "span", "strong", "sub", "sup", "time", "u", "var",
    ])  # fmt: skip
    HIDDEN = frozenset(("script", "style", "template", "noscript"))

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """A block of an HTML document begins, or something that is not shown."""
        self.hidden += tag in self.HIDDEN
        if tag not in self.INLINE:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """A block of an HTML document ends, or something that is not shown."""
        self.hidden = max(0, self.hidden - (tag in self.HIDDEN))
        if tag not in self.INLINE:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        """Keep the text of an HTML document, if it is shown."""
        if not self.hidden:
            self.parts.append(" ".join(["", *data.split(), ""]) if data.strip() else " ")


def _html_document(path: Path, encoding: str) -> str:
    parser = _HtmlText()
    parser.feed(_plain_document(path, encoding))
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)


def _pdf_document(path: Path, encoding: str) -> str:
    try:
        import pypdf
    except ImportError:
        raise UserError(f"{path}: reading PDF needs pypdf. Run: pip install 'bertkit[index]'") from None
    try:
        return "\n".join(page.extract_text() for page in pypdf.PdfReader(path).pages)
    except Exception as error:  # a damaged file raises whatever pypdf stumbles over
        raise UserError(f"{path}: cannot be read as PDF ({error}). Is it complete, and without a password?") from error


def _docx_document(path: Path, encoding: str) -> str:
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


# Ending → reader of files that are one document each.
WHOLE_FILES = {
    "md": _plain_document,
    "html": _html_document,
    "htm": _html_document,
    "pdf": _pdf_document,
    "docx": _docx_document,
}
