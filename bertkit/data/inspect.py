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
from unicodedata import normalize

from bertkit.data.readers import Form, SeenRow, first_bytes, form_of, seen_in
from bertkit.data.readers.rows import has_pair
from bertkit.errors import UserError
from bertkit.notify import track, unheard
from bertkit.text.chinese_forms import simplify
from bertkit.text.words import HAN, HANGUL, KANA, SUSPICIONS

# ---- What `doctor` found in a file, for people and for programs.


@dataclass
class Lengths:
    """Found in a data file: how long the texts are, in one unit: {50: …, 90: …, 99: …, 100: …}."""

    unit: str
    percentiles: dict[int, int] = field(default_factory=dict)
    mean: float = 0.0


@dataclass
class Truncation:
    """Found in a data file: what a model of `limit` tokens would not see; special tokens count."""

    limit: int
    rows: int
    tokens: int
    rows_share: float
    tokens_share: float


@dataclass
class FileReport:
    """Everything an inspection found in one data file. `lines()` for people, `asdict` for programs."""

    path: str
    form: str
    kind: str
    encoding: str
    columns: list[str]
    rows: int = 0
    labels: dict[str, int] = field(default_factory=dict)
    label_kinds: int = 0
    label_kinds_exact: bool = True  # False: there are more than were counted
    label_total: int = 0  # of all labels, also those that `labels` leaves out
    unlabelled: int = 0
    empty: int = 0
    duplicates: int = 0
    conflicts: int = 0
    compared: int = 0
    overlaps: dict[str, int] = field(default_factory=dict)
    lengths: list[Lengths] = field(default_factory=list)
    cuts: list[Truncation] = field(default_factory=list)
    counted_by: str = ""  # the model whose tokenizer counted the tokens
    unknown_share: float = 0.0  # of the pieces, by the same tokenizer
    cjk_share: float = 0.0
    suspicious: dict[str, dict[str, Any]] = field(default_factory=dict)
    rare_labels: dict[str, int] = field(default_factory=dict)
    rare_kinds: int = 0  # how many labels are rare; `rare_labels` holds the rarest
    alike_labels: list[dict[str, int]] = field(default_factory=list)  # groups of labels that may be one
    spaced_labels: int = 0
    conflict_lines: list[int] = field(default_factory=list)
    bad_rows: int = 0
    bad: list[str] = field(default_factory=list)  # the first of them, as messages

    def asdict(self) -> dict[str, Any]:
        """The inspected file's report as plain values, for JSON."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """The inspected file's report as sentences, one per line."""
        yield f"{self.path}: {self.rows:,} {self.form} ({self.kind or 'text'}, {self.encoding})"
        if self.columns:
            yield f"  columns: {', '.join(self.columns)}"
        if self.label_kinds:
            listed = _list(f"{label} {n:,} ({n / self.label_total:.1%})" for label, n in self.labels.items())
            if not self.label_kinds_exact:
                yield f"  labels: at least {self.label_kinds:,} different: {listed}, and more"
            elif (more := self.label_kinds - SHOWN) > 0:
                yield f"  labels: {self.label_kinds:,} different: {listed}, and {more:,} more"
            else:
                yield f"  labels: {self.label_kinds:,} different: {listed}"
        if self.rare_labels:
            listed = ", ".join(f"{label} {count}" for label, count in self.rare_labels.items())
            if not self.label_kinds_exact:
                yield f"  rare labels (fewer than {FEW} rows): {listed}, and more"
            elif (more := self.rare_kinds - len(self.rare_labels)) > 0:
                yield f"  rare labels (fewer than {FEW} rows): {listed}, and {more:,} more"
            else:
                yield f"  rare labels (fewer than {FEW} rows): {listed}"
        for group in self.alike_labels:
            listed = ", ".join(f"{label!r} ({count:,})" for label, count in group.items())
            yield f"  labels that look like one: {listed}"
        if self.spaced_labels:
            yield f"  labels with spaces around them: {self.spaced_labels:,} rows (they are read without)"
        if self.unlabelled and self.label_kinds:
            yield f"  without a label: {self.unlabelled:,}"
        for what, count in (("empty texts", self.empty), ("duplicates", self.duplicates)):
            if count:
                yield f"  {what}: {count:,} ({count / self.rows:.1%})"
        if self.conflicts:
            places = ", ".join(map(str, self.conflict_lines))
            again = f"{self.conflicts:,} rows repeat an earlier text with a different label"
            yield f"  conflicting: {again}, first at {places}"
        if self.compared < self.rows:
            yield f"  only the first {self.compared:,} distinct texts were checked for duplicates"
        for other, count in self.overlaps.items():
            yield f"  also in {other}: {count:,} rows ({count / max(1, self.rows):.1%})"
        for lengths in self.lengths:
            half, most, nearly, longest = (f"{value:,}" for value in lengths.percentiles.values())
            percentiles = f"50 % up to {half}, 90 % up to {most}, 99 % up to {nearly}, 100 % up to {longest}"
            if self.counted_by and lengths.unit == "tokens":
                yield f"  tokens ({self.counted_by}'s tokenizer): mean {lengths.mean:,.1f}; {percentiles}"
            else:
                yield f"  {lengths.unit}: mean {lengths.mean:,.1f}; {percentiles}"
        if self.unknown_share:
            yield f"  unknown to {self.counted_by}'s vocabulary: {self.unknown_share:.2%} of pieces"
        if self.cuts and not self.cuts[0].rows:
            yield f"  at {self.cuts[0].limit} tokens: nothing is truncated"
        for cut in (each for each in self.cuts if each.rows):
            rows = f"{cut.rows:,} rows truncated ({cut.rows_share:.1%})"
            yield f"  at {cut.limit} tokens: {rows}, {cut.tokens_share:.1%} of tokens"
        if self.cjk_share >= 0.001:
            yield f"  Chinese, Japanese, Korean: {self.cjk_share:.1%} of letters"
        for what, where in self.suspicious.items():
            places = ", ".join(map(str, where["lines"]))
            yield f"  {what}: {where['rows']:,} rows, first at {places}"
        if self.bad_rows:
            yield f"  rows that cannot be read: {self.bad_rows:,}"
            yield from (f"    {message}" for message in self.bad)


def _list(names: Iterable[str]) -> str:
    return ", ".join(islice(names, SHOWN))


LIMITS = (128, 256, 512)
MOST_HASHES = 4_000_000  # texts compared for duplicates; about half a gigabyte
MOST_LABELS = 10_000
BATCH = 256
BEGINNING = 2000  # characters
_CJK = re.compile(f"[{KANA}{HAN}{HANGUL}]+")
_LETTER = re.compile(r"[\W\d_]+")
VERY_LONG = 20_000  # characters
SHOWN = 12  # labels
FEW = 5  # rows of a label
MOST_LISTED = 50  # labels that are rare or alike
MOST_COMPARED = 500  # labels compared with each other
MOST_BAD = 20  # rows that cannot be read, shown


class Tokenizes(Protocol):
    """What inspecting a file needs of a tokenizer: texts to lists of ids, without special tokens."""

    def pieces_batch(self, texts: list[str]) -> list[list[int]]:
        """What inspecting a file needs of a tokenizer: the ids of each text."""


def inspect_file(
    path: str | Path,
    *,
    tokenizer: Tokenizes | None = None,
    others: Iterable[str | Path] = (),
    encoding: str = "utf-8",
    **columns: Any,
) -> FileReport:
    """Inspect a data file: read it once and report what is in it; `others` are read too, to find texts in both.

    columns: text=, text_b=, label=, header= as for `read_rows`; where no text is named and the file has two columns of
    texts by their well-known names, the rows are pairs. Texts are compared without regard to case and spaces. A row
    that cannot be read is reported, and the next one is read.
    """
    form, names, columns = _form_and_columns(path, encoding, columns)
    spelled = "utf-8 with BOM" if encoding == "utf-8" and first_bytes(path).startswith(b"\xef\xbb\xbf") else encoding
    report = FileReport(str(path), form.name, form.kind, spelled, names)
    known = {str(other): _hashes(other, encoding, columns) for other in others}
    tally = _Tally(report, known)
    bad: list[UserError] = []
    rows = _until_broken(track(seen_in(path, form, encoding, bad, **columns), f"reading {Path(path).name}"), bad)
    while batch := list(islice(rows, BATCH)):
        for row in batch:
            tally.add(row)
        if tokenizer is not None:
            tally.add_tokens(batch, tokenizer)
    tally.finish()
    report.bad_rows, report.bad = len(bad), [str(error) for error in bad[:MOST_BAD]]
    return report


def _form_and_columns(
    path: str | Path, encoding: str, columns: dict[str, Any]
) -> tuple[Form, list[str], dict[str, Any]]:
    """An inspected file's form, its columns, and which of them are read: both texts where it has pairs."""
    form, names = form_of(path, encoding, **columns)
    if form.name == "rows" and "text" not in columns and has_pair(names):
        columns = {**columns, "text_b": "text_b"}
    return form, names, columns


def _until_broken(rows: Iterable[SeenRow], bad: list[UserError]) -> Iterator[SeenRow]:
    """An inspected file's rows up to an error after which no reader can go on; one without any is refused."""
    read = False
    try:
        for row in rows:
            read = True
            yield row
    except UserError as error:
        if not read:
            raise
        bad.append(UserError(f"{error} Reading stopped here."))


def first_texts(path: str | Path, count: int, encoding: str = "utf-8", **columns: Any) -> list[str]:
    """The beginnings of an inspected file's first texts, to detect their language. Reading them prints no notes."""
    with unheard():
        form, _, columns = _form_and_columns(path, encoding, columns)
        rows = islice(seen_in(path, form, encoding, [], **columns), count)
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
        self.compares_labels = report.form == "rows"

    def add(self, row: SeenRow) -> None:
        """Count one row of a data file: its labels, its length, and whether it repeats another."""
        report = self.report
        report.rows += 1
        text = "\n".join(row.texts).strip()
        report.empty += not all(part.strip() for part in row.texts)
        report.unlabelled += not row.labels
        for label in row.labels:
            report.label_total += 1
            if label in self.labels or len(self.labels) < MOST_LABELS:
                self.labels[label] += 1
            else:
                report.label_kinds_exact = False
        report.spaced_labels += row.spaced
        mark, answer = _hash(_normal(text)), _hash(row.answer)
        if mark in self.first_label:
            report.duplicates += 1
            if self.first_label[mark] != answer:
                report.conflicts += 1
                if len(report.conflict_lines) < 3:
                    report.conflict_lines.append(row.line)
        elif len(self.first_label) < MOST_HASHES:
            self.first_label[mark] = answer
            report.compared = report.rows
        for other, hashes in self.known.items():
            report.overlaps[other] = report.overlaps.get(other, 0) + (mark in hashes)
        self.characters[len(text)] += 1
        letters = _LETTER.sub("", text)
        self.letters += len(letters)
        self.cjk += len(letters) - len(_CJK.sub("", letters)) if not letters.isascii() else 0
        kinds = [
            what
            for what, (needles, pattern) in SUSPICIONS.items()
            if any(needle in text for needle in needles) and pattern.search(text)
        ]
        if len(text) > VERY_LONG:
            kinds.append(f"very long (over {VERY_LONG:,} characters)")
        for what in kinds:
            where = report.suspicious.setdefault(what, {"rows": 0, "lines": []})
            where["rows"] += 1
            if len(where["lines"]) < 3:
                where["lines"].append(row.line)

    def add_tokens(self, rows: list[SeenRow], tokenizer: Tokenizes) -> None:
        """Count the tokens of rows of a data file."""
        ids = iter(tokenizer.pieces_batch([part for row in rows for part in row.texts]))
        for row in rows:
            # [CLS] a [SEP] b [SEP]: one special token more than there are texts.
            self.tokens[sum(len(next(ids)) for _ in row.texts) + len(row.texts) + 1] += 1

    def finish(self) -> None:
        """The report of a data file from its counts."""
        report = self.report
        report.compared = report.rows if len(self.first_label) < MOST_HASHES else report.compared
        report.labels, report.label_kinds = dict(self.labels.most_common(50)), len(self.labels)
        if self.compares_labels and len(self.labels) < max(3, report.rows / 2):  # else they are numbers, or all differ
            rare = sorted((count, label) for label, count in self.labels.items() if count < FEW)
            report.rare_labels, report.rare_kinds = {label: count for count, label in rare[:MOST_LISTED]}, len(rare)
            report.alike_labels = alike(self.labels)[:MOST_LISTED]
        report.cjk_share = self.cjk / max(1, self.letters)
        for unit, counts in (("characters", self.characters), ("tokens", self.tokens)):
            if counts:
                report.lengths.append(_lengths(unit, counts))
        if self.tokens:
            report.cuts = [_cut(limit, self.tokens) for limit in LIMITS]


def _normal(text: str) -> str:
    """A text of an inspected file without regard to case and spaces."""
    return " ".join(text.casefold().split())


def _bare(label: str) -> str:
    """A label of an inspected file without case and spaces, full-width and traditional forms as the usual ones."""
    return "".join(simplify(normalize("NFKC", label)).casefold().split())


def alike(labels: Counter[str]) -> list[dict[str, int]]:
    """Labels of an inspected file that differ in case, spaces, Chinese forms, or one letter (of four or more).

    The most frequent come first.
    """
    names = {label: _bare(label) for label, _ in labels.most_common(MOST_COMPARED)}
    groups: list[list[str]] = []
    for name, bare in names.items():
        group = next((g for g in groups if any(_one_apart(bare, names[other]) for other in g)), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return [{name: labels[name] for name in group} for group in groups if len(group) > 1]


def _one_apart(a: str, b: str) -> bool:
    """Whether two names are equal, or equal but for one letter that was changed, added or left out. Digits count."""
    if a == b:
        return True
    short, long = sorted((a, b), key=len)
    if len(short) < 4 or len(long) - len(short) > 1:
        return False
    start = next((n for n, (x, y) in enumerate(zip(short, long)) if x != y), len(short))
    odd = long[start] + (short[start] if len(short) == len(long) else "")
    return short[start + (len(short) == len(long)) :] == long[start + 1 :] and not any(map(str.isdigit, odd))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _hashes(path: str | Path, encoding: str, columns: dict[str, Any]) -> set[int]:
    """Hashes of the texts of another data file, to count those in both."""
    form, _, columns = _form_and_columns(path, encoding, columns)
    rows = seen_in(path, form, encoding, [], **columns)
    return {_hash(_normal("\n".join(row.texts))) for row in islice(rows, MOST_HASHES)}


def _lengths(unit: str, counts: Counter[int]) -> Lengths:
    """Exact percentiles of an inspected file's texts, from how often each length occurs."""
    total, below, result = counts.total(), 0, Lengths(unit)
    waiting = [50, 90, 99, 100]
    for length in sorted(counts):
        below += counts[length]
        while waiting and below * 100 >= waiting[0] * total:
            result.percentiles[waiting.pop(0)] = length
    result.mean = sum(length * count for length, count in counts.items()) / total
    return result


def _cut(limit: int, counts: Counter[int]) -> Truncation:
    """How many rows and tokens a limit would truncate."""
    rows = sum(count for length, count in counts.items() if length > limit)
    lost = sum((length - limit) * count for length, count in counts.items() if length > limit)
    total = sum(length * count for length, count in counts.items())
    return Truncation(limit, rows, lost, rows / counts.total(), lost / total)
