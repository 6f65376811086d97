"""Weights in fewer bits: how far they are from what they were, and that texts stay independent of each other."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given

import bertkit
from bertkit import machine
from bertkit.checkpoint.folder import read_folder
from bertkit.checkpoint.weights import INT8
from bertkit.commands.compress import quantize as verb
from bertkit.config import build
from bertkit.errors import DamagedFile
from bertkit.files.manifest import accept
from bertkit.inference.predictor import Predictor
from bertkit.model.inference import Int8Linear, from_int8, to_int8
from bertkit.model.layers import Linear
from bertkit.settings.compress import QuantizeSettings
from tests.support import folders, toy


def go(model: Path | str, out: Path, **changes) -> dict:
    return verb.run(build(QuantizeSettings, {"model": str(model), "out": out, "threads": 1} | changes))


@given(st.integers(1, 9), st.integers(1, 40), st.floats(1e-6, 1e6), st.integers(0, 99))
def test_no_number_moves_by_more_than_half_a_scale_and_going_again_changes_nothing(rows, width, size, seed):
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * size
    numbers, scale = to_int8(x)
    back = from_int8(numbers, scale)
    assert torch.all((back - x).abs() <= scale * 0.5001)
    assert numbers.abs().max() <= 127
    again, _ = to_int8(back)
    assert torch.equal(again, numbers)


def test_a_row_of_zeros_stays_zero():
    numbers, scale = to_int8(torch.zeros(2, 5))
    assert torch.equal(from_int8(numbers, scale), torch.zeros(2, 5)) and torch.isfinite(scale).all()


def test_the_int8_product_is_the_whole_number_product_of_both_roundings():
    torch.manual_seed(1)
    linear = Linear(48, 20)
    x = torch.randn(7, 48)
    weight, inputs = (from_int8(*to_int8(part)) for part in (linear.weight.detach(), x))
    torch.testing.assert_close(Int8Linear(linear)(x), inputs @ weight.t() + linear.bias.detach(), atol=1e-5, rtol=1e-5)


def test_an_int8_folder_opens_is_smaller_and_answers_alike(runs, tmp_path):
    runs("classify")
    before = runs.folder / "run-classify"
    result = go(before, tmp_path / "out", eval=toy.files(runs.folder, "classify")["dev"])
    found = result["compared"]
    assert found["after"]["megabytes"] < found["before"]["megabytes"] / 3
    assert found["parity"]["agreement"] > 0.95 and found["metrics"]["accuracy"][1] > 0.9
    model = bertkit.load(str(tmp_path / "out"))
    assert model.precision == ("int8" if machine.has_fast_int8() else model.precision)
    assert model.task.labels == ("ham", "spam")
    assert "not in transformers" in verb.lines(result)[-1]


def test_a_texts_int8_numbers_do_not_depend_on_its_neighbours(runs):
    model = bertkit.load(str(runs.model), precision="int8")
    texts = [row["text"] for row in toy.messages(20, 3)]
    together, alone = model.embed(texts), np.concatenate([model.embed([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    exact = bertkit.load(str(runs.model), precision="fp32").embed(texts)
    cosines = (exact * together).sum(-1) / np.linalg.norm(exact, axis=-1) / np.linalg.norm(together, axis=-1)
    assert cosines.min() > 0.99


@pytest.mark.parametrize("family", ["bert", "modernbert", "gpt2", "albert"])
def test_the_folder_holds_every_familys_weights_to_half_a_scale(family, tmp_path):
    stem = {"bert": "Bert", "modernbert": "ModernBert", "gpt2": "GPT2", "albert": "Albert"}[family]
    folders.write(tmp_path / "model", family, f"{stem}Model")
    go(tmp_path / "model", tmp_path / "out")
    before, after = (read_folder(tmp_path / name).model.state_dict() for name in ("model", "out"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        bound = tensor.abs().max() / 127 * 0.51 if tensor.dim() == 2 else 0.0
        assert (after[name] - tensor).abs().max() <= bound, name


def test_transformers_says_that_an_int8_folder_is_not_for_it(runs, tmp_path):
    go(runs.model, tmp_path / "out")
    with pytest.raises(OSError, match=r"model\.safetensors"):
        hf.AutoModel.from_pretrained(tmp_path / "out")
    assert "which only bertkit opens" in (tmp_path / "out/README.md").read_text("utf-8")


def test_written_again_it_is_a_folder_of_floats_for_everyone(runs, tmp_path):
    from bertkit.commands import convert

    go(runs.model, tmp_path / "small")
    convert.run(convert.Settings(source=str(tmp_path / "small"), target=tmp_path / "floats"))
    assert "weights" not in json.loads((tmp_path / "floats/bertkit.json").read_text())
    theirs = hf.AutoModel.from_pretrained(tmp_path / "floats")
    numbers = theirs.get_input_embeddings().weight.detach()
    assert torch.equal(numbers, read_folder(tmp_path / "small").model.encoder.embeddings.tokens.weight.detach())


@pytest.mark.parametrize("to", ["bf16", "fp16"])
def test_halves_open_in_transformers(to, runs, tmp_path):
    result = go(runs.model, tmp_path / "out", to=to)
    found = result["compared"]
    assert found["after"]["megabytes"] < found["before"]["megabytes"] * 0.55
    assert found["parity"]["cosine"] > 0.99
    assert hf.AutoModel.from_pretrained(tmp_path / "out").dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[to]


def test_scales_that_are_missing_are_found(runs, tmp_path):
    from safetensors.torch import load_file, save_file

    go(runs.model, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / INT8)
    tensors.pop(next(name for name in tensors if name.endswith(".scale")))
    save_file(tensors, tmp_path / "out" / INT8)
    accept(tmp_path / "out")
    with pytest.raises(DamagedFile, match="not have one scale"):
        Predictor.load(tmp_path / "out")


@pytest.mark.parametrize("case", ["embed", "pair", "regress", "answer", "choose", "tag"])
def test_every_kind_of_model_is_compared_on_sample_rows(case, runs, tmp_path):
    runs(case)
    found = go(runs.folder / f"run-{case}", tmp_path / "out")["compared"]
    assert next(iter(found["parity"].values())) > 0.8 and found["rows"] > 10
