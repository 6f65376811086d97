"""Passages: documents cut into runs of whole sentences, which an index stores and finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bertkit.data.examples import Document, Value
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.words import sentences_of


@dataclass(frozen=True, slots=True)
class Passage:
    """A run of sentences, as in the document. document: its number in the file, from 1; id: of the document."""

    text: str
    file: str
    document: int
    id: str
    columns: Mapping[str, Value] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The passage as a JSON object."""
        plain = asdict(self)
        return plain if self.columns else {name: value for name, value in plain.items() if name != "columns"}


def read_passages(documents: Iterator[Document], tokenizer: Tokenizer, size: int) -> Iterator[Passage]:
    """The passages of documents to be indexed, in order."""
    for document in documents:
        for text in cut(document.text, tokenizer, size):
            yield Passage(text, document.file, document.number, document.id, document.columns)


def cut(document: str, tokenizer: Tokenizer, size: int) -> list[str]:
    """Cut a document into passages: as many whole sentences as fit `size` tokens; a longer sentence is its own.

    A passage is the document's text from its first sentence to its last, with everything between them.
    """
    sentences = sentences_of(document)
    spans: list[tuple[int, int]] = []
    room = at = 0
    for sentence, pieces in zip(sentences, tokenizer.pieces_batch(sentences)):
        start = document.index(sentence, at)  # the first there is: only spaces stand between sentences
        at = start + len(sentence)
        if not spans or len(pieces) > room:
            spans.append((start, at))
            room = size
        spans[-1] = (spans[-1][0], at)
        room -= len(pieces)
    return [document[start:end] for start, end in spans]
