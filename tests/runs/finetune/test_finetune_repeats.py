"""Many runs in one: seeds on the same rows, folds, and a search within a time budget."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import bertkit
from bertkit.config import build, read_toml
from bertkit.errors import UserError
from bertkit.report.finetuning import FinetuneResult
from bertkit.report.format import plain
from bertkit.runs.finetune import run as finetuning
from bertkit.runs.finetune.repeat import searched
from bertkit.runs.finetune.split import read_split, task_of
from bertkit.settings.finetune import FinetuneSettings
from bertkit.training import distributed as worlds
from bertkit.training.metrics_log import read_metrics
from tests.support import toy


def settings_of(folder) -> FinetuneSettings:
    return build(FinetuneSettings, read_toml(folder / "run.toml"))


def held_out_lines(settings: FinetuneSettings) -> list[int]:
    return [row.line for row in read_split(settings, task_of(settings)).examples["dev"]]


def test_all_seeds_are_judged_on_the_same_held_out_rows(runs):
    train = toy.write(runs.folder / "same-rows.csv", toy.messages(80))
    run = runs.tune("classify", "same-rows", train=train, seeds=2, steps=4, seed=5)
    used = [settings_of(runs.folder / f"same-rows/seed-{n}") for n in range(2)]
    assert [one.seed for one in used] == [5, 6]
    assert held_out_lines(used[0]) == held_out_lines(used[1])
    assert held_out_lines(used[0]) != held_out_lines(replace(used[0], split_seed=6))
    orders = [read_metrics(runs.folder / f"same-rows/seed-{n}/metrics.jsonl")[0]["loss"] for n in range(2)]
    assert orders[0] != orders[1], "the seeds still differ in everything else"
    assert run.result["seeds"]["scores"] == pytest.approx([
        json.loads((runs.folder / f"same-rows/seed-{n}/result.json").read_text("utf-8"))["metrics"]["accuracy"]
        for n in range(2)
    ])  # fmt: skip


def test_a_seed_alone_still_chooses_its_own_held_out_rows(runs):
    train = toy.write(runs.folder / "own-rows.csv", toy.messages(80))
    settings = FinetuneSettings(task="classify", train=train, model=str(runs.model), out=runs.folder / "x")
    first, second = (held_out_lines(replace(settings, seed=seed)) for seed in (0, 1))
    assert first != second
    assert held_out_lines(replace(settings, seed=1, split_seed=0)) == first


def test_the_best_of_several_embedding_seeds_is_kept_whole(runs):
    files = toy.files(runs.folder, "embed")
    run = runs.tune("embed", "embed-seeds", **files, seeds=2, steps=6)
    names = {"modules.json", "1_Pooling/config.json", "model.safetensors", "report.html"}
    assert all((runs.folder / "embed-seeds" / name).is_file() for name in names)
    assert not (runs.folder / "embed-seeds/checkpoints").exists() and run.result["seeds"]["scores"]


@pytest.mark.parametrize("several", [{"seeds": 2}, {"folds": 2}])
def test_a_finished_model_is_not_replaced_by_many_runs_unasked(several, runs):
    train = toy.write(runs.folder / "again.csv", toy.messages(40))
    out = f"again-{next(iter(several))}"
    runs.tune("classify", out, train=train, steps=2)
    before = (runs.folder / out / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"holds a finished model\. .*--overwrite"):
        runs.tune("classify", out, train=train, steps=2, **several)
    assert (runs.folder / out / "model.safetensors").read_bytes() == before
    assert not [path for path in (runs.folder / out).iterdir() if path.name.startswith(("seed-", "fold-"))]
    runs.tune("classify", out, train=train, steps=2, overwrite=True, **several)


def test_more_folds_than_texts_are_refused_before_any_is_trained(runs):
    train = toy.write(runs.folder / "folded.csv", toy.messages(20))
    with pytest.raises(UserError, match=r"--folds is 100, and .*folded\.csv has only 20 different texts"):
        runs.tune("classify", "many-folds", train=train, folds=100, steps=2)
    assert not (runs.folder / "many-folds").exists()


@pytest.mark.parametrize("more", [{}, {"search": True, "minutes": 5.0}])
def test_seeds_and_folds_together_are_refused_before_anything_is_read(more, runs):
    with pytest.raises(UserError, match="--seeds and --folds"):
        runs.tune("classify", "both", train=runs.folder / "never-read.csv", seeds=2, folds=2, **more)


def test_what_cannot_be_done_after_a_search_is_refused_before_it(runs):
    train = toy.write(runs.folder / "searched.csv", toy.messages(20))
    with pytest.raises(UserError, match=r"--folds is 100, and .*searched\.csv has only 20 different texts"):
        runs.tune("classify", "search-folds", train=train, search=True, minutes=0.1, folds=100)
    assert not (runs.folder / "search-folds").exists()
    runs.tune("classify", "search-again", train=train, steps=2)
    with pytest.raises(UserError, match="holds a finished model"):
        runs.tune("classify", "search-again", train=train, search=True, minutes=0.1)
    assert not (runs.folder / "search-again/search").exists()


@pytest.mark.parametrize("case", ["tag", "multi-label"])
def test_folds_and_class_weights_go_together(case, runs):
    task, rows, more, own = toy.CASES[case]
    train = toy.write(runs.folder / f"folded-{case}.jsonl", rows(60, 0, **more))
    run = runs.tune(task, f"folded-{case}", train=train, folds=3, class_weights=True, **own | {"steps": 10})
    scores = run.result["folds"]["scores"]
    assert len(scores) == 3 and run.result["folds"]["mean"] == pytest.approx(sum(scores) / 3)
    for fold in range(3):
        about = json.loads((runs.folder / f"folded-{case}/fold-{fold}/bertkit.json").read_text("utf-8"))
        assert set(about["options"]["class_weights"]) == set(run.task.labels)
    sizes = [
        json.loads((runs.folder / f"folded-{case}/fold-{fold}/result.json").read_text("utf-8"))["rows"]
        for fold in range(3)
    ]
    assert sum(sizes) == 60, "every row is judged once"


def test_scored_pairs_are_judged_by_correlations_alone(runs):
    result = runs("embed-scored").result
    assert list(result["metrics"]) == ["spearman", "pearson"] == list(result["intervals"])
    assert list(runs("embed-scored").evaluate(runs.folder / "embed-scored-dev.jsonl")) == ["spearman", "pearson"]


def test_a_search_tries_numbers_within_its_minutes_and_trains_with_the_best(runs, notes):
    pytest.importorskip("optuna", reason="the search is Optuna's")
    files = toy.files(runs.folder, "classify", train=60)
    test = toy.write(runs.folder / "search-test.jsonl", toy.messages(40, 9))
    run = runs.tune("classify", "search", **files, test=test, search=True, minutes=0.1, steps=0, lr=0.0)
    told = next(note for note in notes if note.startswith("The best of"))
    tries = sorted((runs.folder / "search/search").iterdir())
    assert len(tries) >= 1 and f"The best of {len(tries)} tries" in told
    scores = []
    for folder in tries:
        tried = json.loads((folder / "result.json").read_text("utf-8"))
        assert tried["scored_on"] == "dev", "the test rows choose nothing"
        scores.append(tried["metrics"]["accuracy"])
    used = settings_of(runs.folder / "search")
    assert not used.search and used.minutes == pytest.approx(0.05)
    best = [settings_of(folder) for folder, score in zip(tries, scores) if score == max(scores)]
    assert any((used.lr, used.batch, used.layer_decay) == (one.lr, one.batch, one.layer_decay) for one in best)
    assert 1e-5 <= used.lr <= 6e-4
    assert run.result["scored_on"] == "test" and run.result["run"]["learning_rate"] == used.lr
    assert bertkit.load(run.result["out"], precision="fp32").evaluate(test)["accuracy"] == pytest.approx(
        run.result["metrics"]["accuracy"]
    )


def test_the_ranks_of_a_search_try_as_often_as_each_other_whatever_their_clocks_say(runs, monkeypatch):
    pytest.importorskip("optuna", reason="the search is Optuna's")
    answers, clocks = [1, 1, 0], []

    class World:
        """Two ranks, of which the other one still has time at first."""

        def most(self, own: int) -> int:
            clocks.append(own)
            return answers[len(clocks) - 1]

    monkeypatch.setattr(worlds, "join", lambda device: World())
    monkeypatch.setattr(
        finetuning, "Finetuning", lambda tried: SimpleNamespace(go=lambda: SimpleNamespace(dev_score=0.5))
    )
    settings = build(FinetuneSettings, {"task": "classify", "train": "never-read.csv", "minutes": 1e-9})
    searched(settings)
    assert clocks == [0, 0, 0]  # by its own clock, it would not have tried at all


def test_a_search_without_a_time_budget_is_refused(runs):
    with pytest.raises(UserError, match="--search needs a time budget: --minutes"):
        runs.tune("classify", "search-0", train=runs.folder / "never-read.csv", search=True)


def test_several_seeds_give_mean_and_spread_and_keep_the_best_by_dev(runs):
    files = toy.files(runs.folder, "classify", train=60)
    test = toy.write(runs.folder / "seeds-test.jsonl", toy.messages(40, 9))
    run = runs.tune("classify", "seeds", **files, test=test, seeds=3, steps=12)
    found = run.result["seeds"]
    assert len(found["scores"]) == 3
    assert found["mean"] == pytest.approx(np.mean(found["scores"]))
    assert found["spread"] == pytest.approx(np.std(found["scores"]))
    dev = [
        bertkit.load(runs.folder / f"seeds/seed-{n}", precision="fp32").evaluate(files["dev"])["accuracy"]
        for n in range(3)
    ]
    best = int(np.argmax(dev))
    kept = (runs.folder / "seeds/model.safetensors").read_bytes()
    assert kept == (runs.folder / f"seeds/seed-{best}/model.safetensors").read_bytes()
    assert found["scores"][best] == run.evaluate(test)["accuracy"]


def test_the_report_of_several_seeds_has_their_mean_and_spread_and_names_each_seed(runs):
    train = toy.write(runs.folder / "told-seeds.csv", toy.messages(60))
    run = runs.tune("classify", "told-seeds", train=train, seeds=2, steps=4, seed=41)
    stored = json.loads((runs.folder / "told-seeds/result.json").read_text("utf-8"))
    assert stored["seeds"] == run.result["seeds"] and stored["out"] == str(runs.folder / "told-seeds")
    assert [row["seed"] for row in stored["run"]["seeds"]] == [41, 42]
    page = (runs.folder / "told-seeds/report.html").read_text("utf-8")
    mean, spread = (plain(stored["seeds"][key]) for key in ("mean", "spread"))
    assert f"{mean} ± {spread} over 2 seeds" in page
    assert "The same run with different seeds" in page and "<svg" in page


def test_what_is_chosen_is_chosen_by_the_dev_rows_never_by_the_test_rows():
    result = FinetuneResult(headline="accuracy", metrics={"accuracy": 0.9}, dev_metrics={"accuracy": 0.4})
    assert (result.score, result.dev_score) == (0.9, 0.4)
    assert replace(result, dev_metrics=None).dev_score == 0.9


def test_folds_rank_a_wrong_label_high_and_score_every_row(runs):
    rows = toy.messages(240, most=9)
    for wrong in (17, 60):
        rows[wrong]["label"] = {"ham": "spam", "spam": "ham"}[rows[wrong]["label"]]
    names = {"ham": "ham, or eggs", "spam": "spam"}  # a comma in a name is no border between names
    rows, chooses = ([row | {"label": names[row["label"]]} for row in part] for part in (rows, toy.messages(40, 5)))
    train, dev = (toy.write(runs.folder / f"suspects{n}.csv", part) for n, part in enumerate((rows, chooses)))
    run = runs.tune("classify", "suspects", train=train, dev=dev, folds=3, steps=120)
    suspects = run.result["suspects"]
    assert {rows[17]["text"], rows[60]["text"]} <= {one["text"] for one in suspects[:4]}
    assert {one["line"] for one in suspects[:4]} >= {17 + 2, 60 + 2}
    assert suspects == sorted(suspects, key=lambda one: one["score"])
    assert all(one["suggested"] != one["gold"] for one in suspects)
    assert len(run.result["folds"]["scores"]) == 3
    page = (runs.folder / "suspects/report.html").read_text("utf-8")
    assert rows[17]["text"] in page


def test_each_fold_is_scored_on_rows_that_neither_trained_nor_chose_its_model(runs, notes):
    train = toy.write(runs.folder / "nested.csv", toy.messages(60))
    run = runs.tune("classify", "nested", train=train, folds=2, steps=4, evals=2)
    sizes = []
    for fold in range(2):
        about = json.loads((runs.folder / f"nested/fold-{fold}/bertkit.json").read_text("utf-8"))
        assert about["scored_on"] == "test" and len(set(about["digests"].values())) == 3
        result = json.loads((runs.folder / f"nested/fold-{fold}/result.json").read_text("utf-8"))
        sizes.append([sum(result["data"]["labels"][role].values()) for role in ("train", "dev", "test")])
        assert "baseline" not in result
    assert sizes == [[27, 3, 30]] * 2
    assert run.result["folds"]["rows"] == 60
    assert any("neither trained on it nor chosen by it" in line for line in notes)
    page = (runs.folder / "nested/report.html").read_text("utf-8")
    assert "Each of the 60 training rows was scored by a model" in page
