"""Own documents: cut, indexed, found again, and asked."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections import Counter
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import bertkit
from bertkit import samples
from bertkit.checkpoint.locate import locate
from bertkit.commands import index, search
from bertkit.commands.search import ask
from bertkit.config import build, read_toml, remember
from bertkit.data.readers import read_documents
from bertkit.errors import DamagedFile, UserError
from bertkit.files.manifest import accept
from bertkit.retrieval.bm25 import BM25, LENGTH, PAIRS, SATURATION, Terms
from bertkit.retrieval.index import VECTOR_WEIGHT, Index, best_of, fingerprint, fused, vector_weight
from bertkit.retrieval.passages import cut
from bertkit.text.tokenizer import Tokenizer
from tests.support.toy import SMALL, make_model

OLD = Path(__file__).resolve().parents[1] / "fixtures/written_by_0.1"
DOCUMENTS = [
    "The garden was green. It had a wall of old stone. Nobody came there in winter.",
    "A train left the station at nine. The train was late again, and it rained.",
    "Bread is made of flour. The baker sells bread and milk on the market.",
    "The school has a large table. Children sit at the table and read.",
]


@cache
def tokenizer_of(model: str) -> Tokenizer:
    return Tokenizer.load(locate(model))


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "documents.txt"
    path.write_text("\n\n".join(DOCUMENTS), "utf-8")
    return path


@pytest.fixture
def made(tmp_path, documents):
    out = tmp_path / "index"
    facts = index.run(index.Settings(files=(documents,), model="en", out=out, passage=12, threads=1))
    return out, facts


def test_passages_are_whole_sentences_up_to_a_size():
    tokenizer = tokenizer_of("en")
    for size in (8, 16, 400):
        parts = cut(DOCUMENTS[0], tokenizer, size)
        assert " ".join(parts) == DOCUMENTS[0]
        sizes = [len(ids) for ids in tokenizer.pieces_batch(parts)]
        assert all(n <= size or part.count(".") == 1 for n, part in zip(sizes, parts))
    assert len(cut(DOCUMENTS[0], tokenizer, 400)) == 1
    assert cut("今天下雨。我们在家。", tokenizer_of("zh"), 6) == ["今天下雨。", "我们在家。"]


@given(st.text("ab A.!? \n\t。！？；…”今天下雨", max_size=60))
def test_passages_are_the_documents_own_text_in_order_and_nothing_but_spaces_is_lost(document):
    at, tokenizer = 0, tokenizer_of("zh")
    for passage in cut(document, tokenizer, 6):
        start = document.index(passage, at)
        assert not document[at:start].strip()
        at = start + len(passage)
    assert not document[at:].strip()


@pytest.mark.parametrize("model", ["en", "zh"])
def test_every_passage_of_the_samples_stands_in_its_document(model):
    tokenizer = tokenizer_of(model)
    for document in read_documents(samples.path(model, "passages.txt")):
        parts = cut(document, tokenizer, 60)
        assert all(part in document for part in parts)
        assert sum(len("".join(part.split())) for part in parts) == len("".join(document.split()))


def test_sentences_of_one_chinese_passage_are_not_set_apart():
    tokenizer = tokenizer_of("zh")
    assert cut("今天下雨。我们在家。\n明天晴。", tokenizer, 99) == ["今天下雨。我们在家。\n明天晴。"]


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=8), st.lists(st.integers(0, 9), max_size=5)
)
def test_words_are_scored_as_the_formula_says(rows, question):
    found = BM25.of(rows, 10).scores(question)
    mean = max(1.0, sum(map(len, rows)) / len(rows))
    for row, score in zip(rows, found):
        plain = 0.0
        for piece in set(question):
            having = sum(piece in other for other in rows)
            often = Counter(row)[piece]
            rarity = math.log(1 + (len(rows) - having + 0.5) / (having + 0.5))
            long = 1 - LENGTH + LENGTH * len(row) / mean
            plain += rarity * often * (SATURATION + 1) / (often + SATURATION * long) if often else 0
        assert score == pytest.approx(plain, rel=1e-5, abs=1e-6)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=30), st.integers(1, 40))
def test_the_best_are_the_head_of_a_stable_sort(values, top):
    scores = np.array(values, np.float32)
    assert best_of(scores, top).tolist() == np.argsort(-scores, kind="stable")[:top].tolist()


def test_first_in_both_rankings_is_one():
    joined = fused(np.array([0.9, 0.1, 0.5]), np.array([3.0, 0.0, 1.0]), 0.4)
    assert joined[0] == pytest.approx(1)
    assert joined[1] < joined[2] < 1


def test_a_passage_far_ahead_by_words_stays_first_whatever_the_vectors_prefer():
    """Ranks would not say how far ahead: the second place of both used to beat it."""
    cosines, words = np.array([0.50, 0.55, 0.56, 0.1]), np.array([30.0, 5.0, 4.0, 0.0])
    assert fused(cosines, words, 0.3).argmax() == 0


def test_chinese_words_of_two_characters_are_terms():
    tokenizer = tokenizer_of("zh")
    terms = Terms(tokenizer)
    texts = ["明天开会。", "会开明天。", "meeting"]
    rows = terms.of(texts)
    assert [len(row) - len(ids) for row, ids in zip(rows, tokenizer.pieces_batch(texts))] == [3, 3, 0]
    assert [terms.pieces_in(row) for row in rows] == [len(ids) for ids in tokenizer.pieces_batch(texts)]
    assert terms.numbers(rows[:2]) == tokenizer.size + PAIRS and terms.numbers(rows[2:]) == tokenizer.size
    scores = BM25.of(rows, terms.numbers(rows)).scores(terms.of(["开会"])[0])
    assert scores[0] > scores[1] > scores[2] == 0


def test_an_index_without_pairs_or_weight_still_answers(tmp_path, monkeypatch):
    """Those of earlier versions hold pieces only, and say nothing about weights."""
    path = tmp_path / "documents.txt"
    path.write_text("明天上午开会。\n\n他在图书馆读书。\n\n今天下雨了。", "utf-8")
    with monkeypatch.context() as old:
        old.setattr(Terms, "_with_pairs", lambda self, ids: ids)
        index.run(index.Settings(files=(path,), model="zh", out=tmp_path / "old", threads=1))
    about = json.loads((tmp_path / "old/index.json").read_text("utf-8"))
    del about["vector_weight"]
    (tmp_path / "old/index.json").write_text(json.dumps(about), "utf-8")
    accept(tmp_path / "old")
    found = Index.open(tmp_path / "old").search("哪里读书？")
    assert found[0]["document"] == 2 and found[0]["score"] > found[1]["score"]


@pytest.mark.slow
def test_the_weight_of_vectors_grows_with_their_quality():
    """By pseudo-questions: vectors that know every passage outweigh words, vectors of noise do not count."""
    predictor = bertkit.load("en")
    texts = [" ".join(part) for part in np.array_split(samples.path("en", "passages.txt").read_text().split(), 60)]
    terms = Terms(predictor.tokenizer)
    noise = np.random.default_rng(0).normal(size=(len(texts), predictor.config.width)).astype(np.float32)
    good = vector_weight(predictor, terms, texts, np.asarray(predictor.embed(texts, normalize=True)))
    assert 0 < good < 1 and good == vector_weight(predictor, terms, texts, predictor.embed(texts, normalize=True))

    class Noise:
        tokenizer, config, pooling = predictor.tokenizer, predictor.config, predictor.pooling
        folder = predictor.folder

        def embed(self, texts, normalize, prompt_text):
            return np.random.default_rng(len(texts[0])).normal(size=(len(texts), noise.shape[1])).astype(np.float32)

    assert vector_weight(Noise(), terms, texts, noise) < good
    assert vector_weight(predictor, terms, ["short"], noise[:1]) == VECTOR_WEIGHT
    predictor.folder = replace(predictor.folder, pooling=predictor.pooling)  # of a model made for vectors of texts
    trusted = vector_weight(predictor, terms, texts, np.asarray(predictor.embed(texts, normalize=True)))
    assert trusted**2 == pytest.approx(good, abs=2e-3)


def test_a_passage_is_found_by_itself_and_reported_where_it_stands(made, documents):
    out, facts = made
    assert facts["passages"] > len(DOCUMENTS) and facts["files"] == 1
    opened = Index.open(out)
    kept = [opened.passage(n) for n in range(len(opened))]
    assert " ".join(one["text"] for one in kept) == " ".join(DOCUMENTS)
    for by in ("both", "vectors", "words"):
        for one in kept:
            first = opened.search(one["text"], top=3, by=by)[0]
            assert first["text"] == one["text"], by
            assert (first["file"], first["document"]) == (str(documents), one["document"])
            assert ("cosine" in first) == (by != "words")
            assert first.get("cosine", 1) == pytest.approx(1, abs=2e-3)
    vectors = bertkit.load("en").embed([one["text"] for one in kept], normalize=True)
    assert np.abs(np.asarray(opened.segments[0].vectors.exact, np.float32) - vectors).max() < 2e-3


def test_the_command_tells_the_passages_and_rare_words_count(made, capsys):
    out, _ = made
    result = search.run(search.Settings(index=out, query="What does the baker sell?", k=2, threads=1))
    assert len(result["found"]) == 2
    assert "baker" in result["found"][0]["text"]
    shown = search.lines(result)
    assert "document 3" in shown[0]
    assert search.lines(search.run(search.Settings(index=out, query="zzz", by="words", threads=1))) == ["nothing found"]


def test_an_answer_is_cut_out_of_a_passage(made, tmp_path):
    out, _ = made
    rows = [
        {"id": str(n), "question": "What is it?", "context": text, "answers": [{"text": text.split()[0], "start": 0}]}
        for n, text in enumerate(DOCUMENTS * 3)
    ]
    train = tmp_path / "train.jsonl"
    train.write_text("\n".join(map(json.dumps, rows)))
    model = make_model(tmp_path / "model")
    reader = tmp_path / "reader"
    bertkit.finetune("answer", train=str(train), model=str(model), out=str(reader), **{**SMALL, "steps": 3})
    result = ask.run(ask.Settings(index=out, question="Who sells milk?", reader=str(reader), k=3, threads=1))
    assert result["answer"] in result["text"]
    assert len(result["others"]) == 2
    assert all(one["score"] <= result["score"] for one in result["others"])
    assert result["text"][result["start"] : result["end"]] == result["answer"]
    assert ask.lines(result)[0].startswith(result["answer"])
    with pytest.raises(UserError, match="has not been fine-tuned"):
        ask.run(ask.Settings(index=out, question="Who?", reader="en", threads=1))


@pytest.mark.slow
def test_ask_trains_a_reader_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.txt").write_text("Anna sells milk at the market.\n\nThe ship sails to Oslo on Friday.\n")
    index.run(build(index.Settings, {"files": ["docs.txt"], "model": "en", "out": "index", "threads": 1}, "test"))
    with pytest.raises(UserError, match="--train samples"):
        ask.run(ask.Settings(index="index", question="Who sells milk?", threads=1))
    result = ask.run(ask.Settings(index="index", question="Who sells milk?", train="samples", minutes=0.1, threads=1))
    assert bertkit.load("reader").task.name == "answer"
    assert result["question"] == "Who sells milk?" and {"answer", "score", "others"} <= set(result)
    again = ask.run(ask.Settings(index="index", question="Who sells milk?", reader="reader", threads=1))
    assert again["answer"] == result["answer"]


@pytest.mark.parametrize(
    "left, told",
    [
        (
            "config.json",
            r"mine holds a model already\. Ask it with --reader .*mine and without --train, or name another",
        ),
        ("checkpoints/step-00000006", r"mine holds an unfinished training\. Remove the folder, or name another"),
    ],
)
def test_a_reader_that_is_there_is_reported_with_options_that_ask_has(tmp_path, left, told):
    if left == "config.json":
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / left).write_text("{}")
    else:
        shutil.copytree(OLD / "pre/checkpoints", tmp_path / "mine/checkpoints")
    settings = ask.Settings(
        index="index", question="Who?", train="samples", reader=str(tmp_path / "mine"), minutes=0.1, threads=1
    )
    with pytest.raises(UserError, match=told) as message:
        ask.run(settings)
    assert set(re.findall(r"--(\w+)", str(message.value))) <= {entry.name for entry in fields(ask.Settings)}


@pytest.mark.parametrize(
    "by, told", [("vector", "Did you mean 'vectors'"), ("bm25", "Choose from: both, vectors, words")]
)
def test_a_way_to_search_that_there_is_not_is_reported_with_those_there_are(made, by, told):
    with pytest.raises(UserError, match=f"by is '{by}'. {told}"):
        Index.open(made[0]).search("the garden", 3, by)


def test_what_cannot_be_searched_is_reported(made, tmp_path, documents):
    out, _ = made
    opened = Index.open(out)
    with pytest.raises(UserError, match="empty"):
        opened.search("  ")
    with pytest.raises(UserError, match="at least 1"):
        opened.search("bread", top=0)
    with pytest.raises(UserError, match="is not an index"):
        Index.open(tmp_path)
    with pytest.raises(UserError, match=r"different weights.* than zh"):
        Index.open(out, model="zh")
    with pytest.raises(UserError, match="at least 8"):
        build(index.Settings, {"files": [documents], "passage": 3})
    (out / "vectors.f16").write_bytes((out / "vectors.f16").read_bytes()[: -2 * 256])
    with pytest.raises(DamagedFile, match=r"vectors\.f16 is damaged.* bytes instead of"):
        Index.open(out)
    accept(out)
    with pytest.raises(DamagedFile, match="disagree about the number of passages"):
        Index.open(out)


@pytest.mark.parametrize("kept", [0.4, 0.0])
def test_an_index_whose_passages_were_cut_short_is_reported_with_what_to_do(made, kept):
    path = made[0] / "passages.jsonl"
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    accept(made[0])
    with pytest.raises(DamagedFile, match=r"passages.jsonl is damaged.*bertkit index"):
        Index.open(made[0])


def test_a_passage_whose_line_was_altered_is_reported(made):
    path = made[0] / "passages.jsonl"
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(DamagedFile, match=r"passages\.jsonl is damaged or was changed"):
        Index.open(made[0])
    accept(made[0])
    with pytest.raises(DamagedFile, match=r"passages.jsonl, line \d+: .*bertkit index"):
        Index.open(made[0]).search("bread")


def test_an_index_that_names_a_model_on_the_hub_does_not_ask_the_network(made, monkeypatch):
    import huggingface_hub

    path = made[0] / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"model": "nobody/no-such-model"}), "utf-8")
    accept(made[0])

    def ask(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", ask)
    with pytest.raises(UserError, match=r"index\.json names the model 'nobody/no-such-model'.*--model nobody/no-such"):
        Index.open(made[0])


def test_an_index_made_again_replaces_the_old_one(made, tmp_path):
    out, _ = made
    other = tmp_path / "other.txt"
    other.write_text("One sentence stands here alone.", "utf-8")
    index.run(index.Settings(files=(other,), model="en", out=out, threads=1))
    assert len(Index.open(out)) == 1


def test_weights_or_words_that_were_replaced_are_noticed_whatever_files_they_are_in(tmp_path, documents):
    model, out = make_model(tmp_path / "model"), tmp_path / "out"
    other = make_model(tmp_path / "other", seed=1)
    for folder in (model, other):
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    index.run(index.Settings(files=(documents,), model=str(model), out=out, threads=1))
    assert len(Index.open(out))
    assert fingerprint(str(model)) != fingerprint(str(other))
    shutil.copy(other / "pytorch_model.bin", model)
    with pytest.raises(UserError, match="different weights"):
        Index.open(out)
    index.run(index.Settings(files=(documents,), model=str(model), out=out, threads=1))
    (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text("utf-8") + " ", "utf-8")
    with pytest.raises(UserError, match="different weights"):
        Index.open(out)
    (model / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match="contains no weights"):
        fingerprint(str(model))


def test_googles_checkpoints_are_told_apart_by_their_own_files(tmp_path):
    source = next((Path(__file__).parents[1] / "fixtures/google").glob("bert/*.index"))
    shutil.copytree(source.parent, tmp_path / "bert")
    prefix = tmp_path / "bert" / source.stem
    before = fingerprint(str(prefix))
    assert fingerprint(str(prefix)) == before
    data = next((tmp_path / "bert").glob(f"{source.stem}.data-*"))
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    assert fingerprint(str(prefix)) != before


def test_an_index_among_the_documents_is_not_read_when_it_is_made_again(documents, monkeypatch, notes):
    monkeypatch.chdir(documents.parent)
    settings = index.Settings(files=(Path(),), model="en", passage=12, threads=1)
    first = index.run(settings)
    again = index.run(settings)
    assert again["passages"] == first["passages"] and again["files"] == 1
    assert {Index.open(Path("index")).passage(n)["file"] for n in range(again["passages"])} == {"documents.txt"}
    assert "Left out: index." in notes
    with pytest.raises(UserError, match="is itself an index"):
        index.run(index.Settings(files=(Path("index"),), model="en", out=Path("other"), threads=1))


def test_a_file_whose_name_is_not_utf8_is_found(tmp_path):
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_text(DOCUMENTS[2], "utf-8")
    index.run(index.Settings(files=(tmp_path / name,), model="en", out=tmp_path / "index", threads=1))
    assert Path(Index.open(tmp_path / "index").search("bread")[0]["file"]).name == "caf\ufffd.txt"
    assert "caf?.txt" in (tmp_path / "index/run.toml").read_text("utf-8")


def test_an_index_made_again_with_other_settings_remembers_those(tmp_path, documents):
    for size in (12, 40):
        settings = index.Settings(files=(documents,), model="en", out=tmp_path / "index", passage=size, threads=1)
        index.run(settings)
        remember(settings)  # as the command line does
        assert read_toml(tmp_path / "index/run.toml")["passage"] == size


def test_without_a_name_the_model_of_the_texts_language_is_taken_and_another_is_reported(tmp_path, documents, notes):
    chinese = tmp_path / "zh.txt"
    chinese.write_text("今天下雨，我们在家看书。\n\n股票市场昨天上涨了。", "utf-8")
    for path, model in ((documents, "en"), (chinese, "zh")):
        assert index.run(index.Settings(files=(path,), out=tmp_path / model, threads=1))["model"] == model
        assert Index.open(tmp_path / model).about["model"] == model
    assert not [note for note in notes if "unknown" in note]
    index.run(index.Settings(files=(chinese,), model="en", out=tmp_path / "wrong", threads=1))
    assert [note for note in notes if "unknown to en" in note]
    with pytest.raises(UserError, match="reads its files twice"):
        index.run(index.Settings(files=("-",), out=tmp_path / "pipe", threads=1))
