"""Folders that an earlier version wrote open, and give the answers they gave then (fixtures/written_by_0.1)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import bertkit
from bertkit.data.store import Store
from bertkit.retrieval.index import Index
from tests.support.command_line import CommandLine

OLD = Path(__file__).resolve().parents[1] / "fixtures" / "written_by_0.1"
ANSWERS = json.loads((OLD / "answers.json").read_text("utf-8"))


def test_a_classifier_of_an_earlier_version_gives_the_scores_it_gave():
    rows = bertkit.load(str(OLD / "classify"), precision="fp32").predict(ANSWERS["texts"])
    for row, before in zip(rows, ANSWERS["classify"], strict=True):
        assert row["scores"] == pytest.approx(before, abs=1e-5)


def test_a_tagger_with_a_crf_of_an_earlier_version_gives_the_tags_it_gave():
    rows = bertkit.load(str(OLD / "tag"), precision="fp32").predict(["the old house anna", "anna saw bread"])
    assert [row["tags"] for row in rows] == ANSWERS["tag"]


def test_a_pretrained_model_of_an_earlier_version_fills_masks_as_it_did():
    guesses = bertkit.load(str(OLD / "pre"), precision="fp32").fill("the [MASK] house", top=3)
    guesses = guesses[0] if isinstance(guesses[0], list) else guesses
    assert [guess["token"] for guess in guesses] == [token for token, _ in ANSWERS["fill"]]
    assert [guess["score"] for guess in guesses] == pytest.approx([score for _, score in ANSWERS["fill"]], abs=1e-6)


@pytest.mark.parametrize("by", ["words", "vectors"])
def test_an_index_of_an_earlier_version_finds_what_it_found(by):
    index = Index.open(OLD / "index", str(OLD / "pre"), "fp32", "cpu")
    assert [hit["document"] for hit in index.search("bread market", 3, by)] == ANSWERS[by]


def test_an_n_gram_model_of_an_earlier_version_suggests_what_it_did():
    guesses = bertkit.load(str(OLD / "ngram")).suggest("the old", 3)
    assert [guess["word"] for guess in guesses] == [word for word, _ in ANSWERS["ngram"]]


def test_a_token_store_of_an_earlier_version_opens():
    assert Store.open(OLD / "store").documents == 40


def test_a_run_of_an_earlier_version_goes_on(tmp_path, monkeypatch, capsys):
    for name in ("pre", "store"):
        shutil.copytree(OLD / name, tmp_path / name)
    config = tmp_path / "pre" / "run.toml"
    done = CommandLine(monkeypatch, capsys)(
        "pretrain", "--config", config, "--data", tmp_path / "store", "--out", tmp_path / "pre", "--steps", 8,
        "--resume", "--allow-changed-settings",
    )  # fmt: skip
    assert done.code == 0 and "after step 6" in done.err, done.err
