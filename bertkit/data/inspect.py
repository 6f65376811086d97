"""What is in a data file, in one pass and bounded memory: the report of `bertkit doctor FILE`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from bertkit.data.examples import Label
from bertkit.data.readers import (
    columns_of,
    read_choices,
    read_documents,
    read_minimal_pairs,
    read_questions,
    read_rows,
    read_tagged,
)
from bertkit.data.readers.json import parse
from bertkit.data.readers.rows import has_pair
from bertkit.errors import UserError
from bertkit.files.open import DAMAGE, kind_of, open_bytes, open_text
from bertkit.notify import track
from bertkit.text.words import HAN, HANGUL, KANA

# ---- Which form of data a file holds, and its rows seen alike whatever the form (for `doctor`).


@dataclass(frozen=True, slots=True)
class Form:
    """name: what the rows are called; kind: the file's format."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One row of any form. answer: its label, tags or answers, as one string."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    answer: str
    line: int


# A JSON object's keys tell its form; the first match counts.
_BY_KEYS: tuple[tuple[set[str], str], ...] = (
    ({"data"}, "questions"),
    ({"question", "context"}, "questions"),
    ({"tokens"}, "tagged sentences"),
    ({"choices"}, "multiple choices"),
    ({"sentence_good", "sentence_bad"}, "minimal pairs"),
)


def form_of(path: str | Path, encoding: str = "utf-8", **columns: Any) -> tuple[Form, list[str]]:
    """The form of a file, by its ending and first lines, and its columns if it has any."""
    kind = kind_of(path)
    wanted = [str(name) for role in ("text", "text_b", "label") if (name := columns.get(role))]
    if kind in ("csv", "tsv", "parquet"):
        return Form("rows", kind), columns_of(path, wanted or ["text"], encoding)
    head = [line for line in islice(open_text(path, encoding), 50) if line.strip(" \t\r")]
    if kind in ("jsonl", "json"):
        return _json_form(kind, head)
    if kind == "conllu" or _is_tagged(head):
        return Form("tagged sentences", kind if kind == "conllu" else "conll"), []
    if kind == "txt" and wanted and wanted[0].isdigit():
        return Form("rows", "txt"), columns_of(path, wanted, encoding)
    return Form("documents", kind), []


def _json_form(kind: str, head: list[str]) -> tuple[Form, list[str]]:
    try:
        first = parse("", head[0].strip().removeprefix("[").rstrip(",]")) if head else {}
        keys = set(first) if isinstance(first, dict) else set()
    except UserError:
        # A JSON document over several lines: SQuAD's is the only such form, besides lists of rows.
        keys = set() if head[0].lstrip().startswith("[") else {"data"}
    name = next((name for needed, name in _BY_KEYS if needed <= keys), "rows")
    return Form(name, kind), [] if "data" in keys else sorted(keys)


def _is_tagged(head: list[str]) -> bool:
    """Whether lines are short words in equally many columns, the last of which looks like a tag."""
    rows = [line.split("\t" if "\t" in line else " ") for line in head if not line.startswith("-DOCSTART-")]
    widths = {len(row) for row in rows}
    return len(rows) > 1 and len(widths) == 1 and widths.pop() > 1 and all(_tag_like(row[-1]) for row in rows)


def _tag_like(cell: str) -> bool:
    return cell == "O" or (cell[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") and len(cell) > 2)


def first_bytes(path: str | Path, count: int = 4) -> bytes:
    """The first bytes of a file, unpacked."""
    if kind_of(path) == "parquet" or str(path) == "-":
        return b""
    try:
        with open_bytes(path) as stream:
            return stream.read(count)
    except (OSError, *DAMAGE):
        return b""


def seen_in(path: str | Path, form: Form, encoding: str = "utf-8", **columns: Any) -> Iterator[Seen]:
    """The rows of a file in one shape; columns as for `read_rows`."""
    if form.name == "tagged sentences":
        for s in read_tagged(path, labelled="maybe", encoding=encoding):
            yield Seen((" ".join(s.tokens),), s.tags or (), " ".join(s.tags or ()), s.line)
    elif form.name == "questions":
        for q in read_questions(path, encoding=encoding):
            label = ("impossible",) if q.impossible else ("answerable",) if q.answers else ()
            yield Seen((q.question, q.context), label, str([text for text, _ in q.answers]), q.line)
    elif form.name == "multiple choices":
        for c in read_choices(path, labelled="maybe", encoding=encoding):
            label = () if c.label is None else (str(c.label),)
            yield Seen((c.text, *c.choices), label, str(c.label), c.line)
    elif form.name == "minimal pairs":
        for m in read_minimal_pairs(path, encoding=encoding):
            yield Seen((m.good, m.bad), (m.group,), m.group, m.line)
    elif form.name == "documents":
        for number, document in enumerate(read_documents(path, encoding=encoding), start=1):
            yield Seen((document,), (), "", number)
    else:
        for r in read_rows(path, labelled="maybe", encoding=encoding, **columns):
            texts = (r.text,) if r.text_b is None else (r.text, r.text_b)
            yield Seen(texts, _labels(r.label), str(r.label), r.line)


def _labels(label: Label) -> tuple[str, ...]:
    if label is None:
        return ()
    return label if isinstance(label, tuple) else (str(label),)


# ---- What `doctor` found in a file, for people and for programs.


@dataclass
class Lengths:
    """How long the texts are, in one unit: {50: …, 90: …, 99: …, 100: …}."""

    unit: str
    percentiles: dict[int, int] = field(default_factory=dict)
    mean: float = 0.0


@dataclass
class Cut:
    """What a model of `limit` tokens would not see: special tokens count."""

    limit: int
    rows: int
    tokens: int
    rows_share: float
    tokens_share: float


@dataclass
class FileReport:
    """Everything found in one file. `lines()` for people, `asdict` for programs."""

    path: str
    form: str
    kind: str
    encoding: str
    columns: list[str]
    rows: int = 0
    labels: dict[str, int] = field(default_factory=dict)
    label_kinds: int = 0
    unlabelled: int = 0
    empty: int = 0
    duplicates: int = 0
    conflicts: int = 0
    compared: int = 0
    overlaps: dict[str, int] = field(default_factory=dict)
    lengths: list[Lengths] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    counted_by: str = ""  # the model whose tokenizer counted the tokens
    unknown_share: float = 0.0  # of the pieces, by the same tokenizer
    cjk_share: float = 0.0
    suspicious: dict[str, dict[str, Any]] = field(default_factory=dict)

    def asdict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """The report as sentences, one per line."""
        yield f"{self.path}: {self.rows:,} {self.form} ({self.kind or 'text'}, {self.encoding})"
        if self.columns:
            yield f"  columns: {', '.join(self.columns)}"
        if self.label_kinds:
            yield f"  labels: {self.label_kinds:,} different: {_balance(self.labels)}"
        if self.unlabelled and self.label_kinds:
            yield f"  without a label: {self.unlabelled:,}"
        for what, count in (("empty texts", self.empty), ("duplicates", self.duplicates)):
            if count:
                yield f"  {what}: {count:,} ({count / self.rows:.1%})"
        if self.conflicts:
            yield f"  conflicting: {self.conflicts:,} rows repeat an earlier text with a different label"
        if self.compared < self.rows:
            yield f"  only the first {self.compared:,} distinct texts were checked for duplicates"
        for other, count in self.overlaps.items():
            yield f"  also in {other}: {count:,} rows ({count / max(1, self.rows):.1%})"
        for lengths in self.lengths:
            shown = ", ".join(f"{share} % up to {value:,}" for share, value in lengths.percentiles.items())
            by = f" ({self.counted_by}'s tokenizer)" if self.counted_by and lengths.unit == "tokens" else ""
            yield f"  {lengths.unit}{by}: mean {lengths.mean:,.1f}; {shown}"
        if self.unknown_share:
            yield f"  unknown to {self.counted_by}'s vocabulary: {self.unknown_share:.2%} of pieces"
        if self.cuts and not self.cuts[0].rows:
            yield f"  at {self.cuts[0].limit} tokens: nothing is truncated"
        for cut in (each for each in self.cuts if each.rows):
            share = f"{cut.rows_share:.1%}), {cut.tokens_share:.1%} of tokens"
            yield f"  at {cut.limit} tokens: {cut.rows:,} rows truncated ({share}"
        if self.cjk_share >= 0.001:
            yield f"  Chinese, Japanese, Korean: {self.cjk_share:.1%} of letters"
        for what, found in self.suspicious.items():
            places = ", ".join(map(str, found["lines"]))
            yield f"  {what}: {found['rows']:,} rows, first at {places}"


def _balance(labels: dict[str, int]) -> str:
    total = sum(labels.values())
    shown = [f"{label} {count:,} ({count / total:.1%})" for label, count in islice(labels.items(), 12)]
    return ", ".join(shown) + (", …" if len(labels) > 12 else "")


LIMITS = (128, 256, 512)
MOST_HASHES = 4_000_000  # texts compared for duplicates; about half a gigabyte
MOST_LABELS = 10_000
BATCH = 256
BEGINNING = 2000  # characters
_CJK = re.compile(f"[{KANA}{HAN}{HANGUL}]+")
_LETTER = re.compile(r"[\W\d_]+")
_SUSPICIOUS: dict[str, re.Pattern[str]] = {
    "control characters": re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"),
    "mojibake (wrongly decoded)": re.compile("\ufffd|锟斤拷|Ã[\u0080-\u00bf]|â€|ï»¿|Â[\u00a0-\u00bf]"),
    "HTML": re.compile(r"</?(?!unk>)[A-Za-z][A-Za-z0-9]*(?:\s[^<>]{0,200})?/?>|&(?:[a-z]{2,8}|#[0-9]{1,6});"),
    "very long (over 20,000 characters)": re.compile(r"(?s)^.{20001}"),
}


class Tokenizes(Protocol):
    """Texts to lists of ids, without special tokens."""

    def pieces_batch(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text."""


def inspect_file(
    path: str | Path,
    *,
    tokenizer: Tokenizes | None = None,
    others: Iterable[str | Path] = (),
    encoding: str = "utf-8",
    **columns: Any,
) -> FileReport:
    """Read a file once and report what is in it; `others` are read too, to find texts in both.

    columns: text=, text_b=, label=, header= as for `read_rows`; where no text is named and the file has two columns of
    texts by their well-known names, the rows are pairs. Texts are compared without outer spaces.
    """
    form, names = form_of(path, encoding, **columns)
    if form.name == "rows" and "text" not in columns and has_pair(names):
        columns = {**columns, "text_b": "text_b"}
    spelled = "utf-8 with BOM" if encoding == "utf-8" and first_bytes(path).startswith(b"\xef\xbb\xbf") else encoding
    report = FileReport(str(path), form.name, form.kind, spelled, names)
    known = {str(other): _hashes(other, encoding, columns) for other in others}
    tally = _Tally(report, known)
    rows = iter(track(seen_in(path, form, encoding, **columns), f"reading {Path(path).name}"))
    while batch := list(islice(rows, BATCH)):
        for row in batch:
            tally.add(row)
        if tokenizer is not None:
            tally.add_tokens(batch, tokenizer)
    tally.finish()
    return report


def first_texts(path: str | Path, count: int, encoding: str = "utf-8", **columns: Any) -> list[str]:
    """The beginnings of the first texts, to detect their language."""
    form, _ = form_of(path, encoding, **columns)
    rows = islice(seen_in(path, form, encoding, **columns), count)
    return [text[:BEGINNING] for row in rows for text in row.texts]


class _Tally:
    """The running counts of one pass."""

    def __init__(self, report: FileReport, known: dict[str, set[int]]) -> None:
        self.report, self.known = report, known
        self.labels: Counter[str] = Counter()
        self.first_label: dict[int, int] = {}
        self.characters: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.letters, self.cjk = 0, 0

    def add(self, row: Seen) -> None:
        report = self.report
        report.rows += 1
        text = "\n".join(row.texts).strip()
        report.empty += not all(part.strip() for part in row.texts)
        report.unlabelled += not row.labels
        for label in row.labels:
            if label in self.labels or len(self.labels) < MOST_LABELS:
                self.labels[label] += 1
        mark, answer = _hash(text), _hash(row.answer)
        if mark in self.first_label:
            report.duplicates += 1
            report.conflicts += self.first_label[mark] != answer
        elif len(self.first_label) < MOST_HASHES:
            self.first_label[mark] = answer
            report.compared = report.rows
        for other, hashes in self.known.items():
            report.overlaps[other] = report.overlaps.get(other, 0) + (mark in hashes)
        self.characters[len(text)] += 1
        letters = _LETTER.sub("", text)
        self.letters += len(letters)
        self.cjk += len(letters) - len(_CJK.sub("", letters)) if not letters.isascii() else 0
        for what, pattern in _SUSPICIOUS.items():
            if pattern.search(text):
                found = report.suspicious.setdefault(what, {"rows": 0, "lines": []})
                found["rows"] += 1
                if len(found["lines"]) < 3:
                    found["lines"].append(row.line)

    def add_tokens(self, rows: list[Seen], tokenizer: Tokenizes) -> None:
        ids = iter(tokenizer.pieces_batch([part for row in rows for part in row.texts]))
        for row in rows:
            # [CLS] a [SEP] b [SEP]: one special token more than there are texts.
            self.tokens[sum(len(next(ids)) for _ in row.texts) + len(row.texts) + 1] += 1

    def finish(self) -> None:
        report = self.report
        report.compared = report.rows if len(self.first_label) < MOST_HASHES else report.compared
        report.labels, report.label_kinds = dict(self.labels.most_common(50)), len(self.labels)
        report.cjk_share = self.cjk / max(1, self.letters)
        for unit, counts in (("characters", self.characters), ("tokens", self.tokens)):
            if counts:
                report.lengths.append(_lengths(unit, counts))
        if self.tokens:
            report.cuts = [_cut(limit, self.tokens) for limit in LIMITS]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _hashes(path: str | Path, encoding: str, columns: dict[str, Any]) -> set[int]:
    form, _ = form_of(path, encoding, **columns)
    rows = seen_in(path, form, encoding, **columns)
    return {_hash("\n".join(row.texts).strip()) for row in islice(rows, MOST_HASHES)}


def _lengths(unit: str, counts: Counter[int]) -> Lengths:
    """Exact percentiles from how often each length occurs."""
    total, below, result = counts.total(), 0, Lengths(unit)
    waiting = [50, 90, 99, 100]
    for length in sorted(counts):
        below += counts[length]
        while waiting and below * 100 >= waiting[0] * total:
            result.percentiles[waiting.pop(0)] = length
    result.mean = sum(length * count for length, count in counts.items()) / total
    return result


def _cut(limit: int, counts: Counter[int]) -> Cut:
    rows = sum(count for length, count in counts.items() if length > limit)
    lost = sum((length - limit) * count for length, count in counts.items() if length > limit)
    total = sum(length * count for length, count in counts.items())
    return Cut(limit, rows, lost, rows / counts.total(), lost / total)
