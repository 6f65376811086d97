"""`embed` makes the vectors a folder was made for, as sentence-transformers does, unless others are asked for."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

import bertkit
from bertkit.checkpoint.folder import read_folder, write_folder
from bertkit.commands import convert, embed
from bertkit.errors import DamagedFile, UserError
from bertkit.inference.predictor import Predictor
from bertkit.model.pooling import ACTIVATIONS, MODES, Pooling, Step
from bertkit.retrieval.index import Index, build
from bertkit.retrieval.passages import Passage
from bertkit.runs.compress.onnx import Padded
from bertkit.text.tokenizer import Tokenizer
from tests.support import toy

TEXTS = ["the old house in paris", "bread", "a letter from anna and peter with a book", ""]
LONG = " ".join(["the old house in paris and a letter from anna"] * 5)
PROMPTS = {"query": "a letter: ", "passage": "the book: "}


def made(path: Path, pooling: Pooling | None) -> Path:
    folder = read_folder(toy.make_model(path / "plain"), heads={})
    folder.pooling = pooling
    write_folder(path / "model", folder)
    (path / "model/bertkit.json").unlink()
    return path / "model"


def oracle(path: Path):
    sentences = pytest.importorskip("sentence_transformers", reason="the oracle for its own folders")
    return sentences.SentenceTransformer(str(path), device="cpu")


def dense(wide: int, out: int, activation: str = "Tanh", **more) -> Step:
    rng = np.random.default_rng(wide + out)
    tensors = {"linear.weight": rng.normal(0, 0.2, (out, wide)), "linear.bias": rng.normal(0, 0.2, out)}
    if more.get("use_residual") and wide != out:
        tensors["residual.weight"] = rng.normal(0, 0.2, (out, wide))
    where = "linear" if activation == "Identity" else "activation"
    config = {
        "in_features": wide, "out_features": out, "bias": True,
        "activation_function": f"torch.nn.modules.{where}.{activation}", **more,
    }  # fmt: skip
    return Step("Dense", config, {name: tensor.astype(np.float32) for name, tensor in tensors.items()})


def layer_norm(wide: int) -> Step:
    rng = np.random.default_rng(wide)
    tensors = {f"norm.{name}": rng.normal(1, 0.3, wide).astype(np.float32) for name in ("weight", "bias")}
    return Step("LayerNorm", {"dimension": wide}, tensors)


SHAPES = {
    **{mode: Pooling(mode) for mode in MODES},
    "bge": Pooling("cls", True, kept={"prompts": PROMPTS}),
    "e5": Pooling("mean", True, kept={"prompts": PROMPTS, "default_prompt_name": "query"}),
    "several poolings": Pooling("cls+max+mean+mean_sqrt_len_tokens+weightedmean+lasttoken", True),
    "in another order": Pooling("lasttoken+mean"),
    "distiluse": Pooling("mean", steps=(dense(32, 16),)),
    "dense, then unit": Pooling("cls+mean", True, steps=(dense(64, 16, "Identity"), dense(16, 8, "ReLU"))),
    "unit, then dense": Pooling("mean", steps=(Step("Normalize"), layer_norm(32), dense(32, 24, "GELU"))),
    "residual": Pooling("max", True, steps=(dense(32, 32, use_residual=True), dense(32, 8, use_residual=True))),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_are_those_of_sentence_transformers(shape, tmp_path):
    path = made(tmp_path, SHAPES[shape])
    theirs, model = oracle(path), bertkit.load(str(path), precision="fp32")
    found = model.embed(TEXTS)
    np.testing.assert_allclose(found, theirs.encode(TEXTS), atol=1e-5)
    assert found.shape[1] == model.width
    convert.run(convert.Settings(source=str(path), target=tmp_path / "again"))
    np.testing.assert_array_equal(bertkit.load(str(tmp_path / "again"), precision="fp32").embed(TEXTS), found)
    np.testing.assert_allclose(oracle(tmp_path / "again").encode(TEXTS), found, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("include", [True, False])
def test_a_prompt_is_put_before_each_text_and_its_tokens_count_or_not(mode, include, tmp_path):
    path = made(tmp_path, Pooling(mode, kept={"prompts": PROMPTS}, include_prompt=include))
    theirs, model = oracle(path), bertkit.load(str(path), precision="fp32")
    for name in PROMPTS:
        np.testing.assert_allclose(model.embed(TEXTS, prompt=name), theirs.encode(TEXTS, prompt_name=name), atol=1e-5)
    words = theirs.encode(TEXTS, prompt="bread and ")
    np.testing.assert_allclose(model.embed(TEXTS, prompt_text="bread and "), words, atol=1e-5)


def test_the_default_prompt_applies_until_another_or_none_is_chosen(tmp_path):
    path = made(tmp_path, SHAPES["e5"])
    model = bertkit.load(str(path), precision="fp32")
    by_hand = [PROMPTS["query"] + text for text in TEXTS]
    np.testing.assert_allclose(model.embed(TEXTS), model.embed(by_hand, prompt=""), atol=1e-6)
    assert np.abs(model.embed(TEXTS) - model.embed(TEXTS, prompt="passage")).max() > 1e-3
    with pytest.raises(UserError, match=r"no prompt called 'qeury'. Did you mean 'query'\?.*--prompt-text"):
        model.embed(TEXTS, prompt="qeury")
    with pytest.raises(UserError, match="It has none"):
        bertkit.load(str(tmp_path / "plain"), precision="fp32").embed(TEXTS, prompt="query")
    with pytest.raises(UserError, match="Both a prompt name"):
        model.embed(TEXTS, prompt="query", prompt_text="query: ")


def test_long_texts_are_truncated_where_sentence_transformers_does_or_read_in_windows_of_that_length(tmp_path):
    path = made(tmp_path, Pooling("mean", max_tokens=16, kept={"prompts": PROMPTS}, include_prompt=False))
    theirs, model = oracle(path), bertkit.load(str(path), precision="fp32")
    assert theirs.max_seq_length == model.vector_limit == 16
    cut = model.embed([LONG], on_long="truncate", prompt="query")
    np.testing.assert_allclose(cut, theirs.encode([LONG], prompt_name="query"), atol=1e-5)
    whole = model.embed([LONG], prompt="query")
    assert np.abs(whole - cut).max() > 1e-4, "windows read what truncation leaves out"
    ids = model.tokenizer.encode(PROMPTS["query"] + LONG)
    tokens = model.embed([LONG], pool="none", prompt="query")[0]
    assert len(tokens) == len(ids) - 2
    skip = model.tokenizer.prompt_tokens(PROMPTS["query"]) - 1
    np.testing.assert_allclose(whole[0], tokens[skip:].mean(0), atol=1e-5)


def test_texts_are_lower_cased_where_the_folder_says_so(tmp_path):
    cased = read_folder(toy.make_model(tmp_path / "plain"), heads={})
    shape = cased.tokenizer.shape
    shape["normalizer"]["lowercase"] = False
    rules = tokenizers.Tokenizer.from_str(json.dumps(shape))
    cased.tokenizer = Tokenizer(rules, cased.tokenizer.config | {"do_lower_case": False})
    cased.pooling = Pooling("mean", kept={"do_lower_case": True})
    write_folder(tmp_path / "model", cased)
    model = bertkit.load(str(tmp_path / "model"), precision="fp32")
    texts = ["The OLD House", "Bread"]
    np.testing.assert_array_equal(model.embed(texts), model.embed([text.lower() for text in texts]))
    np.testing.assert_allclose(model.embed(texts), oracle(tmp_path / "model").encode(texts), atol=1e-5)
    convert.run(convert.Settings(source=str(tmp_path / "model"), target=tmp_path / "again"))
    again = bertkit.load(str(tmp_path / "again"), precision="fp32")
    np.testing.assert_array_equal(again.embed(texts), model.embed(texts))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_torch(name):
    x = np.linspace(-5, 5, 101, dtype=np.float32)
    np.testing.assert_allclose(ACTIVATIONS[name](x), getattr(torch.nn, name)()(torch.from_numpy(x)), atol=1e-6)


def test_an_old_folder_with_its_encoder_in_a_folder_of_its_own_is_opened(tmp_path):
    path = made(tmp_path, Pooling("cls", True, max_tokens=20))
    wanted = bertkit.load(str(path), precision="fp32").embed(TEXTS)
    (path / "0_Transformer").mkdir()
    ours = ("config.json", "model.safetensors", "sentence_bert_config.json", "vocab.txt")
    for file in [*path.glob("*token*"), *(path / name for name in ours)]:
        file.rename(path / "0_Transformer" / file.name)
    (path / "0_Transformer/sentence_bert_config.json").rename(path / "0_Transformer/sentence_distilbert_config.json")
    modules = (path / "modules.json").read_text("utf-8").replace('"path": ""', '"path": "0_Transformer"')
    (path / "modules.json").write_text(modules, "utf-8")
    model = bertkit.load(str(path), precision="fp32")
    np.testing.assert_array_equal(model.embed(TEXTS), wanted)
    assert model.vector_limit == 20


def test_a_folder_without_an_encoder_is_refused_by_the_name_of_what_it_has(tmp_path):
    kind = "sentence_transformers.models.StaticEmbedding"
    (tmp_path / "modules.json").write_text(f'[{{"idx": 0, "name": "0", "path": "", "type": "{kind}"}}]', "utf-8")
    with pytest.raises(UserError, match="no Transformer, but StaticEmbedding"):
        bertkit.load(str(tmp_path))


def test_a_module_of_another_width_is_damage(tmp_path):
    path = made(tmp_path, Pooling("mean", steps=(dense(31, 4),)))
    with pytest.raises(DamagedFile, match="expects vectors of width 31, but is given 32"):
        bertkit.load(str(path))


def test_an_activation_that_is_not_known_is_refused_until_other_vectors_are_asked_for(tmp_path):
    model = bertkit.load(str(made(tmp_path, Pooling("mean", steps=(dense(32, 4, "Hardtanh"),)))), precision="fp32")
    with pytest.raises(UserError, match=r"2_Dense \(Dense with the activation 'Hardtanh'\).*--pool"):
        model.embed(TEXTS)
    assert model.embed(TEXTS, pool="mean").shape == (4, 32)


def test_similarities_of_pairs_are_those_of_the_whole_folder(tmp_path):
    pooling = replace(SHAPES["dense, then unit"], kept={"prompts": PROMPTS, "default_prompt_name": "passage"})
    path = made(tmp_path, replace(pooling, include_prompt=False))
    pairs = list(itertools.pairwise(TEXTS))
    said = [row["similarity"] for row in bertkit.load(str(path), precision="fp32").predict(pairs)]
    left, right = (oracle(path).encode([pair[side] for pair in pairs]) for side in (0, 1))
    assert said == pytest.approx((left * right).sum(-1).tolist(), abs=1e-5)


def test_what_is_asked_for_goes_before_what_the_folder_says(tmp_path):
    model = bertkit.load(str(made(tmp_path, SHAPES["dense, then unit"])), precision="fp32")
    plain = bertkit.load(str(tmp_path / "plain"), precision="fp32")
    for pool in ("mean", "cls+max"):
        asked = model.embed(TEXTS, pool=pool, normalize=False)
        np.testing.assert_allclose(asked, plain.embed(TEXTS, pool=pool), atol=1e-6)
    for mine, theirs in zip(model.embed(TEXTS, pool="none"), plain.embed(TEXTS, pool="none")):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    with pytest.raises(UserError, match=r"go through Dense .*last layer.*--pool"):
        model.embed(TEXTS, layers="second-to-last")
    with pytest.raises(UserError, match="Did you mean 'mean'"):
        model.embed(TEXTS, pool="meen")


def test_the_command_says_which_pooling_and_prompt_it_took(tmp_path):
    path = made(tmp_path, SHAPES["bge"])
    source = toy.write(tmp_path / "texts.csv", [{"text": text} for text in TEXTS[:3]])
    where = {"model": str(path), "file": source, "out": tmp_path / "v.npy", "precision": "fp32"}
    result = embed.run(embed.Settings(**where, prompt="query"))
    assert result["pool"] == "cls" and result["prompt"] == PROMPTS["query"]
    model = bertkit.load(str(path), precision="fp32")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), model.embed(TEXTS[:3], prompt="query"), atol=1e-6)
    with pytest.raises(UserError, match="pool is 'meen'"):
        embed.run(embed.Settings(**where, pool="meen"))


def test_an_index_puts_the_prompts_of_documents_and_queries(tmp_path):
    path = made(tmp_path, SHAPES["e5"])
    predictor = Predictor.load(path, "fp32")
    build(
        predictor,
        str(path),
        iter([Passage(text, "f", n, str(n)) for n, text in enumerate(TEXTS[:3])]),
        tmp_path / "index",
    )
    index = Index.open(tmp_path / "index", precision="fp32")
    stored = index.segments[0].vectors.exact.astype(np.float32)
    np.testing.assert_allclose(stored, predictor.embed(TEXTS[:3], prompt="passage"), atol=1e-3)
    found = index.search("the house", 3, "vectors")
    question = predictor.embed(["the house"], prompt="query")[0]
    assert [row["cosine"] for row in found] == pytest.approx(
        sorted((stored @ question).tolist(), reverse=True), abs=1e-4
    )


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_the_graph_for_other_runtimes_makes_the_same_vectors(shape, tmp_path):
    folder = read_folder(made(tmp_path, SHAPES[shape]))
    wanted = Predictor(folder, "fp32").embed(TEXTS, prompt="")
    again = read_folder(tmp_path / "model")
    encodings = again.tokenizer.encode_batch(TEXTS)
    rows = [torch.tensor(encoding.ids) for encoding in encodings]
    ids, mask = (
        torch.nn.utils.rnn.pad_sequence(part, batch_first=True)
        for part in (rows, [torch.ones_like(row) for row in rows])
    )
    _, vectors = Padded(again.model.eval(), "", again.pooling)(ids, mask)
    np.testing.assert_allclose(vectors, wanted, atol=1e-5)


def test_the_server_takes_prompts_by_name_and_in_words(tmp_path):
    pytest.importorskip("fastapi", reason="the server's extra is not installed")
    from fastapi.testclient import TestClient

    from bertkit.server.app import make_app
    from bertkit.server.middleware import LOCAL
    from bertkit.server.models import load
    from bertkit.server.service import InferenceService

    path = made(tmp_path, replace(SHAPES["e5"], include_prompt=False))
    model = bertkit.load(str(path), precision="fp32")
    app = make_app(InferenceService(load([str(path)], "fp32")), hosts=LOCAL)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/info").json()["prompts"] == list(PROMPTS)
        for body, chosen in [
            ({}, {}),
            ({"prompt_name": "passage"}, {"prompt": "passage"}),
            ({"prompt": "bread and "}, {"prompt_text": "bread and "}),
            ({"prompt": ""}, {"prompt": ""}),
        ]:
            wanted = model.embed(TEXTS[:3], **chosen)
            found = client.post("/embed", json={"inputs": TEXTS[:3], **body}).json()
            np.testing.assert_allclose(found, wanted, atol=1e-5)
            data = client.post("/v1/embeddings", json={"model": "model", "input": TEXTS[:3], **body}).json()["data"]
            np.testing.assert_allclose([row["embedding"] for row in data], wanted, atol=1e-5)
        ranked = client.post("/rerank", json={"query": TEXTS[0], "texts": TEXTS[1:3]}).json()
        question, texts = model.embed(TEXTS[:1], prompt="query"), model.embed(TEXTS[1:3], prompt="passage")
        assert sorted(row["score"] for row in ranked) == pytest.approx(sorted((texts @ question[0]).tolist()), abs=1e-5)
        for body in ({"prompt_name": "qeury"}, {"prompt_name": "query", "prompt": "x"}):
            assert client.post("/embed", json={"inputs": "bread", **body}).status_code in (400, 422)
        answer = client.post("/embed", json={"inputs": [[2, 5, 3]], "prompt_name": "query"})
        assert answer.status_code in (400, 422) and "not before ids" in answer.text
        pieces = client.post("/tokenize", json={"inputs": "bread", "prompt_name": "query"}).json()[0]
        assert len(pieces) == len(model.tokenizer.encode(PROMPTS["query"] + "bread"))
