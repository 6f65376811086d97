"""Readers of questions, choices and minimal pairs."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertkit.data.examples import Choice, MinimalPair, Question
from bertkit.data.readers import (
    read_choices,
    read_minimal_pairs,
    read_questions,
)
from bertkit.errors import UserError


def squad(*questions: dict[str, Any], context: str = "The cat sat. The cat ran.") -> str:
    return json.dumps(
        {"version": "1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}
    )


def ask(start: int, text: str = "cat", **more: Any) -> dict[str, Any]:
    return {"id": "q", "question": "Who?", "answers": [{"text": text, "answer_start": start}], **more}


def test_squad_and_json_lines_give_the_same_questions(put: Any) -> None:
    line = {"id": "q", "question": "Who?", "context": "The cat sat.", "answers": [{"text": "cat", "start": 4}]}
    wanted = [Question("q", "Who?", "The cat sat.", (("cat", 4),), False, 1)]
    assert list(read_questions(put("a.jsonl", json.dumps(line)))) == wanted
    assert list(read_questions(put("a.json", squad(ask(4), context="The cat sat.")))) == wanted
    assert list(read_questions(put("b.json", json.dumps(line)))) == wanted
    columns = {**line, "answers": {"text": ["cat"], "answer_start": [4]}}
    assert list(read_questions(put("c.jsonl", json.dumps(columns)))) == wanted


@pytest.mark.parametrize(("said", "found"), [(4, 4), (5, 4), (0, 4), (-3, 4), (14, 17), (16, 17), (999, 17)])
def test_a_misplaced_answer_moves_to_its_nearest_place(put: Any, notes: list[str], said: int, found: int) -> None:
    (question,) = read_questions(put("a.json", squad(ask(said))))
    assert question.answers == (("cat", found),)
    assert len(notes) == (said != found)


def test_an_answer_that_stands_nowhere_is_kept_for_scoring_and_reported(put: Any, notes: list[str]) -> None:
    (question,) = read_questions(put("a.json", squad(ask(4, "dog"))))
    assert question.answers == (("dog", -1),)
    assert question.placed == ()
    assert "1 answers do not occur in their context" in notes[0]


def test_impossible_and_unlabelled_questions_are_told_apart(put: Any) -> None:
    path = put(
        "a.json",
        squad(
            {"id": 1, "question": "a", "answers": [], "is_impossible": True},
            {"id": 2, "question": "b", "answers": []},
            {"id": 3, "question": "c"},
        ),
    )
    assert [(q.id, q.impossible, q.answers) for q in read_questions(path)] == [
        ("1", True, ()),
        ("2", True, ()),
        ("3", False, ()),
    ]


def test_every_question_has_its_own_id(put: Any, notes: list[str]) -> None:
    path = put("a.json", squad(ask(4), ask(4), ask(4, id="q#2"), ask(4), ask(4, id="r")))
    ids = [question.id for question in read_questions(path)]
    assert len(set(ids)) == 5
    assert ids[0] == "q" and ids[1] == "q#2" and ids[4] == "r"
    assert "3 questions repeat an earlier id" in notes[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": {}}', r"'data' is \{\}; it must be a list"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"there is no 'context'"),
        ('{"data": []}', r"no question"),
        (squad({"id": "q"}), r"question 1: there is no 'question'"),
        (squad(ask("4")), r"question 1: the start of an answer is '4'"),  # type: ignore[arg-type]
        ('{\n"data": [\n}', r"line 3: not JSON"),
    ],
)
def test_a_bad_question_is_an_error_with_its_place(put: Any, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(read_questions(put("a.json", content)))


def test_choices_carry_the_place_of_the_right_one(put: Any) -> None:
    path = put("a.jsonl", '{"text": "a", "choices": ["x", "y"], "label": 1}\n')
    assert list(read_choices(path)) == [Choice("a", ("x", "y"), 1, 1)]
    for bad in ("2", "-1", "true", "null", '"x"', "1.0"):
        row = f'{{"text": "a", "choices": ["x", "y"], "label": {bad}}}\n'
        with pytest.raises(UserError, match=r"line 1: 'label' is .* number from 0 to 1"):
            list(read_choices(put("b.jsonl", row)))


def test_minimal_pairs_come_from_a_file_or_a_whole_folder(put: Any, tmp_path: Path) -> None:
    put("f/b.jsonl", '{"sentence_good": "g", "sentence_bad": "h", "UID": "u"}\n')
    file = put("f/a.jsonl", '{"sentence_good": "c", "sentence_bad": "d"}\n')
    put("f/README.md", "not this")
    assert list(read_minimal_pairs(file)) == [MinimalPair("c", "d", "a", 1)]
    assert [pair.group for pair in read_minimal_pairs(tmp_path / "f")] == ["a", "u"]
