"""The ancestors from the command line: learn, ask, score, with nothing but the sample text."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import bertkit
from bertkit import samples
from bertkit.ancestors.language_model.gpt import _scores
from bertkit.checkpoint.folder import Folder, write_folder
from bertkit.commands import evaluate, fill, inspect, learn, prepare, tokenizer
from bertkit.commands.embed import features
from bertkit.commands.fill import suggest
from bertkit.commands.meaning import neighbours
from bertkit.config import build, preset, read_toml, remember
from bertkit.errors import UserError
from bertkit.model.heads import Model
from bertkit.settings.model import Config
from bertkit.text.tokenizer import Tokenizer
from tests.support import folders
from tests.support.toy import make_model

TEXT = samples.path("en", "passages.txt")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ancestors")
    tokenizer.run(tokenizer.Settings(texts=(TEXT,), out=place / "tokenizer", size=1500))
    prepare.run(prepare.Settings(texts=(TEXT,), tokenizer=str(place / "tokenizer"), out=place / "store"))
    return place / "store"


@pytest.mark.slow
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
    with pytest.raises(UserError, match="Pass the text itself"):
        learn.run(learn.Settings(kind="ngram", source=(store,), out=tmp_path / "x"))


def test_what_is_no_vector_or_no_guesser_is_reported(tmp_path):
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


# ---- What users saw.


@pytest.fixture(scope="module")
def gpt(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that reads from left to right."""
    tokenizer = Tokenizer.load(store.parent / "tokenizer")
    numbers = preset("gpt-mini")["model"] | {"vocabulary": tokenizer.size, "width": 32, "heads": 2, "init_std": 0.1}
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gpt") / "gpt"
    write_folder(folder, Folder(Model(build(Config, numbers), {"mlm": 0}), tokenizer, "gpt2"))
    return folder


def test_suggest_gives_the_next_words_of_a_gpt(gpt):
    guesses = suggest.run(suggest.Settings(model=str(gpt), text="you are the", top=3))["found"]
    scores = [guess["score"] for guess in guesses]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True) and 0 < sum(scores) < 1
    assert all(guess["text"].startswith("you are the") for guess in guesses)
    model = bertkit.load(str(gpt), precision="fp32")
    best, other = suggest.run(suggest.Settings(model=str(gpt), text="you are the", top=2, precision="fp32"))["found"]
    given = model.tokenizer.ids_batch(["you are the"])[0][:-1]
    longer = [[*given, model.tokenizer.token_to_id(guess["token"])] for guess in (best, other)]
    more, less = _scores(model, longer)  # as the model scores texts
    assert more - less == pytest.approx(math.log(best["score"] / other["score"]), abs=1e-4)
    assert suggest.run(suggest.Settings(model=str(gpt), text="you " * 700, top=2))["found"]


def test_fill_refuses_a_gpt_and_names_suggest(gpt):
    with pytest.raises(UserError, match="bertkit suggest"):
        fill.run(fill.Settings(model=str(gpt), text="you are [MASK]"))


def test_suggest_refuses_an_encoder_and_names_fill(tmp_path):
    model = make_model(tmp_path / "bert")
    with pytest.raises(UserError, match="bertkit fill"):
        suggest.run(suggest.Settings(model=str(model), text="you are"))


@pytest.mark.parametrize("kind", ["ngram", "word2vec"])
def test_chinese_text_is_learnt_in_words_not_in_single_characters(kind, tmp_path, notes):
    learn.run(
        learn.Settings(kind=kind, source=(samples.path("zh", "passages.txt"),), out=tmp_path / "m", epochs=1, width=8)
    )
    model = bertkit.load(str(tmp_path / "m"))
    assert sum(len(word) > 1 for word in model.words) > len(model.words) / 4
    assert any("jieba" in note for note in notes)
    assert json.loads((tmp_path / "m/bertkit.json").read_text())["units"] == "jieba"
    learn.run(learn.Settings(kind="ngram", source=(TEXT,), out=tmp_path / "en", order=2))
    assert json.loads((tmp_path / "en/bertkit.json").read_text())["units"] == "words"


def test_an_ngram_of_a_small_text_knows_its_words(tmp_path, notes):
    (tmp_path / "text.txt").write_text("the cat sat on a mat\nsome dogs sleep in the sun\n", "utf-8")
    learn.run(learn.Settings(kind="ngram", source=(tmp_path / "text.txt",), out=tmp_path / "small", order=2))
    guesses = suggest.run(suggest.Settings(model=str(tmp_path / "small"), text="some", top=1))["found"]
    assert guesses[0]["token"] == "dogs" and any("--min-count 1" in note for note in notes)
    made = learn.run(
        learn.Settings(kind="ngram", source=(tmp_path / "text.txt",), out=tmp_path / "rare", order=2, min_count=2)
    )
    assert made["words"] == 4  # the, and the three special ones


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz"])
def test_an_arpa_file_is_written_and_scored(name, tmp_path):
    learn.run(learn.Settings(kind="ngram", source=(TEXT,), out=tmp_path / "lm", order=3, arpa=tmp_path / name))
    measured = [
        evaluate.run(evaluate.Settings(model=str(model), file=TEXT, task="perplexity"))["metrics"]["perplexity_unk"]
        for model in (tmp_path / "lm", tmp_path / name)
    ]
    assert measured[0] == pytest.approx(measured[1], rel=1e-4)
    with pytest.raises(UserError, match="--arpa is for ngram"):
        learn.run(learn.Settings(kind="word2vec", source=(TEXT,), out=tmp_path / "v", arpa=tmp_path / name))


def test_an_hmm_is_learnt_from_tags_and_predicts(tmp_path):
    learn.run(learn.Settings(kind="hmm", source=(samples.path("en", "entities_train.conll"),), out=tmp_path / "hmm"))
    model = bertkit.load(tmp_path / "hmm")
    assert model.evaluate(samples.path("en", "entities_dev.conll"))["f1"] > 0.2
    (answer,) = model.predict(["Anna lives in London ."])
    assert len(answer["tags"]) == len(answer["tokens"]) == 5


def test_the_ngrams_of_a_model_are_listed(tmp_path):
    source = samples.path("en", "passages.txt")
    learn.run(learn.Settings(kind="ngram", source=(source,), out=tmp_path / "n", order=2))
    shown = inspect.lines(inspect.run(inspect.Settings(model=str(tmp_path / "n"), text="The old man")))
    assert len(shown) == 4 and "2-gram  <s> the" in shown[0]
    shown = inspect.lines(inspect.run(inspect.Settings(model=str(tmp_path / "n"), rows=2)))
    assert len(shown) == 6 and shown[0].startswith("1-grams: ")


def test_six_features_are_compared_on_texts_and_on_tags(tmp_path):
    folders.write(tmp_path / "m", "bert", "BertModel", max_tokens=200)
    rows = features.run(features.Settings(model=str(tmp_path / "m"), file=samples.path("en", "messages_dev.csv")))
    assert (rows["task"], len(rows["rows"]), rows["rows"][0]["metric"]) == ("classify", 6, "accuracy")
    assert rows["best"] == max(rows["rows"], key=lambda row: row["score"])["choice"]
    tags = features.run(features.Settings(
        model=str(tmp_path / "m"), file=samples.path("en", "entities_dev.conll"), epochs=1
    ))  # fmt: skip
    assert (tags["task"], len(tags["rows"]), tags["rows"][0]["metric"]) == ("tag", 6, "f1")
    assert features.lines(tags)[0] == "layers           f1" and len(features.lines(tags)) == 7


@pytest.mark.parametrize("preset, width, inner", [("mini", 256, 1024), ("transformer-base", 512, 2048)])
def test_the_transformer_has_the_papers_sizes(preset, width, inner):
    table = learn.seq2seq.resolve({"train": "x.csv", "preset": preset, "model": {"max_tokens": 64}})
    chosen = build(learn.seq2seq.Settings, table).model
    assert (chosen.width, chosen.inner, chosen.max_tokens) == (width, inner, 64)
