"""A conditional random field does in a few sums what trying every sequence of tags would do."""

from __future__ import annotations

import re
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.model import crf, heads
from bertkit.model.crf import Chain


@st.composite
def chains(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, Chain]:
    """Emissions of some texts, their lengths, and scores of neighbours, in double precision."""
    labels, longest, texts = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(1, longest), min_size=texts, max_size=texts))
    chance = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    size = draw(st.sampled_from([0.5, 3.0, 30.0]))

    def scores(*shape: int) -> torch.Tensor:
        return size * torch.randn(*shape, generator=chance, dtype=torch.float64)

    chain = Chain(scores(labels), scores(labels, labels), scores(labels))
    return scores(texts, longest, labels), torch.tensor(lengths), chain


def arrays(emissions: torch.Tensor, lengths: torch.Tensor, chain: Chain) -> tuple[np.ndarray, list[int], Chain]:
    """The same for what chooses tags, which does without torch."""
    return emissions.detach().numpy(), lengths.tolist(), Chain(*(torch.as_tensor(s).detach().numpy() for s in chain))


def every_sequence(emissions: torch.Tensor, length: int, chain: Chain) -> dict[tuple[int, ...], float]:
    """The score of every sequence of one text, added up word by word."""
    found = {}
    for tags in product(range(emissions.shape[1]), repeat=length):
        score = chain.start[tags[0]] + chain.end[tags[-1]]
        score = score + sum(emissions[word, tag] for word, tag in enumerate(tags))
        found[tags] = float(score + sum(chain.step[a, b] for a, b in pairwise(tags)))
    return found


@settings(deadline=None)
@given(chains())
def test_the_partition_is_the_sum_over_every_sequence(case):
    emissions, lengths, chain = case
    found = heads.log_partition(emissions, lengths, chain)
    for text, length in enumerate(lengths.tolist()):
        every = torch.tensor(list(every_sequence(emissions[text], length, chain).values()), dtype=torch.float64)
        assert float(found[text]) == pytest.approx(float(every.logsumexp(0)), abs=1e-8)


@settings(deadline=None)
@given(chains())
def test_the_best_path_is_the_best_of_every_sequence(case):
    emissions, lengths, chain = case
    found = crf.best_path(*arrays(*case))
    for text, length in enumerate(lengths.tolist()):
        every = every_sequence(emissions[text], length, chain)
        said = tuple(found[text, :length].tolist())
        assert every[said] == pytest.approx(max(every.values()), abs=1e-8)
        assert not found[text, length:].any()


@settings(deadline=None)
@given(chains())
def test_marginals_are_sums_over_the_sequences_with_that_tag_there(case):
    emissions, lengths, chain = case
    found = np.exp(crf.log_marginals(*arrays(*case)))
    for text, length in enumerate(lengths.tolist()):
        every = every_sequence(emissions[text], length, chain)
        highest = max(every.values())
        weights = {tags: torch.tensor(score - highest).double().exp() for tags, score in every.items()}
        total = sum(weights.values())
        for word, tag in product(range(length), range(emissions.shape[2])):
            wanted = sum((w for tags, w in weights.items() if tags[word] == tag), torch.tensor(0.0)) / total
            assert float(found[text, word, tag]) == pytest.approx(float(wanted), abs=1e-6)


@settings(deadline=None)
@given(chains())
def test_a_path_scores_what_its_parts_add_up_to(case):
    emissions, lengths, chain = case
    tags = torch.randint(emissions.shape[2], emissions.shape[:2], generator=torch.Generator().manual_seed(0))
    found = heads.path_score(emissions, tags, lengths, chain)
    for text, length in enumerate(lengths.tolist()):
        wanted = every_sequence(emissions[text], length, chain)[tuple(tags[text, :length].tolist())]
        assert float(found[text]) == pytest.approx(wanted, abs=1e-8)


def test_gradients_are_those_of_small_differences():
    torch.manual_seed(0)
    field = heads.Crf(3).double()
    emissions = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    tags, lengths = torch.randint(3, (2, 4)), torch.tensor([4, 2])
    parameters = [p.detach().normal_().requires_grad_() for p in field.parameters()]

    def likelihood(scores: torch.Tensor, *chain: torch.Tensor) -> torch.Tensor:
        return heads.path_score(scores, tags, lengths, Chain(*chain)) - heads.log_partition(
            scores, lengths, Chain(*chain)
        )

    assert torch.autograd.gradcheck(likelihood, (emissions, *parameters))
    # What the partition says of emissions is the marginals: two ways to one answer.
    chain = Chain(*parameters)
    (slope,) = torch.autograd.grad(heads.log_partition(emissions, lengths, chain).sum(), emissions)
    there = torch.arange(4) < lengths[:, None]
    marginals = np.exp(crf.log_marginals(*arrays(emissions, lengths, chain)))
    torch.testing.assert_close(slope[there], torch.from_numpy(marginals)[there])


def test_a_field_that_knows_nothing_tags_word_by_word():
    emissions, lengths = torch.randn(5, 7, 4), torch.tensor([7, 1, 3, 7, 2])
    chain = heads.Crf(4).chain()
    there = torch.arange(7) < lengths[:, None]
    case = arrays(emissions, lengths, chain)
    assert np.array_equal(crf.best_path(*case)[there], emissions.argmax(-1)[there])
    np.testing.assert_allclose(crf.log_marginals(*case)[there], emissions.log_softmax(-1)[there], atol=1e-5, rtol=1e-5)


# Tags of a scheme, and what a whole sentence may look like, as an expression over "tag " repeated.
SCHEMES = {
    "BIO": (["O", "B-A", "I-A", "B-B", "I-B"], r"(O |B-A (I-A )*|B-B (I-B )*)*"),
    "BIOES": (["O", "B-A", "I-A", "E-A", "S-A"], r"(O |S-A |B-A (I-A )*E-A )*"),
    "BIOES, two kinds": (["O", "B-A", "E-A", "B-B", "E-B", "S-B"], r"(O |S-B |B-A E-A |B-B E-B )*"),
    "BILOU": (["O", "B_x", "I_x", "L_x", "U_x"], r"(O |U_x |B_x (I_x )*L_x )*"),
    "BMES without kinds": (["B", "M", "E", "S"], r"(S |B (M )*E )*"),
    "a kind of one word": (["B-PER", "B-LOC", "I-LOC", "O"], r"(O |B-PER |B-LOC (I-LOC )*)*"),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_exactly_what_a_scheme_does_not_allow_is_forbidden(name):
    labels, whole = SCHEMES[name]
    rules = crf.rules_of(labels)
    assert rules is not None
    seen = set()
    for length in (1, 2, 3, 4):
        for tags in product(range(len(labels)), repeat=length):
            allowed = re.fullmatch(whole, "".join(f"{labels[tag]} " for tag in tags)) is not None
            assert crf.obeys(rules, tags) == allowed, [labels[tag] for tag in tags]
            seen.add(allowed)
    assert seen == {True, False} and crf.obeys(rules, [])


@pytest.mark.parametrize("labels", [["NOUN", "VERB"], ["O", "PER"], ["O"], ["B-A", "X-A", "O"]])
def test_other_tags_have_no_rules(labels):
    assert crf.rules_of(labels) is None


@settings(deadline=None)
@given(st.sampled_from(sorted(SCHEMES)), st.integers(0, 10**6))
def test_what_is_forbidden_is_never_chosen_however_loud_the_words(name, seed):
    labels, whole = SCHEMES[name]
    chance = torch.Generator().manual_seed(seed)
    emissions = 50 * torch.randn(4, 6, len(labels), generator=chance)
    lengths = torch.tensor([6, 5, 3, 2])
    chain = heads.Crf(len(labels)).chain().under(crf.rules_of(labels))
    case = arrays(emissions, lengths, chain)
    for tags, length in zip(crf.best_path(*case).tolist(), lengths.tolist()):
        assert re.fullmatch(whole, "".join(f"{labels[tag]} " for tag in tags[:length]))
    assert np.isfinite(crf.log_marginals(*case)).all()
