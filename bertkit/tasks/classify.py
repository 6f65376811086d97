"""One or several labels per text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertkit import metrics
from bertkit.data.examples import TextRow
from bertkit.data.readers import read_rows
from bertkit.data.readers.rows import label_separator
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.machine import F, torch
from bertkit.metrics.calibration import label_thresholds, softmax
from bertkit.model.engine import Engine
from bertkit.notify import note
from bertkit.tasks.base import Item, Labelled, Prediction, Reading, Task, learnt_labels, text_row
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.model.encoder import Encoded
    from bertkit.model.heads import Model

# A long text's windows mostly speak with equal force for the label of plain text, and one for the label that matters:
# their maxima tie. Taking off this share of the mean lets the one that differs win where it is sure (about 95 %);
# a text of one window keeps its logits.
BACKGROUND = 0.25


@dataclass
class Classify(Task):
    """Classification of texts, with one label or several.

    options: multi_label, temperature (of folders whose head was not divided by it), thresholds {label: number} (multi-
    label), class_weights {label: weight}.
    """

    name: ClassVar[str] = "classify"
    labelled_by_name: ClassVar[bool] = True
    accepted_settings: ClassVar[tuple[str, ...]] = (
        "labels", "multi_label", "label_separator", "class_weights", "merge",
    )  # fmt: skip
    stored_settings: ClassVar[tuple[str, ...]] = ("multi_label",)
    answers_vary: ClassVar[bool] = True
    served_as: ClassVar[str] = "classifier"
    paired: ClassVar[bool] = False

    @property
    def multi(self) -> bool:
        """Whether a text may have several labels (multi-label classification)."""
        return bool(self.options.get("multi_label"))

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[TextRow]:
        """Classification reads rows of a table."""
        rows = list(self._rows(path, reading, labelled))
        return _agreed(rows, path) if self.paired and labelled else rows

    def stream(self, path: str | Path, reading: Reading) -> Iterator[TextRow]:
        """Classification reads rows of a table, one at a time."""
        yield from self._rows(path, reading, labelled=False)

    def _rows(self, path: str | Path, reading: Reading, labelled: Labelled) -> Iterator[TextRow]:
        """What the task `classify` reads: the rows of a file, with one or several labels each."""
        separator = reading.label_separator
        if separator and not self.multi:
            raise UserError("--label-separator is for rows with several labels. Pass --multi-label too.")
        if self.multi and labelled and not separator:
            separator = label_separator(
                path, text=reading.text, label=reading.label, encoding=reading.encoding, known=self.labels
            )
        return read_rows(
            path, text=reading.text, text_b=reading.text_b if self.paired else None, label=reading.label,
            labelled=labelled, multi_label=self.multi, separator=separator, encoding=reading.encoding,
            known=self.labels,
        )  # fmt: skip

    def from_inputs(self, inputs: Sequence[Any], first: int = 1) -> list[TextRow]:
        """Classification takes texts, pairs of texts, or dicts with text and text_b."""
        return [text_row(given, number, self.paired) for number, given in enumerate(inputs, first)]

    def fit_labels(self, examples: Sequence[TextRow]) -> None:
        """Learn the label names of a classification, sorted."""
        names = [name for row in examples for name in (row.label if isinstance(row.label, tuple) else (row.label,))]
        self.labels = learnt_labels([str(name) for name in names], self.labels, "training data")

    def encode(self, examples: Sequence[TextRow], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Encode what is classified: one text, or two side by side."""
        pairs = [row.text_b or "" for row in examples] if self.paired else None
        encoded = self.encode_pairs(tokenizer, [row.text for row in examples], pairs, windows)
        return [Item.of(row, rows) for row, rows in zip(examples, encoded)]

    def check(self, examples: Sequence[TextRow], where: str) -> None:
        """Refuse labels that the classifier has not learnt."""
        for row in examples:
            for name in (row.label or ()) if self.multi else (row.label,):  # type: ignore[union-attr]
                self.check_label(name, f"{where}, line {row.line}")

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Label numbers of a classification, (items,), or (items, labels) for several."""
        if not self.multi:
            numbers = [self.check_label(item.example.label, f"line {item.example.line}") for item in items]
            return {"target": torch.tensor(numbers)}
        table = torch.zeros(len(items), len(self.labels))
        for n, item in enumerate(items):
            for name in item.example.label or ():
                table[n, self.check_label(name, f"line {item.example.line}")] = 1
        return {"target": table}

    def logits(self, model: Model, encoded: Encoded, items: int) -> Tensor:
        """Logits of a classification: (items, labels), float32."""
        rows = encoded.batch.restore(model.ask(self.head, encoded)).float()
        owner = encoded.batch.extra["owner"]
        merged = self.merged(rows, owner, items)
        if self.multi or self.merge != "max" or len(rows) == items:
            return merged
        return (merged - BACKGROUND * self.merged(rows, owner, items, "mean")) / (1 - BACKGROUND)

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """Cross-entropy; for several labels the sum of yes-or-no losses over labels, divided by their number."""
        target = encoded.batch.extra["target"]
        logits = self.logits(model, encoded, len(target))
        weights = self.weights(logits.device)
        if self.multi:  # weights of the rows that have the label
            loss = F.binary_cross_entropy_with_logits(logits, target, pos_weight=weights, reduction="sum")
            return loss / len(self.labels)
        return F.cross_entropy(logits, target, weight=weights, reduction="sum")

    def answers(self, engine: Engine, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[np.ndarray]:
        """A classifier's logits of each item: (labels,)."""
        merged = self.merged_rows(outputs, items)
        if self.multi or self.merge != "max" or len(outputs) == len(items):
            return list(merged)
        return list((merged - BACKGROUND * self.merged_rows(outputs, items, "mean")) / (1 - BACKGROUND))

    def probabilities(self, output: np.ndarray) -> np.ndarray:
        """A classifier's calibrated probabilities from logits: (…, labels)."""
        x = output / float(self.options.get("temperature", 1.0))
        if self.multi:
            return 1 / (1 + np.exp(-x))
        return softmax(x)

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """A classified text: {label, score, scores} or {labels, scores}, with tokens seen and cut."""
        scores = self.probabilities(output)
        table = {name: float(score) for name, score in zip(self.labels, scores)}
        seen = {"tokens": item.tokens, "cut": item.cut}
        if self.multi:
            chosen = self.thresholds
            return {"labels": [n for n, s in table.items() if s >= chosen[n]], "scores": table, **seen}
        best = int(np.argmax(scores))
        answer: Prediction = {"label": self.labels[best], "score": float(scores[best]), "scores": table, **seen}
        if (least := self.options.get("abstain")) is not None:
            answer["abstained"] = answer["score"] < least
        return answer

    @property
    def thresholds(self) -> dict[str, float]:
        """The least probability with which a text has each of several labels."""
        chosen = self.options.get("thresholds", {})
        return {name: float(chosen.get(name, self.options.get("threshold", 0.5))) for name in self.labels}

    @property
    def has_thresholds(self) -> bool:
        """A classifier has thresholds where labels do not exclude each other."""
        return self.multi

    def choose_thresholds(self, items: Sequence[Item], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """For each label the threshold of the highest F1 on these rows; rare labels share one."""
        gold = np.array([[name in (item.example.label or ()) for name in self.labels] for item in items])
        chosen = label_thresholds(self.probabilities(np.stack(outputs)), gold)
        self.options["thresholds"] = dict(zip(self.labels, chosen))
        return {"thresholds": dict(self.options["thresholds"])}

    def metric_inputs(
        self, examples: Sequence[TextRow], predictions: Sequence[Prediction]
    ) -> tuple[Any, list, list, dict]:
        """Classification metrics, by label name."""
        scores = np.array([[p["scores"][name] for name in self.labels] for p in predictions])
        extra = {"labels": list(self.labels), "scores": scores}
        if self.multi:
            return metrics.multi_label, [row.label or () for row in examples], [p["labels"] for p in predictions], extra
        for row in examples:
            self.check_label(row.label, f"line {row.line}")
        return metrics.classification, [row.label for row in examples], [p["label"] for p in predictions], extra

    def answer_in(self, prediction: Prediction) -> Any:
        """A classifier's label, or all of them."""
        return tuple(prediction["labels"]) if self.multi else prediction["label"]

    def mistake(self, example: TextRow, prediction: Prediction) -> dict[str, Any] | None:
        """A wrong label: the surer, the worse; of several labels, the more differ."""
        if not self.multi:
            wrong = {"gold": example.label, "predicted": prediction["label"], "score": prediction["score"]}
            return {**self.shown(example), **wrong} if prediction["label"] != example.label else None
        gold, predicted = self.labels_of(example), self.answer_in(prediction)
        score = len(set(gold) ^ set(predicted))
        wrong = {"gold": ", ".join(gold), "predicted": ", ".join(predicted), "score": score}
        return {**self.shown(example), **wrong} if score else None

    def suspicion(self, example: TextRow, prediction: Prediction) -> dict[str, Any] | None:
        """Classification: a row whose own label an unseen model finds less likely than another."""
        if self.multi or prediction["label"] == example.label or example.label not in prediction["scores"]:
            return None
        return {
            "text": example.text, "line": example.line, "gold": example.label, "suggested": prediction["label"],
            "score": prediction["scores"][example.label],
        }  # fmt: skip

    @classmethod
    def guessed(cls, head: str, labels: tuple[str, ...], config: Mapping[str, Any]) -> dict[str, Any] | None:
        """A folder is one of classification if it has a text head with several labels."""
        if head != cls.head or len(labels) == 1:
            return None
        if config.get("problem_type") != "multi_label_classification":
            return {}
        chosen = config.get("thresholds")
        numbers = isinstance(chosen, dict) and all(isinstance(value, (int, float)) for value in chosen.values())
        return {"multi_label": True, **({"thresholds": chosen} if numbers else {})}

    @property
    def baseline(self) -> str:
        """Classification of one label or several has a baseline of its own."""
        return "multi-label" if self.multi else self.name

    @property
    def problem_type(self) -> str:
        """What config.json calls classification, for one label or several."""
        return "multi_label_classification" if self.multi else "single_label_classification"

    @property
    def calibrates(self) -> bool:
        """Classification is calibrated where labels exclude each other."""
        return not self.multi

    def by_label(self, gold: list[Any], predicted: list[Any]) -> dict[str, Any]:
        """The task `classify` reports precision and recall of each label, and which labels are taken for which."""
        if self.multi:
            return {}
        counts = metrics.confusion(gold, predicted, self.labels).tolist()
        return {
            "per_class": metrics.per_class(gold, predicted, self.labels),
            "confusion": {"labels": list(self.labels), "counts": counts},
        }

    @property
    def answer_kind(self) -> str:
        """Classification is distilled as one distribution, or a yes or no for each label."""
        return "several" if self.multi else "labels"

    @property
    def reads_pairs(self) -> bool:
        """Whether a classifier reads two texts, by its class."""
        return self.paired

    def for_pairs(self) -> Task | None:
        """A classifier with the same labels for two texts."""
        return Pair(labels=self.labels, options=dict(self.options))

    def label_scores(self, output: np.ndarray, prediction: Prediction, raw: bool) -> dict[str, float]:
        """A classifier's logit or probability of every label."""
        return dict(zip(self.labels, output.tolist())) if raw else prediction["scores"]


INFERENCE = {"entailment", "neutral", "contradiction"}


def _agreed(rows: list[TextRow], path: str | Path) -> list[TextRow]:
    """Without those that SNLI and its kin label '-', because the annotators did not agree; elsewhere '-' is a label."""
    if {row.label for row in rows} - {"-", None} - INFERENCE:
        return rows
    labelled = [row for row in rows if row.label != "-"]
    if len(labelled) < len(rows):
        left_out = len(rows) - len(labelled)
        note(f"{path}: {left_out} rows labelled '-' (no agreement) are left out, {len(labelled)} are kept.")
    return labelled


# ---- One label for two texts: entailment, paraphrase, any relation.


@dataclass
class Pair(Classify):
    """Classification of pairs of texts. In long pairs the second text is read in windows. options: also symmetric."""

    name: ClassVar[str] = "pair"
    accepted_settings: ClassVar[tuple[str, ...]] = (*Classify.accepted_settings, "rank", "negatives", "symmetric")
    stored_settings: ClassVar[tuple[str, ...]] = (*Classify.stored_settings, "symmetric")
    abilities: ClassVar[tuple[str, ...]] = ("predict", "rerank")
    sample: ClassVar[str] = "pairs_dev.csv"
    paired: ClassVar[bool] = True

    @classmethod
    def guessed(cls, head: str, labels: tuple[str, ...], config: Mapping[str, Any]) -> dict[str, Any] | None:
        """A folder is never taken for pair classification: it does not say that it reads two texts."""
        return None
