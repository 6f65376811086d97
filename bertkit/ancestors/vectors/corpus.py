"""Text as the word-vector trainers want it: sentences of words, then numbers of words by falling frequency."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.ngram.model import check_units, cut
from bertkit.data.readers.documents import read_documents
from bertkit.errors import UserError
from bertkit.notify import note

LONGEST_SENTENCE = 10_000  # longer ones are cut: a file without line ends must still be many sentences


@dataclass(frozen=True)
class Corpus:
    """The corpus of word vectors.

    names: the words, most frequent first; counts: how often each occurs; words: the text as places in names.

    Sentence s is words[ends[s]:ends[s + 1]]. read: words before the rare ones were dropped.
    """

    names: list[str]
    counts: NDArray[np.int64]
    words: NDArray[np.int32]
    ends: NDArray[np.int64]
    read: int


def words_of(text: str, units: str = "words", cased: bool = False) -> list[str]:
    """The words of a corpus text without punctuation. units: 'words', or 'jieba' for Chinese."""
    check_units(units)
    return [word for word in cut(text, units, cased) if len(word) > 1 or word.isalnum()]


def read_sentences(
    paths: str | Path | Iterable[str | Path], *, units: str = "words", cased: bool = False
) -> Iterator[list[str]]:
    """A corpus for word vectors: the lines of text files as lists of words. Files as in `read_documents`."""
    check_units(units)
    for document in read_documents(paths):
        for line in document.splitlines():
            if words := words_of(line, units, cased):
                yield words


def number(sentences: Iterable[list[str]], min_count: int) -> Corpus:
    """Number the words of a corpus in one pass; words seen less than min_count times are dropped, with a note."""
    numbers: defaultdict[str, int] = defaultdict(lambda: len(numbers))
    ids, lengths = array("i"), array("q")
    for sentence in sentences:
        if isinstance(sentence, str):
            raise UserError(f"A sentence must be a list of words, not the text {sentence[:40]!r}. Use words_of(text).")
        begin = len(ids)
        ids.extend(map(numbers.__getitem__, sentence))
        full, remainder = divmod(len(ids) - begin, LONGEST_SENTENCE)
        lengths.extend([LONGEST_SENTENCE] * full + [remainder])
    text = np.frombuffer(ids, np.int32) if ids else np.empty(0, np.int32)
    counts = np.bincount(text, minlength=len(numbers))
    order = np.argsort(-counts, kind="stable")[: int((counts >= min_count).sum())]
    if len(order) < 2:
        raise UserError(
            f"Of {len(numbers)} different words, {len(order)} occur {min_count} times or more; at least two are "
            "needed. Give more text, or a lower min_count."
        )
    places = np.full(len(numbers), -1, np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    words = places[text]
    is_frequent = words >= 0
    ends = np.concatenate([[0], np.cumsum(is_frequent)])[np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])]
    rare, dropped = len(numbers) - len(order), len(text) - int(is_frequent.sum())
    if rare:
        note(f"{rare:,} words rarer than {min_count} are dropped: {dropped / len(text):.1%} of the text.")
    names = list(numbers)
    return Corpus([names[place] for place in order], counts[order], words[is_frequent], np.unique(ends), len(text))
