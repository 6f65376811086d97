"""The benchmark of the server runs, and every contestant gives the same vectors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "serve.py"


@pytest.mark.slow
def test_every_contestant_is_measured_or_says_why_not() -> None:
    pytest.importorskip("transformers", reason="it makes the weights")
    command = [sys.executable, str(SCRIPT), "--smoke", "--json", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)["rows"]
    names = [
        "sentence-transformers", "bertkit", "bertkit-fp32", "bertkit-one-by-one", "bertkit-onnx", "bertkit-onnx-int8",
        "bertkit-openvino", "onnxruntime-fp32", "onnxruntime-int8", "openvino-fp32",
    ]  # fmt: skip
    exact = {name for name in names if "int8" not in name} - {"bertkit", "bertkit-one-by-one"}
    assert {(row["case"], row["contestant"]) for row in rows} == {
        (f"tiny, {clients}", name) for clients in ("1 client", "4 clients") for name in names
    }
    for row in rows:
        if "skipped" in row:
            assert not row["contestant"].startswith("bertkit") or row["contestant"] not in names[1:4]
            assert "not installed" in row["skipped"] or "sentence_transformers" in row["skipped"]
            continue
        assert row["value"] > 0 and row["range"][0] <= row["value"] <= row["range"][1]
        assert row.get("difference", 0) < (0.001 if row["contestant"] in exact else 0.05)
