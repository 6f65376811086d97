"""`bertkit embed`: turn texts into vectors. `bertkit features`: which layers' vectors suit your labels or tags."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bertkit.commands import SharedCommand
from bertkit.config import Common, RowsOptions, option
from bertkit.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from bertkit.ancestors.elmo.model import Elmo
    from bertkit.inference.predictor import Predictor


@dataclass(frozen=True, kw_only=True)
class Settings(RowsOptions):
    """Options of `bertkit embed`."""

    model: str = option(help="Embedded name, folder (also of an ELMo), or hub name.", argument=True)
    file: Path = option(help="csv, tsv, jsonl, parquet or txt (one text per line).", argument=True)
    out: Path = option(help="The output file: .npy, .parquet or .jsonl.", default=Path("embeddings.npy"))
    layers: str = option(
        "last",
        "embeddings, last, second-to-last, sum-last-4, concat-last-4, sum-all, layer numbers (-1,-2), "
        "or auto: whichever of the six separates the labels of --probe best. ELMo: mix, all, last, or numbers.",
    )
    probe: Path | None = option(None, "Labelled rows for --layers auto; 2,000 are enough.")
    label: str = option("label", "Name (or number) of the label column of --probe.")
    pool: str = option(
        "",
        "How a text's token vectors become one: mean, cls, max, lasttoken, weightedmean, mean_sqrt_len_tokens, several "
        "joined by +, or none (default: as the model was trained, else mean).",
    )
    prompt: str | None = option(
        None, "Name of the model's prompt to put before every text, e.g. query; '' for none (default: its default one)."
    )
    prompt_text: str | None = option(None, "The text of a prompt to put before every text, e.g. 'query: '.")
    text: str = option("text", "Name (or number) of the text column.")
    on_long: str = option(
        "window", "Texts longer than the model's limit: read in windows, truncate, or refuse.",
        choices=("window", "truncate", "error"),
    )  # fmt: skip
    normalize: bool = option(False, "Scale every vector to length 1.")
    encoding: str = option("utf-8", "Encoding of the file.")


def run(settings: Settings) -> dict[str, Any]:
    """Turn the texts of a file into vectors, in order and in bounded memory."""
    from bertkit.checkpoint.vocabulary_fit import report_unknown
    from bertkit.data.readers import read_rows
    from bertkit.data.write_vectors import open_vectors
    from bertkit.files.atomic import not_the_input
    from bertkit.inference.predictor import AT_ONCE, Predictor
    from bertkit.notify import note, track
    from bertkit.text.checks import by_line

    _check(settings)
    not_the_input(settings.out, settings.file, settings.probe)
    worker = Worker(settings)
    if isinstance(worker.model, Predictor):
        note(f"{settings.model}: {worker.model.computed_by}.")
    rows = read_rows(settings.file, text=settings.text, labelled=False, encoding=settings.encoding)
    compute: Callable[[list[Any]], np.ndarray] = worker.compute
    job = None
    if "ray" in (settings.on, settings.engine):
        from bertkit.commands.jobs import Job, chunks_of, rows_of

        if settings.pool == "none":
            raise UserError("--pool none writes a vector per token, and --on ray one per text. Leave one of them out.")
        chosen = replace(settings, layers=worker.layers, probe=None)
        job = Job(rows_of("embed", chosen), settings.out)
        job.run(chunks_of((row.line, row.text) for row in rows), settings.workers)
        compute = job.stored
        rows = read_rows(settings.file, text=settings.text, labelled=False, encoding=settings.encoding)
    source = iter(track(rows, f"embedding {settings.file.name}"))
    start = time.perf_counter()
    width = 0
    with open_vectors(settings.out) as out:
        while chunk := list(islice(source, AT_ONCE)):
            texts = [row.text for row in chunk]
            if settings.pool == "none":
                with by_line([row.line for row in chunk], str(settings.file)):
                    answers = worker.embedder.tokens(texts)
                columns = {name: [text[name] for text in answers] for name in ("vectors", "tokens", "offsets")}
                out.write_tokens(texts, **columns)
                width = columns["vectors"][0].shape[-1]
            else:
                vectors = compute([(row.line, row.text) for row in chunk])
                out.write(texts, vectors)
                width = vectors.shape[-1]
    if job is not None:
        job.finish()
    seconds = time.perf_counter() - start
    model, embedder = worker.model, worker.embedder
    return {
        "file": str(settings.out), "rows": out.count, "width": width, "layers": worker.layers,
        "pool": settings.pool or embedder.pool, "prompt": worker.prompt,
        "precision": embedder.precision, "engine": model.engine.name if isinstance(model, Predictor) else "torch",
        "seconds": round(seconds, 2),
        "texts_per_second": round(out.count / seconds, 1),
        "unknown_share": report_unknown(model, settings.model),
    }  # fmt: skip


class Worker:
    """A model that gives chunks of texts their vectors; every engine for rows calls it (jobs.py)."""

    def __init__(self, settings: Settings) -> None:
        from bertkit.commands.jobs import opened
        from bertkit.inference.predictor import Predictor

        model = opened(settings)
        self.settings, self.model, self.layers, self.prompt = settings, model, settings.layers, ""
        if isinstance(model, Predictor):
            self.layers = _probed(settings, model) if settings.layers == "auto" else settings.layers
            self.prompt = model.pooling.prompt(settings.prompt, settings.prompt_text)
            self.embedder = _of_encoder(settings, model, self.layers, self.prompt)
        elif hasattr(model, "embed_tokens"):  # an ELMo; its class is torch's, which may not be installed
            self.embedder = _of_elmo(settings, cast("Elmo", model))
        else:
            raise UserError(f"{settings.model} cannot turn texts into vectors. Use an encoder, e.g. 'en', or an ELMo.")

    def compute(self, rows: list[tuple[int, str]]) -> np.ndarray:
        """A worker of `embed`: the vectors of some texts, which are given with their lines: (rows, width)."""
        from bertkit.text.checks import by_line

        with by_line([line for line, _ in rows], str(self.settings.file)):
            return self.embedder.texts([text for _, text in rows])

    def columns(self, given: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """A worker of `embed`: the column `vector`, of texts given in their column."""
        texts = given[self.settings.text]
        return {"vector": [list(map(float, row)) for row in self.compute(list(enumerate(texts, 1)))]}


class Embedder(NamedTuple):
    """texts: vectors of texts (n, width). tokens: per text {tokens, offsets, vectors}. pool: the model's own."""

    texts: Callable[[list[str]], np.ndarray]
    tokens: Callable[[list[str]], list[dict[str, Any]]]
    pool: str
    precision: str


def _of_encoder(s: Settings, model: Predictor, layers: str, prompt: str) -> Embedder:
    """How `embed` computes vectors with an encoder."""
    import numpy as np

    chosen = (layers, s.pool, s.on_long, s.normalize or None)
    return Embedder(
        lambda texts: np.asarray(model.embed(texts, *chosen, prompt_text=prompt)),
        lambda texts: model.embed_tokens(texts, layers, s.on_long, s.normalize, prompt),
        model.pooling.mode, model.precision,
    )  # fmt: skip


def _of_elmo(s: Settings, model: Elmo) -> Embedder:
    """How `embed` computes vectors with ELMo."""
    import numpy as np

    def scaled(vectors: np.ndarray) -> np.ndarray:
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12) if s.normalize else vectors

    return Embedder(
        lambda texts: scaled(np.asarray(model.embed(texts, s.layers, s.pool or "mean"))),
        lambda texts: [row | {"vectors": scaled(row["vectors"])} for row in model.embed_tokens(texts, s.layers)],
        "mean", "fp32",
    )  # fmt: skip


def _check(settings: Settings) -> None:
    """Refuse options of `embed` that do not go together."""
    from bertkit.model.pooling import check_mode

    check_mode(settings.pool or "mean", ("none",))
    if settings.layers == "auto" and settings.probe is None:
        raise UserError(
            "--layers auto needs labelled rows: pass --probe FILE (a text and a label per row), "
            "or name the layers, e.g. --layers last."
        )
    if settings.probe is not None and settings.layers != "auto":
        raise UserError(
            f"--probe is only used with --layers auto, but --layers is {settings.layers!r}. Leave one of them out."
        )


def _probed(settings: Settings, predictor: Predictor) -> str:
    """`embed --layers auto`: the layers that separate the labelled rows best; all scores are reported."""
    from bertkit.ancestors.bert_features import best_layers, probe, table
    from bertkit.data.readers import read_rows
    from bertkit.notify import note

    assert settings.probe is not None
    rows = list(read_rows(settings.probe, text=settings.text, label=settings.label, encoding=settings.encoding))
    texts, labels = [row.text for row in rows], [str(row.label) for row in rows]
    scores = probe(predictor.embed, predictor.config.depth, texts, labels, settings.seed, settings.pool)
    note(table(scores))
    return best_layers(scores)


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `embed`: the file, its shape and the speed; the prompt, if any, as another line."""
    prompt = [f"Prompt before every text: {result['prompt']!r}"] if result["prompt"] else []
    return [
        f"{result['file']}: {result['rows']:,} texts × {result['width']} ({result['layers']}, {result['pool']}, "
        f"{result['precision']}), {result['seconds']} s, {result['texts_per_second']} texts/s",
        *prompt,
    ]


# ---- bertkit features


@dataclass(frozen=True, kw_only=True)
class FeaturesSettings(Common):
    """Options of `bertkit features`."""

    model: str = option(help="Embedded name, folder, or hub name.", argument=True)
    file: Path = option(
        help="Labelled texts (csv, tsv, jsonl, parquet), or tagged sentences (CoNLL, or jsonl with tokens and tags).",
        argument=True,
    )
    dev: Path | None = option(None, "Tagged sentences to score on (default: a fifth of FILE).")
    task: str = option("auto", "What the file contains; auto: detect.", choices=("auto", "classify", "tag"))
    text: str = option("text", "Name (or number) of the text column.")
    label: str = option("label", "Name (or number) of the label column.")
    pool: str = option("mean", "Texts: how token vectors become one.", choices=("mean", "cls"))
    seeds: int = option(1, "Tags: number of taggers per choice; their spread is shown.", at_least=1)
    epochs: int = option(0, "Tags: passes over the sentences; 0: until it stops improving.", at_least=0)
    encoding: str = option("utf-8", "Encoding of the file.")


def run_features(settings: FeaturesSettings) -> dict[str, Any]:
    """Compare the six choices of layers as features of labelled texts (linear probe) or tagged words (BiLSTM)."""
    from bertkit import machine
    from bertkit.inference.predictor import Predictor

    machine.set_up(settings.threads)
    predictor = Predictor.load(settings.model, settings.precision, settings.device)
    tagged = settings.task == "tag" or (settings.task == "auto" and _is_tagged(settings))
    rows = _tag_features(settings, predictor) if tagged else _text_features(settings, predictor)
    best = max(rows, key=lambda row: row["score"])["choice"]
    return {"model": settings.model, "file": str(settings.file), "task": "tag" if tagged else "classify",
            "best": best, "rows": rows}  # fmt: skip


def _is_tagged(settings: FeaturesSettings) -> bool:
    """Whether `features` reads tagged sentences from a file, by its ending or the keys of its first JSON line."""
    import json

    from bertkit.files.open import kind_of, open_text

    if kind_of(settings.file) not in ("jsonl", "csv", "tsv", "parquet", "json", "xlsx"):
        return True
    if kind_of(settings.file) != "jsonl":
        return False
    first = next(iter(open_text(settings.file, settings.encoding)), "{}")
    try:
        row = json.loads(first)
    except ValueError:
        return False  # the reader will say what is wrong
    return isinstance(row, dict) and "tokens" in row


def _text_features(settings: FeaturesSettings, predictor: Predictor) -> list[dict[str, Any]]:
    """The probe's score of each choice of layers, for labelled texts."""
    from bertkit.ancestors.bert_features import probe
    from bertkit.data.readers import read_rows

    rows = list(read_rows(settings.file, text=settings.text, label=settings.label, encoding=settings.encoding))
    texts, labels = [row.text for row in rows], [str(row.label) for row in rows]
    table = probe(predictor.embed, predictor.config.depth, texts, labels, settings.seed, settings.pool)
    return [{"choice": row["choice"], "metric": "accuracy", "score": row["accuracy"], "spread": row["spread"]}
            for row in table]  # fmt: skip


def _tag_features(settings: FeaturesSettings, predictor: Predictor) -> list[dict[str, Any]]:
    """The score of each choice of layers, for tagged sentences."""
    import numpy as np

    from bertkit.ancestors.bert_features import six_features
    from bertkit.notify import note
    from bertkit.tasks import make
    from bertkit.tasks.base import Reading

    def read(path: Path) -> list[Any]:
        return [row.sentence for row in make("tag").read(path, Reading(encoding=settings.encoding))]

    train = read(settings.file)
    if settings.dev is not None:
        dev = read(settings.dev)
    else:
        order = np.random.default_rng(settings.seed).permutation(len(train))
        held = max(1, len(train) // 5)
        note(f"No --dev file: {held:,} of {len(train):,} sentences are held out for scoring.")
        train, dev = [train[n] for n in order[held:]], [train[n] for n in order[:held]]
    table = six_features(predictor, train, dev, seeds=settings.seeds, epochs=settings.epochs)
    return [{"choice": row["choice"], "metric": row["metric"], "score": row["mean"], "spread": row["spread"]}
            for row in table]  # fmt: skip


def features_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `features`: one choice per line, the best marked."""
    printed = [f"{'layers':16} {result['rows'][0]['metric']}"]
    for row in result["rows"]:
        mark = "  best" if row["choice"] == result["best"] else ""
        printed.append(f"{row['choice']:16} {row['score']:.4f} ± {row['spread']:.4f}{mark}")
    return printed


features = SharedCommand(FeaturesSettings, run_features, features_lines)
