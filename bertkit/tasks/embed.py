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
from bertkit.data.examples import TextRow
from bertkit.data.readers import read_rows
from bertkit.data.windows import Windows, encode_rows
from bertkit.errors import UserError
from bertkit.metrics import Scores
from bertkit.model.encoder import Encoded
from bertkit.model.heads import Model, first_vectors
from bertkit.tasks.base import Item, Labelled, Prediction, Reading, Task
from bertkit.tasks.classify import _row
from bertkit.text.tokenizer import Tokenizer

POOLS = {"mean": "mean", "cls": "first", "max": "max"}  # sentence-transformers' name → ours
SCALE = 20.0  # cosines are multiplied by this before the softmax, as in SBERT's ranking loss


@dataclass
class Embed(Task):
    """Pairs (text, text_b) without labels learn by contrast with the batch's other pairs, and triples with every
    `text_c` of the batch besides; with numbers as labels (similarity scores) by the order of their cosines.

    options: scored (there are numbers), pool (how token vectors become one: mean, cls or max).
    """

    name: ClassVar[str] = "embed"
    head: ClassVar[str] = ""

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[TextRow]:
        """Pairs; scored where the file has numbers as labels."""
        rows = list(
            read_rows(
                path, text=reading.text, text_b=reading.text_b, label=reading.label,
                labelled="maybe" if labelled else False, number=True, encoding=reading.encoding,
            )
        )  # fmt: skip
        if labelled:
            bare = [row for row in rows if row.label is None]
            if 0 < len(bare) < len(rows):
                raise UserError(
                    f"{path}, line {bare[0].line}: there is no score in this row, as in {len(bare)} of {len(rows)}. "
                    "Give every row its score, or none: then the pairs are taken to belong together."
                )
            self.options.setdefault("scored", not bare)
        return rows

    def wrap(self, inputs: Sequence[Any], first: int = 1) -> list[TextRow]:
        """Pairs of texts."""
        return [_row(one, number, True) for number, one in enumerate(inputs, first)]

    def learn(self, examples: Sequence[TextRow]) -> None:
        """Whether the pairs are scored. The batch is compared as a whole."""
        self.options.setdefault("scored", all(row.label is not None for row in examples))
        self.options["whole_batch"] = True

    def outputs(self) -> int:
        """No head."""
        return 0

    def encode(self, examples: Sequence[TextRow], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Two or three texts, each by itself; a long one is cut to its first window, and that is counted."""
        how = Windows(windows.limit, "error" if windows.on_long == "error" else "truncate")
        first = encode_rows(tokenizer, [row.text for row in examples], None, how)
        second = encode_rows(tokenizer, [row.text_b or "" for row in examples], None, how)
        others = [n for n, row in enumerate(examples) if row.text_c is not None and not self.options.get("scored")]
        third = encode_rows(tokenizer, [row.text_c or "" for row in examples], None, how) if others else []
        items = [
            Item(row, a.rows + b.rows, a.tokens + b.tokens, a.cut + b.cut) for row, a, b in zip(examples, first, second)
        ]
        for n in others:
            c = third[n]
            items[n].rows = items[n].rows + c.rows
            items[n].tokens += c.tokens
            items[n].cut += c.cut
        return items

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Scores, or the pair's own number; and which row is an item's first text, which are third texts."""
        starts = np.cumsum([0, *(len(item.rows) for item in items)])
        thirds = [start + 2 for start, item in zip(starts.tolist(), items) if len(item.rows) > 2]
        rows = {"first": torch.from_numpy(starts[:-1]), "third": torch.tensor(thirds, dtype=torch.long)}
        if self.options.get("scored"):
            return {"target": torch.tensor([float(item.example.label) for item in items]), **rows}
        return {"target": torch.arange(len(items)), **rows}

    def vectors(self, encoded: Encoded) -> Tensor:
        """Pooled vectors of length one, in the caller's order: (rows, width)."""
        pooled = first_vectors(encoded, POOLS[self.options.get("pool", "mean")])
        return F.normalize(encoded.batch.restore(pooled).float(), dim=-1)

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """Contrast within the batch, or (scored) every pair of pairs whose cosines are in the wrong order (CoSENT)."""
        vectors = self.vectors(encoded)
        first, third, target = (encoded.batch.extra[name] for name in ("first", "third", "target"))
        left, right = vectors[first], vectors[first + 1]
        if not self.options.get("scored"):
            forth = left @ torch.cat([right, vectors[third]]).t() * SCALE
            back = right @ left.t() * SCALE
            losses = [F.cross_entropy(table, target, reduction="sum") for table in (forth, back)]
            return torch.stack(losses).mean()
        cosines = (left * right).sum(-1) * SCALE
        gaps = cosines[:, None] - cosines[None, :]
        wrong = gaps[target[:, None] < target[None, :]]
        return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), 0) * len(target)

    def answers(self, model: Model, encoded: Encoded, items: Sequence[Item]) -> list[np.ndarray]:
        """Both vectors of each pair: (2, width). A triple's third text is for learning alone."""
        vectors = self.vectors(encoded).cpu().numpy()
        starts = np.cumsum([0, *(len(item.rows) for item in items[:-1])])
        return [vectors[start : start + 2] for start in starts]

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
        if all(row.label is not None for row in examples):
            return agreement, [row.label for row in examples], [p["similarity"] for p in predictions], {}
        left, right = (np.stack([p["vectors"][side] for p in predictions]) for side in (0, 1))
        found = [int(n) for n in (left @ right.T).argmax(1)]
        return metrics.choice, list(range(len(examples))), found, {}


def agreement(gold: Sequence[float], said: Sequence[float]) -> Scores:
    """Correlations alone: the distance of a cosine from a score of another scale says nothing."""
    scores = metrics.regression(gold, said)
    for name in ("mae", "rmse"):
        scores.pop(name)
    return scores
