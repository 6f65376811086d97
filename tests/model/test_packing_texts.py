"""Packed batches: what a text becomes does not depend on its company."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data import batch as batching
from bertkit.data.batch import batches_by_tokens, pack
from bertkit.errors import UserError
from bertkit.model.inference import prepare
from tests.support.small_encoders import FAMILIES, config, model_of, rows

lengths_lists = st.lists(st.integers(1, 40), min_size=1, max_size=14)


@given(lengths_lists)
def test_packing_loses_no_token_and_gives_texts_back_in_the_callers_order(lengths: list[int]) -> None:
    ids = [[number * 100 + place for place in range(n)] for number, n in enumerate(lengths)]
    batch = pack(ids, [[n % 2] * len(row) for n, row in enumerate(ids)])
    assert (batch.tokens, batch.texts) == (sum(lengths), len(lengths))
    assert [part.tolist() for part in batch.split(batch.ids)] == ids
    assert [set(part.tolist()) for part in batch.split(batch.segments)] == [{n % 2} for n in range(len(ids))]
    assert [part.tolist() for part in batch.split(batch.positions)] == [list(range(n)) for n in lengths]
    assert batch.restore(batch.ids[batch.starts]).tolist() == [row[0] for row in ids]


@given(lengths_lists)
def test_groups_cover_the_run_once_and_pad_little(lengths: list[int]) -> None:
    batch = pack([[1] * n for n in lengths])
    assert [g.start for g in batch.groups[1:]] == [g.stop for g in batch.groups[:-1]]
    assert (batch.groups[0].start, batch.groups[-1].stop) == (0, sum(lengths))
    assert sum(g.texts for g in batch.groups) == len(lengths)
    for group in batch.groups:
        real = group.stop - group.start
        texts = [n for n, start in zip(batch.lengths, batch.starts.tolist()) if group.start <= start < group.stop]
        assert real >= (1 - batching.MOST_PADDING) * group.texts * max(texts)
        assert max(texts) <= group.length < max(texts) + 8  # rounded up, for fewer shapes
        assert (group.gather is None) == (group.scatter is None) == (len(set(texts)) == 1)
        if group.gather is not None:
            # There and back again: the scattered places read the group's own tokens in order.
            assert group.gather[group.scatter].tolist() == list(range(real))
            assert group.lengths is not None and group.lengths.sum() == real


def test_texts_of_one_length_make_one_group_wherever_they_stand() -> None:
    batch = pack(rows([3, 30, 3, 30, 3, 30]))
    assert [(group.texts, group.length, group.gather) for group in batch.groups] == [(3, 30, None), (3, 3, None)]
    assert batch.order == (1, 3, 5, 0, 2, 4)


@torch.no_grad()
def test_a_second_segment_is_no_matter_to_a_model_that_knows_one() -> None:
    model, ids = model_of("roberta"), rows([6, 4])
    marked = pack(ids, [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1]])
    assert torch.equal(model.encoder(marked).tokens, model.encoder(pack(ids)).tokens)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.one_of(st.integers(1, 38), st.sampled_from([3, 4, 5, 6, 8, 9])), min_size=2, max_size=9),
    seed=st.integers(0, 9),
)
def test_a_texts_vectors_are_the_same_alone_and_in_any_batch(family: str, lengths: list[int], seed: int) -> None:
    # The modern family's local layers look 4 tokens to either side: lengths on both sides of that occur.
    model = model_of(family)
    ids = rows(lengths, seed)
    segments = [[0] * (len(row) // 2) + [1 if config(family).segments > 1 else 0] * (-(-len(row) // 2)) for row in ids]
    with torch.no_grad():
        together = pack(ids, segments)
        answers = together.split(model.encoder(together).tokens)
        for row, sides, mine in zip(ids, segments, answers):
            alone = model.encoder(pack([row], [sides])).tokens
            torch.testing.assert_close(mine, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_padding_a_group_never_changes_real_tokens(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = model_of(family), rows([1, 5, 8, 9, 10, 17, 20, 33])
    monkeypatch.setattr(batching, "MOST_PADDING", 0.99)
    padded = pack(ids)
    monkeypatch.setattr(batching, "MOST_PADDING", 0.0)
    apart = pack(ids)
    assert (len(padded.groups), len(apart.groups)) == (1, 8)
    torch.testing.assert_close(model.encoder(padded).tokens, model.encoder(apart).tokens, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        model.pooled(model.encoder(padded)), model.pooled(model.encoder(apart)), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_an_empty_batch_and_a_single_token_have_answers(family: str) -> None:
    model = model_of(family)
    empty = model.encoder(pack([]), layers=True, maps=True)
    assert empty.tokens.shape == (0, 32) and empty.batch.texts == 0
    assert pack([], []).tokens == 0
    one = model.encoder(pack([[7]]))
    assert one.tokens.shape == (1, 32) and one.tokens.isfinite().all()


@pytest.mark.parametrize("summary", ["first", "last", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_filling_a_run_up_changes_no_text_and_no_summary(family: str, summary: str) -> None:
    model, ids = model_of(family, summary=summary), rows([7, 3, 12, 12])
    plain, filled = pack(ids), pack(ids, multiple=64)
    assert (filled.tokens, filled.filler, len(filled.ids)) == (34, 30, 64)
    a, b = model.encoder(plain), model.encoder(filled)
    for mine, other in zip(filled.split(b.tokens), plain.split(a.tokens), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)
    torch.testing.assert_close(model.pooled(b), model.pooled(a), atol=1e-5, rtol=0)


@torch.no_grad()
def test_texts_as_long_as_the_model_sees_are_taken_whatever_that_length_is() -> None:
    model = model_of("bert", max_tokens=37)
    encoded = model.encoder(pack(rows([37, 36, 35])))  # a padded group, whose length is rounded up
    assert encoded.tokens.shape == (108, 32)
    with pytest.raises(UserError, match="A text has 38 tokens; this model's limit is 37"):
        model.encoder(pack(rows([38, 37])))


@torch.no_grad()
def test_a_text_longer_than_the_model_sees_is_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match=r"41 tokens.*limit is 40.*--on-long"):
        model_of("bert").encoder(pack(rows([3, 41])))


@pytest.mark.parametrize("length", [1024, 1100])
@torch.no_grad()
def test_the_fused_kernel_for_long_texts_agrees_with_the_plain_products(length: int) -> None:
    for family in ("modernbert", "gpt2"):
        table = 2048 if family == "gpt2" else 0
        model = model_of(family, max_tokens=2048, positions=table, depth=2, unique_layers=2)
        batch = pack(rows([length, length - 100]))
        # Asking for the maps takes the plain way.
        torch.testing.assert_close(
            model.encoder(batch).tokens, model.encoder(batch, maps=True).tokens, atol=1e-5, rtol=0
        )


@given(st.lists(st.integers(0, 600), max_size=60), st.integers(1, 2000))
def test_a_budget_parts_texts_longest_first_and_leaves_none_out(lengths: list[int], tokens: int) -> None:
    parts = batches_by_tokens(lengths, tokens)
    order = [number for part in parts for number in part]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[n] for n in order] == sorted(lengths, reverse=True)
    assert all(parts)
    longest = max(lengths, default=0)
    for part in parts:  # equal shares: at most half a budget over, plus the text that crosses the border
        assert sum(lengths[n] for n in part) <= max(1.5 * tokens, tokens + 0.5) + longest


def test_a_budget_makes_equal_shares_rather_than_a_small_rest() -> None:
    sizes = [sum(100 for _ in part) for part in batches_by_tokens([100] * 90, 4096)]
    assert sizes == [4500, 4500]
    assert np.ptp([len(part) for part in batches_by_tokens([10] * 1000, 4096)]) <= 1


@given(st.lists(st.integers(1, 700), min_size=1, max_size=14))
def test_steady_shapes_depend_on_each_text_alone_and_are_few(lengths: list[int]) -> None:
    batch = pack([[1] * n for n in lengths], steady=True)
    assert sum(group.texts for group in batch.groups) == len(lengths)
    assert [group.start for group in batch.groups[1:]] == [group.stop for group in batch.groups[:-1]]
    sizes = iter(batch.lengths)
    for group in batch.groups:
        for _ in range(group.texts):
            (alone,) = pack([[1] * next(sizes)], steady=True).groups
            assert alone.length == group.length and (alone.gather is None) == (group.gather is None)
    assert len(batch.ids) == batching.rounded(sum(lengths)) == batch.tokens + batch.filler


def test_lengths_are_rounded_by_little_to_few() -> None:
    rounded = [batching.rounded(length) for length in range(1, 2049)]
    assert all(n <= size <= max(n + 7, 9 / 8 * n) for n, size in enumerate(rounded, 1))
    assert len(set(rounded)) < 60 and rounded == [batching.rounded(size) for size in rounded]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@torch.no_grad()
def test_a_text_gets_the_same_bits_alone_and_in_any_batch(family: str, precision: str) -> None:
    model = prepare(copy.deepcopy(model_of(family)), precision)
    lengths = [3, 30, 5, 17, 31, 9, 24, 1, 16]
    ids = rows(lengths)
    together = (batch := pack(ids, steady=True)).split(model.encoder(batch).tokens)
    for row, tokens in zip(ids, together, strict=True):
        (alone,) = (own := pack([row], steady=True)).split(model.encoder(own).tokens)
        assert torch.equal(alone, tokens), len(row)
