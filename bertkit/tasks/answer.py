"""Answers cut out of a context: SQuAD 1.1 and 2.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bertkit import metrics
from bertkit.data.examples import Question
from bertkit.data.readers import read_questions
from bertkit.data.windows import Row, Windows, encode_rows
from bertkit.errors import UserError
from bertkit.files.open import kind_of
from bertkit.machine import F, torch
from bertkit.metrics.answers import answers_tallies
from bertkit.metrics.calibration import LEAST_ROWS, no_answer_threshold
from bertkit.model.engine import Engine
from bertkit.notify import note
from bertkit.tasks.base import Item, Labelled, Prediction, Reading, Task
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.model.encoder import Encoded
    from bertkit.model.heads import Model

LONGEST = 30  # tokens of an answer, as in BERT's code
BEST = 20  # starts and ends looked at
IGNORED = -100  # a target that cross-entropy passes over


class AnswerSpan(NamedTuple):
    """The best answer to a question, and where it stands in the context.

    margin: how much better no answer scores; share: how likely it is among all spans of the context.
    """

    text: str
    start: int
    end: int
    margin: float
    share: float


@dataclass
class Answer(Task):
    """Question answering, extracted from a context.

    options: impossible (whether questions may have no answer), threshold (how much better no answer must then score
    than the best one; chosen after training).
    """

    name: ClassVar[str] = "answer"
    head: ClassVar[str] = "span"
    example_type: ClassVar[type] = Question
    abilities: ClassVar[tuple[str, ...]] = ("answer",)
    sample: ClassVar[str] = "questions_dev.json"
    not_distilled: ClassVar[str] = "Fine-tune a smaller model on the questions instead: `bertkit finetune answer`."

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[Question]:
        """Question answering reads SQuAD files or JSON lines."""
        questions = list(read_questions(path, encoding=reading.encoding))
        silent = [q for q in questions if not q.answers and not q.impossible] if labelled is True else []
        if silent:
            raise UserError(
                f"{path}: {len(silent)} of {len(questions)} have no 'answers' (first: {silent[0].question!r:.60}). "
                "Add them (an empty list if the context has no answer), or leave the questions out."
            )
        return questions

    def from_inputs(self, inputs: Sequence[Any], first: int = 1) -> list[Question]:
        """Question answering takes dicts with question and context, or pairs of them."""
        questions = []
        for number, given in enumerate(inputs, first):
            if isinstance(given, Question):
                questions.append(given)
                continue
            if isinstance(given, dict) and "question" in given and "context" in given:
                given = (given["question"], given["context"])
            if not isinstance(given, (list, tuple)) or len(given) != 2:
                raise UserError(f"Input {number} is {given!r}; it must be a dict with 'question' and 'context'.")
            questions.append(Question(str(number), str(given[0]), str(given[1]), line=number))
        return questions

    def fit_labels(self, examples: Sequence[Question]) -> None:
        """Learn whether some questions have no answer; there must be something to learn."""
        if not any(q.impossible or any(start >= 0 for _, start in q.answers) for q in examples):
            raise UserError(
                "No answer occurs in the context of its question: there is nothing to learn. Correct the rows."
            )
        self.options["impossible"] = any(q.impossible for q in examples)

    def outputs(self) -> int:
        """Question answering's head gives two numbers: start and end."""
        return 2

    def encode(self, examples: Sequence[Question], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Encode questions whole, and their contexts in windows."""
        questions, contexts = [q.question for q in examples], [q.context for q in examples]
        encoded = encode_rows(tokenizer, questions, contexts, replace(windows, side=1), keep=True)
        return [Item.of(question, rows) for question, rows in zip(examples, encoded)]

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Start and end token of the first answer that a row holds whole, 0 ([CLS]) where it holds none.

        From a question whose answers do not stand in the context nothing is learnt.
        """
        pairs = [_place(row, item.example) for item in items for row in item.rows]
        return {"target": torch.tensor(pairs)}

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """Question answering's loss: cross-entropy of start and end over each row's tokens, halved."""
        batch = encoded.batch
        parts = batch.split(model.ask("span", encoded).float())
        target = batch.extra["target"].to(parts[0].device)
        losses = [F.cross_entropy(part.t(), wanted, reduction="sum") for part, wanted in zip(parts, target)]
        return torch.stack(losses).sum() / 2

    def answers(self, engine: Engine, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[np.ndarray]:
        """Question answering's start and end scores of every row, end to end: (tokens of all rows, 2)."""
        rows = iter(outputs)
        return [np.concatenate([next(rows) for _ in item.rows]) for item in items]

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """The best answer span over all windows: {answer, start, end, score}; "" where no answer is likelier."""
        span = self._best_span(item, output)
        margin = span.margin - float(self.options.get("threshold", 0.0))
        certainty = span.share
        if self.options.get("impossible"):  # how likely it is against no answer, not among all spans
            certainty = float(1 / (1 + np.exp(np.clip(margin, -50, 50))))
        seen = {"tokens": item.tokens, "cut": item.cut}
        if span.start < 0 or (self.options.get("impossible") and margin > 0):
            return {"answer": "", "start": -1, "end": -1, "score": 1 - certainty, **seen}
        return {"answer": span.text, "start": span.start, "end": span.end, "score": certainty, **seen}

    def _best_span(self, item: Item, output: np.ndarray) -> AnswerSpan:
        """The best answer to a question over all windows, even where no answer is likelier."""
        best, null = (-np.inf, -1, -1), np.inf
        at = 0
        mass = np.full(2, -np.inf)  # of all starts and all ends in the context, as logarithms
        for row in item.rows:
            scores = output[at : at + len(row.ids)]
            at += len(row.ids)
            score, first, last = _best(row, scores)
            if score > best[0]:
                assert row.encoding is not None
                best = (score, row.encoding.offsets[first][0], row.encoding.offsets[last][1])
            null = min(null, float(scores[0].sum()))
            inside = scores[np.array(row.encoding.sides if row.encoding else []) == 1].astype(np.float64)
            mass = np.logaddexp(mass, np.logaddexp.reduce(inside, axis=0))
        score, start, end = best
        if not np.isfinite(score):  # a context without a word
            return AnswerSpan("", -1, -1, np.inf, 0.0)
        share = float(np.exp(score - mass.sum()))
        return AnswerSpan(item.example.context[start:end], start, end, float(null - score), share)

    @property
    def has_thresholds(self) -> bool:
        """Question answering has one where questions may have no answer."""
        return bool(self.options.get("impossible"))

    def choose_thresholds(self, items: Sequence[Item], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Choose how much better no answer to a question must score, for the highest F1 on these rows."""
        gold = [[text for text, _ in item.example.answers] for item in items]
        spans = list(map(self._best_span, items, outputs))
        margins = np.array([span.margin for span in spans])
        inside = np.isfinite(margins)  # a context without a word is never answered
        if not LEAST_ROWS <= sum(map(bool, gold)) <= len(gold) - LEAST_ROWS or not inside.any():
            return {}
        answered, unanswered = (
            answers_tallies(gold, predicted)[0].columns[:, 0]
            for predicted in ([span.text for span in spans], [""] * len(gold))
        )
        chosen = no_answer_threshold(margins[inside], answered[inside], unanswered[inside])
        at_zero, f1 = (float(np.where(margins <= least, answered, unanswered).mean()) for least in (0.0, chosen))
        self.options["threshold"] = chosen
        note(
            f"No answer is given if it scores more than {chosen:.2f} above the best one: F1 is {f1:.4f} on "
            f"{len(gold):,} dev rows, and {at_zero:.4f} with a threshold of 0."
        )
        return {"no_answer": {"threshold": chosen, "f1": f1, "f1_at_zero": at_zero, "rows": len(gold)}}

    def metric_inputs(
        self, examples: Sequence[Question], predictions: Sequence[Prediction]
    ) -> tuple[Any, list, list, dict]:
        """Question answering is measured by F1 and exact match by SQuAD's rules; Chinese by character."""
        gold = [[text for text, _ in q.answers] for q in examples]
        return metrics.answers, gold, [p["answer"] for p in predictions], {}

    def key(self, example: Question) -> tuple[Any, ...]:
        """What identifies a question: question and context."""
        return (example.question, example.context)

    def answer_of(self, example: Question) -> tuple[tuple[str, int], ...]:
        """All answers to a question that count as right."""
        return example.answers

    def labels_of(self, example: Question) -> tuple[str, ...]:
        """Question answering has no label names."""
        return ()

    def stratum(self, example: Question) -> str:
        """None for question answering: hardly two questions have the same answer."""
        return ""

    def digest_of(self, example: Question) -> list[Any]:
        """The answers to a question in a digest, in the second place."""
        return [None, example.answers]

    def answer_in(self, prediction: Prediction) -> str:
        """The answer to a question: the text that was cut out."""
        return str(prediction["answer"])

    def shown(self, example: Question) -> dict[str, Any]:
        """A question in a report: the question and its line."""
        return {"text": example.question, "line": example.line}

    def cells(self, example: Question) -> dict[str, Any]:
        """Columns beside an answer to a question: id, question and context."""
        return {"id": example.id, "question": example.question, "context": example.context}

    def reads_table(self, path: str | Path, reading: Reading) -> bool:
        """Question answering reads tables, but not SQuAD's nested lists, as rows."""
        return kind_of(path) != "json" and super().reads_table(path, reading)

    def mistake(self, example: Question, prediction: Prediction) -> dict[str, Any] | None:
        """A wrong answer to a question: the surer, the worse; a dash stands for no answer."""
        gold, predicted = [text for text, _ in example.answers], prediction["answer"]
        if predicted in gold or not (gold or predicted):
            return None
        wrong = {"gold": " | ".join(gold) or "—", "predicted": predicted or "—", "score": prediction["score"]}
        return {**self.shown(example), **wrong}

    @classmethod
    def guessed(cls, head: str, labels: tuple[str, ...], config: Mapping[str, Any]) -> dict[str, Any] | None:
        """A folder is one of question answering if it has a span head."""
        return {} if head == cls.head else None


def _place(row: Row, question: Question) -> tuple[int, int]:
    """The first and last token of a question's answer in a row; (0, 0) where there is none, IGNORED if unknown."""
    if not question.placed:
        return (0, 0) if question.impossible else (IGNORED, IGNORED)
    encoding = row.encoding
    assert encoding is not None
    context = [(n, a, b) for n, (a, b) in enumerate(encoding.offsets) if encoding.sides[n] == 1 and b > a]
    for text, start in question.placed:
        end = start + len(text)
        inside = [(n, a, b) for n, a, b in context if b > start and a < end]
        if inside and inside[0][1] <= start and inside[-1][2] >= end:
            return inside[0][0], inside[-1][0]
    return 0, 0


def _best(row: Row, scores: np.ndarray) -> tuple[float, int, int]:
    """The likeliest answer span inside the context: (score, first token, last token)."""
    assert row.encoding is not None
    context = np.array([n for n, side in enumerate(row.encoding.sides) if side == 1], dtype=int)
    if not len(context):
        return -np.inf, 0, 0
    starts = context[np.argsort(-scores[context, 0], kind="stable")[:BEST]]
    ends = context[np.argsort(-scores[context, 1], kind="stable")[:BEST]]
    table = scores[starts, 0][:, None] + scores[ends, 1][None, :]
    length = ends[None, :] - starts[:, None]
    table[(length < 0) | (length >= LONGEST)] = -np.inf
    if not np.isfinite(table).any():
        place = int(starts[0])
        return float(scores[place].sum()), place, place
    s, e = np.unravel_index(int(table.argmax()), table.shape)
    return float(table[s, e]), int(starts[s]), int(ends[e])
