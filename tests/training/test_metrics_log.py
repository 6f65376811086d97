import json
import math
import os
import resource

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import DamagedFile, UserError
from bertkit.training.metrics_log import NUMBERS, MetricsLog, read_metrics

TEXTS = st.text().filter(lambda text: text not in NUMBERS)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=5)


def log_of(path, *rows):
    log = MetricsLog(path)
    for row in rows:
        log.write(row)
    return log


@given(ROWS)
def test_every_row_comes_back_and_every_line_is_strict_json(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    log_of(path, *rows).close()
    assert repr(read_metrics(path)) == repr(rows)  # by repr: NaN is not equal to itself, and -0.0 is to 0.0
    lines = path.read_text().splitlines()
    assert len(lines) == len(rows)
    for line in lines:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_numbers_of_numpy_and_torch_are_written_as_numbers(tmp_path):
    row = {
        "a": np.float32(0.5),
        "b": torch.tensor(math.nan),
        "c": np.int64(3),
        "d": (torch.tensor(-math.inf), np.True_),
    }
    log_of(tmp_path / "m", row).close()
    assert repr(read_metrics(tmp_path / "m")) == repr([{"a": 0.5, "b": math.nan, "c": 3, "d": [-math.inf, True]}])


def test_a_log_cut_at_any_byte_reads_as_its_whole_rows_and_goes_on_after_them(tmp_path, notes):
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": n, "loss": 1 / (n + 1), "name": "é汉"} for n in range(4)]
    log_of(path, *rows).close()
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = rows[: whole[:length].count(b"\n")]
        assert read_metrics(path) == kept
        notes.clear()
        log_of(path, {"step": 99}).close()
        assert read_metrics(path) == [*kept, {"step": 99}]
        assert len(notes) == (length > 0 and whole[length - 1 : length] != b"\n")
    path.write_bytes(whole + b"\0" * 200_000)
    assert read_metrics(path) == rows
    log_of(path, {"step": 99}).close()
    assert read_metrics(path) == [*rows, {"step": 99}]


def test_rows_after_the_checkpoint_are_forgotten_on_resume(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    log = log_of(path, {"step": 1})
    positions = [log.position()]
    for step in (2, 3):
        log.write({"step": step})
        positions.append(log.position())
    uninterrupted = path.read_bytes()
    log.close()
    for position in positions:
        log = MetricsLog(path)
        log.truncate(position)
        for step in range(len(read_metrics(path)) + 1, 4):
            log.write({"step": step})
        assert log.position() == len(uninterrupted) and path.read_bytes() == uninterrupted
        log.close()
        log.close()


def test_a_log_that_was_shortened_or_edited_is_reported_and_does_not_stop_training(tmp_path, notes):
    path = tmp_path / "metrics.jsonl"
    log_of(path, {"step": 1}, {"step": 2}).close()
    log = MetricsLog(path)
    log.truncate(10**6)
    assert "1,000,000" in notes[0] and len(read_metrics(path)) == 2
    log.truncate(16)  # in the middle of the second row
    assert "cut short" in notes[1]
    log.write({"step": 3})
    assert read_metrics(path) == [{"step": 1}, {"step": 3}]


def test_a_bad_line_before_the_last_is_named_by_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for bad in ("{oops", "3", "", "\0\0"):
        path.write_text(f'{{"a": 1}}\n{bad}\n{{"a": 2}}\n')
        with pytest.raises(DamagedFile, match=r"metrics\.jsonl, line 2"):
            read_metrics(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_metrics(tmp_path / "absent")


def test_a_row_that_does_not_fit_on_the_disk_leaves_no_part_of_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = log_of(path, {"step": 1})
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
        try:
            log.write({"step": 2, "text": "x" * 50})
        except UserError as error:
            os._exit(42 if "a row could not be written: File too large" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    log.write({"step": 3})
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'
