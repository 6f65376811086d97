"""Exports a model to an ONNX file, and runs such a file in place of a model."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertkit.data.batch import Batch, Group
from bertkit.errors import UserError
from bertkit.model.attention import Attention
from bertkit.model.encoder import Encoded
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
    """A module after the pooling, for a graph."""
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

    def __init__(self, model: Model, kind: str = "", pooling: Pooling = Pooling()) -> None:  # noqa: B008
        """kind: which head; "": the vectors of tokens and, by `pooling`, of texts."""
        super().__init__()
        self.model, self.kind, self.normalize = model, kind, pooling.normalize
        self.modes = [{"cls": "first", "lasttoken": "last"}.get(mode, mode) for mode in pooling.mode.split(JOIN)]
        self.steps = nn.Sequential(*map(_layer, pooling.steps))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs of `forward`, in order, as in transformers."""
        if not self.kind:
            return ("last_hidden_state", "sentence_embedding")
        return ("start_logits", "end_logits") if self.kind == "span" else ("logits",)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> tuple:
        """(texts, length) each, 1 for tokens in the mask. Returns what `names` says: (texts, …) each."""
        texts, length = input_ids.shape
        tokens = self._encode(input_ids, attention_mask, token_type_ids).view(texts, length, -1)
        real = attention_mask[:, :, None].to(tokens.dtype)
        if not self.kind:
            vectors = self.steps(torch.cat([POOLS[mode](tokens, real) for mode in self.modes], -1))
            return tokens, _Unit()(vectors) if self.normalize else vectors
        if HEADS[self.kind].looks_at == "pooler":
            summary, pooler = self.model.config.summary, self.model.pooler or nn.Identity()
            late = summary == "late"
            vectors = POOLS["mean"](pooler(tokens), real) if late else pooler(POOLS[summary](tokens, real))
            return (self.model.head(self.kind)(vectors),)
        outputs = self.model.head(self.kind)(tokens, self.model.encoder.embeddings.tokens.weight)
        return (outputs[..., 0], outputs[..., 1]) if self.kind == "span" else (outputs,)

    def _encode(self, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
        """The rectangle as one group of texts, whose padding is a text's end: (texts × length, width)."""
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
        encoded: Encoded = self.model.encoder(batch)
        return encoded.tokens


# ---- A model as an ONNX file, and such a file in a model's place.

NEEDED = ("onnx", "onnxscript", "onnxruntime")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def runtime() -> ModuleType:
    """Import onnxruntime, or say how to install what an export needs."""
    from importlib.util import find_spec

    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(f"ONNX needs {', '.join(missing)}: pip install 'bertkit[export]'.")
    import onnxruntime

    return onnxruntime


def write_onnx(path: Path, padded: Padded) -> None:
    """Trace a model (float32, prepared for inference) into an ONNX file that takes any batch and length."""
    inputs = INPUTS if padded.model.config.segments > 1 else INPUTS[:2]
    # Separate tensors, and sizes other than 0 and 1: the exporter treats equal tensors and those sizes as constants.
    ids, mask, segments = (torch.randint(1, 2, (3, 11)) for _ in INPUTS)
    texts, length = torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC
    values = (ids, mask, segments * 0)[: len(inputs)]
    with contextlib.redirect_stdout(io.StringIO()), _quiet(), torch.no_grad(), _without_branches(padded.model):
        torch.onnx.export(
            padded.eval(), values, path, dynamo=True, input_names=list(inputs), output_names=list(padded.names),
            dynamic_shapes=tuple({0: texts, 1: length} for _ in inputs), external_data=False, verbose=False,
        )  # fmt: skip


def quantize_onnx(path: Path) -> None:
    """Quantize the weights of an ONNX file to int8 in place; activations are quantized on the fly."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # the exporter's shapes contradict those quantization infers
    with _quiet():
        quantize_dynamic(model, path, per_channel=True, weight_type=QuantType.QInt8)


@contextlib.contextmanager
def _without_branches(model: Model) -> Iterator[None]:
    """Use one attention kernel for every length while the model is traced."""
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
    """Silence the exporters' messages, which do not help users."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class OnnxModel:
    """An ONNX file in place of a Model: its outputs are passed to tasks and pooling like a model's."""

    crf = None
    untrained = ()

    def __init__(self, path: Path, model: Model, kind: str) -> None:
        onnx = runtime()
        options = onnx.SessionOptions()
        options.intra_op_num_threads = 1  # batches are distributed over the cores (see data.batch.run_batched)
        options.log_severity_level = 3
        self.session = onnx.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [entry.name for entry in self.session.get_inputs()]
        self.config, self.heads, self.kind = model.config, model.heads, kind

    def encoder(self, batch: Batch, *, layers: bool = False, maps: bool = False) -> Encoded:
        """The file's outputs for a batch, in place of token vectors: one row per token, or per text. Packed order."""
        ids, segments = (
            pad_sequence(list(torch.split(run[: batch.tokens], list(batch.lengths))), batch_first=True)
            for run in (batch.ids, batch.segments)
        )
        real = torch.arange(ids.shape[1]) < torch.tensor(batch.lengths)[:, None]
        feed = dict(zip(INPUTS, (ids.numpy(), real.long().numpy(), segments.numpy())))
        arrays = self.session.run(None, {name: feed[name] for name in self.inputs})
        outputs = [torch.from_numpy(array) for array in (arrays if self.kind == "span" else arrays[:1])]
        answer = torch.stack(outputs, -1) if self.kind == "span" else outputs[0]
        by_text = self.kind and HEADS[self.kind].looks_at == "pooler"
        return Encoded(answer if by_text else answer[real], batch)

    def ask(self, kind: str, encoded: Encoded, places: Tensor | None = None) -> Tensor:
        """The head's outputs, which the file has already computed."""
        return encoded.tokens if places is None else encoded.tokens[places]
