"""Every system call of a save is a place where the process dies or the disk fails (R3), and disks fill (R5)."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from bertkit.errors import UserError
from bertkit.files import atomic
from bertkit.files.atomic import write_folder
from bertkit.files.manifest import MANIFEST
from bertkit.training.checkpoints import newest_generation, save_generation
from tests.support.save_routines import FAULTS, ROUTINES, crash, fault_at, in_child, save, write_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def disk():
    """A folder in memory where there is one: thousands of syncs are the point here, not their cost."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("routine", ROUTINES)
def test_at_every_system_call_the_old_or_the_new_survives_and_the_next_save_works(disk, notes, routine, fault):
    start, run, opened, again = ROUTINES[routine]
    start(disk / "start")
    shutil.copytree(disk / "start", disk / "clean")
    with fault_at(0, None) as seen:
        run(disk / "clean")
    assert opened(disk / "clean") == "new" and seen.total() >= 8
    for number in range(1, seen.total() + 1):
        folder = disk / str(number)
        shutil.copytree(disk / "start", folder)
        is_done = False
        with fault_at(number, FAULTS[fault]):
            if fault in ("crash", "torn write"):
                assert in_child(lambda folder=folder: run(folder)) == 99
            else:
                try:
                    run(folder)
                    is_done = True
                except UserError as error:
                    assert re.search("could not be (saved|written)|half-written", str(error))
                    assert "disk" in str(error)  # the fix
        assert opened(folder) == "new" or not is_done
        again(folder)
        shutil.rmtree(folder)


def test_a_fresh_model_folder_has_no_config_before_it_has_everything_else(disk, notes):
    for number in range(1, 40):
        folder = disk / str(number)
        with fault_at(number, crash):
            is_cut = in_child(lambda folder=folder: write_folder(folder, write_model)) == 99
        if (folder / "config.json").exists():
            assert (folder / "model.safetensors").exists() and (folder / "sub" / "x.json").exists()
        write_folder(folder, write_model)  # mends first what was left
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "sub", MANIFEST}
    assert not is_cut


def test_the_crash_points_are_all_the_changing_system_calls_that_strace_sees(disk):
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    script = (
        "import sys, json; from pathlib import Path\n"
        "from tests.support import save_routines as t\n"
        "folder = Path(sys.argv[1]) / 'saves'; folder.mkdir()\n"
        "with t.fault_at(0, None) as seen:\n    for step in range(4): t.save(folder, step)\n"
        "print(json.dumps(seen))"
    )
    trace = "trace=mkdir,mkdirat,write,pwrite64,writev,fsync,fdatasync,/rename,/unlink,rmdir,/truncate,openat"
    command = ["strace", "-f", "-y", "-o", str(disk / "trace"), "-e", trace, sys.executable, "-c", script]
    done = subprocess.run([*command, str(disk)], cwd=ROOT, capture_output=True, text=True)
    if "ptrace" in done.stderr:
        pytest.skip("this machine does not allow tracing")
    ours = json.loads(done.stdout)
    theirs = Counter()
    for line in (disk / "trace").read_text().splitlines():
        call = re.match(r"\d+ +(\w+)\(", line)
        if call and (f"{disk}/saves/" in line or f"<{disk}/saves>" in line):
            kind = "rmdir" if "AT_REMOVEDIR" in line else re.sub(r"(at2?|64)$", "", call[1])
            theirs["open"] += kind == "open" and "O_CREAT" in line
            theirs[kind] += kind != "open"
    assert ours.pop("open") > 12  # those of folders change nothing, and fail all the same in the test above
    assert +theirs == Counter({**ours, "open": 4 * 3})  # state, model and manifest of four saves


# Full disks (R5)


def test_too_little_space_is_reported_in_bytes_before_anything_is_written(disk, monkeypatch):
    save(disk, 1)
    monkeypatch.setattr(atomic.calls, "free_bytes", lambda folder: 12_345)
    with pytest.raises(UserError, match=r"needs 24,576 bytes and 12,345 are free\. Free some space"):
        save(disk, 2)
    assert [path.name for path in disk.iterdir()] == ["step-00000001"]


def test_a_limit_on_the_size_of_files_is_explained_and_the_checkpoint_before_stays(disk):
    save(disk, 1)

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(UserError, match=r"step 2 could not be saved: File too large.*needs .*ulimit -f"):
            save_generation(disk, 2, {"model": {"w": torch.zeros(100_000)}}, {})

    assert in_child(limited) == 0
    assert [path.name for path in disk.iterdir()] == ["step-00000001"] and newest_generation(disk).step == 1
    assert save(disk, 2).exists()


FULL_DISK = """
import sys
import pytest, torch
from tests.support import save_routines as t
from bertkit.errors import UserError
from pathlib import Path
disk = Path(sys.argv[1])
t.save(disk, 1)
big = {"model": {"w": torch.zeros(300_000)}}
def refused(pattern, work):
    with pytest.raises(UserError, match=pattern): work()
    assert [path.name for path in disk.iterdir()] == ["step-00000001"] and t.newest_generation(disk).step == 1
refused("needs 1,2.* bytes and .* are free", lambda: t.save_generation(disk, 2, big, {}))
t.atomic.calls.free_bytes, honest = lambda folder: 10**9, t.atomic.calls.free_bytes
refused("could not be saved: No space left.*Free some space", lambda: t.save_generation(disk, 2, big, {}))
import safetensors.torch
fill = lambda folder: safetensors.torch.save_file(big["model"], folder / "model.safetensors")
refused("could not be written: No space left.*Free some space", lambda: t.write_folder(disk, fill))
refused("could not be written: No space left", lambda: t.atomic_write(disk / "x", b"0" * 2_000_000))
t.atomic.calls.free_bytes = honest
t.save(disk, 2)
assert t.newest_generation(disk).step == 2
print("done")
"""


def test_a_disk_that_is_really_full_is_explained_and_works_again_afterwards(tmp_path):
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"', str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not allow a file system of one's own")
    python = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run([*mount, *python], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
