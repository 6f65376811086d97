"""Turns some documents into the arrays of a store: a pure function, so that any process can run it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bertkit.data.prepare.pieces import PieceEncoder
from bertkit.text.words import split_sentences

_WRAPPED = re.compile(r"\n[a-z]")
_CONTROLS = "".join(map(chr, [*range(1, 9), 11, 12, *range(14, 32), 127]))
# What a line of prose seldom holds: a pattern, and strings without which it cannot be there (quick to look for).
SUSPICIONS: dict[str, tuple[Sequence[str], re.Pattern[str]]] = {
    "broken characters (U+FFFD)": ("\ufffd", re.compile("\ufffd")),
    "text decoded twice (Ã©, â€™)": (
        ("Ã", "â€", "Â", "锟斤拷", "ï»¿"),
        re.compile("Ã[\u0080-\u00bf\u2018-\u2122]|Â[\u00a0-\u00bf]|â€|锟斤拷|ï»¿"),
    ),
    "markup (<tag>, &amp;)": (
        "<&",
        re.compile(r"</?(?!unk>)[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>\n]{0,200})?/?>|&(?:[a-z]{2,8}|#\d{1,6});"),
    ),
    "rules and tables (-----, |…|…|)": (
        ("|", *(mark * 10 for mark in "-=_*#~.")),
        re.compile(r"([-=_*#~.])\1{9}|\|[^|\n]*\|[^|\n]*\|"),
    ),
    "control characters": (_CONTROLS, re.compile(f"[{re.escape(_CONTROLS)}]")),
}


@dataclass(frozen=True)
class Arrays:
    """What some documents add to a store.

    ids: (tokens,). starts: (tokens,) uint8. sentences: (sentences,) tokens of each. documents: (documents,)
    sentences of each. counts: `empty` documents and sentences without pieces, and suspicious lines by kind.
    """

    ids: np.ndarray
    starts: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    counts: dict[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Serialize as one message: a line of JSON, then the arrays."""
        arrays = [self.ids, self.starts, self.sentences, self.documents]
        head = {"counts": self.counts, "arrays": [[array.dtype.str, len(array)] for array in arrays]}
        return b"".join([json.dumps(head).encode(), b"\n", *(array.tobytes() for array in arrays)])

    @classmethod
    def from_bytes(cls, message: bytes) -> Arrays:
        """Read what `to_bytes` wrote."""
        at = message.index(b"\n") + 1
        head = json.loads(message[:at])
        arrays = []
        for kind, length in head["arrays"]:
            arrays.append(np.frombuffer(message, kind, length, at))
            at += arrays[-1].nbytes
        ids, starts, sentences, documents = arrays
        return cls(ids, starts, sentences, documents, head["counts"])


def arrays_of(documents: Sequence[str], cutter: PieceEncoder) -> Arrays:
    """Split documents into sentences and sentences into pieces; those without pieces are left out and counted."""
    sentences: list[str] = []
    per_document = []
    for document in documents:
        found = sentences_of(document)
        sentences += found
        per_document.append(len(found))
    owner = np.repeat(np.arange(len(documents)), per_document)
    opens = np.diff(owner, prepend=-1) > 0
    pieces = cutter.cut(sentences, opens.tolist())
    has_pieces = pieces.lengths > 0
    lengths = np.bincount(owner[has_pieces], minlength=len(documents))
    counts = Counter({"empty documents": int((lengths == 0).sum()), "empty sentences": int((~has_pieces).sum())})
    for document in documents:
        counts.update(suspicious_lines(document))
    return Arrays(
        pieces.ids, pieces.starts, pieces.lengths[has_pieces].astype(np.int32), lengths[lengths > 0].astype(np.int32),
        dict(counts),
    )  # fmt: skip


def sentences_of(document: str) -> list[str]:
    """The sentences of a document. A line end is a paragraph's end, unless the text is wrapped.

    Text counts as wrapped if most of its lines continue with a lower-case letter.
    """
    if 2 * len(_WRAPPED.findall(document)) > document.count("\n"):
        return split_sentences(document)
    return [sentence for line in document.split("\n") for sentence in split_sentences(line)]


def suspicious_lines(document: str) -> dict[str, int]:
    """For the report of `prepare` and `doctor`: the number of lines of each kind that is rarely prose."""
    found = {}
    for kind, (needles, pattern) in SUSPICIONS.items():
        if any(needle in document for needle in needles) and (
            count := sum(pattern.search(line) is not None for line in document.split("\n"))
        ):
            found[kind] = count
    return found
