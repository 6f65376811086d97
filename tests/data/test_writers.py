"""Writers: what is written is read back, and a file is whole or not there."""

import csv
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertkit.data.readers import read_rows
from bertkit.data.write_rows import open_writer
from bertkit.data.write_vectors import open_vectors
from bertkit.errors import UserError
from bertkit.files.open import COMPRESSIONS, open_text

quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
texts = st.text(st.characters(exclude_characters="\0\r\ufeff", exclude_categories=["Cs"]))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with open_writer(path) as out:
        for row in rows:
            out.write(row)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@quiet
@given(rows=st.lists(st.tuples(texts, st.sampled_from(["x", "y"])), min_size=1, max_size=5))
def test_what_is_written_is_read_back(tmp_path: Path, kind: str, rows: list[tuple[str, str]]) -> None:
    path = write(tmp_path / f"a.{kind}", [{"text": text, "label": label} for text, label in rows])
    read = [(row.text, row.label) for row in read_rows(path)]
    wanted = [("'" + text if kind == "csv" and text[:1] in "=+-@\t" and text else text, label) for text, label in rows]
    assert read == wanted


@pytest.mark.parametrize("ending", COMPRESSIONS)
@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv"])
def test_compressed_output_is_read_back(tmp_path: Path, kind: str, ending: str) -> None:
    path = write(tmp_path / f"a.{kind}{ending}", [{"text": f"t {n}", "label": n} for n in range(100)])
    assert [row.text for row in read_rows(path)] == [f"t {n}" for n in range(100)]


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_the_same_rows_give_the_same_bytes(tmp_path: Path, ending: str) -> None:
    one, two = (write(tmp_path / f"{name}.jsonl{ending}", [{"text": "a"}]) for name in "ab")
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_no_cell_or_header_can_run_as_a_formula(tmp_path: Path, kind: str, start: str) -> None:
    path = write(tmp_path / f"a.{kind}", [{"text": f"{start}HYPERLINK(1)", start + "name": -0.5, "n": -3}])
    with path.open(newline="", encoding="utf-8") as file:
        header, row = csv.reader(file, delimiter="," if kind == "csv" else "\t")
    assert header[1].startswith("'") and row[0].startswith("'")
    assert row[1:] == ["-0.5", "-3"]


def test_nested_values_become_json_in_a_cell(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"scores": {"a": np.float32(0.5)}, "tags": ("B", "O"), "none": None, "ok": True}])
    with path.open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file))[1] == ['{"a": 0.5}', '["B", "O"]', "", "true"]


def test_a_tsv_cell_keeps_its_row_together_and_it_is_reported(tmp_path: Path, notes: list[str]) -> None:
    path = write(tmp_path / "a.tsv", [{"text": "a\tb\nc\r\nd", "label": "x"}])
    assert next(iter(read_rows(path))).text == "a b c d"
    assert "tabs and newlines were replaced with spaces in 1 rows" in notes[0]


def test_a_parquet_column_may_be_empty_at_first(tmp_path: Path) -> None:
    rows = [{"text": "t", "label": None if n < 2000 else "x"} for n in range(2500)]
    path = write(tmp_path / "a.parquet", rows)
    assert sum(row.label == "x" for row in read_rows(path, labelled="maybe")) == 500


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_a_row_with_other_columns_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError, match=r"Write a \.jsonl instead"):
        write(tmp_path / f"a.{kind}", [{"text": "a"}] * 2000 + [{"other": "b"}])


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv.gz", "a.parquet", "a.jsonl.zst", "v.npy", "v.parquet"])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")

    def fail() -> None:
        if name.startswith("v"):
            with open_vectors(path) as vectors:
                vectors.write(["a"], np.ones((1, 3)))
                raise RuntimeError("stop")
        with open_writer(path) as rows:
            rows.write({"text": "a"})
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_process_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, sys
        from bertkit.data.write_rows import open_writer
        with open_writer(sys.argv[1]) as out:
            for n in range(100000):
                out.write({"text": "x" * 100})
            os._exit(9)
    """)
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.jsonl")], cwd=root, check=False)
    assert ended.returncode == 9
    assert not (tmp_path / "a.jsonl").exists()


def test_where_nothing_can_be_written_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").mkdir()
    with pytest.raises(UserError, match="is a folder"), open_writer(tmp_path / "x.jsonl"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), open_writer(tmp_path / "file" / "a.jsonl"):
        pass
    with pytest.raises(UserError, match="cannot write the format 'ods'"), open_writer(tmp_path / "a.ods"):
        pass
    with pytest.raises(UserError, match="not compressed further"), open_writer(tmp_path / "a.parquet.gz"):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_a_full_disk_is_a_message_not_a_traceback(tmp_path: Path) -> None:
    link = tmp_path / "full.jsonl"
    link.symlink_to("/dev/full")
    with pytest.raises(UserError, match="cannot be written: No space left"):
        write(link, [{"text": "x" * 1000}] * 100)


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    assert write(tmp_path / "a" / "b" / "c.jsonl", [{"x": 1}]).exists()


# ---- vectors

batches = st.lists(st.integers(0, 4), max_size=5)


@quiet
@given(sizes=batches, width=st.integers(1, 5))
def test_streamed_npy_is_what_numpy_loads(tmp_path: Path, sizes: list[int], width: int) -> None:
    whole = np.random.default_rng(0).normal(size=(sum(sizes), width)).astype(np.float32)
    path, start = tmp_path / "a.npy", 0
    with open_vectors(path) as out:
        for size in sizes:
            out.write(["t"] * size, whole[start : start + size])
            start += size
    loaded = np.load(path, mmap_mode="r" if start else None, allow_pickle=False)
    assert loaded.dtype == np.float32
    assert loaded.shape == (start, width if sizes else 0)
    assert np.array_equal(loaded, whole) or not sizes


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
@quiet
@given(data=st.data())
def test_vectors_come_back_bit_for_bit(tmp_path: Path, kind: str, data: Any) -> None:
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    rows = data.draw(st.lists(st.tuples(texts, st.lists(finite, min_size=3, max_size=3)), min_size=1, max_size=5))
    path = tmp_path / f"a.{kind}"
    with open_vectors(path) as out:
        out.write([text for text, _ in rows], np.array([vector for _, vector in rows]))
    read = read_back(path, kind)
    assert [row["text"] for row in read] == [text for text, _ in rows]
    assert np.array([row["vector"] for row in read], np.float32).tolist() == [vector for _, vector in rows]


def read_back(path: Path, kind: str) -> list[dict[str, Any]]:
    if kind == "parquet":
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return rows
    return [json.loads(line) for line in open_text(path)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_vectors_per_token_keep_their_ragged_shape(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    rows = [np.arange(n * 2, dtype=np.float32).reshape(n, 2) for n in (3, 1, 0)]
    with open_vectors(path) as out:
        out.write_tokens(["a b c", "d", ""], rows, [["a", "b", "c"], ["d"], []])
        out.write_tokens(["e"], [np.ones((1, 2))], [["e"]])
    read = read_back(path, kind)
    assert [len(row["vectors"]) for row in read] == [3, 1, 0, 1]
    assert read[0] == {"text": "a b c", "tokens": ["a", "b", "c"], "vectors": [[0, 1], [2, 3], [4, 5]]}


def test_npy_refuses_ragged_vectors_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Use \.parquet or \.jsonl"), open_vectors(tmp_path / "a.npy") as out:
        out.write_tokens(["a"], [np.ones((2, 3))])
    with pytest.raises(UserError, match="cannot write vectors as 'csv'"), open_vectors(tmp_path / "a.csv"):
        pass
    assert list(tmp_path.iterdir()) == []
