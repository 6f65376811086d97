"""What `inspect` shows: tokens in their places, real attention, and what is lost without each token."""

from __future__ import annotations

import base64
import re
import struct
import zlib

import numpy as np
import pytest
import torch
import transformers as hf

import bertkit
from bertkit.commands import inspect
from bertkit.errors import UserError
from bertkit.inference.explain import explain
from bertkit.inference.importance import importance
from bertkit.report.explain import _png, explain_report
from tests.support.toy import SMALL, make_model

TEXT = "The cat sat on the old mat."


@pytest.fixture(scope="module")
def found():
    return explain(bertkit.load("en", precision="fp32"), TEXT)


def test_tokens_stand_where_their_characters_do(found):
    for one in found["tokens"]:
        if not one["special"]:
            assert TEXT[one["start"] : one["end"]].lower() == one["token"].removeprefix("##")
    assert found["tokens"][0]["token"] == "[CLS]"


def test_attention_is_what_transformers_says(found):
    from bertkit.checkpoint.locate import locate

    folder = locate("en")
    model = hf.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = hf.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    with torch.no_grad():
        theirs = torch.stack(model(**tokens, output_attentions=True).attentions)[:, 0].numpy()
    assert np.abs(found["attention"] - theirs).max() < 1e-4


def test_habits_are_shares_of_attention(found):
    assert found["attention"].sum(-1) == pytest.approx(1, abs=1e-4)
    layers, heads, size, _ = found["attention"].shape
    assert len(found["heads"]) == layers * heads
    one = found["heads"][heads]  # the second layer's first
    ordinary = found["attention"][1, 0][1:-1]
    assert one["special"] == pytest.approx(float(ordinary[:, [0, size - 1]].sum(-1).mean()))
    assert one["before"] == pytest.approx(float(np.mean([ordinary[n, n] for n in range(size - 2)])))
    assert 1 <= one["spread"] <= size
    assert sum(token["looked_at"] for token in found["tokens"]) == pytest.approx(1, abs=1e-2)


def test_importance_is_what_hiding_a_token_costs(found):
    model = bertkit.load("en", precision="fp32")
    hidden = TEXT.replace("cat", "[MASK]")
    whole, without = (v / np.linalg.norm(v) for v in np.asarray(model.embed([TEXT, hidden])))
    (cat,) = (one for one in found["tokens"] if one["token"] == "cat")
    assert cat["importance"] == pytest.approx(1 - float(whole @ without), abs=1e-3)
    assert found["said"] is None


def test_a_classifier_reports_its_label_and_which_tokens_support_it(tmp_path):
    train = tmp_path / "train.csv"
    pairs = [(word, label) for word, label in (("good", "yes"), ("bad", "no")) for _ in range(20)]
    rows = [f"{'bread ' * (n // 2 + 1)}is {word} here,{label}" for n, (word, label) in enumerate(pairs)]
    train.write_text("text,label\n" + "\n".join(rows) + "\n")
    model = make_model(tmp_path / "model")
    run = bertkit.finetune("classify", train=str(train), model=str(model), out=str(tmp_path / "run"), **SMALL)
    found = explain(run, "bread is good here")
    prediction = run.predict(["bread is good here"])[0]
    assert found["said"]["label"] == prediction["label"]
    why = importance(run, "bread is good here")
    assert [one["importance"] for one in found["tokens"]] == pytest.approx(
        why["importance"].round(4).tolist(), abs=1e-4
    )
    assert sum(one["importance"] for one in found["tokens"]) == pytest.approx(
        found["said"]["score"] - found["said"]["baseline"], abs=0.05
    )
    page = explain_report(found, model="run", lang="zh")
    assert found["said"]["label"] in page


def test_a_guess_is_explained_by_the_tokens_that_speak_for_it_and_against_it():
    model = bertkit.load("en", precision="fp32")
    found = explain(model, "The [MASK] barked at the cat.")
    assert found["said"]["label"] == model.fill("The [MASK] barked at the cat.")[0][0]["token"]
    weights = [one["importance"] for one in found["tokens"]]
    assert min(weights) < 0 < max(weights)
    lines = inspect.lines({**found, "page": "p"})[1:-1]
    words = [one for one in found["tokens"] if not one["special"]]
    assert [line.split()[0] for line in lines] == [one["token"] for one in words]
    drawn = [(one["importance"], line[-1]) for one, line in zip(words, lines) if line[-1] in "█░"]
    assert {bar for _, bar in drawn} == {"█", "░"} and all((weight > 0) == (bar == "█") for weight, bar in drawn)


def test_the_command_writes_a_page_without_scripts(tmp_path, capsys):
    result = inspect.run(inspect.Settings(model="en", text="A <b>bold</b> word", out=tmp_path / "p.html", threads=1))
    page = (tmp_path / "p.html").read_text("utf-8")
    assert "<b>bold" not in page and "<script" not in page
    pictures = re.findall(r"base64,([^\"]+)", page)
    assert len(pictures) == np.prod(np.asarray(result["attention"]).shape[:2])
    assert inspect.lines(result)[-1].endswith("p.html")


def test_a_picture_is_dark_where_all_attention_goes():
    data = base64.b64decode(_png([[1.0, 0.0], [0.0, 1.0]]))
    assert struct.unpack(">II", data[16:24]) == (2, 2)
    size = struct.unpack(">I", data[33:37])[0]
    rows = zlib.decompress(data[41 : 41 + size])
    assert rows[1:4] != bytes([255] * 3) and rows[4:7] == bytes([255] * 3)


def test_texts_that_cannot_be_inspected_are_refused():
    model = bertkit.load("en")
    with pytest.raises(UserError, match="nothing to inspect"):
        explain(model, "")
    with pytest.raises(UserError, match="at most 256"):
        explain(model, "word " * 400)
