"""Two hosts with their own addresses (network namespaces), one process each; a process is killed on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def missing() -> str:
    code = f"import sys; sys.path.append({str(BENCHMARKS)!r}); import _namespaces; print(_namespaces.missing())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_a_run_over_two_hosts_that_is_killed_and_restarted_ends_with_the_same_bits() -> None:
    if reason := missing():
        pytest.skip(f"two hosts on one machine need root and iproute2: {reason}")
    words = ("--quick", "--only", "kills", "--kills", "1", "--victim", "worker", "--json")
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "two_hosts.py"), *words],
        capture_output=True, text=True, timeout=280, env=os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)["kills"]
    assert found["kills"] == 1 and found["different"] == 0, found
