"""`bertkit predict`: a model's answers to the rows of a file, in order, in constant memory.

`bertkit rewrite`: the same for a Transformer, which answers a text with another.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.commands import SharedCommand
from bertkit.config import RowsOptions, option
from bertkit.settings.finetune import PairSettings, TextSettings

if TYPE_CHECKING:
    from bertkit.ancestors.transformer.model import Seq2Seq
    from bertkit.inference.predictor import Predictor
    from bertkit.loading import ContenderPredictor

TEXTS_AT_ONCE = 512  # texts to rewrite that are read, sorted by length and written together


@dataclass(frozen=True, kw_only=True)
class Settings(RowsOptions, PairSettings):
    """What `predict` needs."""

    model: str = option(help="A fine-tuned model's folder.", argument=True)
    file: str = option(help="Rows to answer, or - for lines from standard input.", argument=True)
    out: Path | None = option(
        None,
        "Output file: .csv, .tsv, .xlsx or .parquet, with the input's columns and one column per score; .jsonl, with "
        "the input's columns under 'input'; without it JSON lines (--json: an array) on standard output.",
    )
    on_long: str = option(
        "", "How to treat long texts (default: as in training).", choices=("", "window", "truncate", "error")
    )


@dataclass
class Count:
    """What was answered so far."""

    rows: int = 0
    rows_cut: int = 0
    tokens_cut: int = 0
    tokens: int = 0
    seconds: float = 0.0


def run(settings: Settings) -> dict[str, Any] | Iterator[dict[str, Any]]:
    """Answer every row of a file."""
    from bertkit.errors import UserError
    from bertkit.files.atomic import not_the_input
    from bertkit.files.open import kind_of

    not_the_input(settings.out, settings.file)
    worker = Worker(settings)
    reading = worker.predictor.task.reading_of(settings.file, _reading(settings), ("text", "text_b"))
    settings = replace(settings, text=reading.text, text_b=reading.text_b)
    compute: Callable[[list[Any]], list[dict[str, Any]]] = worker.compute
    job = None
    if "ray" in (settings.on, settings.engine):
        from bertkit.commands.jobs import Job, chunks_of, rows_of

        if settings.out is None or settings.file == "-":
            raise UserError("--on ray needs a file and --out FILE: its progress is kept next to it.")
        job = Job(rows_of("predict", settings), settings.out)
        job.run(chunks_of(examples(settings, worker.predictor)), settings.workers)
        compute = job.stored
    count = Count()
    given: Iterable[Any] = examples(settings, worker.predictor)
    tables = settings.out is not None and kind_of(settings.out) != "jsonl"
    most = 0
    if tables and worker.predictor.task.scores_choices:
        given = list(given)  # the row with most choices decides the columns
        most = max((len(example.choices) for example in given), default=0)
    answers = _answers(settings, worker.predictor, given, compute, count)
    if settings.out is None:  # whoever called prints them while they come
        return (answer for _, answer in answers)
    result = _written(settings.out, as_rows(answers, tables, most), count)
    if job is not None:
        job.finish()
    return result


class Worker:
    """A fine-tuned model that answers chunks of rows; every engine for rows calls it (jobs.py)."""

    def __init__(self, settings: Settings) -> None:
        from bertkit.commands.jobs import opened
        from bertkit.errors import UserError
        from bertkit.inference.predictor import Predictor
        from bertkit.loading import ContenderPredictor

        predictor = opened(settings)
        if not isinstance(predictor, (Predictor, ContenderPredictor)):
            hint = (
                "`bertkit rewrite` is its command" if hasattr(predictor, "rewrite") else "Run `bertkit finetune` first"
            )
            raise UserError(f"{settings.model} has not been fine-tuned, so it cannot predict. {hint}.")
        self.settings, self.predictor = settings, predictor

    def compute(self, examples: list[Any]) -> list[dict[str, Any]]:
        """A worker of `predict`: the answers to some examples of the task."""
        answers = self.predictor.predict_examples(examples, self.settings.on_long, file=self.settings.file)
        for answer in answers:
            answer.pop("vectors", None)  # `embed` writes those
        return answers

    def columns(self, given: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """A worker of `predict`: answers to rows given as columns, as columns. They never overwrite a given column."""
        count = len(next(iter(given.values()), []))
        inputs = [{name: values[n] for name, values in given.items()} for n in range(count)]
        flat = [flattened(answer) for answer in self.compute(self.predictor.task.from_inputs(inputs))]
        names = own_names(dict.fromkeys(name for row in flat for name in row), given)
        return {own: [row.get(name) for row in flat] for name, own in names.items()}


def _written(
    out: Path | None, answers: Iterator[dict[str, Any]], count: Count | RewriteCount
) -> dict[str, Any] | Iterator[dict[str, Any]]:
    """Write answers to a file, or pass them on where there is none."""
    from bertkit.data.write_rows import write_all

    if out is None:
        return answers
    write_all(out, answers)
    return {"file": str(out), **asdict(count)}


Row = dict[str, Any]


def _answers(
    settings: Settings,
    predictor: Predictor | ContenderPredictor,
    given: Iterable[Any],
    compute: Callable[[list[Any]], list[dict[str, Any]]],
    count: Count,
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """`predict`: each row's cells and answer, in order and in constant memory; what was cut is reported at the end."""
    from bertkit import machine
    from bertkit.checkpoint.vocabulary_fit import report_unknown
    from bertkit.inference.predictor import AT_ONCE
    from bertkit.notify import note, track

    start = time.perf_counter()
    read = track(given, f"predicting {settings.file}")
    source = _with_cells(settings, predictor, read) if settings.out else ((example, {}) for example in read)
    while chunk := list(islice(source, AT_ONCE)):
        rows = compute([example for example, _ in chunk])
        for (_, cells), answer in zip(chunk, rows):
            count.rows += 1
            count.rows_cut += answer["cut"] > 0
            count.tokens_cut += answer["cut"]
            count.tokens += answer.get("seen", answer.get("tokens", 0))
            yield cells, answer
        chunk.clear()  # before the next is read: two at once would be the peak
        machine.trim_memory()
    if cut := count.tokens_cut:
        note(f"{count.rows_cut} of {count.rows} rows were cut: {cut} of {cut + count.tokens} tokens were not seen.")
    report_unknown(predictor, settings.model)
    count.seconds = seconds = time.perf_counter() - start
    note(f"{count.rows:,} rows in {seconds:.1f} s ({count.rows / seconds:,.0f} per second), {predictor.computed_by}.")


def examples(settings: Settings, predictor: Predictor | ContenderPredictor) -> Iterator[Any]:
    """The examples of the file that `predict` reads, as the model's task; lines of standard input are texts."""
    if settings.file == "-":
        from bertkit.files.open import open_text
        from bertkit.notify import note

        number = empty = 0
        for number, line in enumerate(open_text("-", settings.encoding), 1):
            empty += not line.strip()
            yield from predictor.task.from_inputs([_input(line)], number)
        if empty:
            note(f"standard input: {empty} of {number} rows have an empty text.")
        return
    yield from predictor.task.stream(settings.file, _reading(settings))


def _with_cells(
    settings: Settings, predictor: Predictor | ContenderPredictor, read: Iterable[Any]
) -> Iterator[tuple[Any, Row]]:
    """Every example with the cells of its row: the file is read a second time beside the examples, line by line.

    Where a file is no table (CoNLL, SQuAD, standard input), the cells are what a report shows of the example.
    """
    cells: Iterator[tuple[int, Row]] = iter(())
    if settings.file != "-" and predictor.task.reads_table(settings.file, _reading(settings)):
        from bertkit.data.readers.rows import as_number, cells_of

        wanted = [settings.text, settings.text_b]
        numbers = {name for name in wanted if as_number(name) is not None}
        cells = (
            (line, row if all(as_number(name) is not None for name in row) else _without(row, numbers))
            for line, row in cells_of(settings.file, wanted, settings.encoding)
        )
    line, row = next(cells, (0, {}))
    for example in read:
        while 0 < line < example.line:
            line, row = next(cells, (0, {}))
        yield example, row if line == example.line else predictor.task.cells(example)


def _without(row: Row, names: Collection[str]) -> Row:
    """A row of `predict` without the columns that stand for others by their number."""
    return {name: value for name, value in row.items() if name not in names}


def as_rows(answers: Iterable[tuple[Row, dict[str, Any]]], tables: bool, most: int = 0) -> Iterator[Row]:
    """What is written of each row. tables: input's columns, then the answer's; else the answer, with `input` in it.

    most: how many choices the row with most has.

    A column of the answer that the input has too is called `predicted_…`, so that the user's own stays as it is.
    The first row decides the columns: later ones that lack a column leave its cell empty.
    """
    from bertkit.notify import note

    columns: list[str] = []
    names: dict[str, str] = {}
    left_out: dict[str, int] = {}
    for number, (cells, answer) in enumerate(answers):
        if not tables:
            yield {**answer, "input": cells}
            continue
        flat = flattened(answer, most)
        if number == 0:
            columns, names = list(cells), own_names(list(flat), cells)
            renamed = {name: other for name, other in names.items() if name != other}
            if renamed:
                pairs = ", ".join(f"{name!r} (written as {other!r})" for name, other in renamed.items())
                note(f"The input has columns of the same name as the answer's: {pairs}.")
        for name in cells.keys() - set(columns):
            left_out[name] = left_out.get(name, 0) + 1
        yield {name: cells.get(name) for name in columns} | {own: flat.get(name) for name, own in names.items()}
    for name, count in left_out.items():
        note(f"The input's column {name!r} is not in the first row, so it was left out ({count} rows). Write a .jsonl.")


def flattened(answer: dict[str, Any], most: int = 0) -> Row:
    """A prediction as cells: every score in a column `score_LABEL`, several labels in one cell as `a|b`.

    most: how many columns the scores of choices have; where there are fewer, the last are empty.
    """
    flat: Row = {}
    for name, value in answer.items():
        if name == "scores":
            scores = value.items() if isinstance(value, dict) else enumerate([*value, *[None] * (most - len(value))])
            flat |= {f"score_{label}": score for label, score in scores}
        elif name == "labels":
            flat[name] = "|".join(value) if not any("|" in label for label in value) else value
        else:
            flat[name] = value
    return flat


def own_names(names: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """The columns that `predict` writes: name → the name of its column, which no other column has."""
    used = set(taken)
    chosen: dict[str, str] = {}
    for name in names:
        own = name
        while own in used:
            own = f"predicted_{own}"
        used.add(own)
        chosen[name] = own
    return chosen


def _input(line: str) -> Any:
    """A line of standard input to `predict -`: an object where it is one, else the text itself."""
    try:
        return json.loads(line) if line.startswith("{") else line
    except ValueError:
        return line


def _reading(settings: Settings) -> Any:
    from bertkit.tasks.base import Reading

    return Reading(settings.text, settings.text_b, "label", settings.encoding)


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `predict`: one line at the end."""
    return [f"{result['file']}: {result['rows']:,} rows"]


# ---- bertkit rewrite


@dataclass(frozen=True, kw_only=True)
class RewriteSettings(TextSettings):
    """What `rewrite` needs."""

    model: Path = option(help="A folder that `bertkit seq2seq` wrote.", argument=True)
    file: str = option(help="Rows with a text each, or - for lines from standard input.", argument=True)
    out: Path | None = option(
        None, "Output file: .jsonl, .csv or .parquet; without it JSON lines (--json: an array) on standard output."
    )
    beam: int = option(4, "Hypotheses kept; 1 is greedy.", at_least=1)
    penalty: float = option(0.6, "Length penalty; 0: none, which favours short targets.", at_least=0)


@dataclass
class RewriteCount:
    """What was rewritten so far."""

    rows: int = 0
    rows_cut: int = 0
    tokens_cut: int = 0
    unfinished: int = 0
    seconds: float = 0.0


def run_rewrite(settings: RewriteSettings) -> dict[str, Any] | Iterator[dict[str, Any]]:
    """Write the best target found for every text of a file."""
    from bertkit import machine
    from bertkit.ancestors.transformer.model import Seq2Seq
    from bertkit.files.atomic import not_the_input

    not_the_input(settings.out, settings.file)
    machine.set_up(settings.threads)
    model = Seq2Seq.load(settings.model, settings.precision, machine.device_for(settings.device))
    count = RewriteCount()
    return _written(settings.out, _targets(settings, model, count), count)


def _targets(settings: RewriteSettings, model: Seq2Seq, count: RewriteCount) -> Iterator[dict[str, Any]]:
    """`rewrite`: each text's target, in order; what was cut or broken off is reported at the end."""
    from bertkit.notify import note, track

    start = time.perf_counter()
    source = iter(track(_texts(settings), f"rewriting {settings.file}"))
    while chunk := list(islice(source, TEXTS_AT_ONCE)):
        for answer in model.rewrite(chunk, settings.beam, settings.penalty):
            count.rows += 1
            count.rows_cut += answer["cut"] > 0
            count.tokens_cut += answer["cut"]
            count.unfinished += not answer["finished"]
            yield answer
    if count.tokens_cut:
        note(f"{count.rows_cut} of {count.rows} texts were cut: {count.tokens_cut} of their tokens were not seen.")
    if count.unfinished:
        note(f"{count.unfinished} of {count.rows} targets reached the length limit and were cut off.")
    count.seconds = time.perf_counter() - start
    note(f"{count.rows:,} texts in {count.seconds:.1f} s.")


def _texts(settings: RewriteSettings) -> Iterator[str]:
    """The texts that `rewrite` reads; every line of standard input is one."""
    from bertkit.ancestors.transformer.data import read_sources

    if settings.file == "-":
        return (line.rstrip("\n") for line in sys.stdin)
    return read_sources(Path(settings.file), settings.text, settings.encoding)


def rewrite_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `rewrite`: one line at the end."""
    return [f"{result['file']}: {result['rows']:,} texts"]


rewrite = SharedCommand(RewriteSettings, run_rewrite, rewrite_lines)
