"""Fine-tuning continues from a fine-tuned model, whatever its labels and its task were."""

from __future__ import annotations

import pytest
import torch

import bertkit
from bertkit.checkpoint.folder import read_folder
from tests.support import toy

MORE = toy.KEYS | {"travel": ("train", "station")}


def further(runs, out: str, task: str, rows: list[dict], **settings):
    train = toy.write(runs.folder / f"{out}.jsonl", rows)
    model = str(runs.folder / "run-classify")
    small = toy.SMALL | {"steps": 1, "baseline": False}
    return bertkit.finetune(task, train=train, dev=train, model=model, out=runs.folder / out, **small | settings)


@pytest.fixture
def first(runs):
    return runs("classify")


def test_known_labels_keep_their_rows_of_the_head(first, runs, notes):
    further(runs, "third-label", "classify", toy.messages(30, names=MORE), lr=1e-9)
    before, after = (read_folder(runs.folder / name) for name in ("run-classify", "third-label"))
    assert after.labels == ("ham", "spam", "travel")
    old, new = (folder.model.head("text").out.weight for folder in (before, after))
    torch.testing.assert_close(new[:2] / new[0].norm(), old / old[0].norm(), atol=1e-4, rtol=1e-3)
    (line,) = [line for line in notes if "its head keeps" in line]
    assert line.endswith("has the labels ham, spam: its head keeps ham, spam, and learns travel from the start.")


def test_labels_in_another_order_are_matched_by_name(first, runs):
    further(runs, "turned", "classify", toy.messages(30), lr=1e-9, labels="spam,ham")
    before, after = (read_folder(runs.folder / name) for name in ("run-classify", "turned"))
    old, new = (folder.model.head("text").out.weight for folder in (before, after))
    torch.testing.assert_close(new.flip(0) / new[1].norm(), old / old[0].norm(), atol=1e-4, rtol=1e-3)


def test_labels_without_one_in_common_get_a_new_head(first, runs, notes):
    rows = [row | {"label": {"ham": "good", "spam": "bad"}[row["label"]]} for row in toy.messages(30)]
    run = further(runs, "other-labels", "classify", rows)
    assert run.task.labels == ("bad", "good")
    assert sum("has the labels ham, spam" in line and "replaced by a new one" in line for line in notes) == 1


@pytest.mark.parametrize(
    ("task", "rows"), [("pair", toy.pairs(30)), ("regress", toy.numbers(30)), ("tag", toy.sentences(30))]
)
def test_another_task_gets_a_new_head(task, rows, first, runs, notes):
    further(runs, f"now-{task}", task, rows)
    assert sum("was fine-tuned for classify" in line and "replaced by a new one" in line for line in notes) == 1
