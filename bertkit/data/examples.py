"""What readers yield and tasks take: one frozen record per kind of example.

`line` is the example's place in its file, so that later errors can name it: the line of
a text file, the row of a parquet file or JSON list, the running number of a question in a SQuAD file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Label = str | float | tuple[str, ...] | None
Value = str | int | float | bool  # of a document's column


@dataclass(frozen=True, slots=True)
class TextRow:
    """An example: a text or a pair of texts.

    label: a name, a number (regression), several names (multi-label), or None.

    text_c: the negative text of a triple.
    """

    text: str
    text_b: str | None = None
    label: Label = None
    line: int = 0
    text_c: str | None = None


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """An example for tagging: words and, if the file has them, one tag per word."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """An example for question answering: a question about a context.

    answers: (text, start) with start counted in characters of the context, or -1 where the text does not
    occur in it (such an answer counts for scoring but not for training: see `placed`).
    impossible: the file says that the context holds no answer.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool = False
    line: int = 0

    @property
    def placed(self) -> tuple[tuple[str, int], ...]:
        """The answers of this `Question` that occur in its context."""
        return tuple(answer for answer in self.answers if answer[1] >= 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """An example for multiple choice: a text and its possible continuations. label: index of the right one, from 0."""

    text: str
    choices: tuple[str, ...]
    label: int | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """An acceptable sentence and its unacceptable twin. group: the phenomenon they test (`UID`, or the file's name)."""

    good: str
    bad: str
    group: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """A text to be split into passages, with its file, its number in it (from 1), its id, and the row's other columns.

    The id is that of the row; without one, the file's name and the number.
    """

    text: str
    file: str
    number: int
    id: str
    columns: Mapping[str, Value] = field(default_factory=dict)
