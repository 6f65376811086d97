import json
import os
import random
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from bertkit.errors import DamagedFile, UserError
from bertkit.files import atomic
from bertkit.files.atomic import atomic_write, mend_folder, write_folder
from bertkit.files.manifest import MANIFEST
from bertkit.training.checkpoints import list_generations, newest_generation, save_generation


@pytest.fixture
def tmp_path():
    """In memory where there is such a place: the many syncs of these tests wait for no disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


def content(step, width=8):
    tensors = {"model": {"w": torch.full((width,), float(step)), "b": torch.tensor(step)}}
    return {**tensors, "optimizer-rank0": {"m": np.full(3, step)}}, {"step": step, "loss": float("inf"), "r": 0.1}


def save(folder, step, **options):
    return save_generation(folder, step, *content(step), **options)


def is_step(generation, step):
    model = generation.tensors("model")
    assert generation.step == step and generation.values == content(step)[1]
    assert (model["w"] == step).all() and model["b"] == step
    assert generation.tensors("optimizer-rank0")["m"].tolist() == [step] * 3
    return True


def test_what_was_saved_last_is_what_opens(tmp_path):
    assert newest_generation(tmp_path / "checkpoints") is None
    for step in (1, 2, 3, 10, 123_456_789):
        path = save(tmp_path / "checkpoints", step, about={"data": f"hash{step}"})
        found = newest_generation(tmp_path / "checkpoints")
        assert found.path == path and is_step(found, step) and found.about == {"data": f"hash{step}"}
    assert path.name == "step-123456789" and found.versions["torch"]
    assert safetensors.torch.load_file(path / "model.safetensors")["b"] == step
    assert found.stems() == ["model", "optimizer-rank0"]
    with pytest.raises(UserError, match=r"no mdel\.safetensors.*model"):
        found.tensors("mdel")


def test_the_manifest_holds_size_and_hash_of_every_file(tmp_path):
    path = save(tmp_path, 7)
    manifest = json.loads((path / "MANIFEST.json").read_text())
    assert manifest["step"] == 7 and manifest["format"] == 1 and "torch" in manifest["versions"]
    assert manifest["files"].keys() == {file.name for file in path.iterdir()} - {"MANIFEST.json"}


def test_rotation_keeps_two_or_what_is_asked_and_the_named_ones(tmp_path):
    for step in range(1, 8):
        save(tmp_path, step, also_keep=[2])
    assert [path.name[-1] for path in list_generations(tmp_path)] == ["2", "6", "7"]
    for step in range(8, 12):
        save(tmp_path, step, keep=3)
    assert [path.name for path in list_generations(tmp_path)] == ["step-00000009", "step-00000010", "step-00000011"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in list_generations(tmp_path)]
    with pytest.raises(UserError, match="at least 2"):
        save(tmp_path, 12, keep=1)


def test_a_damaged_generation_never_pushes_out_a_sound_one(tmp_path, notes):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "step-00000002" / "state.json").unlink()
    for step in (3, 4):
        save(tmp_path, step)
        sound = [path for path in list_generations(tmp_path) if (path / "state.json").exists()]
        assert len(sound) == 2
    assert len(list_generations(tmp_path)) == 2


def test_saving_the_same_step_again_changes_nothing_or_adds_a_revision(tmp_path):
    first = save(tmp_path, 5)
    before = (first / "MANIFEST.json").stat().st_mtime_ns
    assert save(tmp_path, 5) == first and (first / "MANIFEST.json").stat().st_mtime_ns == before
    tensors, values = content(5)
    second = save_generation(tmp_path, 5, tensors, {**values, "seen": 9})
    assert second.name == "step-00000005.1" and newest_generation(tmp_path).values["seen"] == 9
    assert save_generation(tmp_path, 5, tensors, {**values, "seen": 9}) == second
    (second / "model.safetensors").write_bytes(b"")
    third = save_generation(tmp_path, 5, tensors, {**values, "seen": 9})
    assert third.name == "step-00000005.2" and newest_generation(tmp_path).path == third
    save(tmp_path, 6)
    assert is_step(newest_generation(tmp_path), 6)


def test_a_run_that_forgot_to_resume_cannot_shadow_later_checkpoints(tmp_path, notes):
    save(tmp_path, 50)
    with pytest.raises(UserError, match=r"step-00000050.*--resume"):
        save(tmp_path, 10)
    (tmp_path / "step-00000050" / "state.json").write_text("{}")
    save(tmp_path, 10)  # a damaged one stands in nobody's way
    assert is_step(newest_generation(tmp_path), 10)


def test_state_that_json_would_change_silently_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"values\.optimizer: the key 3"):
        save_generation(tmp_path, 1, {}, {"optimizer": [{3: 1}]})
    with pytest.raises(ValueError, match="plain"):
        save_generation(tmp_path, 1, {"../model": {}}, {})
    assert not list(tmp_path.iterdir())


# Damage (R6)


def damaged_is_found(folder, file, notes):
    """The damaged file is named in a note, and the generation before is used."""
    notes.clear()
    assert is_step(newest_generation(folder), 1)
    assert len(notes) == 1 and str(file) in notes[0] and "step-00000001" in notes[0], notes


def test_one_flipped_bit_anywhere_is_found_and_named(tmp_path, notes):
    save(tmp_path, 1)
    files = sorted(save(tmp_path, 2, about={"config": "ab12", "x": 1.5}).iterdir())
    dice = random.Random(0)
    for turn in range(800):
        file = files[turn % len(files)]
        sound = file.read_bytes()
        broken = bytearray(sound)
        broken[dice.randrange(len(sound))] ^= 1 << dice.randrange(8)
        file.write_bytes(broken)
        damaged_is_found(tmp_path, file, notes)
        file.write_bytes(sound)
    notes.clear()
    assert is_step(newest_generation(tmp_path), 2) and not notes


def test_a_file_cut_or_grown_to_any_length_is_found_and_named(tmp_path, notes):
    save(tmp_path, 1)
    for file in sorted(save(tmp_path, 2).iterdir()):
        sound = file.read_bytes()
        for length in {*range(0, len(sound), 1 + len(sound) // 60), len(sound) - 1}:
            file.write_bytes(sound[:length])
            damaged_is_found(tmp_path, file, notes)
        file.write_bytes(sound + b"\n")
        damaged_is_found(tmp_path, file, notes)
        file.write_bytes(sound)


def test_files_missing_swapped_or_taken_from_elsewhere_are_found_and_named(tmp_path, notes):
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    for file in sorted(path.iterdir()):
        sound = file.read_bytes()
        file.write_bytes((tmp_path / "step-00000001" / file.name).read_bytes())
        damaged_is_found(tmp_path, path, notes)  # an old manifest makes itself known by its step
        file.unlink()
        damaged_is_found(tmp_path, file, notes)
        file.mkdir()
        damaged_is_found(tmp_path, file, notes)
        file.rmdir()
        file.write_bytes(sound)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "step-00000001", path)
    damaged_is_found(tmp_path, path / "MANIFEST.json", notes)
    shutil.rmtree(path)
    path.symlink_to("nowhere")
    damaged_is_found(tmp_path, path, notes)


def test_a_manifest_that_is_an_endless_device_is_found_and_named(tmp_path, notes):
    save(tmp_path, 1)
    manifest = save(tmp_path, 2) / "MANIFEST.json"
    manifest.unlink()
    manifest.symlink_to("/dev/zero")
    damaged_is_found(tmp_path, manifest, notes)


def test_when_every_generation_is_damaged_all_are_named_and_nothing_is_used(tmp_path):
    for step in (1, 2):
        (save(tmp_path, step) / "state.json").write_text("{}")
    with pytest.raises(DamagedFile, match=r"step-00000002/state\.json.*step-00000001/state\.json.*backup"):
        newest_generation(tmp_path)


# Readers while a trainer saves (R8)


def test_a_thousand_reads_during_saves_never_fail(tmp_path):
    save(tmp_path, 1)
    child = os.fork()
    if not child:
        step = 1
        while True:
            step += 1
            save(tmp_path, step)
    try:
        steps = []
        for _ in range(1000):
            found = newest_generation(tmp_path)
            assert is_step(found, found.step)
            steps.append(found.step)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert steps == sorted(steps)
    assert len(set(steps)) > 3  # the writer was busy meanwhile
    save(tmp_path, 10**6)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("call", ["open", "pread"])
def test_a_generation_rotated_away_while_it_is_verified_is_no_damage(tmp_path, notes, monkeypatch, call):
    save(tmp_path, 1)
    real, later = getattr(os, call), iter((2, 3, 4))

    def slow(*arguments, **options):
        for step in later:
            save(tmp_path, step)
        return real(*arguments, **options)

    monkeypatch.setattr(os, call, slow)
    assert is_step(newest_generation(tmp_path), 4) and not notes


def test_an_opened_generation_stays_readable_after_it_was_rotated_out(tmp_path):
    save(tmp_path, 1)
    opened = newest_generation(tmp_path)
    for step in (2, 3, 4):
        save(tmp_path, step)
    assert not opened.path.exists() and is_step(opened, 1)


def test_opened_files_are_closed_when_the_generation_is_forgotten(tmp_path):
    save(tmp_path, 1)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        newest_generation(tmp_path).tensors("model")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# Staging folders, single files and model folders


def test_a_living_saver_is_left_alone_and_a_dead_ones_leftovers_are_swept(tmp_path):
    ready, hold = os.pipe()
    child = os.fork()
    if not child:
        with atomic.staged(tmp_path, "7"):
            os.write(hold, b"x")
            time.sleep(60)
    os.read(ready, 1)
    try:
        save(tmp_path, 1)
        assert (tmp_path / f".tmp-{child}-7").is_dir()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    (tmp_path / ".old-1-step-00000000").mkdir()
    (tmp_path / ".old-1-step-00000000" / "state.json").touch()
    (tmp_path / ".tmp-mine").mkdir()  # not made by us
    save(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-mine", "step-00000001", "step-00000002"]


def test_atomic_write_replaces_text_or_bytes_and_leaves_nothing_else(tmp_path):
    for data in ("é汉\n", b"\0\xff", ""):
        atomic_write(tmp_path / "run.toml", data)
        assert (tmp_path / "run.toml").read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
    with pytest.raises(UserError, match=r"absent/run\.toml could not be written: No such file"):
        atomic_write(tmp_path / "absent" / "run.toml", "x")


def test_write_folder_replaces_its_files_and_leaves_the_others(tmp_path):
    def write(folder, text):
        for name in ("config.json", "model.safetensors", "onnx/model.onnx"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    run = tmp_path / "runs" / "a"
    for text in ("old", "new"):
        write_folder(run, partial(write, text=text))
        (run / "metrics.jsonl").write_text("rows")
    files = {str(path.relative_to(run)): path.read_text() for path in run.rglob("*") if path.is_file()}
    assert sorted(json.loads(files.pop(MANIFEST))["files"]) == ["config.json", "model.safetensors", "onnx/model.onnx"]
    new = {"config.json": "new", "model.safetensors": "new", "onnx/model.onnx": "new"}
    assert files == {**new, "metrics.jsonl": "rows"} and not mend_folder(run)


def test_readers_that_mend_a_model_folder_do_not_disturb_its_writer(tmp_path):
    def write(folder, text="x"):
        for name in ("config.json", "a", "b"):
            (folder / name).write_text(text)

    write_folder(tmp_path, write)
    child = os.fork()
    if not child:
        while mend_folder(tmp_path) in (True, False):
            pass
    try:
        for turn in range(100):
            write_folder(tmp_path, partial(write, text=str(turn)))
            assert {path.read_text() for path in tmp_path.iterdir() if path.name != MANIFEST} == {str(turn)}
        assert os.waitpid(child, os.WNOHANG) == (0, 0)  # the reader met no error either
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_writer_that_fails_leaves_the_model_folder_as_it_was(tmp_path):
    write_folder(tmp_path, lambda folder: (folder / "config.json").write_text("old"))

    def fail(folder):
        (folder / "config.json").write_text("new")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_folder(tmp_path, fail)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", MANIFEST}
    assert (tmp_path / "config.json").read_text() == "old"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file could not be written: File exists"):
        write_folder(tmp_path / "file", fail)
