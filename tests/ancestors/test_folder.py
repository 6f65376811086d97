"""Every ancestor's folder is written whole or not at all, and refused with the same words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from bertkit.ancestors import folder
from bertkit.ancestors.baselines.fasttext import FastText
from bertkit.ancestors.baselines.models import LinearModel, Majority, MeanNumber, NaiveBayes, NgramClassifier, TfIdf
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.hmm import FrequentTag, HmmTagger
from bertkit.ancestors.ngram.model import NgramModel, NgramSettings
from bertkit.errors import DamagedFile, UserError
from bertkit.files import atomic

TEXTS, LABELS = ["a prize for you", "dinner with friends", "win a prize", "see you at dinner"], [1, 0, 1, 0]
SENTENCES, TAGS = [["anna", "sleeps"], ["paris", "sleeps"]], [["N", "V"], ["N", "V"]]
MODELS = {
    "majority": lambda: Majority().fit(TEXTS, LABELS, 2),
    "bayes": lambda: NaiveBayes().fit(TEXTS, LABELS, 2),
    "tfidf": lambda: TfIdf().fit(TEXTS, LABELS, 2),
    "linear": lambda: LinearModel.of(np.arange(2), np.eye(2), np.zeros(2), 2),
    "ngram classifier": lambda: NgramClassifier().fit(TEXTS, LABELS, 2),
    "mean": lambda: MeanNumber().fit(TEXTS, [1.0, 2.0, 3.0, 4.0]),
    "fasttext": lambda: FastText().fit(TEXTS, LABELS, 2),
    "ngram": lambda: NgramModel(NgramSettings(order=2, min_count=1)).fit(TEXTS),
    "hmm": lambda: HmmTagger().fit(SENTENCES, TAGS),
    "frequent tag": lambda: FrequentTag().fit(SENTENCES, [[0, 1], [0, 1]], 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_that_is_not_there_empty_or_damaged_is_refused_in_the_same_words(name, tmp_path):
    model = MODELS[name]()
    with pytest.raises(UserError, match="there is no such folder"):
        type(model).load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty holds no .*: .* is missing"):
        type(model).load(tmp_path / "empty")
    model.save(tmp_path / "saved")
    type(model).load(tmp_path / "saved")
    file = next(path for path in (tmp_path / "saved").rglob("*") if path.suffix in (".json", ".safetensors"))
    file.write_bytes(b'{"torn')
    with pytest.raises(DamagedFile, match="is damaged"):
        type(model).load(tmp_path / "saved")


@pytest.mark.parametrize("name", MODELS)
def test_a_save_that_fails_leaves_the_earlier_model_as_it_was(name, tmp_path, monkeypatch):
    model = MODELS[name]()
    model.save(tmp_path / "saved")
    before = {path: path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file()}

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(atomic.calls, "fsync", full)
    with pytest.raises(UserError, match="space"):
        model.save(tmp_path / "saved")
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file()} == before


def test_a_folder_of_another_kind_says_which(tmp_path):
    elmo = Layout("ELMo", "bertkit.json", kinds=("elmo",))
    (tmp_path / "bertkit.json").write_text(json.dumps({"ancestor": "seq2seq"}))
    with pytest.raises(UserError, match=r"holds no ELMo but another kind of model: bertkit\.json says .*'seq2seq'"):
        folder.load(tmp_path, elmo)


def test_folders_of_earlier_versions_open(tmp_path: Path):
    """Files as the libraries' own writers made them, and JSON without a line end."""
    from safetensors.numpy import save_file

    (tmp_path / "majority.json").write_text("[0.25, 0.75]", "utf-8")
    assert Majority.load(tmp_path).shares.tolist() == [0.25, 0.75]
    save_file({"weights": np.eye(2, dtype=np.float32), "bias": np.ones(2, np.float32)}, tmp_path / "linear.safetensors")
    assert LinearModel.load(tmp_path).bias.tolist() == [1.0, 1.0]
