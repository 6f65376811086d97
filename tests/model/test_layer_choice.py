"""The six layer choices of the BERT paper, and lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.model.layer_choice import CHOICES, choose
from tests.support import folders

TEXTS = ["the cat sat on the mat .", "paris", "is the capital of france old ? new ! the dog ran fast"]
WANTED = {  # from transformers' hidden_states: 0 is the embeddings, 4 the last of four layers
    "embeddings": lambda h: h[0],
    "last": lambda h: h[4],
    "second-to-last": lambda h: h[3],
    "sum-last-4": lambda h: h[1] + h[2] + h[3] + h[4],
    "concat-last-4": lambda h: torch.cat([h[1], h[2], h[3], h[4]], -1),
    "sum-all": lambda h: h[1] + h[2] + h[3] + h[4],
    "-1,-2": lambda h: torch.cat([h[4], h[3]], -1),
    "0,2,4": lambda h: torch.cat([h[0], h[2], h[4]], -1),
    "2": lambda h: h[2],
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("layers")
    theirs = folders.write(folder, "bert", "BertModel")
    return Predictor.load(folder, "fp32"), theirs


@pytest.mark.parametrize("choice", WANTED)
@torch.no_grad()
def test_every_layer_choice_agrees_with_transformers(choice: str, both) -> None:
    ours, theirs = both
    vectors = ours.embed(TEXTS, layers=choice, pool="none")
    means = ours.embed(TEXTS, layers=choice)
    for text, tokens, mean in zip(TEXTS, vectors, means):
        ids = torch.tensor([ours.tokenizer.encode(text).ids])
        expected = WANTED[choice](theirs(ids, output_hidden_states=True).hidden_states)[0]
        np.testing.assert_allclose(tokens, expected, atol=1e-5)
        np.testing.assert_allclose(mean, expected.mean(0), atol=1e-5)


def test_numbers_may_be_a_list_and_the_width_follows(both) -> None:
    ours, _ = both
    assert np.array_equal(ours.embed(TEXTS, layers=[-1, -2]), ours.embed(TEXTS, layers="-1,-2"))
    assert ours.embed([], layers=[0, 1, 2]).shape == (0, 96)
    assert ours.embed([], layers="sum-all").shape == (0, 32)


@pytest.mark.parametrize("name", CHOICES)
def test_a_model_of_one_layer_has_every_choice(name: str) -> None:
    chosen = choose(name, 1)
    layers = [torch.zeros(2, 3), torch.ones(2, 3)]
    expected = 0 if name in ("embeddings", "second-to-last") else 1
    assert (chosen.pick(layers) == expected).all() and chosen.width(3) == 3


@given(st.integers(1, 30), st.data())
def test_a_negative_number_counts_from_the_end(depth: int, data) -> None:
    number = data.draw(st.integers(0, depth))
    layers = [torch.full((1, 1), float(n)) for n in range(depth + 1)]
    for given_number in (number, number - depth - 1):
        chosen = choose([given_number], depth)
        assert chosen.pick(layers).item() == number
        assert chosen.only_last == (number == depth)


@pytest.mark.parametrize("wrong, told", [("lsat", "layers is 'lsat'.*concat-last-4"), ("13", "no layer 13.*to 12"),
                                         ("-14", "no layer -14"), ("1,,2", "layers is"), ("", "layers is"),
                                         ("1.5", "layers is"), ([], "layers is"), ("1,x", "layers is")])  # fmt: skip
def test_a_wrong_choice_is_reported_with_what_there_is(wrong, told: str) -> None:
    with pytest.raises(UserError, match=told):
        choose(wrong, 12)
