"""Spans as annotation tools export them become tags, and what tags cannot express is reported."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from bertkit.data.inspect import inspect_file
from bertkit.data.readers.annotations import holds_spans, murmur_hash, word_spans
from bertkit.errors import UserError
from bertkit.tasks import make
from bertkit.tasks.base import Reading

TEXT = "Anna Smith lives in Paris."
TAGS = ("B-PER", "I-PER", "O", "O", "B-LOC", "O")
SPANS = [(0, 10, "PER"), (20, 25, "LOC")]
# Written by spaCy 3.8: TEXT with SPANS, and a text of three words without any.
DOCBIN = (
    "eJzrXF6WWlScmZ+32EDPcGliSUlR8WRHX79lJfnZqXnFR248/Bb3UaCibRozAwTYeR6q+dn60vp/tGqX7+I1XIxo4rm6azL38ArO"
    "YWJABcmbbk/W3bdGE13cIO9IP9v2LRNg5jdCDVx0aI3Pm5v169HV2+s9WlRpK7APTZjBaccb8ZSyCH108eyirVEzereyoosvKy5I"
    "TE4tPsLJCAQMDEC8PCc1L70ko/gIBxtQHuSe5cUlRZl56cXzFyzUW+KYl5e42MffeXGAa9DSgMSizOKlwbmZJRlLEoESSzJSi1IX"
    "ZeYtAormZJalFi/Pyy/JAOpdWgBWWQxWmZxYUjypoWFpWk5ievGkxk0ZicXxpXnZefnlefEQ5xzCKrgaSOfFpxfllxYUTzrCOAGI"
    "ABEzim8="
)


def result(start: int, end: int, label: str) -> dict[str, Any]:
    return {"type": "labels", "value": {"start": start, "end": end, "text": TEXT[start:end], "labels": [label]}}


def rows(name: str) -> Any:
    return {
        "doccano.jsonl": {"id": 1, "text": TEXT, "label": [list(span) for span in SPANS]},
        "doccano-relations.jsonl": {
            "text": TEXT, "relations": [],
            "entities": [{"id": 1, "label": c, "start_offset": a, "end_offset": b} for a, b, c in SPANS],
        },
        "prodigy.jsonl": {
            "text": TEXT, "answer": "accept", "tokens": [{"text": "Anna", "start": 0, "end": 4, "id": 0}],
            "spans": [{"start": a, "end": b, "label": c, "token_start": 0} for a, b, c in SPANS],
        },
        "label-studio.json": [{"data": {"text": TEXT}, "annotations": [{"result": [result(*s) for s in SPANS]}]}],
        "label-studio-min.json": [{"text": TEXT, "label": [result(*s)["value"] for s in SPANS]}],
        "predicted.jsonl": {
            "input": {"text": TEXT}, "entities": [{"start": a, "end": b, "label": c, "score": 0.9} for a, b, c in SPANS]
        },
    }[name]  # fmt: skip


def put(folder: Path, name: str) -> Path:
    path = folder / name
    if name == "brat":
        path.mkdir()
        (path / "one.txt").write_text(TEXT, "utf-8")
        notes = "T1\tPER 0 10\tAnna Smith\nR1\tRel Arg1:T1 Arg2:T2\t\nT2\tLOC 20 25\tParis\n#1\tNote\tx\n"
        (path / "one.ann").write_text(notes, "utf-8")
    elif name == "spacy.spacy":
        path.write_bytes(base64.b64decode(DOCBIN))
    else:
        path.write_text(json.dumps(rows(name)), "utf-8")
    return path


FORMS = [
    "doccano.jsonl", "doccano-relations.jsonl", "prodigy.jsonl", "label-studio.json", "label-studio-min.json",
    "predicted.jsonl", "brat", "spacy.spacy",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_tool_gives_the_same_tags(tmp_path: Path, name: str) -> None:
    first = make("tag").read(put(tmp_path, name), Reading())[0]
    assert (first.text, first.sentence.tags) == (TEXT, TAGS)
    assert [first.text[a:b] for a, b in first.spans] == list(first.sentence.tokens)


@pytest.mark.parametrize("name", FORMS)
def test_for_prediction_the_same_files_are_texts(tmp_path: Path, name: str) -> None:
    first = next(iter(make("tag").stream(put(tmp_path, name), Reading())))
    assert (first.text, first.spans, first.sentence.tags) == (TEXT, (), None)


@pytest.mark.parametrize(
    ("spans", "tags", "told"),
    [
        ([(0, 10, "PER"), (0, 4, "FIRST")], ("B-PER", "I-PER", "O"), "overlap a longer one"),
        ([(0, 10, "PER"), (5, 11, "X")], ("B-PER", "I-PER", "O"), "overlap a longer one"),
        ([(0, 7, "PER")], ("B-PER", "I-PER", "O"), "cut a word"),
        ([(4, 5, "PER")], ("O", "O", "O"), "cover no word"),
        ([(5, 99, "PER")], ("O", "O", "O"), "outside their text"),
    ],
)
def test_spans_that_tags_cannot_express_are_counted_with_their_place(tmp_path, notes, spans, tags, told) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n" + json.dumps({"text": "Anna Smith!", "label": spans}), "utf-8")
    assert make("tag").read(path, Reading())[0].sentence.tags == tags
    assert len(notes) == 1 and told in notes[0] and "a.jsonl, line 2" in notes[0]


def test_a_text_of_a_folder_keeps_the_name_of_its_file(tmp_path: Path) -> None:
    folder = put(tmp_path, "brat")
    task = make("tag")
    (words,) = task.stream(folder, Reading())
    assert task.cells(words) == {"file": str(folder / "one.txt"), "text": TEXT}
    assert inspect_file(folder).labels == {"PER": 1, "LOC": 1}


def test_discontinuous_spans_and_rejected_texts_are_reported(tmp_path: Path, notes) -> None:
    folder = put(tmp_path, "brat")
    (folder / "one.ann").write_text("T1\tPER 0 4;5 10\tAnna Smith\n", "utf-8")
    assert make("tag").read(folder, Reading())[0].sentence.tags[:3] == ("B-PER", "I-PER", "O")
    rejected = [rows("prodigy.jsonl"), rows("prodigy.jsonl") | {"answer": "reject"}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rejected)), "utf-8")
    assert len(make("tag").read(tmp_path / "p.jsonl", Reading())) == 1
    assert "1 spans are discontinuous" in notes[0] and "1 rejected or ignored" in notes[1]


def test_chinese_is_split_by_character_and_punctuation_stands_alone() -> None:
    text = "我在New York，不是L.A.！"
    assert [text[a:b] for a, b in word_spans(text)] == [*"我在", "New", "York", *"，不是L.A.！"]


def test_words_are_split_as_a_bert_tokenizer_splits_them() -> None:
    from tokenizers.pre_tokenizers import BertPreTokenizer

    for text in ("It's 3.5% (or $4)… ", "naïve café\u3000全角　x_y", "e\u0301te\u0301-a", "ab\t c\nd"):
        wanted = [span for _, span in BertPreTokenizer().pre_tokenize_str(text)]
        chinese = any("\u4e00" <= c <= "\u9fff" for c in text)
        assert chinese or word_spans(text) == wanted


def test_a_table_of_texts_is_read_for_prediction_and_refused_for_training(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,Anna\n2,"in Paris, now"\n', "utf-8")
    (tmp_path / "a.jsonl").write_text('{"text": "Anna"}\n{"text": "in Paris, now"}\n', "utf-8")
    for name in ("a.csv", "a.jsonl"):
        assert [w.text for w in make("tag").stream(tmp_path / name, Reading())] == ["Anna", "in Paris, now"]
        with pytest.raises(UserError, match="no tags and no spans"):
            make("tag").read(tmp_path / name, Reading())


def test_damaged_spans_and_files_are_refused_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a", "spans": [{"start": 0, "label": "X"}]}), "utf-8")
    with pytest.raises(UserError, match=r"a.jsonl, line 1: a span is .* needs a start and an end"):
        make("tag").read(tmp_path / "a.jsonl", Reading())
    raw = base64.b64decode(DOCBIN)
    for cut in range(0, len(raw), 7):
        (tmp_path / "a.spacy").write_bytes(raw[:cut] or b"x")
        with pytest.raises(UserError, match=r"a\.spacy"):
            make("tag").read(tmp_path / "a.spacy", Reading())


def test_labels_of_a_whole_text_are_no_spans(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": ["x", "y"]}\n', "utf-8")
    assert not holds_spans(tmp_path / "a.jsonl")


def test_strings_are_hashed_as_spacy_hashes_them() -> None:
    assert (murmur_hash("Anna"), murmur_hash("PER")) == (10846488766732760801, 4317129024397789502)
