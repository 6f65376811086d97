"""Sentence embeddings: texts that belong together come to lie together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit import metrics
from bertkit.data.batch import Batch
from bertkit.data.examples import TextRow
from bertkit.data.readers import read_rows
from bertkit.data.rows import Windows, encode_rows
from bertkit.metrics import Scores
from bertkit.model.encoder import Encoded
from bertkit.model.heads import Model, first_vectors
from bertkit.tasks.classify import _row
from bertkit.tasks.task import Item, Prediction, Reading, Task
from bertkit.text.tokenizer import Tokenizer

SCALE = 20.0  # cosines are multiplied by this before the softmax, as in SBERT's ranking loss


@dataclass
class Embed(Task):
    """Pairs (text, text_b) without labels learn by contrast with the batch's other pairs; with numbers as labels
    (similarity scores) by the order of their cosines. options: scored, low and high of the scores."""

    name: ClassVar[str] = "embed"
    head: ClassVar[str] = ""

    def read(self, path: str | Path, reading: Reading, labelled: bool = True) -> list[TextRow]:
        """Pairs; scored where the file has numbers as labels."""
        rows = list(
            read_rows(
                path, text=reading.text, text_b=reading.text_b, label=reading.label, labelled="maybe", number=True,
                encoding=reading.encoding,
            )
        )  # fmt: skip
        self.options.setdefault("scored", all(row.label is not None for row in rows))
        return rows

    def wrap(self, inputs: Sequence[Any]) -> list[TextRow]:
        """Pairs of texts."""
        return [_row(one, number, True) for number, one in enumerate(inputs, 1)]

    def learn(self, examples: Sequence[TextRow]) -> None:
        """Whether the pairs are scored. The batch is compared as a whole."""
        self.options.setdefault("scored", all(row.label is not None for row in examples))
        self.options["whole_batch"] = True

    def outputs(self) -> int:
        """No head."""
        return 0

    def encode(self, examples: Sequence[TextRow], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Two texts, each by itself; a long one is cut to its first window, and that is counted."""
        how = Windows(windows.limit, "error" if windows.on_long == "error" else "truncate")
        first = encode_rows(tokenizer, [row.text for row in examples], None, how)
        second = encode_rows(tokenizer, [row.text_b or "" for row in examples], None, how)
        return [
            Item(row, a.rows + b.rows, a.tokens + b.tokens, a.cut + b.cut) for row, a, b in zip(examples, first, second)
        ]

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Scores, or the pair's own number."""
        if self.options.get("scored"):
            return {"target": torch.tensor([float(item.example.label) for item in items])}
        return {"target": torch.arange(len(items))}

    def vectors(self, encoded: Encoded) -> Tensor:
        """Mean vectors of length one, in the caller's order: (rows, width)."""
        return F.normalize(encoded.batch.restore(first_vectors(encoded, "mean")).float(), dim=-1)

    def loss(self, model: Model, batch: Batch) -> Tensor:
        """Contrast within the batch, or (scored) every pair of pairs whose cosines are in the wrong order (CoSENT)."""
        vectors = self.vectors(model.encoder(batch))
        left, right = vectors[0::2], vectors[1::2]
        target = batch.extra["target"]
        if not self.options.get("scored"):
            table = left @ right.t() * SCALE
            return (
                F.cross_entropy(table, target, reduction="sum") + F.cross_entropy(table.t(), target, reduction="sum")
            ) / 2
        cosines = (left * right).sum(-1) * SCALE
        gaps = cosines[:, None] - cosines[None, :]
        wrong = gaps[target[:, None] < target[None, :]]
        return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), 0) * len(target)

    def answers(self, model: Model, encoded: Encoded, items: Sequence[Item]) -> list[np.ndarray]:
        """Both vectors of each pair: (2, width)."""
        return list(self.vectors(encoded).view(len(items), 2, -1).cpu().numpy())

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """{similarity}, with tokens seen and cut."""
        similarity = float(output[0] @ output[1])
        return {"similarity": similarity, "vectors": output, "tokens": item.tokens, "cut": item.cut}

    def score(self, examples: Sequence[TextRow], predictions: Sequence[Prediction]) -> Scores:
        """Rank correlation with the scores; without them, how often a text's own partner is the nearest."""
        metric, gold, said, extra = self.judged(examples, predictions)
        return metric(gold, said, **extra)

    def judged(self, examples: Sequence[TextRow], predictions: Sequence[Prediction]) -> tuple[Any, list, list, dict]:
        """Spearman where there are scores, else the share of partners found among all second texts."""
        if self.options.get("scored") and all(row.label is not None for row in examples):
            return (
                metrics.regression,
                [row.label for row in examples],
                [p["similarity"] for p in predictions],
                {},
            )
        left, right = (np.stack([p["vectors"][side] for p in predictions]) for side in (0, 1))
        found = [int(n) for n in (left @ right.T).argmax(1)]
        return metrics.choice, list(range(len(examples))), found, {}
