"""Rare labels weigh more in every task that has labels; where there are none, asking for it is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bertkit.errors import UserError
from bertkit.runs.finetune.run import Finetuning
from bertkit.settings.finetune import FinetuneSettings
from tests.support import toy

EXACT = {"dropout": 0.0, "precision": "fp32", "threads": 1}


def prepared(runs, task: str, train, **more) -> Finetuning:
    return Finetuning(
        FinetuneSettings(
            task=task, train=train, dev=train, model=str(runs.model), out=runs.folder / "weighed", **EXACT, **more
        )
    )


def rare_spam(number: int = 100) -> list[dict]:
    """Ten hams to a spam."""
    return [row for n, row in enumerate(toy.messages(number)) if row["label"] == "ham" or n % 10 == 0]


@torch.no_grad()
def test_of_several_labels_the_rows_that_have_a_rare_one_weigh_as_much_as_those_that_do_not(runs):
    rows = [row | {"label": [row["label"], "both"]} for row in rare_spam()]
    rows += [{"text": "the house", "label": []}]
    train = toy.write(runs.folder / "several.jsonl", rows)
    run = prepared(runs, "classify", train, multi_label=True, class_weights=True)
    counts = {name: sum(name in row["label"] for row in rows) for name in ("ham", "spam", "both")}
    weights = run.task.options["class_weights"]
    assert weights == {name: pytest.approx((len(rows) - count) / count) for name, count in counts.items()}
    assert weights["spam"] > 3 > 1 > weights["ham"] > weights["both"] > 0
    batch = run.task.collate(run.items["train"][:12], training=True)
    target = batch.extra["target"]
    logits = run.task.logits(run.model, run.model.encoder(batch), len(target))
    factor = torch.tensor([weights[name] for name in run.task.labels])
    each = -(factor * target * F.logsigmoid(logits) + (1 - target) * F.logsigmoid(-logits))
    assert float(run.task.loss(run.model, run.model.encoder(batch))) == pytest.approx(float(each.sum()) / 3, rel=1e-5)


@torch.no_grad()
def test_a_label_that_every_row_has_keeps_some_weight(runs):
    train = toy.write(runs.folder / "all.jsonl", [row | {"label": [row["label"], "all"]} for row in toy.messages(20)])
    run = prepared(runs, "classify", train, multi_label=True, class_weights=True)
    assert run.task.options["class_weights"]["all"] == pytest.approx(1 / 20)


@torch.no_grad()
def test_rare_tags_weigh_more(runs):
    train = toy.files(runs.folder, "tag")["train"]
    plain, run = (prepared(runs, "tag", train, class_weights=w, crf=False) for w in (False, True))
    weights = run.task.options["class_weights"]
    assert set(weights) == set(run.task.labels) and weights["B-LOC"] == weights["I-LOC"] > 2 * weights["O"]
    run.model.load_state_dict(plain.model.state_dict())
    batch = run.task.collate(run.items["train"][:12], training=True)
    logits = run.task.logits(run.model, run.model.encoder(batch))
    chosen = logits.log_softmax(-1).gather(1, batch.extra["target"][:, None])[:, 0]
    factor = torch.tensor([weights[run.task.labels[tag]] for tag in batch.extra["target"]])
    assert float(run.task.loss(run.model, run.model.encoder(batch))) == pytest.approx(
        -float((factor * chosen).sum()), rel=1e-5
    )
    assert float(plain.task.loss(run.model, run.model.encoder(batch))) == pytest.approx(-float(chosen.sum()), rel=1e-5)


@pytest.mark.parametrize("task", ["regress", "answer", "choose", "embed"])
def test_a_task_without_labels_refuses_to_weigh_them(task, runs):
    with pytest.raises(UserError, match=f"--class-weights has no meaning for the task {task}; it is for classify"):
        runs.tune(task, "refused", train=runs.folder / "never-read.csv", class_weights=True)


def test_weights_find_the_rare_label_in_a_whole_run(runs):
    """One row in six is spam and few steps are made: unweighed, ham is said to nearly everything."""
    train = toy.write(runs.folder / "rare-train.csv", rare_spam(400))
    rows = toy.messages(60, 1)
    dev = toy.write(runs.folder / "rare-dev.csv", rows)
    found = {}
    for weighed in (False, True):
        run = runs.tune("classify", f"rare-{weighed}", train=train, dev=dev, steps=40, class_weights=weighed)
        # Fitted afterwards, the temperature would hide what was learnt: it is taken out of the head again.
        run.task.options["temperature"] = 1 / run.result["calibration"]["temperature"]
        found[weighed] = sum(said["scores"]["spam"] for said in run.predict([row["text"] for row in rows])) / len(rows)
    assert found[False] < 0.3
    assert found[True] > found[False] + 0.1
