"""Where no model is named, the embedded one that reads the texts is taken; a model that cannot read them is told."""

from __future__ import annotations

import shutil

import pytest

from bertkit.checkpoint import locate
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.runs.finetune import start
from bertkit.tasks import make
from bertkit.text.vocabulary import VocabularySettings, learn

ENGLISH = "the old people in the garden with a loaf of bread and some water by the river"
CHINESE = ["今天天气很好", "我们去公园看花", "他在学校读书", "股票今天下跌了"]


@pytest.fixture
def two(tmp_path, monkeypatch):
    """A package with an English and a Chinese vocabulary in it."""
    for name, texts in {"en": [ENGLISH] * 3, "zh": CHINESE * 3}.items():
        learn(texts, VocabularySettings(size=600)).save(tmp_path / name, 128)
        (tmp_path / name / "config.json").write_text("{}")
    for module in (locate, start):
        monkeypatch.setattr(module, "EMBEDDED", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("texts", "wanted"), [([ENGLISH], "en"), (CHINESE, "zh")])
def test_auto_takes_the_model_that_reads_the_texts(two, texts, wanted):
    task = make("classify")
    assert start.starting_model("auto", task, task.from_inputs(texts)) == wanted
    assert start.starting_model("org/other", task, task.from_inputs(texts)) == "org/other"


def test_auto_without_embedded_models_asks_for_a_name(two):
    for name in ("en", "zh"):
        shutil.rmtree(two / name)
    with pytest.raises(UserError, match="Name one"):
        start.starting_model("auto", make("classify"), [])


def test_a_vocabulary_that_cannot_read_the_texts_is_told(two, notes):
    from bertkit.text.tokenizer import Tokenizer

    task, tokenizer = make("classify"), Tokenizer.load(two / "en")
    start.tell_unknown(tokenizer, task.encode(task.from_inputs([ENGLISH]), tokenizer, Windows(64)), "en")
    assert not notes
    start.tell_unknown(tokenizer, task.encode(task.from_inputs(CHINESE), tokenizer, Windows(64)), "en")
    assert "unknown to en's vocabulary" in notes[0] and "zh" in notes[0]
