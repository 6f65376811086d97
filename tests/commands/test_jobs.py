"""Rows computed by workers: the same bytes as by the plain command, also after a worker or the driver was killed."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import bertkit
from bertkit.commands import embed, index, jobs, predict, prepare
from bertkit.commands.jobs import Job, Rows
from bertkit.data.prepare.write_store import StoreWriter
from bertkit.errors import UserError
from tests.support import small_models

WORDS = [
    "please",
    "call",
    "me",
    "about",
    "the",
    "free",
    "prize",
    "now",
    "and",
    "bring",
    "tea",
    "home",
    "after",
    "work",
    "on",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny classifier."""
    from bertkit.checkpoint.folder import write_folder

    folder = tmp_path_factory.mktemp("models") / "labels"
    write_folder(folder, small_models.folder("labels", small_models.tokenizer()))
    return str(folder)


def table(path, count):
    rows = [{"n": n, "text": " ".join(WORDS[(n * k) % 15] for k in range(1, 3 + n % 9))} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_rows_are_a_function_of_columns_and_travel_without_the_model(model):
    texts = ["free prize", "call me tonight", "tea"]
    rows = pickle.loads(pickle.dumps(Rows("predict", model)))  # noqa: S301
    made = rows({"id": np.array([1, 2, 3]), "text": texts})
    answers = bertkit.load(model).predict(texts)
    assert made["id"] == [1, 2, 3] and made["label"] == [answer["label"] for answer in answers]
    assert made["score_good"] == pytest.approx([answer["scores"]["good"] for answer in answers])
    opened = rows.worker
    rows({"text": ["again"]})
    assert rows.worker is opened and pickle.loads(pickle.dumps(rows))._worker is None  # noqa: S301
    vectors = Rows("embed", "en")({"text": texts})["vector"]
    assert np.array(vectors) == pytest.approx(np.asarray(bertkit.load("en").embed(texts)), abs=1e-5)
    with pytest.raises(UserError, match="Rows are for predict and embed"):
        Rows("fill", model)


def test_a_job_needs_a_file_to_continue_beside(model, tmp_path):
    with pytest.raises(UserError, match="--on ray needs a file and --out"):
        predict.run(predict.Settings(model=model, file=str(table(tmp_path / "a.jsonl", 2)), on="ray"))


@pytest.fixture(scope="module")
def ray():
    """Ray on two cores, started once."""
    ray = pytest.importorskip("ray", reason="needs ray (the ray extra)")
    os.environ.update(jobs.PATIENCE)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("bertkit.inference.predictor.AT_ONCE", 8)


@pytest.mark.slow
def test_the_same_bytes_by_ray_whatever_is_killed(model, tmp_path, ray, small_chunks, monkeypatch):
    path = str(table(tmp_path / "a.jsonl", 100))
    common = {"model": model, "file": path, "threads": 1}
    for kind in ("jsonl", "csv"):
        predict.run(predict.Settings(**common, out=tmp_path / f"plain.{kind}"))
    real, written = Job.place, []

    def killed_after_five(job: Job, number: int, chunk: list) -> Path:
        written.append(number)
        if len(written) == 6:
            raise KeyboardInterrupt
        return real(job, number, chunk)

    monkeypatch.setattr(Job, "place", killed_after_five)
    with pytest.raises(KeyboardInterrupt):
        predict.run(predict.Settings(**common, out=tmp_path / "ray.jsonl", engine="ray"))
    kept = list((tmp_path / "ray.jsonl.job").glob("0*"))
    assert not (tmp_path / "ray.jsonl").exists()
    monkeypatch.setattr(Job, "place", real)

    def kill_a_worker() -> None:
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and "ray::_Remote" in (each / "cmdline").read_text(errors="replace"):
                os.kill(int(each.name), signal.SIGKILL)
                return

    killer = threading.Timer(1.0, kill_a_worker)
    killer.start()
    predict.run(predict.Settings(**common, out=tmp_path / "ray.jsonl", on="ray", workers=2))
    predict.run(predict.Settings(**common, out=tmp_path / "ray.csv", on="ray", workers=2))
    killer.join()
    for kind in ("jsonl", "csv"):
        assert (tmp_path / f"ray.{kind}").read_bytes() == (tmp_path / f"plain.{kind}").read_bytes()
    assert len(kept) < 13 and not (tmp_path / "ray.jsonl.job").exists()


@pytest.mark.slow
def test_rows_without_an_answer_are_all_listed_and_the_others_kept(model, tmp_path, ray, small_chunks, notes):
    path = table(tmp_path / "a.jsonl", 40)
    lines = path.read_text("utf-8").splitlines()
    long = json.dumps({"n": -1, "text": "tea " * 900})
    path.write_text("\n".join([*lines[:10], long, *lines[11:30], long, *lines[31:]]) + "\n", "utf-8")
    settings = embed.Settings(model=model, file=path, out=tmp_path / "v.npy", on="ray", threads=1, on_long="error")
    with pytest.raises(UserError, match=r"2 rows have no answer; .*v\.npy\.bad\.jsonl lists them.*line 11"):
        embed.run(settings)
    errors = [json.loads(line)["error"] for line in (tmp_path / "v.npy.bad.jsonl").read_text("utf-8").splitlines()]
    assert ["line 11" in errors[0], "line 31" in errors[1]] == [True, True]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    embed.run(settings)
    assert any("3 chunks were computed before" in note for note in notes)
    embed.run(embed.Settings(model=model, file=path, out=tmp_path / "plain.npy", threads=1, on_long="error"))
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "plain.npy").read_bytes()
    assert not (tmp_path / "v.npy.bad.jsonl").exists()


@pytest.mark.slow
def test_a_store_and_an_index_are_the_same_files_by_ray(tmp_path, ray, small_chunks, monkeypatch):
    monkeypatch.setattr("bertkit.retrieval.segments.AT_ONCE", 8)
    monkeypatch.setattr("bertkit.data.prepare.run.CHUNK", 500)
    rows = table(tmp_path / "a.jsonl", 100)
    common = {"texts": (rows,), "tokenizer": "en"}
    prepare.run(prepare.Settings(**common, out=tmp_path / "plain", workers=1))
    real = StoreWriter.add

    def killed_after_three(writer: StoreWriter, *given: object) -> None:
        if writer.progress.read.get("documents", 0) > 20:
            raise KeyboardInterrupt
        real(writer, *given)

    monkeypatch.setattr(StoreWriter, "add", killed_after_three)
    with pytest.raises(KeyboardInterrupt):
        prepare.run(prepare.Settings(**common, out=tmp_path / "ray", on="ray", workers=2))
    monkeypatch.setattr(StoreWriter, "add", real)
    prepare.run(prepare.Settings(**common, out=tmp_path / "ray", on="ray", workers=2))
    assert files_of(tmp_path / "ray", but="report.txt") == files_of(tmp_path / "plain", but="report.txt")

    common = {"files": (rows,), "model": "en", "threads": 1}
    index.run(index.Settings(**common, out=tmp_path / "plain-index"))
    index.run(index.Settings(**common, out=tmp_path / "ray-index", on="ray", workers=2))
    own = ("run.toml", "MANIFEST.json")  # the settings name the folder, and the manifest has their digest
    assert files_of(tmp_path / "ray-index", own) == files_of(tmp_path / "plain-index", own)
    assert not (tmp_path / "ray-index.job").exists()


def files_of(folder: Path, but: str | tuple[str, ...]) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in but
    }


def test_an_index_that_grows_is_not_made_by_ray(tmp_path):
    settings = index.Settings(files=(table(tmp_path / "a.jsonl", 3),), out=tmp_path / "x", add=True, on="ray")
    with pytest.raises(UserError, match="--on ray makes new indexes in folders"):
        index.run(settings)
