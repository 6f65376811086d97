"""What is in a data file, in one pass and bounded memory: what `bertkit doctor FILE` tells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from bertkit.data.doctor_report import Cut, FileReport, Lengths
from bertkit.data.forms import Seen, first_bytes, form_of, seen_in
from bertkit.data.readers.read_columns import has_pair
from bertkit.notify import track

LIMITS = (128, 256, 512)
MOST_HASHES = 4_000_000  # texts compared for duplicates; about half a gigabyte
MOST_LABELS = 10_000
BATCH = 256
BEGINNING = 2000  # characters
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003134f]+")
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
    """Read a file once and say what is in it; `others` are read too, for texts that are in both.

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
    """The beginnings of the first texts, by which their language is told."""
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
