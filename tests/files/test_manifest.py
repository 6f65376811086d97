"""A folder is opened as it was before a write or after it, with every file as it was written, or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bertkit
from bertkit.checkpoint.folder import Folder, write_folder
from bertkit.checkpoint.locate import EMBEDDED, embedded
from bertkit.commands import doctor
from bertkit.errors import DamagedFile, UserError
from bertkit.files import atomic, manifest
from bertkit.files.manifest import MANIFEST, accept, read_manifest, read_whole
from bertkit.model.heads import Model
from bertkit.settings.model import Config
from tests.support import folders
from tests.support.save_routines import fault_at, in_child

TEXT = "the cat sat on the mat"
LABELS = {"old": ("ham", "spam"), "new": ("spam", "ham", "neither")}


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], None]:
    """Writes a classifier of the old or the new kind, which differ in labels, weights and what they answer."""
    from bertkit.text.tokenizer import Tokenizer

    place = tmp_path_factory.mktemp("tokenizer")
    folders.wordpiece().save(str(place / "tokenizer.json"))
    tokenizer = Tokenizer.load(place)

    def write_model(path: Path, which: str) -> None:
        labels = LABELS[which]
        torch.manual_seed(len(labels))
        shape = Config(vocabulary=tokenizer.size, width=16, depth=1, heads=2, inner=32, max_tokens=32, init_std=0.5)
        about = {"task": "classify", "labels": list(labels), "options": {}}
        folder = Folder(Model(shape, {"text": len(labels)}), tokenizer, "bert", labels, about, name=which)
        atomic.write_folder(path, lambda staging: write_folder(staging, folder))

    return write_model


@pytest.fixture(scope="module")
def answers(write, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    place = tmp_path_factory.mktemp("answers")
    for which in LABELS:
        write(place / which, which)
    return {which: answer(place / which) for which in LABELS}


def answer(folder: Path) -> dict:
    return bertkit.load(str(folder), precision="fp32").predict([TEXT])[0]


@pytest.fixture
def folder(write, tmp_path: Path) -> Path:
    write(tmp_path / "model", "old")
    return tmp_path / "model"


def flip(path: Path, at: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_an_overwrite_killed_between_two_renames_never_answers_with_the_new_labels_over_the_old_weights(
    write, answers, tmp_path, notes
):
    write(tmp_path / "start", "old")
    shutil.copytree(tmp_path / "start", tmp_path / "clean")
    with fault_at(0, None) as seen:
        write(tmp_path / "clean", "new")
    outcomes = []
    for number in range(seen.total() - seen["rmdir"] - 2 * seen["rename"], seen.total() + 1, 2):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "start", folder)
        with fault_at(number, lambda *_: os._exit(99)):
            assert in_child(lambda folder=folder: write(folder, "new")) == 99
        outcomes.append(answer(folder))
        assert outcomes[-1] in answers.values()
    assert answers["new"] in outcomes


def test_a_reader_that_opens_a_folder_while_it_is_replaced_sees_the_old_or_the_new(write, answers, folder, notes):
    child = os.fork()
    if not child:
        try:
            while True:
                for which in LABELS:
                    write(folder, which)
        finally:
            os._exit(1)
    try:
        given = [answer(folder) for _ in range(15)]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert all(one in answers.values() for one in given)
    assert answer(folder) in answers.values()


def test_a_flipped_byte_in_any_file_that_decides_an_answer_is_named_with_the_fix(folder):
    files = sorted(read_manifest(folder) or {})
    assert {"model.safetensors", "config.json", "bertkit.json", "tokenizer.json", "vocab.txt"} < set(files)
    for name in [*files, MANIFEST]:
        flip(folder / name)
        with pytest.raises(DamagedFile, match=rf"{Path(name).name} .*bertkit doctor .* --accept"):
            bertkit.load(str(folder))
        flip(folder / name)
    bertkit.load(str(folder))


def test_without_verification_only_sizes_are_compared(folder):
    flip(folder / "model.safetensors")
    bertkit.load(str(folder), verify=False)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b" ")
    with pytest.raises(DamagedFile, match=r"model\.safetensors is damaged.* bytes instead of"):
        bertkit.load(str(folder), verify=False)


def test_a_card_or_a_report_that_somebody_edits_is_not_damage(folder):
    (folder / "README.md").write_text("My model.")
    (folder / "report.html").write_text("<p>mine")
    bertkit.load(str(folder))


def test_a_file_changed_on_purpose_is_accepted_by_doctor(folder):
    folders.change(folder, "bertkit.json", labels=["ja", "nein"])
    with pytest.raises(DamagedFile, match=r"bertkit\.json"):
        bertkit.load(str(folder))
    with pytest.raises(UserError, match=r"bertkit\.json"):
        doctor.run(doctor.Settings(files=(folder,)))
    result = doctor.run(doctor.Settings(files=(folder,), accept=True))
    assert "all sound" in doctor.lines(result)[0] and answer(folder)["label"] in ("ja", "nein")


def test_doctor_names_every_damaged_file_of_a_folder_at_once(folder):
    flip(folder / "model.safetensors")
    (folder / "vocab.txt").unlink()
    with pytest.raises(UserError) as told:
        doctor.run(doctor.Settings(files=(folder,)))
    assert "model.safetensors is damaged or was changed" in str(told.value) and "vocab.txt is missing" in str(
        told.value
    )


def test_doctor_has_nothing_to_accept_in_a_folder_without_a_manifest(folder):
    (folder / MANIFEST).unlink()
    assert doctor.lines(doctor.run(doctor.Settings(files=(folder,))))[0].endswith("to check it by")
    with pytest.raises(UserError, match="nothing to accept"):
        doctor.run(doctor.Settings(files=(folder,), accept=True))


def test_files_of_the_replaced_model_do_not_stay_behind(write, folder):
    atomic.write_folder(folder, lambda staging: (staging / "crf.safetensors").write_text("x"), add=True)
    assert "crf.safetensors" in (read_manifest(folder) or {}) and "config.json" in (read_manifest(folder) or {})
    (folder / "metrics.jsonl").write_text("rows")
    write(folder, "new")
    assert not (folder / "crf.safetensors").exists() and (folder / "metrics.jsonl").exists()


def half_written(write, folder: Path) -> None:
    """A new model that is committed, and of which no file has been moved yet."""
    write(folder.with_name("new"), "new")
    shutil.copytree(folder.with_name("new"), folder / manifest.SWAP)


def test_a_half_written_folder_on_a_disk_that_cannot_be_written_is_refused(write, folder, monkeypatch):
    half_written(write, folder)

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(atomic.calls, "rename", refuse)
    monkeypatch.setattr(manifest, "READS", 3)
    with pytest.raises(UserError, match="left half-written and cannot be finished without write permission"):
        bertkit.load(str(folder))


def test_a_half_written_folder_waits_for_whoever_is_finishing_it(write, answers, folder):
    half_written(write, folder)
    child = os.fork()
    if not child:
        with atomic.alone(folder):
            time.sleep(0.3)
        os._exit(0)
    time.sleep(0.1)
    assert answer(folder) == answers["new"]
    os.waitpid(child, 0)


def test_a_reader_of_a_folder_that_is_replaced_again_and_again_is_not_turned_away(write, answers, folder):
    ours, theirs = socket.socketpair()
    if not (writer := os.fork()):
        try:
            ours.close()
            while which := theirs.recv(3):
                write(folder, which.decode())
                theirs.send(b"done")
        finally:
            os._exit(0)
    theirs.close()
    ours.settimeout(60)
    reads = 0

    def read() -> dict:
        nonlocal reads
        reads += 1
        ours.send((b"new", b"old")[reads % 2])
        if reads <= manifest.PATIENT:
            ours.recv(4)  # the writer is always faster …
        else:
            time.sleep(0.3)  # … until it has to wait
        return read_whole(folder, lambda: answer(folder))  # which opens the folder again, inside

    assert read_whole(folder, read) in answers.values() and reads == manifest.PATIENT + 1
    assert ours.recv(4) == b"done"
    ours.close()
    os.waitpid(writer, 0)
    assert answer(folder) == answers["old" if reads % 2 else "new"]  # what waited was written


def test_a_write_left_half_done_by_somebody_else_moves_and_removes_nothing_outside_the_folder(folder, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "mine").write_text("mine")
    (folder / "sub").symlink_to(victim)
    (folder / manifest.SWAP / "sub").mkdir(parents=True)
    (folder / manifest.SWAP / "sub" / "mine").write_text("theirs")
    (folder / MANIFEST).write_bytes(manifest.of_files({"../victim/mine": {"bytes": 4, "sha256": "0"}}))
    (folder / manifest.SWAP / MANIFEST).write_bytes(manifest.of_files({}))
    with pytest.raises(DamagedFile, match=r"leads out of"):
        bertkit.load(str(folder))
    (folder / "sub").unlink()
    bertkit.load(str(folder))
    assert (victim / "mine").read_text() == "mine"


def test_whatever_reading_stumbles_over_is_damage_of_the_folder(tmp_path):
    atomic.write_folder(tmp_path / "outer", lambda staging: (staging / "a.json").write_text("{}"))
    with pytest.raises(DamagedFile, match=r"outer: the thing is damaged \(.*by zero\)"):
        read_whole(tmp_path / "outer", lambda: 1 // 0, what="thing")
    with pytest.raises(UserError, match=r"outer holds no thing: b is missing"):
        read_whole(tmp_path / "outer", lambda: (tmp_path / "outer" / "b").read_text(), what="thing")


def test_accepting_a_damaged_manifest_lists_what_is_there(folder):
    listed = read_manifest(folder)
    (folder / MANIFEST).write_text("{")
    assert accept(folder) == len(listed or {}) and read_manifest(folder) == listed


@pytest.mark.parametrize("name", embedded())
def test_the_embedded_models_are_as_they_were_released(name):
    entries = read_manifest(EMBEDDED / name)
    assert entries and "model.safetensors" in entries
    manifest.check(EMBEDDED / name, entries)
