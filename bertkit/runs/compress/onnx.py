"""Exports a model to an ONNX file, with its weights or without; `model/engine.py` runs it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.checkpoint.families import FAMILIES
from bertkit.checkpoint.folder import Folder
from bertkit.checkpoint.translate import names, tensors_to
from bertkit.data.batch import Batch, Group
from bertkit.errors import UserError
from bertkit.model.attention import Attention
from bertkit.model.encoder import Encoded
from bertkit.model.engine import INPUTS, LAYER, PLACES
from bertkit.model.heads import HEADS, Model
from bertkit.model.pooling import JOIN, Pooling, Step, activation_of

# ---- A model as other runtimes expect it: padded rows of ids in, the head's outputs out, for any batch and length.

# A text's vector from its tokens'. tokens: (texts, length, width); real: (texts, length, 1), 1.0 for tokens.
POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first": lambda tokens, real: tokens[:, 0],
    "last": lambda tokens, real: torch.take_along_dim(tokens, real.sum(1, keepdim=True).long() - 1, 1)[:, 0],
    "mean": lambda tokens, real: (tokens * real).sum(1) / real.sum(1),
    "mean_sqrt_len_tokens": lambda tokens, real: (tokens * real).sum(1) / real.sum(1).sqrt(),
    "weightedmean": lambda tokens, real: POOLS["mean"](tokens, real * real.cumsum(1)),
    "max": lambda tokens, real: (tokens + (real - 1) * 1e9).amax(1),
}


class _Unit(nn.Module):
    def forward(self, vectors: Tensor) -> Tensor:
        return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)


class _Dense(nn.Module):
    def __init__(self, step: Step) -> None:
        super().__init__()
        tensors = {name: nn.Parameter(torch.from_numpy(tensor)) for name, tensor in step.tensors.items()}
        self.weight, self.bias = tensors["linear.weight"], tensors.get("linear.bias")
        self.residual = tensors.get("residual.weight")
        self.activation = getattr(nn, activation_of(step.config))()
        self.adds = bool(step.config.get("use_residual"))

    def forward(self, vectors: Tensor) -> Tensor:
        projected = self.activation(F.linear(vectors, self.weight, self.bias))
        if not self.adds:
            return projected
        return projected + (vectors if self.residual is None else F.linear(vectors, self.residual))


def _layer(step: Step) -> nn.Module:
    """A module after the pooling, for an ONNX graph."""
    if step.kind == "LayerNorm":
        norm = nn.LayerNorm(len(step.tensors["norm.weight"]))
        norm.load_state_dict({k.removeprefix("norm."): torch.from_numpy(v) for k, v in step.tensors.items()})
        return norm
    if step.kind == "Dense":
        return _Dense(step)
    return _Unit() if step.kind == "Normalize" else nn.Identity()


class Padded(nn.Module):
    """A model as ONNX needs it: encoder and head for a padded rectangle.

    Rows are padded at the end, as every tokenizer does.
    """

    layers = False  # whether every layer's vectors are outputs too

    def __init__(self, model: Model, kind: str = "", pooling: Pooling = Pooling()) -> None:  # noqa: B008
        """kind: which head; "": the vectors of tokens and, by `pooling`, of texts."""
        super().__init__()
        self.model, self.kind, self.normalize = model, kind, pooling.normalize
        self.modes = [{"cls": "first", "lasttoken": "last"}.get(mode, mode) for mode in pooling.mode.split(JOIN)]
        self.steps = nn.Sequential(*map(_layer, pooling.steps))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of an ONNX graph's outputs, in order, as in transformers: whoever runs the file asks for some."""
        heads = {"": (), "span": ("start_logits", "end_logits")}.get(self.kind, ("logits",))
        texts = ("sentence_embedding",) if self.kind in ("", "mlm") and not self.layers else ()
        layers = tuple(LAYER.format(n) for n in range(self.model.config.depth + 1)) if self.layers else ()
        return (*heads, "last_hidden_state", *texts, *layers)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> tuple:
        """What becomes the ONNX graph: (texts, length) each, 1 for tokens in the mask → what `names` says."""
        texts, length = input_ids.shape
        encoded = self._encode(input_ids, attention_mask, token_type_ids)
        tokens = encoded.tokens.view(texts, length, -1)
        real = attention_mask[:, :, None].to(tokens.dtype)
        outputs = {"last_hidden_state": tokens}
        if "sentence_embedding" in self.names:
            vectors = self.steps(torch.cat([POOLS[mode](tokens, real) for mode in self.modes], -1))
            outputs["sentence_embedding"] = _Unit()(vectors) if self.normalize else vectors
        if self.kind and HEADS[self.kind].looks_at == "pooler":
            summary, pooler = self.model.config.summary, self.model.pooler or nn.Identity()
            late = summary == "late"
            vectors = POOLS["mean"](pooler(tokens), real) if late else pooler(POOLS[summary](tokens, real))
            outputs["logits"] = self.model.head(self.kind)(vectors)
        elif self.kind:
            logits = self.model.head(self.kind)(tokens, self.model.encoder.embeddings.tokens.weight)
            outputs |= {"logits": logits, "start_logits": logits[..., 0], "end_logits": logits[..., 1]}
        return tuple(outputs[name] for name in self.names)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of an ONNX graph's inputs."""
        return INPUTS if self.model.config.segments > 1 else INPUTS[:2]

    def _encode(self, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Encoded:
        """The rectangle of an ONNX graph as one group of texts, padding at a text's end: (texts × length, width)."""
        texts, length = ids.shape
        positions = torch.arange(length, device=ids.device)[None].expand(texts, length)
        group = Group(0, texts * length, texts, length, lengths=mask.sum(1))
        batch = Batch(
            ids=ids.reshape(-1),
            segments=(torch.zeros_like(ids) if segments is None else segments).reshape(-1),
            positions=positions.reshape(-1),
            lengths=(),  # the encoder would compare them with its limit; the runtime has its own error for long texts
            order=(),
            groups=(group,),
            starts=torch.arange(texts, device=ids.device) * length,
        )
        encoded: Encoded = self.model.encoder(batch, layers=self.layers)
        return encoded


class AtPlaces(Padded):
    """The same for every layer, with the mlm head at some places alone: numbers of tokens, counted row after row."""

    layers = True

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the ONNX graph of places, without segments: the embedded models have none."""
        return (*INPUTS[:2], PLACES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, places: Tensor) -> tuple:  # type: ignore[override]
        """The ONNX graph of places (n,): logits (n, vocabulary), and the layers' vectors (texts, length, width)."""
        texts, length = input_ids.shape
        encoded = self._encode(input_ids, attention_mask, None)
        logits = self.model.ask("mlm", encoded, places)
        vectors = [layer.view(texts, length, -1) for layer in (encoded.tokens, *encoded.layers)]
        return logits, *vectors


# ---- A model as an ONNX file.

NEEDED = ("onnx", "onnxscript", "onnxruntime")


def runtime() -> ModuleType:
    """Import onnxruntime, or say how to install what an export needs."""
    from importlib.util import find_spec

    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(f"ONNX needs {', '.join(missing)}: pip install 'bertkit[export]'.")
    import onnxruntime

    return onnxruntime


def write_onnx(path: Path, padded: Padded, *, optimize: bool = True) -> None:
    """Trace a model (float32, prepared for inference) into an ONNX file that takes any batch and length.

    optimize: let the exporter compute what follows from weights alone.
    """
    # Separate tensors, and sizes other than 0 and 1: the exporter treats equal tensors and those sizes as constants.
    ids, mask, segments = (torch.randint(1, 2, (3, 11)) for _ in INPUTS)
    given = dict(zip((*INPUTS, PLACES), (ids, mask, segments * 0, torch.arange(5))))
    values = tuple(given[name] for name in padded.inputs)
    shapes = tuple(dict.fromkeys(range(value.dim()), torch.export.Dim.DYNAMIC) for value in values)
    with contextlib.redirect_stdout(io.StringIO()), _quiet(), torch.no_grad(), _without_branches(padded.model):
        torch.onnx.export(
            padded.eval(), values, path, dynamo=True, input_names=list(padded.inputs), output_names=list(padded.names),
            dynamic_shapes=shapes, external_data=False, verbose=False,
            optimize=optimize,
        )  # fmt: skip


def quantize_onnx(path: Path, out: Path) -> None:
    """Quantize the weights of an ONNX file to int8; activations are quantized on the fly."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # the exporter's shapes contradict those quantization infers
    with _quiet():
        # 7 bits: with 8, sums of two products overflow on CPUs without VNNI (cosine 0.92 instead of over 0.98 on AVX2).
        quantize_dynamic(model, out, per_channel=True, weight_type=QuantType.QInt8, reduce_range=True)


# How the range of an activation is chosen when it is the same for every text.
# Histograms (entropy, percentiles) are not among them: onnxruntime makes them of rows of one length only.
CALIBRATIONS: dict[str, dict[str, bool]] = {"extremes": {}, "averaged extremes": {"CalibMovingAverage": True}}
MOST_CALIBRATED = 128  # batches of one row that the ranges are taken from


def quantize_static(path: Path, out: Path, feeds: Sequence[Mapping[str, np.ndarray]], calibration: str) -> None:
    """Quantize an ONNX file's weights to int8, and activations by the ranges that they have on `feeds`."""
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType

    class Rows(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.feeds = iter(feeds)

        def get_next(self) -> Mapping[str, np.ndarray] | None:
            return next(self.feeds, None)

    model = onnx.load(path)
    del model.graph.value_info[:]
    with _quiet(), contextlib.redirect_stdout(io.StringIO()):
        # Products of activations (in attention) stay float: they are a small part of the work.
        quantization.quantize_static(
            model, out, Rows(), quant_format=QuantFormat.QDQ, per_channel=True, reduce_range=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm"],
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"MatMulConstBOnly": True, **CALIBRATIONS[calibration]},
        )  # fmt: skip


def write_graph(path: Path, folder: Folder) -> None:
    """Write a model's ONNX graph alone, with an mlm head and every layer: its weights stay in model.safetensors.

    Every weight is a constant under the name it has in that file, which whoever opens the graph puts in; the graph
    knows shapes, not values, so it serves any weights of the same shapes.
    """
    import onnx
    from onnx import TensorProto, helper

    model = folder.model
    if model.config.segments > 1 or "mlm" not in model.heads:
        raise UserError(f"{folder.name} has segments or no mlm head, and this graph is of a model with neither.")
    write_onnx(path, AtPlaces(model.eval(), "mlm"), optimize=False)
    graph = onnx.load(path)
    family, architecture = FAMILIES[folder.family], folder.architecture
    stored = tensors_to(model, family, architecture)
    table = names(model, family, architecture, family.base if model.heads else "")
    joins, outside = [], []
    for ours, theirs in table.items():
        name = f"model.{ours}"  # as the exporter calls it
        old = next((weights for weights in graph.graph.initializer if weights.name == name), None)
        if old is None or any(stored[part].shape[1:] != tuple(old.dims)[1:] for part in theirs):
            raise UserError(f"{ours} is not stored as the graph uses it: a folder of {folder.family} needs an export.")
        graph.graph.initializer.remove(old)
        outside += [(part, stored[part].shape) for part in theirs]
        joins.append(
            helper.make_node("Concat", list(theirs), [name], axis=0)
            if len(theirs) > 1
            else helper.make_node("Identity", list(theirs), [name])
        )
    for name, shape in outside:
        tensor = graph.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=list(shape))
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="model.safetensors")
    nodes = [*joins, *graph.graph.node]
    del graph.graph.node[:], graph.graph.value_info[:]
    graph.graph.node.extend(nodes)
    for node in graph.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    path.write_bytes(graph.SerializeToString())


@contextlib.contextmanager
def _without_branches(model: Model) -> Iterator[None]:
    """Use one attention kernel for every length while the model is traced to ONNX."""
    parts = [module for module in model.modules() if isinstance(module, Attention)]
    for part in parts:
        part.fused_from = 0
    try:
        yield
    finally:
        for part in parts:
            del part.fused_from  # the class attribute applies again


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the ONNX exporters' messages, which do not help users."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
