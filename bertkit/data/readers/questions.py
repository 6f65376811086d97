"""JSON documents and lines: questions with answers from a context (SQuAD 1.1/2.0), multiple choice, minimal pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from bertkit.data.examples import Choice, MinimalPair, Question
from bertkit.data.readers.json import as_object, field, parse, read_objects, scalar, short, string, strings
from bertkit.errors import UserError
from bertkit.files.open import kind_of, open_text, open_whole
from bertkit.notify import note

QuestionObject = tuple[int, str, str, dict[str, Any]]  # line or number, where, context, the question's object


def read_questions(path: str | Path, *, encoding: str = "utf-8") -> Iterator[Question]:
    """Each question of a SQuAD file (read whole: it is one JSON document) or of a JSONL file (streamed).

    An answer whose offset does not match its context is moved to the nearest occurrence; one that
    does not occur keeps start -1. Both are counted and reported. A question without "answers" is unlabelled; one
    with an empty list, or marked `is_impossible`, has no answer in its context. A repeated id gets
    '#2', '#3' … appended, and is reported: answers are keyed by id, and one would hide the other.
    """
    seen: dict[int, int] = {}
    count, moved, renamed, lost = 0, 0, 0, []
    for number, where, context, row in _question_objects(path, encoding):
        name = scalar(f"{where}: 'id'", row["id"]) if row.get("id") is not None else str(number)
        own = _own_id(name, seen)
        renamed += own != name
        given = _answers(where, row)
        answers = tuple((text, _place(context, text, start)) for text, start in given)
        lost += [where for _, start in answers if start < 0]
        moved += sum(0 <= start != old for (_, start), (_, old) in zip(answers, given))
        impossible = bool(row.get("is_impossible", row.get("impossible"))) or ("answers" in row and not answers)
        count += 1
        yield Question(own, string(where, row, "question"), context, () if impossible else answers, impossible, number)
    if not count:
        raise UserError(f"{path} contains no questions.")
    if renamed:
        note(f"{path}: {renamed} questions repeat an earlier id; '#2', '#3' … is appended to theirs.")
    if moved:
        note(f"{path}: {moved} answers were not where the file says and were moved to the nearest occurrence.")
    if lost:
        note(
            f"{path}: {len(lost)} answers do not occur in their context (first: {lost[0]}); they count for scoring but "
            "cannot be used for training."
        )


def _own_id(name: str, seen: dict[int, int]) -> str:
    """A question's id, with a number where it was seen before."""
    own = name
    while (copies := seen.get(hash(own), 0)) > 0:
        seen[hash(own)] = copies + 1
        own = f"{name}#{copies + 1}" if own == name else f"{own}#"
    seen[hash(own)] = 1
    return own


def _question_objects(path: str | Path, encoding: str) -> Iterator[QuestionObject]:
    """Questions of a SQuAD document or of JSON lines."""
    _refuse_table(path, "the questions")
    if kind_of(path) == "json" and not _is_lines(path, encoding):
        yield from _squad(path, parse(str(path), open_whole(path, encoding)))
        return
    for line, row in read_objects(path, encoding):
        where = f"{path}, line {line}"
        yield line, where, string(where, row, "context"), row


def _refuse_table(path: str | Path, what: str) -> None:
    """Questions and choices are objects, which the cells of a table cannot hold."""
    if (kind := kind_of(path)) in ("csv", "tsv", "xlsx", "parquet"):
        raise UserError(
            f"{path}: {what} are read from .jsonl and .json, not from .{kind}. Write one object on each line."
        )


def _is_lines(path: str | Path, encoding: str) -> bool:
    """Whether a .json file of questions is JSON lines or a list: its first line is a whole object, or opens a list."""
    first = next((line for line in open_text(path, encoding) if line.strip()), "").strip()
    if first.startswith("[") or len(first) > 1 << 20:
        return first.startswith("[")
    try:
        row = parse("", first)
    except UserError:
        return False
    return isinstance(row, dict) and "data" not in row


def _squad(path: str | Path, document: Any) -> Iterator[QuestionObject]:
    """Questions of a SQuAD document, paragraph by paragraph."""
    number = 0
    for article in _list(str(path), as_object(str(path), document), "data"):
        for paragraph in _list(f"{path}, after question {number}", article, "paragraphs"):
            where = f"{path}, after question {number}"
            context = string(where, as_object(where, paragraph), "context")
            for row in _list(where, paragraph, "qas"):
                number += 1
                where = f"{path}, question {number}"
                yield number, where, context, as_object(where, row)


def _list(where: str, value: Any, name: str) -> list[Any]:
    items = field(where, as_object(where, value), name)
    if not isinstance(items, list):
        raise UserError(f"{where}: {name!r} is {short(items)}; it must be a list, as in SQuAD's files.")
    return items


def _answers(where: str, row: dict[str, Any]) -> list[tuple[str, int]]:
    """The answers of a question, with where they start."""
    given = row.get("answers")
    if given is None:
        return []
    if isinstance(given, dict):  # the form of the Hugging Face data sets: one list a field
        texts, starts = _list(where, given, "text"), field(where, given, "answer_start", "start")
        if not isinstance(starts, list) or len(starts) != len(texts):
            raise UserError(f"{where}: 'answers' needs as many starts as texts.")
        given = [{"text": text, "start": start} for text, start in zip(texts, starts)]
    if not isinstance(given, list):
        raise UserError(f"{where}: 'answers' is {short(given)}; it must be a list.")
    answers = []
    for item in given:
        answer = as_object(f"{where}: 'answers'", item)
        text = string(f"{where}: 'answers'", answer, "text")
        start = field(f"{where}: 'answers'", answer, "start", "answer_start")
        if not isinstance(start, int) or isinstance(start, bool):
            raise UserError(f"{where}: the start of an answer is {short(start)}; it must be a whole number.")
        if text.strip():
            answers.append((text.strip(), start + len(text) - len(text.lstrip())))
    return answers


def _place(context: str, text: str, start: int) -> int:
    """The occurrence of the answer's text in the context nearest to the given start, or -1."""
    if start >= 0 and context.startswith(text, start):
        return start
    middle = min(max(start, 0), len(context))
    before, after = context.rfind(text, 0, middle + len(text)), context.find(text, middle)
    places = [place for place in (before, after) if place >= 0]
    return min(places, key=lambda place: abs(place - start)) if places else -1


# ---- Multiple choice and minimal pairs: both are JSON lines.


def read_choices(
    path: str | Path, *, labelled: bool | Literal["maybe"] = True, encoding: str = "utf-8"
) -> Iterator[Choice]:
    """Each row of a JSONL file {"text", "choices": […], "label": index from 0}."""
    _refuse_table(path, "the choices")
    is_any = False
    for line, row in read_objects(path, encoding):
        where = f"{path}, line {line}"
        choices = strings(where, row, "choices")
        if len(choices) < 2:
            raise UserError(f"{where}: {len(choices)} choices; there must be at least two.")
        label = _index(where, row.get("label"), len(choices), needed=labelled is True) if labelled else None
        is_any = True
        yield Choice(string(where, row, "text"), choices, label, line)
    if not is_any:
        raise UserError(f"{path} contains no rows.")


def _index(where: str, value: Any, count: int, needed: bool) -> int | None:
    """The index of the right choice."""
    if value is None and not needed:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:9])
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
        fix = f"but it must be a number from 0 to {count - 1}: the index of the right choice."
        raise UserError(f"{where}: 'label' is {short(value)}, {fix}")
    return value


def read_minimal_pairs(path: str | Path, *, encoding: str = "utf-8") -> Iterator[MinimalPair]:
    """Minimal pairs, beside questions: {"sentence_good", "sentence_bad"} of a JSONL file, or a folder's (by name)."""
    files = [Path(path)]
    if files[0].is_dir():
        files = sorted(file for file in files[0].rglob("*") if kind_of(file) == "jsonl" and file.is_file())
        if not files:
            raise UserError(f"{path}: this folder contains no .jsonl file.")
    for file in files:
        is_any = False
        stem = file.name.split(".")[0]
        for line, row in read_objects(file, encoding):
            where = f"{file}, line {line}"
            good, bad = string(where, row, "sentence_good"), string(where, row, "sentence_bad")
            group = scalar(f"{where}: 'UID'", row["UID"]) if row.get("UID") is not None else stem
            is_any = True
            yield MinimalPair(good, bad, group, line)
        if not is_any:
            raise UserError(f"{file} contains no pairs.")
