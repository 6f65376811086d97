"""A new task is one class and one row: everything else in bertkit takes it as it is."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bertkit
from bertkit import metrics
from bertkit.commands import evaluate, predict
from bertkit.commands.compress import distill
from bertkit.config import build
from bertkit.data.windows import Windows, encode_rows
from bertkit.errors import Stopped, UserError
from bertkit.model.encoder import Encoded
from bertkit.model.heads import Model
from bertkit.tasks import TASKS
from bertkit.tasks.base import Item, Labelled, Prediction, Reading, Task
from bertkit.text.tokenizer import Tokenizer
from tests.support import toy

MOODS = ("glum", "jolly")
STEPS = 60


@dataclass(frozen=True)
class Letter:
    """An example like no other task's: it has neither a text nor a label."""

    body: str
    mood: str | None = None
    line: int = 0


@dataclass
class Mood(Task):
    """How the writer of a letter feels."""

    name: ClassVar[str] = "mood"
    example_type: ClassVar[type] = Letter
    output_names: ClassVar[tuple[str, ...]] = MOODS

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[Letter]:
        rows = [json.loads(line) for line in Path(path).read_text(reading.encoding).splitlines()]
        return [Letter(row["body"], row.get("mood") if labelled else None, n) for n, row in enumerate(rows, 1)]

    def from_inputs(self, inputs: Sequence[Any], first: int = 1) -> list[Letter]:
        return [Letter(text, line=number) for number, text in enumerate(inputs, first)]

    def outputs(self) -> int:
        return len(MOODS)

    def encode(self, examples: Sequence[Letter], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        encoded = encode_rows(tokenizer, [letter.body for letter in examples], None, windows)
        return [Item.of(letter, rows) for letter, rows in zip(examples, encoded)]

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        return {"target": torch.tensor([MOODS.index(item.example.mood) for item in items])}

    def logits(self, model: Model, encoded: Encoded, items: int) -> Tensor:
        rows = encoded.batch.restore(model.ask(self.head, encoded)).float()
        return self.merged(rows, encoded.batch.extra["owner"], items)

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        target = encoded.batch.extra["target"]
        return F.cross_entropy(self.logits(model, encoded, len(target)), target, reduction="sum")

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        share = float(1 / (1 + np.exp(-abs(output[1] - output[0]))))
        return {"mood": MOODS[int(output.argmax())], "score": share, "tokens": item.tokens, "cut": item.cut}

    def metric_inputs(
        self, examples: Sequence[Letter], predictions: Sequence[Prediction]
    ) -> tuple[Any, list, list, dict]:
        return metrics.choice, [letter.mood for letter in examples], [p["mood"] for p in predictions], {}

    def key(self, example: Letter) -> tuple[Any, ...]:
        return (example.body,)

    def answer_of(self, example: Letter) -> str | None:
        return example.mood

    def answer_in(self, prediction: Prediction) -> str:
        return str(prediction["mood"])

    def with_answer(self, example: Letter, prediction: Prediction) -> Letter:
        return replace(example, mood=self.answer_in(prediction))

    def shown(self, example: Letter) -> dict[str, Any]:
        return {"text": example.body, "line": example.line}

    def mistake(self, example: Letter, prediction: Prediction) -> dict[str, Any] | None:
        wrong = {"gold": example.mood, "predicted": prediction["mood"], "score": prediction["score"]}
        return self.shown(example) | wrong if prediction["mood"] != example.mood else None

    @property
    def answer_kind(self) -> str:
        return "labels"


@pytest.fixture(autouse=True)
def one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "mood", (__name__, "Mood"))


def letters(path: Path, number: int, seed: int = 0, known: bool = True) -> Path:
    rows = toy.messages(number, seed, most=9)
    moods = {"spam": "glum", "ham": "jolly"}
    return toy.write(path, [{"body": r["text"]} | ({"mood": moods[r["label"]]} if known else {}) for r in rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mood")
    toy.make_model(place / "model")
    letters(place / "train.jsonl", 120)
    wrong = letters(place / "dev.jsonl", 40, 1).read_text("utf-8").splitlines()
    swapped = wrong[0].replace("glum", "jolly") if "glum" in wrong[0] else wrong[0].replace("jolly", "glum")
    (place / "dev.jsonl").write_text("\n".join([swapped, *wrong[1:]]) + "\n", "utf-8")  # one row no model gets right
    return place


def tune(folder: Path, out: str, **changes: Any) -> Any:
    files = {"train": folder / "train.jsonl", "dev": folder / "dev.jsonl", "model": str(folder / "model")}
    return bertkit.finetune("mood", out=folder / out, **toy.SMALL | {"steps": STEPS} | files | changes)


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "mood", (__name__, "Mood"))
        yield tune(folder, "run")


def test_it_is_fine_tuned_by_its_name(tuned: Any) -> None:
    assert tuned.result["task"] == "mood" and tuned.result["headline"] == "accuracy"
    assert tuned.result["metrics"]["accuracy"] > 0.9
    assert tuned.result["data"]["files"][0]["rows"] == 120


def test_its_mistakes_are_on_the_page(folder: Path, tuned: Any) -> None:
    page = (folder / "run/report.html").read_text("utf-8")
    body = json.loads((folder / "dev.jsonl").read_text("utf-8").splitlines()[0])["body"]
    assert "Fine-tuning: mood" in page and body in page
    assert {error["line"] for error in tuned.result["errors"]} >= {1}


def test_rows_are_held_out_in_equal_shares_of_its_answers(folder: Path, notes: list[str]) -> None:
    result = tune(folder, "held-out", dev=None, steps=2).result
    assert result["rows"] == 12 and any("in equal shares of every label" in line for line in notes)


def test_a_stopped_run_resumes_to_the_same_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"steps": 6, "evals": 2}
    tune(folder, "whole", **few)
    plain, calls = Mood.loss, []

    def loss(task: Mood, model: Model, encoded: Encoded) -> Tensor:
        calls.append(encoded)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(task, model, encoded)

    with monkeypatch.context() as patch:
        patch.setattr(Mood, "loss", loss)
        with pytest.raises(Stopped):
            tune(folder, "stopped", **few)
    assert len(calls) < 6
    tune(folder, "stopped", resume=True, **few)
    stopped, whole = ((folder / name / "model.safetensors").read_bytes() for name in ("stopped", "whole"))
    assert stopped == whole


def test_it_predicts_and_is_evaluated(folder: Path, tuned: Any) -> None:
    dev = folder / "dev.jsonl"
    predict.run(
        build(predict.Settings, {"model": str(folder / "run"), "file": str(dev), "out": folder / "moods.jsonl"})
    )
    moods = [json.loads(line)["mood"] for line in (folder / "moods.jsonl").read_text("utf-8").splitlines()]
    assert len(moods) == 40 and set(moods) == set(MOODS)
    scored = evaluate.run(build(evaluate.Settings, {"model": str(folder / "run"), "file": dev, "precision": "fp32"}))
    assert scored["metrics"]["accuracy"] == pytest.approx(tuned.result["metrics"]["accuracy"])
    assert bertkit.load(folder / "run").predict("the prize of the house")[0]["mood"] == "glum"


def test_it_teaches_a_student_with_and_without_answers(folder: Path, tuned: Any, notes: list[str]) -> None:
    bare = letters(folder / "bare.jsonl", 120, 3, known=False)
    files = {"teacher": str(folder / "run"), "train": bare, "dev": folder / "dev.jsonl", "out": folder / "student"}
    result = distill.run(build(distill.Settings, toy.SMALL | {"steps": STEPS} | files))
    assert any("the teacher answers the 120 rows" in line for line in notes)
    assert result["compared"]["parity"]["agreement"] > 0.9
    assert bertkit.load(folder / "student").task.name == "mood"


def test_it_is_served(folder: Path, tuned: Any) -> None:
    pytest.importorskip("fastapi", reason="the server's extra is not installed")
    from fastapi.testclient import TestClient

    from bertkit.server.app import make_app
    from bertkit.server.middleware import LOCAL
    from bertkit.server.models import load
    from bertkit.server.service import InferenceService

    service = InferenceService(load([f"moods={folder / 'run'}"]), threads=1)
    with TestClient(make_app(service, hosts=LOCAL), base_url="http://127.0.0.1") as client:
        info = client.get("/info").json()
        assert info["task"] == "mood" and "predict" in info["abilities"]
        answer = client.post("/predict", json={"inputs": [["the prize of the house"], ["dinner with a friend"]]}).json()
        assert [best[0]["label"] for best in answer] == ["glum", "jolly"]
        refused = client.post("/tag", json={"inputs": "the prize"})
        assert refused.status_code >= 400 and "`bertkit finetune tag`" in refused.text
    service.queue.join(5)


def test_a_setting_of_other_tasks_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="--crf has no meaning for the task mood; it is for tag"):
        tune(folder, "crf", crf=True)
