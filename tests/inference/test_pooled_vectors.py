"""`embed` makes the vectors a folder was made for, unless others are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bertkit
from bertkit.checkpoint.folder import read_folder, write_folder
from bertkit.checkpoint.pooling import Pooling
from bertkit.commands import embed
from bertkit.errors import UserError
from tests.support import toy

TEXTS = ["the old house in paris", "bread", "a letter from anna and peter with a book"]


def made(path: Path, pooling: Pooling | None) -> Path:
    folder = read_folder(toy.make_model(path / "plain"), heads={})
    folder.pooling = pooling
    write_folder(path / "model", folder)
    return path / "model"


@pytest.mark.parametrize("pooling", [Pooling("cls", True), Pooling("max"), Pooling("mean", True), None])
def test_vectors_are_pooled_and_normalised_as_the_folder_says(pooling, tmp_path):
    path = made(tmp_path, pooling)
    model = bertkit.load(str(path), precision="fp32")
    wanted = pooling or Pooling()
    found = model.embed(TEXTS)
    np.testing.assert_allclose(found, model.embed(TEXTS, pool=wanted.mode, normalize=wanted.normalize), atol=1e-6)
    assert np.allclose(np.linalg.norm(found, axis=-1), 1, atol=1e-5) == wanted.normalize
    if pooling:
        sentences = pytest.importorskip("sentence_transformers", reason="the other reader of these files")
        theirs = sentences.SentenceTransformer(str(path), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(found, theirs, atol=1e-4)


def test_what_is_asked_for_goes_before_what_the_folder_says(tmp_path):
    model = bertkit.load(str(made(tmp_path, Pooling("cls", True))), precision="fp32")
    plain = bertkit.load(str(tmp_path / "plain"), precision="fp32")
    np.testing.assert_allclose(
        model.embed(TEXTS, pool="mean", normalize=False), plain.embed(TEXTS, pool="mean"), atol=1e-6
    )
    for mine, theirs in zip(model.embed(TEXTS, pool="none"), plain.embed(TEXTS, pool="none")):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_a_dense_layer_is_refused_until_other_vectors_are_asked_for(tmp_path):
    path = made(tmp_path, Pooling())
    modules = json.loads((path / "modules.json").read_text("utf-8"))
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (path / "modules.json").write_text(json.dumps(modules), "utf-8")
    model = bertkit.load(str(path), precision="fp32")
    with pytest.raises(UserError, match=r"2_Dense \(Dense\), which bertkit does not support.*--pool"):
        model.embed(TEXTS)
    assert model.embed(TEXTS, pool="mean").shape == (3, 32)


def test_the_command_says_which_pooling_it_took(tmp_path):
    path = made(tmp_path, Pooling("cls", True))
    source = toy.write(tmp_path / "texts.csv", [{"text": text} for text in TEXTS])
    result = embed.run(embed.Settings(model=str(path), file=source, out=tmp_path / "v.npy", precision="fp32"))
    assert result["pool"] == "cls"
    np.testing.assert_allclose(np.linalg.norm(np.load(tmp_path / "v.npy"), axis=-1), 1, atol=1e-5)
