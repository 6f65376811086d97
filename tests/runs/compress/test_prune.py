"""Layers and neurons taken out: transformers opens what is left and computes the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf

from bertkit.checkpoint.folder import read_folder
from bertkit.commands.compress import prune as verb
from bertkit.config import build
from bertkit.data.batch import pack
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.model.heads import Model
from bertkit.runs.compress.prune import activity, fewer_neurons
from bertkit.settings.compress import PruneSettings
from tests.support import folders, toy

STEMS = {
    "bert": "Bert", "roberta": "Roberta", "albert": "Albert", "electra": "Electra", "distilbert": "DistilBert",
    "modernbert": "ModernBert", "gpt2": "GPT2",
}  # fmt: skip


def settings(model: Path | str, out: Path, **changes) -> PruneSettings:
    return build(PruneSettings, {"model": str(model), "out": out, "threads": 1, "precision": "fp32"} | changes)


@pytest.mark.parametrize("family", STEMS)
def test_transformers_opens_the_pruned_folder_and_computes_the_same(family, tmp_path):
    folders.write(tmp_path / "model", family, f"{STEMS[family]}Model")
    depth = Predictor.load(tmp_path / "model", "fp32").config.depth
    result = verb.run(settings(tmp_path / "model", tmp_path / "out", layers=depth - 1, inner=0.5))
    assert result["depth"] == [depth, depth - 1] and result["inner"][1] < result["inner"][0]
    ours = Predictor.load(tmp_path / "out", "fp32")
    theirs = hf.AutoModel.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    ids = ours.tokenizer.ids_batch(["the cat sat on the mat"])[0]
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(ours.model.encoder(pack([ids])).tokens, wanted, atol=2e-5, rtol=1e-4)
    assert result["compared"]["after"]["megabytes"] <= result["compared"]["before"]["megabytes"]


def test_neurons_that_say_nothing_are_taken_out_without_a_trace(tmp_path):
    toy.make_model(tmp_path / "model")
    model = Predictor.load(tmp_path / "model", "fp32")
    with torch.no_grad():
        for layer in model.model.encoder.layers:
            layer.feed_forward.narrow.weight[:, ::2] = 0.0  # nobody hears every second neuron
    texts = ["the old house in the garden", "bread and water"]
    before = model.embed(texts)
    said = activity(model, settings(tmp_path / "model", tmp_path / "out"))
    model.engine.model = fewer_neurons(model.model, 0.5, said).eval()
    assert model.model.config.inner == 32
    torch.testing.assert_close(torch.tensor(model.embed(texts)), torch.tensor(before), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("numbers", [{"depth": 1, "unique_layers": 1}, {"depth": 5, "unique_layers": 2}])
def test_what_never_changes_goes_into_the_bias(numbers, tmp_path):
    toy.make_model(tmp_path / "model")
    folder = read_folder(tmp_path / "model")
    folder.model = Model(replace(folder.model.config, **numbers), {"mlm": 0})  # of five layers, one is visited thrice
    model = Predictor(folder, "fp32")
    with torch.no_grad():
        for layer in model.model.encoder.layers:
            layer.feed_forward.wide.weight[::2] = 0.0  # these always say the same,
            layer.feed_forward.wide.bias[::2] = 1.0
            layer.feed_forward.narrow.weight[:, ::2] *= 1e-3
    texts = ["the old house in the garden", "bread and water"]
    before = model.embed(texts)
    said = activity(model, settings(tmp_path / "model", tmp_path / "out"))
    model.engine.model = fewer_neurons(model.model, 0.5, said).eval()
    torch.testing.assert_close(torch.tensor(model.embed(texts)), torch.tensor(before), atol=1e-6, rtol=1e-5)


def test_a_fine_tuned_model_keeps_its_task_and_is_scored_before_and_after(runs, tmp_path):
    runs("classify")
    files = toy.files(runs.folder, "classify")
    given = settings(runs.folder / "run-classify", tmp_path / "out", inner=0.5, train=files["train"], eval=files["dev"])
    result = verb.run(given)
    assert Predictor.load(tmp_path / "out").task.labels == ("ham", "spam")
    assert result["compared"]["metrics"]["accuracy"][1] > 0.8
    assert any("bertkit distill" in line for line in verb.lines(result))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Nothing to prune"),
        ({"layers": 2}, "the model has 2"),
        ({"inner": 1.5}, "--inner is 1.5"),
        ({"inner": 0.99}, "keeps all"),
    ],
)
def test_requests_that_change_nothing_or_cannot_be_are_refused(changes, words, runs, tmp_path):
    with pytest.raises(UserError, match=words):
        verb.run(settings(runs.model, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()
