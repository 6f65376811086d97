"""Sentence embeddings: texts that belong together come to lie together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertkit import metrics
from bertkit.data.examples import TextRow
from bertkit.data.readers import columns_of, read_rows
from bertkit.data.readers.rows import asks_for_pairs
from bertkit.data.windows import Windows, encode_rows
from bertkit.errors import UserError
from bertkit.machine import F, torch
from bertkit.metrics import Scores
from bertkit.model.engine import Engine, Wanted
from bertkit.model.pooling import pooled, unit
from bertkit.tasks.base import Item, Labelled, Prediction, Reading, Task, text_row
from bertkit.tasks.regress import Regress
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.model.encoder import Encoded
    from bertkit.model.heads import Model

POOLS = {"mean": "mean", "cls": "first", "max": "max", "lasttoken": "last"}  # sentence-transformers' name → ours
POOLED_BY_ENGINES = ("mean", "cls", "max")
FEWEST_CENTRED = 1000  # texts of a teacher: the mean of fewer would say more about them than about the teacher
BLOCK = 1024  # texts that are compared with all second texts at once
SCALE = 20.0  # cosines are multiplied by this before the softmax, as in SBERT's ranking loss


@dataclass
class Embed(Task):
    """Sentence vectors.

    Pairs (text, text_b) without labels learn by contrast with the batch's other pairs, and triples with every `text_c`
    of the batch besides; with numbers as labels (similarity scores) by the order of their cosines.

    options: scored (there are numbers), pool (how token vectors become one: mean, cls, max or lasttoken),
    matryoshka (widths, comma-separated: the first so many numbers of a vector learn to be one themselves; Kusupati et
    al., 2022).
    """

    name: ClassVar[str] = "embed"
    head: ClassVar[str] = ""
    accepted_settings: ClassVar[tuple[str, ...]] = ("teacher", "matryoshka", "negatives")
    stored_settings: ClassVar[tuple[str, ...]] = ("matryoshka",)
    makes_vectors: ClassVar[bool] = True
    abilities: ClassVar[tuple[str, ...]] = ("rerank",)
    sample: ClassVar[str] = "similar_dev.csv"
    not_distilled: ClassVar[str] = (
        "Sentence vectors are taught by `bertkit finetune embed --teacher MODEL --train texts.txt`."
    )

    _skip: int = 0  # tokens of the prompt that vectors leave out

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[TextRow]:
        """Embedding is learnt from pairs; scored where the file has numbers as labels."""
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

    def from_inputs(self, inputs: Sequence[Any], first: int = 1) -> list[TextRow]:
        """Embedding as a task takes pairs of texts."""
        return [text_row(given, number, True) for number, given in enumerate(inputs, first)]

    def fit_labels(self, examples: Sequence[TextRow]) -> None:
        """Learn whether the pairs to embed are scored. The batch is compared as a whole."""
        self.options.setdefault("scored", all(row.label is not None for row in examples))
        self.options["whole_batch"] = True

    def outputs(self) -> int:
        """Embedding has no head."""
        return 0

    def encode(self, examples: Sequence[TextRow], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Encode two or three texts to embed, each by itself; a long one is cut to its first window, and counted."""
        how = Windows(windows.limit, "error" if windows.on_long == "error" else "truncate")
        prompt = self.pooling.prompt() if self.pooling else ""
        self._skip = tokenizer.prompt_tokens(prompt) if self.pooling and not self.pooling.include_prompt else 0
        first = encode_rows(tokenizer, [prompt + row.text for row in examples], None, how)
        second = encode_rows(tokenizer, [prompt + (row.text_b or "") for row in examples], None, how)
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
        """Scores of embedded pairs, or the pair's number; which row is an item's first text, which are third ones."""
        starts = np.cumsum([0, *(len(item.rows) for item in items)])
        thirds = [start + 2 for start, item in zip(starts.tolist(), items) if len(item.rows) > 2]
        rows = {"first": torch.from_numpy(starts[:-1]), "third": torch.tensor(thirds, dtype=torch.long)}
        rows |= _same_texts([item.example for item in items])
        if self.options.get("scored"):
            return {"target": torch.tensor([float(item.example.label) for item in items]), **rows}
        return {"target": torch.arange(len(items)), **rows}

    def vectors(self, encoded: Encoded) -> Tensor:
        """Embeddings: pooled vectors of length one, in the caller's order: (rows, width)."""
        from bertkit.model.heads import first_vectors

        vectors = first_vectors(encoded, POOLS[self.options.get("pool", "mean")])
        return F.normalize(encoded.batch.restore(vectors).float(), dim=-1)

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """Embedding's loss: contrast within the batch, or (scored) pairs of pairs in the wrong order (CoSENT)."""
        vectors = self.vectors(encoded)
        widths = [*widths_of(self.options.get("matryoshka", ""), vectors.shape[1]), vectors.shape[1]]
        losses = [self._contrast(F.normalize(vectors[:, :width], dim=-1), encoded) for width in widths]
        return torch.stack(losses).mean()

    def _contrast(self, vectors: Tensor, encoded: Encoded) -> Tensor:
        """The loss of sentence embeddings: partners must be nearer than the batch's other texts; CoSENT on scores."""
        extra = encoded.batch.extra
        first, third, target = (extra[name] for name in ("first", "third", "target"))
        left, right = vectors[first], vectors[first + 1]
        if not self.options.get("scored"):
            forth = (left @ torch.cat([right, vectors[third]]).t() * SCALE).masked_fill(extra["right"], -1e4)
            back = (right @ left.t() * SCALE).masked_fill(extra["right"][:, : len(left)].t(), -1e4)
            losses = [F.cross_entropy(table, target, reduction="sum") for table in (forth, back)]
            return torch.stack(losses).mean()
        cosines = (left * right).sum(-1) * SCALE
        gaps = cosines[:, None] - cosines[None, :]
        wrong = gaps[target[:, None] < target[None, :]]
        return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), 0) * len(target)

    @property
    def _pool(self) -> str:
        """How an embedding is pooled: as the folder says, else as it learnt."""
        learnt = str(self.options.get("pool", "mean"))
        return self.pooling.mode if self.pooling and (self.pooling.steps or self.pooling.mode not in POOLS) else learnt

    def wanted(self, items: Sequence[Item]) -> Wanted:
        """What is wanted to embed a text: a vector, or the tokens' where an engine does not pool as the folder does."""
        return Wanted(pool=self._pool if self._pool in POOLED_BY_ENGINES and not self._skip else "none")

    def answers(self, engine: Engine, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[np.ndarray]:
        """Embeddings of each pair, of length one: (2, width). A triple's third text is for learning alone."""
        return [vectors[:2] for vectors in self._by_item(outputs, items)]

    def _by_item(self, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[np.ndarray]:
        """Embeddings of length one, with everything a loaded folder does to them: (texts, width) per item."""
        rows = [row if row.ndim == 1 else pooled(row, self._pool, self._skip) for row in outputs]
        stacked = np.stack(rows) if rows else np.zeros((0, 1), np.float32)
        vectors = self.pooling.finish(stacked, normalize=True) if self.pooling else unit(stacked)
        return np.split(vectors, np.cumsum([len(item.rows) for item in items])[:-1])

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """Embeddings of a pair as {similarity}, with tokens seen and cut."""
        similarity = float(output[0] @ output[1])
        return {"similarity": similarity, "vectors": output, "tokens": item.tokens, "cut": item.cut}

    def metric_inputs(
        self, examples: Sequence[TextRow], predictions: Sequence[Prediction]
    ) -> tuple[Any, list, list, dict]:
        """Embeddings: Spearman where there are scores, else the share of partners found among all second texts."""
        if all(row.label is not None for row in examples):
            return agreement, [row.label for row in examples], [p["similarity"] for p in predictions], {}
        left, right = (np.stack([p["vectors"][side] for p in predictions]) for side in (0, 1))
        return metrics.choice, list(range(len(examples))), _partners(examples, left, right), {}

    def answer_in(self, prediction: Prediction) -> np.ndarray:
        """The embeddings themselves: (texts, width)."""
        vectors: np.ndarray = prediction["vectors"]
        return vectors


def _same_texts(rows: Sequence[TextRow]) -> dict[str, Tensor]:
    """right: whether another row's text_b or a text_c is right for a row too: (rows, rows + rows with a text_c).

    It is if the row, or another one of the batch with the same text, has it as its text_b. Contrast leaves it out.
    """
    columns = [row.text_b for row in rows] + [row.text_c for row in rows if row.text_c is not None]
    known = _rights_of(rows)
    right = torch.tensor([[column in known[row.text] for column in columns] for row in rows], dtype=torch.bool)
    right[range(len(rows)), range(len(rows))] = False
    return {"right": right}


def _partners(rows: Sequence[TextRow], left: np.ndarray, right: np.ndarray) -> list[int]:
    """The row of the nearest text_b for each embedded text: its own row if that text_b is right for the text."""
    known = _rights_of(rows)
    blocks = (left[start : start + BLOCK] @ right.T for start in range(0, len(left), BLOCK))
    nearest = (int(n) for block in blocks for n in block.argmax(1))
    return [own if rows[n].text_b in known[row.text] else n for own, (row, n) in enumerate(zip(rows, nearest))]


def _rights_of(rows: Sequence[TextRow]) -> dict[str, set[str | None]]:
    """Text → every text_b that belongs to it in some row: all of them are embedded as right."""
    known: dict[str, set[str | None]] = {}
    for row in rows:
        known.setdefault(row.text, set()).add(row.text_b)
    return known


def widths_of(given: str, width: int) -> list[int]:
    """The shorter widths that embeddings of `width` numbers are trained at too."""
    parts = [part.strip() for part in given.split(",") if part.strip()]
    if not all(part.isdecimal() and 0 < int(part) < width for part in parts):
        raise UserError(
            f"--matryoshka is {given!r}: give whole numbers between 1 and {width - 1}, comma-separated, e.g. "
            f"{width // 4},{width // 2}."
        )
    return sorted(map(int, parts))


def agreement(gold: Sequence[float], predicted: Sequence[float]) -> Scores:
    """How well cosines of embeddings agree with scores: correlations alone.

    The distance of a cosine from a score of another scale says nothing.
    """
    scores = metrics.regression(gold, predicted)
    for name in ("mae", "rmse"):
        scores.pop(name)
    return scores


# ---- Sentence embeddings from a teacher: a small encoder learns which texts a better one finds alike. No labels
# needed.

Teacher = Callable[[list[str]], np.ndarray]  # texts → (texts, width)
NEIGHBOURS = 16  # held-out texts are judged by their cosines with this many others


@dataclass
class Taught(Embed):
    """Sentence vectors from a teacher: every text of a batch learns its cosines with all the others.

    The teacher's width may differ.

    Rows are texts, or pairs whose texts count one by one; a dev file may also hold scored pairs.
    """

    teacher: Teacher | None = None
    _known: dict[str, np.ndarray] = field(default_factory=dict)
    _centre: np.ndarray | None = None

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[TextRow]:
        """Read what a teacher embeds: pairs where the file has two columns of texts, else texts."""
        asked = (reading.text, reading.text_b, reading.label)
        columns = columns_of(path, asked, reading.encoding)
        pairs = asks_for_pairs(columns, reading.text_b)
        return list(
            read_rows(
                path, text=reading.text, text_b=reading.text_b if pairs else None, label=reading.label,
                labelled="maybe" if pairs else False, number=True, encoding=reading.encoding,
            )
        )  # fmt: skip

    def fit_labels(self, examples: Sequence[TextRow]) -> None:
        """Taught embeddings have no labels to learn: the batch is compared as a whole."""
        self.options["whole_batch"] = True

    def ask(self, examples: Sequence[TextRow]) -> None:
        """Ask the teacher for the vectors of new texts and keep them, centred on those of the first call.

        The cosines of many encoders crowd together (gte-small: 0.74 ± 0.05 for unrelated texts), and their softmax
        would be nearly flat; centred, they spread (0.10 ± 0.14) in almost the same order.
        """
        new = [text for text in dict.fromkeys(t for row in examples for t in _texts(row)) if text not in self._known]
        if new and self.teacher is not None:
            vectors = self.teacher(new)
            if self._centre is None:
                self._centre = vectors.mean(0) if len(vectors) >= FEWEST_CENTRED else np.zeros(vectors.shape[1])
            vectors = vectors - self._centre
            lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            self._known.update(zip(new, (vectors / lengths).astype(np.float16)))

    def check(self, examples: Sequence[TextRow], where: str) -> None:
        """Refuse too few unscored texts for taught embeddings: they are judged by their cosines with each other."""
        if examples and not _scored(examples) and sum(len(_texts(row)) for row in examples) < 3:
            raise UserError(
                f"{where}: too few texts are held out to evaluate on. Give more rows, or a --dev file of scored pairs."
            )

    def encode(self, examples: Sequence[TextRow], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Encode texts that a teacher embeds, each by itself, with its vector; a long one is cut, and counted."""
        self.ask(examples)
        how = Windows(windows.limit, "error" if windows.on_long == "error" else "truncate")
        encoded = iter(encode_rows(tokenizer, [text for row in examples for text in _texts(row)], None, how))
        items = []
        for row in examples:
            parts = [next(encoded) for _ in _texts(row)]
            rows = [window for part in parts for window in part.rows]
            items.append(Item(row, rows, sum(part.tokens for part in parts), sum(part.cut for part in parts)))
        return items

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """The teacher's vector of every embedded text."""
        vectors = [self._known[text] for item in items for text in _texts(item.example)]
        return {"target": torch.from_numpy(np.stack(vectors)).float()}

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """Taught embeddings' loss: each text's likeness to the others as a distribution, student against teacher."""
        wanted, own = encoded.batch.extra["target"], self.vectors(encoded)
        # A text's cosine with itself is 1 for both, and would drown the others.
        itself = torch.eye(len(own), dtype=torch.bool, device=own.device)
        teacher, student = (
            (table @ table.t() * SCALE).masked_fill(itself, -1e4).log_softmax(-1) for table in (wanted, own)
        )
        return F.kl_div(student, teacher, reduction="sum", log_target=True)

    def answers(self, engine: Engine, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[np.ndarray]:
        """Taught embeddings of each item's texts: (texts, width)."""
        return self._by_item(outputs, items)

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """Taught embeddings as a pair's {similarity}; the vectors of both or of one text."""
        prediction = super().decode(item, output) if len(output) > 1 else {"tokens": item.tokens, "cut": item.cut}
        return {**prediction, "vectors": output}

    def metric_inputs(
        self, examples: Sequence[TextRow], predictions: Sequence[Prediction]
    ) -> tuple[Any, list, list, dict]:
        """Taught embeddings: Spearman with the pairs' scores if any, else with the teacher's cosines."""
        if _scored(examples):
            return super().metric_inputs(examples, predictions)
        self.ask(examples)
        gold = np.stack([self._known[text] for row in examples for text in _texts(row)]).astype(np.float32)
        predicted = np.concatenate([p["vectors"] for p in predictions])
        return agreement, _cosines(gold), _cosines(predicted), {}

    def with_cosines(self, examples: Sequence[TextRow]) -> list[TextRow]:
        """The pairs among the rows, each with the teacher's cosine of its two texts as its label."""
        self.ask(examples)
        pairs = [row for row in examples if row.text_b is not None]
        return [
            replace(row, label=float(self._known[row.text].astype(np.float32) @ self._known[row.text_b]))
            for row in pairs if row.text_b is not None
        ]  # fmt: skip


@dataclass
class Likeness(Regress):
    """How alike a teacher finds two texts: its cosine of their vectors, learned by a model that reads both in one row.

    Texts embedded by themselves never meet in the model; tasks on pairs need tokens that attend to the other text.
    """

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """The teacher's cosines of the pairs, standardised."""
        return {"likeness": super().targets(items)["target"]}


def _scored(examples: Sequence[TextRow]) -> bool:
    return bool(examples) and all(row.text_b is not None and row.label is not None for row in examples)


def _texts(row: TextRow) -> list[str]:
    return [row.text] if row.text_b is None else [row.text, row.text_b]


def _cosines(vectors: np.ndarray) -> list[float]:
    """Cosines of every embedded text with some of those that follow it."""
    shifts = range(1, min(NEIGHBOURS, len(vectors) - 1) + 1)
    return [float(x) for by in shifts for x in (vectors * np.roll(vectors, -by, 0)).sum(-1)]
