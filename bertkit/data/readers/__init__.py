"""From files to examples. Every reader is a generator that streams, remembers lines, and raises only `UserError`.

| reader | files | gives |
|---|---|---|
| `read_rows` | csv, tsv, jsonl, parquet, xlsx, txt | `TextRow` |
| `read_tagged` | CoNLL columns, CoNLL-U, jsonl | `TaggedSentence` |
| `read_annotated` | spans of doccano, Prodigy, Label Studio, BRAT, spaCy | `Annotated` |
| `read_questions` | SQuAD json, jsonl | `Question` |
| `read_choices` | jsonl | `Choice` |
| `read_minimal_pairs` | jsonl, folders of it | `MinimalPair` |
| `read_documents` | txt, jsonl, parquet, folders | `str` |

All take compressed files (.gz, .xz, .zst, .bz2) and `encoding=`; those of rows and objects also tables in memory
(`frames.in_memory`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.data.examples import Label
from bertkit.data.readers.annotations import holds_spans, read_annotated
from bertkit.data.readers.documents import WHOLE_FILES, document_files, read_documents, read_documents_with_ids
from bertkit.data.readers.json import parse
from bertkit.data.readers.questions import read_choices, read_minimal_pairs, read_questions
from bertkit.data.readers.rows import columns_of, read_rows
from bertkit.data.readers.tagged import read_tagged
from bertkit.errors import UserError
from bertkit.files.open import DAMAGE, kind_of, open_bytes, open_text
from bertkit.text.words import closed_up

__all__ = [
    "WHOLE_FILES",
    "columns_of",
    "document_files",
    "first_bytes",
    "form_of",
    "kind_of",
    "open_text",
    "read_annotated",
    "read_choices",
    "read_documents",
    "read_documents_with_ids",
    "read_minimal_pairs",
    "read_questions",
    "read_rows",
    "read_tagged",
    "seen_in",
]


# ---- Which form of data a file holds, and its rows seen alike whatever the form.


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a data file. name: what its rows are called; kind: the file's format."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class SeenRow:
    """One row of a data file of any form. answer: its label, tags or answers, as one string.

    spaced: a label has outer spaces.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    answer: str
    line: int
    spaced: bool = False


ANNOTATED = "annotated texts"
# A JSON object's keys tell its form; the first match counts.
_BY_KEYS: tuple[tuple[set[str], str], ...] = (
    ({"data"}, "questions"),
    ({"question", "context"}, "questions"),
    ({"tokens"}, "tagged sentences"),
    ({"choices"}, "multiple choices"),
    ({"sentence_good", "sentence_bad"}, "minimal pairs"),
)


def form_of(path: str | Path, encoding: str = "utf-8", **columns: Any) -> tuple[Form, list[str]]:
    """Which form a data file has, by its ending and first lines, and its columns if it has any."""
    kind = kind_of(path)
    wanted = [str(name) for role in ("text", "text_b", "label") if (name := columns.get(role))]
    if Path(path).is_dir() or kind == "spacy":
        return Form(ANNOTATED, kind), []
    if kind in ("csv", "tsv", "parquet", "xlsx", "rows"):
        return Form("rows", kind), columns_of(path, wanted or ["text", "label"], encoding)
    head = [line for line in islice(open_text(path, encoding), 50) if line.strip(" \t\r")]
    if kind in ("jsonl", "json"):
        form, names = _json_form(kind, head)
        is_annotated = form.name == "rows" and holds_spans(path, encoding)
        return Form(ANNOTATED, kind) if is_annotated else form, names
    if kind == "conllu" or _is_tagged(head):
        return Form("tagged sentences", kind if kind == "conllu" else "conll"), []
    if kind == "txt" and wanted and wanted[0].isdigit():
        return Form("rows", "txt"), columns_of(path, wanted, encoding)
    return Form("documents", kind), []


def _json_form(kind: str, head: list[str]) -> tuple[Form, list[str]]:
    """The form of a JSON file, by the keys of its first object."""
    try:
        first = parse("", head[0].strip().removeprefix("[").rstrip(",]")) if head else {}
        keys = set(first) if isinstance(first, dict) else set()
    except UserError:
        # A JSON document over several lines: SQuAD's is the only such form, besides lists of rows.
        keys = set() if head[0].lstrip().startswith("[") else {"data"}
    name = next((name for needed, name in _BY_KEYS if needed <= keys), "rows")
    return Form(name, kind), [] if "data" in keys else sorted(keys)


def _is_tagged(head: list[str]) -> bool:
    """Whether a file looks tagged: lines of short words in equally many columns, the last like a tag."""
    rows = [line.split("\t" if "\t" in line else " ") for line in head if not line.startswith("-DOCSTART-")]
    widths = {len(row) for row in rows}
    return len(rows) > 1 and len(widths) == 1 and widths.pop() > 1 and all(_tag_like(row[-1]) for row in rows)


def _tag_like(cell: str) -> bool:
    return cell == "O" or (cell[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") and len(cell) > 2)


def first_bytes(path: str | Path, count: int = 4) -> bytes:
    """The first bytes of a data file, unpacked, by which readers tell its form."""
    if kind_of(path) in ("parquet", "xlsx", "spacy", "rows") or str(path) == "-" or Path(path).is_dir():
        return b""
    try:
        with open_bytes(path) as stream:
            return stream.read(count)
    except (OSError, *DAMAGE):
        return b""


def seen_in(
    path: str | Path, form: Form, encoding: str = "utf-8", bad: list[UserError] | None = None, **columns: Any
) -> Iterator[SeenRow]:
    """The rows of a data file of any form, in one shape; columns as for `read_rows`.

    bad: where to put the errors of rows.
    """
    if form.name == ANNOTATED:
        for a in read_annotated(path, encoding):
            labels = tuple(label for _, _, label in a.spans or ())
            yield SeenRow((a.text,), labels, str(a.spans), a.line)
    elif form.name == "tagged sentences":
        for s in read_tagged(path, labelled="maybe", encoding=encoding):
            yield SeenRow((closed_up(" ".join(s.tokens)),), s.tags or (), " ".join(s.tags or ()), s.line)
    elif form.name == "questions":
        for q in read_questions(path, encoding=encoding):
            label = ("impossible",) if q.impossible else ("answerable",) if q.answers else ()
            yield SeenRow((q.question, q.context), label, str([text for text, _ in q.answers]), q.line)
    elif form.name == "multiple choices":
        for c in read_choices(path, labelled="maybe", encoding=encoding):
            label = () if c.label is None else (str(c.label),)
            yield SeenRow((c.text, *c.choices), label, str(c.label), c.line)
    elif form.name == "minimal pairs":
        for m in read_minimal_pairs(path, encoding=encoding):
            yield SeenRow((m.good, m.bad), (m.group,), m.group, m.line)
    elif form.name == "documents":
        for number, document in enumerate(read_documents(path, encoding=encoding), start=1):
            yield SeenRow((document,), (), "", number)
    else:
        for r in read_rows(path, labelled="maybe", strip=False, encoding=encoding, bad=bad, **columns):
            texts = (r.text,) if r.text_b is None else (r.text, r.text_b)
            given = _labels(r.label)
            labels = tuple(name.strip() for name in given)
            yield SeenRow(texts, labels, str(labels), r.line, given != labels)


def _labels(label: Label) -> tuple[str, ...]:
    if label is None:
        return ()
    return label if isinstance(label, tuple) else (str(label),)
