"""Threads, memory and devices are set in one place."""

from __future__ import annotations

import os

import pytest
import torch

from bertkit import machine
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from tests.support import folders


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_threads_come_from_the_option_then_the_environment_then_the_cores(threads, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert machine.set_up(2) == 2 == torch.get_num_threads()
    assert machine.set_up() == 1 == torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert machine.set_up() == machine.usable_cores() == torch.get_num_threads()


@pytest.mark.parametrize(("said", "threads_"), [("1", 1), ("2,1", 2), (" 1 ", 1), ("many", 0), ("", 0), ("-3", 0)])
def test_any_omp_num_threads_is_understood_or_passed_over(said: str, threads_: int, threads, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert machine.set_up() == (threads_ or machine.usable_cores())


def test_a_model_that_is_opened_leaves_the_threads_as_they_were_set(threads, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    folders.write(tmp_path, "bert", "BertForMaskedLM")
    for wanted in (1, 3):
        machine.set_up(wanted)
        Predictor.load(tmp_path, "fp32").fill("the [MASK]")
        assert torch.get_num_threads() == wanted == machine.threads()


def test_a_negative_number_of_threads_is_refused() -> None:
    with pytest.raises(UserError, match="threads is -1"):
        machine.set_up(-1)


@pytest.mark.parametrize(
    "quota, cores", [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("", 8), ("x y", 8)]
)
def test_a_containers_quota_cuts_the_cores_down(quota: str, cores: int, tmp_path, monkeypatch) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "Path", lambda _: tmp_path / "cpu.max")
    assert machine.usable_cores() == cores


def test_a_device_the_machine_lacks_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.device_for("auto") == machine.device_for("cpu") == "cpu"
    for name in ("cuda", "tpu"):
        with pytest.raises(UserError, match=f"device is '{name}'.*--device cpu"):
            machine.device_for(name)


def test_peak_memory_is_in_bytes_and_only_grows() -> None:
    before = machine.peak_memory()
    block = bytearray(os.urandom(1)) * (64 << 20)
    assert machine.peak_memory() >= before > 32 << 20
    assert len(block) == 64 << 20
