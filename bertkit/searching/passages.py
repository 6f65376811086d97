"""Documents cut into passages of whole sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertkit.data.prepare_chunk import sentences_of
from bertkit.data.readers import document_files, read_documents
from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Passage:
    """A run of sentences. document: its number in the file, from 1."""

    text: str
    file: str
    document: int

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def read_passages(
    paths: tuple[Path, ...], tokenizer: Tokenizer, size: int, text: str = "text", encoding: str = "utf-8"
) -> Iterator[Passage]:
    """The passages of files and folders, in order."""
    for path in document_files(paths):
        for number, document in enumerate(read_documents(path, text=text, encoding=encoding), 1):
            for passage in cut(document, tokenizer, size):
                yield Passage(passage, str(path), number)


def cut(document: str, tokenizer: Tokenizer, size: int) -> list[str]:
    """As many whole sentences as have `size` tokens together; a longer sentence is a passage by itself."""
    sentences = sentences_of(document)
    found: list[list[str]] = []
    room = 0
    for sentence, pieces in zip(sentences, tokenizer.pieces_batch(sentences)):
        if not found or len(pieces) > room:
            found.append([])
            room = size
        found[-1].append(sentence)
        room -= len(pieces)
    return [" ".join(part) for part in found]
