"""What is hidden: as much as asked, as often as asked, whole words whole, and never a special token."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.config import build
from bertkit.data.masking import UNITS, MaskVocabulary, described, mask_tokens
from bertkit.data.packing import Example
from bertkit.data.prepare.pieces import PieceEncoder
from bertkit.errors import UserError
from bertkit.settings.training import MaskSettings
from tests.support.prepared_texts import small_tokenizers

MASK = 4
PIECES = MaskVocabulary(MASK, np.arange(5, 1000))
quick = settings(deadline=None, max_examples=150)


def made(words: list[int], seed: int = 0, pair: bool = True) -> Example:
    """[CLS] words [SEP] (words [SEP]); words: pieces of each."""
    chance = np.random.default_rng(seed)
    halves = [words[: len(words) // 2], words[len(words) // 2 :]] if pair else [words]
    special, starts = [True], [True]
    for half in halves:
        for pieces in half:
            special += [False] * pieces
            starts += [True] + [False] * (pieces - 1)
        special += [True]
        starts += [True]
    special_, ids = np.array(special), chance.integers(5, 1000, len(special))
    ids[special_] = 2
    return Example(ids, np.zeros_like(ids), special_, np.array(starts))


def chance(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def runs(example: Example) -> list[range]:
    """Each word's places."""
    begins = [*np.flatnonzero(example.word_starts | example.special).tolist(), len(example.ids)]
    return [range(a, b) for a, b in pairwise(begins) if not example.special[a]]


texts = st.lists(st.integers(1, 5), min_size=1, max_size=60).map(made)
units = st.sampled_from(sorted(UNITS))


@quick
@given(texts, units, st.floats(0.01, 1), st.integers(0, 9999), st.integers(0, 30))
def test_specials_are_never_hidden_and_all_else_stays(example, unit, rate, seed, most):
    before = example.ids.copy()
    ids, places = mask_tokens(example, MaskSettings(unit=unit, most=most), rate, PIECES, chance(seed))
    assert len(places) >= 1
    assert not example.special[places].any()
    assert (np.diff(places) > 0).all()
    assert (example.ids == before).all(), "the example itself is untouched"
    kept = np.ones(len(ids), bool)
    kept[places] = False
    assert (ids[kept] == example.ids[kept]).all()
    assert np.isin(ids[places], [MASK, *PIECES.ordinary]).all()


@quick
@given(texts, units, st.integers(0, 9999))
def test_the_same_chance_hides_the_same(example, unit, seed):
    first = mask_tokens(example, MaskSettings(unit=unit), 0.15, PIECES, chance(seed))
    again = mask_tokens(example, MaskSettings(unit=unit), 0.15, PIECES, chance(seed))
    assert all((a == b).all() for a, b in zip(first, again))


@quick
@given(texts, st.floats(0.05, 0.6), st.integers(0, 9999))
def test_single_tokens_are_hidden_in_exactly_the_share_asked(example, rate, seed):
    _, places = mask_tokens(example, MaskSettings(unit="token"), rate, PIECES, chance(seed))
    real = int((~example.special).sum())
    assert len(places) == min(real, max(1, round(real * rate)))


@quick
@given(texts, st.sampled_from(["word", "span"]), st.floats(0.05, 0.6), st.integers(0, 9999))
def test_a_word_is_hidden_whole_or_not_at_all(example, unit, rate, seed):
    _, places = mask_tokens(example, MaskSettings(unit=unit), rate, PIECES, chance(seed))
    hidden = set(places.tolist())
    whole = [len(hidden & set(word)) / len(word) for word in runs(example)]
    assert set(whole) <= {0.0, 1.0}
    budget = max(1, round(int((~example.special).sum()) * rate))
    # Only a text whose first word is longer than the budget may exceed it, and then by that word alone.
    assert len(hidden) <= budget or sum(whole) == 1


@quick
@given(st.integers(1, 200), units, st.integers(1, 40), st.integers(0, 9999))
def test_at_most_so_many_are_hidden(words, unit, most, seed):
    example = made([1] * words)
    _, places = mask_tokens(example, MaskSettings(unit=unit, most=most), 0.5, PIECES, chance(seed))
    assert len(places) <= most


def within(count: int, trials: int, share: float) -> bool:
    """Whether the count is likely for this share: five deviations of a binomial."""
    return abs(count - trials * share) <= 5 * np.sqrt(trials * share * (1 - share))


@pytest.mark.parametrize("unit", sorted(UNITS))
@pytest.mark.parametrize("mask, random", [(0.8, 0.1), (1.0, 0.0), (0.5, 0.5)])
def test_hidden_tokens_are_masked_swapped_and_kept_in_their_shares(unit, mask, random):
    example = made([1, 2, 1, 3, 1, 1] * 20)
    fates = {"mask": 0, "same": 0, "other": 0}
    for seed in range(400):
        ids, places = mask_tokens(
            example, MaskSettings(unit=unit, mask=mask, random=random), 0.15, PIECES, chance(seed)
        )  # fmt: skip
        fates["mask"] += int((ids[places] == MASK).sum())
        fates["same"] += int((ids[places] == example.ids[places]).sum())
        fates["other"] += int(((ids[places] != MASK) & (ids[places] != example.ids[places])).sum())
    total = sum(fates.values())
    same_by_chance = random / len(PIECES.ordinary)
    assert within(fates["mask"], total, mask)
    assert within(fates["other"], total, random - same_by_chance)
    assert within(fates["same"], total, 1 - mask - random + same_by_chance)


@pytest.mark.parametrize("unit", sorted(UNITS))
def test_about_fifteen_in_a_hundred_are_hidden_and_every_place_alike(unit):
    example = made([1, 2, 1, 3, 1, 1] * 15)
    counts = np.zeros(len(example.ids))
    turns = 1500
    for seed in range(turns):
        counts[mask_tokens(example, MaskSettings(unit=unit), 0.15, PIECES, chance(seed))[1]] += 1
    real = counts[~example.special] / turns
    assert abs(real.mean() - 0.15) < 0.002
    # The last of the budget has room for short words only, and a text's first word is in fewer spans.
    assert real.min() > (0.75 if unit == "token" else 0.6) * 0.15
    assert real.max() < 1.35 * 0.15


def test_random_pieces_are_drawn_evenly_and_never_special():
    example = made([1] * 400)
    drawn: list[int] = []
    for seed in range(60):
        ids, places = mask_tokens(example, MaskSettings(mask=0, random=1), 1.0, PIECES, chance(seed))
        drawn += ids[places].tolist()
    counts = np.bincount(drawn, minlength=1000)
    assert counts[:5].sum() == 0
    expected = len(drawn) / 995
    chi = ((counts[5:] - expected) ** 2 / expected).sum()
    assert abs(chi - 994) < 5 * np.sqrt(2 * 994)


def test_spans_are_runs_of_words_and_the_shorter_the_likelier():
    example = made([1] * 300, pair=False)
    lengths = []
    for seed in range(600):
        _, places = mask_tokens(example, MaskSettings(unit="span", most_span=3), 0.02, PIECES, chance(seed))
        groups = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        lengths += [len(group) for group in groups]
    counts = np.bincount(lengths, minlength=4)[1:4] / len(lengths)
    assert counts[0] > counts[1] > counts[2] > 0.05
    assert abs(counts[0] - 6 / 11) < 0.1  # 1 : 1/2 : 1/3, but for spans that meet or do not fit


def test_the_rate_moves_in_a_straight_line_and_stays_without_an_end():
    falling = MaskSettings(rate=0.30, rate_end=0.15)
    assert [round(falling.at(x), 4) for x in (0, 0.5, 1)] == [0.30, 0.225, 0.15]
    assert MaskSettings(rate=0.2).at(0.7) == 0.2


@pytest.mark.parametrize("wrong", [{"rate": 1.5}, {"mask": -0.1}, {"mask": 0.8, "random": 0.3}, {"rate_end": 1.2}])
def test_shares_that_cannot_be_are_refused_by_name(wrong):
    with pytest.raises(UserError, match=rf"masking\W+{next(iter(wrong))}"):
        build(MaskSettings, wrong, "masking")


def test_a_text_of_specials_alone_hides_nothing():
    example = Example(np.array([2, 3]), np.zeros(2, int), np.array([True, True]), np.array([True, True]))
    for unit in UNITS:
        ids, places = mask_tokens(example, MaskSettings(unit=unit), 0.15, PIECES, chance(0))
        assert not len(places) and ids.tolist() == [2, 3]


def test_a_masked_text_says_what_became_of_every_token():
    pytest.importorskip("rjieba")
    tokenizer = small_tokenizers()["uncased"]
    texts = ["我来到北京清华大学。", "The cat sat."]
    encoding, pieces = tokenizer.encode(*texts), MaskVocabulary.of(tokenizer)
    special = np.array(encoding.special)
    word_starts = np.ones(len(encoding), bool)
    word_starts[~special] = PieceEncoder(tokenizer).cut(texts, [True, True]).starts
    example = Example(np.array(encoding.ids), np.array(encoding.segments), special, word_starts)
    fates = {"mask": 0, "random": 0, "kept": 0, "": 0}
    for seed in range(40):
        ids, places = mask_tokens(example, MaskSettings(unit="word"), 0.5, pieces, chance(seed))
        row = described(tokenizer, example, ids, places)
        shown = [(token["token"], token["shown"], token["fate"]) for token in row["tokens"]]
        assert row["masked"] == sum(bool(fate) for _, _, fate in shown) > 0
        assert all(before == after for before, after, fate in shown if fate in ("", "kept"))
        assert all(after == "[MASK]" for _, after, fate in shown if fate == "mask")
        assert all(not token["fate"] for token in row["tokens"] if token["special"])
        assert [token["segment"] for token in row["tokens"] if token["special"]] == [0, 0, 1]
        # 北京 is one word: both characters are to be predicted, or neither.
        both = [bool(fate) for before, _, fate in shown if before in "北京"]
        assert len(both) == 2 and both[0] == both[1]
        for _, _, fate in shown:
            fates[fate] += 1
    predicted = fates["mask"] + fates["random"] + fates["kept"]
    assert 0.7 < fates["mask"] / predicted < 0.9
