"""The benchmarks run, and say what they promise to say."""

from __future__ import annotations

import io
import json
import operator
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # last: benchmarks/tokenize.py must not stand before Python's own

import _contestants  # noqa: E402
import _harness as harness  # noqa: E402
import _workers as workers  # noqa: E402
import embed  # noqa: E402

from bertkit.machine import has_fast_int8  # noqa: E402
from bertkit.text.vocabulary import VocabularySettings, learn  # noqa: E402


def smoke(name: str) -> dict:
    """The document a benchmark prints, which must be all it prints."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--smoke", "--json", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check_shape(document: dict, contestants: set[str], baselines: set[str]) -> None:
    assert document["machine"]["threads"] == 1
    assert document["machine"]["matmul_gflops"]["fp32"] > 0
    assert {row["contestant"] for row in document["rows"]} == contestants
    for row in document["rows"]:
        if "skipped" in row:
            assert row["skipped"] and "value" not in row
            continue
        assert {"case", "contestant", "value", "unit", "ratio"} <= set(row)
        assert row["value"] > 0 and row["ratio"] > 0
        assert row["range"][0] <= row["value"] <= row["range"][1]
        assert row["contestant"] not in baselines or row["ratio"] == 1


@pytest.mark.slow
def test_embed_measures_every_contestant_or_says_why_not() -> None:
    pytest.importorskip("transformers", reason="the baseline is transformers")
    document = smoke("embed")
    check_shape(document, set(_contestants.CONTESTANTS), {_contestants.BASELINE})
    rows = {(row["case"], row["contestant"]): row for row in document["rows"]}
    cases = [case.name for case in embed.FORMS["smoke"]]
    assert set(rows) == {(case, name) for case in cases for name in _contestants.CONTESTANTS}
    absent = {name for name, one in _contestants.CONTESTANTS.items() if one.lacks()}
    for (_, name), row in rows.items():
        if name in absent:
            assert "not installed" in row["skipped"]
        elif "skipped" in row:  # as with bf16 on a processor without it
            assert name not in ("bertkit", "bertkit-fp32", _contestants.BASELINE), row
        elif name != _contestants.BASELINE:
            exact = {
                "bertkit-fp32": 0.9999, "sentence-transformers": 0.9999, "onnxruntime-fp32": 0.9999,
                "openvino-fp32": 0.9999, "bertkit-onnx": 0.9999, "bertkit-openvino": 0.9999,
                "model2vec": -1.0,  # another model
            }  # fmt: skip
            # Without VNNI, ONNX Runtime keeps 7 bits of a weight: half as exact. An export always keeps 7.
            int8 = {"bertkit-onnx-int8": 0.96} if has_fast_int8() else dict.fromkeys(
                ("onnxruntime-int8", "bertkit-onnx-int8"), 0.96
            )  # fmt: skip
            assert row["cosine"]["min"] >= (exact | int8).get(name, 0.98), row


def test_tokenize_measures_contestants_that_agree_about_every_id() -> None:
    pytest.importorskip("transformers", reason="a contestant is transformers")
    document = smoke("tokenize")
    known = {
        "bertkit ids_batch", "tokenizers encode_batch_fast", "transformers",
        "bertkit encode_batch", "tokenizers encode_batch", "transformers with offsets",
    }  # fmt: skip
    check_shape(document, known, {"tokenizers encode_batch_fast", "tokenizers encode_batch"})
    assert all(row["same_ids"] for row in document["rows"])


def test_a_script_beside_tokenize_py_still_gets_pythons_own_tokenize() -> None:
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import tokenize; print(tokenize.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).parent == Path(os.__file__).parent


@pytest.mark.parametrize("mix", sorted(harness.MIXES))
def test_texts_have_exactly_the_token_counts_of_their_mix(mix: str) -> None:
    words = harness.made_up_words(500)
    tokenizer = learn(harness.made_up_lines(words, 500), VocabularySettings(size=300))
    texts = harness.texts_of(mix, 60, tokenizer, words)
    assert [len(ids) for ids in tokenizer.ids_batch(texts)] == harness.lengths_of(mix, 60)
    assert len(set(texts)) == 60
    assert texts == harness.texts_of(mix, 60, tokenizer, words)


@pytest.mark.parametrize(("mix", "mean", "longest"), [("short", 28, 128), ("long", 180, 512)])
def test_a_mix_has_the_mean_and_the_longest_it_is_said_to_have(mix: str, mean: int, longest: int) -> None:
    lengths = harness.lengths_of(mix, 20_000)
    assert statistics.mean(lengths) == pytest.approx(mean, rel=0.02)
    assert max(lengths) <= longest
    assert statistics.median(lengths) < mean


def test_contestants_take_turns_and_one_that_fails_does_not_end_the_run() -> None:
    seen: list[str] = []
    out: dict[str, str] = {}

    def broken() -> None:
        raise MemoryError("too large")

    turns = {"a": lambda: seen.append("a") or 1, "b": broken, "c": lambda: seen.append("c") or 2}
    found = harness.take_turns(turns, 3, lambda name, reason: out.update({name: str(reason)}), pause=0)
    assert found == {"a": [1, 1, 1], "c": [2, 2, 2]}
    assert seen == ["a", "c", "c", "a", "a", "c"]
    assert out == {"b": "too large"}


def test_a_ratio_above_one_is_faster_whatever_the_unit() -> None:
    rows = [
        harness.row("speed", "ours", [30, 10, 20], "texts/s"),
        harness.row("speed", "theirs", [10], "texts/s"),
        harness.row("wait", "ours", [5], "ms"),
        harness.row("wait", "theirs", [10], "ms"),
        harness.skipped("wait", "other", "not installed"),
        harness.row("alone", "ours", [5], "ms"),
    ]
    done = harness.with_ratios(rows, "theirs")
    assert [row.get("ratio", "none") for row in done] == [2, 1, 2, 1, "none", None]
    assert done[0]["range"] == [10, 30]
    assert any("skipped: not installed" in line for line in harness.table(done))


def test_every_run_adds_one_dated_line_to_the_results(tmp_path: Path) -> None:
    document = {"machine": {}, "rows": harness.with_ratios([harness.row("c", "ours", [1], "s")], "ours")}
    for _ in range(2):
        out = io.StringIO()
        harness.publish("name", document, as_json=True, out=out, results=tmp_path / "results")
        assert json.loads(out.getvalue()) == document
    lines = (tmp_path / "results/name.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 2
    assert json.loads(lines[1])["date"] and json.loads(lines[1])["rows"] == document["rows"]


def test_a_contestant_that_is_absent_breaks_or_crashes_is_a_reason_not_an_end(tmp_path, monkeypatch) -> None:
    field = {
        "absent": _contestants.Contestant(operator.truediv, ("no_such_library",)),
        "breaks": _contestants.Contestant(operator.add),
    }
    for name, one in field.items():
        monkeypatch.setitem(_contestants.CONTESTANTS, name, one)
    found = embed.Field(tmp_path, ["absent", "breaks"], 1, "smoke", float("inf"))
    assert not found.there
    assert "no_such_library not installed" in found.absent["absent"]
    assert found.absent["breaks"].startswith("TypeError")

    worker = workers.Worker(int, "3")
    with pytest.raises(workers.Failed, match="code 3"):
        worker.ask(os._exit)
    worker.close()


def test_every_promise_is_checked_by_a_row_and_reported_with_what_was_measured() -> None:
    import promises

    numbers = {f"R{n}" for n in range(1, 13)} | {f"S{n}" for n in range(1, 8)}
    checked = {number for promise in promises.PROMISES.values() for number in promise.number.split(", ")}
    assert numbers <= checked
    page = (BENCHMARKS.parent / "docs" / "reliability.md").read_text("utf-8")
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\| [RSC]\d", line)]
    told = {number.strip() for row in rows for number in row[1].split(",")}
    assert checked == told
    checks = promises.PROMISES | promises.COMPARED
    assert set(checks) <= {row[3].strip() for row in rows}  # every check is told of, with what came out
    assert all(row[4].strip() or row[6].strip() for row in rows)
