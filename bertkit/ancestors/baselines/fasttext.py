"""A fastText-like classifier: learnt vectors of words and word pairs, averaged, under one linear layer."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit.ancestors import folder as storage
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.ngram.model import UNITS

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FastTextNumbers:
    """buckets: word pairs share this many vectors, by their hash. rate: of Adam's sparse form."""

    width: int = 32
    buckets: int = 1 << 15
    passes: int = 20
    batch: int = 32
    rate: float = 0.005
    min_count: int = 1


class FastText:
    """Every word and every two neighbouring words have a vector; a text is their mean."""

    name = "averaged words (fastText-like)"
    LAYOUT = Layout("fastText-like classifier", "averaged.json", "averaged.safetensors")

    def __init__(self, numbers: FastTextNumbers | None = None) -> None:
        self.numbers = numbers or FastTextNumbers()

    def fit(
        self,
        texts: Sequence[str],
        labels: Sequence[int],
        count: int,
        dev_texts: Sequence[str] = (),
        dev_labels: Sequence[int] = (),
        *,
        seed: int = 0,
        minutes: float = 0.0,
    ) -> Self:
        """Learn vectors and weights together; the pass that is best on the dev rows is kept."""
        n = self.numbers
        seen = Counter(word for text in texts for word in _words(text))
        self._name(sorted(word for word, times in seen.items() if times >= n.min_count))
        self._build(count, seed)
        rows = [self._ids(text) for text in texts]
        answers = torch.tensor(labels)
        sparse = torch.optim.SparseAdam(list(self.vectors.parameters()), lr=n.rate)
        dense = torch.optim.Adam(self.out.parameters(), lr=n.rate)
        best, kept = -1.0, self._state()
        end = time.monotonic() + minutes * 60 if minutes else float("inf")
        for epoch in range(n.passes):
            for part in np.array_split(
                np.random.default_rng((seed, epoch)).permutation(len(rows)), max(1, len(rows) // n.batch)
            ):
                loss = F.cross_entropy(self._logits([rows[i] for i in part]), answers[torch.from_numpy(part)])
                for optimizer in (sparse, dense):
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in (sparse, dense):
                    optimizer.step()
            right = float((self.probabilities(dev_texts).argmax(1) == np.array(dev_labels)).mean()) if dev_texts else 0
            if right >= best:
                best, kept = right, self._state()
            if time.monotonic() > end:
                break
        self._restore(kept)
        return self

    def _name(self, words: Sequence[str]) -> None:
        self.words = {word: n for n, word in enumerate(words)}

    def _build(self, count: int, seed: int) -> None:
        n, draw = self.numbers, torch.Generator().manual_seed(seed)
        self.vectors = nn.EmbeddingBag(len(self.words) + n.buckets, n.width, mode="mean", sparse=True)
        self.out = nn.Linear(n.width, count)
        with torch.no_grad():
            self.vectors.weight.uniform_(-1 / n.width, 1 / n.width, generator=draw)
            self.out.weight.zero_()
            self.out.bias.zero_()

    def _ids(self, text: str) -> list[int]:
        words = _words(text)
        pairs = (zlib.crc32(f"{a} {b}".encode()) % self.numbers.buckets for a, b in pairwise(words))
        known = (self.words.get(word) for word in words)
        return [i for i in known if i is not None] + [len(self.words) + pair for pair in pairs]

    def _logits(self, rows: Sequence[list[int]]) -> Tensor:
        starts = np.cumsum([0, *(len(row) for row in rows[:-1])])
        flat = torch.tensor([i for row in rows for i in row], dtype=torch.long)
        means: Tensor = self.vectors(flat, torch.from_numpy(starts))
        logits: Tensor = self.out(means)
        return logits

    @torch.no_grad()
    def probabilities(self, texts: Sequence[str]) -> Floats:
        """(texts, labels)"""
        parts = [
            self._logits([self._ids(text) for text in texts[at : at + 1024]]).softmax(-1)
            for at in range(0, len(texts), 1024)
        ]
        return torch.cat(parts).double().numpy() if parts else np.zeros((0, self.out.out_features))

    @property
    def parameters(self) -> int:
        """Vectors and weights."""
        return self.vectors.weight.numel() + self.out.weight.numel() + self.out.bias.numel()

    def _state(self) -> dict[str, Tensor]:
        both = {"vectors": self.vectors.weight, "weight": self.out.weight, "bias": self.out.bias}
        return {name: tensor.detach().clone() for name, tensor in both.items()}

    @torch.no_grad()
    def _restore(self, state: dict[str, Tensor]) -> None:
        for target, name in ((self.vectors.weight, "vectors"), (self.out.weight, "weight"), (self.out.bias, "bias")):
            target.copy_(state[name])

    def save(self, folder: Path) -> None:
        """Weights and words."""
        described = {"numbers": vars(self.numbers), "words": list(self.words), "labels": self.out.out_features}
        storage.save(folder, self.LAYOUT, described, self._state())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        with storage.opened(folder, cls.LAYOUT):
            described, tensors = storage.load(folder, cls.LAYOUT)
            model = cls(FastTextNumbers(**described["numbers"]))
            model._name(described["words"])
            model._build(described["labels"], 0)
            model._restore(tensors)
        return model


def _words(text: str) -> list[str]:
    return UNITS["words"](text.lower())
