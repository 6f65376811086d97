"""How well a vocabulary fits a text, as numbers and as a report."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import tokenizers

from bertkit.errors import UserError
from bertkit.text.encoding import Encoding
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import is_cjk, without_spaces

PERCENTILES = (50, 90, 95, 99, 100)


@dataclass(frozen=True, slots=True)
class VocabularyReport:
    """How well a vocabulary covers a sample of texts, as counts.

    words: as the tokenizer's rules see them; texts without spaces have none to count by, so `lines` gives characters.
    characters: without spaces. unknown_rate: unknown pieces among all pieces. one_piece_share: words
    that are a single known piece. length_percentiles: tokens per text, special tokens included, by percentile.
    unknown_characters: the most frequent characters that no piece can write, with their counts.
    """

    texts: int
    words: int
    pieces: int
    unknown_rate: float
    pieces_per_word: float
    one_piece_share: float
    length_percentiles: dict[int, int]
    unknown_characters: list[tuple[str, int]]
    characters: int
    pieces_per_character: float
    spaced: bool

    def lines(self) -> list[str]:
        """The report of a vocabulary's coverage, one finding per line."""
        half, most, more, nearly, longest = (f"{length:,}" for length in self.length_percentiles.values())
        lengths = f"50 % up to {half}, 90 % up to {most}, 95 % up to {more}, 99 % up to {nearly}, 100 % up to {longest}"
        unknown = " ".join(f"{char!r} ({count})" for char, count in self.unknown_characters)
        by_words = [
            f"{self.texts:,} texts, {self.words:,} words, {self.pieces:,} pieces",
            f"{self.pieces_per_word:.3f} pieces per word; {self.one_piece_share:.1%} of words are one piece",
        ]
        by_characters = [
            f"{self.texts:,} texts, {self.characters:,} characters, {self.pieces:,} pieces",
            f"{self.pieces_per_character:.3f} pieces per character",
        ]
        return [
            *(by_words if self.spaced else by_characters),
            f"{self.unknown_rate:.3%} of pieces are unknown" + (f": {unknown}" if unknown else ""),
            f"tokens per text: {lengths}",
        ]


def report(tokenizer: Tokenizer, texts: Iterable[str], sample: int = 10_000, top: int = 10) -> VocabularyReport:
    """How well a vocabulary covers the first `sample` texts, naming up to `top` unknown characters."""
    pieces_of_word: Counter[int] = Counter()
    unknown_characters: Counter[str] = Counter()
    lengths: list[int] = []
    pieces = unknown = known_one_piece = characters = without = 0
    stream = iter(texts)
    while batch := list(islice(stream, min(1000, sample - len(lengths)))):
        written = sum(len(part) for text in batch for part in text.split())
        characters += written
        without += written if without_spaces(batch) else 0
        for text, encoding in zip(batch, tokenizer.encode_batch(batch)):
            lengths.append(len(encoding))
            counts, lost = _words(encoding, tokenizer.unk_id)
            pieces_of_word.update(counts.values())
            pieces += counts.total()
            unknown += len(lost)
            known_one_piece += sum(count == 1 for count in counts.values())
            for position in lost:
                known_one_piece -= counts[encoding.words[position]] == 1
                unknown_characters.update(text[slice(*encoding.offsets[position])])
    if not lengths:
        raise UserError("There is no text to report on. Check the input files.")
    words = pieces_of_word.total()
    lengths.sort()
    hopeless = [(char, n) for char, n in unknown_characters.most_common() if not _writable(tokenizer, char)]
    return VocabularyReport(
        texts=len(lengths),
        words=words,
        pieces=pieces,
        unknown_rate=unknown / max(pieces, 1),
        pieces_per_word=pieces / max(words, 1),
        one_piece_share=known_one_piece / max(words, 1),
        length_percentiles={share: lengths[-(-share * len(lengths) // 100) - 1] for share in PERCENTILES},
        unknown_characters=hopeless[:top],
        characters=characters,
        pieces_per_character=pieces / max(characters, 1),
        spaced=2 * without <= characters,
    )


def _words(encoding: Encoding, unk_id: int | None) -> tuple[Counter[int], list[int]]:
    """Pieces per word, and the positions of unknown pieces, to measure coverage by."""
    own = [(i, word) for i, word in enumerate(encoding.words) if word >= 0]
    return Counter(word for _, word in own), [i for i, _ in own if encoding.ids[i] == unk_id]


def _writable(tokenizer: Tokenizer, char: str) -> bool:
    """Whether some piece of the vocabulary covers this character; spaces and what the rules remove count."""
    return tokenizer.unk_id not in tokenizer.pieces_batch([char])[0]


# ---- Which characters a text has, how often, and which of them stand inside words.

CODES = 0x110000
AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Survey:
    """Characters to cover. counts: how often each occurs. inside: those that follow a character of the same word."""

    counts: Counter[str]
    inside: frozenset[str]

    def chinese_share(self) -> float:
        """The fraction of Chinese characters in the text."""
        chinese = sum(count for char, count in self.counts.items() if is_cjk(char))
        return chinese / max(self.counts.total(), 1)

    def normalized(self, normalizer: tokenizers.normalizers.Normalizer) -> Survey:
        """The survey of characters after the normalizer, applied to each character alone; spaces are gone."""
        counts: Counter[str] = Counter()
        inside: set[str] = set()
        for char, count in self.counts.items():
            parts = normalizer.normalize_str(char).strip()
            for part in parts:
                counts[part] += count
            inside.update(parts if char in self.inside else parts[1:])
        return Survey(counts, frozenset(inside))


def survey(texts: Iterable[str]) -> Survey:
    """Count the characters of all texts that a vocabulary must cover; memory does not grow with them."""
    counts = np.zeros(CODES, dtype=np.int64)
    inside = np.zeros(CODES, dtype=bool)
    breaks = np.zeros(CODES, dtype=bool)
    known = np.zeros(CODES, dtype=bool)
    breaks[ord("\n")] = known[ord("\n")] = True
    waiting: list[str] = []
    size = 0

    def flush() -> None:
        codes = np.frombuffer("\n".join(["", *waiting]).encode("utf-32-le"), dtype=np.uint32)
        code_counts = np.bincount(codes, minlength=CODES)
        code_counts[ord("\n")] -= len(waiting)
        counts[:] += code_counts
        for code in np.flatnonzero((code_counts > 0) & ~known):
            known[code] = True
            breaks[code] = _ends_word(chr(code))
        inside[codes[1:][~breaks[codes[:-1]] & ~breaks[codes[1:]]]] = True
        waiting.clear()

    for text in texts:
        waiting.append(text)
        size += len(text)
        if size >= AT_ONCE:
            flush()
            size = 0
    flush()
    present = np.flatnonzero(counts)
    return Survey(
        Counter({chr(code): int(counts[code]) for code in present}), frozenset(map(chr, np.flatnonzero(inside)))
    )


def _ends_word(char: str) -> bool:
    """Whether BERT's rule ends a covered word at this character. ASCII symbols count as punctuation."""
    if char.isspace() or is_cjk(char) or unicodedata.category(char)[0] in "PZ":
        return True
    return char.isascii() and char.isprintable() and not char.isalnum()
