"""Two processes are one, seen from outside."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bertkit.errors import UserError
from bertkit.training import distributed as worlds
from bertkit.training.distributed import World
from tests.support import synthetic
from tests.support.losses import gradients, training


def work(rank: int, port: int, store: str, out: str) -> None:
    """One of two ranks: sums, votes, and three steps; what it saw goes to a file."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    world = worlds.join("cpu")
    worlds.BUCKET = 1000  # many messages
    loose = [torch.zeros(3, requires_grad=True), torch.zeros(2, requires_grad=True)]
    loose[0].grad = torch.arange(3.0) + rank
    worlds.Exchange(loose, world).finish()
    run = training(Path(store), world, micro_tokens=100)
    seen = gradients(run)
    steps = [(step.loss, step.losses, step.gradient, step.tokens) for step in run]
    exchanged = {mode: exchanged_by(mode, store, world) for mode in ("during", "after", "bf16")}
    world.check_same({"checkpoint": 4})
    with pytest.raises(UserError) as unequal:
        world.check_same({"store": "abc", "checkpoint": 4 if rank == 0 else None})
    world.wait()
    torch.save(
        {
            "world": (world.rank, world.size, world.is_main),
            "sums": world.sums({"b": 1.0 + rank, "a": 10.0}),
            "votes": [world.anywhere(rank == 1), world.anywhere(False)],
            "loose": [p.grad for p in loose],
            "gradients": seen,
            "steps": steps,
            "weights": run.tensors()["weights"],
            "exchanged": exchanged,
            "unequal": str(unequal.value),
        },
        f"{out}/{rank}.pt",
    )
    world.wait()
    if rank == 1:
        os._exit(0)  # without a word to the other
    with pytest.raises(UserError) as lost:
        world.sums({"a": 1.0})
    Path(out, "lost").write_text(str(lost.value))
    os._exit(0)


def exchanged_by(mode: str, store: str, world: World) -> dict:
    """The weights after three steps, and how many buckets were sent before the backward passes ended."""
    run = training(Path(store), world, micro_tokens=100)
    run.exchange = worlds.Exchange(run.parameters, world, "bf16" if mode == "bf16" else "fp32")
    run.exchange.overlaps = mode != "after"
    early, finish = [], run.exchange.finish

    def counted() -> None:
        early.append(len(run.exchange._sent))
        finish()

    run.exchange.finish = counted
    assert len(list(run)) == 3
    return {"weights": run.tensors()["weights"], "early": early}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_store(tmp_path_factory.mktemp("world"), 40).folder


@pytest.fixture(scope="module")
def ranks(store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    out = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (free_port(), str(store), str(out)), nprocs=2)
    seen = [torch.load(out / f"{rank}.pt") for rank in range(2)]
    return [rank | {"lost": (out / "lost").read_text()} for rank in seen]


def test_both_ranks_know_their_place_and_one_speaks(ranks):
    assert [rank["world"] for rank in ranks] == [(0, 2, True), (1, 2, False)]


def test_sums_and_votes_are_over_all_ranks(ranks):
    for rank in ranks:
        assert rank["sums"] == {"a": 20.0, "b": 3.0}
        assert rank["votes"] == [True, False]


def test_gradients_are_added_up_and_an_absent_one_counts_as_zero(ranks):
    for rank in ranks:
        assert [gradient.tolist() for gradient in rank["loose"]] == [[1.0, 3.0, 5.0], [0.0, 0.0]]


def test_two_ranks_have_the_gradients_of_one_process(ranks, store):
    alone = training(store, World())
    seen = gradients(alone)
    steps = list(alone)
    for rank in ranks:
        for name, gradient in seen[0].items():
            assert (rank["gradients"][0][name] - gradient).norm() <= 1e-6 * gradient.norm(), name
        for step, (loss, losses, length, tokens) in zip(steps, rank["steps"]):
            assert loss == pytest.approx(step.loss, rel=1e-5) and losses == pytest.approx(step.losses, rel=1e-5)
            assert length == pytest.approx(step.gradient, rel=1e-4) and tokens == step.tokens


def test_both_ranks_end_with_the_same_weights_to_the_last_bit(ranks):
    first, second = (rank["weights"] for rank in ranks)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_gradients_sent_during_the_backward_pass_give_the_same_bits_as_after_it(ranks):
    for rank in ranks:
        during, after = rank["exchanged"]["during"], rank["exchanged"]["after"]
        assert min(during["early"]) > 0 and max(after["early"]) == 0
        assert all(torch.equal(during["weights"][name], weight) for name, weight in after["weights"].items())


def test_gradients_exchanged_in_16_bits_are_near_and_the_same_on_all_ranks(ranks):
    first, second = (rank["exchanged"]["bf16"]["weights"] for rank in ranks)
    exact = ranks[0]["exchanged"]["during"]["weights"]
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], exact[name]) for name in first)
    assert all((first[name] - exact[name]).norm() <= 0.02 * exact[name].norm() + 1e-3 for name in first)


def test_ranks_that_see_different_checkpoints_or_data_stop_and_say_which(ranks):
    for rank in ranks:
        assert "Process 1 has another checkpoint than process 0: None instead of 4" in rank["unequal"]
        assert "on a disk that they share" in rank["unequal"]


def test_a_rank_whose_peer_is_gone_says_so_instead_of_a_traceback(ranks):
    assert "connection to another process was lost" in ranks[0]["lost"] and "--resume" in ranks[0]["lost"]


def wait_for_a_busy_peer(rank: int, port: int, out: str) -> None:
    """One of two ranks, of which the first works for longer than collectives wait."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group = partial(dist.init_process_group, timeout=timedelta(seconds=2))
    world = worlds.join("cpu")
    time.sleep(4 * world.is_main)
    world.wait()
    Path(out, f"waited-{rank}").touch()


def test_a_rank_may_work_alone_for_longer_than_collectives_wait(tmp_path):
    mp.spawn(wait_for_a_busy_peer, (free_port(), str(tmp_path)), nprocs=2)
    assert len(list(tmp_path.glob("waited-*"))) == 2


def meet(store: dist.Store, size: int, late: int) -> set[str]:
    """The names that so many ranks agree on when one of them is late."""

    def come(rank: int) -> str:
        time.sleep(0.3 * (rank == late))
        return worlds._meeting(store, rank, size)

    with ThreadPoolExecutor(size) as pool:
        return set(pool.map(come, range(size)))


@pytest.mark.parametrize("late", [0, 1, 2])
def test_ranks_that_start_again_never_meet_those_that_are_gone(late):
    store = dist.HashStore()
    first, second = meet(store, 3, late), meet(store, 3, late)
    assert len(first) == len(second) == 1 and first != second


def test_a_rank_invited_by_one_that_died_is_invited_again(monkeypatch):
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(worlds, "PATIENCE", 30.0)
        guest = pool.submit(worlds._meeting, store, 1, 2)
        while not store.check(["here/1"]):
            time.sleep(0.01)
        store.set(f"invited/{store.get('here/1').decode()}", "of-one-that-died")
        time.sleep(0.1)
        assert pool.submit(worlds._meeting, store, 0, 2).result() == guest.result() != "of-one-that-died"


def test_ranks_that_never_all_come_are_reported_what_to_check(monkeypatch):
    monkeypatch.setattr(worlds, "PATIENCE", 0.1)
    with pytest.raises(UserError, match="--nnodes"):
        worlds._meeting(dist.HashStore(), 0, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a child process when its parent dies")
def test_a_worker_ends_when_torchrun_is_killed():
    joined = "from bertkit.training import distributed as d; d._end_with_torchrun(); print(1, flush=True)"
    worker = f"{joined}; import time; time.sleep(60)"
    start = f"p = subprocess.Popen([sys.executable, '-c', {worker!r}])"
    parent = f"import subprocess, sys; {start}; print(p.pid, flush=True); p.wait()"
    torchrun = subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, env=os.environ | {"TORCHELASTIC_RUN_ID": "x"}
    )
    child = int(torchrun.stdout.readline())
    assert torchrun.stdout.readline().strip() == "1"
    torchrun.kill()
    torchrun.wait()
    for _ in range(2000):
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2].startswith("Z"):
                return
            time.sleep(0.05)
            continue
        return
    os.kill(child, signal.SIGKILL)
    pytest.fail("the worker outlived torchrun")


def test_a_world_of_one_changes_nothing():
    world = World()
    assert world.is_main and world.sums({"a": 2.0}) == {"a": 2.0} and world.anywhere(True) and not world.anywhere(False)
    parameter = torch.zeros(2, requires_grad=True)
    worlds.Exchange([parameter], world).finish()
    assert parameter.grad is None
    world.wait()
