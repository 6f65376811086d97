"""`bertkit search` and `bertkit ask`: passages of an index that match a question, and answers extracted from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.commands import SharedCommand
from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class IndexSettings(Common):
    """Options of every command that searches an index."""

    index: str = option(help="The index folder, made by `bertkit index`; or the URL given with --store.", argument=True)
    by: str = option(
        "both", "Rank by vector similarity, by shared words (BM25), or by both.", choices=("both", "vectors", "words")
    )
    rerank: str = option("", "A model that reads the best passages again and reorders them (`finetune pair --rank`).")
    where: str = option("", "Only documents whose columns fit, e.g. 'year > 2020 and lang = \"zh\"'.")
    model: str = option("", "The index's model, if it has moved.")


@dataclass(frozen=True, kw_only=True)
class Settings(IndexSettings):
    """Options of `bertkit search`."""

    query: str = option(help="What to search for.", argument=True)
    k: int = option(10, "Number of passages.", short="-k", at_least=1)


def run(settings: Settings) -> dict[str, Any]:
    """Find the nearest passages, best first."""
    return {"query": settings.query, "found": _hits(settings, settings.query, settings.k)}


def _hits(settings: IndexSettings, question: str, top: int) -> list[dict[str, Any]]:
    """`search`: the passages of an index for a question, reranked if asked."""
    from bertkit import machine
    from bertkit.retrieval.conditions import Where
    from bertkit.retrieval.evaluate import Reranker
    from bertkit.retrieval.index import open_index

    machine.set_up(settings.threads)
    where = Where(settings.where) if settings.where else None
    reranker = Reranker(settings.rerank, settings.precision, settings.device) if settings.rerank else None
    index = open_index(settings.index, settings.model, settings.precision, settings.device)
    return index.search(question, top, settings.by, reranker, where)


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `search`: one passage per line, with its file and document."""
    return [
        f"{hit['score']:6.3f}  {' '.join(hit['text'].split())}  ({hit['file']}, document {hit['document']})"
        for hit in result["found"]
    ] or ["nothing found"]


# ---- `bertkit ask`


@dataclass(frozen=True, kw_only=True)
class AskSettings(IndexSettings):
    """Options of `bertkit ask`."""

    question: str = option(help="The question.", argument=True)
    reader: str = option(
        "", "A model fine-tuned with `bertkit finetune answer`; with --train, the folder to write it to (then: reader)."
    )
    train: str = option(
        "",
        "Train the reader first, on these questions (SQuAD file or JSON lines), or on bertkit's few samples: samples.",
    )
    minutes: float = option(4.0, "Time budget of --train.", at_least=0)
    k: int = option(5, "Number of passages to read.", short="-k", at_least=1)


def _trained(settings: AskSettings) -> str:
    """`ask` with `--train`: fine-tune the embedded model of the questions' language to answer; its folder."""
    from bertkit import samples
    from bertkit.commands.finetune import run as finetune
    from bertkit.config import build
    from bertkit.errors import UserError
    from bertkit.settings.finetune import FinetuneSettings
    from bertkit.text.words import is_cjk
    from bertkit.training.checkpoints import newest_generation

    out = Path(settings.reader or "reader")
    if (out / "config.json").is_file():
        raise UserError(
            f"{out} holds a model already. Ask it with --reader {out} and without --train, or name another folder for "
            "the new one with --reader."
        )
    if newest_generation(out / "checkpoints"):
        raise UserError(f"{out} holds an unfinished training. Remove the folder, or name another with --reader.")
    language = "zh" if any(map(is_cjk, settings.question)) else "en"
    path = samples.path(language, "questions_train.json") if settings.train == "samples" else settings.train
    given = {
        "task": "answer", "train": path, "out": out, "minutes": settings.minutes,
        **{name: getattr(settings, name) for name in ("threads", "precision", "device", "seed")},
    }  # fmt: skip
    return str(finetune(build(FinetuneSettings, given, "bertkit ask"))["out"])


def run_ask(settings: AskSettings) -> dict[str, Any]:
    """Find the passages nearest to a question, and extract the answer from them."""
    from bertkit import machine
    from bertkit.errors import UserError
    from bertkit.inference.predictor import Predictor

    if not settings.reader and not settings.train:
        raise UserError(
            "ask needs a reader, and none is embedded. Train one in minutes on questions like yours: pass --train "
            "QUESTIONS.json (a SQuAD file, or JSON lines with question, context and answers), or --train samples to "
            "try it with bertkit's own. `bertkit search` needs no reader."
        )
    machine.set_up(settings.threads)
    folder = _trained(settings) if settings.train else settings.reader
    reader = Predictor.load(folder, settings.precision, settings.device)
    if reader.task.name != "answer":
        raise UserError(
            f"{settings.reader} was fine-tuned for {reader.task.name}, not for question answering. "
            "Train a reader with `bertkit finetune answer`."
        )
    hits = _hits(settings, settings.question, settings.k)
    predictions = reader.predict([{"question": settings.question, "context": hit["text"]} for hit in hits])
    answers = [{**hit, **answer, "passage_score": hit["score"]} for hit, answer in zip(hits, predictions)]
    # No answer is the last resort; else the reader's own certainty decides.
    answers.sort(key=lambda answer: (answer["answer"] != "", answer["score"]), reverse=True)
    best = answers[0] if answers else {"answer": "", "score": 0.0}
    return {"question": settings.question, **best, "others": answers[1:]}


def ask_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `ask`: the answer, and the passage it comes from."""
    if not result["answer"]:
        return ["no answer found"]
    return [
        f"{result['answer']}  ({result['score']:.3f})",
        f"  {' '.join(result['text'].split())}  ({result['file']}, document {result['document']})",
    ]


ask = SharedCommand(AskSettings, run_ask, ask_lines)
