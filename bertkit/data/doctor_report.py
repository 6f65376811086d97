"""What `doctor` found in a file, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any


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
    cjk_share: float = 0.0
    suspicious: dict[str, dict[str, Any]] = field(default_factory=dict)

    def asdict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """The report as sentences, one a line."""
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
            yield f"  conflicting: {self.conflicts:,} rows repeat an earlier text with another label"
        if self.compared < self.rows:
            yield f"  duplicates were looked for among the first {self.compared:,} different texts"
        for other, count in self.overlaps.items():
            yield f"  also in {other}: {count:,} rows ({count / max(1, self.rows):.1%})"
        for lengths in self.lengths:
            shown = ", ".join(f"{share} % up to {value:,}" for share, value in lengths.percentiles.items())
            by = f" ({self.counted_by}'s tokenizer)" if self.counted_by and lengths.unit == "tokens" else ""
            yield f"  {lengths.unit}{by}: mean {lengths.mean:,.1f}; {shown}"
        if self.cuts and not self.cuts[0].rows:
            yield f"  at {self.cuts[0].limit} tokens: nothing is cut"
        for cut in (each for each in self.cuts if each.rows):
            share = f"{cut.rows_share:.1%}), {cut.tokens_share:.1%} of tokens"
            yield f"  at {cut.limit} tokens: {cut.rows:,} rows cut ({share}"
        if self.cjk_share >= 0.001:
            yield f"  Chinese, Japanese, Korean: {self.cjk_share:.1%} of letters"
        for what, found in self.suspicious.items():
            places = ", ".join(map(str, found["lines"]))
            yield f"  {what}: {found['rows']:,} rows, first at {places}"


def _balance(labels: dict[str, int]) -> str:
    total = sum(labels.values())
    shown = [f"{label} {count:,} ({count / total:.1%})" for label, count in islice(labels.items(), 12)]
    return ", ".join(shown) + (", …" if len(labels) > 12 else "")
