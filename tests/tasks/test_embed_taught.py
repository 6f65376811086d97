"""A teacher's vectors: a student of another width learns which texts they hold to be alike."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bertkit
from bertkit.checkpoint.folder import read_folder
from bertkit.data.examples import TextRow
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.tasks.base import Reading
from bertkit.tasks.embed import SCALE, Taught
from tests.support.toy import SMALL, likeness, make_model

NAMES = ("house", "train", "bread", "garden", "school", "table")


def sentences(rows: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(NAMES, k=rng.randint(1, 5))) for _ in range(rows)]


def counted(texts: list[str]) -> np.ndarray:
    """A teacher that counts words: texts with the same words are alike, in whatever order."""
    return np.array([[text.split().count(name) for name in NAMES] for text in texts], np.float32)


@pytest.fixture
def folder(tmp_path):
    return read_folder(make_model(tmp_path / "bert"))


def taught(path, folder):
    task = Taught(teacher=counted)
    examples = task.read(path, Reading())
    task.fit_labels(examples)
    return task, examples, task.encode(examples, folder.tokenizer, Windows(64))


@torch.no_grad()
def test_the_loss_is_that_of_a_plain_sum(tmp_path, folder):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(sentences(5, 0)) + "\n")
    task, examples, items = taught(path, folder)
    model = folder.model.eval()
    loss = float(task.loss(model, model.encoder(task.collate(items, training=True))))
    own = F.normalize(
        torch.stack([model.encoder(task.collate([item], training=False)).tokens[: item.tokens].float().mean(0)
                     for item in items]), dim=-1,
    )  # fmt: skip
    wanted = F.normalize(torch.from_numpy(counted([row.text for row in examples])), dim=-1)
    plain = 0.0
    for n in range(5):
        others = [m for m in range(5) if m != n]
        p = (wanted[others] @ wanted[n] * SCALE).softmax(0)
        q = (own[others] @ own[n] * SCALE).softmax(0)
        plain += float((p * (p / q).log()).sum())
    assert loss == pytest.approx(plain, rel=2e-3)


def test_texts_of_pairs_count_one_by_one_and_every_text_is_asked_about_once(tmp_path, folder):
    path = tmp_path / "pairs.jsonl"
    rows = [("house table", "bread"), ("bread", "garden"), ("house table", "school")]
    path.write_text("".join(json.dumps({"text": a, "text_b": b}) + "\n" for a, b in rows))
    asked = []

    def teacher(texts):
        asked.extend(texts)
        return counted(texts)

    task = Taught(teacher=teacher)
    examples = task.read(path, Reading())
    task.fit_labels(examples)
    items = task.encode(examples, folder.tokenizer, Windows(64))
    assert asked == ["house table", "bread", "garden", "school"]
    assert [len(item.rows) for item in items] == [2, 2, 2]
    assert task.targets(items)["target"].shape == (6, len(NAMES))


def test_a_student_comes_to_see_what_its_teacher_sees(tmp_path):
    """The teacher is random, but as wide as it is, like words make like texts; the student starts from other words."""
    texts = list(dict.fromkeys(sentences(500, 1)))
    train, fresh = tmp_path / "texts.txt", [text for text in sentences(60, 2) if text not in texts]
    train.write_text("\n".join(texts) + "\n")
    teacher, student = make_model(tmp_path / "teacher", seed=5, width=64), make_model(tmp_path / "student")
    run = bertkit.finetune(
        "embed", train=str(train), teacher=str(teacher), model=str(student), out=str(tmp_path / "run"),
        **{**SMALL, "steps": 60, "batch": 32},
    )  # fmt: skip
    wanted = likeness(bertkit.load(teacher), fresh)
    before, after = (float(np.corrcoef(wanted, likeness(one, fresh))[0, 1]) for one in (bertkit.load(student), run))
    assert after > before + 0.1
    assert run.result["headline"] == "spearman"
    assert run.result["metrics"]["spearman"] > 0.8
    assert bertkit.load(tmp_path / "run").task.name == "embed"


def test_too_few_held_out_texts_are_reported_before_anything_is_learnt(tmp_path):
    train, model = tmp_path / "texts.txt", make_model(tmp_path / "bert")
    train.write_text("\n".join(("house", "train", "bread", "garden", "school")) + "\n")
    with pytest.raises(UserError, match="too few texts are held out"):
        bertkit.finetune("embed", train=str(train), teacher=str(model), model=str(model), out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_teacher_is_for_embed_alone(tmp_path):
    with pytest.raises(UserError, match="--teacher has no meaning for the task classify"):
        bertkit.finetune("classify", train=str(tmp_path / "x.csv"), teacher="en", out=str(tmp_path / "run"))


def test_a_teacher_whose_cosines_crowd_together_still_tells_texts_apart():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2000, 16)) + 6  # every cosine is near 0.97
    task = Taught(teacher=lambda texts: vectors[[int(text) for text in texts]])
    task.ask([TextRow(str(n)) for n in range(2000)])
    known = np.stack([task._known[str(n)] for n in range(200)]).astype(np.float32)
    plain = vectors[:200] / np.linalg.norm(vectors[:200], axis=1, keepdims=True)
    spread, crowded = (np.std((v @ v.T)[~np.eye(200, dtype=bool)]) for v in (known, plain))
    assert crowded < 0.03 < 0.2 < spread


def test_the_mean_of_a_few_texts_is_not_taken_for_the_teachers():
    task = Taught(teacher=counted)
    task.ask([TextRow("house train")])
    assert task._known["house train"] == pytest.approx(counted(["house train"])[0] / 2**0.5, abs=1e-3)
