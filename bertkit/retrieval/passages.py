"""Splits documents into passages of whole sentences."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertkit.data.readers import read_documents
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import sentences_of


@dataclass(frozen=True, slots=True)
class Passage:
    """A run of sentences, as in the document. document: its number in the file, from 1."""

    text: str
    file: str
    document: int

    def plain(self) -> dict[str, Any]:
        """The passage as a JSON object."""
        return asdict(self)


def read_passages(
    paths: Sequence[Path], tokenizer: Tokenizer, size: int, text: str = "text", encoding: str = "utf-8"
) -> Iterator[Passage]:
    """The passages of files, in order."""
    for path in paths:
        name = os.fsencode(path).decode("utf-8", "replace")  # a file's name may be any bytes
        for number, document in enumerate(read_documents(path, text=text, encoding=encoding), 1):
            for passage in cut(document, tokenizer, size):
                yield Passage(passage, name, number)


def cut(document: str, tokenizer: Tokenizer, size: int) -> list[str]:
    """As many whole sentences as fit `size` tokens; a longer sentence is its own passage.

    A passage is the document's text from its first sentence to its last, with everything between them.
    """
    sentences = sentences_of(document)
    found: list[tuple[int, int]] = []
    room = at = 0
    for sentence, pieces in zip(sentences, tokenizer.pieces_batch(sentences)):
        start = document.index(sentence, at)  # the first there is: only spaces stand between sentences
        at = start + len(sentence)
        if not found or len(pieces) > room:
            found.append((start, at))
            room = size
        found[-1] = (found[-1][0], at)
        room -= len(pieces)
    return [document[start:end] for start, end in found]
