"""Better search: rerankers and vectors learned from pairs, from hard negatives, and at several widths."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import bertkit
from bertkit.commands import finetune, index
from bertkit.config import build
from bertkit.data.examples import TextRow
from bertkit.errors import UserError
from bertkit.retrieval.evaluate import Reranker, mine
from bertkit.retrieval.index import Index
from bertkit.tasks.base import Reading
from bertkit.tasks.embed import Embed, _same_texts, widths_of
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
    assert {hit["text"]: hit["rerank_score"] for hit in ranked} == dict(zip(texts, scores))
    low, high = min(scores), max(scores)
    for hit in ranked:  # the mean of two scores, each from 0 to 1
        rest = (hit["first_score"] - 1 / 8) / (1 - 1 / 8)
        assert hit["score"] == pytest.approx(((hit["rerank_score"] - low) / (high - low) + rest) / 2, abs=1e-5)
    assert [hit["score"] for hit in ranked] == sorted((hit["score"] for hit in ranked), reverse=True)
    assert reranker.rank("Where?", []) == []
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    import torch

    judge = library.CrossEncoder(str(out), activation_fn=torch.nn.Identity(), device="cpu")
    theirs = judge.predict([(PAIRS[0]["text"], text) for text in texts], show_progress_bar=False)
    assert np.abs(np.array(scores) - theirs).max() < 1e-4


def test_pairs_without_labels_get_others_that_do_not_belong_together(tmp_path):
    rows = Rank().read(write(tmp_path / "a.jsonl", [*PAIRS, PAIRS[0] | {"text_c": "No wall."}]), Reading())
    assert [row.label for row in rows] == [1.0, 0.0] * 9 + [0.0]
    right = {(row["text"], row["text_b"]) for row in PAIRS}
    assert all(((row.text, row.text_b) in right) == (row.label == 1) for row in rows)
    assert rows[-2].text_b == "No wall."  # a hard negative has a drawn one beside it
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
        found = [hit["text"] for hit in opened.search(row.text, 20)]
        assert row.text_c == next(text for text in found if text != row.text_b)
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


def run_with_negatives(tmp_path, rows, task="pair", **more):
    """The settings `finetune --negatives` trains with, from rows and an index of the passages of PAIRS."""
    train = write(tmp_path / "pairs.jsonl", rows)
    passages = write(tmp_path / "passages.jsonl", [{"text": row["text_b"]} for row in PAIRS])
    model = str(make_model(tmp_path / "model"))
    index.run(index.Settings(files=(passages,), model=model, out=tmp_path / "index", threads=1))
    given = {"task": task, "train": train, "out": tmp_path / "run", "negatives": tmp_path / "index"} | more
    return finetune.with_negatives(build(finetune.Settings, given))


def test_negatives_keep_the_labels_so_a_wrong_passage_is_not_learned_as_a_right_one(tmp_path):
    wrong = [row | {"text_b": "A wall has no door.", "label": 0} for row in PAIRS]
    settings = run_with_negatives(tmp_path, [row | {"label": 1} for row in PAIRS] + wrong, rank=True)
    rows = Rank().read(settings.train, Reading())
    right = {(row["text"], row["text_b"]) for row in PAIRS}
    assert all(((row.text, row.text_b) in right) == (row.label == 1) for row in rows)
    assert [row.label for row in rows] == [1.0] * 8 + [0.0] * 8 + [0.0] * 8  # those mined for the right ones at the end
    assert {row.text_b for row in rows[16:]} <= {row["text_b"] for row in PAIRS}


def test_a_passage_labelled_wrong_for_a_question_may_be_its_hard_negative():
    a, b = PAIRS[0]["text_b"], PAIRS[1]["text_b"]

    class Found:
        def search(self, *_):
            return [{"text": a}, {"text": b}]

    rows = [TextRow("Where?", a, 0.0), TextRow("Where?", b, 1.0)]
    assert [row.text_c for row in mine(rows, Found())] == [None, a]


def test_negatives_refuse_scored_pairs_whose_scores_would_be_lost(tmp_path):
    with pytest.raises(UserError, match=r"pairs\.jsonl, line 1: the pairs have scores"):
        run_with_negatives(tmp_path, [row | {"label": 0.4} for row in PAIRS], "embed")


@pytest.mark.parametrize("names", [("question", "passage"), ("1", "2")])
def test_with_negatives_a_dev_file_is_read_by_the_users_own_columns_and_encoding(tmp_path, names):
    """The passages have a character that gb18030 has and a byte-wise reading as utf-8 does not survive."""
    rows = [{names[0]: row["text"] + "河", names[1]: row["text_b"]} for row in PAIRS]
    more = {"text": names[0], "text_b": names[1], "encoding": "gb18030"}
    settings = run_with_negatives(tmp_path, rows, "embed", **more)
    assert (settings.text, settings.text_b, settings.encoding) == (*names, "gb18030")
    dev = tmp_path / "dev.csv"
    dev.write_text(f"{names[0]},{names[1]}\n河,墙\n" if names[0] != "1" else "河,墙\n", "gb18030")
    reading = Reading(settings.text, settings.text_b, settings.label, settings.encoding)
    assert [(row.text, row.text_b) for row in Embed().read(dev, reading)] == [("河", "墙")]
    mined = Embed().read(settings.train, reading)
    assert [row.text for row in mined] == [row[names[0]] for row in rows]
    assert all(row.text_c for row in mined)


def test_a_reranker_cannot_learn_which_passages_are_wrong_whatever_is_asked():
    """A search that proposes the short passage first for every question: each is wrong about as often as right."""
    texts = [row["text_b"] for row in PAIRS]
    rows = [TextRow(f"{row['text']} {n}", row["text_b"]) for n, row in enumerate(PAIRS * 5)]

    class ShortFirst:
        def search(self, *_):
            return [{"text": text} for text in sorted(texts, key=len)]

    wrong = [Counter(row.text_c for row in mine(rows, ShortFirst(), spread=spread)) for spread in (False, True)]
    assert len(wrong[0]) == 2  # the shortest, and the next for its own questions
    assert all(abs(wrong[1][text] - 5) <= 1 for text in texts)  # each is right five times


def test_what_is_right_for_a_question_is_never_its_negative(tmp_path):
    """Questions that several passages answer: each of them is right for all of its rows."""
    question, (a, b, *rest) = "Where is it?", [row["text_b"] for row in PAIRS]
    rows = [TextRow(question, a), TextRow(question, b), TextRow("Where is the river?", rest[0])]

    class Found:
        def search(self, *_):
            return [{"text": text} for text in (b, a, rest[0], rest[1])]

    assert [row.text_c for row in mine(rows, Found())] == [rest[0], rest[0], b]
    pairs = write(tmp_path / "pairs.jsonl", [{"text": row.text, "text_b": row.text_b} for row in rows])
    wrong = [row for row in Rank().read(pairs, Reading()) if row.label == 0]
    assert all(row.text_b == rest[0] for row in wrong if row.text == question)
    same = write(tmp_path / "same.jsonl", [{"text": question, "text_b": text} for text in (a, b)])
    assert [row.label for row in Rank().read(same, Reading())] == [1.0, 1.0]


def test_contrast_leaves_out_what_is_right_for_a_text_too():
    rows = [TextRow("q", "a", text_c="b"), TextRow("r", "b"), TextRow("q", "c", text_c="a"), TextRow("s", "a")]
    right = _same_texts(rows)["right"].tolist()  # columns: a b c a, then the third texts b a
    assert right == [
        [False, False, True, True, False, True],
        [False, False, False, False, True, False],
        [True, False, False, True, False, True],
        [True, False, False, False, False, True],
    ]


def test_a_question_asked_again_for_more_passages_reads_only_the_new_ones(tmp_path, monkeypatch):
    train = write(tmp_path / "pairs.jsonl", PAIRS)
    model, out = make_model(tmp_path / "model"), tmp_path / "reranker"
    bertkit.finetune("pair", train=str(train), model=str(model), out=str(out), rank=True, **SMALL | {"steps": 2})
    reranker, texts = Reranker(out, "fp32"), [row["text_b"] for row in PAIRS]
    whole = Reranker(out, "fp32").scores("Where is the garden?", texts)
    first = reranker.scores("Where is the garden?", texts[:3])
    read = []
    predict = reranker.predictor.predict
    monkeypatch.setattr(reranker.predictor, "predict", lambda rows: read.extend(rows) or predict(rows))
    again = reranker.scores("Where is the garden?", texts)
    assert [row["text_b"] for row in read] == texts[3:] and first == again[:3]
    assert again == pytest.approx(whole, abs=1e-5)
    assert reranker.scores("Where is the train?", texts[:1]) and len(read) == len(texts) - 3 + 1


def test_widths_that_vectors_cannot_have_are_refused():
    assert widths_of("64, 32", 128) == [32, 64]
    for given in ("0", "128", "a", "-3"):
        with pytest.raises(UserError, match="--matryoshka"):
            widths_of(given, 128)
