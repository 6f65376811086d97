"""Examples from a token store: each a pure function of its number and a random generator.

Every packing splits its documents into chunks of whole sentences once (fixed for a given length);
an example takes its chunk and draws the rest at random. No example joins two documents except
as BERT's next-sentence pairs do, so no token ever attends across documents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.random import Generator

from bertkit.data.store import Store
from bertkit.errors import UserError


@dataclass(frozen=True, slots=True)
class Example:
    """A packed row of pretraining, before masking. All arrays: (tokens,). label: 0 true order, 1 not, -1 none."""

    ids: np.ndarray
    segments: np.ndarray
    special: np.ndarray
    word_starts: np.ndarray
    label: int = -1
    # The store's number of each token, -1 for special ones; empty where the example is not from a store.
    places: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


class Packing(Protocol):
    """The base of all packings: numbered pretraining examples of a store."""

    def __init__(self, store: Store, documents: np.ndarray, length: int, short_prob: float = 0.0) -> None:
        """Split these documents of the store into chunks for examples of at most `length` tokens."""

    @classmethod
    def typical(cls, store: Store, length: int) -> int:
        """What every packing tells: approximate tokens of an example of at most `length`."""

    def __len__(self) -> int:
        """Number of examples per pass."""

    def example(self, number: int, chance: Generator) -> Example:
        """What every packing gives: the example with this number."""


def sentence_chunks(
    store: Store, documents: np.ndarray, room: int, least: int = 1, *, over: bool = False
) -> np.ndarray:
    """Greedy runs of sentences to pack, of at most `room` tokens: (chunks, 2) of sentence numbers, in text order.

    A run has at least `least` sentences where its document has them, even if they do not fit. `over`: a run continues
    until it has at least `room` tokens, as in BERT's code, and is truncated later.
    """
    starts = np.asarray(store.sentence_starts)
    position = np.asarray(store.document_starts)[documents].copy()
    end = np.asarray(store.document_starts)[documents + 1]
    rounds: list[np.ndarray] = []
    # All documents advance together, one chunk per round.
    while (alive := position < end).any():
        position, end = position[alive], end[alive]
        reach = np.searchsorted(starts, starts[position] + room, side="left" if over else "right") - (not over)
        stop = np.minimum(np.maximum(reach, position + least), end)
        rounds.append(np.stack([position, stop], axis=1))
        position = stop
    if not rounds:
        return np.zeros((0, 2), np.int64)
    chunks = np.concatenate(rounds)
    return chunks[np.argsort(chunks[:, 0], kind="stable")]


class _Chunks:
    """The base of all packings: the store's arrays and the special ids."""

    specials = 2

    def __init__(self, store: Store, documents: np.ndarray, length: int, short_prob: float = 0.0) -> None:
        tokenizer = store.tokenizer
        if tokenizer.cls_id is None or tokenizer.sep_id is None:
            raise UserError(
                "This tokenizer has no [CLS] and [SEP] (or <s> and </s>); train one with `bertkit tokenizer`."
            )
        if length < self.specials + 2:
            raise UserError(f"Examples of {length} tokens leave no room for text. Use a length of at least 16.")
        self.cls, self.sep = tokenizer.cls_id, tokenizer.sep_id
        self.ids, self.words, self.starts = store.ids, store.word_starts, store.sentence_starts
        self.room = length - self.specials
        self.short_prob = short_prob

    @classmethod
    def typical(cls, store: Store, length: int) -> int:
        """Approximate tokens of a packing's example, from which the examples per step follow."""
        return length

    def _wrap(self, parts: list[tuple[int, int]], label: int = -1) -> Example:
        """A packing's row, [CLS] a [SEP] (b [SEP]), from token ranges of the store."""
        size = sum(b - a for a, b in parts) + 1 + len(parts)
        ids = np.empty(size, np.int64)
        segments = np.zeros(size, np.int64)
        special = np.zeros(size, bool)
        words = np.ones(size, bool)
        places = np.full(size, -1)
        ids[0], special[0] = self.cls, True
        start = 1
        for side, (a, b) in enumerate(parts):
            stop = start + b - a
            ids[start:stop] = self.ids[a:b]
            words[start:stop] = self.words[a:b]
            places[start:stop] = np.arange(a, b)
            ids[stop], special[stop] = self.sep, True
            segments[start : stop + 1] = side
            start = stop + 1
        return Example(ids, segments, special, words, label, places)


class FullSentences(_Chunks):
    """RoBERTa's packing: as many whole sentences of one document as fit."""

    def __init__(self, store: Store, documents: np.ndarray, length: int, short_prob: float = 0.0) -> None:
        super().__init__(store, documents, length, short_prob)
        chunks = self._runs(store, documents)
        starts = np.asarray(store.sentence_starts)
        first, last = starts[chunks[:, 0]], starts[chunks[:, 1]]
        # A single sentence longer than the room is split.
        pieces = np.maximum(1, -(-(last - first) // self.room))
        which = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self.first = np.repeat(first, pieces) + which * self.room
        self.last = np.minimum(self.first + self.room, np.repeat(last, pieces))

    def _runs(self, store: Store, documents: np.ndarray) -> np.ndarray:
        return sentence_chunks(store, documents, self.room)

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.first)

    def example(self, number: int, chance: Generator) -> Example:
        """The packing `full-sentences`: the whole chunk as one example."""
        return self._wrap([(int(self.first[number]), int(self.last[number]))])


class Sentences(FullSentences):
    """A packing of one sentence per example; one of a word or two, such as a heading, is joined with the next."""

    LEAST = 4  # tokens

    def _runs(self, store: Store, documents: np.ndarray) -> np.ndarray:
        return sentence_chunks(store, documents, self.LEAST, over=True)

    @classmethod
    def typical(cls, store: Store, length: int) -> int:
        """The packing `sentences`: the mean length of a sentence."""
        return min(length, round(store.tokens / max(1, store.sentences)) + cls.specials)


class MixedSentences(FullSentences):
    """A packing of rows and sentences at random: half of the chunks whole, one sentence of each of the others."""

    def example(self, number: int, chance: Generator) -> Example:
        """The packing `mixed-sentences`: the chunk, or one of its sentences; one of a word or two joins the next."""
        first, last = int(self.first[number]), int(self.last[number])
        if chance.random() < 0.5:
            a, b = (int(place) for place in np.searchsorted(self.starts, (first, last)))
            bounds = [first, *(int(start) for start in self.starts[a:b] if start > first), last]
            begin = int(chance.integers(0, len(bounds) - 1))
            longer = (bound for bound in bounds[begin + 1 :] if bound - bounds[begin] >= Sentences.LEAST)
            first, last = bounds[begin], next(longer, last)
        return self._wrap([(first, last)])

    @classmethod
    def typical(cls, store: Store, length: int) -> int:
        """The packing `mixed-sentences`: the mean of a row and a sentence."""
        return (length + Sentences.typical(store, length)) // 2


class _Pairs(_Chunks):
    """The base of packings with two runs of sentences."""

    specials = 3

    def __init__(self, store: Store, documents: np.ndarray, length: int, short_prob: float = 0.0) -> None:
        super().__init__(store, documents, length, short_prob)
        self.documents = documents
        self.document_starts = np.asarray(store.document_starts)
        chunks = sentence_chunks(store, documents, self.room, least=2, over=True)
        self.chunks = chunks[chunks[:, 1] - chunks[:, 0] >= 2]
        if not len(self.chunks):
            raise UserError(
                "No document of this store has two sentences, so there are no sentence pairs. "
                "Use a preset without next-sentence prediction (roberta-…, modern-…), or text with longer documents."
            )

    def __len__(self) -> int:
        """Chunks of at least two sentences."""
        return len(self.chunks)

    def _target(self, chance: Generator) -> int:
        """The target length of a packed pair: all the room, or sometimes less, to show the model short texts too."""
        return int(chance.integers(2, self.room + 1)) if chance.random() < self.short_prob else self.room

    def _cut(self, number: int, target: int, chance: Generator) -> tuple[int, int, int]:
        """A packed pair's sentences first, middle, last of the chunk: a is [first, middle), b really [middle, last)."""
        first, last = (int(n) for n in self.chunks[number])
        fits = int(np.searchsorted(self.starts[first : last + 1], self.starts[first] + target, side="left"))
        last = min(last, first + max(2, fits))
        return first, first + int(chance.integers(1, last - first)), last

    def _fitted(self, a: tuple[int, int], b: tuple[int, int], target: int, chance: Generator) -> list[tuple[int, int]]:
        """Shorten the longer one of a packed pair, at a random end, until both fit (as in the paper's code)."""
        sizes = [a[1] - a[0], b[1] - b[0]]
        over = sum(sizes) - target
        if over <= 0:
            return [a, b]
        gap = sizes[0] - sizes[1]
        only = min(over, abs(gap))
        losses = [only if gap > 0 else 0, only if gap < 0 else 0]
        losses[0] += (over - only) // 2
        losses[1] += (over - only) - (over - only) // 2
        parts = []
        for (start, stop), loss in zip((a, b), losses):
            front = int(chance.binomial(loss, 0.5)) if loss else 0
            parts.append((start + front, stop - (loss - front)))
        return parts

    def _tokens(self, first: int, last: int) -> tuple[int, int]:
        return int(self.starts[first]), int(self.starts[last])


class NextSentence(_Pairs):
    """The packing of BERT's pairs: half of the second texts really follow, half come from another document."""

    def __init__(self, store: Store, documents: np.ndarray, length: int, short_prob: float = 0.0) -> None:
        super().__init__(store, documents, length, short_prob)
        if len(documents) < 2:
            raise UserError(
                "Next-sentence pairs need at least two documents (an empty line between documents). "
                "Add text, or use a preset without next-sentence prediction (roberta-…, modern-…)."
            )

    def example(self, number: int, chance: Generator) -> Example:
        """The packing `next-sentence`: [CLS] a [SEP] b [SEP], label 0 where b follows a and 1 where it does not."""
        target = self._target(chance)
        first, middle, last = self._cut(number, target, chance)
        a, b = self._tokens(first, middle), self._tokens(middle, last)
        label = int(chance.random() < 0.5)
        if label:
            # As long as the real continuation, and truncated like it: a pair's length must not give the answer away.
            cut = b[1] - a[0] >= target
            b = self._elsewhere(first, b[1] - b[0], cut, chance)
        return self._wrap(self._fitted(a, b, target, chance), label)

    def _elsewhere(self, sentence: int, size: int, cut: bool, chance: Generator) -> tuple[int, int]:
        """Whole sentences from a random place of another document: the nearest to `size` tokens, or (`cut`) enough."""
        own_document = int(np.searchsorted(self.document_starts, sentence, side="right")) - 1
        place = int(np.searchsorted(self.documents, own_document))
        pick = int(chance.integers(0, len(self.documents) - 1))
        document = int(self.documents[pick + (pick >= place)])
        first, end = int(self.document_starts[document]), int(self.document_starts[document + 1])
        start = int(chance.integers(first, end))
        lengths = np.asarray(self.starts[start : end + 1]) - self.starts[start]
        enough = min(int(np.searchsorted(lengths, size, side="left")), len(lengths) - 1)
        if not cut and enough > 1 and size - lengths[enough - 1] < lengths[enough] - size:
            enough -= 1
        return self._tokens(start, start + max(1, enough))


class SentenceOrder(_Pairs):
    """The packing of ALBERT's pairs: two neighbouring runs, swapped in half of the examples."""

    def example(self, number: int, chance: Generator) -> Example:
        """The packing `sentence-order`: [CLS] a [SEP] b [SEP], label 0 in the right order and 1 swapped."""
        target = self._target(chance)
        first, middle, last = self._cut(number, target, chance)
        parts = self._fitted(self._tokens(first, middle), self._tokens(middle, last), target, chance)
        label = int(chance.random() < 0.5)
        return self._wrap(parts[::-1] if label else parts, label)


PACKINGS: dict[str, type[Packing]] = {
    "full-sentences": FullSentences,
    "sentences": Sentences,
    "mixed-sentences": MixedSentences,
    "next-sentence": NextSentence,
    "sentence-order": SentenceOrder,
}
