"""A row that cannot be answered is named by its own line, and a folder that lies about its task is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertkit import samples
from bertkit.checkpoint.folder import Folder, write_folder
from bertkit.commands import predict
from bertkit.data.readers.tagged import holds_texts
from bertkit.errors import DamagedFile, UserError
from bertkit.inference.predictor import Predictor
from bertkit.model.heads import Model
from bertkit.settings.model import Config
from bertkit.tasks.base import Reading
from bertkit.text.checks import by_line
from bertkit.text.vocabulary import VocabularySettings, learn
from tests.support import toy

LONG = " ".join(toy.FILLER * 4)
KINDS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {  # task → heads, bertkit.json
    "classify": ({"text": 2}, {"labels": ["bad", "good"]}),
    "pair": ({"text": 2}, {"labels": ["different", "same"]}),
    "regress": ({"text": 1}, {"options": {"paired": False}}),
    "tag": ({"token": 3}, {"labels": ["B-LOC", "I-LOC", "O"]}),
    "answer": ({"span": 2}, {}),
    "choose": ({"choice": 1}, {}),
    "embed": ({}, {}),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    texts = samples.path("en", "messages_train.csv").read_text("utf-8").splitlines()
    return learn([*texts, *[toy.WORDS] * 20], VocabularySettings(size=1200))


@pytest.fixture
def folder(tokenizer: Any) -> Any:
    def make(task: str) -> Folder:
        heads, about = KINDS[task]
        torch.manual_seed(0)
        small = {"width": 32, "depth": 1, "heads": 2, "inner": 32, "max_tokens": 64}
        model = Model(Config(vocabulary=tokenizer.size, **small), heads)
        labels = tuple(about.get("labels", ("LABEL_0",)))
        return Folder(model, tokenizer, "bert", labels=labels, about={"task": task, **about}, name="mine")

    return make


def rows(task: str, text: str) -> dict[str, Any]:
    return {
        "pair": {"text": "a", "text_b": text}, "embed": {"text": "a", "text_b": text},
        "tag": {"tokens": text.split(" ")}, "answer": {"id": "1", "question": "which", "context": text, "answers": []},
        "choose": {"text": "a", "choices": ["b", text], "label": 0},
    }.get(task, {"text": text})  # fmt: skip


def read(predictor: Predictor, task: str, path: Path, bad: str) -> list[Any]:
    """The last 3 of 5 examples of a file, as `predict` hands on a later chunk; the fifth is bad, on line 6."""
    lines = [json.dumps(rows(task, text)) for text in ("one", "two", "three", "four", bad)]
    path.write_text("\n".join([*lines[:2], "", *lines[2:]]), "utf-8")
    return list(predictor.task.stream(path, Reading()))[2:]


@pytest.mark.parametrize("task", KINDS)
def test_a_long_row_is_refused_by_its_line_in_the_file_whatever_the_chunk(task: str, folder, tmp_path: Path) -> None:
    predictor = Predictor(folder(task), "fp32")
    examples = read(predictor, task, tmp_path / "a.jsonl", LONG)
    with pytest.raises(UserError, match=r"^Line 6: the text has \d+ tokens; the model's limit is 64.*--on-long"):
        predictor.predict_examples(examples, "error")
    with pytest.raises(UserError, match=r"^a.jsonl, line 6: the text has"):
        predictor.predict_examples(examples, "error", file="a.jsonl")


@pytest.mark.parametrize("task", KINDS)
def test_a_row_with_half_a_character_is_refused_by_its_line(task: str, folder, tmp_path: Path) -> None:
    predictor = Predictor(folder(task), "fp32")
    path = tmp_path / "a.jsonl"
    good = read(predictor, task, path, "five")
    bad = predictor.task.from_inputs([rows(task, "a\ud800b")], first=1030)
    with pytest.raises(UserError, match=r"^Line 1030: the .* lone surrogate .* at position 1"):
        predictor.predict_examples([*good, *bad])


def test_vectors_of_a_later_chunk_are_refused_by_line_and_file(folder) -> None:
    predictor = Predictor(folder("embed"), "fp32")
    with pytest.raises(UserError, match=r"^a.csv, line 1027: the text has \d+ tokens"), by_line([1026, 1027], "a.csv"):
        predictor.embed(["short", LONG], on_long="error")


@pytest.mark.parametrize("task", KINDS)
def test_numbers_that_are_not_finite_are_no_answers(task: str, folder, tmp_path: Path) -> None:
    made = folder(task)
    with torch.no_grad():
        made.model.encoder.embeddings.tokens.weight[made.tokenizer.ids_batch(["bread"])[0][1]] = np.nan
    predictor = Predictor(made, "fp32")
    examples = read(predictor, task, tmp_path / "a.jsonl", "bread")
    assert len(predictor.predict_examples(examples[:-1])) == 2
    with pytest.raises(UserError, match=r"^Line 6: .*the model's outputs are not finite; its weights are damaged"):
        predictor.predict_examples(examples)


@pytest.mark.parametrize(
    ("task", "about", "told"),
    [
        ("classify", {"task": 5, "labels": "x"}, "'task' is 5"),
        ("classify", {"task": ["classify"]}, "'task' is "),
        ("classify", {"labels": "xy"}, "'labels' is 'xy'; it must be a list"),
        ("classify", {"labels": ["bad", 1]}, "'labels' holds 1"),
        ("classify", {"labels": ["bad"]}, "1 labels, and the weights give 2"),
        ("tag", {"labels": ["O", "B-LOC"]}, "2 labels, and the weights give 3"),
        ("classify", {"options": [1]}, "'options' is "),
        ("classify", {"windows": 7}, "'windows' is 7"),
        ("classify", {"windows": {"limit": "x"}}, "'limit' of 'windows' is 'x'"),
    ],
)
def test_a_bertkit_json_with_wrong_values_is_reported_with_its_name(
    task, about, told: str, folder, tmp_path: Path
) -> None:
    path = tmp_path / "mine"
    write_folder(path, folder(task))
    assert Predictor.load(path, "fp32").predict(["some text"])
    file = path / "bertkit.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | about), "utf-8")
    with pytest.raises(DamagedFile, match=f"mine/bertkit.json: .*{told}") as error:
        Predictor.load(path, "fp32").predict(["some text"])
    assert "correct the file" in str(error.value)


CHINESE = "李明去北京开会。\n王芳住在上海，\n\n今天下雨\n"
COLUMNS = "李 B-LOC\n明 I-LOC\n\n去 O\n北 O\n"


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.txt", CHINESE, [(1, "李明去北京开会。"), (2, "王芳住在上海，"), (4, "今天下雨")]),
        ("a.txt", "Anna lives here\nPeter went there\n", [(1, "Anna lives here"), (2, "Peter went there")]),
        ("a.txt", "Anna lives in Paris", [(1, "Anna lives in Paris")]),
        ("a.txt", "7\tAnna lives here\n8\tPeter too\n", [(1, "7\tAnna lives here"), (2, "8\tPeter too")]),
        ("a.txt", COLUMNS, [(1, "李明"), (4, "去北")]),
        ("a.txt", COLUMNS.replace(" ", "\t"), [(1, "李明"), (4, "去北")]),
        ("a.txt", "EU NNP\nrejects VBZ\n", [(1, "EU rejects")]),
        ("a.txt", "one x\ntwo x\n", [(1, "one x"), (2, "two x")]),
        ("a.txt", "李\n明\n\n去\n北\n京\n。\n", [(1, "李明"), (4, "去北京。")]),
        ("a.txt", "EU\nrejects\n\n\nPeter\nBlackburn\n", [(1, "EU rejects"), (5, "Peter Blackburn")]),
        ("a.conll", "李明\n去北京\n", [(1, "李明 去北京")]),
    ],
)
def test_lines_of_running_text_are_texts_and_columns_stay_columns(name, content, found, folder, tmp_path, notes):
    task = Predictor(folder("tag"), "fp32").task
    path = tmp_path / name
    path.write_text(content, "utf-8")
    assert [(one.line, one.text) for one in task.stream(path, Reading())] == found
    assert len(notes) == (name == "a.txt")


def test_the_note_tells_which_reading_was_taken_and_compressed_files_are_read_alike(folder, tmp_path, notes):
    import gzip

    task = Predictor(folder("tag"), "fp32").task
    path = tmp_path / "a.txt.gz"
    for content, told in ((CHINESE, "every line is read as one text"), (COLUMNS, "one word per line")):
        path.write_bytes(gzip.compress(content.encode()))
        assert list(task.stream(path, Reading()))
        assert told in notes.pop() and not notes
    assert [words.sentence.tags for words in task.read(path, Reading())] == [("B-LOC", "I-LOC"), ("O", "O")]
    assert not notes  # with tags there is one reading


def test_real_columns_and_real_texts_are_told_apart(shared_data):
    assert not holds_texts(shared_data / "tagging" / "zh_news_ner" / "dev.txt.xz")
    for language in ("en", "zh"):
        assert holds_texts(samples.path(language, "fresh.txt")) and holds_texts(samples.path(language, "passages.txt"))


def test_a_damaged_line_among_columns_is_reported_and_makes_no_texts(folder, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("北 O\n" * 30 + "京\n" + "去 O\n" * 30, "utf-8")
    with pytest.raises(UserError, match="line 31: 1 columns, but the lines before have 2"):
        list(Predictor(folder("tag"), "fp32").task.stream(path, Reading()))


def test_standard_input_is_read_in_the_encoding_that_was_said_and_its_empty_lines_are_told(folder, monkeypatch, notes):
    predictor = Predictor(folder("classify"), "fp32")
    content = '北京\n\n{"text": "上海"}\r\n'
    for encoding, mark in (("gb18030", b""), ("utf-8", b"\xef\xbb\xbf")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(mark + content.encode(encoding)), "ascii"))
        settings = predict.Settings(model="", file="-", encoding=encoding)
        assert [row.text for row in predict.examples(settings, predictor)] == ["北京", "", "上海"]
        assert notes[-1] == "standard input: 1 of 3 rows have an empty text."


def test_texts_of_a_file_are_tagged_like_lines_of_standard_input(folder, tmp_path):
    predictor = Predictor(folder("tag"), "fp32")
    path = tmp_path / "a.txt"
    path.write_text("Anna lives in London\n\nPeter, too.\n", "utf-8")
    said = predictor.predict_examples(list(predictor.task.stream(path, Reading())))
    assert said == predictor.predict(["Anna lives in London", "Peter, too."])
