"""Rows through many workers: chunks are computed anywhere, in any order, and kept until all of them are there.

`Rows` is a model as a function of columns, for any engine that brings batches of rows: Ray Data, Spark, or `Job`, which
is `--on ray` of `predict`, `embed` and `index`. A job keeps the result of every chunk in `OUT.job`, under a name made
of the chunk's content and of everything that decides its result. Run again, it computes only what is missing; the
output is then written by the plain command, with the stored results in place of the model. `prepare --on ray` needs no
job: the store that it writes continues by itself, so its chunks only have to come back in order.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError

if TYPE_CHECKING:
    from bertkit.data.prepare.pieces import Arrays

VERBS = ("predict", "embed")
AHEAD = 2  # chunks that a worker has been given: the one it computes, and the next
# A loaded machine needs longer than Ray's 30 seconds to start it.
PATIENCE = {"RAY_raylet_start_wait_time_s": "300", "RAY_agent_register_timeout_ms": "300000"}
Chunk = list[Any]


def opened(settings: Any) -> Any:
    """The model of a job's worker; with `--engine ray`, computed by what `auto` chooses."""
    from bertkit import machine
    from bertkit.loading import open_model

    machine.limit_onednn_cache()
    machine.set_threads(settings.threads)
    engine = "auto" if settings.engine == "ray" else settings.engine
    return open_model(settings.model, settings.precision, settings.device, engine=engine)


class Rows:
    """A model as a function of columns: {"text": […]} → {"text": […], "label": […], "score": […], …}.

    verb: predict or embed; options: those of the command. It is sent to workers without the model, which opens at the
    first call, once per worker. A row that has no answer raises UserError; pass on_long="window" to read long texts.
    """

    def __init__(self, verb: str, model: str, **options: Any) -> None:
        if verb not in VERBS:
            raise UserError(f"Rows are for {' and '.join(VERBS)}, not for {verb!r}.")
        self.verb, self.model, self.options = verb, model, options
        self._worker: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the open model."""
        return _again, (self.verb, self.model, self.options)

    @property
    def worker(self) -> Any:
        """The open model of this job's process."""
        if self._worker is None:
            module = import_module(f"bertkit.commands.{self.verb}")
            settings = module.Settings(model=self.model, **{"file": "rows", "threads": 1, **self.options})
            self._worker = module.Worker(settings)
        return self._worker

    def __call__(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """The given columns and those of the answers."""
        given = {name: [_plain(value) for value in values] for name, values in columns.items()}
        made: dict[str, list[Any]] = self.worker.columns(given)
        return given | made


def _again(verb: str, model: str, options: dict[str, Any]) -> Rows:
    return Rows(verb, model, **options)


def _plain(value: Any) -> Any:
    """A cell of numpy or Arrow in a job as a Python value."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


# ---- A job: what is missing is computed by Ray, and stored


class Job:
    """The stored results of a command's chunks. out: its output file, beside which they are kept."""

    def __init__(self, rows: Rows, out: Path) -> None:
        from bertkit import __version__
        from bertkit.checkpoint.locate import facts_of_model

        self.rows, self.out, self.folder = rows, out, out.with_name(out.name + ".job")
        facts = facts_of_model(rows.model)
        decides = {name: value for name, value in rows.options.items() if name not in ("out", "on", "workers", "seed")}
        self.key = repr((__version__, rows.verb, sorted(decides.items(), key=str), facts)).encode()
        self.next = 0

    def place(self, number: int, chunk: Chunk) -> Path:
        """Where the result of a job's chunk is or will be."""
        content = hashlib.blake2b(self.key + repr(chunk).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        return self.folder / f"{number:07}-{content}"

    def stored(self, chunk: list[Any]) -> Any:
        """A job's result of the next chunk: what the plain command calls instead of the model."""
        path = self.place(self.next, chunk)
        self.next += 1
        if not path.is_file():
            raise UserError(f"{self.rows.options['file']} changed while it was read. Run the same command again.")
        return RESULTS[self.rows.verb][1](path)

    def run(self, chunks: Iterable[Chunk], workers: int = 0) -> None:
        """Compute and store what is missing of a job. Rows without an answer are listed, when all others have one."""
        from bertkit.files.atomic import atomic_write, make_folder
        from bertkit.files.lock import RunLock
        from bertkit.notify import note

        make_folder(self.folder)
        listed = self.out.with_name(self.out.name + ".bad.jsonl")
        done_before = 0
        refused: dict[Path, list[str]] = {}

        def missing() -> Iterator[tuple[Path, Chunk]]:
            nonlocal done_before
            for number, chunk in enumerate(chunks):
                path = self.place(number, chunk)
                if path.is_file():
                    done_before += 1
                else:
                    yield path, chunk

        with RunLock(self.folder, "working in"):
            threads = int(self.rows.options.get("threads") or 1)
            for path, (result, problems) in by_ray(_Answers(self.rows), missing(), workers, threads):
                if problems:
                    refused[path] = problems
                else:
                    atomic_write(path, RESULTS[self.rows.verb][0](result))
        if done_before:
            note(f"{done_before:,} chunks were computed before; they are kept in {self.folder}.")
        if bad := [text for path in sorted(refused) for text in refused[path]]:  # in the order of the rows
            atomic_write(listed, "".join(json.dumps({"error": text}, ensure_ascii=False) + "\n" for text in bad))
            raise UserError(
                f"{len(bad):,} rows have no answer; {listed} lists them. The first: {bad[0]} Correct them and run the "
                "same command again: what was computed is kept."
            )
        listed.unlink(missing_ok=True)

    def finish(self) -> None:
        """Remove a job's stored results: the output is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _vectors_to_bytes(vectors: Any) -> bytes:
    import io

    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, vectors)
    return buffer.getvalue()


def _vectors_from(path: Path) -> Any:
    import numpy as np

    return np.load(path, allow_pickle=False)


def _answers_to_bytes(answers: list[dict[str, Any]]) -> bytes:
    from bertkit.data.write_rows import as_json

    return "".join(as_json(answer) + "\n" for answer in answers).encode()


def _answers_from(path: Path) -> Any:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


RESULTS: dict[str, tuple[Callable[[Any], bytes], Callable[[Path], Any]]] = {
    "predict": (_answers_to_bytes, _answers_from), "embed": (_vectors_to_bytes, _vectors_from),
}  # fmt: skip


def chunks_of(items: Iterable[Any]) -> Iterator[Chunk]:
    """A job's chunks: as many items as the plain command computes together, since a result's bytes depend on it."""
    from bertkit.inference.predictor import AT_ONCE

    source = iter(items)
    while chunk := list(islice(source, AT_ONCE)):
        yield chunk


class _Answers:
    """What a worker does for a job: the result of a chunk, or what is wrong with its rows, each by itself."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __call__(self, chunk: Chunk) -> tuple[Any, list[str]]:
        try:
            return self.rows.worker.compute(chunk), []
        except UserError:
            problems = []
            for item in chunk:
                try:
                    self.rows.worker.compute([item])
                except UserError as error:
                    problems.append(str(error))
            if not problems:
                raise
            return None, problems


class _Arrays:
    """What a worker does for `prepare`: the arrays of some documents. The tokenizer opens once per worker."""

    def __init__(self, tokenizer: Path, segmenting: bool) -> None:
        self.tokenizer, self.segmenting = tokenizer, segmenting
        self._encoder: Any = None

    def __call__(self, documents: Sequence[str]) -> bytes:
        from bertkit.data.prepare.pieces import PieceEncoder, arrays_of
        from bertkit.text.tokenizer import Tokenizer

        self._encoder = self._encoder or PieceEncoder(Tokenizer.load(self.tokenizer), self.segmenting)
        return arrays_of(documents, self._encoder).to_bytes()


def prepared(
    chunks: Iterable[Any],
    documents_of: Callable[[Any], Sequence[str]],
    tokenizer: Path,
    segmenting: bool,
    workers: int,
) -> Generator[tuple[Any, Arrays], None, None]:
    """Chunks of documents by workers of Ray, results in order: in place of `prepare`'s own processes."""
    from bertkit.data.prepare.pieces import Arrays as Answer

    work = _Arrays(tokenizer.resolve(), segmenting)
    given = ((chunk, documents_of(chunk)) for chunk in chunks)
    for chunk, message in by_ray(work, given, workers, in_order=True):
        yield chunk, Answer.from_bytes(message)


class _Remote:
    """What runs in a worker of Ray."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work

    def compute(self, chunk: Any) -> Any:
        """The result of a chunk."""
        return self.work(chunk)


def by_ray(
    work: Callable[[Any], Any],
    chunks: Iterable[tuple[Any, Any]],
    workers: int = 0,
    threads: int = 1,
    in_order: bool = False,
) -> Iterator[tuple[Any, Any]]:
    """Compute chunks by actors of Ray: (name, chunk) in, (name, result) out, in their order or as they finish.

    A worker that dies is replaced, its chunk redone. Few chunks are under way at a time, so memory is bounded.
    RAY_ADDRESS names a cluster; without it, Ray starts here.
    """
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs Ray. Run: pip install 'bertkit[ray]'") from None
    os.environ.update({name: value for name, value in PATIENCE.items() if name not in os.environ})
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # Ray raises plain exceptions
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"Ray did not start ({reason}). Check RAY_ADDRESS, or run without --on ray.") from None
    try:
        count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
        actor = ray.remote(num_cpus=threads, max_restarts=-1, max_task_retries=-1)(_Remote)
        free = [each for each in [actor.remote(work) for _ in range(count)] for _ in range(AHEAD)]
        running: dict[Any, tuple[Any, Any]] = {}

        def finished() -> tuple[Any, Any]:
            wanted = list(running)[: 1 if in_order else None]
            done = ray.wait(wanted, num_returns=1)[0][0]
            name, worker = running.pop(done)
            free.append(worker)
            return name, ray.get(done)

        for name, chunk in chunks:
            while not free:
                yield finished()
            worker = free.pop(0)
            running[worker.compute.remote(chunk)] = name, worker
        while running:
            yield finished()
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[-300:]
        raise UserError(
            f"A worker of Ray failed ({reason}). What was computed is kept: run the same command again."
        ) from None
    finally:
        if started:
            ray.shutdown()


def rows_of(verb: str, settings: Any) -> Rows:
    """The callable of a command's settings that a job runs; `--engine ray` leaves the engine to the worker."""
    options = {name: value for name, value in asdict(settings).items() if name != "model"}
    engine = {"engine": "auto"} if options["engine"] == "ray" else {}
    return Rows(verb, settings.model, **options | engine | {"threads": settings.threads or 1})
