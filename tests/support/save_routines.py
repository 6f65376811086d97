"""The routines that must be safe, each with what is there before and what must open after; and faults to meet."""

import errno
import os
import traceback
from collections import Counter
from contextlib import contextmanager

import torch

from bertkit.files import atomic
from bertkit.files.atomic import atomic_write, write_folder
from bertkit.files.manifest import MANIFEST, read_whole
from bertkit.training.checkpoints import discard_all, list_generations, newest_generation, save_generation

CHANGING = ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir")


def save(folder, step):
    return save_generation(
        folder, step, {"model": {"w": torch.full((5,), float(step)), "b": torch.ones(2)}}, {"n": step}
    )


MODEL = ("config.json", "model.safetensors", "sub/x.json")


def write_model(folder, content="new", names=MODEL):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


def start_checkpoints(folder):
    save(folder, 1)
    save(folder, 2)
    (folder / ".tmp-1-3").mkdir()  # left by an earlier crash
    (folder / ".tmp-1-3" / "state.json").touch()


def start_model(folder):
    """A folder of an early version: it has no manifest."""
    folder.mkdir(parents=True)
    write_model(folder, "old", (*MODEL, "metrics.jsonl"))


def start_listed(folder):
    """A folder with a manifest, and with a file that the next model does not have."""
    write_folder(folder, lambda staging: write_model(staging, "old", (*MODEL, "sub/old.json")))
    (folder / "metrics.jsonl").write_text("old")


def opened_step(folder):
    generation = newest_generation(folder)
    assert generation.values == {"n": generation.step} and (generation.tensors("model")["w"] == generation.step).all()
    return "new" if generation.step == 3 else {2: "old"}[generation.step]


def opened_model(folder):
    """What a reader sees: every file old, or every file new and none of the old ones left."""

    def read():
        contents = {(folder / name).read_text() for name in MODEL}
        assert len(contents) == 1 and (folder / "metrics.jsonl").read_text() == "old"
        assert contents == {"old"} or not (folder / "sub/old.json").exists()
        return contents.pop()

    return read_whole(folder, read)


def save_again(folder):
    save(folder, 4)
    assert newest_generation(folder).step == 4
    assert sorted(folder.iterdir()) == list_generations(folder) and len(list_generations(folder)) == 2


def write_again(folder):
    write_folder(folder, write_model)
    assert opened_model(folder) == "new"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {*MODEL, MANIFEST, "metrics.jsonl"}


def opened_or_gone(folder):
    return "new" if newest_generation(folder) is None else opened_step(folder)


def discard_again(folder):
    discard_all(folder)
    assert not list(folder.iterdir())


def write_one(folder):
    atomic_write(folder / "config.json", "new")


def write_one_again(folder):
    write_one(folder)
    assert (folder / "config.json").read_text() == "new" and len(list(folder.iterdir())) == 4


ROUTINES = {  # what is there, the routine, what opens afterwards, and that the next time works
    "checkpoint": (start_checkpoints, lambda folder: save(folder, 3), opened_step, save_again),
    "finished run": (start_checkpoints, discard_all, opened_or_gone, discard_again),
    "model folder": (start_listed, lambda folder: write_folder(folder, write_model), opened_model, write_again),
    "early folder": (start_model, lambda folder: write_folder(folder, write_model), opened_model, write_again),
    "one file": (start_model, write_one, lambda folder: (folder / "config.json").read_text(), write_one_again),
}


@contextmanager
def fault_at(number, fault):
    """Let the `number`-th changing call (and all after it, if the fault lasts) meet the fault. Yields the counts."""
    real, seen = dict(vars(atomic.calls)), Counter()

    def wrapped(name):
        def call(*arguments):
            seen[name] += 1
            if seen.total() == number or (getattr(fault, "lasting", False) and seen.total() > number):
                fault(number, name, arguments)
            return real[name](*arguments)

        return call

    for name in CHANGING:
        setattr(atomic.calls, name, wrapped(name))
    try:
        yield seen
    finally:
        vars(atomic.calls).update(real)


def in_child(work):
    """Exit code of a forked child that does the work."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def crash(number, name, arguments):
    os._exit(99)


def tear(number, name, arguments):
    if name == "write":
        os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
    os._exit(99)


def fail_with(code, lasting):
    def fail(number, name, arguments):
        raise OSError(code, os.strerror(code))

    fail.lasting = lasting
    return fail


FAULTS = {
    "crash": crash,
    "torn write": tear,
    "EIO": fail_with(errno.EIO, False),
    "ENOSPC": fail_with(errno.ENOSPC, False),
    "disk gone": fail_with(errno.EIO, True),
}
