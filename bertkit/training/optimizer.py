"""AdamW with bias correction and decoupled decay, or Muon beside it; no decay on norms, biases and other vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.errors import UserError
from bertkit.training.distributed import is_sharded, like, whole


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by name, shared ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def make_optimizers(
    model: nn.Module,
    *,
    kind: str = "adamw",
    decay: float,
    betas: tuple[float, float],
    eps: float,
    scale: Callable[[str], float] = lambda name: 1.0,
) -> list[torch.optim.Optimizer]:
    """The optimisers that share the model; `scale` gives a parameter's share of the learning rate (layer-wise decay).

    kind "adamw": one for everything. "muon": Muon for the matrices of the layers, AdamW for the rest.
    Embeddings with sparse gradients have Adam's sparse form, which touches only the rows a step has used, and no decay.
    """
    sharded = any(is_sharded(p) for p in model.parameters())
    if kind == "muon" and sharded:
        raise UserError("Muon needs whole matrices: with --shard, use --set loop.optimizer=adamw.")
    matrices: dict[tuple[bool, float], list[nn.Parameter]] = {}
    rows: dict[tuple[bool, float], list[nn.Parameter]] = {}
    others: dict[tuple[bool, float], list[nn.Parameter]] = {}
    sparse = {id(module.weight) for module in model.modules() if getattr(module, "sparse", False)}
    for name, parameter in named(model).items():
        in_a_layer = ".layers." in name and parameter.dim() == 2
        groups = rows if id(parameter) in sparse else matrices if kind == "muon" and in_a_layer else others
        groups.setdefault((parameter.dim() >= 2, scale(name)), []).append(parameter)
    # The fused kernel does not take tensors that are spread over ranks.
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(_groups(others, decay), lr=1.0, betas=betas, eps=eps, fused=not sharded)
    ]
    if matrices:
        # A step as long as AdamW's would be, so that both live on one learning rate.
        made.append(torch.optim.Muon(_groups(matrices, decay), lr=1.0, adjust_lr_fn="match_rms_adamw"))
    if rows:
        made.append(torch.optim.SparseAdam(_groups(rows, 0.0), lr=1.0, betas=betas, eps=eps))
    return made


def _groups(parameters: dict[tuple[bool, float], list[nn.Parameter]], decay: float) -> list[dict[str, Any]]:
    return [
        {"params": members, "weight_decay": decay if decays else 0.0, "scale": share}
        for (decays, share), members in parameters.items()
    ]


def set_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """The rate of the coming step, times each group's share."""
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["lr"] = rate * group["scale"]


def optimizer_tensors(optimizers: list[torch.optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """The optimisers' memory under parameter names, for saving."""
    found: dict[str, Tensor] = {}
    for name, parameter in named(model).items():
        for optimizer in optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                found[f"{key}:{name}"] = whole(value)
    return found


def load_optimizer_tensors(
    optimizers: list[torch.optim.Optimizer],
    model: nn.Module,
    tensors: dict[str, Tensor],
    passing: tuple[str, ...] = (),
) -> None:
    """Bring the optimisers' memory back. passing: beginnings of names that may be gone."""
    parameters = named(model)
    owners = {p: o for o in optimizers for group in o.param_groups for p in group["params"]}
    for full, value in tensors.items():
        key, _, name = full.partition(":")
        if name not in parameters and name.startswith(passing):
            continue
        parameter = parameters[name]
        spread = value if key == "step" else like(value, parameter)
        owners[parameter].state[parameter][key] = spread.clone()


# ---- Learning rates as pure functions of the step; every schedule ends exactly at the last step.

# progress after the warm-up (0 to 1) → share of the peak
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: 0.5 * (1 + math.cos(math.pi * x)),
    "trapezoid": lambda x: min(1.0, (1 - x) / 0.2),  # flat, then down over the last fifth
    "constant": lambda x: 1.0,
}


def rate(
    step: int, steps: int, peak: float, *, warmup: float = 0.0, shape: str = "linear", floor: float = 0.0
) -> float:
    """The learning rate of this step (counted from 0): up over the first `warmup` share, then down by `shape`."""
    up = round(warmup * steps)
    if step < up:
        return peak * (step + 1) / up
    progress = (step - up) / max(1, steps - up)
    return peak * (floor + (1 - floor) * SHAPES[shape](min(1.0, progress)))
