"""From documents to sentences to the ids and word starts of a store, many at a time.

A BERT tokenizer treats every character and every word the same, wherever it occurs. So a
sentence can be split into words with one table of characters, and the pieces of a word looked up in a table of words
that grows as words appear: the same ids as the library's, at less than a third of its cost. Tokenizers of other
rules, and sentences that hold a special token, go through the library.
"""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from bertkit.text.checks import tokenizer_errors
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import CJK_RANGES, segment, sentences_of, suspicious_lines

CJK = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in CJK_RANGES) + "]")
TABLE_BYTES = 24 << 20  # approximate limit of the table of words, which is then emptied
ROW_BYTES = 200
WHOLE = "\0"  # marks a whole sentence in the table of words; no text contains a NUL
PROBES = 8  # sentences of each call that are checked against the library


@dataclass(frozen=True)
class Pieces:
    """Sentences as pieces. ids: (tokens,) of all sentences. lengths: (sentences,) tokens of each.

    starts: (tokens,) 1 begins a word.
    """

    ids: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray


class PieceEncoder:
    """Splits the sentences of a store into pieces with one tokenizer.

    segmenting: find Chinese words of several characters.
    """

    def __init__(self, tokenizer: Tokenizer, segmenting: bool = True) -> None:
        self.tokenizer = tokenizer
        self.segmenting = segmenting
        self.dtype = self.dtype_for(tokenizer)
        self.table = WordTable(tokenizer) if has_bert_rules(tokenizer) else None
        self._begins, self._punctuation = _word_marks(tokenizer)
        # A byte-level word starts with its space; only a document's first word has none.
        self._spaced = _is_byte_level(tokenizer) and not tokenizer.shape["pre_tokenizer"].get("add_prefix_space", True)

    @staticmethod
    def dtype_for(tokenizer: Tokenizer) -> str:
        """The smallest dtype of a store that holds every id."""
        return "uint16" if tokenizer.size < 1 << 16 else "uint32"

    def cut(self, sentences: Sequence[str], opens: Sequence[bool]) -> Pieces:
        """Cut sentences into the ids and word starts of a store. opens: whether each opens its document."""
        texts = list(sentences)
        if self._spaced:
            texts = [text if first else " " + text for text, first in zip(texts, opens)]
        if self.table is not None:
            pieces = self._by_table(texts)
            if pieces is not None and self._agrees(texts, pieces):
                return pieces
            self.table = None
        return self._by_library(texts)

    def _by_table(self, sentences: list[str]) -> Pieces | None:
        """Ids and word starts of sentences by the table of words; None where it cannot tell Chinese words apart."""
        assert self.table is not None
        ids, is_cjk, lengths, odd = self.table.look_up(sentences)
        starts = self._plain_starts(ids, lengths)
        if self.segmenting:
            inside = _inside_words("\n".join(t for row, t in enumerate(sentences) if row not in odd and has_cjk(t)))
            if len(inside) != np.count_nonzero(is_cjk):
                return None
            starts[is_cjk] = ~inside
            starts[_firsts(lengths)] = 1
            self._mark_chinese(odd, sentences, lengths, starts)
        return Pieces(ids.astype(self.dtype), lengths, starts)

    def _agrees(self, sentences: list[str], pieces: Pieces) -> bool:
        """Whether the tokenizers library gives the store's ids for a few of the sentences, too."""
        ends = np.cumsum(pieces.lengths)
        rows = range(0, len(sentences), max(len(sentences) // PROBES, 1))
        expected = self.tokenizer.pieces_batch([sentences[row] for row in rows])
        return all(pieces.ids[ends[r] - pieces.lengths[r] : ends[r]].tolist() == w for r, w in zip(rows, expected))

    def _by_library(self, sentences: list[str]) -> Pieces:
        """Ids and word starts of sentences by the tokenizers library."""
        ids = self.tokenizer.pieces_batch(sentences)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum()))
        starts = self._plain_starts(flat, lengths)
        if self.segmenting:
            self._mark_chinese(range(len(sentences)), sentences, lengths, starts)
        return Pieces(flat.astype(self.dtype), lengths, starts)

    def _plain_starts(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Word starts of a store as the pieces alone show them."""
        punctuation = self._punctuation[ids]
        starts = self._begins[ids] | punctuation
        starts[1:] |= punctuation[:-1]
        starts[_firsts(lengths)] = True
        return starts.astype(np.uint8)

    def _mark_chinese(self, rows: Iterable[int], sentences: list[str], lengths: np.ndarray, starts: np.ndarray) -> None:
        """Correct the store's word starts of those of the sentences `rows` that contain Chinese."""
        ends = np.cumsum(lengths)
        for row in rows:
            if lengths[row] and has_cjk(sentences[row]):
                span = slice(ends[row] - lengths[row], ends[row])
                starts[span] = self._chinese_starts(sentences[row], starts[span])

    def _chinese_starts(self, text: str, plain: np.ndarray) -> np.ndarray:
        """Word starts of a sentence of the corpus with Chinese in it, by the place of its pieces."""
        with tokenizer_errors("The text cannot be encoded"):
            offsets = self.tokenizer.backend.encode(text, add_special_tokens=False).offsets
        firsts = {start for start, _ in segment(text)}
        starts = plain.copy()
        before = -1
        for number, (start, end) in enumerate(offsets):
            while start < end - 1 and text[start].isspace():
                start += 1
            if start < end:
                if CJK.match(text, start):
                    starts[number] = start in firsts and start != before
                elif start and start != before and CJK.match(text, start - 1):
                    starts[number] = 1
                before = start
        starts[0] = 1
        return starts


class WordTable:
    """The pieces of every word seen so far while text is prepared."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.backend = tokenizer.backend
        self._word_pieces = tokenizer.backend.model.tokenize
        self._special = [token.content for token in self.backend.get_added_tokens_decoder().values()]
        self._characters = _Characters(tokenizer)
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[str, int] = {}
        self._pieces, self._is_cjk, self._ends, self._bytes = array("I"), array("B"), array("q", [0]), 0

    def look_up(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, set[int]]:
        """ids of all sentences, which of them are one Chinese character, tokens per sentence.

        Last, the numbers of the sentences encoded by the library: in them no character is marked.
        """
        words: list[str] = []
        counts = []
        joined = "\n".join(sentences)
        special = [name for name in self._special if name in joined]
        odd = set()
        for row, text in enumerate(sentences):
            normalized = text.translate(self._characters)
            if WHOLE in normalized or (special and any(name in text for name in special)):
                odd.add(row)
                parts = [WHOLE + text]
            else:
                parts = normalized.split()
            words += parts
            counts.append(len(parts))
        if self._bytes > TABLE_BYTES:
            self._forget()
        self._learn(set(words).difference(self._rows))
        rows = np.fromiter(map(self._rows.__getitem__, words), np.int64, len(words))
        ends = np.frombuffer(self._ends, np.int64)
        pieces, is_cjk = np.frombuffer(self._pieces, np.uint32), np.frombuffer(self._is_cjk, np.bool_)
        lengths = ends[rows + 1] - ends[rows]
        totals = np.concatenate([[0], np.cumsum(lengths)])
        indices = np.repeat(ends[rows] - totals[:-1], lengths) + np.arange(totals[-1])
        bounds = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return pieces[indices].astype(np.int64), is_cjk[indices], np.diff(totals[bounds]), odd

    def _learn(self, new: set[str]) -> None:
        """Add words with their pieces to the table."""
        with tokenizer_errors("The texts cannot be encoded"):
            for word in new:
                if word.startswith(WHOLE):
                    ids = self.backend.encode(word[1:], add_special_tokens=False).ids
                else:
                    ids = [token.id for token in self._word_pieces(word)]
                is_cjk = len(word) == 1 and CJK.match(word) is not None
                self._rows[word] = len(self._rows)
                self._pieces.extend(ids)
                self._is_cjk.extend([is_cjk] * len(ids))
                self._ends.append(len(self._pieces))
                self._bytes += ROW_BYTES + len(word) * (1 if word.isascii() else 4)


class _Characters(dict[int, str]):
    """For `str.translate`: a character as the tokenizer's rules leave it, with spaces where they split words.

    The rules may reorder combining marks, so a mark that stays gives `WHOLE`, as does an unassigned character:
    such sentences go through the library.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._normal = tokenizer.backend.normalizer.normalize_str
        self._split = tokenizer.backend.pre_tokenizer.pre_tokenize_str

    def __missing__(self, code: int) -> str:
        char = chr(code)
        normal = self._normal(char)
        parts = " ".join(part for part, _ in self._split(f"a{normal}a"))[1:-1]
        is_known = unicodedata.category(char) != "Cn" and not any(map(unicodedata.combining, normal))
        # The library treats 256 rare characters as letters that BERT's ranges count as Chinese.
        self[code] = parts if is_known and (parts.startswith(" ") or not CJK.match(char)) else WHOLE
        return self[code]


def has_cjk(text: str) -> bool:
    """Whether text of a corpus has a Chinese character."""
    return not text.isascii() and CJK.search(text) is not None


def has_bert_rules(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer splits a corpus into words by BERT's own rules, special tokens aside."""
    shape = tokenizer.shape
    kinds = [(shape.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    return (
        kinds == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]
        and shape["normalizer"]["handle_chinese_chars"]
        and all(token["special"] and not token["normalized"] for token in shape["added_tokens"])
    )


def _word_marks(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Whether each piece begins a word in the corpus, and whether it is punctuation, a word of its own."""
    begins = ~np.array(tokenizer.continuation, dtype=bool)
    if tokenizer.kind == "wordpiece":  # its words already end at punctuation
        return begins, np.zeros_like(begins)
    # A byte-level piece spells non-ASCII characters as one odd character per byte, which say nothing about punctuation.
    is_mark = re.compile(r"[!-/:-@\[-`{-~]+" if _is_byte_level(tokenizer) else r"[^\w\s]+").fullmatch
    texts = [(tokenizer.id_to_token(number) or "").lstrip("Ġ▁") for number in range(tokenizer.size)]
    return begins, np.array([is_mark(text) is not None for text in texts])


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return (tokenizer.shape.get("pre_tokenizer") or {}).get("type") == "ByteLevel"


def _inside_words(text: str) -> np.ndarray:
    """Whether each Chinese character of a corpus, in order, is inside a word, not its first."""
    if not text:
        return np.zeros(0, bool)
    segment("")  # raises the error if the library is missing; the lengths alone take half the time of its spans
    import rjieba

    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    is_cjk = np.zeros(len(codes), bool)
    for first, last in CJK_RANGES:
        is_cjk |= (codes >= first) & (codes <= last)
    lengths = np.fromiter(map(len, rjieba.cut(text)), np.int64)
    inside = np.ones(len(codes), bool)
    inside[np.cumsum(lengths) - lengths] = False
    return inside[is_cjk]


def _firsts(lengths: np.ndarray) -> np.ndarray:
    """Positions of the first token of each sentence of a store that has one."""
    return (np.cumsum(lengths) - lengths)[lengths > 0]


@dataclass(frozen=True)
class Arrays:
    """Documents as arrays of pieces: what they add to a store.

    ids: (tokens,). starts: (tokens,) uint8. sentences: (sentences,) tokens of each. documents: (documents,)
    sentences of each. counts: `empty` documents and sentences without pieces, and suspicious lines by kind.
    """

    ids: np.ndarray
    starts: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    counts: dict[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """A prepared chunk's arrays serialized as one message: a line of JSON, then the arrays."""
        arrays = [self.ids, self.starts, self.sentences, self.documents]
        head = {"counts": self.counts, "arrays": [[array.dtype.str, len(array)] for array in arrays]}
        return b"".join([json.dumps(head).encode(), b"\n", *(array.tobytes() for array in arrays)])

    @classmethod
    def from_bytes(cls, message: bytes) -> Arrays:
        """Read the pieces of a prepared chunk from the message that `to_bytes` wrote."""
        at = message.index(b"\n") + 1
        head = json.loads(message[:at])
        arrays = []
        for kind, length in head["arrays"]:
            arrays.append(np.frombuffer(message, kind, length, at))
            at += arrays[-1].nbytes
        ids, starts, sentences, documents = arrays
        return cls(ids, starts, sentences, documents, head["counts"])


def arrays_of(documents: Sequence[str], cutter: PieceEncoder) -> Arrays:
    """Prepare documents: sentences, then pieces; documents and sentences without pieces are left out and counted."""
    sentences: list[str] = []
    per_document = []
    for document in documents:
        of_document = sentences_of(document)
        sentences += of_document
        per_document.append(len(of_document))
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
