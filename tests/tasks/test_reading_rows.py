"""What a task makes of a file's rows: nothing is learned that the rows do not say, and what they lack is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertkit import samples
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.tasks import make
from bertkit.tasks.base import Reading
from bertkit.tasks.tag import words_of
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn
from tests.support import toy

CONTEXT = "the letter of anna lay on the kitchen table"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = samples.path("en", "messages_train.csv").read_text("utf-8").splitlines()
    return learn([*texts, *[toy.WORDS] * 20], VocabularySettings(size=1200))


def put(folder: Path, rows: list[dict[str, Any]], name: str = "a.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def question(**more: Any) -> dict[str, Any]:
    return {"id": "1", "question": "which friend", "context": CONTEXT, **more}


def span(tokenizer: Tokenizer, folder: Path, row: dict[str, Any]) -> list[int]:
    task = make("answer")
    items = task.encode(task.read(put(folder, [row]), Reading()), tokenizer, Windows(64))
    return task.targets(items)["target"][0].tolist()


# ---- questions


def test_blanks_around_an_answer_do_not_make_it_impossible(tokenizer, tmp_path):
    start = CONTEXT.index("anna")
    plain = span(tokenizer, tmp_path, question(answers=[{"text": "anna", "start": start}]))
    for text, at in (("anna ", start), (" anna", start - 1), (" anna ", start - 1)):
        assert span(tokenizer, tmp_path, question(answers=[{"text": text, "start": at}])) == plain != [0, 0]


def test_a_window_that_holds_only_another_right_answer_is_not_taught_that_there_is_none(tokenizer, tmp_path):
    context = f"{CONTEXT} {'and the ' * 40}chair of peter"
    answers = [{"text": name, "start": context.index(name)} for name in ("anna", "peter")]
    task = make("answer")
    rows = put(tmp_path, [question(context=context, answers=answers)])
    (item,) = task.encode(task.read(rows, Reading()), tokenizer, Windows(40))
    targets = task.targets([item])["target"].tolist()
    taught = []
    for row, (first, last) in zip(item.rows, targets):
        assert row.encoding is not None
        taught.append(context[row.encoding.offsets[first][0] : row.encoding.offsets[last][1]] if last else "")
    assert taught[0] == "anna" and taught[-1] == "peter" and set(taught[1:-1]) <= {"", "peter"}


def test_an_answer_that_stands_nowhere_teaches_nothing_and_an_impossible_question_does(tokenizer, tmp_path, notes):
    assert span(tokenizer, tmp_path, question(answers=[{"text": "zebra", "start": 3}])) == [-100, -100]
    assert any("cannot be used for training" in note for note in notes)
    assert span(tokenizer, tmp_path, question(answers=[])) == [0, 0]


def test_questions_without_answers_are_refused_where_answers_are_needed(tmp_path):
    path = put(tmp_path, [question(answers=[]), question(id="2")])
    with pytest.raises(UserError, match=r"a\.jsonl: 1 of 2 have no 'answers' .*which friend"):
        make("answer").read(path, Reading())
    assert len(make("answer").read(path, Reading(), labelled=False)) == 2


def test_a_reader_is_as_sure_of_an_answer_as_its_numbers_are(tokenizer):
    task = make("answer")
    (item,) = task.encode(task.from_inputs([("which friend", CONTEXT)]), tokenizer, Windows(64))
    sides = np.array(item.rows[0].encoding.sides)
    flat = np.zeros((len(sides), 2), np.float32)
    words = (sides == 1).sum()
    assert task.decode(item, flat)["score"] == pytest.approx(1 / words**2)
    scores = [flat.copy() for _ in range(3)]
    for height, table in zip((1, 3, 30), scores):
        table[np.flatnonzero(sides == 1)[3]] = height
    sure = [task.decode(item, table)["score"] for table in scores]
    one = np.exp(1) / (np.exp(1) + words - 1)
    assert sure[0] == pytest.approx(one**2, rel=1e-5) and sure == sorted(sure) and sure[2] == pytest.approx(1)


def test_all_windows_of_a_context_share_one_certainty(tokenizer):
    task = make("answer")
    (item,) = task.encode(task.from_inputs([("which friend", f"{CONTEXT} " * 8)]), tokenizer, Windows(40))
    assert len(item.rows) > 2
    size = sum(len(row.ids) for row in item.rows)
    inside = sum(row.encoding.sides.count(1) for row in item.rows)
    assert task.decode(item, np.zeros((size, 2), np.float32))["score"] == pytest.approx(1 / inside**2)


# ---- scores of pairs


@pytest.mark.parametrize("bare", [0, 1, 2])
def test_one_missing_score_does_not_make_scored_pairs_partners(bare, tmp_path):
    rows = [{"text": "a", "text_b": "b", "label": score} for score in (4.8, 0.0, 2.5)]
    del rows[bare]["label"]
    task = make("embed")
    with pytest.raises(UserError, match=rf"a\.jsonl, line {bare + 1}: there is no score in this row, as in 1 of 3"):
        task.read(put(tmp_path, rows), Reading())


def test_pairs_are_scored_or_partners_and_to_predict_no_label_is_looked_at(tmp_path):
    pairs = [{"text": "a", "text_b": "b"}, {"text": "c", "text_b": "d"}]
    for label, scored in ((None, False), (1.5, True)):
        task = make("embed")
        task.read(put(tmp_path, [row | ({"label": label} if label else {}) for row in pairs]), Reading())
        assert task.options["scored"] is scored
    named = put(tmp_path, [row | {"label": "alike"} for row in pairs])
    assert len(list(make("embed").stream(named, Reading()))) == 2


# ---- numbers


@pytest.mark.parametrize(
    ("content", "reading", "pair"),
    [
        ("essay,grade\nfine words,3\n", Reading("essay", label="grade"), None),
        ("fine words,3\nothers,4\n", Reading("1", label="2"), None),
        ("q,d,score\nfine words,so,3\n", Reading("q", "d", "score"), "so"),
        ("q,d,score\nfine words,so,3\n", Reading("1", "2", "3"), "so"),
        ("text,text_b,label\nfine words,so,3\n", Reading(), "so"),
        ("sentence1,sentence2,score\nfine words,so,3\n", Reading(), "so"),
        ("text,label\nfine words,3\n", Reading(), None),
    ],
)
def test_numbers_are_learnt_from_the_columns_that_were_named(content, reading, pair, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(content, "utf-8")
    task = make("regress")
    row = task.read(path, reading)[0]
    assert (row.text, row.text_b, row.label) == ("fine words", pair, 3.0)
    assert task.options["paired"] is (pair is not None)


def test_a_second_text_that_is_not_there_is_reported_and_not_left_out(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,d,label\nfine words,so,3\n", "utf-8")
    with pytest.raises(UserError, match=r"there is no column 'dd'\. .*--text-b"):
        make("regress").read(path, Reading(text_b="dd"))


# ---- labels


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        (["entailment", "-", "neutral"], ["entailment", "neutral"]),
        (["+", "-", "0", "-"], ["+", "-", "0", "-"]),
        (["same", "-"], ["same", "-"]),
    ],
)
def test_a_dash_is_no_agreement_among_inferences_and_a_label_elsewhere(labels, kept, tmp_path, notes):
    path = put(tmp_path, [{"text": "a", "text_b": "b", "label": label} for label in labels])
    assert [row.label for row in make("pair").read(path, Reading())] == kept
    assert any("left out" in note for note in notes) is (len(kept) < len(labels))


# ---- tags


@pytest.mark.parametrize("tags", [["PER", "PER", "O"], ["O", "PER", "PER", "O"], ["PER", "PER"]])
def test_entities_of_tags_without_prefix_do_not_depend_on_their_sentence(tags, tokenizer):
    labels = ("LOC", "O", "PER")
    task = make("tag", labels=labels)
    words = ["Angela", "Merkel", "speaks", "today"][: len(tags)]
    (item,) = task.encode(task.from_inputs([words]), tokenizer, Windows(64))
    best = np.array([[labels.index(tag)] for tag in tags], float)
    said = task.decode(item, np.concatenate([best, np.zeros((len(tags), 3))], 1))
    first = tags.index("PER")
    assert [one["text"] for one in said["entities"]] == [" ".join(words[first : first + 2])]


def test_parts_of_speech_are_no_entities(tokenizer):
    task = make("tag", labels=("NOUN", "VERB"))
    (item,) = task.encode(task.from_inputs([["children", "read"]]), tokenizer, Windows(64))
    said = task.decode(item, np.array([[0.0, 0, 0], [1, 0, 0]]))
    assert said["tags"] == ["NOUN", "VERB"] and said["entities"] == []


@pytest.mark.parametrize("overlap", [0, 1, 5])
def test_every_word_belongs_to_one_window_whatever_they_share(overlap, tokenizer):
    words = ["unbelievably", "house", "zxqjkvw", "counterrevolutionary"] * 12
    task = make("tag", labels=("O", "X"))
    (item,) = task.encode(task.from_inputs([words]), tokenizer, Windows(16, "window", overlap))
    assert len(item.rows) > 5
    assert [word for row in item.rows for _, _, word in words_of(row)] == list(range(len(words)))
