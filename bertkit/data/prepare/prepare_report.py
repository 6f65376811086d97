"""What `prepare` tells about a store: numbers read back from its files, and lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.prepare.chunk import SUSPICIONS

PERCENTILES = (5, 50, 95, 99, 100)
AT_ONCE = 1 << 20


def lengths_of(folder: Path) -> dict[str, dict[str, int]]:
    """Percentiles of tokens a sentence, and of sentences and tokens a document, read in bounded memory."""
    sentences = np.memmap(folder / "sentences.bin", np.int64, mode="r")
    counts: dict[str, np.ndarray] = {}
    _count(counts, "tokens a sentence", (np.diff(part) for part in _parts(folder / "sentences.bin")))
    _count(counts, "sentences a document", (np.diff(part) for part in _parts(folder / "documents.bin")))
    _count(counts, "tokens a document", (np.diff(sentences[part]) for part in _parts(folder / "documents.bin")))
    return {name: _percentiles(count) for name, count in counts.items()}


def count_id(path: Path, dtype: str, wanted: int | None) -> int:
    """How often one id occurs in tokens.bin."""
    if wanted is None:
        return 0
    return sum(int(np.count_nonzero(part == wanted)) for part in _parts(path, dtype, overlap=0))


def _parts(path: Path, dtype: str = "int64", overlap: int = 1) -> Iterator[np.ndarray]:
    """The array in a file, part by part; `overlap` items of a part come again in the next."""
    width = np.dtype(dtype).itemsize
    with path.open("rb") as file:
        while len(part := np.fromfile(file, dtype, AT_ONCE)) > overlap:
            yield part
            file.seek(-overlap * width, 1)


def _count(counts: dict[str, np.ndarray], name: str, lengths: Iterator[np.ndarray]) -> None:
    total = np.zeros(1, np.int64)
    for part in lengths:
        here = np.bincount(part, minlength=len(total))
        here[: len(total)] += total
        total = here
    counts[name] = total


def _percentiles(counts: np.ndarray) -> dict[str, int]:
    """The smallest length that so many percent of all do not exceed."""
    sums = np.cumsum(counts)
    return {str(share): int(np.searchsorted(sums, share / 100 * sums[-1])) for share in PERCENTILES}


def report_lines(report: dict[str, Any]) -> list[str]:
    """One page for people."""
    read, mb = report["documents_read"], report["bytes"] / 1e6
    unasked = "" if report["deduplicated"] else " (they were not looked for)"
    lines = [
        f"documents   {report['documents']:>14,}  kept of {read:,} read",
        f"sentences   {report['sentences']:>14,}",
        f"tokens      {report['tokens']:>14,}",
        f"unknown     {report['unknown_rate']:>14.3%}  of tokens",
        f"duplicates  {report['duplicates']:>14,}  documents left out{unasked}",
        f"empty       {report['empty_documents']:>14,}  documents without a piece left out, and "
        f"{report['empty_sentences']:,} sentences",
        "",
        "lengths".ljust(24) + "".join(f"{share + ' %':>10}" for share in map(str, PERCENTILES)),
    ]  # fmt: skip
    for name, shares in report["lengths"].items():
        lines.append(f"{name:24}" + "".join(f"{shares[str(share)]:>10,}" for share in PERCENTILES))
    lines += ["", "suspicious lines"]
    lines += [f"  {kind:34}{report['suspicious'].get(kind, 0):>10,}" for kind in SUSPICIONS]
    if "seconds" in report:
        rate = mb / max(report["seconds"], 1e-9)
        lines += ["", f"{mb:,.1f} MB of text read in {report['seconds']:,.1f} s, {rate:,.1f} MB/s"]
    return lines
