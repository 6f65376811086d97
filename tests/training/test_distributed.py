"""Two processes are one, seen from outside."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

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
    world.add_gradients(loose)
    run = training(Path(store), world, micro_tokens=100)
    seen = gradients(run)
    steps = [(step.loss, step.losses, step.gradient, step.tokens) for step in run]
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
        },
        f"{out}/{rank}.pt",
    )
    worlds.leave()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_store(tmp_path_factory.mktemp("world"), 40).folder


@pytest.fixture(scope="module")
def ranks(store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port, str(store), str(out)), nprocs=2)
    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


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


def test_a_world_of_one_changes_nothing():
    world = World()
    assert world.is_main and world.sums({"a": 2.0}) == {"a": 2.0} and world.anywhere(True) and not world.anywhere(False)
    parameter = torch.zeros(2, requires_grad=True)
    world.add_gradients([parameter])
    assert parameter.grad is None
    world.wait()
