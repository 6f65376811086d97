"""A page that was exported runs its model in a browser, from a disk and without a network."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import bertkit
from bertkit.config import build
from bertkit.errors import UserError
from bertkit.runs.compress import export as web
from bertkit.runs.compress.export import export
from bertkit.settings.compress import ExportSettings
from tests.support import folders, node

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def opened(page: Path) -> dict[str, str]:
    """What the page says after it ran its example: the data- attributes of its body and its result."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("there is no Chromium here to open the page with")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=300000"]
    # No name can be resolved: a page that asked the network for anything would fail.
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", f"{page.resolve().as_uri()}?run"]
    done = subprocess.run([browser, *options, *offline], capture_output=True, text=True, timeout=840, check=False)
    return {name: html.unescape(value) for name, value in re.findall(r'data-(\w+)="([^"]*)"', done.stdout)}


def exported(tmp_path: Path, stem: str, **more) -> Path:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'bertkit[export]'")
    place = node.installed()
    folders.write(tmp_path / "model", "bert", stem, **more)
    given = {"model": str(tmp_path / "model"), "out": tmp_path / "page", "format": "web", "node": place, "threads": 1}
    result = export(build(ExportSettings, given))
    assert result["bytes"] > 10_000_000
    return tmp_path / "page/index.html"


def example(page: Path, field: str) -> str:
    words = page.read_text("utf-8")
    return re.search(rf'{field}: "([^"]+)"', words[words.index("examples:") :])[1]


@pytest.mark.slow
def test_the_page_gives_the_label_that_the_model_gives(tmp_path):
    page = exported(tmp_path, "BertForSequenceClassification", labels=["ham", "spam", "垃圾"])
    said = opened(page)
    assert "failed" not in said, said["failed"]
    wanted = bertkit.load(str(tmp_path / "model"), "fp32").predict([example(page, "text")])[0]["label"]
    assert said["answer"] == wanted


@pytest.mark.slow
def test_the_page_gives_the_vectors_that_the_model_gives(tmp_path):
    page = exported(tmp_path, "BertModel")
    said = opened(page)
    assert "failed" not in said, said["failed"]
    model = bertkit.load(str(tmp_path / "model"), "fp32")
    first, second = model.embed([example(page, "text"), example(page, "second")])
    np.testing.assert_allclose(json.loads(said["vector"]), first, atol=1e-4)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert float(said["answer"]) == pytest.approx(float(cosine), abs=1e-4)


def test_without_the_libraries_the_command_to_get_them_is_said(tmp_path):
    with pytest.raises(UserError, match=r"npm install @huggingface/transformers.*--node"):
        web.find_library(tmp_path)


def test_a_model_too_large_for_a_browser_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported/model.onnx").write_bytes(b"12345")
    monkeypatch.setattr(web, "LARGEST", 4)
    with pytest.raises(UserError, match="--weights int8"):
        web.write_web(tmp_path / "page", tmp_path / "exported", tmp_path, {})
    assert not (tmp_path / "page").exists()


def test_the_page_has_every_word_in_both_languages_and_names_no_other_place():
    page = web.PAGE.read_text("utf-8")
    english, chinese = page.split("  zh: {")[0], page.split("  zh: {")[1].split("const FIELDS")[0]
    names = set(re.findall(r"(?m)(?:^ +|, |{ )(\w+): (?:\"|\()", english[english.index("en: {") :]))
    assert names and names == set(re.findall(r"(?m)(?:^ +|, |{ )(\w+): (?:\"|\()", chinese))
    assert "http" not in page and all(f"{task}:" in page for task in web.TASKS)
