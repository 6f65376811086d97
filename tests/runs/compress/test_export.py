"""What is written for other programs answers there as it answers here; transformers and onnxruntime are the judges."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from bertkit.commands.compress import export as verb
from bertkit.config import build
from bertkit.errors import UserError
from bertkit.files.manifest import accept
from bertkit.inference.predictor import Predictor
from bertkit.runs.compress.export import export
from bertkit.runs.compress.onnx import POOLS
from bertkit.settings.compress import ExportSettings
from tests.support import folders, toy

TEXTS = ["the cat sat on the mat", "paris", "the old river bank of london is green and new", "a dog ran"]


def go(model: Path | str, out: Path, **changes) -> dict:
    settings = build(ExportSettings, {"model": str(model), "out": out, "threads": 1} | changes)
    return verb.run(settings)


def padded(ids: list[list[int]]) -> dict[str, np.ndarray]:
    wide = max(map(len, ids))
    return {
        "input_ids": np.array([row + [0] * (wide - len(row)) for row in ids]),
        "attention_mask": np.array([[1] * len(row) + [0] * (wide - len(row)) for row in ids]),
    }


@pytest.fixture
def onnxruntime():
    return pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'bertkit[export]'")


def session(onnxruntime, path: Path):
    return onnxruntime.InferenceSession(str(path / "onnx/model.onnx"), providers=["CPUExecutionProvider"])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_an_encoders_onnx_file_gives_transformers_vectors_for_any_batch_and_length(family, tmp_path, onnxruntime):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    stem = {"bert": "BertModel", "modernbert": "ModernBertModel"}[family]
    theirs = folders.write(tmp_path / "model", family, stem).eval()
    result = go(tmp_path / "model", tmp_path / "out")
    assert result["max_difference"] < 1e-4 and result["compared"]["parity"]["cosine"] > 0.999
    run = session(onnxruntime, tmp_path / "out")
    tokenizer = Predictor.load(tmp_path / "model", "fp32").tokenizer
    for texts in (TEXTS[:1], TEXTS, TEXTS[1:3]):  # other batches and lengths than were traced
        feed = padded(tokenizer.ids_batch(texts))
        given = {key: torch.from_numpy(value) for key, value in feed.items()}
        if "token_type_ids" in result["inputs"]:
            feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
        tokens, vectors = run.run(["last_hidden_state", "sentence_embedding"], feed)
        with torch.no_grad():
            wanted = theirs(**given).last_hidden_state.numpy()
        real = feed["attention_mask"].astype(bool)
        np.testing.assert_allclose(tokens[real], wanted[real], atol=2e-5)
        means = np.stack([row[keep].mean(0) for row, keep in zip(wanted, real)])
        np.testing.assert_allclose(vectors, means, atol=2e-5)


@pytest.mark.slow
def test_a_fine_tuned_models_onnx_file_predicts_as_the_model(runs, tmp_path, onnxruntime):
    """Every other task: tests/inference/test_engines.py."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runs("tag")
    result = go(runs.folder / "run-tag", tmp_path / "out", eval=toy.files(runs.folder, "tag")["dev"], precision="fp32")
    found = result["compared"]
    assert found["parity"]["agreement"] == 1.0 and result["max_difference"] < 1e-4
    for name, (before, after) in found["metrics"].items():
        assert after == pytest.approx(before, abs=1e-6), name
    assert found["after"]["megabytes"] > 0
    assert (tmp_path / "out/tokenizer.json").is_file() and (tmp_path / "out/bertkit.json").is_file()
    assert "opens in bertkit.load" in verb.lines(result)[-1]
    assert "bertkit.load" in (tmp_path / "out/README.md").read_text("utf-8")


def with_options(runs, case: str, folder: Path, **options) -> Path:
    """A fine-tuned model with other options of its task."""
    runs(case)
    shutil.copytree(runs.folder / f"run-{case}", folder)
    about = json.loads((folder / "bertkit.json").read_text("utf-8"))
    about["options"] |= options
    (folder / "bertkit.json").write_text(json.dumps(about), "utf-8")
    accept(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "hf"])
def test_a_plain_softmax_gives_the_calibrated_probabilities(format, runs, tmp_path, onnxruntime):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    model = with_options(runs, "classify", tmp_path / "model", temperature=4.0)
    result = go(model, tmp_path / "out", format=format)
    assert result["temperature_folded_in"] == 4.0
    before = Predictor.load(model, "fp32")
    text = "the winner of the prize"
    feed = padded(before.tokenizer.ids_batch([text]))
    feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
    if format == "onnx":
        (logits,) = session(onnxruntime, tmp_path / "out").run(
            ["logits"], {name: feed[name] for name in result["inputs"]}
        )
    else:
        theirs = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
        with torch.no_grad():
            logits = theirs(**{name: torch.from_numpy(ids) for name, ids in feed.items()}).logits.numpy()
    said = torch.from_numpy(logits)[0].double().softmax(-1).tolist()
    assert said == pytest.approx(list(before.predict([text])[0]["scores"].values()), abs=1e-5)


@pytest.mark.parametrize(
    ("format", "case", "options", "told"),
    [
        ("hf", "tag", {"word": "mean"}, "first piece of each word; this model was trained with the mean"),
        ("onnx", "tag", {"word": "max"}, "combine them into words; this model was trained with the max"),
        ("hf", "regress", {"mean": 55.0}, "add 55 to each"),
        ("hf", "classify", {"abstain": 0.8}, "bertkit marks answers with a score below 0.8"),
        ("hf", "answer", {"impossible": True, "threshold": 1.5}, "The answer threshold of 1.5"),
    ],
)
def test_what_is_not_exported_is_reported(format, case, options, told, runs, tmp_path, notes):
    if format == "onnx":
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    go(with_options(runs, case, tmp_path / "model", **options), tmp_path / "out", format=format)
    assert sum(told in line for line in notes) == 1


@pytest.mark.slow
def test_a_file_that_answers_otherwise_is_refused_and_not_left_behind(runs, tmp_path, monkeypatch, onnxruntime):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    monkeypatch.setitem(POOLS, "first", lambda tokens, real: tokens[:, -1])  # an export that went wrong
    runs("classify")
    with pytest.raises(UserError, match="outputs differ"):
        go(runs.folder / "run-classify", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_exporter_is_reported_in_one_line(runs, tmp_path, monkeypatch):
    from importlib import util

    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"onnx, onnxscript, onnxruntime: pip install 'bertkit\[export\]'"):
        go(runs.model, tmp_path / "out")


@pytest.mark.parametrize("case", ["classify", "regress", "tag", "multi-label"])
def test_a_plain_folder_gives_the_same_answers_in_transformers(case, runs, tmp_path):
    runs(case)
    out = tmp_path / "out"
    result = go(runs.folder / f"run-{case}", out, format="hf")
    assert next(iter(result["compared"]["parity"].values())) > 0.999
    assert not any((out / name).exists() for name in ("bertkit.json", "run.toml", "metrics.jsonl", "report.html"))
    tokenizer = hf.AutoTokenizer.from_pretrained(out)
    kind = hf.AutoModelForTokenClassification if case == "tag" else hf.AutoModelForSequenceClassification
    model = kind.from_pretrained(out).eval()
    text = "the winner of the prize with anna in new london"
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits[0].double()
    said = Predictor.load(runs.folder / f"run-{case}", "fp32").predict([text])[0]
    if case == "classify":
        labels = [model.config.id2label[n] for n in range(len(logits))]
        assert dict(zip(labels, logits.softmax(-1).tolist())) == pytest.approx(said["scores"], abs=1e-5)
    elif case == "regress":
        assert model.config.problem_type == "regression" and float(logits) == pytest.approx(said["value"], rel=1e-4)
    elif case == "multi-label":
        assert model.config.problem_type == "multi_label_classification"
        assert logits.sigmoid().tolist() == pytest.approx(list(said["scores"].values()), abs=1e-5)
    else:
        words = tokenizer(text).word_ids()
        firsts = [n for n, word in enumerate(words) if word is not None and word != words[n - 1]]
        assert [model.config.id2label[int(n)] for n in logits[firsts].argmax(-1)] == said["tags"]


def test_requests_that_cannot_be_are_refused(runs, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        go(runs.model, tmp_path / "full", format="hf")
    with pytest.raises(UserError, match="the format hf supports fp32, bf16, fp16"):
        go(runs.model, tmp_path / "out", format="hf", weights="int8")
    with pytest.raises(UserError, match="no score to compare"):
        go(runs.model, tmp_path / "out", format="hf", eval=tmp_path / "full/file")
    assert (tmp_path / "full/file").read_text() == "mine"


@pytest.mark.slow
def test_int8_onnx_is_smaller_and_reports_its_difference(runs, tmp_path, onnxruntime):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runs("classify")
    result = go(runs.folder / "run-classify", tmp_path / "out", weights="int8")
    found = result["compared"]
    assert found["after"]["precision"] == "int8" and found["parity"]["agreement"] > 0.9
    assert result["file"] == "onnx/model_quantized.onnx" and result["max_difference"] > 0
    assert callable(export)
