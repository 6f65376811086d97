"""What a run will cost is measured before it begins, and a time budget is kept."""

from __future__ import annotations

import os

import pytest

from bertkit import machine
from bertkit.commands import pretrain as verb
from bertkit.notify import short_count
from bertkit.runs.pretrain.build import build
from bertkit.runs.pretrain.run import estimate_cost, expected_loss, measure_step, pretrain
from bertkit.training.distributed import World
from bertkit.training.loop import Training
from bertkit.training.metrics_log import read_metrics
from bertkit.training.run_folder import RunFolder

KEYS = {
    "preset", "parameters", "tokens_per_second", "seconds_per_step", "steps", "seconds", "tokens", "store_tokens",
    "epochs", "seconds_per_epoch", "memory_gb", "expected_loss", "warnings",
}  # fmt: skip


def test_a_plan_says_what_it_promises_and_its_numbers_fit_together(make, tmp_path):
    built = build(make("bert-tiny", tmp_path / "run", steps=50), World())
    found = estimate_cost(built, World(), seconds=0.2)
    assert found.keys() == KEYS
    assert found["steps"] == 50 and found["preset"] == "bert-tiny"
    assert found["parameters"] == sum(p.numel() for p in built.objective.parameters())
    assert found["seconds"] == pytest.approx(50 * found["seconds_per_step"], rel=0.05, abs=0.1)
    assert found["tokens"] / found["seconds_per_step"] / 50 == pytest.approx(found["tokens_per_second"], rel=0.05)
    assert found["expected_loss"][0] < found["expected_loss"][1]
    assert any("smaller preset" in warning for warning in found["warnings"])
    shown = "\n".join(verb.lines({"plan": found}))
    assert "bert-tiny" in shown and "tokens/s" in shown and "warning" in shown


def test_a_plan_for_a_small_store_says_thousands_and_not_0_0_millions(make, tmp_path):
    found = estimate_cost(build(make("bert-tiny", tmp_path / "run", steps=2), World()), World(), seconds=0.1)
    shown = "\n".join(verb.lines({"plan": found}))
    assert "0.0" not in " ".join(found["warnings"]) and "0.0M" not in shown
    assert f"for {short_count(found['store_tokens'])} tokens of text" in shown
    assert [short_count(count) for count in (812, 9_400, 35_400, 999_499, 999_900, 7_240_000)] == [
        "812", "9,400", "35k", "999k", "1.0M", "7.2M"
    ]  # fmt: skip


def test_planning_makes_nothing_and_trains_nothing(make, tmp_path):
    built = build(make("bert-tiny", tmp_path / "run", steps=50), World())
    before = {name: p.detach().clone() for name, p in built.objective.named_parameters()}
    cost = measure_step(built, World(), seconds=0.1)
    assert cost.steps >= 4 and cost.tokens_per_step > 0 and cost.seconds_per_step > 0
    assert all((p == before[name]).all() for name, p in built.objective.named_parameters())
    assert not (tmp_path / "run").exists()


def test_a_plan_in_minutes_or_tokens_counts_the_steps(make, tmp_path):
    timed = estimate_cost(
        build(make("roberta-mini", tmp_path / "a", steps=0, minutes=3.0), World()), World(), seconds=0.1
    )
    assert timed["seconds"] == pytest.approx(180, rel=0.02)
    budget = estimate_cost(
        build(make("roberta-mini", tmp_path / "b", steps=0, tokens=25600), World()), World(), seconds=0.1
    )
    assert budget["steps"] == 100


def test_reading_the_text_too_often_is_a_warning(make, tmp_path):
    found = estimate_cost(build(make("bert-tiny", tmp_path / "run", steps=10**6), World()), World(), seconds=0.1)
    assert any("passes" in warning for warning in found["warnings"])


def test_more_text_and_more_parameters_promise_a_lower_loss():
    losses = [sum(expected_loss(10**7, tokens)) for tokens in (10**6, 10**7, 10**8, 10**9)]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1] + 1
    assert sum(expected_loss(10**8, 10**8)) < sum(expected_loss(10**6, 10**8))


@pytest.fixture
def clock(monkeypatch):
    """A clock of its own: a step takes 0.1 s, and from the sixth second on twice as long."""
    now, step = {"now": 0.0}, Training._step

    def timed(self, batches):
        now["now"] += 0.1 if now["now"] < 6 else 0.2
        return step(self, batches)

    monkeypatch.setattr(Training, "_step", timed)
    monkeypatch.setattr(RunFolder, "elapsed", lambda self: now["now"])
    return now


@pytest.mark.slow
def test_a_timed_run_resumed_with_another_budget_ends_by_that_one(make, tmp_path, clock, notes):
    told = {"steps": 0, "eval_every": 0, "log_every": 1}
    assert pretrain(make("bert-tiny", tmp_path / "run", minutes=0.05, **told))["seconds"] == pytest.approx(3, rel=0.1)
    longer = pretrain(make("bert-tiny", tmp_path / "run", minutes=0.15, resume=True, **told))
    assert longer["seconds"] == pytest.approx(9, rel=0.1)
    assert any("now ends after 0.15 minutes" in note for note in notes)
    again = pretrain(make("bert-tiny", tmp_path / "run", minutes=0.15, resume=True, **told))
    assert again["steps"] == longer["steps"], "the same budget is spent"


@pytest.mark.slow
def test_a_time_budget_ends_on_time_with_the_schedule(make, tmp_path, clock):
    result = pretrain(make("bert-tiny", tmp_path / "run", steps=0, minutes=0.2, eval_every=0, log_every=1))
    assert result["seconds"] == pytest.approx(12, rel=0.05)
    rows = [row for row in read_metrics(tmp_path / "run/metrics.jsonl") if "lr" in row]
    peak = max(row["lr"] for row in rows)
    assert rows[-1]["step"] == result["steps"] and rows[-1]["lr"] < 0.1 * peak


def test_training_keeps_few_of_onednns_kernels_so_that_memory_does_not_grow_for_hours(make, tmp_path, monkeypatch):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    pretrain(make("bert-tiny", tmp_path / "run", steps=1))
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == str(machine.TRAINING_KERNELS)
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    machine.limit_onednn_cache(machine.TRAINING_KERNELS)
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7", "what the user set is kept"


def test_every_save_returns_freed_memory_so_that_a_long_run_does_not_grow(make, tmp_path, monkeypatch):
    trims = []
    monkeypatch.setattr(machine, "trim_memory", lambda: trims.append(1))
    pretrain(make("bert-tiny", tmp_path / "run", steps=4, save_every=1))
    assert len(trims) >= 4
