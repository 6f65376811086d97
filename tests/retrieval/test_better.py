"""Better search: rerankers and vectors learned from pairs, from hard negatives, and at several widths."""

from __future__ import annotations

import json

import numpy as np
import pytest

import bertkit
from bertkit.commands import finetune, index
from bertkit.config import build
from bertkit.errors import UserError
from bertkit.retrieval.evaluate import Reranker, mine
from bertkit.retrieval.index import Index
from bertkit.tasks.base import Reading
from bertkit.tasks.embed import widths_of
from bertkit.tasks.regress import Rank
from tests.support.toy import SMALL, make_model

WORDS = ["garden", "train", "bread", "school", "river", "winter", "table", "market"]
PAIRS = [{"text": f"Where is the {word}?", "text_b": f"The {word} is by the wall."} for word in WORDS]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_a_reranker_is_trained_and_sentence_transformers_scores_pairs_alike(tmp_path):
    train = write(tmp_path / "pairs.jsonl", PAIRS * 2)
    model = make_model(tmp_path / "model")
    out = tmp_path / "reranker"
    bertkit.finetune("pair", train=str(train), model=str(model), out=str(out), rank=True, **SMALL | {"steps": 4})
    reranker = Reranker(out, "fp32")
    texts = [row["text_b"] for row in PAIRS]
    scores = reranker.scores(PAIRS[0]["text"], texts)
    hits = [{"text": text, "score": 1.0 / n} for n, text in enumerate(texts, 1)]
    ranked = reranker.rank(PAIRS[0]["text"], hits)
    assert [hit["score"] for hit in ranked] == sorted(scores, reverse=True)
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    import torch

    judge = library.CrossEncoder(str(out), activation_fn=torch.nn.Identity(), device="cpu")
    theirs = judge.predict([(PAIRS[0]["text"], text) for text in texts], show_progress_bar=False)
    assert np.abs(np.array(scores) - theirs).max() < 1e-4


def test_pairs_without_labels_get_one_that_does_not_belong_together(tmp_path):
    rows = Rank().read(write(tmp_path / "a.jsonl", [*PAIRS, PAIRS[0] | {"text_c": "No wall."}]), Reading())
    assert [row.label for row in rows] == [1.0, 0.0] * 9
    right = {(row["text"], row["text_b"]) for row in PAIRS}
    assert all(((row.text, row.text_b) in right) == (row.label == 1) for row in rows)
    assert rows[-1].text_b == "No wall."
    with pytest.raises(UserError, match="the label is 3"):
        Rank().read(write(tmp_path / "b.jsonl", [PAIRS[0] | {"label": 3}]), Reading())
    with pytest.raises(UserError, match="all passages are the same"):
        Rank().read(write(tmp_path / "c.jsonl", [PAIRS[0]]), Reading())


def test_hard_negatives_are_the_best_wrong_passages_of_the_users_own_index(tmp_path):
    train = write(tmp_path / "pairs.jsonl", PAIRS)
    passages = write(tmp_path / "passages.jsonl", [{"text": row["text_b"]} for row in PAIRS])
    model = str(make_model(tmp_path / "model"))
    index.run(index.Settings(files=(passages,), model=model, out=tmp_path / "index", threads=1))
    opened = Index.open(tmp_path / "index")
    from bertkit.data.readers import read_rows

    mined = mine(list(read_rows(train, text_b="text_b", labelled=False)), opened)
    for row in mined:
        found = [hit["text"] for hit in opened.search(row["text"], 20)]
        assert row["text_c"] == next(text for text in found if text != row["text_b"])
    settings = {
        "task": "embed",
        "train": train,
        "model": model,
        "out": tmp_path / "run",
        "negatives": tmp_path / "index",
    }
    result = bertkit.finetune(**settings | SMALL | {"steps": 2, "matryoshka": "8"}).result
    assert (tmp_path / "run-negatives.jsonl").read_text("utf-8").count("text_c") == len(PAIRS)
    assert "accuracy" in result["metrics"]
    with pytest.raises(UserError, match="pass --rank too"):
        finetune.run(build(finetune.Settings, settings | {"task": "pair", "out": tmp_path / "r2"} | SMALL))


def test_widths_that_vectors_cannot_have_are_refused():
    assert widths_of("64, 32", 128) == [32, 64]
    for given in ("0", "128", "a", "-3"):
        with pytest.raises(UserError, match="--matryoshka"):
            widths_of(given, 128)
