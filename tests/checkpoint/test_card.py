"""A card says what holds for its folder: what it is for, who opens it, and which files are there."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from bertkit.checkpoint.card import write
from bertkit.checkpoint.folder import Folder, read_folder, write_folder
from bertkit.checkpoint.sentence_modules import Pooling
from bertkit.model.heads import Crf
from bertkit.runs.compress.quantize import write_int8
from tests.support import folders, toy

TAGS = {
    "BertModel": "feature-extraction", "BertForMaskedLM": "fill-mask", "BertForPreTraining": "fill-mask",
    "BertForNextSentencePrediction": "", "AlbertForPreTraining": "fill-mask", "GPT2LMHeadModel": "text-generation",
    "ElectraForPreTraining": "feature-extraction", "ElectraForMaskedLM": "fill-mask", "GPT2Model": "feature-extraction",
    "RobertaForSequenceClassification": "text-classification", "ModernBertForMultipleChoice": "multiple-choice",
    "DistilBertForTokenClassification": "token-classification", "GPT2ForQuestionAnswering": "question-answering",
}  # fmt: skip
WRITERS = {"floats": write_folder, "int8": write_int8, "onnx": partial(write_folder, weights="onnx")}


def tag_of(card: str) -> str:
    return next(iter(re.findall(r"^pipeline_tag: (\S+)$", card, re.MULTILINE)), "")


@pytest.mark.parametrize("name", TAGS)
def test_without_a_task_of_ours_the_class_tells_what_a_model_is_for(name: str) -> None:
    config = {"architectures": [name], "model_type": "any"}
    assert tag_of(write({}, config, 9)) == tag_of(write({"task": "pretraining"}, config, 9)) == TAGS[name]
    assert tag_of(write({"task": "embed"}, config, 9)) == "sentence-similarity"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return read_folder(toy.make_model(tmp_path_factory.mktemp("plain") / "model"), heads={})


@pytest.mark.parametrize("weights", WRITERS)
def test_a_card_names_those_who_open_the_folder_and_no_others(weights: str, plain: Folder, tmp_path: Path) -> None:
    plain.about, plain.pooling = {"task": "embed", "options": {"pool": "mean"}}, Pooling("mean")
    WRITERS[weights](tmp_path, plain)
    card = (tmp_path / "README.md").read_text("utf-8")
    assert "mean pooling" in card
    assert ("sentence-transformers" in card) == (weights == "floats")
    assert "bertkit.load" in card
    assert ("onnxruntime" in card) == (weights == "onnx")
    assert ("which only bertkit opens" in card) == (weights == "int8")
    library = {"floats": "sentence-transformers", "int8": "bertkit", "onnx": "onnx"}[weights]
    assert f"library_name: {library}\n" in card


@pytest.mark.parametrize("weights", WRITERS)
def test_a_taggers_card_names_no_file_that_is_not_there(weights: str, tmp_path: Path) -> None:
    folders.write(tmp_path / "model", "bert", "BertForTokenClassification", labels=["O", "B-X", "I-X"])
    folder = read_folder(tmp_path / "model")
    folder.about = {"task": "tag", "labels": list(folder.labels), "options": {"crf": True, "word": "mean"}}
    folder.model.crf = Crf(3)
    WRITERS[weights](tmp_path / "out", folder)
    card = (tmp_path / "out/README.md").read_text("utf-8")
    named = set(re.findall(r"`(\S+\.(?:safetensors|onnx|json))`", card))
    assert named == {"crf.safetensors"}
    assert all((tmp_path / "out" / name).is_file() for name in named)
    assert "conditional random field" in card and "the mean of its pieces" in card
    assert ("transformers opens" in card) == (weights == "floats")
