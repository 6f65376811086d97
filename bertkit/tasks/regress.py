"""A number for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertkit import metrics
from bertkit.data.examples import TextRow
from bertkit.data.readers import read_rows
from bertkit.data.readers.rows import asks_for_pairs, columns_of
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.machine import torch
from bertkit.model.engine import Engine
from bertkit.notify import note
from bertkit.tasks.base import Item, Labelled, Prediction, Reading, Task, text_row
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.model.encoder import Encoded
    from bertkit.model.heads import Model


@dataclass
class Regress(Task):
    """Regression: a number for a text or a pair. options: paired, symmetric, mean and spread of the training numbers.

    The head learns standardised numbers, which any learning rate suits; `finalize` brings it to the user's scale.
    """

    name: ClassVar[str] = "regress"
    output_names: ClassVar[tuple[str, ...]] = ("value",)
    accepted_settings: ClassVar[tuple[str, ...]] = ("symmetric", "merge")
    stored_settings: ClassVar[tuple[str, ...]] = ("symmetric",)
    answers_vary: ClassVar[bool] = True
    abilities: ClassVar[tuple[str, ...]] = ("predict", "rerank")
    served_as: ClassVar[str] = "reranker"
    merge: str = "mean"

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[TextRow]:
        """Regression reads rows of a table; pairs where the file has a second text."""
        return list(self._rows(path, reading, labelled))

    def stream(self, path: str | Path, reading: Reading) -> Iterator[TextRow]:
        """Regression reads rows of a table, one at a time."""
        yield from self._rows(path, reading, labelled=False)

    def _rows(self, path: str | Path, reading: Reading, labelled: Labelled) -> Iterator[TextRow]:
        """The rows of a file with numbers as labels."""
        if "paired" not in self.options:
            names = columns_of(path, (reading.text, reading.text_b, reading.label), reading.encoding)
            self.options["paired"] = asks_for_pairs(names, reading.text_b)
        return read_rows(
            path, text=reading.text, text_b=reading.text_b if self.options["paired"] else None, label=reading.label,
            labelled=labelled, number=True, encoding=reading.encoding,
        )  # fmt: skip

    def from_inputs(self, inputs: Sequence[Any], first: int = 1) -> list[TextRow]:
        """Regression takes texts or pairs of texts."""
        return [text_row(given, number, self.reads_pairs) for number, given in enumerate(inputs, first)]

    def fit_labels(self, examples: Sequence[TextRow]) -> None:
        """Learn the mean and spread of a regression's numbers, and whether there are second texts."""
        self.options.setdefault("paired", any(row.text_b is not None for row in examples))
        if self.options.get("symmetric") and not self.options["paired"]:
            raise UserError("--symmetric is for pairs of texts, and the rows have one text each. Leave it out.")
        values = np.array([row.label for row in examples], dtype=np.float64)
        if len(values) > 1 and not values.std():
            raise UserError(
                f"training data: every row has the same number ({values[0]:g}), so there is nothing to learn. "
                "Add rows with other numbers, or name the right column with --label."
            )
        self.options |= {"mean": float(values.mean()), "spread": float(values.std()) or 1.0}

    def finalize(self, model: Model) -> None:
        """Fold the scale of a regression into the head's last map, so that transformers reads the same numbers."""
        out = model.head("text").out
        assert out is not None
        mean = self.options["mean"]
        with torch.no_grad():
            for parameter in out.parameters():
                parameter.mul_(self.options["spread"])
            if out.bias is not None:
                out.bias.add_(mean)
        self.options |= {"mean": 0.0 if out.bias is not None else mean, "spread": 1.0}
        if self.options["mean"]:
            note(f"GPT's head has no constant: bertkit adds the mean {mean:g} itself, transformers leaves it out.")

    def outputs(self) -> int:
        """Regression's head gives one number."""
        return 1

    def encode(self, examples: Sequence[TextRow], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Encode what is regressed: one text, or two side by side."""
        pairs = [row.text_b or "" for row in examples] if self.options.get("paired") else None
        encoded = self.encode_pairs(tokenizer, [row.text for row in examples], pairs, windows)
        return [Item.of(row, rows) for row, rows in zip(examples, encoded)]

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """A regression's numbers, standardised."""
        values = torch.tensor([float(item.example.label) for item in items])
        return {"target": (values - self.options["mean"]) / self.options["spread"]}

    def logits(self, model: Model, encoded: Encoded, items: int) -> Tensor:
        """Outputs of a regression: (items, 1), standardised while it learns."""
        batch = encoded.batch
        return self.merged(batch.restore(model.ask("text", encoded)).float(), batch.extra["owner"], items)

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """Regression's loss: squared error."""
        target = encoded.batch.extra["target"]
        return (self.logits(model, encoded, len(target))[:, 0] - target).square().sum()

    def answers(self, engine: Engine, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[np.ndarray]:
        """A regression's number of each item, in the user's scale: (1,)."""
        spread, mean = np.float32(self.options.get("spread", 1.0)), np.float32(self.options.get("mean", 0.0))
        return list(self.merged_rows(outputs, items) * spread + mean)

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """A regression's prediction: {value}, with tokens seen and cut."""
        return {"value": float(output[0]), "tokens": item.tokens, "cut": item.cut}

    def metric_inputs(
        self, examples: Sequence[TextRow], predictions: Sequence[Prediction]
    ) -> tuple[Any, list, list, dict]:
        """Regression is measured by correlations and errors."""
        return metrics.regression, [float(row.label) for row in examples], [p["value"] for p in predictions], {}  # type: ignore[arg-type]

    def answer_in(self, prediction: Prediction) -> float:
        """The number a regression predicted."""
        return float(prediction["value"])

    def mistake(self, example: TextRow, prediction: Prediction) -> dict[str, Any]:
        """A regression's mistake: every row is off by something; score: by how much."""
        gap = abs(prediction["value"] - float(example.label))  # type: ignore[arg-type]
        wrong = {"gold": example.label, "predicted": round(prediction["value"], 3), "score": gap}
        return {**self.shown(example), **wrong}

    @classmethod
    def guessed(cls, head: str, labels: tuple[str, ...], config: Mapping[str, Any]) -> dict[str, Any] | None:
        """A folder is one of regression if it has a text head that gives one number."""
        return {} if head == cls.head and len(labels) == 1 else None

    @property
    def problem_type(self) -> str:
        """What config.json calls regression."""
        return "regression"

    @property
    def answer_kind(self) -> str:
        """Regression is distilled as a number."""
        return "number"

    def as_logits(self, output: np.ndarray) -> np.ndarray:
        """A teacher's number standardised, as the student of a regression learns."""
        scaled: np.ndarray = ((output - self.options["mean"]) / self.options["spread"]).astype(np.float32)
        return scaled

    @property
    def reads_pairs(self) -> bool:
        """Whether a regression reads two texts, by its options."""
        return bool(self.options.get("paired"))

    def for_pairs(self) -> Task | None:
        """A regression of the same number for two texts."""
        return replace(self, options=self.options | {"paired": True})

    def label_scores(self, output: np.ndarray, prediction: Prediction, raw: bool) -> dict[str, float]:
        """A regression as TEI tells it: one label, its score the number."""
        return {next(iter(self.labels), "value"): prediction["value"]}


# ---- A cross-encoder for search: how well a passage answers a question.

DRAWS = 1000  # passages drawn for a question until one is wrong


@dataclass
class Rank(Regress):
    """A logit for a question and a passage, learned from pairs that belong together (1) and pairs that do not (0).

    Rows without labels belong together; their `text_c` and the passage of another row do not. In labelled rows, the
    `text_c` alone is added as wrong. What is saved is a model with one number, which sentence-transformers opens as a
    CrossEncoder.
    """

    def given(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[TextRow]:
        """The rows of the task `rank` as the file has them: labelled 0 and 1, or all without a label."""
        rows = list(
            read_rows(
                path, text=reading.text, text_b=reading.text_b, label=reading.label,
                labelled="maybe" if labelled else False, number=True, encoding=reading.encoding,
            )
        )  # fmt: skip
        bare = [row for row in rows if row.label is None]
        if 0 < len(bare) < len(rows):
            raise UserError(
                f"{path}, line {bare[0].line}: there is no label in this row, as in {len(bare)} of {len(rows)}. Give "
                "every row 0 or 1, or none: then the pairs are taken to belong together."
            )
        if wrong := next((row for row in rows if row.label not in (0, 1, None)), None):
            raise UserError(f"{path}, line {wrong.line}: the label is {wrong.label:g}; --rank needs 0 or 1.")
        return rows

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[TextRow]:
        """Ranking, a regression of relevance, reads pairs with labels 0 and 1; unlabelled, it makes wrong ones too."""
        self.options["paired"] = True
        rows = self.given(path, reading, labelled)
        if not labelled:
            return rows
        if all(row.label is not None for row in rows):
            wrongs = [replace(row, text_b=row.text_c, label=0.0, text_c=None) for row in rows if row.text_c is not None]
            return [replace(row, text_c=None) for row in rows] + wrongs
        if len({row.text_b for row in rows}) < 2:
            raise UserError(f"{path}: all passages are the same, so there is nothing to learn. Give others too.")
        random = np.random.default_rng(len(rows))
        rights: dict[str, set[str | None]] = {}
        for row in rows:
            rights.setdefault(row.text, set()).add(row.text_b)
        pairs = []
        for row in rows:
            drawn = (rows[int(random.integers(len(rows)))].text_b for _ in range(DRAWS))
            other = next((text for text in drawn if text not in rights[row.text]), None)
            pairs.append(replace(row, label=1.0, text_c=None))
            # Most passages that a search proposes are not hard: both kinds are learned.
            negatives = dict.fromkeys(text for text in (row.text_c, other) if text is not None)
            pairs += [replace(row, text_b=text, label=0.0, text_c=None) for text in negatives]
        return pairs

    def fit_labels(self, examples: Sequence[TextRow]) -> None:
        """Ranking is a regression of relevance: labels are probabilities, and there is nothing to scale."""
        self.options |= {"paired": True, "mean": 0.0, "spread": 1.0}

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """The loss of ranking, a regression of relevance: cross-entropy of the logit."""
        target = encoded.batch.extra["target"]
        logits = self.logits(model, encoded, len(target))[:, 0]
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
