"""Words and their vectors: what word2vec and GloVe give."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.vectors.vector_corpus import words_of
from bertkit.ancestors.vectors.vector_files import can_be_written, read_vectors, write_vectors
from bertkit.errors import UserError, suggest
from bertkit.notify import note

Floats = NDArray[np.float32]


class WordVectors:
    """words: no two alike, usually most frequent first. matrix: (words, width) float32, one row a word."""

    def __init__(self, words: Sequence[str], matrix: Floats) -> None:
        """Refuse words and rows that do not match."""
        self.words, self.matrix = list(words), np.ascontiguousarray(matrix, np.float32)
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words):
            raise UserError(
                f"{len(self.words)} words, but vectors of shape {np.shape(matrix)}: one row a word is needed."
            )
        self.places = {word: place for place, word in enumerate(self.words)}
        if len(self.places) < len(self.words):
            twice = next(word for place, word in enumerate(self.words) if self.places[word] != place)
            raise UserError(f"The word {twice!r} is there twice. Give every word one vector.")

    @classmethod
    def load(cls, path: str | Path, kind: str | None = None) -> Self:
        """Open a file. kind: 'binary', 'text' or 'glove' (text without the first line of counts).

        None looks: a name in .bin (or .bin.gz …) is binary; otherwise the first line tells.
        """
        return cls(*read_vectors(path, kind))

    def save(self, path: str | Path, kind: str | None = None) -> None:
        """Write a file that other programs open. kind as in `load`; None is 'binary' for .bin, else 'text'."""
        write_vectors(path, self.words, self.matrix, kind)

    def writable(self) -> Self:
        """Without the words that no file can hold, those with spaces in them; how many is told."""
        kept = [place for place, word in enumerate(self.words) if can_be_written(word)]
        if len(kept) == len(self):
            return self
        note(f"{len(self) - len(kept):,} words with spaces in them are left out of the vectors; {len(kept):,} stay.")
        return type(self)([self.words[place] for place in kept], self.matrix[kept])

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return int(self.matrix.shape[1])

    def __len__(self) -> int:
        """How many words."""
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        """Whether the word has a vector."""
        return word in self.places

    @cached_property
    def unit(self) -> Floats:
        """The matrix with rows of length one; a row of zeros stays."""
        lengths = np.linalg.norm(self.matrix, axis=1, keepdims=True)
        return (self.matrix / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)

    def place(self, word: str) -> int:
        """The word's row."""
        if word not in self.places:
            near = [known for known in self.words if known[:2] == word[:2]][:2000]
            clause = suggest(word, near) if near else ""
            hint = clause if clause.startswith("Did") else "Ask for another, or train on more text."
            raise UserError(f"{word!r} is not among the {len(self):,} words that have a vector. {hint}")
        return self.places[word]

    def vector(self, word: str) -> Floats:
        """(width,)"""
        return self.matrix[self.place(word)]

    def similarity(self, first: str, second: str) -> float:
        """The cosine of the angle between two words' vectors."""
        return float(self.unit[self.place(first)] @ self.unit[self.place(second)])

    def neighbours(self, word: str, top: int = 10) -> list[tuple[str, float]]:
        """The nearest other words with their cosines, nearest first."""
        return self._nearest(self.unit[self.place(word)], [word], top)

    def analogy(self, a: str, b: str, c: str, top: int = 1) -> list[tuple[str, float]]:
        """a is to b as c is to …: the words nearest to b - a + c (unit vectors), but those three."""
        first, second, third = (self.unit[self.place(word)] for word in (a, b, c))
        return self._nearest(second - first + third, [a, b, c], top)

    def mean_of(self, text: str | Sequence[str], units: str = "words") -> Floats:
        """The mean vector of the known words of a text (or of a list of words); zeros if there are none. (width,)

        A word that is not known as it stands is looked up in lower case.
        """
        words = words_of(text, units, cased=True) if isinstance(text, str) else text
        found = [self.places.get(word, self.places.get(word.lower(), -1)) for word in words]
        known = [place for place in found if place >= 0]
        return self.matrix[known].mean(0) if known else np.zeros(self.width, np.float32)

    def _nearest(self, direction: Floats, but: list[str], top: int) -> list[tuple[str, float]]:
        cosines = self.unit @ (direction / (float(np.linalg.norm(direction)) or 1.0))
        cosines[[self.places[word] for word in but]] = -np.inf
        top = max(0, min(top, len(self) - len(set(but))))
        best = np.argpartition(-cosines, min(top, len(self) - 1))[:top]
        best = best[np.argsort(-cosines[best], kind="stable")]
        return [(self.words[place], float(cosines[place])) for place in best]


class VectorsFolder:
    """A folder of word vectors, as `bertkit learn` writes it."""

    FILE = "vectors.bin"

    @classmethod
    def load(cls, folder: Path) -> WordVectors:
        """Its one file."""
        return WordVectors.load(folder / cls.FILE)


def open_vectors(name: str | Path) -> WordVectors:
    """Word vectors by folder or file."""
    path = Path(name)
    if path.is_dir():
        if not (path / VectorsFolder.FILE).is_file():
            raise UserError(f"{path} holds no word vectors. Make some with `bertkit learn word2vec TEXT… --out DIR`.")
        return VectorsFolder.load(path)
    if not path.is_file():
        raise UserError(f"There is no {path}. Give a folder of `bertkit learn word2vec`, or a file of word vectors.")
    return WordVectors.load(path)
