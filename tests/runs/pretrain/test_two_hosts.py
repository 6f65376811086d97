"""Two hosts with their own addresses (network namespaces), one of them killed on the way; and a thousand, simulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bertkit.model.heads import Model
from bertkit.objectives.masked import Masked
from bertkit.settings.model import Config

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # last: benchmarks/tokenize.py must not stand before Python's own

import _namespaces  # noqa: E402
import scale  # noqa: E402


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces exist only on Linux")
def test_a_run_over_two_hosts_that_is_killed_and_restarted_ends_with_the_same_bits() -> None:
    if reason := _namespaces.missing():
        pytest.skip(f"two hosts on one machine need root and iproute2: {reason}")
    words = ("--quick", "--only", "kills", "--kills", "1", "--victim", "worker", "--json")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "two_hosts.py"), *words],
        capture_output=True, text=True, timeout=840, env=os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)["kills"]
    assert found["kills"] == 1 and found["different"] == 0, found


def test_a_ring_of_two_sends_every_number_once_and_a_large_one_twice() -> None:
    numbers = 10**8
    once = numbers * 4 * 8 / (1e9 * scale.TCP)
    assert scale.Cluster(2, gbit=1, ms=0).send(numbers) == pytest.approx(once)
    assert scale.Cluster(1000, gbit=1, ms=0).send(numbers) == pytest.approx(2 * once, rel=0.01)
    assert scale.Cluster(1000, gbit=1, ms=1).send(numbers) == pytest.approx(2 * once + 1.998, rel=0.01)


@pytest.mark.parametrize("name", sorted(scale.SIZES))
def test_the_simulated_models_have_berts_numbers_of_parameters_and_send_each_once(name: str) -> None:
    depth, width = {"mini": (4, 256), "small": (4, 512), "base": (12, 768)}[name]
    config = Config(vocabulary=30528, width=width, depth=depth, heads=width // 64, inner=4 * width)
    with torch.device("meta"):
        objective = Masked(Model(config, {"mlm": 0, "next_sentence": 2}))
    sizes = scale.SIZES[name]
    assert sizes.all == pytest.approx(sum(parameter.numel() for parameter in objective.parameters()), rel=0.002)
    assert sum(numbers for numbers, _ in sizes.buckets()) == sizes.all


def test_a_step_takes_at_least_its_computing_and_at_most_its_exchange_on_top() -> None:
    still = scale.Cluster(8, gbit=1, spread=0.0)
    sizes = scale.SIZES["base"]
    seconds = still.step(sizes, 30.0, 20.0, np.random.default_rng(0))
    assert 30.0 < seconds < 30.0 + still.exchange(sizes)


def test_the_page_shows_what_the_script_prints() -> None:
    page = (BENCHMARKS.parent / "docs/scale.md").read_text("utf-8")
    for table in (scale.costs(), scale.rows(), scale.clusters(), scale.limits(), scale.check()):
        assert "\n".join(table) in page
