"""AdamW with bias correction and decoupled decay, optionally with Muon; no decay on norms, biases and other vectors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bertkit.errors import UserError
from bertkit.machine import has_fast_bf16
from bertkit.training.distributed import is_sharded, like, whole


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters an optimizer trains, by name, shared ones once."""
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
    """The model's optimizers; `scale` gives a parameter's factor on the learning rate (layer-wise decay).

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
    # The fused kernel does not support sharded tensors.
    optimizers: list[torch.optim.Optimizer] = [
        eager(torch.optim.AdamW)(_groups(others, decay), lr=1.0, betas=betas, eps=eps, fused=not sharded)
    ]
    if matrices:
        # Steps are scaled to AdamW's, so that one learning rate serves both.
        on_cpu = all(p.device.type == "cpu" for members in matrices.values() for p in members)
        muon = FloatMuon if on_cpu and not has_fast_bf16() else torch.optim.Muon
        optimizers.append(eager(muon)(_groups(matrices, decay), lr=1.0, adjust_lr_fn="match_rms_adamw"))
    if rows:
        optimizers.append(eager(torch.optim.SparseAdam)(_groups(rows, 0.0), lr=1.0, betas=betas, eps=eps))
    return optimizers


@cache
def eager(kind: Any) -> Any:
    """An optimizer's class without torch's wrappers for torch.compile, which optimizers here never pass through.

    The wrappers of these methods import torch._dynamo, and sympy with it: seconds at the start of every run.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in ("step", "add_param_group", "zero_grad")}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(methods["step"])})


class FloatMuon(torch.optim.Muon):
    """torch's Muon in float32, which multiplies in bfloat16: 20 times slower on a CPU without such instructions."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of Muon; every matrix with a gradient moves by its orthogonalized momentum."""
        for group in self.param_groups:
            momentum, rate = group["momentum"], float(group["lr"])
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                buffer = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
                update = orthogonalized(
                    parameter.grad.lerp(buffer, momentum), group["ns_coefficients"], group["ns_steps"]
                )
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.add_(update, alpha=-rate * 0.2 * math.sqrt(max(parameter.shape)))


def orthogonalized(matrix: Tensor, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    """Muon's matrix with its singular values near one, by Newton-Schulz iterations (Jordan et al. 2024)."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def _groups(parameters: dict[tuple[bool, float], list[nn.Parameter]], decay: float) -> list[dict[str, Any]]:
    return [
        {"params": members, "weight_decay": decay if decays else 0.0, "scale": share}
        for (decays, share), members in parameters.items()
    ]


def set_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """Set the optimizers' learning rate of the next step, times each group's factor."""
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["lr"] = rate * group["scale"]


def optimizer_tensors(optimizers: list[torch.optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """The optimizers' state under parameter names, for saving."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in named(model).items():
        for optimizer in optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{key}:{name}"] = whole(value)
    return tensors


def load_optimizer_tensors(
    optimizers: list[torch.optim.Optimizer],
    model: nn.Module,
    tensors: dict[str, Tensor],
    passing: tuple[str, ...] = (),
) -> None:
    """Restore the optimizers' state. passing: prefixes of parameters that may no longer exist."""
    parameters = named(model)
    owners = {p: o for o in optimizers for group in o.param_groups for p in group["params"]}
    for full, value in tensors.items():
        key, _, name = full.partition(":")
        if name not in parameters and name.startswith(passing):
            continue
        parameter = parameters[name]
        stored = value if key == "step" else like(value, parameter)
        owners[parameter].state[parameter][key] = stored.clone()


# ---- Learning rates as pure functions of the step; every schedule ends exactly at the last step.

# progress after the warm-up (0 to 1) → fraction of the peak
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: 0.5 * (1 + math.cos(math.pi * x)),
    "trapezoid": lambda x: min(1.0, (1 - x) / 0.2),  # flat, then down over the last fifth
    "constant": lambda x: 1.0,
}


def rate(
    step: int, steps: int, peak: float, *, warmup: float = 0.0, shape: str = "linear", floor: float = 0.0
) -> float:
    """The optimizers' learning rate of this step (from 0): `warmup` of the steps upwards, then down by `shape`."""
    up = round(warmup * steps)
    if step < up:
        return peak * (step + 1) / up
    progress = (step - up) / max(1, steps - up)
    return peak * (floor + (1 - floor) * SHAPES[shape](min(1.0, progress)))
