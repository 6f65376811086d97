import os
import re
import signal
import socket
import time
from contextlib import contextmanager

import pytest

from bertkit.errors import UserError
from bertkit.files.lock import RunLock


@contextmanager
def trainer(folder, also=lambda: None):
    """A child process that holds the lock until it is killed. Yields its process number."""
    ready, say = os.pipe()
    child = os.fork()
    if not child:
        with RunLock(folder):
            also()
            os.write(say, b"x")
            time.sleep(60)
    os.close(say)
    assert os.read(ready, 1)
    os.close(ready)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_second_trainer_is_refused_and_reported_who_where_and_since_when(tmp_path):
    with trainer(tmp_path / "run") as pid, pytest.raises(UserError) as refusal, RunLock(tmp_path / "run"):
        pass
    said = str(refusal.value)
    assert f"process {pid} on {socket.gethostname()}" in said and str(tmp_path / "run") in said
    assert re.search(r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", said) and "choose another folder" in said


def test_a_killed_trainer_holds_nothing(tmp_path):
    for _ in range(5):
        with trainer(tmp_path):
            pass
    with RunLock(tmp_path):
        pass


def test_a_worker_that_outlives_its_killed_trainer_does_not_hold_the_lock(tmp_path):
    def start_worker():
        if not os.fork():
            (tmp_path / "worker").write_text(str(os.getpid()))
            time.sleep(60)
        while not (tmp_path / "worker").exists() or not (tmp_path / "worker").read_text():
            time.sleep(0.01)

    with trainer(tmp_path, start_worker):
        pass
    worker = int((tmp_path / "worker").read_text())
    try:
        os.kill(worker, 0)  # it lives
        with RunLock(tmp_path):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_forked_child_that_leaves_the_block_does_not_free_its_parents_lock(tmp_path):
    with RunLock(tmp_path) as lock:
        child = os.fork()
        if not child:
            lock.__exit__()
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(UserError, match=f"process {os.getpid()}"), RunLock(tmp_path):
            pass


def test_the_lock_is_free_after_the_block_and_folders_do_not_share_it(tmp_path):
    with RunLock(tmp_path / "a"), RunLock(tmp_path / "b"):
        pass
    with pytest.raises(ZeroDivisionError), RunLock(tmp_path / "a"):
        raise ZeroDivisionError
    with RunLock(tmp_path / "a"):
        pass


def test_what_an_earlier_trainer_left_in_the_file_means_nothing(tmp_path):
    for left in ('{"pid": 1, "host": "elsewhere", "since": "long ago"}', "{torn", "[]", ""):
        (tmp_path / ".lock").write_text(left)
        with RunLock(tmp_path):
            (tmp_path / ".lock").write_text(left)  # even when it cannot say who it is, it is held
            with pytest.raises(UserError, match="is in use"), RunLock(tmp_path):
                pass


def test_a_place_where_no_folder_can_be_is_explained(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/\.lock could not be opened"), RunLock(tmp_path / "file"):
        pass
