"""A fastText-like classifier: learned vectors of words and word pairs, averaged, under one linear layer."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
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
from bertkit.data.batch import Batch
from bertkit.settings.training import LoopSettings, Plan
from bertkit.training.loop import Objective, Training
from bertkit.training.run import MemoryRun
from bertkit.training.run_folder import MemoryFolder

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FastTextNumbers:
    """Hyper-parameters of fastText. buckets: word pairs share this many vectors, by their hash.

    rate: of Adam's sparse form.
    """

    width: int = 32
    buckets: int = 1 << 15
    passes: int = 20
    batch: int = 32
    rate: float = 0.005
    min_count: int = 1


def bags(rows: Sequence[list[int]]) -> Batch:
    """The ids of several texts as one batch for fastText; a text may have none.

    Their order in a text does not matter.
    """
    lengths = [len(row) for row in rows]
    ids, none = torch.tensor([i for row in rows for i in row], dtype=torch.long), torch.zeros(0, dtype=torch.long)
    starts = torch.from_numpy(np.cumsum([0, *lengths[:-1]]))
    return Batch(ids, none, none, tuple(lengths), tuple(range(len(rows))), (), starts)


class Bags(Objective):
    """fastText's objective: the label of a text from the mean of its word vectors."""

    def __init__(self, vectors: nn.EmbeddingBag, out: nn.Linear) -> None:
        super().__init__()
        self.vectors, self.out = vectors, out

    def logits(self, batch: Batch) -> Tensor:
        """fastText's scores of every label: (texts, labels)."""
        logits: Tensor = self.out(self.vectors(batch.ids, batch.starts))
        return logits

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """fastText's loss, `label`: cross-entropy, over texts."""
        return {"label": F.cross_entropy(self.logits(batch), batch.extra["labels"], reduction="sum")}

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of texts fastText's loss is divided by."""
        return {"label": batch.texts}


class BagFeed:
    """fastText's feed: each pass visits every text once, in its own random order."""

    def __init__(self, rows: Sequence[list[int]], labels: Sequence[int], batch: int, seed: int) -> None:
        self.rows, self.labels, self.seed = rows, torch.tensor(labels), seed
        self.steps_per_pass = max(1, len(rows) // batch)
        self._pass: tuple[int, list[NDArray[np.int64]]] = (-1, [])

    def step(self, step: int) -> list[Batch]:
        """fastText's one batch of this step."""
        epoch, place = divmod(step, self.steps_per_pass)
        if self._pass[0] != epoch:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.rows))
            self._pass = (epoch, np.array_split(order, self.steps_per_pass))
        rows = self._pass[1][place]
        batch = bags([self.rows[i] for i in rows])
        batch.extra["labels"] = self.labels[torch.from_numpy(rows)]
        return [batch]


class _Run(MemoryRun):
    """Passes over the texts, each followed by an evaluation; the best is kept."""

    def __init__(self, plan: Plan, training: Training, objective: Bags, scores: Callable[[], dict[str, float]]) -> None:
        super().__init__(plan, training, MemoryFolder(), objective)
        self.dev_scores = scores

    def evaluate(self) -> dict[str, float]:
        """fastText's accuracy on the dev texts; {} without any."""
        return self.dev_scores()


class FastText:
    """The fastText baseline: every word and every two neighbouring words have a vector; a text is their mean."""

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
        """Learn fastText's vectors and weights together; the pass that is best on the dev rows is kept."""
        n = self.numbers
        counts = Counter(word for text in texts for word in _words(text))
        self._name(sorted(word for word, times in counts.items() if times >= n.min_count))
        self._build(count, seed)
        feed = BagFeed([self._ids(text) for text in texts], labels, n.batch, seed)
        loop = LoopSettings(lr=n.rate, warmup=0.0, schedule="constant", decay=0.0, clip=0.0)
        objective = Bags(self.vectors, self.out)
        training = Training(objective, feed, n.passes * feed.steps_per_pass, loop, seed)
        plan = Plan(training.steps, minutes, deadline=True, eval_every=feed.steps_per_pass)

        def accuracy() -> dict[str, float]:
            if not len(dev_texts):
                return {}
            return {"dev": float((self.probabilities(dev_texts).argmax(1) == np.array(dev_labels)).mean())}

        _Run(plan, training, objective, accuracy).go()
        return self

    def _name(self, words: Sequence[str]) -> None:
        self.words = {word: n for n, word in enumerate(words)}

    def _build(self, count: int, seed: int) -> None:
        """fastText's vectors and linear layer, with new weights."""
        n, draw = self.numbers, torch.Generator().manual_seed(seed)
        self.vectors = nn.EmbeddingBag(len(self.words) + n.buckets, n.width, mode="mean", sparse=True)
        self.out = nn.Linear(n.width, count)
        with torch.no_grad():
            self.vectors.weight.uniform_(-1 / n.width, 1 / n.width, generator=draw)
            self.out.weight.zero_()
            self.out.bias.zero_()

    def _ids(self, text: str) -> list[int]:
        """fastText's ids of a text: known words, and hashed pairs of neighbours."""
        words = _words(text)
        pairs = (zlib.crc32(f"{a} {b}".encode()) % self.numbers.buckets for a, b in pairwise(words))
        ids = (self.words.get(word) for word in words)
        return [i for i in ids if i is not None] + [len(self.words) + pair for pair in pairs]

    def _logits(self, rows: Sequence[list[int]]) -> Tensor:
        return Bags(self.vectors, self.out).logits(bags(rows))

    @torch.no_grad()
    def probabilities(self, texts: Sequence[str]) -> Floats:
        """fastText's probabilities: (texts, labels)."""
        parts = [
            self._logits([self._ids(text) for text in texts[start : start + 1024]]).softmax(-1)
            for start in range(0, len(texts), 1024)
        ]
        return torch.cat(parts).double().numpy() if parts else np.zeros((0, self.out.out_features))

    @property
    def parameters(self) -> int:
        """Parameters of fastText's vectors and its linear layer."""
        return self.vectors.weight.numel() + self.out.weight.numel() + self.out.bias.numel()

    def _state(self) -> dict[str, Tensor]:
        """Copies of fastText's weights, by name."""
        tensors = {"vectors": self.vectors.weight, "weight": self.out.weight, "bias": self.out.bias}
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    @torch.no_grad()
    def _restore(self, state: dict[str, Tensor]) -> None:
        """Put copied weights back into fastText."""
        for target, name in ((self.vectors.weight, "vectors"), (self.out.weight, "weight"), (self.out.bias, "bias")):
            target.copy_(state[name])

    def save(self, folder: Path) -> None:
        """Write fastText's weights and words into a folder."""
        described = {"numbers": vars(self.numbers), "words": list(self.words), "labels": self.out.out_features}
        storage.save(folder, self.LAYOUT, described, self._state())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved fastText classifier."""
        with storage.opened(folder, cls.LAYOUT):
            described, tensors = storage.load(folder, cls.LAYOUT)
            model = cls(FastTextNumbers(**described["numbers"]))
            model._name(described["words"])
            model._build(described["labels"], 0)
            model._restore(tensors)
        return model


def _words(text: str) -> list[str]:
    return UNITS["words"](text.lower())
