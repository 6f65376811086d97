"""A run that was stopped and resumed is the run that was not, to the last bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from bertkit.errors import Stopped, UserError
from bertkit.runs.pretrain.run import pretrain
from bertkit.training.checkpoints import RENAMED, Generation, list_generations, newest_generation
from bertkit.training.metrics_log import read_metrics
from tests.support.interrupted import fingerprint, stop_after, stop_and_resume

PRESETS = ("bert-tiny", "roberta-mini", "albert-mini", "electra-mini", "modern-tiny", "gpt-mini")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_stopped_at_any_step_and_resumed_is_bit_equal(preset, make, tmp_path, monkeypatch):
    settings = make(preset, tmp_path / "whole", model={"dropout": 0.1, "attention_dropout": 0.1})
    pretrain(settings)
    whole = fingerprint(tmp_path / "whole")
    for step in range(1, settings.steps):
        out = tmp_path / f"stopped-{step}"
        with monkeypatch.context() as patch:
            stop_after(step, patch)
            with pytest.raises(Stopped):
                pretrain(make(preset, out, model={"dropout": 0.1, "attention_dropout": 0.1}))
        pretrain(make(preset, out, resume=True, model={"dropout": 0.1, "attention_dropout": 0.1}))
        assert fingerprint(out) == whole, f"stopped after step {step}"


def test_examples_read_from_left_to_right_resume_too(make, tmp_path, monkeypatch):
    def settings(out: str, **more):
        return make("modern-tiny", tmp_path / out, causal=0.5, packing="sentences", **more)

    stop_and_resume(pretrain, settings, 2, monkeypatch)
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")
    row = read_metrics(tmp_path / "whole" / "metrics.jsonl")[0]
    assert row["loss"] == pytest.approx(row["words_loss"] + row["next_loss"])


@pytest.mark.parametrize("preset", ["bert-tiny", "electra-mini"])
def test_a_checkpoint_with_the_names_of_the_first_versions_resumes(preset, make, tmp_path, monkeypatch):
    pretrain(make(preset, tmp_path / "whole", loop={"ema": 0.9}))
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Stopped):
            pretrain(make(preset, tmp_path / "old", loop={"ema": 0.9}))
    tensors = Generation.tensors

    def old(self, stem):
        found = {}
        for name, tensor in tensors(self, stem).items():
            for now, before in RENAMED:
                name = name.replace(now, before)
            found[name] = tensor
        assert any("words" in name for name in found)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Generation, "tensors", old)
        pretrain(make(preset, tmp_path / "old", resume=True, loop={"ema": 0.9}))
    assert fingerprint(tmp_path / "old") == fingerprint(tmp_path / "whole")


def test_muon_and_its_memory_resume_too(make, tmp_path, monkeypatch):
    def settings(out: str, **more):
        return make("modern-tiny", tmp_path / out, loop={"optimizer": "muon"}, **more)

    pretrain(settings("whole"))
    stop_after(3, monkeypatch)
    with pytest.raises(Stopped):
        pretrain(settings("stopped"))
    monkeypatch.undo()
    pretrain(settings("stopped", resume=True))
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")


def test_a_second_run_in_the_same_folder_needs_resume(make, tmp_path):
    pretrain(make("bert-tiny", tmp_path / "run", steps=2))
    with pytest.raises(UserError, match="--resume"):
        pretrain(make("bert-tiny", tmp_path / "run", steps=2))


def test_the_last_step_is_saved_once_beside_an_earlier_one(make, tmp_path):
    for resume in (False, True):  # a finished run that is asked to continue has nothing new to save
        pretrain(make("bert-tiny", tmp_path / "run", steps=4, save_every=2, resume=resume))
        names = [path.name for path in list_generations(tmp_path / "run/checkpoints")]
        assert names == ["step-00000002", "step-00000004"]


def test_resuming_with_another_model_is_refused(make, tmp_path):
    pretrain(make("bert-tiny", tmp_path / "run", steps=2))
    with pytest.raises(UserError, match="not the same model"):
        pretrain(make("bert-tiny", tmp_path / "run", steps=2, resume=True, model={"depth": 1}))


@pytest.mark.slow
def test_random_kills_never_leave_an_unreadable_checkpoint(make, store, tmp_path):
    """kill -9 at random moments; BERTKIT_KILLS sets how many (30 by default)."""
    import random
    import time

    from bertkit.config import to_plain, to_toml

    out = tmp_path / "run"
    settings = make("bert-tiny", out, steps=100000, save_every=1, eval_every=50)
    (tmp_path / "run.toml").write_text(to_toml(to_plain(settings)), "utf-8")
    command = [sys.executable, "-m", "bertkit", "pretrain", "--config", str(tmp_path / "run.toml"), "--resume"]
    chance = random.Random(0)
    reached = 0
    for _ in range(int(os.environ.get("BERTKIT_KILLS", "4"))):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        before = reached
        deadline = time.monotonic() + 300
        while reached == before and time.monotonic() < deadline and child.poll() is None:
            found = newest_generation(out / "checkpoints") if (out / "checkpoints").is_dir() else None
            reached = found.step if found else 0
            time.sleep(0.05)
        time.sleep(chance.random() * 0.3)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        newest = newest_generation(out / "checkpoints")
        assert newest is not None and newest.step > before, child.stderr.read().decode()
        assert newest.tensors("weights") and newest.tensors("optimizer")
        reached = newest.step
