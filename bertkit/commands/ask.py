"""`bertkit ask`: extract an answer from your documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit ask`."""

    index: Path = option(help="The index folder, made by `bertkit index`.", argument=True)
    question: str = option(help="The question.", argument=True)
    reader: str = option(help="A model fine-tuned with `bertkit finetune answer`.")
    k: int = option(5, "Number of passages to read.", short="-k", at_least=1)
    by: str = option("both", "How passages are found.", choices=("both", "vectors", "words"))
    model: str = option("", "The index's model, if it has moved.")


def run(settings: Settings) -> dict[str, Any]:
    """Find the passages nearest to a question, and extract the answer from them."""
    from bertkit import machine
    from bertkit.errors import UserError
    from bertkit.inference.predictor import Predictor
    from bertkit.retrieval.index import Index

    machine.set_up(settings.threads)
    reader = Predictor.load(settings.reader, settings.precision, settings.device)
    if reader.task.name != "answer":
        raise UserError(
            f"{settings.reader} was fine-tuned for {reader.task.name}, not for question answering. "
            "Train a reader with `bertkit finetune answer`."
        )
    index = Index.open(settings.index, settings.model, settings.precision, settings.device)
    found = index.search(settings.question, settings.k, settings.by)
    said = reader.predict([{"question": settings.question, "context": one["text"]} for one in found])
    answers = [{**one, **answer, "passage_score": one["score"]} for one, answer in zip(found, said)]
    # No answer is the last resort; else the reader's own certainty decides.
    answers.sort(key=lambda one: (one["answer"] != "", one["score"]), reverse=True)
    best = answers[0] if answers else {"answer": "", "score": 0.0}
    return {"question": settings.question, **best, "others": answers[1:]}


def lines(result: dict[str, Any]) -> list[str]:
    """The answer, and the passage it comes from."""
    if not result["answer"]:
        return ["no answer found"]
    return [
        f"{result['answer']}  ({result['score']:.3f})",
        f"  {' '.join(result['text'].split())}  ({result['file']}, document {result['document']})",
    ]
