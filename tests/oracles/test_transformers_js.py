"""What `export --format onnx` writes runs in transformers.js as it is, and answers the same there."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import bertkit
from bertkit.config import build
from bertkit.runs.compress.export import export
from bertkit.settings.compress import ExportSettings
from tests.support import folders, node

pytestmark = pytest.mark.slow
ROWS = 1000
TEXTS = [
    "the cat sat on the mat", "paris", "the old river bank of london is green and new !", "a dog ran fast , slow",
    "中国 paris 北京 is big",
]  # fmt: skip


def many_texts() -> list[str]:
    """Texts of 1 to 12 words, some of them unknown; all short enough, for transformers.js truncates in its own way."""
    words = [*" ".join(TEXTS).split(), "unknowable", "?", "北京人"]
    rng = random.Random(19)
    return [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(ROWS)]


def exported(tmp_path: Path, stem: str, **more) -> tuple[Path, bertkit.inference.predictor.Predictor]:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'bertkit[export]'")
    node.installed()
    folders.write(tmp_path / "model", "bert", stem, **more)
    export(build(ExportSettings, {"model": str(tmp_path / "model"), "out": tmp_path / "out", "threads": 1}))
    return tmp_path / "out", bertkit.load(str(tmp_path / "model"), "fp32")


def test_vectors(tmp_path):
    out, model = exported(tmp_path, "BertModel")
    texts = many_texts()
    found = np.array(node.run(out, "feature-extraction", texts, pooling="mean"))[:, 0]
    wanted = model.embed(texts, pool="mean")
    cosines = (found * wanted).sum(-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(wanted, axis=-1)
    assert cosines.min() >= 0.999


def test_labels_of_texts(tmp_path):
    labels = ["ham", "spam", "垃圾"]
    out, model = exported(tmp_path, "BertForSequenceClassification", labels=labels)
    texts = many_texts()
    found = node.run(out, "text-classification", texts, top_k=3)
    for theirs, ours in zip(found, model.predict(texts), strict=True):
        scores = {row["label"]: row["score"] for row in theirs}
        assert max(scores, key=scores.__getitem__) == ours["label"]
        assert scores == pytest.approx(ours["scores"], abs=1e-4)


def test_labels_of_tokens(tmp_path):
    labels = ["O", "B-LOC", "I-LOC"]
    out, model = exported(tmp_path, "BertForTokenClassification", labels=labels)
    texts = ["the cat sat on the mat", "paris is big"]  # one piece per word, so that both count the same tokens
    found = node.run(out, "token-classification", texts, ignore_labels=[])
    for theirs, ours in zip(found, model.predict(texts), strict=True):
        assert [row["word"] for row in theirs] == ours["tokens"]
        assert [row["entity"] for row in theirs] == [labels[0] if tag == "O" else tag for tag in ours["tags"]]


def test_masked_words(tmp_path):
    out, model = exported(tmp_path, "BertForMaskedLM")
    assert "logits" in _outputs(out)
    texts = ["the [MASK] sat on the mat", "paris is the [MASK] of france"]
    found = node.run(out, "fill-mask", texts, top_k=3)
    for theirs, text in zip(found, texts, strict=True):
        ours = model.fill(text, top=3)[0]
        assert [row["token"] for row in theirs] == [row["id"] for row in ours]
        assert [row["score"] for row in theirs] == pytest.approx([row["score"] for row in ours], abs=1e-4)


def _outputs(out: Path) -> list[str]:
    import onnxruntime

    path = next(path for path in (out / "onnx/model.onnx", out / "model.onnx") if path.is_file())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [entry.name for entry in session.get_outputs()]
