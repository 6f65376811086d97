"""A cross-encoder reads the question and a passage together: slower than vectors, and more exact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor

RERANKED = 50  # passages that a reranker reads for a question
YES = ("1", "yes", "true", "relevant", "positive", "entailment", "duplicate")  # labels of pairs that belong together


class Reranker:
    """A model that scores pairs of texts, by its one number or by the probability that they belong together."""

    def __init__(self, name: str | Path, precision: str = "auto", device: str = "auto") -> None:
        self.name, self.predictor = str(name), Predictor.load(name, precision, device)
        task = self.predictor.task
        wrong = f"{name} cannot rerank: "
        if "rerank" not in task.abilities or task.makes_vectors or task.options.get("paired") is False:
            raise UserError(f"{wrong}it does not read pairs of texts. Train one with `bertkit finetune pair --rank`.")
        self.label = next((label for label in task.labels if label.casefold() in YES), "")
        if task.labelled_by_name and not self.label:
            raise UserError(
                f"{wrong}none of its labels ({', '.join(task.labels)}) says that two texts belong together. Train one "
                "with `bertkit finetune pair --rank`."
            )
        self.predictor.task = task if task.reads_pairs else task.for_pairs() or task

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the question."""
        predictions = self.predictor.predict([{"text": question, "text_b": text} for text in texts])
        return [float(each["scores"][self.label] if self.label else each["value"]) for each in predictions]

    def rank(self, question: str, hits: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The first RERANKED hits in the order of the model's scores; the others after them, as they were."""
        scores = self.scores(question, [hit["text"] for hit in hits[:RERANKED]])
        read = [hit | {"score": score, "first_score": hit["score"]} for hit, score in zip(hits, scores)]
        return sorted(read, key=lambda hit: -hit["score"]) + hits[RERANKED:]
