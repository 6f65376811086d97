"""Every score stands beside what a cheap model reaches on the same rows, and beside the rows it is of."""

from __future__ import annotations

import pytest

import bertkit
from bertkit.commands import finetune as command
from bertkit.runs.finetune.outcome import not_better, uncertain
from tests.support import toy


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("classify", "TF-IDF + logistic regression"),
        ("pair", "TF-IDF + logistic regression"),
        ("regress", "TF-IDF + ridge regression"),
        ("tag", "HMM, trigram"),
        ("choose", "TF-IDF cosine"),
        ("embed-scored", "TF-IDF cosine"),
        ("multi-label", "TF-IDF + logistic regression per label"),
    ],
)
def test_a_cheap_baseline_is_scored_on_the_same_rows(case, name, runs):
    result = runs(case).result
    facts, scores = result["baseline"], result["baselines"][name]
    assert (facts["name"], facts["rows"], facts["scored_on"]) == (name, result["rows"], "dev")
    assert facts["trained_on"] == 200 and facts["seconds"] >= 0
    assert facts["difference"] == pytest.approx(result["metrics"][result["headline"]] - scores[result["headline"]])
    assert facts["low"] <= facts["difference"] <= facts["high"]
    printed = "\n".join(command.lines(result))
    assert f"of {name} on the same rows" in printed and "scored on            48 dev rows" in printed
    page = (runs.folder / f"run-{case}/report.html").read_text("utf-8")
    assert name in page and "interval of the difference" in page


def test_without_scores_the_partner_that_shares_most_words_is_the_nearest(runs):
    result = runs("embed").result
    assert result["baseline"]["name"] == "TF-IDF cosine" and 0 <= result["baselines"]["TF-IDF cosine"]["accuracy"] <= 1


def test_no_baseline_where_none_is_wanted_or_none_exists(runs):
    files = toy.files(runs.folder, "classify", train=40)
    result = runs.tune("classify", "plain-score", **files, steps=2, baseline=False).result
    assert "baseline" not in result and not any("baseline" in line for line in command.lines(result))
    assert "baseline" not in runs("answer").result


def test_rows_a_baseline_cannot_learn_from_do_not_stop_the_run(runs, notes):
    rows = [row | {"text": "a . ! ?"[: 1 + 2 * (n % 4)]} for n, row in enumerate(toy.messages(40))]
    train = toy.write(runs.folder / "marks.jsonl", rows)
    result = runs.tune("classify", "marks", train=train, dev=train, steps=2).result
    assert "baseline" not in result and any(line.startswith("No baseline: TF-IDF") for line in notes)


def test_a_model_no_better_than_its_baseline_is_reported_as_such():
    facts = {"name": "TF-IDF", "rows": 100, "scored_on": "dev", "seconds": 1.2, "low": -0.02, "difference": 0.01}
    compared = {"baseline": facts, "baselines": {"TF-IDF": {"accuracy": 0.9}}}
    assert "not clearly better than TF-IDF (accuracy 0.9000 on the same 100 dev rows" in not_better(
        "accuracy", compared
    )
    assert not_better("accuracy", compared | {"baseline": facts | {"low": 0.001}}) == ""
    assert not_better("accuracy", {}) == ""


def test_a_tiny_dev_set_gets_a_warning():
    assert "accuracy was measured on only 8 dev rows" in uncertain("accuracy", (1.0, 1.0), 8, "dev")[0]
    assert "interval is 0.50 to 0.90" in uncertain("f1", (0.5, 0.9), 80, "test")[0]
    assert uncertain("accuracy", (0.85, 0.92), 400, "dev") == []


def test_the_threshold_of_abstention_is_printed_with_the_rows_it_was_chosen_on(runs, notes):
    files = toy.files(runs.folder, "classify")
    result = runs.tune("classify", "abstains", **files, steps=30, abstain=0.6).result
    threshold = f"{result['abstain']['threshold']:.4f}"
    assert any(f"below {threshold}" in line and "48 dev rows" in line for line in notes)
    assert any(line.startswith(f"abstains below       {threshold}") for line in command.lines(result))
    page = (runs.folder / "abstains/report.html").read_text("utf-8")
    assert "If the model abstains below" in page


def test_a_model_says_what_it_is(runs):
    runs("classify")
    shown = repr(bertkit.load(str(runs.folder / "run-classify"), precision="fp32"))
    assert shown == "<bertkit model 'run-classify': classify, labels ham, spam, 73k parameters, fp32 on cpu>"
    assert repr(bertkit.load(str(runs.model), precision="fp32")).startswith(
        "<bertkit model 'model': pretrained encoder, 2 layers × 32, 7"
    )
