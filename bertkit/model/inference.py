"""Prepares a trained model's weights for inference, once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.errors import UserError
from bertkit.machine import has_fast_bf16
from bertkit.model.encoder import FeedForward
from bertkit.model.heads import Head, Model, Transform
from bertkit.model.layers import ACTIVATION, Linear

# ---- Linear maps in integers: int8 weights with a scale per row, int8 activations with a scale per token.

LARGEST = 127


def to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Weights for int8 inference: integers from -127 to 127 and the scale of each row.

    x ≈ integers · scale, with an error of at most half a scale.

    x: (rows, n) float. Returns (rows, n) int8 and (rows, 1) float32. Values made from integers convert back to them.
    """
    x = x.float()
    scale = x.abs().amax(1, keepdim=True).clamp_(min=1e-30).div_(LARGEST)
    return (x / scale).round_().to(torch.int8), scale


def from_int8(numbers: Tensor, scale: Tensor) -> Tensor:
    """The float32 weights that int8 integers and their scales represent."""
    return numbers.float() * scale


class Int8Linear(nn.Module):
    """A linear map computed in int8 at inference.

    Each token has its own scale, computed on the fly: a text's outputs do not depend on its neighbours in the batch, as
    they would with one scale for all, and one loud token does not cost the others their precision.
    """

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.numbers, scale = to_int8(linear.weight.detach())
        self.scale = scale.view(-1)
        self.bias = None if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        """x: (tokens, in). Returns (tokens, out), in x's precision."""
        numbers, scale = to_int8(x)
        y = torch._int_mm(numbers, self.numbers.t()).float().mul_(scale).mul_(self.scale)
        return (y if self.bias is None else y.add_(self.bias)).to(x.dtype)


# ---- Weights prepared once, before a trained model answers.

INT8 = "int8"
PRECISIONS = ("auto", "fp32", "bf16")
_FUSED = {ACTIVATION["gelu"]: ("gelu", "none"), ACTIVATION["gelu_tanh"]: ("gelu", "tanh")}


def choose(precision: str, device: torch.device | str = "cpu") -> torch.dtype:
    """The precision to compute in, in training or inference: `auto` is bf16 if the hardware supports it."""
    if precision not in PRECISIONS:
        raise UserError(f"precision is {precision!r}; it must be one of {', '.join(PRECISIONS)}.")
    if precision == "auto":
        kind = torch.device(device).type
        supported = has_fast_bf16() if kind == "cpu" else kind == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bf16" if supported else "fp32"
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]


class PreparedLinear(nn.Module):
    """A linear map prepared for inference: weights laid out once for oneDNN, the activation after it fused in."""

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
    """A linear map prepared for inference whose weights are stored in the precision of its input."""

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = linear.weight.detach().to(dtype)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, in). Returns (…, out)."""
        return nn.functional.linear(x, self.weight, self.bias)


def prepare(model: Model, precision: str = "auto", device: torch.device | str = "cpu") -> Model:
    """Prepare a model for inference, in place: evaluation mode, precision, weight layout. Returns it.

    precision int8: the layers' products in int8, everything between them and the heads in float32.
    """
    if precision == INT8:
        if torch.device(device).type != "cpu":
            raise UserError("int8 models run on the CPU only. Leave out --device or --precision.")
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
    """Whether a model is prepared for inference: it can no longer be saved."""
    return any(isinstance(module, (PreparedLinear, CastLinear, Int8Linear)) for module in model.modules())


def _replace(module: nn.Module, make) -> None:  # type: ignore[no-untyped-def]
    for name, child in list(module.named_children()):
        if isinstance(module, Head) and name == "out":
            continue  # a head's output map stays float32
        if isinstance(child, Linear):
            setattr(module, name, make(child))
        else:
            _replace(child, make)
