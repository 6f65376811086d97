"""The loss over the vocabulary is torch's own cross-entropy, in less memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bertkit.data.batch import pack
from bertkit.model.heads import Model
from bertkit.objectives import vocab_loss as module
from bertkit.objectives.causal import NextToken, next_pieces
from bertkit.objectives.vocab_loss import rounded, vocab_loss
from bertkit.settings.model import Config


def made(n: int, width: int = 12, vocabulary: int = 50, dtype=torch.float32, bias: bool = True):
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, width, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).requires_grad_()
    offset = torch.randn(vocabulary, generator=generator).requires_grad_() if bias else None
    return x, weight, offset, torch.randint(0, vocabulary, (n,), generator=generator)


def both(arguments, factor: float = 1.0):
    """Ours and torch's: the loss and the gradients of everything that has one."""
    x, weight, bias, targets = arguments
    wanted = [t for t in (x, weight, bias) if t is not None]
    ours = vocab_loss(x, weight, bias, targets)
    theirs = F.cross_entropy(F.linear(x.float(), weight, bias), targets, reduction="sum")
    grads = [torch.autograd.grad(loss * factor, wanted) for loss in (ours, theirs)]
    return (ours, *grads[0]), (theirs, *grads[1])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 40])
def test_loss_and_gradients_are_torchs(n, bias, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 8)
    for ours, theirs in zip(*both(made(n, bias=bias), factor=0.37)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("bias", [True, False])
def test_bf16_is_near_the_exact_loss(bias):
    ours, theirs = both(made(600, width=64, vocabulary=300, dtype=torch.bfloat16, bias=bias))
    assert ours[0].dtype == torch.float32 and abs(ours[0] / theirs[0] - 1) < 0.01
    for mine, exact in zip(ours[1:], theirs[1:]):
        assert F.cosine_similarity(mine.float().flatten(), exact.float().flatten(), dim=0) > 0.999
        assert abs(mine.float().norm() / exact.float().norm() - 1) < 0.01


def test_without_gradients_the_loss_is_the_same():
    arguments = made(1100)
    with torch.no_grad():
        without = vocab_loss(*arguments)
    torch.testing.assert_close(without, vocab_loss(*arguments).detach())


def test_judging_never_holds_the_logits_of_all_places(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 64)
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            seen.extend(
                part.numel() for part in (out if isinstance(out, (tuple, list)) else [out]) if hasattr(part, "numel")
            )
            return out

    torch.manual_seed(0)
    model = Model(Config(vocabulary=1000, width=16, depth=1, heads=2, inner=16, causal=True), {"mlm": 0})
    batch = pack([torch.randint(5, 1000, (10,)).tolist() for _ in range(100)])
    objective = NextToken(model).eval()
    with Watch():
        judged = objective.judge(batch)
    assert max(seen) <= 64 * 1000
    places, targets = next_pieces(batch)
    logits = model.ask("mlm", model.encoder(batch), places).detach()
    assert judged["next"] == pytest.approx(float(F.cross_entropy(logits, targets, reduction="sum")), rel=1e-5)
    assert judged["next:right"] == float((logits.argmax(-1) == targets).sum())


def test_no_hidden_place_is_a_loss_of_nothing_with_gradients_of_zero():
    x, weight, bias, targets = made(0)
    loss = vocab_loss(x, weight, bias, targets)
    loss.backward()
    assert loss == 0 and weight.grad.abs().max() == 0 and x.grad.shape == x.shape
    with torch.no_grad():
        assert vocab_loss(x, weight, bias, targets) == 0


def test_large_logits_do_not_overflow():
    x, weight, bias, targets = made(5)
    ours, theirs = both((x.detach().mul(1e4).requires_grad_(), weight, bias, targets))
    assert torch.isfinite(ours[0])
    torch.testing.assert_close(ours[0], theirs[0])


def test_targets_to_pass_over_cost_nothing_and_move_nothing():
    x, weight, bias, targets = made(9)
    skipped = targets.clone()
    skipped[[0, 4, 8]] = -1
    kept = skipped >= 0
    whole = vocab_loss(x, weight, bias, skipped)
    part = vocab_loss(x[kept], weight, bias, targets[kept])
    torch.testing.assert_close(whole, part)
    for ours, theirs in zip(
        torch.autograd.grad(whole, (x, weight, bias)), torch.autograd.grad(part, (x, weight, bias))
    ):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(vocab_loss(x, weight, bias, skipped), part.detach())


def test_rounded_places_are_passed_over():
    places, targets = rounded(torch.tensor([3, 9]), torch.tensor([7, 8]))
    assert len(places) == len(targets) == 64
    assert places[:2].tolist() == [3, 9] and targets.tolist() == [7, 8] + [-1] * 62
    assert [len(part) for part in rounded(torch.arange(64), torch.arange(64))] == [64, 64]


def test_a_weight_used_twice_gets_both_gradients():
    """Tied embeddings: the same table is read at the bottom and multiplied with at the top."""
    _, weight, bias, targets = made(6)
    ids = torch.arange(6)
    grads = []
    for loss in (vocab_loss, lambda x, w, b, t: F.cross_entropy(F.linear(x, w, b), t, reduction="sum")):
        grads.append(torch.autograd.grad(loss(F.embedding(ids, weight), weight, bias, targets) * 2, weight)[0])
    torch.testing.assert_close(*grads)
