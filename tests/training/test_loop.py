"""The loop: sums over counts however the work is cut, AdamW as written down, and a stop before harm."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bertkit.model.heads import Model
from bertkit.settings.model import Config
from bertkit.settings.training import LoopSettings
from bertkit.training.distributed import World
from bertkit.training.loop import NotFinite, Training
from bertkit.training.optimizer import FloatMuon, make_optimizers, named, rate, set_rate
from tests.support import synthetic
from tests.support.losses import STEPS, Distance, Numbers, gradients, training


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_store(tmp_path_factory.mktemp("training"), 40).folder


@pytest.mark.parametrize("micro_tokens", [1, 40, 55])
def test_micro_batches_give_the_gradients_of_one_batch(micro_tokens, store):
    one, many = training(store, World()), training(store, World(), micro_tokens)
    assert len(one.feed.step(0)) == 1 and len(many.feed.step(0)) >= 4
    lengths = one.feed.step(0)[0].lengths
    assert len(set(lengths)) > 3, "the case is uneven lengths"
    whole, cut = gradients(one), gradients(many)
    for a, b in zip(one, many):
        assert a.loss == pytest.approx(b.loss, rel=1e-6) and a.tokens == b.tokens
    # The first step's gradients are of equal weights; later ones differ by what AdamW makes of the rounding.
    for name, gradient in whole[0].items():
        assert (cut[0][name] - gradient).norm() <= 1e-6 * gradient.norm(), name


def test_a_mean_of_means_would_have_been_told_apart(store):
    """The case above can fail: averaging each micro-batch by itself gives another gradient."""
    run = training(store, World(), 40)
    run.objective.train()
    whole = gradients(run)
    next(iter(run))
    fresh = training(store, World(), 40)
    batches = fresh.feed.step(0)
    for batch in batches:
        counts = fresh.objective.counts(batch)
        losses = fresh.objective(batch)
        torch.stack([loss / counts[name] / len(batches) for name, loss in losses.items()]).sum().backward()
    parts = {name: p.grad for name, p in fresh.objective.named_parameters()}
    assert max((parts[n] - g).norm() / g.norm() for n, g in whole[0].items()) > 0.01


def test_adamw_is_the_one_written_down():
    """Decoupled decay on the matrix, none on the bias, both moments corrected, the rate of each step."""
    s = LoopSettings(lr=0.1, warmup=0.5, decay=0.3, beta1=0.8, beta2=0.9, eps=1e-3, clip=0.5)
    run = Training(Distance(), Numbers(), 3, s)
    values = {k: p.detach().numpy().astype(np.float64) for k, p in named(run.objective).items()}
    first = {k: np.zeros_like(v) for k, v in values.items()}
    second = {k: np.zeros_like(v) for k, v in values.items()}
    for number, step in enumerate(run):
        x = np.array([[n / 10, 0.1] for n in (number, number + 1, number + 2)])
        out = x @ values["layer.weight"].T + values["layer.bias"]
        grads = {"layer.weight": out.T @ x / 3, "layer.bias": out.sum(0) / 3}
        length = math.sqrt(sum((g**2).sum() for g in grads.values()))
        assert step.loss == pytest.approx((out**2).sum() / 2 / 3, rel=1e-5)
        assert step.gradient == pytest.approx(length, rel=1e-5)
        lr = rate(number, 3, 0.1, warmup=0.5)
        assert step.lr == lr
        for name, gradient in grads.items():
            gradient = gradient * min(1.0, 0.5 / (length + 1e-6))
            first[name] = 0.8 * first[name] + 0.2 * gradient
            second[name] = 0.9 * second[name] + 0.1 * gradient**2
            if name == "layer.weight":
                values[name] = values[name] * (1 - lr * 0.3)
            mean, square = first[name] / (1 - 0.8 ** (number + 1)), second[name] / (1 - 0.9 ** (number + 1))
            values[name] = values[name] - lr * mean / (np.sqrt(square) + 1e-3)
        for name, parameter in named(run.objective).items():
            np.testing.assert_allclose(parameter.detach().numpy(), values[name], rtol=1e-5, atol=1e-7)
    assert number == 2


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_norms_and_biases_never_decay_and_all_else_does(norm):
    model = Model(Config(vocabulary=50, width=16, depth=2, heads=2, inner=24, norm=norm), {"mlm": 0, "text": 3})
    (optimizer,) = make_optimizers(model, decay=0.1, betas=(0.9, 0.99), eps=1e-6)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        is_free = name.endswith("bias") or "norm" in name
        assert decays[id(parameter)] == (0.0 if is_free else 0.1), name
    assert len(decays) == len(list(model.parameters()))


def test_muon_takes_the_matrices_of_the_layers_and_adamw_all_else():
    model = Model(Config(vocabulary=50, width=16, depth=2, heads=2, inner=24), {"mlm": 0})
    adamw, muon = make_optimizers(model, kind="muon", decay=0.1, betas=(0.9, 0.99), eps=1e-6)
    owned = [{id(p) for group in o.param_groups for p in group["params"]} for o in (adamw, muon)]
    assert not owned[0] & owned[1]
    for name, parameter in model.named_parameters():
        assert (id(parameter) in owned[1]) == (".layers." in name and parameter.dim() == 2), name


def test_a_step_of_muon_turns_all_directions_alike():
    model = Model(Config(vocabulary=50, width=16, depth=1, heads=2, inner=24))
    _, muon = make_optimizers(model, kind="muon", decay=0.0, betas=(0.9, 0.99), eps=1e-6)
    matrix = model.encoder.layers[0].feed_forward.narrow.weight  # (16, 24)
    before = matrix.detach().clone()
    matrix.grad = torch.randn(16, 24, generator=torch.Generator().manual_seed(0))
    set_rate([muon], 0.01)
    muon.step()
    stretched = torch.linalg.svdvals(matrix.detach() - before) / (0.01 * 0.2 * 24**0.5)
    assert stretched.min() > 0.3 and stretched.max() < 1.5  # Newton–Schulz is rough on purpose
    assert torch.linalg.svdvals(matrix.grad).max() / torch.linalg.svdvals(matrix.grad).min() > 5


@pytest.mark.parametrize("shape", [(48, 32), (32, 48), (40, 40)])
def test_muon_in_float32_takes_the_step_of_torchs_muon(shape):
    noise = torch.Generator().manual_seed(1)
    first = torch.randn(shape, generator=noise)
    gradients = [torch.randn(shape, generator=noise) for _ in range(3)]
    ends = []
    for kind in (torch.optim.Muon, FloatMuon):
        matrix = torch.nn.Parameter(first.clone())
        optimizer = kind([matrix], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        for gradient in gradients:
            matrix.grad = gradient.clone()
            optimizer.step()
        assert set(optimizer.state[matrix]) == {"momentum_buffer"}  # a checkpoint of one opens in the other
        ends.append(matrix.detach() - first)
    assert (ends[0] - ends[1]).norm() < 0.03 * ends[0].norm()  # torch's rounds to bfloat16


def test_a_parameters_share_of_the_rate_is_its_own():
    run = Training(
        Distance(), Numbers(), 1, LoopSettings(lr=0.1, warmup=0), scale=lambda n: 0.0 if "bias" in n else 1.0
    )
    before = {k: p.detach().clone() for k, p in named(run.objective).items()}
    list(run)
    after = named(run.objective)
    assert torch.equal(after["layer.bias"], before["layer.bias"])
    assert not torch.equal(after["layer.weight"], before["layer.weight"])


def test_a_loss_that_is_no_number_stops_before_the_weights_are_touched():
    objective = Distance(spoilt=4)  # first met in step 2, in its second micro-batch
    run = Training(objective, Numbers(), 10, LoopSettings(lr=0.25, warmup=0, schedule="constant", ema=0.9))
    steps = iter(run)
    next(steps), next(steps)
    before = {k: p.detach().clone() for k, p in named(objective).items()}
    average = {k: p.clone() for k, p in run.average.items()}
    with pytest.raises(NotFinite) as told:
        next(steps)
    words = str(told.value)
    for part in (
        "Step 2",
        "nan",
        "learning rate 0.25",
        "pieces [3, 4]",
        "were not changed",
        "--allow-changed-settings",
    ):
        assert part in words
    assert all(torch.equal(p, before[k]) for k, p in named(objective).items())
    assert all(torch.equal(p, average[k]) for k, p in run.average.items())
    assert run.done == 2 and run.state()["done"] == 2


def test_an_infinite_gradient_stops_too():
    objective = Distance()
    objective.layer.weight.register_hook(lambda gradient: gradient / 0)
    with pytest.raises(NotFinite, match=r"gradient norm (inf|nan)"):
        list(Training(objective, Numbers(), 2, LoopSettings()))


def test_averaged_weights_follow_at_their_pace():
    run = Training(Distance(), Numbers(), 6, LoopSettings(lr=0.1, ema=0.7))
    wanted = {k: p.detach().clone() for k, p in named(run.objective).items()}
    for _ in run:
        wanted = {k: 0.7 * wanted[k] + 0.3 * p.detach() for k, p in named(run.objective).items()}
    for name, average in run.average.items():
        torch.testing.assert_close(average, wanted[name])
        assert not torch.equal(average, named(run.objective)[name])


def test_without_averaging_nothing_is_kept_for_it():
    run = Training(Distance(), Numbers(), 1, LoopSettings())
    assert run.average == {} and run.tensors().keys() == {"weights", "optimizer"}


def test_a_saved_state_goes_on_as_if_nothing_had_happened():
    settings = LoopSettings(lr=0.1, ema=0.5)
    whole = Training(Distance(), Numbers(), 6, settings)
    losses = [step.loss for step in whole]
    first = Training(Distance(), Numbers(), 6, settings)
    steps = iter(first)
    seen = [next(steps).loss for _ in range(3)]
    saved = {file: {k: t.clone() for k, t in group.items()} for file, group in first.tensors().items()}
    second = Training(Distance(), Numbers(), 1, settings)
    second.load(saved.__getitem__, first.state())
    seen += [step.loss for step in second]
    assert seen == losses and second.done == 6
    for file, group in whole.tensors().items():
        assert all(torch.equal(second.tensors()[file][name], tensor) for name, tensor in group.items())


def test_the_end_of_a_run_can_be_moved_while_it_runs():
    run = Training(Distance(), Numbers(), 100, LoopSettings(lr=1.0, warmup=0))
    rates = []
    for step in run:
        rates.append(step.lr)
        if step.step == 4:
            run.set_steps(10)
    assert len(rates) == 10
    assert rates[4] == rate(4, 100, 1.0) and rates[9] == pytest.approx(0.1)


def test_models_with_and_without_biases_have_both_kinds_of_parameters():
    for bias in (True, False):
        config = Config(vocabulary=50, width=16, depth=1, heads=2, inner=24, bias=bias, norm_bias=bias)
        groups = make_optimizers(Model(config), decay=0.1, betas=(0.9, 0.99), eps=1e-6)[0].param_groups
        assert {group["weight_decay"] for group in groups} == {0.0, 0.1}


def test_a_run_has_as_many_steps_as_asked(store):
    run = training(store, World())
    assert [step.step for step in run] == list(range(STEPS)) and run.done == STEPS
    assert list(run) == []
