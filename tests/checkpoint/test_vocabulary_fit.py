"""Where no model is named, the embedded one that knows the texts is chosen; unknown pieces are reported with a fix."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bertkit.checkpoint import locate, vocabulary_fit
from bertkit.errors import UserError
from bertkit.tasks import make
from bertkit.text.chinese_forms import simplifies
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn

ENGLISH = "the old people in the garden with a loaf of bread and some water by the river"
CHINESE = ["今天天气很好", "我们去公园看花", "他在学校读书", "股票今天下跌了", "国家图书馆的书", "买东西要花钱"]
TRADITIONAL = ["我們今天去國家圖書館讀書", "他買東西花了很多錢", "這個學校的學生們還沒來"]


@pytest.fixture
def two(tmp_path, monkeypatch):
    """A package with an English and a Chinese vocabulary in it."""
    for name, texts in {"en": [ENGLISH] * 3, "zh": CHINESE * 3}.items():
        learn(texts, VocabularySettings(size=600)).save(tmp_path / name, 128)
        (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.setattr(locate, "EMBEDDED", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("texts", "wanted"), [([ENGLISH], "en"), (CHINESE, "zh")])
def test_auto_takes_the_model_that_reads_the_texts(two, texts, wanted):
    task = make("classify")
    assert vocabulary_fit.starting_model("auto", task, task.from_inputs(texts)) == wanted
    assert vocabulary_fit.starting_model("org/other", task, task.from_inputs(texts)) == "org/other"


def test_auto_without_embedded_models_asks_for_a_name(two):
    for name in ("en", "zh"):
        shutil.rmtree(two / name)
    with pytest.raises(UserError, match="Name one"):
        vocabulary_fit.starting_model("auto", make("classify"), [])


def test_thirty_rows_of_traditional_chinese_choose_zh():
    task = make("classify")
    assert vocabulary_fit.starting_model("auto", task, task.from_inputs(TRADITIONAL * 10)) == "zh"


def test_a_vocabulary_of_another_language_is_reported_with_the_embedded_model_that_fits(two, notes):
    tokenizer = Tokenizer.load(two / "en")
    tokenizer.ids_batch([ENGLISH])
    assert vocabulary_fit.report_unknown(tokenizer, "en") == 0 and not notes
    tokenizer.ids_batch(CHINESE * 10)
    assert vocabulary_fit.report_unknown(tokenizer, "en") > 0.5
    assert "unknown to en's vocabulary" in notes[0] and "今" in notes[0] and notes[0].endswith("use zh.")


def test_traditional_text_under_a_simplified_vocabulary_is_advised_to_simplify(two, notes):
    tokenizer = Tokenizer.load(two / "zh")
    assert not simplifies(tokenizer.backend)
    tokenizer.encode_batch(TRADITIONAL)
    vocabulary_fit.report_unknown(tokenizer, "zh")
    assert "`bertkit convert zh NEW --simplify`" in notes[0]


def test_the_advice_never_names_the_model_in_use(two, notes):
    """Neither by its own name nor as a copy under another."""
    for name in ("zh", "runs/spam"):
        tokenizer = Tokenizer.load(two / "zh")
        tokenizer.encode("ཀ ཁ ག ང")
        vocabulary_fit.report_unknown(tokenizer, name)
    assert len(notes) == 2
    assert all("use zh" not in note and "use en" not in note and "--add-tokens" in note for note in notes)


def test_pieces_are_counted_however_a_text_is_encoded(two):
    texts = ["the old garden", "今天"]
    ways = (
        lambda t: t.ids_batch(texts), lambda t: t.encode_batch(texts), lambda t: t.pieces_batch(texts),
        lambda t: [t.encode(text) for text in texts], lambda t: t.encode_words(["the", "old", "garden", "今", "天"]),
    )  # fmt: skip
    for way in ways:
        tokenizer = Tokenizer.load(two / "en")
        way(tokenizer)
        assert (tokenizer.unknown.unknown, tokenizer.unknown.pieces) == (2, 5)


def test_every_command_reports_unknown_pieces(tmp_path, monkeypatch, capsys):
    from bertkit import cli

    text = "ཀ ཁ ག"
    rows = tmp_path / "rows.csv"
    rows.write_text(f"text,label\n{text},a\n{text} x,b\n", "utf-8")
    commands = (
        ["fill", "en", f"{text} [MASK]."],
        ["embed", "en", str(rows), "--out", str(tmp_path / "v.npy")],
        ["inspect", "en", text, "--out", str(tmp_path / "p.html")],
        ["doctor", str(rows), "--model", "en"],
    )
    for command in commands:
        monkeypatch.setattr("sys.argv", ["bertkit", *command, "--json"])
        cli.main()
        out, err = capsys.readouterr()
        result = json.loads(out)
        assert result.get("unknown_share", result.get("files", [{}])[0].get("unknown_share")) > 0.3, command
        assert "unknown to en's vocabulary (ཀ" in err, command


def test_predict_and_evaluate_report_unknown_pieces(tmp_path, notes):
    from bertkit.checkpoint.folder import write_folder
    from bertkit.commands import evaluate, predict
    from tests.support.small_models import folder, tokenizer

    model, rows = str(tmp_path / "model"), tmp_path / "rows.csv"
    write_folder(Path(model), folder("labels", tokenizer()))
    rows.write_text("text,label\nཀ ཁ ག,bad\nཀ,good\n", "utf-8")
    assert len(list(predict.run(predict.Settings(model=model, file=str(rows))))) == 2
    result = evaluate.run(evaluate.Settings(model=model, file=rows))
    assert result["unknown_share"] > 0.9 and sum("ཀ" in note for note in notes) == 2
