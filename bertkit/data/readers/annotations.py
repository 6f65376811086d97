"""Texts with labelled spans, as annotation tools export them, and their spans as one tag per word.

| tool | file |
|---|---|
| doccano | jsonl: {"text", "label": [[start, end, name], …]}, or "entities" with start_offset, end_offset and label |
| Prodigy | jsonl: {"text", "spans": [{"start", "end", "label"}, …], "answer"} |
| Label Studio | json: [{"data": {"text"}, "annotations": [{"result": […]}]}, …], or its short form JSON-MIN |
| BRAT | a folder of .txt files, each with an .ann file of the same name |
| spaCy | .spacy: a DocBin |

Offsets count characters. A span that no sequence of tags can express is counted and reported, with its place.
"""

from __future__ import annotations

import struct
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from bertkit.data.readers.json import field as value_of
from bertkit.data.readers.json import read_objects, short
from bertkit.errors import DamagedFile, UserError
from bertkit.files.open import kind_of, open_bytes, open_whole
from bertkit.notify import note
from bertkit.text.words import is_cjk

Span = tuple[int, int, str]  # first character, the one after the last, label
KEYS = ("spans", "entities", "label", "labels", "annotations", "result")
MOST_UNPACKED = 1 << 30  # bytes of a .spacy file


@dataclass(frozen=True, slots=True)
class Annotated:
    """A text and its spans (None where it has not been annotated). where: its place, for messages."""

    text: str
    spans: tuple[Span, ...] | None
    line: int
    where: str


def holds_spans(path: str | Path, encoding: str = "utf-8") -> bool:
    """Whether a file, or a folder, is one of annotated texts: by its ending and its first objects."""
    kind = kind_of(path)
    if kind == "spacy" or Path(path).is_dir():
        return True
    if kind not in ("jsonl", "json", "rows"):
        return False
    try:
        rows = [row for _, row in islice(read_objects(path, encoding, kind), 20)]
    except UserError:
        return False
    return any(_text_of(row) is not None and _listed(row) is not None for row in rows)


def read_annotated(path: str | Path, encoding: str = "utf-8") -> Iterator[Annotated]:
    """Every text of an annotated file or folder."""
    if Path(path).is_dir():
        yield from _brat(Path(path), encoding)
    elif kind_of(path) == "spacy":
        yield from _docbin(path)
    else:
        yield from _objects(path, encoding)


def _objects(path: str | Path, encoding: str) -> Iterator[Annotated]:
    """Annotated texts of a JSON file, as Prodigy, doccano, Label Studio and others export them."""
    skipped = several = count = 0
    for line, row in read_objects(path, encoding):
        where = f"{path}, line {line}"
        if row.get("answer") in ("reject", "ignore"):  # Prodigy's
            skipped += 1
            continue
        text = _text_of(row)
        if text is None:
            value_of(where, row, "text")
            raise UserError(f"{where}: 'text' is {short(row['text'])}; it must be text in quotes.")
        items = _listed(row)
        if items and all(isinstance(item, dict) and "result" in item for item in items):  # Label Studio's
            done = [item for item in items if not item.get("was_cancelled")]
            several += len(done) > 1
            items = list(done[0]["result"]) if done else None
        spans = None if items is None else tuple(span for item in items if (span := _span(where, item)))
        count += 1
        yield Annotated(text, spans, line, where)
    if skipped:
        note(f"{path}: {skipped} rejected or ignored texts are left out, {count} are read.")
    if several:
        note(f"{path}: {several} texts were annotated more than once; the first annotation of each is read.")


def _text_of(row: dict[str, Any]) -> str | None:
    for place in (row, row.get("data"), row.get("input")):
        if isinstance(place, dict) and isinstance(place.get("text"), str):
            return str(place["text"])
    return None


def _listed(row: dict[str, Any]) -> list[Any] | None:
    """The annotated spans of an object; None where it has none, or a list of other things (labels of the text)."""
    for key in KEYS:
        items = row.get(key)
        if isinstance(items, list) and all(isinstance(item, dict) or _is_triple(item) for item in items):
            return items
    return None


def _is_triple(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 3 and all(type(place) is int for place in item[:2])


def _span(where: str, item: Any) -> Span | None:
    """An annotated span as any of the tools writes it; None for what is no span (a relation, a choice)."""
    if isinstance(item, dict):
        if item.get("type", "labels") not in ("labels", "hypertextlabels") and "value" in item:
            return None
        place = item.get("value") if isinstance(item.get("value"), dict) else item
        assert isinstance(place, dict)
        label = next((place[key] for key in ("labels", "label", "hypertextlabels") if place.get(key)), None)
        item = [place.get("start", place.get("start_offset")), place.get("end", place.get("end_offset")), label]
    start, end, label = item
    label = label[0] if isinstance(label, list) and label else label
    if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label.strip():
        raise UserError(
            f"{where}: a span is {short(item)}; it needs a start and an end, counted in characters, and a label."
        )
    return start, end, label.strip()


# ---- BRAT: one .ann file beside each .txt file.


def _brat(folder: Path, encoding: str) -> Iterator[Annotated]:
    """Annotated texts of a BRAT folder: .txt files with .ann files beside them."""
    files = sorted(file for file in folder.rglob("*.txt") if file.is_file())
    if not files:
        raise UserError(f"{folder}: this folder contains no .txt file. BRAT's has a .txt and an .ann file per text.")
    apart = 0
    for number, file in enumerate(files, start=1):
        text = open_whole(file, encoding) if file.stat().st_size else ""
        notes = file.with_suffix(".ann")
        spans: list[Span] = []
        lines = open_whole(notes, encoding).split("\n") if notes.is_file() and notes.stat().st_size else []
        for line, row in enumerate(lines, start=1):
            cells = row.split("\t")
            if not row.startswith("T") or len(cells) < 2:  # relations, events, attributes, notes
                continue
            label, _, places = cells[1].partition(" ")
            try:
                parts = [tuple(map(int, part.split())) for part in places.split(";")]
                spans.append((parts[0][0], parts[-1][1], label))
            except (ValueError, IndexError):
                raise UserError(f"{notes}, line {line}: {row[:60]!r} is not a text-bound annotation.") from None
            apart += len(parts) > 1
        yield Annotated(text, tuple(spans) if notes.is_file() else None, number, str(file))
    if apart:
        note(f"{folder}: {apart} spans are discontinuous; each is read as one, from its first part to its last.")


# ---- spaCy's DocBin: zlib-compressed msgpack, whose strings are named by their MurmurHash.

ORTH, ENT_IOB, ENT_TYPE = 65, 77, 78  # numbers of spaCy's attributes
BEGINS, INSIDE = 3, 1  # values of ENT_IOB
# Strings that spaCy names by small numbers instead of hashes: attributes and parts of speech from 64 on, kinds of
# entities and grammatical relations from 380 on.
_FROM_64 = """
    ID ORTH LOWER NORM SHAPE PREFIX SUFFIX LENGTH CLUSTER LEMMA POS TAG DEP ENT_IOB ENT_TYPE HEAD SENT_START SPACY
    PROB LANG ADJ ADP ADV AUX CONJ CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X EOL SPACE
"""
_FROM_380 = """
    PERSON NORP FACILITY ORG GPE LOC PRODUCT EVENT WORK_OF_ART LANGUAGE LAW DATE TIME PERCENT MONEY QUANTITY
    ORDINAL CARDINAL acomp advcl advmod agent amod appos attr aux auxpass cc ccomp complm conj cop csubj csubjpass
    dep det dobj expl hmod hyph infmod intj iobj mark meta neg nmod nn npadvmod nsubj nsubjpass num number oprd
    obj obl parataxis partmod pcomp pobj poss possessive preconj prep prt punct quantmod relcl rcmod root xcomp
    acl
"""
_SYMBOLS = dict(enumerate(_FROM_64.split(), 64)) | dict(enumerate(_FROM_380.split(), 380))


def _docbin(path: str | Path) -> Iterator[Annotated]:
    """Annotated texts of spaCy's DocBin (.spacy), read without spaCy."""
    import numpy as np

    try:
        with open_bytes(path) as stream:
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(stream.read(), MOST_UNPACKED)
        if unpacker.unconsumed_tail:
            raise UserError(f"{path}: larger than {MOST_UNPACKED >> 20} MB when unpacked. Split it.")
        if not unpacker.eof:
            raise EOFError("it ends too early")
        box = _Msgpack(raw).value()
        names = {murmur_hash(name): name for name in box["strings"]} | _SYMBOLS
        table = np.frombuffer(box["tokens"], "<u8").reshape(-1, len(box["attrs"])).tolist()
        spaces = np.frombuffer(box["spaces"], bool).tolist()
        lengths = np.frombuffer(box["lengths"], "<i4").tolist()
        word, begins, kind = (box["attrs"].index(name) for name in (ORTH, ENT_IOB, ENT_TYPE))
        at = 0
        for number, length in enumerate(lengths, start=1):
            text, spans = "", list[Span]()
            for row, space in zip(table[at : at + length], spaces[at : at + length], strict=True):
                start = len(text)
                text += names[row[word]]
                if row[begins] == BEGINS:
                    spans.append((start, len(text), names[row[kind]]))
                elif row[begins] == INSIDE and spans:
                    spans[-1] = (spans[-1][0], len(text), spans[-1][2])
                text += " " * space
            at += length
            yield Annotated(text, tuple(spans), number, f"{path}, document {number}")
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file leads to
        raise DamagedFile(f"{path}: not a valid DocBin ({type(error).__name__}: {error}). Write it again.") from error


class _Msgpack:
    """The part of msgpack that a DocBin uses."""

    SIZES: ClassVar = {0xC4: "B", 0xC5: ">H", 0xC6: ">I", 0xD9: "B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I",
             0xDE: ">H", 0xDF: ">I"}  # fmt: skip
    NUMBERS: ClassVar = {0xCA: ">f", 0xCB: ">d", 0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: "b", 0xD1: ">h",
               0xD2: ">i", 0xD3: ">q"}  # fmt: skip
    CONSTANTS: ClassVar = {0xC0: None, 0xC2: False, 0xC3: True}

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def value(self, depth: int = 0) -> Any:
        """The next value of a msgpack message."""
        code = self._number("B")
        if depth > 20:
            raise ValueError("nested too deeply")
        if code in self.CONSTANTS:
            return self.CONSTANTS[code]
        if code in self.NUMBERS:
            return self._number(self.NUMBERS[code])
        if code < 0x80 or code >= 0xE0:
            return code if code < 0x80 else code - 0x100
        if code in self.SIZES:
            size = self._number(self.SIZES[code])
        else:
            size = code & (0x1F if 0xA0 <= code <= 0xBF else 0x0F)
        if 0xA0 <= code <= 0xBF or code in (0xD9, 0xDA, 0xDB):
            return self._bytes(size).decode()
        if code in (0xC4, 0xC5, 0xC6):
            return self._bytes(size)
        if 0x90 <= code <= 0x9F or code in (0xDC, 0xDD):
            return [self.value(depth + 1) for _ in range(size)]
        if 0x80 <= code <= 0x8F or code in (0xDE, 0xDF):
            return {self.value(depth + 1): self.value(depth + 1) for _ in range(size)}
        raise ValueError(f"an unknown code {code:#x}")

    def _bytes(self, size: int) -> bytes:
        if self.at + size > len(self.raw):
            raise ValueError("it ends too early")
        self.at += size
        return self.raw[self.at - size : self.at]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]


def murmur_hash(text: str) -> int:
    """MurmurHash64A with seed 1, by which spaCy's files name strings; the empty string is 0."""
    raw, mix, most = text.encode(), 0xC6A4A7935BD1E995, (1 << 64) - 1
    if not raw:
        return 0
    total = (1 ^ len(raw) * mix) & most
    whole = len(raw) // 8 * 8
    for at in range(0, whole, 8):
        part = int.from_bytes(raw[at : at + 8], "little") * mix & most
        total = (total ^ (part ^ part >> 47) * mix & most) * mix & most
    if raw[whole:]:
        total = (total ^ int.from_bytes(raw[whole:], "little")) * mix & most
    total = (total ^ total >> 47) * mix & most
    return total ^ total >> 47


# ---- Spans as one tag per word.


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where an annotated text's words stand, split as BERT splits them: at spaces, every punctuation mark, and around
    every Chinese character.
    """
    spans: list[tuple[int, int]] = []
    inside = False
    for at, char in enumerate(text):
        category = unicodedata.category(char)
        if char.isspace() or category[0] in "ZC":
            inside = False
        elif is_cjk(char) or category[0] == "P" or (char.isascii() and not char.isalnum()):
            spans.append((at, at + 1))
            inside = False
        elif inside:
            spans[-1] = (spans[-1][0], at + 1)
        else:
            spans.append((at, at + 1))
            inside = True
    return spans


@dataclass
class SpanTagger:
    """Turns spans into BIO tags, and counts those that tags cannot express."""

    problems: dict[str, list[str]] = field(default_factory=dict)

    def tags(self, annotated: Annotated, words: Sequence[tuple[int, int]]) -> tuple[str, ...]:
        """One tag per word from annotated spans: the longest overlapping one wins; one that cuts a word is widened."""
        tags = ["O"] * len(words)
        for start, end, label in sorted(annotated.spans or (), key=lambda span: (span[0] - span[1], span)):
            example = f"{annotated.where}, {annotated.text[start:end]!r:.40} {label}"
            if not 0 <= start < end <= len(annotated.text):
                self._count("lie outside their text and were left out", f"{annotated.where}, {start} to {end} {label}")
                continue
            covered = [n for n, (first, last) in enumerate(words) if first < end and last > start]
            if not covered:
                self._count("cover no word and were left out", example)
            elif any(tags[n] != "O" for n in covered):
                self._count("overlap a longer one and were left out", example)
            else:
                if words[covered[0]][0] < start or words[covered[-1]][1] > end:
                    self._count("cut a word and were widened to all of it", example)
                tags[covered[0] : covered[-1] + 1] = [f"B-{label}", *[f"I-{label}"] * (len(covered) - 1)]
        return tuple(tags)

    def _count(self, what: str, where: str) -> None:
        self.problems.setdefault(what, []).append(where)

    def report(self, path: str | Path) -> None:
        """Notify of every kind of problem with annotated spans, with the first place of each."""
        for what, places in self.problems.items():
            note(f"{path}: {len(places)} spans {what} (first: {places[0]}).")
