"""The ancestors from the command line: learn, ask, score, with nothing but the sample text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit import samples
from bertkit.commands import evaluate, learn, neighbours, prepare, suggest, tokenizer
from bertkit.config import read_toml, remember
from bertkit.errors import UserError

TEXT = samples.path("en", "passages.txt")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ancestors")
    tokenizer.run(tokenizer.Settings(texts=(TEXT,), out=place / "tokenizer", size=1500))
    prepare.run(prepare.Settings(texts=(TEXT,), tokenizer=str(place / "tokenizer"), out=place / "store"))
    return place / "store"


@pytest.mark.parametrize("kind", ["word2vec", "glove"])
def test_vectors_are_learnt_and_asked(kind, tmp_path):
    made = learn.run(
        learn.Settings(kind=kind, source=(TEXT,), out=tmp_path / "v", min_count=2, epochs=5, width=20, threads=1)
    )
    assert made["words"] > 500 and made["width"] == 20 and learn.lines(made)
    near = neighbours.run(neighbours.Settings(model=str(tmp_path / "v"), words=("water",), top=4))
    assert len(near["found"]) == 4 and "water" not in {one["word"] for one in near["found"]}
    fourth = neighbours.run(neighbours.Settings(model=str(tmp_path / "v" / "vectors.bin"), words=("a", "the", "in")))
    assert len(neighbours.lines(fourth)) == 10
    (tmp_path / "pairs.txt").write_text("water\triver\t8.0\nwater\tstreet\t2.0\nriver\tstreet\t3\n", "utf-8")
    scored = evaluate.run(evaluate.Settings(model=str(tmp_path / "v"), file=tmp_path / "pairs.txt", task="similarity"))
    assert -1 <= scored["metrics"]["spearman"] <= 1 and scored["rows"] == 3
    (tmp_path / "questions.txt").write_text(": small\nwater river the a\n", "utf-8")
    scored = evaluate.run(
        evaluate.Settings(model=str(tmp_path / "v"), file=tmp_path / "questions.txt", task="analogies")
    )
    assert scored["metrics"]["asked"] == 1 and evaluate.lines(scored)


@pytest.mark.parametrize("kind", ["ngram", "piece-ngram"])
def test_what_is_learnt_again_with_other_settings_remembers_those(kind, store, tmp_path):
    for order in (2, 3):
        source = TEXT if kind == "ngram" else store
        settings = learn.Settings(kind=kind, source=(source,), out=tmp_path / "lm", order=order, threads=1)
        learn.run(settings)
        remember(settings)  # as the command line does
        assert read_toml(tmp_path / "lm/run.toml")["order"] == order


@pytest.mark.parametrize("kind", ["ngram", "piece-ngram", "nnlm", "rnn", "lstm", "gru"])
def test_a_language_model_is_learnt_scored_and_goes_on(kind, store, tmp_path):
    source = TEXT if kind == "ngram" else store
    sizes = {} if "gram" in kind else {"steps": 30, "width": 32}
    out = tmp_path / "lm"
    learn.run(learn.Settings(kind=kind, source=(source,), out=out, order=3, threads=1, **sizes))
    found = suggest.run(suggest.Settings(model=str(out), text="in the", top=3))
    scores = [one["score"] for one in found["found"]]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True) and suggest.lines(found)
    measured = evaluate.run(evaluate.Settings(model=str(out), file=TEXT, task="perplexity", most=5))
    assert 1 < measured["metrics"]["perplexity"] < 5000 and 0.1 < measured["metrics"]["bits_per_byte"] < 8
    pairs = [{"sentence_good": "The water is cold.", "sentence_bad": "Water cold the is."}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs), "utf-8")
    judged = evaluate.run(evaluate.Settings(model=str(out), file=tmp_path / "pairs.jsonl", task="minimal-pairs"))
    assert judged["rows"] == 1


def test_a_store_and_a_text_are_not_taken_for_each_other(store, tmp_path):
    with pytest.raises(UserError, match="bertkit prepare"):
        learn.run(learn.Settings(kind="lstm", source=(TEXT,), out=tmp_path / "x", steps=1))
    with pytest.raises(UserError, match="Give the text itself"):
        learn.run(learn.Settings(kind="ngram", source=(store,), out=tmp_path / "x"))


def test_what_is_no_vector_or_no_guesser_is_told(tmp_path):
    learn.run(learn.Settings(kind="ngram", source=(TEXT,), out=tmp_path / "n", order=2))
    with pytest.raises(UserError, match="no word vectors"):
        neighbours.run(neighbours.Settings(model=str(tmp_path / "n"), words=("x",)))
    with pytest.raises(UserError, match="one word, or three"):
        neighbours.run(neighbours.Settings(model=str(tmp_path / "n"), words=("x", "y")))
    with pytest.raises(UserError, match="--task"):
        evaluate.run(evaluate.Settings(model=str(tmp_path / "n"), file=TEXT))
    learn.run(learn.Settings(kind="word2vec", source=(TEXT,), out=tmp_path / "v", min_count=5, epochs=1, width=8))
    with pytest.raises(UserError, match="left to right"):
        suggest.run(suggest.Settings(model=str(tmp_path / "v"), text="in the"))
