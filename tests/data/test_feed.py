"""Batches are functions of the step: asked in any order, by any rank, they are the same."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.batch import Batch
from bertkit.data.feed import Prefetcher, PretrainingFeed, phases
from bertkit.data.store import Store
from bertkit.errors import UserError
from bertkit.settings.training import MaskSettings
from tests.support import synthetic


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return synthetic.make_store(tmp_path_factory.mktemp("feed"), 40)


def feed(store: Store, steps: int = 40, lengths=((1.0, 32),), batch: int = 256, ramp: float = 0.0, **changes):
    options = {"packing": "next-sentence", "masking": MaskSettings(), "seed": 3, "short_prob": 0.1, "micro_tokens": 128}
    plan = phases(steps, lengths, batch, ramp)
    return PretrainingFeed(store, np.arange(store.documents), plan=plan, **(options | changes))


def rows(batches: list[Batch]) -> list[tuple]:
    """Every example of the batches as plain values, in an order that does not depend on how they were packed."""
    found = []
    for batch in batches:
        hidden = torch.full((batch.tokens,), -1).index_put((batch.extra["places"],), batch.extra["targets"])
        bounds = np.append(0, np.cumsum(batch.lengths))
        for n, (a, b) in enumerate(pairwise(bounds)):
            parts = (batch.ids, batch.segments, batch.positions, hidden, batch.extra["special"])
            found.append((*(tuple(part[a:b].tolist()) for part in parts), int(batch.extra["labels"][n])))
    return sorted(found)


@pytest.mark.parametrize("packing", ["next-sentence", "sentence-order", "full-sentences", "mixed-sentences"])
def test_a_step_asked_by_itself_is_the_step_asked_in_order(packing, store):
    given = {"lengths": ((0.5, 32), (0.5, 48)), "ramp": 0.5, "packing": packing}
    in_order = feed(store, **given)
    whole = [rows(in_order.step(step)) for step in range(40)]
    for step in np.random.default_rng(0).permutation(40):
        assert rows(feed(store, **given).step(int(step))) == whole[step]
    assert len({str(step) for step in whole}) == 40, "steps differ"


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_share_a_step_without_loss_or_repetition(ranks, store):
    alone = feed(store)
    together = [feed(store, rank=rank, ranks=ranks) for rank in range(ranks)]
    for step in (0, 7, 39):
        parts = [rows(one.step(step)) for one in together]
        assert sorted(chain(*parts)) == rows(alone.step(step))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_more_processes_than_examples_a_step_are_refused(store):
    with pytest.raises(UserError, match=r"8 examples.*9 processes.*batch_tokens"):
        feed(store, ranks=9)


def test_processes_that_would_have_only_some_of_the_losses_are_refused(store):
    # Three examples a step: two for one process, of which one is read from left to right, and one masked for the other.
    with pytest.raises(UserError, match=r"3 examples for 2 processes.*left to right.*batch_tokens"):
        feed(store, batch=96, causal=0.3, ranks=2)
    assert feed(store, batch=96, causal=0.3).step(0)
    for rank in (0, 1):
        kinds = {batch.causal for batch in feed(store, batch=160, causal=0.3, rank=rank, ranks=2).step(0)}
        assert kinds == {False, True}


def test_micro_batches_hold_the_step_whatever_their_size(store):
    whole = rows(feed(store, micro_tokens=10**6).step(5))
    for size in (1, 64, 100):
        batches = feed(store, micro_tokens=size).step(5)
        assert len(batches) > 1 and rows(batches) == whole
        assert all(batch.tokens <= max(1.5 * size + 32, 32) for batch in batches)


@pytest.mark.parametrize("packing", ["next-sentence", "full-sentences"])
def test_every_pass_visits_each_example_once_in_another_order(packing, store):
    made = feed(store, packing=packing, batch=160, steps=200)
    size = len(made.packing(32))
    seen = [pair for step in range(200) for pair in made.numbers(step)]
    passes = [[n for n, epoch in seen if epoch == number] for number in range(len(seen) // size)]
    assert len(passes) >= 3
    assert all(sorted(numbers) == list(range(size)) for numbers in passes)
    assert len({tuple(numbers) for numbers in passes}) == len(passes)
    assert [epoch for _, epoch in seen] == sorted(epoch for _, epoch in seen)
    assert made.epoch(100) == pytest.approx(100 * 5 / size)


def hidden_places(made: PretrainingFeed, number: int, epoch: int) -> tuple:
    example, ids, places = made.masked(32, number, epoch, 0.15)
    return tuple(example.ids.tolist()), tuple(ids.tolist()), tuple(places.tolist())


def test_static_masks_repeat_after_their_copies_and_fresh_ones_never(store):
    static, fresh = (feed(store, masking=MaskSettings(copies=copies)) for copies in (3, 0))
    for number in (0, 5, 11):
        repeated = [hidden_places(static, number, epoch) for epoch in range(9)]
        assert repeated[:3] == repeated[3:6] == repeated[6:] and len(set(repeated)) == 3
        assert len({hidden_places(fresh, number, epoch) for epoch in range(9)}) == 9


def test_another_seed_gives_other_orders_and_masks(store):
    one, other = feed(store, seed=1), feed(store, seed=2)
    assert one.numbers(0) != other.numbers(0)
    assert hidden_places(one, 4, 0) != hidden_places(other, 4, 0)


def test_the_share_of_hidden_tokens_follows_the_schedule(store):
    made = feed(store, steps=40, batch=4096, masking=MaskSettings(rate=0.4, rate_end=0.1), micro_tokens=10**6)
    shares = []
    for step in (0, 20, 39):
        (batch,) = made.step(step)
        shares.append(len(batch.extra["places"]) / int((~batch.extra["special"]).sum()))
    assert shares == pytest.approx([0.4, 0.25, 0.1], abs=0.015)


def test_targets_are_the_pieces_that_were_there(store):
    made = feed(store)
    for batch in made.step(3):
        places, targets = batch.extra["places"], batch.extra["targets"]
        assert (batch.extra["special"][places] == 0).all()
        shown = batch.ids[places]
        changed = shown != targets
        assert changed.float().mean() > 0.5
        assert (shown[changed] == store.tokenizer.mask_id).any()
        assert set(batch.extra["labels"].tolist()) <= {0, 1}


@settings(deadline=None)
@given(
    st.integers(1, 5000),
    st.lists(st.tuples(st.floats(0.1, 3), st.sampled_from([32, 64, 512])), min_size=1, max_size=4),
    st.integers(512, 20000), st.sampled_from([0, 0.1, 0.5]),
)  # fmt: skip
def test_stretches_cover_every_step_once(steps, lengths, batch_tokens, ramp):
    plan = phases(steps, tuple(lengths), batch_tokens, ramp)
    assert plan[0].first == 0 and plan[-1].last == steps
    assert all(a.last == b.first for a, b in pairwise(plan))
    assert all(phase.first < phase.last and phase.rows >= 1 for phase in plan)


def test_lengths_and_batches_grow_as_planned():
    plan = phases(1000, ((0.9, 128), (0.1, 512)), 4096)
    assert [(p.first, p.last, p.length, p.rows) for p in plan] == [(0, 900, 128, 32), (900, 1000, 512, 8)]
    ramped = phases(100, ((1.0, 128),), 4096, ramp=0.3)
    assert [(p.first, p.rows) for p in ramped] == [(0, 8), (10, 16), (20, 24), (30, 32)]


def test_a_longer_length_comes_with_its_share_of_the_steps(store):
    made = feed(store, steps=20, lengths=((0.75, 16), (0.25, 48)))
    longest = [max(max(batch.lengths) for batch in made.step(step)) for step in range(20)]
    assert max(longest[:15]) <= 16 < min(longest[15:]) <= max(longest) <= 48


def test_a_return_to_a_length_goes_on_where_it_left_off(store):
    made = feed(store, steps=30, lengths=((1, 32), (1, 48), (1, 32)), batch=160)
    size = len(made.packing(32))
    seen = [pair for step in [*range(10), *range(20, 30)] for pair in made.numbers(step)]
    assert len(set(seen)) == len(seen) == 100
    first = [n for n, epoch in seen if epoch == 0]
    assert len(first) == min(size, 100) == len(set(first))


def test_working_ahead_changes_nothing_and_fails_like_the_work_itself(store):
    made = feed(store)
    ahead = Prefetcher(made.step, 40)
    for step in (0, 1, 2, 17, 3, 39):
        assert rows(ahead.step(step)) == rows(made.step(step))
    ahead.close()

    def broken(step: int) -> list[Batch]:
        raise UserError(f"step {step} cannot be made")

    failing = Prefetcher(broken, 40)
    with pytest.raises(UserError, match="step 4 "):
        failing.step(4)
    failing.close()


def test_a_share_of_nothing_gives_texts_as_they_are(store):
    made = feed(store, masking=MaskSettings(rate=0.0))
    (example, ids, places) = made.masked(32, 0, 0, 0.0)
    assert not len(places) and (ids == example.ids).all()
