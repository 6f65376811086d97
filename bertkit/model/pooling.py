"""How token vectors become one vector per text: prompts, pooling, and the layers after it, as sentence-transformers
applies them. In numpy, so that it serves any engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertkit.errors import UserError, suggest

# One text's vector from its tokens'. tokens: (tokens, width); before: how many tokens precede them and do not count.
MODES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {  # in the order in which sentence-transformers joins them
    "cls": lambda tokens, before: tokens[0],
    "max": lambda tokens, before: tokens.max(0),
    "mean": lambda tokens, before: tokens.mean(0),
    "mean_sqrt_len_tokens": lambda tokens, before: tokens.sum(0) / math.sqrt(len(tokens)),
    "weightedmean": lambda tokens, before: np.average(tokens, 0, np.arange(1, len(tokens) + 1) + before),
    "lasttoken": lambda tokens, before: tokens[-1],
}
JOIN = "+"  # between the modes whose vectors are concatenated
ROLES = {"query": ("query",), "document": ("document", "passage", "corpus")}  # the prompts of either side of a search


def check_mode(pool: str, more: Sequence[str] = ()) -> None:
    """Refuse a pooling that is not one of MODES (or of `more`), or several joined."""
    for mode in [pool] if pool in more else pool.split(JOIN):
        if mode not in MODES and mode not in more:
            raise UserError(
                f"pool is {pool!r}. {suggest(mode, [*MODES, *more])} Join several with {JOIN}, e.g. mean{JOIN}max."
            )


def pooled(tokens: np.ndarray, mode: str, skip: int = 0) -> np.ndarray:
    """One vector of a text's tokens (tokens, width), of which the first `skip` do not count: (width × modes,)."""
    counted = tokens[skip:].astype(np.float32, copy=False)
    if not len(counted):
        return np.zeros(tokens.shape[1] * len(mode.split(JOIN)), np.float32)
    return np.concatenate([MODES[name](counted, skip) for name in mode.split(JOIN)]).astype(np.float32, copy=False)


def pooled_windows(windows: Sequence[tuple[np.ndarray, tuple[int, int]]], mode: str, skip: int = 0) -> np.ndarray:
    """Like `pooled`, for a text that was read in windows: the token vectors of each and the range it owns.

    cls is the mean of the windows' first vectors, lasttoken the last vector of the last window.
    """
    if len(windows) == 1:
        return pooled(windows[0][0], mode, skip)
    start = windows[0][1][0]
    owned = np.concatenate([tokens[begin:end] for tokens, (begin, end) in windows])
    ends = {
        "cls": lambda: np.mean([tokens[0 if n else skip] for n, (tokens, _) in enumerate(windows)], axis=0),
        "lasttoken": lambda: windows[-1][0][-1],
    }
    parts = [ends[name]() if name in ends else pooled(owned, name, max(0, skip - start)) for name in mode.split(JOIN)]
    return np.concatenate(parts).astype(np.float32, copy=False)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors (n, width) scaled to length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


# ---- The modules after the pooling: each takes vectors (n, width), its config.json and its tensors.

Tensors = Mapping[str, np.ndarray]
_erf = np.vectorize(math.erf, otypes=[np.float32])
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # by the class of torch.nn
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "GELU": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
}


def activation_of(config: Mapping[str, Any]) -> str:
    """The name of a Dense layer's activation: the last part of its class path, Tanh where it is not mentioned."""
    return str(config.get("activation_function") or "torch.nn.modules.activation.Tanh").rpartition(".")[2]


def _dense(vectors: np.ndarray, config: Mapping[str, Any], tensors: Tensors) -> np.ndarray:
    """The Dense module of sentence-transformers, on vectors."""
    projected = vectors @ tensors["linear.weight"].T + tensors.get("linear.bias", np.float32(0))
    projected = ACTIVATIONS[activation_of(config)](projected)
    if not config.get("use_residual"):
        return projected
    return projected + (vectors @ tensors["residual.weight"].T if "residual.weight" in tensors else vectors)


def _layer_norm(vectors: np.ndarray, config: Mapping[str, Any], tensors: Tensors) -> np.ndarray:
    centred = vectors - vectors.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * tensors["norm.weight"] + tensors["norm.bias"]


STEPS: dict[str, Callable[[np.ndarray, Mapping[str, Any], Tensors], np.ndarray]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": lambda vectors, config, tensors: unit(vectors),
    "Dropout": lambda vectors, config, tensors: vectors,  # drops nothing once training is over
}


@dataclass(frozen=True, eq=False)
class Step:
    """One module after the pooling. kind: a key of STEPS."""

    kind: str
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """vectors: (n, width in) → (n, width out)."""
        return STEPS[self.kind](vectors, self.config, self.tensors).astype(np.float32, copy=False)

    def width(self, width: int) -> int:
        """The width of the vectors of a step after pooling, given the width of those it takes."""
        return len(self.tensors["linear.weight"]) if self.kind == "Dense" else width

    def __str__(self) -> str:
        """The module in a few words, for messages."""
        return f"Dense ({activation_of(self.config)})" if self.kind == "Dense" else self.kind


@dataclass(frozen=True)
class Pooling:
    """How a folder's vectors are made.

    mode: one of MODES, or several joined by JOIN. normalize: scale vectors to length 1 at the end. steps: the modules
    in between. include_prompt: whether a prompt's tokens are pooled too. max_tokens: where sentence-transformers
    truncates a text; 0 if the folder does not say. kept: prompts and what else its files say. refused: what bertkit
    does not support.
    """

    mode: str = "mean"
    normalize: bool = False
    refused: str = ""
    max_tokens: int = field(default=0, compare=False)
    kept: dict[str, Any] = field(default_factory=dict, compare=False)
    steps: tuple[Step, ...] = field(default=(), compare=False)
    include_prompt: bool = True

    def check(self) -> None:
        """Refuse a pooling whose vectors differ from those the folder was made for."""
        if self.refused:
            raise UserError(
                f"This folder's vectors use {self.refused}, which bertkit does not support. Ask for the "
                "encoder's own vectors (--pool mean, cls or max), or use sentence-transformers."
            )

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that come with a folder's pooling, by name."""
        return self.kept.get("prompts") or {}

    def prompt(self, name: str | None = None, text: str | None = None) -> str:
        """What is put before a text: `text` as it is, else the prompt of this name, else the folder's default.

        name "": none, not even the default.
        """
        if name and text:
            raise UserError(f"Both a prompt name ({name!r}) and a prompt's text ({text!r}) were given. Give one.")
        if text is not None:
            return text
        if name is None:
            return self.prompts.get(str(self.kept.get("default_prompt_name")), "")
        if name and name not in self.prompts:
            known = suggest(name, list(self.prompts)) if self.prompts else "It has none."
            raise UserError(
                f"This model has no prompt called {name!r}. {known} Any text can be a prompt: pass --prompt-text "
                "'TEXT' (in Python prompt_text, in the server prompt)."
            )
        return self.prompts[name] if name else ""

    def prompt_for(self, role: str) -> str:
        """The prompt of a pooling for one side of a search, of ROLES; "" if the folder has none."""
        return next((self.prompts[name] for name in ROLES[role] if name in self.prompts), "")

    def finish(self, vectors: np.ndarray, normalize: bool | None = None) -> np.ndarray:
        """Pooled vectors (n, width × modes) through the modules that follow; scaled at the end as the folder says."""
        for step in self.steps:
            vectors = step(vectors)
        return unit(vectors) if (self.normalize if normalize is None else normalize) else vectors

    def width(self, width: int) -> int:
        """The width of a text's vector, given the width of a token's."""
        width *= len(self.mode.split(JOIN))
        for step in self.steps:
            width = step.width(width)
        return width

    def widths(self, width: int) -> Iterator[tuple[Step, int, int]]:
        """Each step from token states to a text's vector: the width it is given, and the one it expects."""
        width *= len(self.mode.split(JOIN))
        for step in self.steps:
            first = step.tensors.get("linear.weight", step.tensors.get("norm.weight"))
            yield step, width, width if first is None else first.shape[-1]
            width = step.width(width)
