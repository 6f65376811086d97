"""A fine-tuning run that was stopped by a signal and resumed is the run that was not, to the last bit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertkit.config import build
from bertkit.errors import Stopped, UserError
from bertkit.files import atomic
from bertkit.files.manifest import accept
from bertkit.runs.finetune import outcome
from bertkit.runs.finetune import run as module
from bertkit.settings.finetune import FinetuneSettings
from bertkit.training import loop as training_loop
from bertkit.training import run as training_run
from bertkit.training import run_folder
from bertkit.training.checkpoints import save_generation
from bertkit.training.loop import Training
from bertkit.training.run_folder import RunFolder
from tests.support import toy

STEPS = 6
SMALL = toy.SMALL | {"steps": STEPS, "batch": 8, "evals": 3, "dropout": 0.1, "micro_tokens": 80}


def fingerprint(out: Path) -> dict[str, str]:
    """What a resumed run must reproduce."""
    files = ("model.safetensors", "metrics.jsonl", "config.json")
    found = {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in files}
    result = json.loads((out / "result.json").read_text("utf-8"))
    kept = {key: result["run"][key] for key in ("steps", "best_step", "stopped")}
    return found | {"result": json.dumps([result["metrics"], result["intervals"], result.get("calibration"), kept])}


def stopping_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process a real signal while it is at this step."""

    def told(message: str) -> None:
        if message.startswith(f"step {step}/"):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(training_run, "status", told)


def go(case: str, runs, out: str, **changes) -> Path:
    task, _, _, own = toy.CASES[case]
    values = toy.files(runs.folder, case, train=40) | {"model": str(runs.model), "out": runs.folder / out}
    settings = build(FinetuneSettings, {"task": task} | own | SMALL | values | changes)
    module.finetune(settings)
    return settings.out


@pytest.mark.parametrize("case", ["classify", "tag", "answer", "choose", "embed", "regress"])
def test_a_run_stopped_at_any_step_and_resumed_is_bit_equal(case, runs, monkeypatch):
    whole = fingerprint(go(case, runs, f"whole-{case}"))
    for step in range(1, STEPS + 1) if case == "classify" else (2, 3):
        out = f"stopped-{case}-{step}"
        with monkeypatch.context() as patch:
            stopping_after(step, patch)
            with pytest.raises(Stopped, match="--resume") as stopped:
                go(case, runs, out)
        assert stopped.value.signal == signal.SIGTERM
        assert fingerprint(go(case, runs, out, resume=True)) == whole, f"stopped after step {step}"


def test_vectors_are_not_learnt_on_from_another_model_in_the_teachers_folder(runs, tmp_path, monkeypatch):
    train = tmp_path / "texts.txt"
    train.write_text("\n".join(row["text"] for row in toy.messages(120)) + "\n")
    own = {"train": train, "dev": None, "teacher": str(toy.make_model(tmp_path / "teacher", seed=5))}
    with monkeypatch.context() as patch:
        stopping_after(3, patch)
        with pytest.raises(Stopped):
            go("embed", runs, "taught", **own)
    shutil.rmtree(tmp_path / "teacher")
    toy.make_model(tmp_path / "teacher", seed=6)
    with pytest.raises(UserError, match=r"not the same teacher .*teacher as when the run was saved"):
        go("embed", runs, "taught", resume=True, **own)


def test_a_terminal_that_is_closed_saves_the_run_and_nohup_lets_it_go_on(runs, monkeypatch):
    def told(message: str) -> None:
        if message.startswith("step 2/"):
            os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(training_run, "status", told)
    with pytest.raises(Stopped, match="--resume") as stopped:
        go("classify", runs, "hung-up")
    assert stopped.value.signal == signal.SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup starts a command
    try:
        go("classify", runs, "nohup")
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_stopped_just_as_it_would_end_early_still_ends_there(runs, monkeypatch):
    changes = {"steps": 20, "evals": 20, "patience": 2, "lr": 1e-6}
    whole = fingerprint(go("classify", runs, "whole-early", **changes))
    steps = json.loads((runs.folder / "whole-early/result.json").read_text("utf-8"))["run"]["steps"]
    assert steps < 20
    with monkeypatch.context() as patch:
        stopping_after(steps, patch)
        with pytest.raises(Stopped):
            go("classify", runs, "stopped-early", **changes)
    assert fingerprint(go("classify", runs, "stopped-early", resume=True, **changes)) == whole


def test_a_frozen_run_resumes_too(runs, monkeypatch):
    whole = fingerprint(go("classify", runs, "whole-frozen", freeze=True))
    with monkeypatch.context() as patch:
        stopping_after(4, patch)
        with pytest.raises(Stopped):
            go("classify", runs, "stopped-frozen", freeze=True)
    assert fingerprint(go("classify", runs, "stopped-frozen", freeze=True, resume=True)) == whole


def test_a_tagger_with_a_crf_resumes_too(runs, monkeypatch):
    whole = go("tag", runs, "whole-crf", crf=True)
    with monkeypatch.context() as patch:
        stopping_after(3, patch)
        with pytest.raises(Stopped):
            go("tag", runs, "stopped-crf", crf=True)
    resumed = go("tag", runs, "stopped-crf", crf=True, resume=True)
    assert fingerprint(resumed) == fingerprint(whole)
    assert (resumed / "crf.safetensors").read_bytes() == (whole / "crf.safetensors").read_bytes()


@pytest.fixture
def a_second_per_step(monkeypatch):
    """By a clock of its own, so that no test depends on how busy the machine is."""
    now, step = {"now": 0.0}, Training._step

    def timed(self, batches):
        now["now"] += 1.0
        return step(self, batches)

    monkeypatch.setattr(Training, "_step", timed)
    monkeypatch.setattr(RunFolder, "elapsed", lambda self: now["now"])
    monkeypatch.setattr(training_loop, "time", SimpleNamespace(perf_counter=lambda: now["now"]))


def test_a_run_on_a_time_budget_resumes_at_its_fourth_step(runs, monkeypatch, a_second_per_step):
    """Its end is estimated again from the fifth step on, of which only one was made in this sitting."""
    changes = {"steps": 0, "minutes": 0.5, "batch": 8}
    with monkeypatch.context() as patch:
        stopping_after(4, patch)
        with pytest.raises(Stopped):
            go("classify", runs, "budget", **changes)
    go("classify", runs, "budget", resume=True, **changes)
    assert json.loads((runs.folder / "budget/result.json").read_text("utf-8"))["run"]["steps"] > 4


def test_a_run_resumed_with_another_time_budget_ends_by_that_one(runs, monkeypatch, a_second_per_step):
    """Of the minutes, 85 % are for steps."""
    changes = {"steps": 0, "epochs": 0.0, "batch": 8}
    with monkeypatch.context() as patch:
        stopping_after(6, patch)
        with pytest.raises(Stopped):
            go("classify", runs, "moved", minutes=0.5, **changes)
    out = go("classify", runs, "moved", minutes=1.0, resume=True, **changes)
    facts = json.loads((out / "result.json").read_text("utf-8"))["run"]
    assert facts["seconds"] == pytest.approx(51, abs=1) and facts["steps"] > 40, "the trial takes a few steps' time"


def test_a_stopped_run_is_not_overwritten_and_not_continued_with_other_labels(runs, monkeypatch):
    with monkeypatch.context() as patch:
        stopping_after(2, patch)
        with pytest.raises(Stopped):
            go("classify", runs, "kept")
    with pytest.raises(UserError, match="--resume"):
        go("classify", runs, "kept")
    with pytest.raises(UserError, match="not the same labels"):
        go("classify", runs, "kept", resume=True, labels="spam,ham")


def test_a_finished_run_is_kept_and_resuming_it_trains_nothing(runs, notes):
    out = go("classify", runs, "finished")
    before, told = fingerprint(out), json.loads((out / "bertkit.json").read_text("utf-8"))
    assert (out / "checkpoints").is_dir() and not list((out / "checkpoints").iterdir())
    with pytest.raises(UserError, match=r"holds a finished model.*--overwrite"):
        go("regress", runs, "finished")
    notes.clear()
    go("classify", runs, "finished", resume=True)
    assert fingerprint(out) == before and any("nothing is left to train" in note for note in notes)
    assert json.loads((out / "bertkit.json").read_text("utf-8")) == told
    go("classify", runs, "finished", overwrite=True, seed=3)
    assert fingerprint(out) != before


def test_a_begun_run_can_be_thrown_away(runs, monkeypatch):
    whole = fingerprint(go("classify", runs, "whole-anew"))
    with monkeypatch.context() as patch:
        stopping_after(2, patch)
        with pytest.raises(Stopped):
            go("classify", runs, "anew", seed=5)
    assert fingerprint(go("classify", runs, "anew", overwrite=True)) == whole


def test_an_overwriting_run_killed_before_its_first_save_resumes_as_itself_not_as_the_old_one(runs, monkeypatch, notes):
    whole = fingerprint(go("classify", runs, "whole-over", lr=1e-3))
    out = go("classify", runs, "over")

    def killed(*_):
        raise KeyboardInterrupt

    for how in ({"overwrite": True}, {"resume": True}):
        with monkeypatch.context() as patch:
            patch.setattr(Training, "_step", killed)
            with pytest.raises(KeyboardInterrupt):
                go("classify", runs, "over", lr=1e-3, **how)
        assert (out / "model.safetensors").is_file(), "the old model opens until the new one is written"
        with pytest.raises(UserError, match="holds a finished model"):
            go("classify", runs, "over", lr=1e-3)
    notes.clear()
    assert fingerprint(go("classify", runs, "over", lr=1e-3, resume=True)) == whole
    assert not any("nothing is left to train" in note for note in notes)
    with pytest.raises(UserError, match=r"lr = 0.003 \(was 0.001\)"):
        go("classify", runs, "over", resume=True)


def test_a_crash_after_the_last_step_loses_no_step(runs, monkeypatch):
    whole = fingerprint(go("classify", runs, "whole-crash"))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "finish", full)
        with pytest.raises(OSError):
            go("classify", runs, "crash")
    monkeypatch.setattr(training_run, "status", lambda message: pytest.fail(f"trained again: {message}"))
    assert fingerprint(go("classify", runs, "crash", resume=True)) == whole


def test_a_model_whose_replacement_could_not_be_written_keeps_its_card(runs, monkeypatch):
    out = go("classify", runs, "carded")
    card = (out / "README.md").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(outcome.model_folder, "write_folder", full)
        with pytest.raises(UserError, match="could not be written"):
            go("classify", runs, "carded", overwrite=True, steps=2)
    assert (out / "README.md").read_bytes() == card
    go("classify", runs, "carded", resume=True, steps=2)
    assert (out / "README.md").read_bytes() != card, "the new one's scores"
    told = json.loads((out / "result.json").read_text("utf-8"))
    assert "bertkit finetune" in told["command"] and Path(sys.argv[0]).name not in json.dumps(told["environment"])


def test_a_run_killed_while_its_checkpoints_are_removed_is_finished_not_damaged(runs, monkeypatch, notes):
    class Killed(BaseException):
        """The process ends here: nothing after it is done."""

    def killed(path):
        raise Killed

    finish = module.finish
    with monkeypatch.context() as patch:

        def finished(*of):
            result = finish(*of)
            patch.setattr(atomic.calls, "unlink", killed)
            return result

        patch.setattr(module, "finish", finished)
        with pytest.raises(Killed):
            go("classify", runs, "killed")
    go("classify", runs, "killed", resume=True)
    assert any("nothing is left to train" in note for note in notes)


def test_seeds_that_are_finished_are_not_trained_again(runs, monkeypatch):
    out = go("classify", runs, "seeds-kept", seeds=2)
    before = fingerprint(out)
    monkeypatch.setattr(training_run, "status", lambda message: pytest.fail(f"trained again: {message}"))
    assert fingerprint(go("classify", runs, "seeds-kept", seeds=2, resume=True)) == before


def test_other_rows_and_numbers_are_refused_unless_asked_for_and_the_end_can_be_moved(runs, monkeypatch, notes):
    with monkeypatch.context() as patch:
        stopping_after(2, patch)
        with pytest.raises(Stopped):
            go("classify", runs, "changed")
    other = toy.write(runs.folder / "other-rows.csv", toy.messages(40, seed=9))
    with pytest.raises(UserError, match="not the same set of training rows"):
        go("classify", runs, "changed", resume=True, train=other)
    changes = {"resume": True, "batch": 4, "lr": 1e-3, "steps": 8}
    with pytest.raises(UserError, match=r"batch = 4 \(was 8\), lr = 0.001 \(was 0.003\)\. .*--allow-changed-settings"):
        go("classify", runs, "changed", **changes)
    notes.clear()
    out = go("classify", runs, "changed", allow_changed_settings=True, **changes)
    assert any("batch = 4 (was 8)" in note for note in notes)
    assert json.loads((out / "result.json").read_text("utf-8"))["run"]["steps"] == 8
    assert "batch = 4" in (out / "run.toml").read_text("utf-8")


def test_other_dev_rows_are_refused_when_a_run_is_resumed(runs, monkeypatch):
    with monkeypatch.context() as patch:
        stopping_after(2, patch)
        with pytest.raises(Stopped):
            go("classify", runs, "other-dev")
    other = toy.write(runs.folder / "other-dev.csv", toy.messages(24, seed=9))
    with pytest.raises(UserError, match="not the same set of dev rows"):
        go("classify", runs, "other-dev", resume=True, dev=other, allow_changed_settings=True)


def test_a_run_saved_before_its_dev_rows_were_told_apart_resumes(runs, monkeypatch):
    def saved_then(*saved, about, **how):
        return save_generation(*saved, about={key: about[key] for key in about if key != "set of dev rows"}, **how)

    with monkeypatch.context() as patch:
        stopping_after(2, patch)
        patch.setattr(run_folder, "save_generation", saved_then)
        with pytest.raises(Stopped):
            go("classify", runs, "before-dev")
    assert fingerprint(go("classify", runs, "before-dev", resume=True))


def test_a_finished_run_is_not_taken_for_one_with_other_rows_or_settings(runs):
    out = go("classify", runs, "finished-with")
    before = fingerprint(out)
    other = toy.write(runs.folder / "other-train.csv", toy.messages(40, seed=9))
    with pytest.raises(UserError, match=r"the run is finished.*: other train rows\..*--overwrite"):
        go("classify", runs, "finished-with", resume=True, train=other)
    with pytest.raises(UserError, match=r"finished.*batch = 4 \(was 8\), steps = 9 \(was 6\)"):
        go("classify", runs, "finished-with", resume=True, steps=9, batch=4)
    about = json.loads((out / "bertkit.json").read_text("utf-8"))
    (out / "bertkit.json").write_text(json.dumps({k: v for k, v in about.items() if k != "digests"}), "utf-8")
    accept(out)
    with pytest.raises(UserError, match="other train rows"):
        go("classify", runs, "finished-with", resume=True, train=other)
    go("classify", runs, "finished-with", resume=True, lang="zh", threads=1)
    assert fingerprint(out) == before
