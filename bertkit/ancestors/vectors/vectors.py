"""Words and their vectors: what word2vec and GloVe give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.vectors.corpus import words_of
from bertkit.errors import DamagedFile, UserError, suggest
from bertkit.files.atomic import open_new, write_errors
from bertkit.files.guarded import open_regular
from bertkit.files.manifest import read_whole
from bertkit.files.open import COMPRESSIONS, DAMAGE, open_bytes, open_text
from bertkit.notify import note

# ---- Files of word vectors: word2vec's binary and text formats, and GloVe's text, which has no first line of counts.

Floats = NDArray[np.float32]
Found = tuple[list[str], Floats]
WIDEST = 1 << 16  # numbers in a vector, and bytes in a word: beyond it the file is something else


def read_vectors(path: str | Path, kind: str | None = None) -> Found:
    """A file of word vectors: its words and their vectors (words, width). Repeated words are skipped with a note."""
    kind = _kind(path, kind)
    words: dict[str, None] = {}
    values = bytearray()
    again = 0
    for word, row in (_binary_rows if kind == "binary" else _text_rows)(str(path), kind):
        if word in words:
            again += 1
            continue
        words[word] = None
        values += row.tobytes()
    if not words:
        raise UserError(f"{path}: it contains no vectors.")
    if again:
        note(f"{path}: {again} words occur more than once; the first vector of each is used.")
    return list(words), np.frombuffer(values, np.float32).reshape(len(words), -1)


def can_be_written(word: str) -> bool:
    """Whether a file of word vectors can hold this word."""
    return bool(word) and not any(mark in word for mark in " \n\r\0")


def write_vectors(path: str | Path, words: list[str], matrix: Floats, kind: str | None = None) -> None:
    """Write words and their vectors to a file; nine digits in the text formats bring back every float32 exactly."""
    kind = _kind(path, kind)
    for word in words:
        if not can_be_written(word):
            raise UserError(f"{path}: the word {word!r} cannot be written: word-vector files separate words by spaces.")
    form = " ".join(["%.9g"] * matrix.shape[1])
    with open_new(path) as file, write_errors(path):
        if kind != "glove":
            file.write(f"{len(words)} {matrix.shape[1]}\n".encode())
        for word, row in zip(words, matrix):
            if kind == "binary":
                file.write(word.encode() + b" " + row.astype("<f4").tobytes() + b"\n")
            else:
                file.write(f"{word} {form % tuple(row.tolist())}\n".encode())


def _kind(path: str | Path, kind: str | None) -> str:
    """The format of a file of word vectors, given or by its ending."""
    if kind is None:
        name = Path(path)
        name = name.with_suffix("") if name.suffix.lower() in COMPRESSIONS else name
        return "binary" if name.suffix.lower() == ".bin" else "text"
    kinds = ["binary", "text", "glove"]
    if kind not in kinds:
        raise UserError(f"'{kind}' is not a format of word vectors. {suggest(kind, kinds)}")
    return kind


def _header(line: str) -> tuple[int, int] | None:
    """(words, width) of a file of word vectors, if its first line says them."""
    fields = line.split()
    if len(fields) == 2 and all(field.isascii() and field.isdigit() and len(field) < 16 for field in fields):
        return int(fields[0]), int(fields[1])
    return None


def _check_width(where: str, width: int) -> int:
    if not 0 < width <= WIDEST:
        raise DamagedFile(f"{where}: vectors of {width} numbers. Is it a file of word vectors in this format?")
    return width


def _check_count(path: str, announced: int, actual: int) -> None:
    if announced != actual:
        raise DamagedFile(
            f"{path}: its first line announces {announced} words, but it has {actual}. Download it again."
        )


def _text_rows(path: str, kind: str) -> Iterator[tuple[str, Floats]]:
    """Words and vectors of a text file: word2vec's format with a header, or GloVe's without."""
    lines = enumerate(open_text(path), 1)
    first = next(lines, (1, ""))
    header = _header(first[1]) if kind == "text" else None
    if header:
        width = _check_width(f"{path}, line 1", header[1])
    else:
        width = _check_width(f"{path}, line 1", len(first[1].rstrip(" ").split(" ")) - 1)
        lines = chain([first], lines)  # type: ignore[assignment]
    count = 0
    for number, line in lines:
        fields = line.rstrip(" ").rsplit(" ", width)  # from the right: some files have words with spaces in them
        if fields == [""]:
            continue
        if len(fields) <= width or not fields[0]:
            has = len(line.split())
            raise UserError(
                f"{path}, line {number}: a word and {width} numbers are needed, but there are {has} fields."
            )
        try:
            row = np.array([float(field) for field in fields[1:]], np.float32)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}. Correct the line.") from error
        if not np.isfinite(row).all():
            raise UserError(f"{path}, line {number}: the vector of {fields[0]!r} holds {row[~np.isfinite(row)][0]}.")
        count += 1
        yield fields[0], row
    if header:
        _check_count(path, header[0], count)


def _binary_rows(path: str, kind: str) -> Iterator[tuple[str, Floats]]:
    with open_bytes(path) as stream:
        try:
            yield from _binary_words(path, stream)
        except (OSError, *DAMAGE) as error:
            raise DamagedFile(f"{path}: the file is truncated or damaged ({error}). Download it again.") from error


def _binary_words(path: str, stream: IO[bytes]) -> Iterator[tuple[str, Floats]]:
    """Words and vectors of word2vec's binary format."""
    header = _header(stream.readline(64).decode("latin-1"))
    if header is None:
        raise DamagedFile(f"{path}: a binary file of word vectors begins with two numbers, and this one does not.")
    count, width = header[0], _check_width(path, header[1])
    waiting, start, unreadable = b"", 0, 0
    for place in range(count):
        where = f"{path}, word {place + 1} of {count}"
        while (space := waiting.find(b" ", start)) < 0 or len(waiting) < space + 1 + 4 * width:
            if space < 0 and len(waiting) - start > WIDEST:
                raise DamagedFile(f"{where}: no space within {WIDEST} bytes. Is it a binary file of word vectors?")
            if not (more := stream.read(1 << 20)):
                raise DamagedFile(f"{where}: the file ends too early. Download it again.")
            waiting, start = waiting[start:] + more, 0
        raw = waiting[start:space].lstrip(b"\n")
        row = np.frombuffer(waiting, "<f4", width, space + 1).astype(np.float32)
        start = space + 1 + 4 * width
        word = raw.decode(errors="replace")
        unreadable += "\ufffd" in word
        if not raw or not np.isfinite(row).all():
            raise DamagedFile(f"{where}: {word!r} has a vector with values that are not numbers. Is the file complete?")
        yield word, row
    if waiting[start:].strip(b"\n") or stream.read(64).strip(b"\n"):
        raise DamagedFile(f"{path}: it contains more than the {count} words that its first line announces.")
    if unreadable:
        note(f"{path}: {unreadable} words are not UTF-8; their unreadable bytes are shown as \ufffd.")


# ---- Words and their vectors: what word2vec and GloVe give.


class WordVectors:
    """Word vectors. words: no two alike, usually most frequent first.

    matrix: (words, width) float32, one row per word.
    """

    def __init__(self, words: Sequence[str], matrix: Floats) -> None:
        """Refuse words and rows that do not match."""
        self.words, self.matrix = list(words), np.ascontiguousarray(matrix, np.float32)
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words):
            raise UserError(
                f"{len(self.words)} words, but vectors of shape {np.shape(matrix)}: one row per word is needed."
            )
        self.places = {word: place for place, word in enumerate(self.words)}
        if len(self.places) < len(self.words):
            twice = next(word for place, word in enumerate(self.words) if self.places[word] != place)
            raise UserError(f"The word {twice!r} occurs twice. Give every word one vector.")

    @classmethod
    def load(cls, path: str | Path, kind: str | None = None) -> Self:
        """Open a file of word vectors. kind: 'binary', 'text' or 'glove' (text without the first line of counts).

        None looks: a name in .bin (or .bin.gz …) is binary; otherwise the first line tells.
        """
        return cls(*read_vectors(path, kind))

    def save(self, path: str | Path, kind: str | None = None) -> None:
        """Write word vectors for other programs. kind as in `load`; None: 'binary' for .bin, else 'text'."""
        write_vectors(path, self.words, self.matrix, kind)

    def writable(self) -> Self:
        """Word vectors without the words that no file can hold, those with spaces; their number is reported."""
        valid = [place for place, word in enumerate(self.words) if can_be_written(word)]
        if len(valid) == len(self):
            return self
        note(f"{len(self) - len(valid):,} words with spaces in them are left out of the vectors; {len(valid):,} stay.")
        return type(self)([self.words[place] for place in valid], self.matrix[valid])

    @property
    def width(self) -> int:
        """Numbers in a word vector."""
        return int(self.matrix.shape[1])

    def __repr__(self) -> str:
        """How many words, and how wide."""
        return f"<bertkit word vectors: {len(self):,} words, width {self.width}>"

    def __len__(self) -> int:
        """How many words."""
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        """Whether the word has a vector."""
        return word in self.places

    @cached_property
    def unit(self) -> Floats:
        """The matrix of word vectors with rows of length one; a row of zeros stays."""
        lengths = np.linalg.norm(self.matrix, axis=1, keepdims=True)
        return (self.matrix / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)

    def place(self, word: str) -> int:
        """The word's row among the word vectors."""
        if word not in self.places:
            near = [known for known in self.words if known[:2] == word[:2]][:2000]
            clause = suggest(word, near) if near else ""
            hint = clause if clause.startswith("Did") else "Ask for another, or train on more text."
            raise UserError(f"{word!r} is not among the {len(self):,} words that have a vector. {hint}")
        return self.places[word]

    def vector(self, word: str) -> Floats:
        """The word's vector: (width,)."""
        return self.matrix[self.place(word)]

    def similarity(self, first: str, second: str) -> float:
        """The cosine of the angle between two words' vectors."""
        return float(self.unit[self.place(first)] @ self.unit[self.place(second)])

    def neighbours(self, word: str, top: int = 10) -> list[tuple[str, float]]:
        """The nearest other words by their vectors' cosines, nearest first."""
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
        places = [self.places.get(word, self.places.get(word.lower(), -1)) for word in words]
        known_places = [place for place in places if place >= 0]
        return self.matrix[known_places].mean(0) if known_places else np.zeros(self.width, np.float32)

    def _nearest(self, direction: Floats, but: list[str], top: int) -> list[tuple[str, float]]:
        """The words nearest to a direction, with cosines, except some."""
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
        """The one file of word vectors in a folder."""
        open_regular(folder / cls.FILE).close()
        return WordVectors.load(folder / cls.FILE)


def open_vectors(name: str | Path) -> WordVectors:
    """Word vectors by folder or file."""
    path = Path(name)
    if path.is_dir():
        if not (path / VectorsFolder.FILE).is_file():
            raise UserError(f"{path} holds no word vectors. Make some with `bertkit learn word2vec TEXT… --out DIR`.")
        return read_whole(path, lambda: VectorsFolder.load(path), what="folder of word vectors")
    if not path.is_file():
        raise UserError(f"There is no {path}. Give a folder of `bertkit learn word2vec`, or a file of word vectors.")
    return WordVectors.load(path)
