"""Texts longer than the model sees are read in windows: nothing is lost, and what is cut is counted."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import UserError
from tests.support import toy

LONG = 3000


def long_text(seed: int, last: str, number: int = LONG) -> str:
    """Many neutral words, then one sentence that decides."""
    rng = toy.chance(seed)
    return " ".join([*rng.choice(toy.FILLER, number), "the old people in the garden with a", last, "and bread"])


@pytest.mark.parametrize(("word", "label"), [(w, label) for label, words in toy.KEYS.items() for w in words])
def test_a_long_document_whose_deciding_sentence_is_last_is_classified_right(word, label, runs):
    texts = [long_text(seed, word) for seed in range(5)]
    for said in runs("classify").predict(texts):
        assert said["label"] == label
        assert said["cut"] == 0 and said["tokens"] > LONG


def test_one_bad_sentence_anywhere_in_a_long_document_decides_it(runs):
    """Spam is what has a spam word; everything else is ham, so all other windows speak for ham."""
    rng = toy.chance(3)
    rows = [
        {"text": " ".join(toy.words(rng, most=60)), "label": "ham"}
        if n % 2
        else {"text": toy.with_word(rng, "prize", most=60), "label": "spam"}
        for n in range(400)
    ]
    train, dev = (toy.write(runs.folder / f"presence-{n}.csv", part) for n, part in enumerate((rows[:340], rows[340:])))
    run = runs.tune("classify", "presence", train=train, dev=dev, steps=160, evals=1)
    assert run.result["metrics"]["accuracy"] > 0.95
    plain = " ".join(rng.choice(toy.FILLER, LONG))
    found = [said["label"] for said in run.predict([plain, long_text(1, "prize"), long_text(2, "prize")])]
    assert found == ["ham", "spam", "spam"]


def test_truncation_loses_the_last_sentence_and_counts_what_it_lost(runs):
    (text,) = [long_text(0, "prize", 300)]
    run = runs("classify")
    whole = len(run.tokenizer.encode(text))
    (window,) = run.predict([text], on_long="window")
    (cut,) = run.predict([text], on_long="truncate")
    assert (window["tokens"], window["cut"]) == (whole, 0)
    assert cut["tokens"] == 64 and cut["tokens"] + cut["cut"] == whole
    (start,) = run.predict([run.tokenizer.decode(run.tokenizer.encode(text).ids[1:63])])
    assert cut["scores"] == pytest.approx(start["scores"], abs=1e-4)


@pytest.mark.parametrize("case", ["classify", "pair", "regress", "tag", "answer", "choose", "embed"])
def test_asking_for_an_error_refuses_a_long_text_by_its_number(case, runs):
    long = long_text(0, "prize", 200)
    rows = {
        "classify": ["short", long], "regress": ["short", long], "tag": ["short", long],
        "pair": [("a", "b"), ("a", long)], "embed": [("a", "b"), ("a", long)],
        "answer": [{"question": "q", "context": c} for c in ("short", long)],
        "choose": [{"text": t, "choices": ["a", "b"]} for t in ("short", long)],
    }[case]  # fmt: skip
    with pytest.raises(UserError, match=r"Text 2 has \d+ tokens; the model's limit is 64") as error:
        runs(case).predict(rows, on_long="error")
    assert "--on-long" in str(error.value)


@pytest.mark.parametrize("case", ["choose", "embed"])
def test_tasks_that_cannot_use_windows_cut_and_count(case, runs):
    long = long_text(0, "prize", 200)
    row = {"choose": {"text": long, "choices": ["in paris", "anna"]}, "embed": (long, "short")}[case]
    (said,) = runs(case).predict([row])
    assert said["cut"] > 100


def test_every_tag_of_a_sentence_of_many_windows_is_right(runs):
    (row,) = toy.sentences(1, seed=5, least=1500, most=1501)
    (said,) = runs("tag").predict([row["tokens"]])
    assert said["seen"] > 1024 and said["cut"] == 0
    assert said["tokens"] == row["tokens"]
    wrong = [n for n, (a, b) in enumerate(zip(row["tags"], said["tags"], strict=True)) if a != b]
    assert not wrong
    text = " ".join(row["tokens"])
    assert len(said["entities"]) == sum(tag.startswith("B-") for tag in row["tags"])
    for entity in said["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"]
        assert entity["label"] == ("PER" if entity["text"] in toy.NAMES else "LOC")
        assert 0 < entity["score"] <= 1


def test_tags_past_a_cut_are_outside_and_the_cut_is_counted(runs):
    (row,) = toy.sentences(1, seed=6, least=300, most=301)
    (said,) = runs("tag").predict([row["tokens"]], on_long="truncate")
    assert said["cut"] > 200 and len(said["tags"]) == len(row["tokens"])
    assert set(said["tags"][200:]) == {"O"}


def test_an_answer_past_token_512_is_found(runs):
    for seed, name in enumerate(toy.NAMES):
        context = long_text(seed, name, 900)
        (said,) = runs("answer").predict([{"question": "which friend", "context": context}])
        assert said["answer"] == name
        assert context[said["start"] : said["end"]] == name and said["start"] > 512
        assert said["tokens"] > 900 and said["cut"] == 0


def test_a_context_of_many_windows_without_an_answer_has_none(runs):
    context = " ".join(toy.chance(9).choice(toy.FILLER, 600))
    rows = [{"question": "which friend", "context": c} for c in (context, context + " anna")]
    none, found = runs("answer-or-none").predict(rows)
    assert (none["answer"], none["start"], none["end"]) == ("", -1, -1)
    assert found["answer"] == "anna"


def test_numbers_of_long_texts_are_the_mean_of_their_windows(runs):
    run = runs("regress")
    text = long_text(0, "prize", 400)
    items = run.task.encode(run.task.from_inputs([text]), run.tokenizer, run.windows())
    parts = [run.predict([run.tokenizer.decode(row.ids[1:-1])])[0]["value"] for row in items[0].rows]
    assert len(parts) > 5
    assert run.predict([text])[0]["value"] == pytest.approx(float(np.mean(parts)), abs=1e-2)


def test_a_model_trained_on_cut_texts_says_so(runs, notes):
    rows = [{"text": long_text(n, word, 100), "label": word} for n, word in enumerate(["prize", "meeting"] * 10)]
    train = toy.write(runs.folder / "long.csv", rows)
    run = runs.tune("classify", "cut", train=train, dev=train, steps=2, on_long="truncate")
    assert any("train: 20 of 20 rows are cut" in note for note in notes)
    facts = run.result["data"]["cut"]["train"]
    assert facts["rows_cut"] == 20 and 0 < facts["tokens_cut"] < facts["tokens"]
    assert run.predict([rows[0]["text"]])[0]["cut"] > 0  # as in training, unless asked otherwise


@pytest.mark.parametrize("order", [1, -1])
def test_the_longer_text_of_a_pair_is_read_in_windows_whichever_it_is(order, runs):
    run = runs("pair")
    pair = [long_text(0, "prize", 200), "the old people"][::order]
    (said,) = run.predict([tuple(pair)])
    assert said["cut"] == 0 and said["tokens"] == len(run.tokenizer.encode(*pair)) > 200
    with pytest.raises(UserError, match=r"leaves 0 for windows over the other.*truncate"):
        run.predict([(pair[0], pair[0]) if order == 1 else (pair[1], pair[1])])
