"""Sentence embeddings from a teacher: a small encoder learns which texts a better one finds alike. No labels needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.examples import TextRow
from bertkit.data.readers import columns_of, read_rows
from bertkit.data.readers.read_columns import asks_for_pairs
from bertkit.data.windows import Windows, encode_rows
from bertkit.errors import UserError
from bertkit.model.encoder import Encoded
from bertkit.model.heads import Model
from bertkit.tasks.base import Item, Labelled, Prediction, Reading
from bertkit.tasks.embed import SCALE, Embed, agreement
from bertkit.text.tokenizer import Tokenizer

Teacher = Callable[[list[str]], np.ndarray]  # texts → (texts, width)
NEIGHBOURS = 16  # held-out texts are judged by their cosines with this many others


@dataclass
class Taught(Embed):
    """Every text of a batch learns its cosines with all the others from the teacher's (whose width may differ).

    Rows are texts, or pairs whose texts count one by one; a dev file may also hold scored pairs.
    """

    teacher: Teacher | None = None
    _known: dict[str, np.ndarray] = field(default_factory=dict)

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[TextRow]:
        """Pairs where the file has two columns of texts, else texts; a pair's score is for judging alone."""
        asked = (reading.text, reading.text_b, reading.label)
        columns = columns_of(path, asked, reading.encoding)
        pairs = asks_for_pairs(columns, reading.text_b)
        return list(
            read_rows(
                path, text=reading.text, text_b=reading.text_b if pairs else None, label=reading.label,
                labelled="maybe" if pairs else False, number=True, encoding=reading.encoding,
            )
        )  # fmt: skip

    def learn(self, examples: Sequence[TextRow]) -> None:
        """The batch is compared as a whole."""
        self.options["whole_batch"] = True

    def ask(self, examples: Sequence[TextRow]) -> None:
        """Keep the teacher's vectors of texts it was not asked about before."""
        new = [text for text in dict.fromkeys(t for row in examples for t in _texts(row)) if text not in self._known]
        if new and self.teacher is not None:
            vectors = self.teacher(new)
            lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            self._known.update(zip(new, (vectors / lengths).astype(np.float16)))

    def check(self, examples: Sequence[TextRow], where: str) -> None:
        """Unscored texts are judged by their cosines with each other: one or two say nothing."""
        if examples and not _scored(examples) and sum(len(_texts(row)) for row in examples) < 3:
            raise UserError(
                f"{where}: too few texts are held out to judge by. Give more rows, or a --dev file of scored pairs."
            )

    def encode(self, examples: Sequence[TextRow], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Each text by itself, and what the teacher says of it; a long one is cut to its first window, and counted."""
        self.ask(examples)
        how = Windows(windows.limit, "error" if windows.on_long == "error" else "truncate")
        found = iter(encode_rows(tokenizer, [text for row in examples for text in _texts(row)], None, how))
        items = []
        for row in examples:
            parts = [next(found) for _ in _texts(row)]
            rows = [one for part in parts for one in part.rows]
            items.append(Item(row, rows, sum(part.tokens for part in parts), sum(part.cut for part in parts)))
        return items

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """The teacher's vector of every text."""
        vectors = [self._known[text] for item in items for text in _texts(item.example)]
        return {"target": torch.from_numpy(np.stack(vectors)).float()}

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """Each text's likeness to the others as a distribution: the student's against the teacher's."""
        wanted, own = encoded.batch.extra["target"], self.vectors(encoded)
        # A text's cosine with itself is 1 for both, and would drown the others.
        itself = torch.eye(len(own), dtype=torch.bool, device=own.device)
        teacher, student = (
            (table @ table.t() * SCALE).masked_fill(itself, -1e4).log_softmax(-1) for table in (wanted, own)
        )
        return F.kl_div(student, teacher, reduction="sum", log_target=True)

    def answers(self, model: Model, encoded: Encoded, items: Sequence[Item]) -> list[np.ndarray]:
        """The vectors of each item's texts: (texts, width)."""
        vectors = self.vectors(encoded).cpu().numpy()
        ends = np.cumsum([len(item.rows) for item in items])
        return [vectors[end - len(item.rows) : end] for end, item in zip(ends, items)]

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """A pair's {similarity}; the vectors of both or of one text."""
        found = super().decode(item, output) if len(output) > 1 else {"tokens": item.tokens, "cut": item.cut}
        return {**found, "vectors": output}

    def judged(self, examples: Sequence[TextRow], predictions: Sequence[Prediction]) -> tuple[Any, list, list, dict]:
        """Spearman with the pairs' scores where there are any, else with the teacher's cosines among these texts."""
        if _scored(examples):
            return super().judged(examples, predictions)
        self.ask(examples)
        gold = np.stack([self._known[text] for row in examples for text in _texts(row)]).astype(np.float32)
        said = np.concatenate([p["vectors"] for p in predictions])
        return agreement, _cosines(gold), _cosines(said), {}


def _scored(examples: Sequence[TextRow]) -> bool:
    return bool(examples) and all(row.text_b is not None and row.label is not None for row in examples)


def _texts(row: TextRow) -> list[str]:
    return [row.text] if row.text_b is None else [row.text, row.text_b]


def _cosines(vectors: np.ndarray) -> list[float]:
    """Of every text with some of those that follow it."""
    shifts = range(1, min(NEIGHBOURS, len(vectors) - 1) + 1)
    return [float(x) for by in shifts for x in (vectors * np.roll(vectors, -by, 0)).sum(-1)]
