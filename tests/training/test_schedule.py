"""Learning rates rise, stay or fall as their names say, and end exactly with the run."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from bertkit.settings.training import SCHEDULES
from bertkit.training.optimizer import SHAPES, rate

FALLING = sorted(set(SHAPES) - {"constant"})
shapes = st.sampled_from(sorted(SHAPES))


@given(st.integers(1, 3000), st.sampled_from(FALLING), st.floats(0, 0.9), st.floats(0, 0.9))
def test_a_schedule_reaches_its_floor_at_the_end_of_the_run_and_not_before(steps, shape, warmup, floor):
    up = round(warmup * steps)
    if up == steps:
        return
    end = rate(steps, steps, 2.0, warmup=warmup, shape=shape, floor=floor)
    assert end == pytest.approx(2.0 * floor, abs=1e-12)
    last = rate(steps - 1, steps, 2.0, warmup=warmup, shape=shape, floor=floor)
    assert last > end + 1e-9 * (1 - floor)


@given(st.integers(1, 3000), shapes, st.floats(0, 1), st.floats(0, 0.9))
def test_the_rate_rises_evenly_to_its_peak_and_never_again(steps, shape, warmup, floor):
    rates = [rate(step, steps, 0.5, warmup=warmup, shape=shape, floor=floor) for step in range(steps)]
    up = round(warmup * steps)
    assert rates[:up] == pytest.approx([0.5 * (n + 1) / up for n in range(up)])
    assert max(rates) == pytest.approx(0.5)
    after = rates[up:]
    assert all(a >= b - 1e-12 for a, b in pairwise(after))
    assert min(rates) > 0


@pytest.mark.parametrize("shape, theirs", [
    ("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup),
])  # fmt: skip
def test_falling_rates_agree_with_transformers(shape, theirs):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    schedule = theirs(optimizer, 0, 50)
    for step in range(50):
        assert rate(step, 50, 0.3, shape=shape) == pytest.approx(schedule.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        schedule.step()


def test_a_trapezoid_is_flat_until_its_last_fifth():
    rates = [rate(step, 100, 1.0, shape="trapezoid") for step in range(101)]
    assert rates[:81] == pytest.approx([1.0] * 81)
    assert rates[90] == pytest.approx(0.5) and rates[100] == 0.0


def test_a_constant_rate_stays():
    assert {rate(step, 10, 0.1, shape="constant") for step in range(10)} == {0.1}


def test_every_schedule_that_can_be_asked_for_has_its_formula() -> None:
    assert tuple(SHAPES) == SCHEDULES
