"""Beam search: judged by trying every target there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertkit.ancestors.transformer.beam_search import Hypothesis, normalised, search
from bertkit.ancestors.transformer.data import TextPair
from bertkit.errors import UserError
from tests.support.small_transformer import VOCABULARY, outputs, transformer

BEGIN, END, NEVER = 0, 1, (0,)
PIECES = 4  # BEGIN, END and two that can be written
seeds = st.integers(0, 10_000)
penalties = st.sampled_from([0.0, 0.6, 1.0, 2.0])


class Language:
    """Any distribution over targets: the odds of the next piece are drawn afresh for every source and beginning."""

    def __init__(self, seed: int, sharpness: float = 2.0) -> None:
        self.seed, self.sharpness = seed, sharpness

    def logits(self, source: list[int], written: list[int]) -> np.ndarray:
        return np.random.default_rng((self.seed, *source, 99, *written)).normal(0, self.sharpness, PIECES)

    def start(self, sources) -> Language:
        memory = Language(self.seed, self.sharpness)
        memory.sources, memory.rows = [list(source) for source in sources], None
        return memory

    def step(self, ids: Tensor, place: int, memory: Language) -> Tensor:
        memory.rows = memory.rows or [[] for _ in ids]
        beam = len(ids) // len(memory.sources)
        for row, last in zip(memory.rows, ids.tolist()):
            assert len(row) == place
            row.append(last)
        found = [self.logits(memory.sources[n // beam], row) for n, row in enumerate(memory.rows)]
        return torch.tensor(np.array(found), dtype=torch.float32)

    def select(self, rows: Tensor, texts: Tensor) -> None:
        self.rows = [list(self.rows[n]) for n in rows.tolist()]
        self.sources = [self.sources[n] for n in texts.tolist()]

    def probability(self, source: list[int], target: list[int]) -> float:
        """The log-probability of these pieces in a row."""
        total = 0.0
        for place, piece in enumerate(target):
            odds = self.logits(source, [BEGIN, *target[:place]])
            total += odds[piece] - np.log(np.exp(odds).sum())
        return total

    def all_targets(self, source: list[int], limit: int, penalty: float) -> list[Hypothesis]:
        """Every target that comes to its end within the limit, the best first."""
        found = []
        for size in range(limit):
            for ids in product(range(2, PIECES), repeat=size):
                score = normalised(self.probability(source, [*ids, END]), size + 1, penalty)
                found.append(Hypothesis(list(ids), score, True))
        return sorted(found, key=lambda one: -one.score)


def look(language, sources, *, beam: int, penalty: float = 0.6, limit: int = 4, **other) -> list[list[Hypothesis]]:
    limits = other.pop("limits", [limit] * len(sources))
    return search(
        language, sources, begin=BEGIN, end=END, never=NEVER, beam=beam, penalty=penalty, limits=limits
    )  # fmt: skip


@given(seeds, penalties)
@settings(max_examples=40, deadline=None)
def test_a_beam_wide_enough_finds_what_trying_everything_finds(seed, penalty) -> None:
    language, sources = Language(seed), [[5], [6, 7]]
    for source, found in zip(sources, look(language, sources, beam=16, penalty=penalty)):
        best = language.all_targets(source, 4, penalty)[0]
        assert found[0].ids == best.ids and found[0].score == pytest.approx(best.score, abs=1e-4)


@given(seeds, penalties, st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_no_hypothesis_is_worth_more_or_less_than_its_score_says(seed, penalty, beam) -> None:
    language, source = Language(seed), [3]
    (found,) = look(language, [source], beam=beam, penalty=penalty, limit=5)
    best = language.all_targets(source, 5, penalty)[0].score
    assert 1 <= len(found) <= beam and len({tuple(one.ids) for one in found}) == len(found)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        said = [*one.ids, END] if one.finished else one.ids
        assert not set(one.ids) & {BEGIN, END}
        assert one.score == pytest.approx(normalised(language.probability(source, said), len(said), penalty), abs=1e-4)
        assert not one.finished or one.score <= best + 1e-4


def greedy(language: Language, source: list[int], limit: int) -> tuple[list[int], bool]:
    written: list[int] = []
    while len(written) < limit:
        odds = language.logits(source, [BEGIN, *written])
        odds[list(NEVER)] = -np.inf
        if odds.argmax() == END:
            return written, True
        written.append(int(odds.argmax()))
    return written, False


@given(seeds, penalties)
@settings(max_examples=60, deadline=None)
def test_a_beam_of_one_is_greedy(seed, penalty) -> None:
    language, sources = Language(seed, 1.0), [[4], [5], [6]]
    for source, found in zip(sources, look(language, sources, beam=1, penalty=penalty, limit=9)):
        assert (found[0].ids, found[0].finished) == greedy(language, source, 9)


@given(seeds, st.integers(1, 4), st.lists(st.integers(1, 8), min_size=2, max_size=5))
@settings(max_examples=40, deadline=None)
def test_texts_written_together_are_written_as_they_are_alone(seed, beam, limits) -> None:
    language, sources = Language(seed), [[n, 3] for n in range(len(limits))]
    together = look(language, sources, beam=beam, limits=limits)
    for source, limit, found in zip(sources, limits, together):
        assert [found] == look(language, [source], beam=beam, limit=limit)


class Endless(Language):
    """Never comes to an end."""

    def logits(self, source: list[int], written: list[int]) -> np.ndarray:
        return np.array([9.0, -1000.0, 1.0, 0.0])


def test_what_is_broken_off_at_the_limit_is_said_to_be() -> None:
    (found,) = look(Endless(0), [[2]], beam=2, limit=3)
    assert [one.finished for one in found] == [False, False]
    assert found[0].ids == [2, 2, 2]
    assert found[0].score == pytest.approx(normalised(Endless(0).probability([2], [2, 2, 2]), 3, 0.6), abs=1e-4)


def test_a_longer_target_is_excused_by_the_penalty() -> None:
    assert normalised(-6.0, 1, 0.6) == pytest.approx(-6.0)
    assert normalised(-6.0, 13, 1.0) == pytest.approx(-2.0)  # (5 + 13) / 6 = 3
    assert normalised(-6.0, 50, 0.0) == -6.0
    with pytest.raises(UserError, match="length penalty is -1"):
        look(Language(0), [[1]], beam=2, penalty=-1)


def test_no_text_is_nothing_to_search() -> None:
    assert look(transformer(), [], beam=3) == []


@pytest.mark.parametrize("beam", [1, 3])
def test_the_transformers_scores_are_those_of_reading_the_target_whole(beam) -> None:
    model, sources = transformer(), [[5, 6, 7, 1], [8, 1], [9, 10, 1]]
    found = look(model, sources, beam=beam, limit=8)
    for source, hypotheses in zip(sources, found):
        for one in hypotheses:
            said = [*one.ids, END] if one.finished else one.ids
            given_ids = [BEGIN, *said[:-1]]
            logits = model.words.logits(outputs(model, [TextPair(source, given_ids, said)])[0]).detach()
            total = logits.log_softmax(-1)[torch.arange(len(said)), said].sum()
            assert one.score == pytest.approx(normalised(float(total), len(said), 0.6), abs=1e-4)


def test_the_transformers_best_target_is_the_best_of_all() -> None:
    model = transformer()
    never = [n for n in range(VOCABULARY) if n not in (END, 7, 8, 9)]
    (found,) = search(
        model, [[4, 5, 1]], begin=BEGIN, end=END, never=never, beam=60, penalty=0.6, limits=[4]
    )  # fmt: skip
    every = [[*ids, END] for size in range(4) for ids in product((7, 8, 9), repeat=size)]
    scores = []
    for said, one in zip(every, outputs(model, [TextPair([4, 5, 1], [BEGIN, *said[:-1]], said) for said in every])):
        total = model.words.logits(one).detach().log_softmax(-1)[torch.arange(len(said)), said].sum()
        scores.append((normalised(float(total), len(said), 0.6), said[:-1]))
    assert found[0].ids == max(scores)[1] and found[0].score == pytest.approx(max(scores)[0], abs=1e-4)
