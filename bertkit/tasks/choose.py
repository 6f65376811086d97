"""The right one of several continuations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertkit import metrics
from bertkit.data.batch import Batch
from bertkit.data.examples import Choice
from bertkit.data.readers import read_choices
from bertkit.data.windows import Row, Windows, rows_of
from bertkit.errors import UserError
from bertkit.machine import F, torch
from bertkit.metrics.calibration import softmax
from bertkit.model.engine import Engine
from bertkit.tasks.base import Item, Labelled, Prediction, Reading, Task
from bertkit.text.checks import of_row
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.model.encoder import Encoded
    from bertkit.model.heads import Model

NEVER = -1e4  # the score of a choice that is not there


@dataclass
class Choose(Task):
    """Multiple choice: each choice is a second text beside the question; the scores of one question compete.

    A long question cannot be read in windows here, because its choices stand at its end: it is cut, and counted.
    """

    name: ClassVar[str] = "choose"
    head: ClassVar[str] = "choice"
    example_type: ClassVar[type] = Choice
    scores_choices: ClassVar[bool] = True
    abilities: ClassVar[tuple[str, ...]] = ("choose",)
    sample: ClassVar[str] = "choices_dev.jsonl"

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[Choice]:
        """Multiple choice reads JSON lines."""
        return list(read_choices(path, labelled=labelled, encoding=reading.encoding))

    def from_inputs(self, inputs: Sequence[Any], first: int = 1) -> list[Choice]:
        """Multiple choice takes dicts with text and choices."""
        examples = []
        for number, given in enumerate(inputs, first):
            if isinstance(given, dict) and isinstance(given.get("choices"), (list, tuple)):
                given = Choice(
                    str(given.get("text", "")), tuple(map(str, given["choices"])), given.get("label"), number
                )
            if not isinstance(given, Choice):
                raise UserError(f"Input {number} is {given!r}; it must be a dict with 'text' and 'choices'.")
            if not given.choices:
                raise UserError(f"Input {number} has no choices. Give at least one.")
            examples.append(given)
        return examples

    def outputs(self) -> int:
        """Multiple choice's head gives one score a choice."""
        return 1

    def encode(self, examples: Sequence[Choice], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Encode a multiple choice: text and choice side by side, one row per choice."""
        how = Windows(windows.limit, "error" if windows.on_long == "error" else "truncate", windows.overlap)
        items = []
        for number, example in enumerate(examples):
            rows: list[Row] = []
            tokens = cut = 0
            with of_row(number):
                texts = [example.text] * len(example.choices)
                encodings = tokenizer.encode_batch(texts, list(example.choices))
            for encoding in encodings:
                encoded_choice = rows_of(tokenizer, encoding, how, number)
                rows += encoded_choice.rows
                tokens, cut = tokens + encoded_choice.tokens, cut + encoded_choice.cut
            items.append(Item(example, rows, tokens, cut))
        return items

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """The number of the right choice."""
        return {"target": torch.tensor([item.example.label for item in items])}

    def logits(self, model: Model, encoded: Encoded, items: int) -> Tensor:
        """Logits of the choices: (items, most choices); where a question has fewer, what no one would choose."""
        scores = encoded.batch.restore(model.ask("choice", encoded))[:, 0].float()
        parts = scores.split(torch.bincount(encoded.batch.extra["owner"], minlength=items).tolist())
        return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=NEVER)

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """Multiple choice's loss: cross-entropy among the choices of each question."""
        batch = encoded.batch
        scores = batch.restore(model.ask("choice", encoded))[:, 0].float()
        sizes = torch.bincount(batch.extra["owner"]).tolist()
        pairs = zip(scores.split(sizes), batch.extra["target"])
        return torch.stack([F.cross_entropy(part, wanted) for part, wanted in pairs]).sum()

    def answers(self, engine: Engine, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[np.ndarray]:
        """One score per choice: (choices,)."""
        rows = iter(outputs)
        return [np.concatenate([next(rows) for _ in item.rows]) for item in items]

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """A predicted choice: {choice, scores}, with tokens seen and cut."""
        scores = softmax(output).tolist()
        return {"choice": int(output.argmax()), "scores": scores, "tokens": item.tokens, "cut": item.cut}

    def metric_inputs(
        self, examples: Sequence[Choice], predictions: Sequence[Prediction]
    ) -> tuple[Any, list, list, dict]:
        """Multiple choice is measured by accuracy."""
        return metrics.choice, [example.label for example in examples], [p["choice"] for p in predictions], {}

    def key(self, example: Choice) -> tuple[Any, ...]:
        """What identifies a multiple-choice question: the text and its choices."""
        return (example.text, example.choices)

    def answer_in(self, prediction: Prediction) -> int:
        """The predicted choice's number."""
        return int(prediction["choice"])

    def shown(self, example: Choice) -> dict[str, Any]:
        """A multiple-choice question in a report: the text and its line."""
        return {"text": example.text, "line": example.line}

    def mistake(self, example: Choice, prediction: Prediction) -> dict[str, Any] | None:
        """A wrong choice: the surer, the worse."""
        if prediction["choice"] == example.label or example.label is None:
            return None
        picked, right = example.choices[prediction["choice"]], example.choices[example.label]
        return {**self.shown(example), "gold": right, "predicted": picked, "score": max(prediction["scores"])}

    @classmethod
    def guessed(cls, head: str, labels: tuple[str, ...], config: Mapping[str, Any]) -> dict[str, Any] | None:
        """A folder is one of multiple choice if it has a choice head."""
        return {} if head == cls.head else None

    @property
    def answer_kind(self) -> str:
        """Multiple choice is distilled as a distribution over the choices."""
        return "labels"

    def lessons(self, batch: Batch, taught: Sequence[np.ndarray], known: Sequence[bool]) -> dict[str, Tensor]:
        """A teacher's choices: questions with fewer are filled up as in `logits`."""
        rows = torch.nn.utils.rnn.pad_sequence(
            [torch.from_numpy(scores) for scores in taught], batch_first=True, padding_value=NEVER
        )
        return {"taught": rows, "known": torch.tensor(known)}
