"""Confidence: fitted, measured and used to abstain."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from bertkit.errors import UserError
from bertkit.metrics import calibration
from bertkit.tasks.base import Item
from bertkit.tasks.classify import Classify


def drawn(temperature: float, rows: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Logits `temperature` times as large as those the gold labels were drawn from."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(rows, 4)) * 2
    chances = calibration.probabilities(logits)
    gold = (chances.cumsum(axis=1) < random.random((rows, 1))).sum(axis=1).clip(max=3)
    return logits * temperature, gold


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_known_temperature_is_found_again_and_calibrates(temperature: float) -> None:
    logits, gold = drawn(temperature)
    found = calibration.fit_temperature(logits, gold)
    assert found == pytest.approx(temperature, rel=0.05)
    cured = calibration.expected_calibration_error(calibration.probabilities(logits, found), gold)
    assert cured < 0.015
    if temperature != 1:
        assert calibration.expected_calibration_error(calibration.probabilities(logits), gold) > 4 * cured


def test_no_other_temperature_makes_gold_likelier() -> None:
    logits, gold = drawn(2.0, rows=300)
    found = calibration.fit_temperature(logits, gold)
    best, *others = (
        log_loss(gold, calibration.probabilities(logits, found * factor)) for factor in (1, 0.99, 1.01, 0.5, 2)
    )
    assert all(best < other for other in others)


def test_a_model_without_errors_keeps_its_temperature() -> None:
    assert calibration.fit_temperature([[2.0, 1.0], [0.0, 3.0]], [0, 1]) == 1


def test_huge_logits_stay_finite() -> None:
    assert calibration.probabilities([[1e4, -1e4]]).tolist() == [[1, 0]]
    assert calibration.fit_temperature([[1e4, -1e4], [1e4, -1e4]], [0, 1]) == pytest.approx(20, rel=1e-3)


def test_the_error_is_the_gap_between_being_sure_and_being_right() -> None:
    sure = np.tile([0.9, 0.1], (10, 1))
    assert calibration.expected_calibration_error(sure, [0] * 9 + [1]) == pytest.approx(0)
    assert calibration.expected_calibration_error(sure, [0] * 4 + [1] * 6) == pytest.approx(0.5)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), min_size=1, max_size=40), st.integers(1, 20))
def test_the_reliability_table_places_every_row_once(rows: list[tuple[int, int]], bins: int) -> None:
    first, gold = np.array(rows).T
    table = calibration.reliability(np.column_stack([first, 20 - first]) / 20, gold, bins)
    assert sum(row.rows for row in table) == len(rows)
    for row in table:
        assert row.low - 1e-9 <= row.confidence <= row.high + 1e-9
    right = np.mean((first < 10) == gold)
    assert sum(row.rows * row.accuracy for row in table) / len(rows) == pytest.approx(right)


CONFIDENT = np.array([0.95, 0.9, 0.9, 0.7, 0.6])
TABLE = np.column_stack([CONFIDENT, 1 - CONFIDENT])
GOLD = [0, 0, 1, 0, 1]


def test_the_coverage_curve_falls_back_to_plain_accuracy_when_all_is_answered() -> None:
    curve = calibration.coverage_accuracy(TABLE, GOLD)
    expected = [(0.95, 0.2, 1), (0.9, 0.6, 2 / 3), (0.7, 0.8, 3 / 4), (0.6, 1, 3 / 5)]
    assert [tuple(point) for point in curve] == [pytest.approx(point) for point in expected]


@pytest.mark.parametrize(("target", "coverage"), [(0.5, 1), (0.7, 0.8), (0.9, 0.2)])
def test_the_threshold_answers_as_many_rows_as_the_target_allows(target: float, coverage: float) -> None:
    found = calibration.abstain_threshold(TABLE, GOLD, target)
    assert found is not None and found.coverage == pytest.approx(coverage) and found.accuracy >= target
    assert np.mean(found.threshold <= CONFIDENT) == pytest.approx(coverage)


def test_a_classifier_answers_the_rows_that_its_threshold_was_chosen_to_answer() -> None:
    task = Classify(labels=("a", "b", "c"))
    for seed in range(30):
        rng = np.random.default_rng(seed)
        logits = 2 * rng.normal(size=(60, 3)).astype(np.float32)
        gold = np.where(rng.random(60) < 0.7, logits.argmax(1), rng.integers(0, 3, 60))
        chosen = calibration.abstain_threshold(calibration.probabilities(logits), gold, 0.75)
        assert chosen is not None
        task.options["abstain"] = chosen.threshold
        said = [task.decode(Item(None, [], 1, 0), row)["abstained"] for row in logits]
        assert said.count(False) / 60 == pytest.approx(chosen.coverage), seed


def test_there_is_no_threshold_when_the_surest_rows_are_wrong() -> None:
    assert calibration.abstain_threshold([[0.9, 0.1], [0.6, 0.4]], [1, 0], 0.9) is None


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (lambda: calibration.fit_temperature([[1.0, 2.0]], [2]), "Row 1: gold column 2.*2 columns"),
        (lambda: calibration.fit_temperature([[1.0, 2.0]], [0, 1]), "2 gold rows and 1 predicted"),
        (lambda: calibration.fit_temperature([1.0, 2.0], [0, 1]), r"shape \(2,\)"),
        (lambda: calibration.fit_temperature([[1.0, np.nan]], [0]), "Row 1.*finite"),
        (lambda: calibration.expected_calibration_error([[0.5, 0.5], [3.0, -1.0]], [0, 0]), "Row 2.*3.0.*sum to 1"),
        (lambda: calibration.reliability([[0.5, 0.5]], [0], 0), "bins=0"),
        (lambda: calibration.abstain_threshold([[0.5, 0.5]], [0], 95), "target_accuracy=95"),
        (lambda: calibration.probabilities([[1.0]], 0), "temperature=0"),
    ],
)
def test_mistakes_are_reported_with_the_row_the_value_and_the_fix(mistake, told: str) -> None:
    with pytest.raises(UserError, match=f"(?s){told}"):
        mistake()
