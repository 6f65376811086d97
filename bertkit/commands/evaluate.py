"""`bertkit evaluate`: every metric of a model on a labelled file, with confidence intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.config import InferenceOptions, option
from bertkit.notify import columns, padded
from bertkit.settings.finetune import TableSettings


@dataclass(frozen=True, kw_only=True)
class Settings(InferenceOptions, TableSettings):
    """Options of `bertkit evaluate`."""

    model: str = option(help="Embedded name, folder, or hub name; or an index.", argument=True)
    file: Path = option(
        help="Labelled rows; for minimal pairs, a file or a folder of files; for an index, rows with a query and its "
        "relevant ids or texts.",
        argument=True,
    )
    task: str = option(
        "", "minimal-pairs or perplexity (language models), analogies or similarity (word vectors); "
        "by default the model's own task.",
    )  # fmt: skip
    most: int = option(0, "Maximum number of minimal pairs per file, or of texts for perplexity; 0: all.", at_least=0)
    rerank: str = option("", "For an index: also rank with this model on top (`finetune pair --rank`).")
    out: Path | None = option(None, "For an index: the folder for report.html and result.json.")
    lang: str = option("en", "Language of the report.", choices=("en", "zh"))


def run(settings: Settings) -> dict[str, Any]:
    """Score a model on a labelled file, or an index on queries."""
    from bertkit import machine, metrics
    from bertkit.checkpoint.vocabulary_fit import report_unknown
    from bertkit.errors import UserError, suggest
    from bertkit.inference.predictor import Predictor
    from bertkit.loading import ContenderPredictor, open_model
    from bertkit.retrieval.index import is_index
    from bertkit.tasks.base import Reading

    machine.set_threads(settings.threads)
    if is_index(settings.model):
        _refuse_unread(settings, AN_INDEX)
        return _index(settings)
    if settings.task and settings.task not in OTHERS:
        raise UserError(f"--task is {settings.task!r}. {suggest(settings.task, list(OTHERS))}")
    _refuse_unread(settings, f"--task {settings.task}" if settings.task else OWN_TASK)
    predictor = open_model(settings.model, settings.precision, settings.device, engine=settings.engine)
    if settings.task:
        if not _can(predictor, settings.task):
            raise UserError(f"{settings.model} cannot be scored by {settings.task}: it is a different kind of model.")
        return OTHERS[settings.task](predictor, settings)
    if not isinstance(predictor, (Predictor, ContenderPredictor)):
        raise UserError(
            f"{settings.model} has not been fine-tuned for a task. Choose how to score it: --task {'|'.join(OTHERS)}."
        )
    task = predictor.task
    reading = Reading(settings.text, settings.text_b, settings.label, settings.encoding, settings.label_separator)
    examples = task.read(settings.file, task.reading_of(settings.file, reading))
    task.check(examples, str(settings.file))
    predictions = predictor.predict_examples(examples)
    metric, gold, predicted, extra = task.metric_inputs(examples, predictions)
    scores = metric(gold, predicted, **extra)
    intervals = metrics.bootstrap(metric, gold, predicted, seed=settings.seed, **extra) if len(gold) > 1 else {}
    return {
        "model": settings.model, "file": str(settings.file), "rows": len(gold), "precision": predictor.precision,
        "engine": predictor.engine.name if isinstance(predictor, Predictor) else "",
        "metrics": dict(scores), "intervals": {name: list(pair) for name, pair in intervals.items()},
        "rows_cut": sum(p["cut"] > 0 for p in predictions), "tokens_cut": sum(p["cut"] for p in predictions),
        "absent": dict(getattr(scores, "absent", {})),
        "unknown_share": report_unknown(predictor, settings.model),
    }  # fmt: skip


AN_INDEX, OWN_TASK = "an index", "a fine-tuned model's own task"
READ_BY = {  # option → what reads it; the others are read by all
    **dict.fromkeys(("out", "rerank"), AN_INDEX),
    **dict.fromkeys(("text", "text_b", "label", "label_separator"), OWN_TASK),
    "most": "--task minimal-pairs or --task perplexity",
}


def _refuse_unread(settings: Settings, scored: str) -> None:
    """Refuse an option that `evaluate` would not read: it was meant to do something."""
    from bertkit.errors import UserError

    unread = {name: readers for name, readers in READ_BY.items() if scored not in readers}
    if scored == AN_INDEX:
        unread |= dict.fromkeys(("task", "engine"), "a model")
    defaults = {entry.name: entry.default for entry in fields(Settings)}
    for name, readers in unread.items():
        if getattr(settings, name) != defaults[name]:
            raise UserError(f"--{name.replace('_', '-')} is for {readers}, not for {scored}. Leave it out.")


def _index(settings: Settings) -> dict[str, Any]:
    """`evaluate` on an index: nDCG@10, MRR and recall, by words, by vectors, by both, and reranked."""
    from functools import partial

    from bertkit.report.comparison import search_report
    from bertkit.retrieval.evaluate import Reranker, measure, ranked, read_queries, relevant_ids
    from bertkit.retrieval.index import BY, open_index, shown

    index = open_index(settings.model, "", settings.precision, settings.device)
    queries = read_queries(settings.file, settings.encoding)
    gold = relevant_ids(queries, index.documents(), settings.file)
    ways = {by: partial(index.search, by=by) for by in reversed(BY)}
    if settings.rerank:
        reranker = Reranker(settings.rerank, settings.precision, settings.device)
        ways["both, reranked"] = partial(index.search, by="both", reranker=reranker)
    measured = [measure(name, search, queries, len(index), index.megabytes) for name, search in ways.items()]
    sizes = {"queries": len(queries), "passages": len(index)}
    result = {"index": shown(settings.model), "file": str(settings.file)} | sizes
    result |= ranked(measured, queries, gold, settings.seed)
    return search_report(result, settings.out, settings.lang) if settings.out else result


def _minimal_pairs(model: Any, settings: Settings) -> dict[str, Any]:
    from bertkit.inference.scoring import score_minimal_pairs

    return score_minimal_pairs(model, settings.file, settings.most, settings.encoding)


def _perplexity(model: Any, settings: Settings) -> dict[str, Any]:
    """`evaluate` on a text file: perplexity over documents; for a masked encoder, pseudo-perplexity over sentences."""
    from bertkit.ancestors.language_model import gpt
    from bertkit.data.readers.documents import read_documents
    from bertkit.inference.predictor import Predictor
    from bertkit.inference.scoring import pseudo_perplexity
    from bertkit.text.words import split_sentences

    documents = read_documents(settings.file, encoding=settings.encoding)
    if isinstance(model, Predictor) and not model.config.causal:
        sentences = (sentence for text in documents for line in text.split("\n") for sentence in split_sentences(line))
        chosen = list(islice(sentences, settings.most or None))
        return {"metrics": pseudo_perplexity(model, chosen), "intervals": {}, "rows": len(chosen), "rows_cut": 0}
    texts = list(islice(documents, settings.most or None))
    perplexity = gpt.perplexity(model, texts) if isinstance(model, Predictor) else model.perplexity(texts)
    return {"metrics": perplexity, "intervals": {}, "rows": len(texts), "rows_cut": 0}


def _analogies(model: Any, settings: Settings) -> dict[str, Any]:
    """Word vectors on a file of analogies."""
    from bertkit.ancestors.vectors.evaluate import analogies

    answers = analogies(model, settings.file, settings.encoding)
    total = answers.pop("total")
    shares = {name: answered.accuracy for name, answered in answers.items()}
    metrics = {"accuracy": total.accuracy, "answered": total.answered, "asked": total.asked}
    return {"metrics": metrics, "intervals": {}, "groups": shares, "rows": total.asked, "rows_cut": 0}


def _similarity(model: Any, settings: Settings) -> dict[str, Any]:
    """Word vectors on a file of word pairs that people scored."""
    from bertkit.ancestors.vectors.evaluate import similarities

    similarity = similarities(model, settings.file, settings.encoding)
    return {
        "metrics": {"spearman": similarity.spearman, "known": similarity.known},
        "intervals": {},
        "rows": similarity.pairs,
        "rows_cut": 0,
    }


OTHERS: dict[str, Callable[[Any, Settings], dict[str, Any]]] = {
    "minimal-pairs": _minimal_pairs, "perplexity": _perplexity, "analogies": _analogies, "similarity": _similarity,
}  # fmt: skip


def _can(model: Any, task: str) -> bool:
    """Whether a model is of the kind that an `evaluate` task scores; an encoder has a (pseudo-)perplexity too."""
    from bertkit.ancestors.vectors.vectors import WordVectors
    from bertkit.inference.predictor import Predictor
    from bertkit.loading import CanMeasure, CanScore

    kinds: dict[str, tuple[type, ...]] = {"minimal-pairs": (CanScore,), "perplexity": (CanMeasure, Predictor)}
    return isinstance(model, kinds.get(task, (WordVectors,)))


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `evaluate`: one line per metric; of an index, one per way to search it."""
    if "ranked_by" in result:
        return search_lines(result)
    printed = []
    for name, value in result["metrics"].items():
        pair = result["intervals"].get(name)
        printed.append(f"{name:24} {value:.4f}" + (f"   95 % interval {pair[0]:.4f} to {pair[1]:.4f}" if pair else ""))
    printed += [f"{padded(name, 24)} {value:.4f}" for name, value in result.get("groups", {}).items()]
    printed.append(f"{result['rows']:,} rows, {result['rows_cut']} of them truncated")
    return printed


def search_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `evaluate` for an index: a table of ways to search, and its worst queries."""
    names = list(result["ranked_by"][0]["metrics"])
    wide = max(columns(row["name"]) for row in result["ranked_by"])
    printed = [f"{result['queries']:,} queries, {result['passages']:,} passages; 95 % interval of {names[0]}"]
    printed.append(
        f"  {'':{wide}}  " + "  ".join(f"{name:>10}" for name in names) + "  interval       p       ms per query"
    )
    for number, row in enumerate(result["ranked_by"]):
        interval = "{:.3f}–{:.3f}".format(*row["intervals"][names[0]]) if names[0] in row["intervals"] else " " * 11
        chance = "best   " if not number else " " * 7 if row["p_value"] is None else f"{row['p_value']:<7.3f}"
        values = "  ".join(f"{row['metrics'][name]:10.4f}" for name in names)
        printed.append(f"  {padded(row['name'], wide)}  {values}  {interval}    {chance} {row['ms_per_query']:12.2f}")
    if result["worst"]:
        printed.append(f"worst queries by {result['ranked_by'][0]['name']}:")
    for row in result["worst"][:5]:
        rank = f"rank {row['rank']}" if row["rank"] else "not found"
        printed.append(f"  line {row['line']}: {row['query'][:80]}  (relevant: {row['relevant'][:60]}; {rank})")
    if "verdict" in result:
        printed += ["", result["verdict"]]
    return printed + ([f"Report: {result['report']}"] if "report" in result else [])
