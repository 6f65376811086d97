"""AdamW with bias correction and decoupled decay; no decay on norms, biases and other vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bertkit.train.world import is_sharded, like, whole


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by name, shared ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def make_optimizer(
    model: nn.Module,
    *,
    decay: float,
    betas: tuple[float, float],
    eps: float,
    scale: Callable[[str], float] = lambda name: 1.0,
) -> torch.optim.AdamW:
    """AdamW over the model; `scale` gives a parameter's share of the learning rate (layer-wise decay)."""
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in named(model).items():
        groups.setdefault((parameter.dim() >= 2, scale(name)), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": decay if decays else 0.0, "scale": share}
            for (decays, share), parameters in groups.items()
        ],
        lr=1.0,
        betas=betas,
        eps=eps,
        # The fused kernel does not take tensors that are spread over ranks.
        fused=not any(is_sharded(p) for p in model.parameters()),
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the coming step, times each group's share."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's memory under parameter names, for saving."""
    found: dict[str, Tensor] = {}
    for name, parameter in named(model).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"{key}:{name}"] = whole(value)
    return found


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Bring the optimiser's memory back."""
    parameters = named(model)
    for full, value in tensors.items():
        key, _, name = full.partition(":")
        spread = value if key == "step" else like(value, parameters[name])
        optimizer.state[parameters[name]][key] = spread.clone()
