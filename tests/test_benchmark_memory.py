"""The benchmarks of memory measure the command they start, and nothing of the process that starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # last: benchmarks/tokenize.py must not stand before Python's own

from _harness import peak_of  # noqa: E402

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
HOLDS = "import time; held = bytearray(150 << 20); time.sleep(0.4); del held; time.sleep(0.3)"


def test_the_peak_is_what_the_command_held_at_most() -> None:
    here = bytearray(400 << 20)  # of ours: must not be counted
    small, large = (peak_of([sys.executable, "-c", code]) for code in ("import time; time.sleep(0.4)", HOLDS))
    assert len(here) and small < 100 << 20
    assert 150 << 20 <= large - small + (1 << 20) < 200 << 20


def test_a_command_that_fails_ends_the_benchmark_with_its_words() -> None:
    with pytest.raises(SystemExit, match="code 3: no such model"):
        peak_of([sys.executable, "-c", "import sys; sys.stderr.write('no such model'); sys.exit(3)"])


def rows_of(name: str) -> list[dict]:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--smoke", "--json", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)["rows"]


@pytest.mark.slow
def test_it_answers_every_row_and_gives_the_growth() -> None:
    rows = rows_of("predict_memory")
    assert [row["contestant"] for row in rows] == ["200 rows", "400 rows"]
    assert rows[0]["ratio"] == 1 and 0.8 < rows[1]["ratio"] < 1.3
    assert all(row["value"] > 50 and row["unit"] == "MB" for row in rows)


@pytest.mark.slow
def test_glove_is_measured_with_and_without_a_bound() -> None:
    rows = rows_of("glove")
    assert [(row["case"], row["contestant"]) for row in rows] == [
        (bound, f"{size} MB of text") for bound in ("64 MB", "unbounded") for size in (0.2, 0.4)
    ]
    assert all(row["value"] > 50 and row["unit"] == "MB" for row in rows)
