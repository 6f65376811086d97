"""Attention: its weights, and who may look at whom."""

from __future__ import annotations

import pytest
import torch

from bertkit.checkpoint.families import FAMILIES as TABLE
from bertkit.data.batch import pack
from bertkit.model.attention import Rotation, mask, softmax
from tests.support.families import CONFIGS, load, padded, random_model
from tests.support.small_encoders import FAMILIES, config, model_of, rows

BARE = {family: table.architectures[frozenset()].name for family, table in TABLE.items()}
LENGTHS = [7, 23, 1, 22, 12, 38]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_attention_maps_agree_with_transformers(family: str) -> None:
    theirs = random_model(family, BARE[family])
    ours = load(theirs, family, (), BARE[family])
    ids = rows(LENGTHS)
    expected = theirs(**padded(ids, CONFIGS[family].pad_token_id or 0), output_attentions=True).attentions
    encoded = ours.encoder(pack(ids), maps=True)
    assert len(encoded.maps) == len(expected) == ours.config.depth
    for mine, other in zip(encoded.maps, expected):
        packed = 0
        for group, square in zip(encoded.batch.groups, mine, strict=True):
            assert square.shape == (group.texts, ours.config.heads, group.length, group.length)
            for row in square:
                caller = encoded.batch.order[packed]
                n = LENGTHS[caller]
                torch.testing.assert_close(row[:, :n, :n], other[caller, :, :n, :n], atol=1e-5, rtol=0)
                packed += 1


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_what_a_token_gives_its_text_sums_to_one_and_padding_gets_nothing(family: str) -> None:
    encoded = model_of(family).encoder(pack(rows(LENGTHS)), maps=True)
    for squares in encoded.maps:
        for group, square in zip(encoded.batch.groups, squares):
            lengths = [group.length] * group.texts if group.lengths is None else group.lengths.tolist()
            for row, n in zip(square, lengths):
                real = row[:, :n, :n].sum(-1)
                torch.testing.assert_close(real, torch.ones_like(real), atol=1e-5, rtol=0)
                assert (row[:, :n, n:] == 0).all()


@pytest.mark.parametrize("length", [3, 4, 5, 6, 8, 9, 20])
def test_a_local_layer_sees_half_its_window_to_either_side(length: int) -> None:
    (group,) = pack(rows([length])).groups
    hidden = mask(group, config("modernbert"), True, torch.float32, torch.device("cpu"))
    seen = torch.ones(length, length) if hidden is None else (hidden == 0).float()[0, 0]
    places = torch.arange(length)
    assert torch.equal(seen.bool(), (places[:, None] - places[None, :]).abs() <= 4)


@torch.no_grad()
def test_a_causal_model_never_sees_what_comes_later() -> None:
    model, (row,) = model_of("gpt2"), rows([12])
    whole = model.encoder(pack([row])).tokens
    for n in range(1, 12):
        torch.testing.assert_close(model.encoder(pack([row[:n]])).tokens, whole[:n], atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype, close", [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_softening_is_softmax_at_every_length(dtype: torch.dtype, close: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for length in range(1, 71):
        scores = torch.randn(3, 2, length, generator=generator).mul(8).to(dtype)
        scores[0, 0, length // 2 :] = torch.finfo(dtype).min  # hidden places
        scores[0, 0, 0] = 1
        weights = softmax(scores)
        assert weights.dtype == dtype
        torch.testing.assert_close(weights.double(), scores.double().softmax(-1), atol=close, rtol=0)


@pytest.mark.parametrize("length", [5, 20, 66])
def test_softening_has_the_gradient_of_softmax(length: int) -> None:
    scores = torch.randn(4, length, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.randn(4, length, generator=torch.Generator().manual_seed(1))
    (mine,) = torch.autograd.grad((softmax(scores) * weight).sum(), scores)
    (other,) = torch.autograd.grad((scores.softmax(-1) * weight).sum(), scores)
    torch.testing.assert_close(mine, other, atol=1e-6, rtol=0)


def test_rotated_queries_and_keys_have_the_gradients_of_their_formula() -> None:
    torch.manual_seed(0)
    rotation = Rotation(torch.tensor([0, 1, 2, 0, 5]), head_width=8, base=10000.0, dtype=torch.float64)
    qkv = torch.randn(5, 3, 2, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rotation, (qkv,))
    rotated = rotation(qkv)
    assert torch.equal(rotated[:, 2], qkv[:, 2])
    angles = torch.tensor([0, 1, 2, 0, 5])[:, None] / 10000.0 ** (torch.arange(4) / 4)
    turned = torch.view_as_complex(torch.stack(qkv[:, :2].chunk(2, dim=-1), dim=-1)) * torch.polar(
        torch.ones_like(angles, dtype=torch.float64), angles.double()
    ).view(5, 1, 1, 4)
    torch.testing.assert_close(rotated[:, :2], torch.cat((turned.real, turned.imag), dim=-1), atol=1e-6, rtol=0)
