"""`compare`, whole: the same splits for all, honest costs, and a verdict that follows from the numbers."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

import bertkit
from bertkit import samples
from bertkit.ancestors.baselines.models import TfIdf
from bertkit.checkpoint.folder import write_folder
from bertkit.commands import evaluate, predict
from bertkit.errors import Stopped, UserError
from bertkit.loading import ContenderPredictor, open_model
from bertkit.report.comparison import verdict
from bertkit.runs.compare import contenders as table_of_contenders
from bertkit.runs.compare import run as comparison
from bertkit.runs.compare.contenders import (
    CONTENDERS,
    Contender,
    Numbers,
    Resources,
    Tags,
    Texts,
    contenders_for,
    saved,
)
from bertkit.runs.compare.encoder_contenders import BertSource, FrozenVectors
from bertkit.runs.compare.run import CompareResult, compare, forecast
from bertkit.settings.finetune import CompareSettings
from bertkit.tasks import make
from tests.support.toy import alike, make_model, messages, numbers, pairs, sentences

CHEAP = "majority,bayes,tfidf,ngram,averaged,word2vec,glove"


def table(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> CompareResult:
    place = tmp_path_factory.mktemp("compare")
    model = make_model(place / "bert")
    train, dev = table(place / "train.csv", messages(200)), table(place / "dev.csv", messages(60, seed=1))
    return compare(
        CompareSettings(
            task="classify", train=train, dev=dev, out=place / "out", models=str(model), threads=1, minutes=0.0,
            contenders=f"{CHEAP},features,bert", precision="fp32",
        )
    )  # fmt: skip


def test_every_contender_is_scored_on_the_same_rows_with_its_costs(result):
    keys = {"name", "score", "interval", "train_seconds", "ms_per_text", "megabytes", "parameters", "folder"}
    assert len(result.contenders) == 9 and not result.skipped
    for row in result.contenders:
        assert keys <= row.plain().keys(), row
        low, high = row.interval
        assert low <= row.score <= high and row.ms_per_text > 0
    scores = [row.score for row in result.contenders]
    assert scores == sorted(scores, reverse=True)
    assert [row.p_value for row in result.contenders].count(None) == 1  # the best has no rival
    assert result.data["train"]["rows"] + result.data["choose"]["rows"] == 200


def test_what_one_word_decides_is_learnt_by_counting_words(result):
    by_name = {row.name: row for row in result.contenders}
    assert by_name["majority"].score < 0.7 < 0.85 < by_name["TF-IDF + logistic regression"].score
    assert by_name["majority"].p_value < 0.05
    assert "majority is within" not in result.verdict


def test_a_saved_contender_answers_as_it_did(result):
    for row in result.contenders:
        opened = bertkit.load(row.folder, precision="fp32")
        scores = opened.evaluate(Path(result.settings["dev"]))
        assert scores["accuracy"] == pytest.approx(row.score, abs=1e-9), row.name
        said = opened.predict(["you are the winner of a prize"])[0]
        assert set(said) >= {"label", "score", "scores", "tokens", "cut"} and said["cut"] == 0


def test_predict_and_evaluate_take_a_saved_contender(result, tmp_path):
    folder = next(row.folder for row in result.contenders if "TF-IDF + log" in row.name)
    rows = table(tmp_path / "rows.csv", [{"text": "a prize for you"}, {"text": "dinner with friends"}])
    said = predict.run(predict.Settings(model=folder, file=str(rows)))
    assert [one["label"] for one in said] == ["spam", "ham"]
    scored = evaluate.run(evaluate.Settings(model=folder, file=Path(result.settings["dev"])))
    assert scored["metrics"]["accuracy"] > 0.85 and scored["intervals"]["accuracy"]
    with pytest.raises(UserError, match="cannot embed"):
        open_model(folder).embed(["x"])


def test_the_report_is_one_page_that_names_every_contender(result):
    page = Path(result.report).read_text("utf-8")
    assert all(row.name in page for row in result.contenders)
    assert not re.search(r"(src|href)=[\"']https?:", page)
    kept = json.loads((Path(result.out) / "compare.json").read_text("utf-8"))
    assert kept["contenders"][0]["name"] == result.contenders[0].name


def test_the_learning_curve_ends_at_all_rows_and_says_what_more_would_bring(result):
    assert result.curve
    for points in result.curve.values():
        rows = [n for n, _ in points]
        assert rows == sorted(rows) and rows[-1] == result.data["train"]["rows"]
    assert "rows" in result.outlook


@pytest.mark.slow
def test_tags_climb_from_frequent_tags_to_the_hidden_markov_model(tmp_path):
    lines = ["\n".join(f"{w} {t}" for w, t in zip(row["tokens"], row["tags"])) for row in sentences(50)]
    (tmp_path / "train.conll").write_text("\n\n".join(lines) + "\n", "utf-8")
    found = compare(
        CompareSettings(
            task="tag", train=tmp_path / "train.conll", out=tmp_path / "out", minutes=0.0, curve=False,
            models=str(make_model(tmp_path / "bert")), precision="fp32",
            contenders="frequent-tag,hmm,bilstm,features", threads=1,
        )
    )  # fmt: skip
    names = {"most frequent tag", "HMM, trigram", "BiLSTM", "BERT frozen + BiLSTM (bert)"}
    assert {row.name for row in found.contenders} == names
    for row in found.contenders:
        again = open_model(row.folder, "fp32").predict([["new", "paris", "and", "anna"]])
        assert again[0]["tags"] == ["B-LOC", "I-LOC", "O", "B-PER"] or row.score < 0.95, row.name
    opened = open_model(found.contenders[0].folder, "fp32")
    (said,) = opened.predict([["anna", "lives", "in", "paris"]])
    assert len(said["tags"]) == 4
    (said,) = opened.predict("anna lives in paris.")
    assert said["tokens"][-1] == "." and len(said["tags"]) == 5


def test_without_time_the_dear_ones_are_left_out_and_named(tmp_path):
    train = table(tmp_path / "train.csv", messages(60))
    found = compare(
        CompareSettings(
            task="classify", train=train, out=tmp_path / "out", models="", minutes=0.001, contenders=CHEAP, threads=1
        )
    )
    assert [row.name for row in found.contenders] == ["majority"]
    assert {one.name for one in found.skipped} >= {"tfidf", "ngram"}
    assert all("time" in one.reason for one in found.skipped)


def test_what_needs_a_model_says_which(tmp_path):
    train = table(tmp_path / "train.csv", messages(60))
    found = compare(
        CompareSettings(
            task="classify", train=train, out=tmp_path / "out", models="", threads=1,
            contenders="majority,ulmfit,elmo,gpt,features",
        )
    )  # fmt: skip
    reasons = {one.name: one.reason for one in found.skipped}
    assert "--lm" in reasons["ulmfit"] and "--elmo" in reasons["elmo"] and "--gpt" in reasons["gpt"]


def test_one_contender_that_cannot_learn_does_not_take_the_others_along(tmp_path):
    letters = "abcdefghijklmnopqrstuvw"  # scikit-learn's words have two letters at least
    rows = [{"text": f"{letters[n % 23]} {letters[n % 7]} {'xy'[n % 2]}", "label": str(n % 2)} for n in range(100)]
    train = table(tmp_path / "train.csv", rows)
    found = compare(
        CompareSettings(
            task="classify", train=train, out=tmp_path / "out", models="", contenders="majority,tfidf,ngram", threads=1,
            curve=False,
        )
    )  # fmt: skip
    assert {row.name for row in found.contenders} == {"majority", "one n-gram model per label"}
    assert found.skipped[0].name == "tfidf" and (tmp_path / "out" / "run.toml").is_file()


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Stopped(15, "saved at step 2 in a folder that is gone")])
def test_a_comparison_that_is_stopped_keeps_what_is_finished(stop, tmp_path, monkeypatch):
    def stopped(self, *rows, **how):
        raise stop

    monkeypatch.setattr(TfIdf, "fit", stopped)
    train = table(tmp_path / "train.csv", messages(60))
    how = {"task": "classify", "train": train, "models": "", "threads": 1, "curve": False}
    with pytest.raises(Stopped, match=r"^stopped; the 1 contenders that were finished are in .*report\.html") as told:
        compare(CompareSettings(contenders="majority,tfidf,ngram", out=tmp_path / "out", **how))
    assert told.value.signal == getattr(stop, "signal", 2)
    kept = json.loads((tmp_path / "out/compare.json").read_text("utf-8"))
    assert [row["name"] for row in kept["contenders"]] == ["majority"]
    assert {row["name"] for row in kept["skipped"]} == {"tfidf", "ngram"}
    with pytest.raises(Stopped, match="nothing was written"):
        compare(CompareSettings(contenders="tfidf", out=tmp_path / "none", **how))
    assert not (tmp_path / "none/compare.json").exists()


def learning_from_fewer_rows(problem, monkeypatch):
    """TF-IDF meets the problem where it learns from a part of the rows: in the learning curve."""
    whole, fit = [], TfIdf.fit

    def fails_later(self, rows, *more, **how):
        whole.append(len(rows))
        if len(rows) < whole[0]:
            raise problem
        return fit(self, rows, *more, **how)

    monkeypatch.setattr(TfIdf, "fit", fails_later)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Stopped(15, "saved at step 2 in a folder that is gone")])
def test_ctrl_c_during_the_learning_curve_keeps_the_whole_comparison(stop, tmp_path, monkeypatch):
    learning_from_fewer_rows(stop, monkeypatch)
    train = table(tmp_path / "train.csv", messages(120))
    how = {"task": "classify", "train": train, "models": "", "threads": 1}
    with pytest.raises(Stopped, match=r"^stopped; the 2 contenders that were finished are in .*report\.html") as told:
        compare(CompareSettings(contenders="tfidf,bayes", out=tmp_path / "out", **how))
    assert told.value.signal == getattr(stop, "signal", 2)
    kept = json.loads((tmp_path / "out/compare.json").read_text("utf-8"))
    assert len(kept["contenders"]) == 2 and {row["reason"] for row in kept["skipped"]} == {"the comparison was stopped"}
    assert len(kept.get("curve", {})) + len(kept["skipped"]) == 2


def test_one_learning_curve_that_fails_is_named_with_its_reason_and_the_others_are_drawn(tmp_path, monkeypatch):
    learning_from_fewer_rows(ValueError("empty vocabulary; perhaps the documents only contain stop words"), monkeypatch)
    train = table(tmp_path / "train.csv", messages(120))
    how = {"task": "classify", "train": train, "models": "", "threads": 1}
    found = compare(CompareSettings(contenders="tfidf,bayes", out=tmp_path / "out", **how))
    (left,) = found.skipped
    assert left.name.startswith("learning curve of ") and left.reason.startswith("empty vocabulary")
    assert len(found.contenders) == 2 and len(found.curve) == 1


def test_a_learning_curve_whose_few_rows_have_one_label_says_so(tmp_path):
    rows = [{"text": f"word{n} word{n % 5}", "label": "rare" if n < 3 else "usual"} for n in range(200)]
    how = {"task": "classify", "train": table(tmp_path / "train.csv", rows), "models": "", "threads": 1}
    for seed in range(20):  # until the rare label is in no quarter
        found = compare(CompareSettings(contenders="tfidf", out=tmp_path / f"out{seed}", seed=seed, **how))
        if found.skipped:
            break
    assert re.fullmatch(r"\d+ of the training rows have one label only", found.skipped[0].reason)


def test_taggers_choose_their_best_pass_by_what_all_are_scored_by(tmp_path):
    seen = []

    class Tagger:
        def fit(self, *rows, measure, **how):
            seen.append(measure)

    labels = ("B-LOC", "I-LOC", "O")
    Tags("x", "x", Tagger()).fit(make("tag", labels=labels), [], [], seed=0, minutes=0.0)
    right = [[0, 1, 2, 2, 2, 2], [0, 2, 2, 2, 2, 2]]
    assert seen[0](right, [[2] * 6, [2] * 6]) == 0.0, "many right O are no entity"
    assert seen[0](right, [right[0], [2] * 6]) == pytest.approx(2 / 3)


def test_rows_that_are_both_learnt_and_scored_are_reported(tmp_path, notes):
    train = table(tmp_path / "train.csv", messages(60))
    found = compare(
        CompareSettings(
            task="classify", train=train, dev=train, out=tmp_path / "out", models="", contenders="majority", threads=1
        )
    )
    assert found.data["score"]["also_learnt_from"] == 60
    assert any("too optimistic" in note for note in notes)


def test_pairs_and_several_seeds(tmp_path):
    train = table(tmp_path / "train.csv", pairs(120))
    found = compare(
        CompareSettings(
            task="pair", train=train, out=tmp_path / "out", models="", contenders="majority,tfidf,averaged,word2vec",
            seeds=2, minutes=0.0, curve=False, threads=1,
        )
    )  # fmt: skip
    for row in found.contenders:
        open_model(row.folder).predict([("one text", "another")])
        assert row.seeds == 2 and "over 2 seeds" in row.note
        low, high = row.interval
        assert low <= row.score <= high


def test_numbers_climb_from_the_mean_to_bert(tmp_path):
    train = table(tmp_path / "train.csv", numbers(240))
    found = compare(
        CompareSettings(
            task="regress", train=train, out=tmp_path / "out", models=str(make_model(tmp_path / "bert")), threads=1,
            minutes=0.0, precision="fp32", contenders="mean,overlap,tfidf,word2vec,features,bert",
        )
    )  # fmt: skip
    by_name = {row.name: row for row in found.contenders}
    assert found.headline == "spearman" and by_name["the mean"].score == 0.0
    assert by_name["TF-IDF + ridge regression"].score > 0.8 and "BERT fine-tuned (bert)" in by_name
    assert {one.name: one.reason for one in found.skipped} == {
        "overlap": "it compares two texts, and these rows have one"
    }
    assert found.curve and "the mean" not in found.curve
    for row in found.contenders:
        opened = open_model(row.folder, "fp32")
        assert set(opened.predict(["a letter"])[0]) >= {"value", "tokens", "cut"}, row.name


def test_how_alike_two_texts_are_is_seen_by_shared_words(tmp_path):
    rows = alike(240, scored=True)
    train, dev = table(tmp_path / "train.csv", rows[:180]), table(tmp_path / "dev.csv", rows[180:])
    found = compare(
        CompareSettings(
            task="regress", train=train, dev=dev, out=tmp_path / "out", models=str(make_model(tmp_path / "bert")),
            threads=1, minutes=0.0, precision="fp32", curve=False,
            contenders="mean,overlap,tfidf,glove,cosine,features,vectors",
        )
    )  # fmt: skip
    by_name = {row.name: row for row in found.contenders}
    tuned = by_name["BERT fine-tuned as sentence vectors (bert)"].score
    assert tuned > by_name["cosine of BERT vectors, frozen (bert)"].score
    assert by_name["shared words"].interval[0] > by_name["the mean"].score == 0.0 and not found.skipped
    for row in found.contenders:
        scores = open_model(row.folder, "fp32").evaluate(dev)
        assert scores["spearman"] == pytest.approx(row.score, abs=1e-4), row.name


def test_an_unknown_contender_is_named_with_a_suggestion():
    with pytest.raises(UserError, match="tfidf"):
        contenders_for("classify", ("tfdif",), Resources())
    given = Resources(models=("one", "two"))
    assert [entry.key for entry in contenders_for("classify", ("bert:two",), given)] == ["bert:two"]
    assert [entry.key for entry in contenders_for("tag", ("hmm", "bert"), given)] == ["hmm", "bert:one", "bert:two"]
    spelled = [entry.key for entry in contenders_for("classify", ("TF-IDF", "n-gram", "GloVe", "majority"), given)]
    assert spelled == ["majority", "tfidf", "ngram", "glove"]
    assert [entry.key for entry in contenders_for("regress", ("majority", "TF-IDF", "features"), given)] == [
        "mean", "tfidf-numbers", "features-numbers",
    ]  # fmt: skip
    assert [entry.key for entry in contenders_for("tag", ("majority", "HMM", "bilstm"), given)] == [
        "frequent-tag", "hmm", "bilstm-tags",
    ]  # fmt: skip
    with pytest.raises(UserError, match="--models"):
        contenders_for("classify", ("bert",), Resources())
    with pytest.raises(UserError, match="classify, pair, regress, tag"):
        contenders_for("answer", (), Resources())


def test_models_whose_folders_end_alike_are_told_apart():
    given = Resources(models=("runs/a/model", "runs/b/model", "runs/other"))
    names = [entry.make(given).name for entry in contenders_for("classify", ("bert",), given)]
    assert names == [f"BERT fine-tuned ({name})" for name in ("runs/a/model", "runs/b/model", "other")]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_encoder_has_as_many_parameters_in_any_precision(precision):
    encoder = bertkit.load("en", precision=precision)
    assert BertSource(encoder).parameters == 7_081_216  # 12,288 pieces and six layers of width 256


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_frozen_vectors_open_as_they_were_saved_in_any_precision(precision, tmp_path):
    texts, labels = [row["text"] for row in messages(40)], [int(row["label"] == "spam") for row in messages(40)]
    model = FrozenVectors(bertkit.load("en", precision=precision)).fit(texts, labels, 2)
    model.save(tmp_path)
    again = FrozenVectors.load(tmp_path, precision)
    assert abs(again.probabilities(texts) - model.probabilities(texts)).max() < 1e-4
    with pytest.raises(UserError, match="load its folder again"):
        write_folder(tmp_path / "not", bertkit.load("en", precision="bf16").folder)


def test_every_rung_can_be_opened_again():
    rows = [entry for entry in CONTENDERS if isinstance(entry, Contender)]
    assert {entry.key for entry in CONTENDERS} - {row.key for row in rows} == {"gpt"}  # its folder is any model's
    assert all(saved(row.key) is row for row in rows) and saved("unheard-of") is None
    numbers = {row.key for row in rows if row.adapter is Numbers}
    apart = {row.key for row in rows if getattr(row.model, "reads_pairs", False)}
    assert numbers and apart == {"bayes", "tfidf", "word2vec", "glove", "features"} | numbers


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_outlook_is_modest(lang):
    said = forecast({"x": [(25, 0.5), (50, 0.7), (100, 0.8)]}, "x", lang=lang)
    assert "0.850" in said and "200" in said  # gains halve: 0.2, 0.1, so 0.05
    flat = forecast({"x": [(25, 0.8), (50, 0.82), (100, 0.81)]}, "x", lang=lang)
    assert "0.810" in flat and "200" not in flat
    assert forecast({}, "x", lang=lang) == ""


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_outlook_never_promises_more_than_no_mistakes(lang):
    said = forecast({"x": [(25, 0.85), (50, 0.90), (100, 0.97)]}, "x", lang=lang)
    assert "0.991" in said and "30%" in said  # mistakes 0.10, 0.03, so 0.009: of the last gain 30 %
    for curve in ([0.5, 0.5, 0.95], [0.2, 0.4, 0.8], [0.9, 0.99, 0.999]):
        said = forecast({"x": list(zip((25, 50, 100), curve))}, "x", lang=lang)
        assert curve[-1] <= max(float(number) for number in re.findall(r"\d\.\d{3}", said)) <= 1
    full = forecast({"x": [(25, 0.8), (50, 0.9), (100, 1.0)]}, "x", lang=lang)
    assert "100" in full and "%" not in full


# ---- A contender is one class and one row.


class LongestText:
    """Texts of at least so many characters have the second label."""

    name = "length of the text"
    parameters = 1

    def fit(self, texts, labels, count, *_, **__):
        lengths = [[len(text) for text, label in zip(texts, labels) if label == n] for n in range(count)]
        self.border = sum(sum(some) / len(some) for some in lengths) / count
        return self

    def probabilities(self, texts):
        return np.array([[0.1, 0.9] if len(text) >= self.border else [0.9, 0.1] for text in texts])

    def save(self, folder):
        (folder / "border.json").write_text(json.dumps(self.border))

    @classmethod
    def load(cls, folder):
        model = cls()
        model.border = json.loads((folder / "border.json").read_text())
        return model


def test_a_new_contender_is_one_class_and_one_row(tmp_path, monkeypatch):
    row = Contender("length", ("classify",), Texts, LongestText)
    monkeypatch.setattr(table_of_contenders, "CONTENDERS", (*CONTENDERS, row))
    rows = [{"text": "x" * (n % 20 + 1), "label": "long" if n % 20 >= 10 else "brief"} for n in range(120)]
    compared = compare(
        CompareSettings(
            task="classify", train=table(tmp_path / "train.csv", rows), out=tmp_path / "out", models="", threads=1,
            contenders="majority,length", curve=False,
        )
    )  # fmt: skip
    best = compared.contenders[0]
    assert (best.name, best.score) == ("length of the text", 1.0)
    opened = open_model(best.folder)
    assert isinstance(opened, ContenderPredictor)
    assert [answer["label"] for answer in opened.predict(["x", "x" * 30])] == ["brief", "long"]
    answers = predict.run(predict.Settings(model=best.folder, file=str(tmp_path / "train.csv")))
    assert [answer["label"] for answer in answers] == [row["label"] for row in rows]


def test_a_folder_of_an_unknown_contender_or_ancestor_is_refused(tmp_path):
    for key in ("contender", "ancestor"):
        (tmp_path / "bertkit.json").write_text(json.dumps({key: "unheard-of"}))
        with pytest.raises(UserError, match="'unheard-of' is a model of a kind this version does not know"):
            open_model(tmp_path)


# ---- What users saw.


def test_a_bert_that_ran_out_of_time_is_reported_by_its_steps_and_not_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr("bertkit.training.run.REPLAN", ())  # the time runs out in the middle of the schedule
    train = table(tmp_path / "train.csv", messages(600))
    compared = compare(
        CompareSettings(
            task="classify", train=train, out=tmp_path / "out", models=str(make_model(tmp_path / "bert")), threads=1,
            minutes=0.02, contenders="majority,bert", precision="fp32", curve=False,
        )
    )  # fmt: skip
    by_name = {row.name: row for row in compared.contenders}
    bert = by_name["BERT fine-tuned (bert)"]
    steps, planned = map(int, re.findall(r"\d+", bert.stopped.replace(",", "")))
    assert 0 < steps < planned and f"cut short: {bert.stopped}" in bert.note
    run = json.loads((Path(bert.folder) / "result.json").read_text("utf-8"))["run"]
    assert run["steps"] == steps
    left_out = f"BERT fine-tuned (bert) is left out of the verdict: stopped early ({bert.stopped})."
    assert compared.verdict.endswith(left_out)
    assert compared.verdict.startswith("Only majority was run")


def test_tfidf_on_150_messages_is_not_the_majority(tmp_path):
    compared = compare(
        CompareSettings(
            task="classify", train=samples.path("en", "messages_train.csv"), dev=samples.path("en", "messages_dev.csv"),
            out=tmp_path / "out", rows=150, seed=0, contenders="majority,tfidf,bayes", models="", threads=1,
            curve=False,
        )
    )  # fmt: skip
    scores = {row.name: row.score for row in compared.contenders}
    assert scores["TF-IDF + logistic regression"] > scores["majority"] + 0.1


def test_the_best_of_the_cheaper_ones_is_no_majority_where_a_better_one_costs_less():
    rows = [
        {"name": "BERT", "score": 0.95, "interval": (0.94, 0.96), "ms_per_text": 1.0},
        {"name": "naive Bayes", "score": 0.85, "interval": (0.83, 0.87), "p_value": 0.001, "ms_per_text": 0.9},
        {"name": "majority", "score": 0.5, "interval": (0.4, 0.6), "p_value": 0.001, "ms_per_text": 0.1},
    ]
    assert "0.8500 for naive Bayes, the best of the cheaper ones" in verdict(rows)
    assert "majority, the best" in verdict([rows[0], rows[1] | {"ms_per_text": 1.2}, rows[2]])
    timed = [row | {"train_seconds": seconds} for row, seconds in zip(rows, (60.0, 0.1, 0.1))]
    timed[1]["ms_per_text"] = 1.01  # as dear to run, and six hundred times cheaper to train
    told = verdict(timed)
    assert "naive Bayes, the best of the cheaper ones" in told and "600 times the training time" in told
