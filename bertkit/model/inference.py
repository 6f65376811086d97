"""Weights made ready once for inference: what a trained model becomes before it answers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.errors import UserError
from bertkit.machine import has_fast_bf16
from bertkit.model.encoder import FeedForward
from bertkit.model.heads import Head, Model, Transform
from bertkit.model.int8 import Int8Linear
from bertkit.model.layers import ACTIVATION, Linear

INT8 = "int8"
PRECISIONS = ("auto", "fp32", "bf16")
_FUSED = {ACTIVATION["gelu"]: ("gelu", "none"), ACTIVATION["gelu_tanh"]: ("gelu", "tanh")}


def choose(precision: str, device: torch.device | str = "cpu") -> torch.dtype:
    """The precision to compute in: `auto` is bf16 where the hardware has it."""
    if precision not in PRECISIONS:
        raise UserError(f"precision is {precision!r}; it must be one of {', '.join(PRECISIONS)}.")
    if precision == "auto":
        kind = torch.device(device).type
        able = has_fast_bf16() if kind == "cpu" else kind == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bf16" if able else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]


class PreparedLinear(nn.Module):
    """A linear map with its weights laid out once for oneDNN, and the activation after it fused in."""

    def __init__(self, linear: Linear, dtype: torch.dtype, fused: tuple[str, str] = ("none", "")) -> None:
        super().__init__()
        plain = linear.weight.detach().to(dtype)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(plain, None)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, in). Returns (…, out)."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.fused[0], [], self.fused[1])


class CastLinear(nn.Module):
    """A linear map whose weights are kept at the precision of what comes in."""

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = linear.weight.detach().to(dtype)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, in). Returns (…, out)."""
        return nn.functional.linear(x, self.weight, self.bias)


def prepare(model: Model, precision: str = "auto", device: torch.device | str = "cpu") -> Model:
    """Make a model ready to answer, in place: evaluation mode, precision, weights laid out. Returns it.

    precision int8: the layers' products in int8, everything between them and the heads in float32.
    """
    if precision == INT8:
        if torch.device(device).type != "cpu":
            raise UserError("int8 is computed on a CPU. Leave --device out, or --precision.")
        model.eval().requires_grad_(False).to(device)
        model.encoder.dtype = torch.float32
        _replace(model.encoder.layers, Int8Linear)
        return model
    dtype = choose(precision, device)
    model.eval().requires_grad_(False).to(device)
    model.encoder.dtype = dtype
    if torch.device(device).type == "cpu" and dtype == torch.bfloat16 and torch.backends.mkldnn.is_available():
        for module in model.modules():
            if isinstance(module, FeedForward) and not module.gated and module.activation in _FUSED:
                module.wide = PreparedLinear(module.wide, dtype, _FUSED[module.activation])  # type: ignore[assignment]
                module.activation = nn.Identity()
            elif isinstance(module, Transform) and module.activation in _FUSED:
                module.dense = PreparedLinear(module.dense, dtype, _FUSED[module.activation])  # type: ignore[assignment]
                module.activation = nn.Identity()
        _replace(model, lambda linear: PreparedLinear(linear, dtype))
    elif dtype != torch.float32:
        _replace(model, lambda linear: CastLinear(linear, dtype))
    return model


def is_prepared(model: nn.Module) -> bool:
    """Whether weights were laid out to answer: such a model cannot be written any more."""
    return any(isinstance(module, (PreparedLinear, CastLinear, Int8Linear)) for module in model.modules())


def _replace(module: nn.Module, make) -> None:  # type: ignore[no-untyped-def]
    for name, child in list(module.named_children()):
        if isinstance(module, Head) and name == "out":
            continue  # a head's last map stays float32
        if isinstance(child, Linear):
            setattr(module, name, make(child))
        else:
            _replace(child, make)
