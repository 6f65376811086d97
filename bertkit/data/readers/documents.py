"""Running text for vocabularies, pretraining and search: documents, one string each, in bounded memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bertkit.data.readers.rows import read_rows
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
    for here, folders, names in os.walk(folder):
        shown = sorted(name for name in folders if not name.startswith("."))
        folders[:] = [name for name in shown if not leave_out(Path(here, name))]
        if len(folders) < len(shown):
            note(f"Left out: {', '.join(str(Path(here, name)) for name in shown if name not in folders)}.")
        for name in sorted(names):
            path = Path(here) / name
            if not name.startswith(".") and path.is_file():
                yield path


def _line_documents(path: Path, encoding: str, titles: bool) -> Iterator[tuple[bool, str]]:
    """(where the file ends it, document) of running text in lines."""
    lines: list[str] = []
    size, found = 0, False
    for line in open_text(path, encoding, split=LONGEST_DOCUMENT, nul="drop"):
        blank = not line.strip()
        over = size + len(line) > LONGEST_DOCUMENT
        if lines and (over or (_TITLE.fullmatch(line) if titles else not line)):
            found = True
            yield not over or not line, "\n".join(lines)
            lines, size = [], 0
        if not blank:
            lines.append(line)
            size += len(line) + 1
    if lines:
        yield True, "\n".join(lines)
    elif not found:
        raise UserError(f"{path} contains no text.")


def _row_documents(path: Path, text: str, encoding: str) -> Iterator[tuple[bool, str]]:
    for row in read_rows(path, text=text, labelled=False, encoding=encoding):
        start = 0
        while len(row.text) - start > LONGEST_DOCUMENT:
            end = start + LONGEST_DOCUMENT
            end = row.text.rfind("\n", start, end) + 1 or row.text.rfind(" ", start, end) + 1 or end
            yield False, row.text[start:end]
            start = end
        if row.text[start:].strip():
            yield True, row.text[start:]
