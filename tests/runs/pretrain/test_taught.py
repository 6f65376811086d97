"""Masked words and a teacher's sentence vectors, learnt in one run."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import bertkit
from bertkit.checkpoint.folder import read_folder
from bertkit.errors import Stopped, UserError
from bertkit.inference import teacher as teachers
from bertkit.runs.pretrain.run import pretrain
from bertkit.training.metrics_log import read_metrics
from tests.support.interrupted import fingerprint, stop_after, stop_and_resume
from tests.support.synthetic import SUBJECTS
from tests.support.toy import likeness, make_model

TEXTS = [f"{one} {two}" for one in SUBJECTS for two in SUBJECTS]


@pytest.fixture
def taught(make, tmp_path):
    """Settings of a run with a teacher: taught(out, **changes)."""
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    model = make_model(tmp_path / "teacher", seed=5, width=64)

    def settings(out: str, **changes):
        given = {"teacher": str(model), "teacher_texts": texts, "teacher_batch": 8, **changes}
        return make("modern-tiny", tmp_path / out, **given)

    return settings


def test_both_losses_are_logged_and_both_fall(taught, tmp_path):
    settings = taught("run", steps=150, loop={"lr": 3e-3}, eval_every=150)
    result = pretrain(settings)
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "vectors_loss" in row]
    first, last = rows[:15], rows[-15:]
    for name in ("words_loss", "vectors_loss"):
        before, after = (np.mean([row[name] for row in part]) for part in (first, last))
        assert after < 0.8 * before, name
    assert rows[-1]["loss"] == pytest.approx(rows[-1]["words_loss"] + rows[-1]["vectors_loss"])
    assert result["mlm_loss"] > 0
    wanted = likeness(bertkit.load(settings.teacher), TEXTS)
    found = likeness(bertkit.load(tmp_path / "run"), TEXTS)
    alone = pretrain(taught("alone", steps=150, loop={"lr": 3e-3}, teacher="", teacher_texts=None))
    assert np.corrcoef(wanted, found)[0, 1] > np.corrcoef(wanted, likeness(bertkit.load(alone["folder"]), TEXTS))[0, 1]


def test_it_resumes_to_the_last_bit_and_asks_the_teacher_once(taught, tmp_path, monkeypatch):
    pretrain(taught("whole"))
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Stopped):
            pretrain(taught("stopped"))
    monkeypatch.setattr(teachers.Predictor, "load", lambda *_: pytest.fail("the teacher was asked again"))
    pretrain(taught("stopped", resume=True))
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")


@pytest.mark.parametrize("texts", [True, False])
def test_a_run_is_not_resumed_with_another_model_in_the_teachers_folder(taught, texts, tmp_path, monkeypatch):
    own = {} if texts else {"teacher_texts": None}
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Stopped):
            pretrain(taught("stopped", **own))
    shutil.rmtree(tmp_path / "teacher")
    make_model(tmp_path / "teacher", seed=6, width=64)
    with pytest.raises(UserError, match=r"not the same teacher .*teacher as when the run was saved"):
        pretrain(taught("stopped", resume=True, **own))


def test_a_half_written_answer_is_asked_for_again(tmp_path):
    ask = teachers.teacher(str(make_model(tmp_path / "teacher", width=64)), tmp_path / "kept")
    first = ask(TEXTS)
    assert np.linalg.norm(first, axis=1) == pytest.approx(1, abs=1e-3)
    (path,) = (tmp_path / "kept").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert np.array_equal(ask(TEXTS), first)


def test_a_teacher_trained_again_under_its_name_is_asked_again(tmp_path):
    def ask(seed):
        shutil.rmtree(tmp_path / "teacher", ignore_errors=True)
        model = make_model(tmp_path / "teacher", seed=seed, width=64)
        return teachers.teacher(str(model), tmp_path / "kept")(TEXTS)

    first, second = ask(1), ask(2)
    assert not np.allclose(first, second, atol=0.01)
    assert np.allclose(second, bertkit.load(tmp_path / "teacher").embed(TEXTS, normalize=True), atol=0.01)


def test_what_cannot_be_taught_is_refused(taught, make, tmp_path):
    with pytest.raises(UserError, match="needs --teacher"):
        pretrain(taught("run", teacher=""))
    with pytest.raises(UserError, match="masked-word pretraining"):
        pretrain(make("gpt-mini", tmp_path / "gpt", teacher="x", teacher_texts=tmp_path / "texts.txt"))


# ---- Pairs read together, with the teacher's cosine.


@pytest.fixture
def taught_pairs(taught, tmp_path):
    """Settings of a run whose texts are pairs: taught_pairs(out, **changes)."""
    pairs = tmp_path / "pairs.csv"
    rows = [f"{one} {two},{two} {three}" for one, two, three in zip(SUBJECTS, SUBJECTS[1:], SUBJECTS[2:])] * 4
    pairs.write_text("\n".join(["text,text_b", *rows]) + "\n")
    return lambda out, **changes: taught(out, **{"teacher_texts": pairs, "teaching": {"likeness": 1.0}, **changes})


def test_a_model_that_reads_both_texts_learns_the_teachers_cosine(taught_pairs, tmp_path):
    pretrain(taught_pairs("run", steps=120, loop={"lr": 3e-3}))
    rows = [row["likeness_loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "likeness_loss" in row]
    assert rows[0] > 0.5  # the cosines are standardised: a constant guess has a loss of 1
    assert np.mean(rows[-10:]) < 0.3
    pretrain(taught_pairs("plain", steps=2, teacher="", teacher_texts=None, teaching={}))
    keys = [set(read_folder(tmp_path / name).model.state_dict()) for name in ("run", "plain")]
    assert keys[0] == keys[1]


def test_pairs_with_a_teachers_cosine_resume_to_the_last_bit(taught_pairs, tmp_path, monkeypatch):
    stop_and_resume(pretrain, taught_pairs, 3, monkeypatch)
    assert fingerprint(tmp_path / "stopped") == fingerprint(tmp_path / "whole")


def test_cosines_of_pairs_need_pairs(taught):
    with pytest.raises(UserError, match=r"texts\.txt has single ones.*column text_b"):
        pretrain(taught("run", teaching={"likeness": 1.0}))
