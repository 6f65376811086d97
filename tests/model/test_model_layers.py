"""Dropout, first weights and the numbers of an encoder."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bertkit.data.batch import pack
from bertkit.errors import UserError
from bertkit.model.heads import HEADS, Model
from bertkit.model.layers import Dropout, DropoutMasks, Norm, RmsNorm
from bertkit.settings.model import Config
from tests.support.small_encoders import FAMILIES, config, model_of, rows

BIG = torch.Size((400, 1000))


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_the_mean_and_drops_the_share_it_says(rate: float, dtype: torch.dtype) -> None:
    chance = DropoutMasks()
    chance.seed(3, 0)
    mask = chance.mask(BIG, rate, dtype).float()
    assert mask.mean().item() == pytest.approx(1, abs=6 * math.sqrt(rate / (1 - rate) / BIG.numel()) + 1e-4)
    assert (mask == 0).float().mean().item() == pytest.approx(rate, abs=0.005)
    assert len(mask.unique()) == 2


def drawn(*key: int) -> torch.Tensor:
    chance = DropoutMasks()
    chance.seed(*key)
    return torch.cat([chance.mask(torch.Size((40, 50)), 0.1, torch.float32).flatten() for _ in range(3)])


def test_dropout_is_a_function_of_seed_step_rank_and_part_alone() -> None:
    keys = [(1, 2, 0, 0), (2, 2, 0, 0), (1, 3, 0, 0), (1, 2, 1, 0), (1, 2, 0, 1), (1, 66, 0, 0)]
    masks = [drawn(*key) for key in keys]
    assert all(torch.equal(mask, drawn(*key)) for mask, key in zip(masks, keys))
    assert not any(torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])


def test_dropout_after_a_resumed_step_is_what_it_would_have_been() -> None:
    going, resumed = DropoutMasks(), DropoutMasks()
    for step in range(130):  # over the borders of two pools
        going.seed(7, step)
        going.mask(torch.Size((64,)), 0.1, torch.float32)
    resumed.seed(7, 129)
    resumed.mask(torch.Size((64,)), 0.1, torch.float32)
    assert torch.equal(
        going.mask(torch.Size((9, 9)), 0.1, torch.float32), resumed.mask(torch.Size((9, 9)), 0.1, torch.float32)
    )


def test_two_dropouts_of_one_step_hide_different_places() -> None:
    chance = DropoutMasks()
    first, second = (chance.mask(BIG, 0.1, torch.float32) for _ in range(2))
    both = ((first == 0) & (second == 0)).float().mean().item()
    assert both == pytest.approx(0.01, abs=0.003)


def test_dropout_does_nothing_in_evaluation_or_at_rate_zero() -> None:
    x = torch.randn(5, 6)
    assert Dropout(0.5, DropoutMasks()).eval()(x) is x
    assert Dropout(0.0, DropoutMasks()).train()(x) is x
    assert not torch.equal(Dropout(0.5, DropoutMasks()).train()(x), x)


@torch.no_grad()
def test_training_mode_changes_answers_only_where_there_is_dropout() -> None:
    batch = pack(rows([9, 4]))
    model = model_of("bert", dropout=0.3)
    still = model.encoder(batch).tokens
    model.encoder.dropout_masks.seed(0, 5)
    moved = model.train().encoder(batch).tokens
    model.encoder.dropout_masks.seed(0, 5)
    again = model.encoder(batch).tokens
    model.eval()
    assert torch.equal(moved, again) and not torch.allclose(moved, still, atol=1e-3)
    modern = model_of("modernbert")
    quiet = modern.encoder(batch).tokens
    assert torch.equal(modern.train().encoder(batch).tokens, quiet)
    modern.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_first_weights_are_cut_normals_zero_biases_and_norms_of_one(family: str) -> None:
    torch.manual_seed(4)
    c = replace(config(family), width=64, inner=160, vocabulary=500, embedding_width=0, unique_layers=0)
    heads = {"mlm": 0, "text": 3, "token": 3} if family != "gpt2" else {"mlm": 0}
    model = Model(c, heads)
    norms = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, (Norm, RmsNorm))}
    assert norms
    back = c.init_std / math.sqrt(2 * c.depth) if c.norm == "pre" else c.init_std
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert (weight == 0).all(), name
        elif name in norms:
            assert (weight == 1).all(), name
        else:
            std = back if name.endswith(("attention.out.weight", "feed_forward.narrow.weight")) else c.init_std
            assert weight.abs().max() <= 2 * std + 1e-8, name
            if weight.numel() > 3000:  # a normal cut at two deviations has 0.880 of its deviation left
                assert weight.std().item() == pytest.approx(0.880 * std, rel=0.06), name
                assert abs(weight.mean().item()) < 0.1 * std, name


def test_first_weights_follow_the_seed() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().flatten() for p in Model(config("bert"), {"mlm": 0}).parameters()])

    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))


def test_shared_layers_are_visited_in_order() -> None:
    model = Model(replace(config("albert"), depth=6, unique_layers=2))
    visits: list[int] = []
    for number, layer in enumerate(model.encoder.layers):
        layer.register_forward_hook(lambda *_, n=number: visits.append(n))
    model.encoder(pack([[5, 6]]))
    assert visits == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "numbers, told",
    [
        ({"width": 30, "heads": 4}, "width 30.*heads 4"),
        ({"depth": 0}, "depth is 0"),
        ({"heads": 2.5}, "heads is 2.5"),
        ({"unique_layers": 13}, "unique_layers 13.*depth 12"),
        ({"max_tokens": 513}, "max_tokens 513.*512 rows"),
        ({"first_position": 2}, "first 2 unused"),
        ({"norm": "middle"}, "norm is 'middle'.*post, pre"),
        ({"activation": "swoosh"}, "activation is 'swoosh'.*gelu"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"vocabulary": -3}, "vocabulary is -3"),
        ({"positions": -1, "max_tokens": 5}, "positions is -1"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"eps": math.nan}, "eps is nan"),
        ({"init_std": -0.1}, "init_std is -0.1"),
        ({"dropout": "much"}, "dropout is 'much'"),
        ({"local_window": -2}, "local_window is -2"),
        ({"global_every": 0}, "global_every is 0"),
        ({"tied": "yes"}, "tied is 'yes'"),
        ({"rotary_base": -1.0}, "rotary_base is -1.0"),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(numbers: dict, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Config(**({"vocabulary": 100} | numbers))


def test_a_head_that_is_not_there_is_named_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"no head 'mml'.*'mlm'"):
        Model(config("bert"), {"mml": 0})
    assert set(HEADS) == {"mlm", "replaced", "next_sentence", "order", "text", "choice", "token", "span"}
