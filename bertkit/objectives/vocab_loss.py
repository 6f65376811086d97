"""Cross-entropy over the vocabulary without ever keeping its logits.

Logits of all masked positions over a 30,000-piece vocabulary are the largest array in a step.
Here they are computed chunk by chunk, turned into their own gradient in place, and used at once for
both gradients; nothing of that size is kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bertkit.data.batch import ROUND

CHUNK = 512  # rows at a time: 512 × 30,000 logits are 30 MB in bf16


class _VocabLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        """Loss and gradients, chunk by chunk of the vocabulary's logits."""
        total = x.new_zeros((), dtype=torch.float32)
        work = weight.to(x.dtype)
        offset = torch.zeros(weight.shape[0], dtype=x.dtype, device=x.device) if bias is None else bias.to(x.dtype)
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
        grad_bias = torch.zeros(weight.shape[0], device=x.device)
        blank = targets < 0
        targets = targets.clamp(min=0)
        for start in range(0, x.shape[0], CHUNK):
            rows, target = x[start : start + CHUNK], targets[start : start + CHUNK]
            skip = blank[start : start + CHUNK]
            logits = torch.addmm(offset, rows, work.t()).float()
            target_logits = logits.gather(1, target[:, None])
            high = logits.amax(1, keepdim=True)
            sums = logits.sub_(high).exp_().sum(1, keepdim=True)
            total += (sums.log() + high - target_logits)[~skip].sum()
            grad = logits.mul_(1 / sums).to(x.dtype)
            grad[torch.arange(len(target), device=x.device), target] -= 1
            grad[skip] = 0
            torch.mm(grad, work, out=grad_x[start : start + CHUNK])
            grad_weight += grad.t() @ rows
            # Summing by a product with ones is faster here than a reduction over the first axis.
            grad_bias += (grad.new_ones(1, len(target)) @ grad)[0]
        ctx.save_for_backward(grad_x, grad_weight, grad_bias)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_weight, grad_bias = ctx.saved_tensors
        return (
            grad_x * grad.to(grad_x.dtype),
            grad_weight.mul_(grad),
            grad_bias.mul_(grad) if ctx.needs_input_grad[2] else None,
            None,
        )


@torch.no_grad()
def judged(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[float, float]:
    """For evaluation: the summed cross-entropy over the vocabulary, and how many targets are the likeliest.

    Chunk by chunk, as in training.
    """
    loss = right = 0.0
    work, offset = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    for rows, target in zip(x.split(CHUNK), targets.split(CHUNK)):
        logits = torch.nn.functional.linear(rows, work, offset).float()
        loss += float(torch.nn.functional.cross_entropy(logits, target, reduction="sum"))
        right += float((logits.argmax(-1) == target).sum())
    return loss, right


def rounded(places: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Places and targets of the vocabulary's loss, filled up to a multiple of ROUND with targets to ignore."""
    missing = -len(places) % ROUND
    fill = torch.nn.functional.pad
    return fill(places, (0, missing)), fill(targets, (0, missing), value=-1)


def vocab_loss(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Summed cross-entropy over the vocabulary.

    x: (n, width), weight: (vocabulary, width), targets: (n,), -1 to ignore.
    """
    if not torch.is_grad_enabled():
        logits = (
            torch.nn.functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
            for x in x.split(CHUNK)
        )
        pairs = zip(logits, targets.split(CHUNK))
        parts = [
            torch.nn.functional.cross_entropy(row.float(), target, reduction="sum", ignore_index=-1)
            for row, target in pairs
        ]
        return torch.stack(parts).sum() if parts else x.new_zeros((), dtype=torch.float32)
    return _VocabLoss.apply(x, weight, bias, targets)
