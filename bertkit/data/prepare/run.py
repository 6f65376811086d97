"""From running text to a token store: in bounded memory, on all cores, restartable."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import __version__
from bertkit.data.prepare.pieces import Arrays, PieceEncoder
from bertkit.data.prepare.workers import in_order
from bertkit.data.prepare.write_store import StoreProgress, StoreWriter
from bertkit.data.readers.documents import document_files, read_documents
from bertkit.data.store import FORMAT, Store
from bertkit.errors import UserError, suggest
from bertkit.files.open import COMPRESSIONS, kind_of
from bertkit.machine import usable_cores
from bertkit.notify import track
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import SUSPICIONS

# ---- The documents seen so far, stored as digests in little memory.

WIDTH = 16
_EMPTY = bytes(WIDTH)


def digest_of(document: str) -> bytes:
    """A 16-byte digest of a document that ignores spaces and line ends, by which `prepare` drops duplicates.

    Among a billion documents, two different ones share a digest with a probability of 1 in 10^20.
    """
    return hashlib.blake2b(" ".join(document.split()).encode(), digest_size=WIDTH).digest()


class Digests:
    """Documents seen while preparing: a set of digests in one block of memory.

    24 to 48 bytes each; Python's own set takes over 90.
    """

    def __init__(self) -> None:
        self._slots = bytearray(1024 * WIDTH)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, digest: bytes) -> bool:
        """Add the digest of a document to prepare. Returns whether it is new."""
        at = self._find(digest)
        if self._slots[at : at + WIDTH] == digest:
            return False
        self._slots[at : at + WIDTH] = digest
        self._count += 1
        if self._count * WIDTH * 3 > len(self._slots) * 2:
            self._grow()
        return True

    def _find(self, digest: bytes) -> int:
        """The slot of a document's digest, or the empty one where it belongs."""
        slots, size = self._slots, len(self._slots)
        at = int.from_bytes(digest[:8], "little") * WIDTH % size
        while (slot := slots[at : at + WIDTH]) != digest and slot != _EMPTY:
            at = (at + WIDTH) % size
        return at

    def _grow(self) -> None:
        """Double the table of the documents' digests."""
        old = self._slots
        self._slots = bytearray(2 * len(old))
        for start in range(0, len(old), WIDTH):
            digest = bytes(old[start : start + WIDTH])
            if digest != _EMPTY:
                at = self._find(digest)
                self._slots[at : at + WIDTH] = digest


# ---- The report on a store: numbers read back from its files, and lines for people.

PERCENTILES = (5, 50, 95, 99, 100)
AT_ONCE = 1 << 20


def lengths_of(folder: Path) -> dict[str, dict[str, int]]:
    """Percentiles for the report of `prepare`: tokens per sentence, and sentences and tokens per document."""
    sentences = np.memmap(folder / "sentences.bin", np.int64, mode="r")
    counts: dict[str, np.ndarray] = {}
    _count(counts, "tokens per sentence", (np.diff(part) for part in _parts(folder / "sentences.bin")))
    _count(counts, "sentences per document", (np.diff(part) for part in _parts(folder / "documents.bin")))
    _count(counts, "tokens per document", (np.diff(sentences[part]) for part in _parts(folder / "documents.bin")))
    return {name: _percentiles(count) for name, count in counts.items()}


def count_id(path: Path, dtype: str, token: int | None) -> int:
    """How often one id occurs in tokens.bin, for the report of `prepare`."""
    if token is None:
        return 0
    return sum(int(np.count_nonzero(part == token)) for part in _parts(path, dtype, overlap=0))


def _parts(path: Path, dtype: str = "int64", overlap: int = 1) -> Iterator[np.ndarray]:
    """The array in a store's file, part by part; `overlap` items of a part come again in the next."""
    width = np.dtype(dtype).itemsize
    with path.open("rb") as file:
        while len(part := np.fromfile(file, dtype, AT_ONCE)) > overlap:
            yield part
            file.seek(-overlap * width, 1)


def _count(counts: dict[str, np.ndarray], name: str, lengths: Iterator[np.ndarray]) -> None:
    """Add lengths of sentences or documents to the counts in the report of `prepare`."""
    total = np.zeros(1, np.int64)
    for part in lengths:
        counted = np.bincount(part, minlength=len(total))
        counted[: len(total)] += total
        total = counted
    counts[name] = total


def _percentiles(counts: np.ndarray) -> dict[str, int]:
    """Percentiles of lengths from their counts, as the report of `prepare` has them."""
    sums = np.cumsum(counts)
    return {str(share): int(np.searchsorted(sums, share / 100 * sums[-1])) for share in PERCENTILES}


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report of `prepare` as text."""
    read, mb = report["documents_read"], report["bytes"] / 1e6
    unchecked = "" if report["deduplicated"] else " (not checked)"
    lines = [
        f"documents   {report['documents']:>14,}  kept of {read:,} read",
        f"sentences   {report['sentences']:>14,}",
        f"tokens      {report['tokens']:>14,}",
        f"unknown     {report['unknown_rate']:>14.3%}  of tokens",
        f"duplicates  {report['duplicates']:>14,}  documents left out{unchecked}",
        f"empty       {report['empty_documents']:>14,}  documents without any pieces left out, and "
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


# ---- Running text to a token store: in bounded memory, on all cores, restartable.

# Whether a language's words are found by the segmenter; otherwise they begin where pieces do.
SEGMENTED = {"auto": True, "zh": True, "en": False}
CHUNK = 250_000  # characters sent to a worker at once
SMALL_INPUT = 8_000_000  # bytes under which starting workers takes longer than it saves
USUAL_LENGTH = 512


@dataclass(frozen=True)
class Reading:
    """How `prepare` reads text. text: the column of tables. lang: auto, en or zh."""

    text: str = "text"
    encoding: str = "utf-8"
    lang: str = "auto"
    keep_duplicates: bool = False


@dataclass(frozen=True)
class Chunk:
    """A chunk of documents for `prepare`, with where the input is after them; see `Progress`.

    done: input bytes up to there.
    """

    documents: list[str]
    digests: bytes
    file: int
    document: int
    read: dict[str, int]
    done: int


def prepare(
    texts: Iterable[str | Path],
    tokenizer: Tokenizer,
    out: str | Path,
    reading: Reading | None = None,
    *,
    workers: int = 0,
    journal_every: float = 5.0,
    through: Callable[..., Generator[tuple[Chunk, Arrays], None, None]] | None = None,
) -> tuple[Store, dict[str, Any]]:
    """Make a store from files and folders of running text. Returns it, and the report as plain values.

    workers: number of processes; 0: one per usable core. journal_every: seconds of work at risk.
    through: computes the chunks elsewhere; takes what `workers.in_order` takes, which is the default.
    """
    reading = reading or Reading()
    if reading.lang not in SEGMENTED:
        raise UserError(f"lang is '{reading.lang}'. {suggest(reading.lang, list(SEGMENTED))}")
    if workers < 0:
        raise UserError(f"workers is {workers}; it must be 0 (one per core) or more.")
    files, out = document_files(texts), Path(out)
    sizes = [0 if str(file) == "-" else file.stat().st_size for file in files]
    is_known = all(_is_plain(file) for file in files)
    if through is None:
        through = in_order
        workers = workers or (1 if is_known and sum(sizes) < SMALL_INPUT else usable_cores())
    with StoreWriter(out, _job(files, reading, tokenizer), journal_every) as writer:
        with writer.explained("could not store the tokenizer"):
            tokenizer.save(writer.folder / "tokenizer", tokenizer.max_tokens or USUAL_LENGTH)
        chunks = _chunks(files, sizes, reading, writer)
        results = through(
            chunks, lambda chunk: chunk.documents, writer.folder / "tokenizer", SEGMENTED[reading.lang], workers
        )

        def steps() -> Iterator[None]:
            """One step per megabyte of input if its size is known, else one per document."""
            reported = 0
            for chunk, arrays in results:
                writer.add(arrays, chunk.digests, chunk.file, chunk.document, chunk.read)
                reached = chunk.done // 1_000_000 if is_known else chunk.read["documents"]
                yield from [None] * (reached - reported)
                reported = reached

        total = sum(sizes) // 1_000_000 if is_known else None
        try:
            for _ in track(steps(), f"preparing {out.name}, {'MB' if is_known else 'documents'}", total):
                pass
        finally:
            results.close()
        writer.write_journal()
        report = _report(writer, tokenizer, reading)
        lines = report_lines(report)
        seconds = report.pop("seconds")
        writer.finish(_facts(report, tokenizer, reading), "\n".join(lines) + "\n")
    return Store.open(out), {**report, "seconds": seconds, "lines": lines}


def _is_plain(file: Path) -> bool:
    """Whether a file's size says how much text `prepare` has to read."""
    return str(file) != "-" and file.suffix.lower() not in COMPRESSIONS and kind_of(file) != "parquet"


def _job(files: list[Path], reading: Reading, tokenizer: Tokenizer) -> str:
    """What must be the same for a later run of `prepare` to continue this one."""
    inputs = []
    for file in files:
        if str(file) == "-":
            inputs.append(("-", os.getpid(), 0))  # a pipe cannot be read again, so its job is never continued
        else:
            facts = file.stat()
            inputs.append((str(file.resolve()), facts.st_size, facts.st_mtime_ns))
    parts = [FORMAT, __version__, inputs, asdict(reading), tokenizer.fingerprint()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _chunks(files: list[Path], sizes: list[int], reading: Reading, writer: StoreWriter) -> Iterator[Chunk]:
    """Chunks of documents to prepare, from where `writer` stopped."""
    start: StoreProgress = writer.progress
    seen = Digests()
    digests_so_far = writer.digests()
    for offset in range(0, len(digests_so_far), WIDTH):
        seen.add(digests_so_far[offset : offset + WIDTH])
    read = {"documents": 0, "duplicates": 0, "bytes": 0, **start.read}
    documents: list[str] = []
    digests, characters, done = bytearray(), 0, sum(sizes[: start.file])
    for number, file in enumerate(files[start.file :], start.file):
        skip = start.document if number == start.file else 0
        bytes_read = count = 0
        for count, document in enumerate(read_documents(file, text=reading.text, encoding=reading.encoding), 1):
            size = len(document.encode())
            bytes_read += size
            if count <= skip:
                continue
            read["documents"] += 1
            read["bytes"] += size
            characters += len(document)
            digest = b"" if reading.keep_duplicates else digest_of(document)
            if reading.keep_duplicates or seen.add(digest):
                documents.append(document)
                digests += digest
            else:
                read["duplicates"] += 1
            if characters >= CHUNK:
                yield Chunk(documents, bytes(digests), number, count, dict(read), done + min(bytes_read, sizes[number]))
                documents, digests, characters = [], bytearray(), 0
        done += sizes[number]
    if characters:
        yield Chunk(documents, bytes(digests), len(files), 0, dict(read), done)


def _report(writer: StoreWriter, tokenizer: Tokenizer, reading: Reading) -> dict[str, Any]:
    """The report of a prepared store: documents, duplicates, lengths, unknown pieces."""
    progress = writer.progress
    read, counts = progress.read, progress.found
    if progress.sentences < 2:
        writer.discard()
        raise UserError(
            f"The text contains {progress.sentences} sentence{'' if progress.sentences == 1 else 's'} "
            f"({read.get('documents', 0):,} documents, {read.get('bytes', 0):,} bytes), but at least 2 are needed to "
            "pretrain on. Check that the files hold running text, and name the column with --text if it is a table."
        )
    unknown = count_id(writer.folder / "tokens.bin", PieceEncoder.dtype_for(tokenizer), tokenizer.unk_id)
    return {
        "documents": progress.sizes["documents.bin"] // 8 - 1,
        "sentences": progress.sentences,
        "tokens": progress.tokens,
        "unknown_rate": unknown / progress.tokens,
        "documents_read": read["documents"],
        "bytes": read["bytes"],
        "deduplicated": not reading.keep_duplicates,
        "duplicates": read["duplicates"],
        "empty_documents": counts.get("empty documents", 0),
        "empty_sentences": counts.get("empty sentences", 0),
        "suspicious": {kind: count for kind, count in counts.items() if not kind.startswith("empty")},
        "lengths": lengths_of(writer.folder),
        "seconds": progress.seconds,
    }


def _facts(report: dict[str, Any], tokenizer: Tokenizer, reading: Reading) -> dict[str, Any]:
    """What a run of `prepare` writes into `store.json`, except the files."""
    return {
        "format": FORMAT,
        "dtype": PieceEncoder.dtype_for(tokenizer),
        "documents": report["documents"],
        "sentences": report["sentences"],
        "tokens": report["tokens"],
        "fingerprint": tokenizer.fingerprint(),
        "pieces": tokenizer.size,
        "max_tokens": tokenizer.max_tokens or USUAL_LENGTH,
        "settings": asdict(reading),
        "report": report,
    }
