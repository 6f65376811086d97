"""A student learns what its teacher says: by the plain formula, from rows with or without answers, and to the last bit
when it is stopped and resumed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertkit.checkpoint.locate import content_of_model
from bertkit.commands.compress import distill as command
from bertkit.config import build
from bertkit.errors import Stopped, UserError
from bertkit.files.manifest import accept
from bertkit.inference.predictor import Predictor
from bertkit.model.heads import Model
from bertkit.objectives.supervised import soft_labels, soft_several
from bertkit.runs.compress.distill import distill
from bertkit.runs.compress.prune import chosen, with_layers
from bertkit.settings.compress import DistillSettings
from bertkit.settings.model import Config
from bertkit.training import run as module
from tests.support import toy

SMALL = toy.SMALL | {"steps": 60}


def go(runs, case: str, name: str, **changes):
    runs(case)
    values = toy.files(runs.folder, case) | {"teacher": str(runs.folder / f"run-{case}"), "out": runs.folder / name}
    return distill(build(DistillSettings, SMALL | {"layers": 1} | values | changes))


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_soft_loss_and_its_gradient_are_those_of_the_formula(temperature: float) -> None:
    rng = np.random.default_rng(3)
    said, taught = rng.normal(size=(5, 4)) * 3, rng.normal(size=(5, 4)) * 3

    def softmax(x: np.ndarray) -> np.ndarray:
        raised = np.exp(x)
        return raised / raised.sum(-1, keepdims=True)

    p, q = softmax(taught / temperature), softmax(said / temperature)
    student = torch.tensor(said, requires_grad=True)
    loss = soft_labels(student, torch.tensor(taught), temperature)
    np.testing.assert_allclose(loss.detach(), temperature**2 * (p * np.log(p / q)).sum(-1), rtol=1e-9)
    loss.sum().backward()
    np.testing.assert_allclose(student.grad, temperature * (q - p), rtol=1e-9)  # temperature² · (q − p) / temperature


def test_several_labels_are_two_way_softmaxes_each() -> None:
    rng = np.random.default_rng(4)
    said, taught = torch.tensor(rng.normal(size=(6, 3))), torch.tensor(rng.normal(size=(6, 3)))
    found = soft_several(said, taught, 2.0)
    pairs = [torch.stack([x, torch.zeros_like(x)], -1).view(-1, 2) for x in (said, taught)]
    torch.testing.assert_close(found, soft_labels(*pairs, 2.0).view(6, 3).mean(1))
    assert torch.all(soft_several(said, said, 2.0).abs() < 1e-12)


@pytest.mark.parametrize("case", ["classify", "multi-label", "pair", "regress", "tag", "choose"])
def test_a_student_of_half_the_layers_follows_its_teacher(case: str, runs) -> None:
    result = go(runs, case, f"student-{case}")
    found = result["compared"]
    assert next(iter(found["parity"].values())) > 0.9
    assert found["after"]["megabytes"] < found["before"]["megabytes"]
    assert min(side["texts_per_second"] for side in (found["before"], found["after"])) > 0
    student = Predictor.load(runs.folder / f"student-{case}", "fp32")
    teacher = Predictor.load(runs.folder / f"run-{case}", "fp32")
    assert (student.config.depth, student.task.name) == (1, teacher.task.name)
    assert student.task.labels == teacher.task.labels
    headline = result["headline"]
    assert found["metrics"][headline][1] == pytest.approx(result["metrics"][headline])


def test_texts_without_labels_are_enough(runs, notes) -> None:
    runs("classify")
    rows = [{"text": row["text"]} for row in toy.messages(200, 5)]
    bare = toy.write(runs.folder / "bare.jsonl", rows)
    dev = toy.files(runs.folder, "classify")["dev"]
    settings = {"train": bare, "dev": dev, "teacher": str(runs.folder / "run-classify"), "out": runs.folder / "bare"}
    shape = {"model": str(toy.make_model(runs.folder / "other", seed=9))}
    result = distill(build(DistillSettings, toy.SMALL | settings | shape))
    assert result["metrics"]["accuracy"] > 0.9  # an untrained one is right half of the time
    assert any("the teacher answers the 200 rows" in line for line in notes)
    assert json.loads((runs.folder / "bare/bertkit.json").read_text())["labels"] == ["ham", "spam"]


def test_a_tagged_file_without_tags_teaches_and_another_tokenizer_is_no_obstacle(runs) -> None:
    from bertkit.text.vocabulary import VocabularySettings, learn

    rows = [{"tokens": row["tokens"]} for row in toy.sentences(150, 6)]
    bare = toy.write(runs.folder / "bare-tags.jsonl", rows)
    start = toy.make_model(runs.folder / "letters", seed=9, width=32, depth=1)
    texts = [" ".join(row["tokens"]) for row in rows]
    learn(texts, VocabularySettings(size=120)).save(start, 512)  # smaller pieces than the teacher's
    result = go(runs, "tag", "bare-tags", train=bare, model=str(start), layers=0, steps=120)
    assert result["compared"]["parity"]["agreement"] > 0.8


def test_a_preset_is_a_new_student_with_the_teachers_vocabulary(runs) -> None:
    result = go(runs, "classify", "shaped", model="bert-tiny", layers=1, steps=3, lr=1e-4)
    student = Predictor.load(result["out"], "fp32")
    assert student.config.width == 128 and student.config.depth == 1
    assert student.tokenizer.size == Predictor.load(runs.folder / "run-classify").tokenizer.size


def test_another_preset_into_the_same_folder_is_another_student(runs) -> None:
    go(runs, "classify", "twice", model="bert-tiny", steps=1)
    start = (runs.folder / "twice/start/model.safetensors").read_bytes()
    go(runs, "classify", "twice", model="electra-mini", steps=1, overwrite=True)
    assert Predictor.load(runs.folder / "twice", "fp32").folder.family == "electra"
    go(runs, "classify", "twice", model="bert-tiny", steps=1, overwrite=True, seed=7)
    assert (runs.folder / "twice/start/model.safetensors").read_bytes() != start


def test_a_run_with_a_teacher_resumes_to_the_last_bit(runs, monkeypatch) -> None:
    def weights(out: str) -> bytes:
        return (runs.folder / out / "model.safetensors").read_bytes()

    changes = {"steps": 6, "evals": 2, "dropout": 0.1}
    go(runs, "classify", "whole", **changes)

    def told(message: str) -> None:
        if message.startswith("step 3/"):
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Stopped, match="--resume"):
        patch.setattr(module, "status", told)
        go(runs, "classify", "stopped", **changes)
    go(runs, "classify", "stopped", resume=True, **changes)
    assert weights("stopped") == weights("whole")


def test_a_run_is_not_resumed_with_another_model_in_the_teachers_folder(runs, monkeypatch) -> None:
    runs("classify")
    mine = runs.folder / "my-teacher"
    shutil.copytree(runs.folder / "run-classify", mine, ignore=shutil.ignore_patterns("checkpoints"))
    changes = {"steps": 6, "evals": 2, "teacher": str(mine)}

    def told(message: str) -> None:
        if message.startswith("step 3/"):
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(module, "status", told)
        go(runs, "classify", "taught-twice", **changes)
    weights = load_file(mine / "model.safetensors")
    save_file({name: tensor + 0.01 for name, tensor in weights.items()}, mine / "model.safetensors")
    accept(mine)
    with pytest.raises(UserError, match="not the same teacher"):
        go(runs, "classify", "taught-twice", resume=True, **changes)


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "model.int8.safetensors", "model.onnx"])
def test_other_weights_of_a_teacher_are_seen_whatever_their_files_are_called(name: str, tmp_path) -> None:
    digests = set()
    for content in (b"one", b"two"):
        (tmp_path / name).write_bytes(content)
        (tmp_path / "config.json").write_text("{}")
        digests.add(content_of_model(tmp_path))
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alpha": 1.5}, "--alpha is 1.5"),
        ({"temperature": 0.0}, "--temperature is 0"),
        ({"layers": 2}, "the model has 2"),
        ({"task": "tag"}, "was fine-tuned for classify"),
        ({"out": Path("run-classify")}, "the teacher's own folder"),
    ],
)
def test_what_cannot_be_is_refused(changes, words: str, runs, monkeypatch) -> None:
    monkeypatch.chdir(runs.folder)
    with pytest.raises(UserError, match=words):
        go(runs, "classify", "refused", **changes)


def test_an_older_run_toml_may_hold_what_only_fine_tuning_does() -> None:
    table = {"teacher": "t", "train": "rows.csv", "seeds": 1, "crf": False, "layers": 2}
    assert command.resolve(table) == {"teacher": "t", "train": "rows.csv", "layers": 2}
    with pytest.raises(UserError, match="seeds does not apply to distillation"):
        command.resolve(table | {"seeds": 3})


def test_a_teacher_without_a_task_or_of_another_kind_is_refused(runs) -> None:
    with pytest.raises(UserError, match="not been fine-tuned"):
        go(runs, "classify", "no-task", teacher=str(runs.model))
    with pytest.raises(UserError, match="finetune embed --teacher"):
        runs("embed")
        go(runs, "classify", "no-embed", teacher=str(runs.folder / "run-embed"))


def test_layers_are_spread_and_keep_their_kind() -> None:
    plain = Config(vocabulary=9, depth=12)
    assert chosen(plain, 6) == [0, 2, 4, 6, 8, 10]
    assert chosen(plain, 3, "top") == [0, 1, 2]
    mixed = Config(vocabulary=9, depth=12, norm="pre", local_window=8, global_every=3)
    for number in range(1, 12):
        kept = chosen(mixed, number)
        assert kept == sorted(set(kept)) and len(kept) == number and kept[0] == 0
        assert [mixed.is_global(layer) for layer in kept] == [mixed.is_global(place) for place in range(number)]
    assert chosen(Config(vocabulary=9, depth=12, unique_layers=1), 4) == [0, 1, 2, 3]
    with pytest.raises(UserError, match="share 3 sets"):
        chosen(Config(vocabulary=9, depth=6, unique_layers=3), 2)


def test_the_kept_layers_are_the_models_own() -> None:
    small = {"vocabulary": 40, "width": 16, "depth": 4, "heads": 2, "inner": 24}
    model = Model(Config(**small), {"mlm": 0}).eval()
    kept = with_layers(model, [0, 3])
    for ours, theirs in zip(kept.encoder.layers, (model.encoder.layers[0], model.encoder.layers[3])):
        for name, tensor in ours.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[name])
    assert torch.equal(kept.encoder.embeddings.tokens.weight, model.encoder.embeddings.tokens.weight)
