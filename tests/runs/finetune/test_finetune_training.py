"""Options of a run do what they say: what is trained, when it stops, which weights are kept, how sure it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bertkit
from bertkit.checkpoint.folder import read_folder
from bertkit.config import build
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.objectives.supervised import Supervised
from bertkit.runs.finetune.outcome import one_answer
from bertkit.runs.finetune.run import Finetuning, Rates
from bertkit.runs.finetune.split import Split, task_of
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks import make
from bertkit.tasks.batches import SupervisedFeed
from bertkit.training.metrics_log import read_metrics
from bertkit.training.optimizer import make_optimizers, set_rate
from tests.support import toy


def noisy(number: int, seed: int, share: float = 0.25) -> list[dict]:
    """Messages some of whose labels are wrong: whoever is always sure is too sure."""
    rng = toy.chance(seed + 100)
    rows = toy.messages(number, seed)
    for row in rows:
        if rng.random() < share:
            row["label"] = {"ham": "spam", "spam": "ham"}[row["label"]]
    return rows


@pytest.fixture(scope="module")
def unsure(runs):
    train = toy.write(runs.folder / "noisy-train.csv", noisy(100, 0))
    dev = toy.write(runs.folder / "noisy-dev.csv", noisy(200, 1))
    return runs.tune("classify", "noisy", train=train, dev=dev, steps=300, abstain=0.8, batch=32)


def test_calibration_makes_an_over_confident_model_honest(unsure):
    found = unsure.result["calibration"]
    assert found["temperature"] > 1.2
    assert found["ece_after"] < found["ece_before"] * 0.8
    assert unsure.folder.about["calibration"]["temperature"] == found["temperature"]
    (said,) = unsure.predict(["a prize in the garden"])
    assert sum(said["scores"].values()) == pytest.approx(1) and said["score"] == max(said["scores"].values())


def test_it_abstains_where_it_is_less_sure_than_the_wanted_accuracy_needs(unsure, runs):
    chosen = unsure.result.get("abstain")
    rows = noisy(200, 1)
    found = unsure.predict([row["text"] for row in rows])
    assert chosen is not None  # a quarter of the labels are wrong, but its surest rows reach 0.8
    kept = [said["label"] == row["label"] for said, row in zip(found, rows) if not said["abstained"]]
    assert all(said["abstained"] == (said["score"] < chosen["threshold"]) for said in found)
    assert np.mean(kept) >= 0.8 - 1e-9
    assert len(kept) / len(rows) == pytest.approx(chosen["coverage"], abs=0.02)


def test_the_best_weights_are_kept_not_the_last(runs):
    """A rate that wrecks the model late must not cost what it had."""
    files = toy.files(runs.folder, "classify")
    run = runs.tune("classify", "best", **files, steps=60, evals=6, lr=3e-2, schedule="constant", warmup=0.0, clip=0.0)
    evals = {row["step"]: row["accuracy"] for row in read_metrics(runs.folder / "best/metrics.jsonl") if "eval" in row}
    assert len(evals) == 6
    best = max(step for step in evals if evals[step] == max(evals.values()))
    assert run.result["run"]["best_step"] == best
    assert run.result["metrics"]["accuracy"] == evals[best] == run.evaluate(files["dev"])["accuracy"]


def test_the_evaluation_marked_best_last_is_the_one_whose_weights_are_kept(runs, notes):
    """Of equal scores the later one is kept; the mark stood at the first."""
    files = toy.files(runs.folder, "classify")
    run = runs.tune("classify", "marked", **files, steps=6, evals=6, lr=1e-9)
    scores = [row["accuracy"] for row in read_metrics(runs.folder / "marked/metrics.jsonl") if "eval" in row]
    assert scores.count(max(scores)) > 1
    marked = [note for note in notes if note.endswith("← best")]
    assert marked[-1].startswith(f"step {run.result['run']['best_step']}: ")


def test_the_time_to_go_is_told_once_there_is_a_speed_to_tell_it_from(runs, notes, monkeypatch):
    """The first step said that 0 min 00 s of sixty steps were to go."""
    told: list[str] = []
    monkeypatch.setattr(notes, "status", told.append, raising=False)
    runs.tune("classify", "told", **toy.files(runs.folder, "classify"), steps=5, evals=1)
    steps = [message for message in told if message.startswith("step ")]
    assert [message.split()[1] for message in steps] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    assert [message.endswith("to go") for message in steps] == [False, True, True, True, True]


def test_it_stops_early_after_so_many_evaluations_without_gain_and_says_so(runs, notes):
    files = toy.files(runs.folder, "classify")
    run = runs.tune("classify", "early", **files, steps=400, evals=40, patience=2)
    facts = run.result["run"]
    assert facts["steps"] < 400 and "stopped early: 2 evaluations" in facts["stopped"]
    rows = [row for row in read_metrics(runs.folder / "early/metrics.jsonl") if "eval" in row]
    assert rows[-1]["step"] == facts["steps"]
    first = next(n for n, row in enumerate(rows) if row["accuracy"] == max(r["accuracy"] for r in rows))
    assert first == len(rows) - 3, "the last gain is two evaluations before the end"
    assert any("stopped early" in note for note in notes)


def test_tiny_sets_get_enough_steps_and_a_rate_by_width(runs):
    rows = toy.messages(64)
    settings = FinetuneSettings(
        task="classify", train=toy.write(runs.folder / "tiny.csv", rows), model=str(runs.model), out=runs.folder / "n"
    )
    run = Finetuning(settings)
    assert run.plan(2).steps == 40  # twenty passes are the most
    assert run.plan(100).steps == 300 and run.plan(1000).steps == 3000
    assert Rates(run.settings, run.model).peak == pytest.approx(5e-5 * 768 / 32)


def test_a_frozen_encoder_is_left_untouched_and_the_head_still_learns(runs):
    train = toy.write(runs.folder / "brief.csv", toy.messages(80, most=2, least=1))
    run = runs.tune("classify", "frozen", train=train, dev=train, freeze=True, lr=1e-2)
    before, after = (read_folder(path).model.state_dict() for path in (runs.model, runs.folder / "frozen"))
    same = [torch.equal(before[name], after[name]) for name in after if name.startswith("encoder.")]
    assert same and all(same)
    assert not torch.equal(before["pooler.dense.weight"], after["pooler.dense.weight"])
    assert run.result["metrics"]["accuracy"] > 0.65


def test_lower_layers_learn_at_a_smaller_rate(runs):
    files = toy.files(runs.folder, "classify")
    settings = FinetuneSettings(
        task="classify", model=str(runs.model), out=runs.folder / "rates", layer_decay=0.5, **files
    )
    run = Finetuning(settings)
    objective = Supervised(run.model, run.task)
    optimizers = make_optimizers(
        objective, decay=0.0, betas=(0.9, 0.999), eps=1e-8, scale=Rates(run.settings, run.model).share
    )
    set_rate(optimizers, 1.0)
    names = {id(p): name for name, p in objective.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in optimizers[0].param_groups for p in group["params"]}
    for name, rate in rates.items():
        wanted = 1.0
        if "encoder.layers." in name:
            wanted = 0.5 ** (2 - int(name.split("layers.")[1].split(".")[0]))
        elif "encoder." in name:
            wanted = 0.5**3
        assert rate == wanted, name
    assert len(set(rates.values())) == 4


@pytest.mark.parametrize(("size", "share"), [(0.02, 1.0), (0.1, 1.0), (0.2, 2.0), (4.0, 10.0)])
def test_word_vectors_larger_than_berts_take_larger_steps(runs, size, share):
    files = toy.files(runs.folder, "classify")
    run = Finetuning(FinetuneSettings(task="classify", model=str(runs.model), out=runs.folder / "words", **files))
    assert run.model.config.init_std == 0.1
    with torch.no_grad():
        words = run.model.encoder.embeddings.tokens.weight
        words.mul_(size / words.square().mean().sqrt())
    rates = Rates(run.settings, run.model)
    assert rates.share("model.encoder.embeddings.tokens.weight") == share
    assert rates.share("model.encoder.embeddings.norm.weight") == 1
    assert rates.share("model.encoder.layers.0.attention.qkv.weight") == 1


def test_reinitialised_layers_are_the_top_ones(runs):
    files = toy.files(runs.folder, "classify")
    run = Finetuning(
        FinetuneSettings(task="classify", model=str(runs.model), out=runs.folder / "fresh", reinit=1, **files)
    )
    before = read_folder(runs.model).model.state_dict()
    changed = {
        name.split(".")[2]
        for name, tensor in run.model.state_dict().items()
        if name.startswith("encoder.layers.") and tensor.dim() == 2 and not torch.equal(tensor, before[name])
    }
    assert changed == {"1"}


def test_rare_labels_weigh_more_when_asked(runs):
    rows = [row for n, row in enumerate(toy.messages(100)) if row["label"] == "ham" or n % 10 == 0]
    train = toy.write(runs.folder / "rare.csv", rows)
    settings = {"task": "classify", "train": train, "dev": train, "model": str(runs.model), "out": runs.folder / "w"}
    plain, weighed = (Finetuning(FinetuneSettings(**settings, class_weights=w)) for w in (False, True))
    weights = weighed.task.options["class_weights"]
    assert weights["spam"] > 4 * weights["ham"]
    for one, factor in ((weighed, weights["spam"]), (plain, 1.0)):
        spam = [item for item in one.items["train"] if item.example.label == "spam"][:1]
        one.model.load_state_dict(plain.model.state_dict())
        one.model.eval()
        batch = one.task.collate(spam, training=True)
        with torch.no_grad():
            logits = one.task.logits(one.model, one.model.encoder(batch), 1)
        wanted = -logits.log_softmax(-1)[0, one.task.labels.index("spam")] * factor
        assert one.task.loss(one.model, one.model.encoder(batch)).item() == pytest.approx(float(wanted), rel=1e-4)


def test_a_batch_in_parts_has_the_gradient_of_the_whole(runs):
    files = toy.files(runs.folder, "classify")
    exact = {"dropout": 0.0, "precision": "fp32"}
    run = Finetuning(
        FinetuneSettings(task="classify", model=str(runs.model), out=runs.folder / "g", **exact, **files)
    )  # fmt: skip
    found = []
    for micro in (10**6, 60):
        feed = SupervisedFeed(run.items["train"], run.task, batch=16, seed=0, micro_tokens=micro)
        batches = feed.step(3)
        run.model.zero_grad()
        count = sum(run.task.count(batch) for batch in batches)
        for batch in batches:
            (run.task.loss(run.model, run.model.encoder(batch)) / count).backward()
        found.append(
            (len(batches), torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None]))
        )
    assert found[0][0] == 1 and found[1][0] > 2
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-6, rtol=1e-3)


def test_every_pass_shows_every_row_once():
    feed = SupervisedFeed([None] * 50, make("classify"), batch=10, seed=3, micro_tokens=1)
    assert feed.steps_per_pass == 5
    for epoch in range(3):
        seen = np.concatenate([feed.numbers(step) for step in range(5 * epoch, 5 * epoch + 5)])
        assert sorted(seen.tolist()) == list(range(50))
    assert feed.numbers(0).tolist() != feed.numbers(5).tolist()
    again = SupervisedFeed([None] * 50, make("classify"), batch=10, seed=3, micro_tokens=1)
    assert again.numbers(7).tolist() == feed.numbers(7).tolist()


@pytest.mark.parametrize(("rows", "batch"), [(50, 1), (2, 32)])
def test_more_processes_than_rows_a_step_are_refused_before_they_wait_for_each_other(rows, batch):
    with pytest.raises(UserError, match=r"for 3 processes.*--batch"):
        SupervisedFeed([None] * rows, make("classify"), batch=batch, seed=3, micro_tokens=1, rank=1, ranks=3)


@pytest.mark.parametrize(
    ("task", "changes", "told"),
    [
        ("tag", {"abstain": 0.9}, "--abstain needs a calibrated score"),
        ("classify", {"abstain": 0.9, "multi_label": True}, "--abstain needs a calibrated score"),
        ("pair", {"abstain": 0.9, "rank": True}, "--abstain needs a calibrated score"),
        ("regress", {"labels": "low,high"}, "--labels has no meaning for the task regress"),
        ("pair", {"labels": "no,yes", "rank": True}, "--labels has no meaning with --rank"),
        ("choose", {"merge": "mean"}, "--merge has no meaning for the task choose"),
        ("embed", {"freeze": True}, "--freeze trains the head alone, and embed has none"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(task, changes, told, tmp_path):
    settings = build(
        FinetuneSettings, {"task": task, "train": tmp_path / "rows.csv", "out": tmp_path / "run"} | changes
    )
    with pytest.raises(UserError, match=told):
        Finetuning(settings)


def test_how_windows_are_merged_is_the_rerankers_business_too(tmp_path):
    given = {"task": "pair", "train": tmp_path / "rows.csv", "out": tmp_path / "run", "rank": True, "merge": "max"}
    assert task_of(build(FinetuneSettings, given)).merge == "max"


def test_a_time_budget_ends_a_run_and_says_so(runs, notes):
    files = toy.files(runs.folder, "classify", train=60)
    run = runs.tune("classify", "minutes", **files, steps=0, minutes=0.05)
    assert run.result["run"]["steps"] >= 10
    assert run.result["run"]["seconds"] < 20


@pytest.mark.parametrize("asked, used", [(-1.0, 0.3), (0.0, 0.0), (0.2, 0.2)])
def test_dropout_is_the_models_own_unless_asked_for(asked, used, runs, notes):
    model = toy.make_model(runs.folder / f"wet-{asked}", dropout=0.3, attention_dropout=0.3, head_dropout=0.3)
    task = make("classify")
    split = Split({"train": task.from_inputs(toy.messages(20)), "dev": task.from_inputs(toy.messages(10, 1))})
    numbers = {"task": "classify", "train": Path(), "model": str(model), "steps": 1, "threads": 1, "dropout": asked}
    run = Finetuning(FinetuneSettings(**numbers, out=runs.folder / f"dropout-{asked}"), split)
    run.go()
    config = run.model.config
    assert {config.dropout, config.attention_dropout, config.head_dropout} == {used}
    assert any(f"dropout {used:g}," in note for note in notes)


@pytest.mark.parametrize(
    ("gold", "said", "found"),
    [
        (["a", "b"], ["b", "b"], "b"),
        (["a", "b"], ["b", "a"], ""),
        (["a", "a"], ["a", "a"], ""),
        ([["O", "B-X"], ["O"]], [["O", "O"], ["O"]], "O"),
        ([["O", "B-X"], ["O"]], [["O", "B-X"], ["O"]], ""),
        ([1.0, 5.0, 3.0], [3.0, 3.001, 3.0], "3.00033"),
        ([1.0, 5.0, 3.0], [2.9, 3.1, 3.0], ""),
        ([], [], ""),
    ],
)
def test_one_answer_for_all_is_seen(gold, said, found):
    assert one_answer(gold, said) == found


def test_a_run_that_learnt_nothing_from_the_texts_says_so(runs, notes):
    rng = toy.chance(9)
    rows = [{"text": " ".join(toy.words(rng)), "label": "spam" if n % 10 == 0 else "ham"} for n in range(120)]
    train = toy.write(runs.folder / "chance.jsonl", rows)
    runs.tune("classify", "chance", train=train, dev=train, lr=3e-4, steps=10)
    (said,) = [note for note in notes if "nothing was learned from the texts" in note]
    assert "Every dev row got the same answer (ham)" in said and "--lr" in said and "7.5e-05" in said
    assert "nothing was learned" in (runs.folder / "chance/report.html").read_text("utf-8")
    assert "nothing was learned" not in (Path(runs("classify").result["out"]) / "report.html").read_text("utf-8")


def test_rows_in_memory_need_no_file(runs):
    task = make("classify")
    split = Split({"train": task.from_inputs(toy.messages(40)), "dev": task.from_inputs(toy.messages(20, 1))})
    settings = FinetuneSettings(
        task="classify", train=Path(), model=str(runs.model), out=runs.folder / "memory", steps=3, threads=1
    )
    result = Finetuning(settings, split, ("spam", "ham")).go()
    assert result.rows == 20
    about = json.loads((runs.folder / "memory/bertkit.json").read_text("utf-8"))
    assert about["labels"] == ["spam", "ham"] and about["data"] == {}


def test_windows_are_remembered_with_the_model(runs):
    assert runs("classify").windows() == Windows(64, "window", 16)


def test_numbers_of_a_large_scale_survive_bf16(runs):
    """bf16 knows 2008 and 2016 and no year between: the head's last map must be computed in float32."""
    rows = [row | {"label": 2000 + row["label"] / 10} for row in toy.numbers(60)]
    files = {role: toy.write(runs.folder / f"years-{role}.csv", rows) for role in ("train", "dev")}
    run = runs.tune("regress", "years", **files, precision="bf16", steps=60)
    said = {round(one["value"], 2) for one in run.predict([row["text"] for row in rows])}
    assert len(said) >= 20  # bf16 itself has two numbers here; how many of 60 rows differ depends on the CPU
    assert run.result["metrics"]["spearman"] > 0.8
    last = [row for row in read_metrics(runs.folder / "years/metrics.jsonl") if row.get("eval")][-1]
    assert run.result["metrics"]["spearman"] == pytest.approx(last["spearman"], abs=0.05)


@pytest.mark.parametrize(
    ("case", "problem"),
    [("classify", "single_label_classification"), ("multi-label", "multi_label_classification"),
     ("regress", "regression"), ("tag", None)],
)  # fmt: skip
def test_the_folder_says_what_kind_of_scores_it_has(case, problem, runs):
    runs(case)
    out = runs.folder / f"run-{case}"
    config, about = (json.loads((out / name).read_text("utf-8")) for name in ("config.json", "bertkit.json"))
    assert config.get("problem_type") == problem
    assert {"bertkit", "python", "torch", "tokenizers"} <= about["versions"].keys()
    chosen = {"classify": ["temperature"], "multi-label": ["thresholds"]}.get(case, [])
    assert list(about["calibration"]) == chosen
    assert len(about["data"]["train"]["sha256"]) == 64


def test_a_multi_label_folder_of_transformers_answers_with_several_labels(runs, tmp_path):
    runs("multi-label")
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((runs.folder / "run-multi-label" / name).read_bytes())
    text = "the winner of the prize"
    ours, bare = (bertkit.load(str(f), precision="fp32") for f in (runs.folder / "run-multi-label", tmp_path))
    assert bare.predict(text)[0]["scores"] == pytest.approx(ours.predict(text)[0]["scores"])


def test_more_layers_than_there_are_cannot_begin_anew(runs):
    files = toy.files(runs.folder, "classify")
    settings = FinetuneSettings(task="classify", model=str(runs.model), out=runs.folder / "reinit", reinit=3, **files)
    with pytest.raises(UserError, match="the model has 2 layers"):
        Finetuning(settings)
