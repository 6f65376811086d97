"""Where a run may write: reported before the long work, and clearly when the disk refuses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bertkit.errors import UserError
from bertkit.files import atomic
from bertkit.training.distributed import World
from bertkit.training.run_folder import RunFolder


def test_a_folder_that_can_be_made_passes_and_is_not_made_yet(tmp_path: Path) -> None:
    atomic.check_folder(tmp_path / "a/b/c")
    atomic.check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_the_right_to_write_is_refused_with_the_fix(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # a superuser may write everywhere
    with pytest.raises(UserError, match=r"runs/a cannot be written to: Permission denied\. Choose a folder"):
        atomic.check_folder(tmp_path / "runs/a")


def test_a_link_that_leads_nowhere_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="choose another name for the folder"):
        atomic.check_folder(tmp_path / "out")


def test_a_folder_that_holds_something_is_not_new(tmp_path: Path) -> None:
    atomic.check_new_folder(tmp_path)
    (tmp_path / "a").write_text("")
    with pytest.raises(UserError, match="exists and is not empty"):
        atomic.check_new_folder(tmp_path)


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_run_folder_that_the_disk_refuses_is_one_message_with_the_fix(number, tmp_path: Path, monkeypatch) -> None:
    def refuse(path, *mode):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(atomic.calls, "mkdir", refuse)
    with pytest.raises(UserError) as told, RunFolder(tmp_path / "run", World(), resume=False):
        pass
    assert str(tmp_path / "run") in str(told.value) and atomic.FIXES[number] in str(told.value)


def test_a_run_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UserError, match="A file is where a folder"):
        RunFolder(tmp_path / "run", World(), resume=False).__enter__()
