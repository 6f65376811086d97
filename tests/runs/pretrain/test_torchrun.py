"""Two processes under torchrun: the losses of one process, and a resume to the last bit."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit.config import to_plain, to_toml
from bertkit.runs.pretrain.run import pretrain
from bertkit.training.checkpoints import list_generations, newest_generation
from bertkit.training.metrics_log import read_metrics

STILL = {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0}
RUN = {
    "precision": "fp32", "steps": 4, "save_every": 2, "eval_every": 2, "eval_tokens": 32, "short_prob": 0.5,
    "model": STILL,
}  # fmt: skip
# 32 tokens are one example: the second process has none, and must add up all the same


def torchrun(settings, folder: Path, *more: str) -> None:
    (folder / "run.toml").write_text(to_toml(to_plain(settings)), "utf-8")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bertkit",
        "pretrain", "--config", str(folder / "run.toml"), *more,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=840, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def whole(make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchrun")
    torchrun(make("bert-tiny", folder / "run", **RUN), folder)
    return folder / "run"


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(whole, make, tmp_path):
    pretrain(make("bert-tiny", tmp_path / "one", **RUN))
    one, two = (list(read_metrics(folder / "metrics.jsonl")) for folder in (tmp_path / "one", whole))
    assert len(one) == len(two) == 6
    for a, b in zip(one, two):
        assert a.keys() == b.keys()
        for name, value in a.items():
            assert b[name] == pytest.approx(value, rel=1e-5 if "loss" in name else 1e-3), (name, a, b)
    assert one[0]["loss"] == pytest.approx(two[0]["loss"], rel=1e-6)


@pytest.mark.slow
def test_two_processes_resume_to_the_last_bit(whole, make, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    generations = list_generations(tmp_path / "run/checkpoints")
    assert [newest_generation(whole / "checkpoints").step, len(generations)] == [4, 2]
    shutil.rmtree(generations[-1])
    (tmp_path / "run/model.safetensors").unlink()
    torchrun(make("bert-tiny", tmp_path / "run", **RUN), tmp_path, "--resume")
    for name in ("model.safetensors", "metrics.jsonl"):
        ours, theirs = (hashlib.sha256((f / name).read_bytes()).hexdigest() for f in (whole, tmp_path / "run"))
        assert ours == theirs, name


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row]


@pytest.mark.slow
def test_sharded_weights_give_the_same_losses_and_resume_unsharded(whole, make, tmp_path):
    run = tmp_path / "run"
    torchrun(make("bert-tiny", run, **RUN), tmp_path, "--shard")
    assert len(losses(whole)) == 4
    assert losses(run) == pytest.approx(losses(whole), rel=1e-5)
    shutil.rmtree(list_generations(run / "checkpoints")[-1])
    pretrain(make("bert-tiny", run, **RUN, resume=True))
    assert losses(run) == pytest.approx(losses(whole), rel=1e-5)


@pytest.mark.slow
def test_sharded_weights_can_be_trained_for_some_minutes(make, tmp_path):
    """How many steps fit is measured by trying a few first."""
    torchrun(make("bert-tiny", tmp_path / "run", **RUN | {"steps": 0, "minutes": 0.05}), tmp_path, "--shard")
    assert (tmp_path / "run/model.safetensors").is_file() and losses(tmp_path / "run")
