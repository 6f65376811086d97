"""An n-gram model over the pieces of a tokenizer: what counting alone reaches on the text the networks learn from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors import folder as storage
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.language_model.model import suggestions
from bertkit.ancestors.language_model.networks import add_bos_eos, perplexity_of
from bertkit.ancestors.language_model.train import split
from bertkit.ancestors.ngram.counting import BYTES_PER_WORD, count_windows
from bertkit.ancestors.ngram.kneser_ney import estimate, gather
from bertkit.ancestors.ngram.model import END, SPECIAL, START, UNKNOWN, NgramModel, NgramSettings, padded
from bertkit.data.packing import FullSentences
from bertkit.data.readers.frames import texts_of
from bertkit.data.store import Store
from bertkit.notify import note
from bertkit.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]


class PieceNgram:
    """An n-gram model over pieces of a tokenizer. The marks [CLS] and [SEP] are its own start and end of a sentence."""

    LAYOUT = Layout("n-gram model of pieces", "bertkit.json", kinds=("piece-ngram",))

    def __init__(self, model: NgramModel, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        marks = (tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id)
        # The model numbers unknown, start and end first; the pieces follow in their own order.
        self.pieces = [-1 if mark is None else mark for mark in marks]
        self.pieces += [piece for piece in range(tokenizer.size) if piece not in marks]
        self.numbers = np.full(tokenizer.size, UNKNOWN, np.int64)
        for number, piece in enumerate(self.pieces[len(SPECIAL) :], start=len(SPECIAL)):
            self.numbers[piece] = number
        self.model.name_words([*SPECIAL, *(f"{piece}" for piece in self.pieces[len(SPECIAL) :])])

    @classmethod
    def learn(
        cls, store: Store | str | Path, order: int = 5, *, held_out: float = 0.01, seed: int = 0, length: int = 128,
        memory_mb: float = 1024,
    ) -> Self:  # fmt: skip
        """Learn n-grams of pieces: count a store's training documents, cut into the examples that the networks read."""
        store = store if isinstance(store, Store) else Store.open(store, verify=True)
        model = cls(NgramModel(NgramSettings(order=order, memory_mb=memory_mb)), store.tokenizer)
        documents, _ = split(store, held_out, seed)
        return model._fit(store, FullSentences(store, documents, length), int(memory_mb * 2**20))

    def _fit(self, store: Store, examples: FullSentences, budget: int) -> Self:
        """Count the pieces of a store and estimate the n-gram model, in bounded memory."""
        order, size = self.model.settings.order, len(self.pieces)
        with tempfile.TemporaryDirectory(prefix="ngram-", ignore_cleanup_errors=True) as name:
            columns, counts = count_windows(
                lambda: self._chunks(store, examples, budget), order, size, START, budget, Path(name)
            )
        orders = gather(columns, counts, START)
        del columns, counts
        self.model.levels, fallen = estimate(orders, size, START, END)
        if fallen:
            note(f"n-gram model of pieces: order {', '.join(map(str, fallen))} uses the default discounts.")
        return self

    def _chunks(self, store: Store, examples: FullSentences, budget: int) -> Iterator[Ids]:
        """All examples in the n-gram model's numbers of pieces, each from START to END, some at a time."""
        starts = self.model.settings.order - 1
        room = budget // 2 // BYTES_PER_WORD
        parts: list[Ids] = []
        size = 0
        for first, last in zip(examples.first.tolist(), examples.last.tolist()):
            parts += [self.numbers[store.ids[first:last]], np.array([END])]
            size += last - first + 1 + starts
            if size > room:
                yield padded(np.concatenate(parts), starts)
                parts, size = [], 0
        if parts:
            yield padded(np.concatenate(parts), starts)

    # ---- the interface of every left-to-right model

    def log_probs(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """The n-gram model's log-probability of every piece but the first, in each row of ids from [CLS] to [SEP]."""
        streams = [np.array([START, *self.numbers[list(row[1:-1])], END]) for row in rows]
        logs = self.model.log10_of(np.concatenate(streams)) * np.log(10) if streams else np.zeros(0)
        bounds = np.cumsum([0, *map(len, streams)])
        return [logs[begin + 1 : end] for begin, end in pairwise(bounds)]

    def score(self, texts: Sequence[str]) -> list[float]:
        """Log-likelihood of each text by n-grams of pieces, summed over its pieces and its end."""
        return [float(logs.sum()) for logs in self.log_probs(add_bos_eos(self.tokenizer, texts_of(texts)))]

    def perplexity(self, texts: Sequence[str]) -> dict[str, float]:
        """Perplexity (per piece) of n-grams of pieces, bits_per_byte, …: see language_model.networks.perplexity_of."""
        texts = texts_of(texts)
        rows = add_bos_eos(self.tokenizer, texts)
        scores = [float(logs.sum()) for logs in self.log_probs(rows)]
        return perplexity_of(texts, scores, rows, self.tokenizer.unk_id)

    def probability(self, text: str) -> np.ndarray:
        """The distribution of the piece after the text by n-grams of pieces, (pieces,); it sums to one."""
        ids = add_bos_eos(self.tokenizer, [text])[0][1:-1]
        context = [SPECIAL[START], *(self.model.words[n] for n in self.numbers[ids])]
        probabilities = self.model.probability(context)
        chances = np.zeros(self.tokenizer.size)
        for number, piece in enumerate(self.pieces):
            if piece >= 0:
                chances[piece] = probabilities[number]
        return chances

    def suggest(self, text: str, top: int = 5) -> list[dict[str, Any]]:
        """The likeliest next pieces by n-grams of pieces, best first: {token, score (its probability), text}."""
        ids = add_bos_eos(self.tokenizer, [text])[0][:-1]
        return suggestions(self.tokenizer, ids, self.probability(text), top)

    @property
    def parameters(self) -> int:
        """Number of n-grams of pieces."""
        return sum(self.model.ngrams)

    # ---- saving

    def save(self, folder: str | Path) -> None:
        """Write the n-grams of pieces, bertkit.json and the tokenizer's files; all of them or none."""
        about = {"ancestor": "piece-ngram", "kind": "ngram", "numbers": {"order": self.model.settings.order}}
        storage.save(folder, self.LAYOUT, about, tokenizer=self.tokenizer, also=self.model.write)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open the saved n-grams of pieces."""
        storage.load(folder, cls.LAYOUT)
        return cls(NgramModel.load(folder), Tokenizer.load(Path(folder)))
