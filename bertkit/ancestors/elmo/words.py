"""Words as ELMo sees them: spelt in characters going in, numbered by frequency coming out."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.ancestors.ngram.model import check_units, cut, sentences
from bertkit.data.batch import Batch, pack
from bertkit.errors import UserError
from bertkit.notify import note

Ids = NDArray[np.int64]
# What a word is spelt with, besides the characters of the lexicon.
PADDING, WORD_BEGINS, WORD_ENDS, UNKNOWN_CHARACTER, SENTENCE_BEGINS, SENTENCE_ENDS, FIRST_CHARACTER = range(7)
LONGEST_WORD = 50  # characters that are read of a word, as in the paper
BEGIN, END = 0, 1  # the first two numbers of every Numbered: the border words of a sentence
BORDER, UNKNOWN, FIRST_WORD = range(3)  # the first two words that can be guessed; a border is one word either way
RARE = 2  # words and characters seen less often are unknown, so that the unknown is learnt too


@dataclass(frozen=True)
class Lexicon:
    """ELMo's lexicon.

    characters: those that can be read, words: those that can be guessed; both most frequent first.
    """

    characters: str
    words: tuple[str, ...]
    units: str = "words"
    cased: bool = True

    @cached_property
    def letter_of(self) -> dict[str, int]:
        """ELMo's characters by name."""
        return {character: place for place, character in enumerate(self.characters, FIRST_CHARACTER)}

    @cached_property
    def guess_of(self) -> dict[str, int]:
        """Words that ELMo can guess, by name."""
        return {word: place for place, word in enumerate(self.words, FIRST_WORD)}

    @property
    def letters(self) -> int:
        """How many different things ELMo spells a word with."""
        return FIRST_CHARACTER + len(self.characters)

    @property
    def guesses(self) -> int:
        """How many different words ELMo can guess, the border and the unknown included."""
        return FIRST_WORD + len(self.words)

    @property
    def fingerprint(self) -> str:
        """Differs where anything of ELMo's lexicon differs."""
        return hashlib.sha256(repr((self.characters, self.words, self.units, self.cased)).encode()).hexdigest()

    def cut(self, text: str) -> list[list[str]]:
        """The sentences of a text (its lines) as words for ELMo."""
        return [words for line in sentences(text) if (words := cut(line, self.units, self.cased))]

    def number(self, word_lists: Sequence[Sequence[str]]) -> Numbered:
        """Sentences of words as ELMo's numbers, with borders; characters beyond a word's first 50 are reported."""
        numbers: defaultdict[str, int] = defaultdict(lambda: END + 1 + len(numbers))
        spelt = (words if self.cased else [word.lower() for word in words] for words in word_lists)
        rows = [np.array([BEGIN, *(numbers[word] for word in words), END], np.int32) for words in spelt]
        return Numbered.of(self, list(numbers), rows)


@dataclass(frozen=True)
class Numbered:
    """A text in ELMo's word numbers: sentence s is words[ends[s]:ends[s + 1]], borders included.

    Word n is spelt letters[spelt[n]:spelt[n + 1]], and targets[n] is its number among the words that can be guessed.
    """

    words: NDArray[np.int32]
    ends: Ids
    letters: NDArray[np.int32]
    spelt: Ids
    targets: Ids

    @classmethod
    def of(cls, lexicon: Lexicon, names: Sequence[str], rows: Sequence[NDArray[np.int32]]) -> Numbered:
        """A text in ELMo's numbers. rows: numbers of each sentence, in which names[n] is n + 2."""
        long = sum(len(name) > LONGEST_WORD for name in names)
        if long:
            note(f"{long} different words are longer than {LONGEST_WORD} characters; the rest of each is ignored.")
        letters = lexicon.letter_of
        borders = [[WORD_BEGINS, mark, WORD_ENDS] for mark in (SENTENCE_BEGINS, SENTENCE_ENDS)]
        spelt = [
            [WORD_BEGINS, *(letters.get(c, UNKNOWN_CHARACTER) for c in name[:LONGEST_WORD]), WORD_ENDS]
            for name in names
        ]
        return cls(
            np.concatenate(rows) if rows else np.zeros(0, np.int32),
            _ends(rows),
            np.array([letter for word in (*borders, *spelt) for letter in word], np.int32),
            _ends([*borders, *spelt]),
            np.array([BORDER, BORDER, *(lexicon.guess_of.get(name, UNKNOWN) for name in names)], np.int64),
        )

    def __len__(self) -> int:
        """How many sentences."""
        return len(self.ends) - 1

    def sentences(self) -> list[tuple[int, int]]:
        """[first, last) of every sentence in `words`, a text in ELMo's numbers."""
        return list(zip(self.ends[:-1].tolist(), self.ends[1:].tolist()))

    def batch(self, spans: Iterable[tuple[int, int]]) -> Batch:
        """Stretches [first, last) of the words as one packed batch.

        ids: (tokens,) rows of extra["letters"], in which every different word is spelt once: (different, longest).
        extra["targets"]: (tokens,) numbers among the words that can be guessed.
        """
        rows = [self.words[first:last] for first, last in spans]
        different, places = np.unique(np.concatenate(rows), return_inverse=True)
        packed = pack(np.split(places, np.cumsum([len(row) for row in rows])[:-1]))
        sizes = self.spelt[different + 1] - self.spelt[different]
        column = np.arange(sizes.max())
        inside = column < sizes[:, None]
        letters = np.full(inside.shape, PADDING, np.int64)
        letters[inside] = self.letters[(self.spelt[different][:, None] + column)[inside]]
        packed.extra = {
            "letters": torch.from_numpy(letters),
            "targets": torch.from_numpy(self.targets[different])[packed.ids],
        }
        return packed


def read_text(documents: Iterable[str], *, vocabulary: int, units: str, cased: bool) -> tuple[Lexicon, Numbered]:
    """ELMo's lexicon of a text and the text in its numbers, in one pass."""
    check_units(units)
    numbers: defaultdict[str, int] = defaultdict(lambda: END + 1 + len(numbers))
    ids, lengths = array("i"), array("q")
    for document in documents:
        for line in sentences(document):
            before = len(ids)
            ids.append(BEGIN)
            ids.extend(map(numbers.__getitem__, cut(line, units, cased)))
            ids.append(END)
            lengths.append(len(ids) - before)
    words = np.frombuffer(ids, np.int32) if ids else np.zeros(0, np.int32)
    counts = np.bincount(words, minlength=END + 1)[END + 1 :]
    names = list(numbers)
    frequent = [n for n in np.argsort(-counts, kind="stable")[:vocabulary].tolist() if counts[n] >= RARE]
    if len(frequent) < 2:
        raise UserError(
            f"Of {len(names)} different words, {len(frequent)} occur twice; at least two are needed. Give more text."
        )
    characters: Counter[str] = Counter()
    for name, count in zip(names, counts.tolist()):
        for character in name:
            characters[character] += count
    readable = "".join(character for character, count in characters.most_common() if count >= RARE)
    lexicon = Lexicon(readable, tuple(names[n] for n in frequent), units, cased)
    coverage = counts[frequent].sum() / max(1, counts.sum())
    note(
        f"{counts.sum():,} words in {len(lengths):,} sentences, {len(names):,} different; "
        f"the {len(frequent):,} that can be guessed are {coverage:.1%} of the text."
    )
    spelled = Numbered.of(lexicon, names, [])
    ends = np.concatenate([[0], np.cumsum(np.frombuffer(lengths, np.int64))]).astype(np.int64)
    return lexicon, Numbered(words, ends, spelled.letters, spelled.spelt, spelled.targets)


def _ends(rows: Sequence[Sequence[int] | np.ndarray]) -> Ids:
    return np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
