"""Triples: a text that does not belong to the first is one more to be told apart from its partner."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertkit.checkpoint.folder import read_folder
from bertkit.data.windows import Windows
from bertkit.model.inference import TorchEngine
from bertkit.tasks import make
from bertkit.tasks.base import Reading
from bertkit.tasks.batches import outputs_of
from bertkit.tasks.embed import SCALE
from tests.support.toy import make_model

ROWS = [
    ("the old house", "a house that is old", "a new train"),
    ("bread on the table", "there is bread", ""),
    ("children in the garden", "people outside", "children in the school"),
]


@pytest.fixture
def folder(tmp_path):
    return read_folder(make_model(tmp_path / "bert"))


def items_of(tmp_path, folder):
    path = tmp_path / "triples.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "text_b", "text_c"), *ROWS])
    task = make("embed")
    examples = task.read(path, Reading())
    task.fit_labels(examples)
    return task, examples, task.encode(examples, folder.tokenizer, Windows(64))


def test_a_third_text_is_read_where_there_is_one(tmp_path, folder):
    _, examples, items = items_of(tmp_path, folder)
    assert [row.text_c for row in examples] == ["a new train", None, "children in the school"]
    assert [len(item.rows) for item in items] == [3, 2, 3]


@torch.no_grad()
def test_the_loss_is_that_of_a_plain_sum(tmp_path, folder):
    task, _, items = items_of(tmp_path, folder)
    model = folder.model.eval()
    loss = float(task.loss(model, model.encoder(task.collate(items, training=True))))

    def vector(row) -> torch.Tensor:
        batch = task.collate([type(items[0])(None, [row], 0, 0)], training=False)
        return F.normalize(model.encoder(batch).tokens[: len(row.ids)].float().mean(0), dim=-1)

    left, right = ([vector(item.rows[side]) for item in items] for side in (0, 1))
    hard = [vector(item.rows[2]) for item in items if len(item.rows) > 2]
    wanted = 0.0
    for n in range(3):
        forth = torch.stack([left[n] @ other for other in [*right, *hard]]) * SCALE
        back = torch.stack([right[n] @ other for other in left]) * SCALE
        wanted += float(forth.logsumexp(0) - forth[n] + back.logsumexp(0) - back[n]) / 2
    assert loss == pytest.approx(wanted, rel=1e-4)


@torch.no_grad()
def test_answers_are_of_the_pair_alone(tmp_path, folder):
    task, examples, items = items_of(tmp_path, folder)
    engine = TorchEngine(folder.model.eval())
    found = outputs_of(engine, task, items)
    assert [one.shape[0] for one in found] == [2, 2, 2]
    pairs = [type(row)(row.text, row.text_b) for row in examples]
    plain = task.encode(pairs, folder.tokenizer, Windows(64))
    again = outputs_of(engine, task, plain)
    for one, other in zip(found, again):
        assert abs(one - other).max() < 1e-5


def test_a_text_with_two_right_partners_is_not_scored_as_wrong_when_the_other_one_is_nearest(tmp_path, monkeypatch):
    path = tmp_path / "pairs.csv"
    path.write_text("text,text_b\nhouse,home\nhouse,building\ntrain,railway\n")
    task = make("embed")
    examples = task.read(path, Reading())
    monkeypatch.setattr("bertkit.tasks.embed.BLOCK", 2)
    east, north = [1.0, 0.0], [0.0, 1.0]
    vectors = [(east, east), (east, [0.9, 0.1]), (north, [0.8, 0.2])]  # railway is not near train, but nearest to it
    predictions = [{"vectors": np.array(pair)} for pair in vectors]
    assert task.score(examples, predictions)["accuracy"] == 1.0
    predictions[2] = {"vectors": np.array((east, north))}
    assert task.score(examples, predictions)["accuracy"] == pytest.approx(2 / 3)
