"""What computes: rows of ids in, one numpy array per row out.

`Engine` is all that prediction knows of a model. PyTorch is one (`inference.py`); here is the other: an ONNX file in
onnxruntime or OpenVINO, for which torch is never imported.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bertkit import machine
from bertkit.data.batch import WORTH_SHARING, share_batches
from bertkit.data.windows import Row
from bertkit.errors import DamagedFile, UserError
from bertkit.model.crf import Chain
from bertkit.model.layer_choice import LayerChoice
from bertkit.settings.model import HEADS, Config

LAST = LayerChoice((-1,), "concat")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TOKEN_VECTORS = ("last_hidden_state", "token_embeddings")  # transformers' and sentence-transformers' name
LAYER = "hidden_states.{}"  # of a graph that gives every layer
SPAN = ("start_logits", "end_logits")
PLACES = "places"  # an input of a graph that computes its head at some tokens alone: their numbers, row after row

Spots = Sequence[tuple[int, int]]  # of one row: first token and number of tokens


@dataclass(frozen=True)
class Wanted:
    """What to compute for rows: a head's outputs, or (head "") vectors.

    A head that sees the text gives (outputs,) per row, one that sees tokens (tokens, outputs); with `places`
    (places, outputs), a place's tokens joined as `join` says before the head sees them. Vectors: (width,), or
    (tokens, width) with pool "none".
    """

    head: str = ""
    places: Sequence[Spots] | None = None  # per row
    join: str = "first"  # first | mean | max
    pool: str = "none"  # none | cls | mean | max
    layers: LayerChoice = LAST

    def of(self, numbers: Sequence[int]) -> Wanted:
        """What an engine is to compute, for some of the rows only."""
        return self if self.places is None else replace(self, places=[self.places[n] for n in numbers])


class Engine:
    """A model that computes, whatever computes it. outputs: head → how many numbers it gives, without the words'."""

    name: str
    precision: str
    device: str = "cpu"
    config: Config
    heads: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()
    outputs: Mapping[str, int] = {}
    parameters: int = 0  # 0: not known
    crf: Chain | None = None
    size: str = ""  # for people

    def compute(self, rows: Sequence[Row], wanted: Wanted, steady: bool = False) -> list[np.ndarray]:
        """An engine computes one batch: an array per row, in order. steady: the same numbers in any batch."""
        raise NotImplementedError

    def in_batches(self, sizes: Sequence[int], compute: Callable[[list[int]], None]) -> None:
        """An engine's order of batches: call `compute` with lists of indices until all are done. sizes: tokens."""
        raise NotImplementedError

    def run(
        self,
        rows: Sequence[Row],
        wanted: Wanted,
        use: Callable[[list[int], list[np.ndarray]], Sequence[Any]] | None = None,
        *,
        steady: bool = False,
    ) -> list[Any]:
        """An engine's array per row, in order; or what `use` makes of a batch's (numbers of rows, arrays)."""
        answers: list[Any] = [None] * len(rows)

        def compute(numbers: list[int]) -> None:
            arrays = self.compute([rows[n] for n in numbers], wanted.of(numbers), steady)
            for number, answer in zip(numbers, use(numbers, arrays) if use else arrays, strict=True):
                answers[number] = answer

        self.in_batches([len(row.ids) for row in rows], compute)
        return answers


# ---- ONNX files.

GRAPH = "onnx/graph.onnx"  # without weights: those of model.safetensors are put in
FILES = {"fp32": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx"}  # as transformers.js and optimum name them
AGAIN = "Export the model again: bertkit export MODEL --out FOLDER."


class Runtime(Protocol):
    """What runs the file."""

    inputs: list[str]
    outputs: dict[str, int]  # name → size of its last axis; 0: not fixed

    def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        """What runs an ONNX file: these outputs."""


class OnnxRuntime:
    """onnxruntime, with so many cores per call."""

    def __init__(
        self, path: Path, weights: Mapping[str, np.ndarray] | None = None, cores: int = 1, only: Sequence[str] = ()
    ) -> None:
        """only: the outputs that are computed; all of the file's by default."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cores
        options.log_severity_level = 4
        if weights is not None:
            self._kept = list(weights.values())  # onnxruntime does not copy them
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self._kept]
            options.add_external_initializers(list(weights), values)
        try:
            self.session = onnxruntime.InferenceSession(
                needed_part(path.read_bytes(), only), options, providers=["CPUExecutionProvider"]
            )
        except Exception as reason:  # each kind of damage has a class of its own
            raise _refused(path, reason, f"onnxruntime {onnxruntime.__version__}") from None
        self.inputs = [entry.name for entry in self.session.get_inputs()]
        self.outputs = {entry.name: _last(entry.shape) for entry in self.session.get_outputs()}

    def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        """These outputs of an ONNX file, by onnxruntime."""
        arrays: list[np.ndarray] = self.session.run(names, feed)
        return arrays


class OpenVino:
    """OpenVINO, with so many cores per call."""

    def __init__(
        self, path: Path, weights: Mapping[str, np.ndarray] | None = None, cores: int = 1, only: Sequence[str] = ()
    ) -> None:
        try:
            import openvino
        except ModuleNotFoundError:
            raise UserError("--engine openvino needs openvino: pip install 'bertkit[openvino]'.") from None
        if weights is not None:
            raise UserError(f"--engine openvino runs exported folders only. {AGAIN}")
        settings = {"INFERENCE_NUM_THREADS": machine.threads(), "NUM_STREAMS": max(1, machine.threads() // cores),
                    "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
        try:
            core = openvino.Core()
            source = core.read_model(needed_part(path.read_bytes(), only), b"") if only else path
            self.model = core.compile_model(source, "CPU", settings)
        except Exception as reason:
            raise _refused(path, reason, f"OpenVINO {openvino.__version__}") from None
        self._of_thread = threading.local()
        self.inputs = [port.get_any_name() for port in self.model.inputs]
        shapes = {port.get_any_name(): port.get_partial_shape() for port in self.model.outputs}
        self.outputs = {name: shape[-1].get_length() if shape[-1].is_static else 0 for name, shape in shapes.items()}

    def run(self, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        """These outputs of an ONNX file, by OpenVINO."""
        if not hasattr(self._of_thread, "request"):
            self._of_thread.request = self.model.create_infer_request()
        results = self._of_thread.request.infer(feed)
        return [np.array(results[name]) for name in names]  # copies: the next call writes into the same memory


RUNTIMES: dict[str, Callable[..., Runtime]] = {"onnx": OnnxRuntime, "openvino": OpenVino}


def _last(shape: Sequence[Any]) -> int:
    return shape[-1] if shape and isinstance(shape[-1], int) else 0


def _refused(path: Path, reason: Exception, by: str) -> DamagedFile:
    """The error for an ONNX file that the runtime does not open."""
    words = " ".join(str(reason).split())
    if version := re.search(r"(?:opset|IR version:?) \d+", words, re.IGNORECASE):
        newer = "It uses another ONNX version: update onnxruntime, or export the model again."
        return DamagedFile(f"{path} cannot be opened by {by} ({version[0]}). {newer}")
    return DamagedFile(f"{path} cannot be opened by {by} ({words[:240]}). {AGAIN}")


# ---- A part of an ONNX file: the format is protobuf, of which a few fields say what depends on what.

GRAPH_FIELD, NODE, INITIALIZER, OUTPUT = 7, 1, 5, 12  # of a model: its graph; of a graph: its parts
NODE_INPUT, NODE_OUTPUT, ATTRIBUTE, SUBGRAPHS = 1, 2, 5, (6, 11)
NAME = {INITIALIZER: 8, OUTPUT: 1}


def needed_part(model: bytes, only: Sequence[str]) -> bytes:
    """The part of an ONNX file that an engine needs for these outputs; unchanged if it has branches or loops."""
    if not only:
        return model
    whole = list(_fields(model))
    graph = next(content for number, content, _ in whole if number == GRAPH_FIELD)
    parts = list(_fields(graph))
    needed, unused = set(only), set()
    for place, (number, content, _) in reversed(list(enumerate(parts))):  # nodes come after those they depend on
        if number != NODE:
            continue
        fields = [(kind, bytes(part)) for kind, part, _ in _fields(content)]
        if any(sub in SUBGRAPHS for kind, part in fields if kind == ATTRIBUTE for sub, _, _ in _fields(part)):
            return model
        if needed.isdisjoint(part.decode() for kind, part in fields if kind == NODE_OUTPUT):
            unused.add(place)
        else:
            needed |= {part.decode() for kind, part in fields if kind == NODE_INPUT}
    for place, (number, content, _) in enumerate(parts):
        wanted = only if number == OUTPUT else needed
        if number in NAME:
            name = next(bytes(part).decode() for kind, part, _ in _fields(content) if kind == NAME[number])
            unused |= {place} if name not in wanted else set()
    rest = b"".join(raw for place, (_, _, raw) in enumerate(parts) if place not in unused)
    head = _varint(GRAPH_FIELD << 3 | 2) + _varint(len(rest))
    return b"".join(head + rest if number == GRAPH_FIELD else bytes(raw) for number, _, raw in whole)


def _fields(message: bytes | memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Number, content and all bytes of every field of an ONNX file's protobuf message."""
    view, at = memoryview(message), 0
    while at < len(view):
        start = at
        key, at = _number(view, at)
        if key & 7 == 2:
            size, at = _number(view, at)
        elif key & 7 == 0:
            size = _number(view, at)[1] - at
        else:
            size = {1: 8, 5: 4}[key & 7]
        yield key >> 3, view[at : at + size], view[start : at + size]
        at += size


def _number(view: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length in an ONNX file, and where it ends."""
    value = shift = 0
    while True:
        byte = view[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def _varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


class OnnxEngine(Engine):
    """An ONNX file of an encoder, whose rows are padded at the end. kind: the head that its logits are of."""

    def __init__(
        self,
        path: Path,
        config: Config,
        kind: str = "",
        *,
        runtime: str = "onnx",
        precision: str = "fp32",
        weights: Mapping[str, np.ndarray] | None = None,
        crf: Chain | None = None,
        transformed: bool = False,
    ) -> None:
        """weights: by name, for a file that has none. transformed: the head is more than one linear map."""
        self.name, self.precision, self.config, self.crf = runtime, precision, config, crf
        self.path, self.transformed, self._weights = path, transformed, weights
        self._opened: dict[tuple[int, tuple[str, ...]], Runtime] = {}
        self._lock, self._of_thread = threading.Lock(), threading.local()
        self.runtime = self._runtime()
        names = self.runtime.outputs
        if not {"logits", *SPAN, *TOKEN_VECTORS} & set(names) or not {"input_ids"} <= set(self.runtime.inputs):
            raise UserError(
                f"{path} is not the file of an encoder: it turns {', '.join(self.runtime.inputs)} into "
                f"{', '.join(names)}. {AGAIN}"
            )
        if unknown := sorted(set(self.runtime.inputs) - {*INPUTS, "position_ids", PLACES}):
            raise UserError(f"{path} asks for {', '.join(unknown)}, which bertkit does not know. {AGAIN}")
        self.kind = "span" if SPAN[0] in names else kind if "logits" in names else ""
        self.heads = (self.kind,) if self.kind else ()
        if self.kind and self.kind != "mlm":
            self.outputs = {self.kind: HEADS[self.kind].outputs or names["logits"]}
        held = sum(array.nbytes for array in weights.values()) if weights else path.stat().st_size
        self.parameters = sum(array.size for array in weights.values()) if weights else 0
        self.size = f"{held / 1e6:.1f} MB"

    def _runtime(self, only: tuple[str, ...] = ()) -> Runtime:
        """The file, opened once for every use: with all cores per call or one, for all outputs or `only` some.

        A few texts are computed by all cores together, which is faster for them; with many texts, cores that share
        each product would wait for each other.
        """
        key = getattr(self._of_thread, "cores", machine.threads()), only
        with self._lock:
            if key not in self._opened:
                self._opened[key] = RUNTIMES[self.name](self.path, self._weights, *key)
            return self._opened[key]

    def _pool(self, threads: int) -> ThreadPoolExecutor:
        """Threads in which the ONNX engine computes on one core each."""
        return ThreadPoolExecutor(threads, initializer=setattr, initargs=(self._of_thread, "cores", 1))

    def in_batches(self, sizes: Sequence[int], compute: Callable[[list[int]], None]) -> None:
        """The ONNX engine's batches, each core's its own."""
        threads = 1 if sum(sizes) < WORTH_SHARING else machine.threads()
        share_batches(sizes, compute, threads, self._pool)

    def compute(self, rows: Sequence[Row], wanted: Wanted, steady: bool = False) -> list[np.ndarray]:
        """The ONNX engine computes one padded batch."""
        lengths = [len(row.ids) for row in rows]
        if max(lengths, default=0) > self.config.max_tokens:
            raise UserError(
                f"A text has {max(lengths)} tokens; this model's limit is {self.config.max_tokens}. "
                "Truncate it (--on-long truncate), or read it in windows (--on-long window)."
            )
        if PLACES in self.runtime.inputs and wanted.head:
            return self._at_places(rows, lengths, wanted)
        names = self._names(wanted)
        # Runtimes compute every output of a file, asked for or not, and words are most of the work of a small model.
        words_unwanted = self.kind == "mlm" and not wanted.head and PLACES not in self.runtime.inputs
        runtime = self._runtime(tuple(names) if words_unwanted else ())
        arrays = runtime.run(names, self._feed(rows, lengths, runtime.inputs))
        if not wanted.head:
            return _pooled(wanted.layers.join_arrays(arrays), lengths, wanted.pool)
        answer = np.stack(arrays, -1) if self.kind == "span" else arrays[0]
        if HEADS[wanted.head].looks_at == "pooler":
            return list(answer)
        parts = [row[:length] for row, length in zip(answer, lengths)]
        if wanted.places is None:
            return parts
        return [self._joined(part, spots, wanted.join) for part, spots in zip(parts, wanted.places, strict=True)]

    def _at_places(self, rows: Sequence[Row], lengths: Sequence[int], wanted: Wanted) -> list[np.ndarray]:
        """(places, outputs) per row, by an ONNX graph that computes no others."""
        places = wanted.places or [[(place, 1) for place in range(length)] for length in lengths]
        length = max(1, *lengths)
        numbers = [n * length + first for n, spots in enumerate(places) for first, _ in spots]
        feed = self.feed(rows) | {PLACES: np.array(numbers, np.int64)}
        ends = np.cumsum([len(spots) for spots in places])[:-1]
        return np.split(self._runtime().run(["logits"], feed)[0], ends)

    def feed(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """The inputs of the ONNX file for a padded batch."""
        return self._feed(rows, [len(row.ids) for row in rows], self.runtime.inputs)

    def _feed(self, rows: Sequence[Row], lengths: Sequence[int], names: Sequence[str]) -> dict[str, np.ndarray]:
        """Rows of ids as the padded inputs of an ONNX graph."""
        shape = len(rows), max(1, *lengths)
        feed: dict[str, np.ndarray] = {name: np.zeros(shape, np.int64) for name in INPUTS}
        feed["input_ids"] += self.config.padding
        for n, (row, length) in enumerate(zip(rows, lengths)):
            feed["input_ids"][n, :length] = row.ids
            feed["attention_mask"][n, :length] = 1
            if row.segments is not None:
                feed["token_type_ids"][n, :length] = row.segments
        most = max(self.config.segments - 1, 0)
        feed["token_type_ids"] = np.minimum(feed["token_type_ids"], most)
        feed["position_ids"] = np.broadcast_to(np.arange(shape[1]), shape) + self.config.first_position
        feed[PLACES] = np.zeros(0, np.int64)
        return {name: feed[name] for name in names}

    def _names(self, wanted: Wanted) -> list[str]:
        """The outputs of the ONNX file that the engine needs."""
        if wanted.head:
            return list(SPAN) if self.kind == "span" else ["logits"]
        names = self.runtime.outputs
        if wanted.layers.only_last:
            chosen = [name for name in TOKEN_VECTORS if name in names][:1]
        else:
            chosen = [LAYER.format(n) for n in wanted.layers.numbers]
        if chosen and all(name in names for name in chosen):
            return chosen
        what = "only the last layer" if {*TOKEN_VECTORS} & set(names) else "no vectors"
        raise UserError(
            f"{self.path} gives {what}. Use the model it was exported from with --engine torch, or --layers last."
        )

    def _joined(self, tokens: np.ndarray, spots: Spots, join: str) -> np.ndarray:
        """The ONNX engine's outputs of places from those of tokens: (places, outputs)."""
        if join == "first":
            return tokens[[first for first, _ in spots]]
        if join != "mean" or self.transformed:
            raise UserError(
                f"This model reads a word as the {join} of its pieces' vectors, and {self.path} has the outputs of "
                "pieces alone. Use the model it was exported from with --engine torch."
            )
        # A linear map of the mean is the mean of the linear maps.
        means = [tokens[first : first + count].mean(0) for first, count in spots]
        return np.stack(means) if means else tokens[:0]


def _pooled(tokens: np.ndarray, lengths: Sequence[int], pool: str) -> list[np.ndarray]:
    """An ONNX engine's token vectors (texts, length, width), pooled: (width,) per text, or (tokens, width)."""
    parts = [row[:length].astype(np.float32, copy=False) for row, length in zip(tokens, lengths)]
    if pool == "none":
        return parts
    return [part[0] if pool == "cls" else part.mean(0) if pool == "mean" else part.max(0) for part in parts]
