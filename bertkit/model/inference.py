"""Prepares a trained model's weights for inference, once, and answers with them: the engine that runs on PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit import machine
from bertkit.data.batch import Batch, pack, rounded, run_batched
from bertkit.data.windows import Row
from bertkit.errors import UserError
from bertkit.machine import has_fast_bf16
from bertkit.model.encoder import Encoded, FeedForward
from bertkit.model.engine import Engine, Spots, Wanted
from bertkit.model.heads import HEADS, Head, Model, Transform
from bertkit.model.layers import ACTIVATION, Linear
from bertkit.notify import short_count

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
        """A linear layer prepared for int8 inference. x: (tokens, in). Returns (tokens, out), in x's precision."""
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

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, fused: tuple[str, str] = ("none", "")
    ) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), None)
        self.bias = None if bias is None else bias.detach().to(dtype)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        """A linear layer prepared for inference. x: (…, in). Returns (…, out)."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.fused[0], [], self.fused[1])


class PreparedWords:
    """The mlm head's map to the vocabulary, prepared for inference at its first use: vectors do not need it."""

    linear: PreparedLinear | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As `word_scores` of the heads, bit for bit."""
        if self.linear is None:
            self.linear = PreparedLinear(weight, bias, x.dtype)
        return self.linear(x)


class CastLinear(nn.Module):
    """A linear map prepared for inference whose weights are stored in the precision of its input."""

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = linear.weight.detach().to(dtype)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """A linear layer that inference runs in another precision. x: (…, in). Returns (…, out)."""
        return nn.functional.linear(x, self.weight, self.bias)


def prepare(model: Model, precision: str = "auto", device: torch.device | str = "cpu") -> Model:
    """Prepare a model for inference, in place: evaluation mode, precision, weight layout. Returns it.

    precision int8: the layers' products in int8, everything between them and the heads in float32.
    """
    on_cpu = torch.device(device).type == "cpu"
    if precision == INT8 and not on_cpu:
        raise UserError("int8 models run on the CPU only. Leave out --device or --precision.")
    dtype = torch.float32 if precision == INT8 else choose(precision, device)
    model.eval().requires_grad_(False).to(device)
    model.encoder.dtype = dtype
    if precision == INT8:
        _replace(model.encoder.layers, Int8Linear)
    elif on_cpu and dtype == torch.bfloat16 and _onednn_takes_bf16():
        for module in model.modules():
            if isinstance(module, FeedForward) and not module.gated and module.activation in _FUSED:
                module.wide = _prepared(module.wide, dtype, _FUSED[module.activation])  # type: ignore[assignment]
                module.activation = nn.Identity()
            elif isinstance(module, Transform) and module.activation in _FUSED:
                module.dense = _prepared(module.dense, dtype, _FUSED[module.activation])  # type: ignore[assignment]
                module.activation = nn.Identity()
            elif isinstance(module, Head) and module.out is None:
                module.word_scores = PreparedWords()
        _replace(model, lambda linear: _prepared(linear, dtype))
    elif dtype != torch.float32:
        _replace(model, lambda linear: CastLinear(linear, dtype))
    return model


def _prepared(linear: Linear, dtype: torch.dtype, fused: tuple[str, str] = ("none", "")) -> PreparedLinear:
    return PreparedLinear(linear.weight, linear.bias, dtype, fused)


def _onednn_takes_bf16() -> bool:
    """Whether oneDNN multiplies bfloat16 here; on a CPU with AVX2 alone it refuses."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_prepared(model: nn.Module) -> bool:
    """Whether a model is prepared for inference: it can no longer be saved."""
    return any(isinstance(module, (PreparedLinear, CastLinear, Int8Linear)) for module in model.modules())


def _replace(module: nn.Module, make) -> None:  # type: ignore[no-untyped-def]
    """Replace the linear maps of a module by ones prepared for inference."""
    for name, child in list(module.named_children()):
        if isinstance(module, Head) and name == "out":
            continue  # a head's output map stays float32
        if isinstance(child, Linear):
            setattr(module, name, make(child))
        else:
            _replace(child, make)


# ---- A model that answers on PyTorch.


class TorchEngine(Engine):
    """A model of ours, on its device; `prepare` has been called if it is to be fast."""

    name = "torch"

    def __init__(self, model: Model, device: str = "cpu") -> None:
        self.model, self.device, self.config = model, device, model.config
        self.heads, self.untrained = tuple(model.heads), model.untrained
        integers = any(isinstance(module, Int8Linear) for module in model.modules())
        self.precision = INT8 if integers else {torch.float32: "fp32", torch.bfloat16: "bf16"}[model.encoder.dtype]
        self.crf = None if model.crf is None else model.crf.chain()

    def in_batches(self, sizes: Sequence[int], compute: Callable[[list[int]], None]) -> None:
        """Torch's inference: each core computes batches of its own."""
        run_batched(sizes, compute, self.device)

    def pack(self, rows: Sequence[Row], multiple: int = 1, steady: bool = False) -> Batch:
        """Rows as a batch on the device of torch's engine."""
        segmented = any(row.segments is not None for row in rows) and self.config.segments > 1
        segments = [row.segments or [0] * len(row.ids) for row in rows] if segmented else None
        return pack([row.ids for row in rows], segments, multiple=multiple, steady=steady).to(self.device)

    def encode(
        self, rows: Sequence[Row], use: Callable[[Encoded], Sequence[Any]], *, layers: bool, maps: bool, steady: bool
    ) -> list[Any]:
        """Torch's inference: encode rows in the fastest order; `use` returns one answer per row of its batch."""
        answers: list[Any] = [None] * len(rows)

        def compute(numbers: list[int]) -> None:
            batch = self.pack([rows[n] for n in numbers], steady=steady)
            results = use(self.model.encoder(batch, layers=layers, maps=maps))
            for number, answer in zip(numbers, results, strict=True):
                answers[number] = answer

        self.in_batches([len(row.ids) for row in rows], compute)
        return answers

    def compute(self, rows: Sequence[Row], wanted: Wanted, steady: bool = False) -> list[np.ndarray]:
        """Torch's inference of one packed batch."""
        tokens = sum(len(row.ids) for row in rows)
        batch = self.pack(rows, (rounded(tokens) or 1) if wanted.head else 1, steady)
        encoded: Encoded = self.model.encoder(batch, layers=not wanted.layers.only_last)
        if wanted.head and wanted.places is not None:
            return self._at_places(encoded, wanted, wanted.places)
        if wanted.head:
            outputs = self.model.ask(wanted.head, encoded).float()
            by_text = HEADS[wanted.head].looks_at == "pooler"
            return [part.cpu().numpy() for part in (batch.restore(outputs) if by_text else batch.split(outputs))]
        if not wanted.layers.only_last:
            encoded.tokens = wanted.layers.pick(encoded.layers)
        return _pooled(encoded, wanted.pool)

    def _at_places(self, encoded: Encoded, wanted: Wanted, places: Sequence[Spots]) -> list[np.ndarray]:
        """Torch's inference of places alone: (places, outputs) per row; the head sees nothing else."""
        batch = encoded.batch
        counts = [len(spots) for spots in places]
        spots = torch.tensor([spot for row in places for spot in row], dtype=torch.long, device=batch.starts.device)
        if not len(spots):
            width = self.config.vocabulary if wanted.head == "mlm" else _outputs(self.model.head(wanted.head))
            return [np.zeros((0, width), np.float32) for _ in places]
        starts = batch.restore(batch.starts).repeat_interleave(torch.tensor(counts, device=spots.device))
        vectors = join_tokens(encoded.tokens, starts + spots[:, 0], spots[:, 1], wanted.join)
        filled = F.pad(vectors, (0, 0, 0, rounded(len(spots)) - len(spots)))  # few different shapes, as for batches
        outputs = self.model.ask(wanted.head, replace(encoded, tokens=filled))[: len(spots)].float()
        return [part.cpu().numpy() for part in outputs.split(counts)]


def torch_engine(model: Model, precision: str, device: str, *, int8: bool = False) -> TorchEngine:
    """A torch model, prepared for inference. int8: its weights are stored so, and computed with where that is fast."""
    machine.set_up(machine.threads())
    device = machine.device_for(device)
    if precision == "auto" and int8 and device == "cpu":
        precision = INT8 if machine.has_fast_int8() else precision
    # counted before the weights get their new layout
    outputs, parameters = outputs_of_heads(model), sum(p.numel() for p in model.parameters())
    engine = TorchEngine(prepare(model, precision, device), device)
    engine.outputs, engine.parameters = outputs, parameters
    engine.size = f"{short_count(parameters)} parameters"
    return engine


def _outputs(head: Head) -> int:
    return 0 if head.out is None else head.out.weight.shape[0]


def outputs_of_heads(model: Model) -> dict[str, int]:
    """How many numbers each head gives at inference; without the words'."""
    return {kind: count for kind in model.heads if (count := _outputs(model.head(kind)))}


def join_tokens(tokens: Tensor, at: Tensor, pieces: Tensor, how: str) -> Tensor:
    """Words' vectors from their pieces' at inference. tokens: (tokens, width); at, pieces: (words,)."""
    if how == "first":
        return tokens[at]
    within = torch.arange(int(pieces.sum()), device=at.device) - (pieces.cumsum(0) - pieces).repeat_interleave(pieces)
    parts = tokens[at.repeat_interleave(pieces) + within].float()
    return torch.segment_reduce(parts, how, lengths=pieces).to(tokens.dtype)


def _pooled(encoded: Encoded, pool: str) -> list[np.ndarray]:
    """One vector per text of a batch at inference, in the caller's order; pool none: one (tokens, width) per text."""
    batch = encoded.batch
    if pool == "none":
        return [part.float().cpu().numpy() for part in batch.split(encoded.tokens)]
    if pool == "cls":
        return list(batch.restore(encoded.tokens[batch.starts].float()).cpu().numpy())
    parts = []
    for group in batch.groups:
        rows = encoded.tokens[group.start : group.stop]
        if group.lengths is None:
            square = rows.view(group.texts, group.length, -1)
            parts.append(square.mean(1, dtype=torch.float32) if pool == "mean" else square.amax(1).float())
        else:
            parts.append(torch.segment_reduce(rows.float(), pool, lengths=group.lengths))
    return list(batch.restore(torch.cat(parts)).cpu().numpy())
