"""`bertkit index`: make your documents searchable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.config import option
from bertkit.settings.finetune import TextSettings

if TYPE_CHECKING:
    from bertkit.commands.jobs import Job
    from bertkit.inference.predictor import Predictor
    from bertkit.retrieval.index import Index
    from bertkit.retrieval.passages import Passage

DEFAULT = Path("index")
FIRST = 2000  # characters of a document, by which its language is recognized
OWN = ("passage", "vectors", "dimensions", "engine")  # settings that an index keeps for whatever is added to it


@dataclass(frozen=True, kw_only=True)
class Settings(TextSettings):
    """Options of `bertkit index`."""

    files: tuple[Path, ...] = option(
        (),
        "txt (an empty line between documents), md, html, pdf, docx, jsonl, csv, parquet, or folders.",
        argument=True,
    )
    model: str = option(
        "auto",
        "The embedding model: embedded name, folder, or hub name; auto: the embedded one of the texts' language.",
    )
    out: Path = option(DEFAULT, "The folder of the index.")
    store: str = option(
        "", "Keep the index in PostgreSQL with pgvector instead: postgresql://USER@HOST/DATABASE?index=NAME. The same "
        "URL then names it for search, ask and evaluate.",
        metavar="URL",
    )  # fmt: skip
    add: bool = option(
        False, "Add the files to the index; documents with the same id, or of the same file, are replaced."
    )
    delete: tuple[str, ...] = option((), "Delete a document by its id, or all of a file by its name. May be repeated.")
    id: str = option("id", "The column of document ids; without one, ids are made of the file's name and a number.")
    passage: int = option(96, "Approximate tokens per passage: whole sentences up to this length.", at_least=8)
    vectors: str = option(
        "f16", "Search in vectors of 16 bits, or in smaller copies with the best compared again.",
        choices=("f16", "int8", "binary"),
    )  # fmt: skip
    dimensions: int = option(
        0, "Keep only the first numbers of each vector (for models of finetune embed --matryoshka); 0: all.", at_least=0
    )
    engine: str = option(
        "auto", "Compare with every vector, or search a graph (usearch; hnsw with --store); auto: a graph from 200,000 "
        "passages on, with --store every vector.",
        choices=("auto", "exact", "usearch", "hnsw"),
    )  # fmt: skip
    on: str = option(
        "", "Where passages are embedded: here, or by Ray's workers (RAY_ADDRESS names a cluster), as a job that can "
        "be killed and continued.", choices=("", "ray"),
    )  # fmt: skip
    workers: int = option(0, "Workers of Ray, each with --threads threads (default: 1); 0: one per core.", at_least=0)


def run(settings: Settings) -> dict[str, Any]:
    """Split documents into passages and store their vectors and words for `search` and `ask`; or add or delete some."""
    from bertkit import machine
    from bertkit.checkpoint.vocabulary_fit import LOOKED_AT, report_unknown, starting_model
    from bertkit.config import to_plain, to_toml
    from bertkit.data.readers import read_documents_with_ids
    from bertkit.errors import UserError
    from bertkit.files.atomic import check_folder
    from bertkit.inference.predictor import Predictor
    from bertkit.notify import note, track
    from bertkit.retrieval.index import shown
    from bertkit.retrieval.passages import read_passages
    from bertkit.tasks import make

    store = _store(settings)
    if not settings.store:
        check_folder(settings.out)
    machine.limit_onednn_cache()
    machine.set_up(settings.threads)
    if settings.add or settings.delete:
        return _change(settings, store)
    if not settings.files:
        raise UserError("No files were given. Name the documents to index.")
    task = make("classify")
    files = _files(settings)
    texts = (each.text for each in read_documents_with_ids(files, settings.text, settings.id, settings.encoding))
    some = task.from_inputs([text[:FIRST] for text in islice(texts, LOOKED_AT)])
    model = starting_model(settings.model, task, some)
    predictor = Predictor.load(model, settings.precision, settings.device)
    if settings.dimensions > predictor.width:
        raise UserError(f"--dimensions is {settings.dimensions}, but the vectors of {model} have {predictor.width}.")

    def passages() -> Iterator[Passage]:
        documents = read_documents_with_ids(files, settings.text, settings.id, settings.encoding)
        return iter(read_passages(documents, predictor.tokenizer, settings.passage))

    if not settings.store and (settings.out / "index.json").exists():
        note(f"{settings.out} holds an index, which is replaced; --add would add to it.")
    start = time.perf_counter()
    job = _job(settings, model, predictor, passages()) if settings.on == "ray" else None
    facts = store.build(
        predictor, model, iter(track(passages(), "indexing")), settings.store or settings.out,
        to_toml(to_plain(replace(settings, on="", workers=0))),
        **({"embed": lambda texts: job.stored(_rows(texts))} if job else {}),
        passage=settings.passage, vectors=settings.vectors, engine=settings.engine, dimensions=settings.dimensions,
    )  # fmt: skip
    if job:
        job.finish()
    seconds = time.perf_counter() - start
    facts["unknown_share"] = report_unknown(predictor, model)
    return {"folder": shown(settings.store or settings.out), "model": model, **facts, "seconds": round(seconds, 2)}


def _job(settings: Settings, model: str, predictor: Predictor, passages: Iterator[Passage]) -> Job:
    """Have all passages embedded by workers of Ray, as `write_segment` would: as many at a time."""
    from bertkit.commands.jobs import Job, Rows, chunks_of

    rows = Rows(
        "embed", model, file=settings.files[0], engine="torch", normalize=True, threads=settings.threads or 1,
        prompt_text=predictor.pooling.prompt_for("document"), precision=settings.precision, device=settings.device,
    )  # fmt: skip
    job = Job(rows, settings.out)
    job.run(chunks_of(row for passage in passages for row in _rows([passage.text])), settings.workers)
    return job


def _rows(texts: list[str]) -> list[tuple[int, str]]:
    """Passages of an index as the rows that the workers of `--on ray` embed: line 0, because passages have none."""
    return [(0, text) for text in texts]


def _store(settings: Settings) -> Any:
    """Where `bertkit index` writes: the module for a folder, or for a database."""
    from bertkit.errors import UserError
    from bertkit.retrieval import index
    from bertkit.retrieval.index import in_database

    if settings.on == "ray" and (settings.store or settings.add or settings.delete):
        raise UserError("--on ray makes new indexes in folders. Remove it, or --store, --add and --delete.")
    if settings.store and settings.engine == "usearch":
        raise UserError("--engine is usearch, which searches folders. With --store, the graph is hnsw.")
    if not settings.store and settings.engine == "hnsw":
        raise UserError("--engine is hnsw, which needs --store. In a folder, the graph is usearch.")
    if not settings.store:
        if str(settings.out).startswith(("postgresql:/", "postgres:/")):
            raise UserError("--out is a folder. Pass the URL of a database with --store.")
        return index
    if settings.out != DEFAULT:
        raise UserError("--store writes to the database, not to a folder. Remove --out.")
    if not in_database(settings.store):
        raise UserError("--store takes a URL: postgresql://USER@HOST/DATABASE?index=NAME")
    from bertkit.retrieval import postgres

    postgres.Place.of(settings.store).connect().close()  # before anything is computed
    return postgres


def _change(settings: Settings, store: Any) -> dict[str, Any]:
    """`bertkit index --add` and `--delete`: add documents to an index, and delete some."""
    from bertkit.data.readers import read_documents_with_ids
    from bertkit.errors import UserError
    from bertkit.notify import track
    from bertkit.retrieval.index import is_index, shown
    from bertkit.retrieval.passages import read_passages

    if settings.files and not settings.add:
        raise UserError("--delete takes ids. To add files at the same time, pass --add too.")
    if settings.add and not settings.files:
        raise UserError("--add needs files: bertkit index --add FILE --out INDEX")
    start = time.perf_counter()
    model = "" if settings.model == "auto" else settings.model
    if not settings.store and not is_index(settings.out):
        raise UserError(f"{settings.out} is not an index. Make one first: bertkit index FILES --out {settings.out}")

    asked = {name: value for name in OWN if (value := getattr(settings, name)) != getattr(Settings, name)}
    if asked and not settings.add:
        raise UserError(f"--{next(iter(asked))} is for new files, not for --delete. Leave it out.")

    def read(index: Index) -> Iterator[Passage]:
        for name, value in asked.items():
            if (own := index.about.get(name, getattr(Settings, name))) != value:
                raise UserError(
                    f"--{name} is {value}, and {shown(settings.store or settings.out)} was made with {own}. Leave it "
                    "out, or make the index again without --add."
                )
        documents = read_documents_with_ids(_files(settings), settings.text, settings.id, settings.encoding)
        size = int(index.about.get("passage", settings.passage))
        return iter(track(read_passages(documents, index.predictor.tokenizer, size), "indexing"))

    facts = store.change(
        settings.store or settings.out, read if settings.add else None, settings.delete, model=model,
        precision=settings.precision, device=settings.device,
    )  # fmt: skip
    return {"folder": shown(settings.store or settings.out), **facts, "seconds": round(time.perf_counter() - start, 2)}


def _files(settings: Settings) -> list[Path]:
    """The files `bertkit index` reads: never an index, which may be among the documents it was made from."""
    from bertkit.data.readers import WHOLE_FILES, document_files
    from bertkit.errors import UserError
    from bertkit.retrieval.index import is_index

    if any(str(path) == "-" for path in settings.files):
        raise UserError("`bertkit index` reads its files twice, so it cannot read from a pipe. Pass a file.")
    if own := next(filter(is_index, settings.files), None):
        raise UserError(f"{own} is itself an index. Pass the documents, and a different folder with --out.")
    files = document_files(settings.files, leave_out=is_index, more=tuple(WHOLE_FILES))
    return list(dict.fromkeys(files))  # a file and its folder may both be named


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `index`: the index and its size, or what was changed, as one line."""
    if "added" in result:
        return [
            f"{result['folder']}: {result['added']:,} passages added, {result['replaced']:,} documents replaced, "
            f"{result['deleted']:,} deleted; {result['passages']:,} passages now, {result['seconds']} s"
        ]
    made = [
        f"{result['folder']}: {result['passages']:,} passages from {result['files']:,} files, "
        f"{result['tokens']:,} tokens, vectors by {result['model']}, {result['seconds']} s"
    ]
    return [*made, f"recall@10 against exact search: {result['recall']:.3f}"] if "recall" in result else made
