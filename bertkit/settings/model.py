"""The numbers that define an encoder. A variant is a row of them, never a branch."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from bertkit.errors import UserError

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "tanh", "silu")
LEAST = {"width": 1, "depth": 1, "heads": 1, "inner": 1, "max_tokens": 1, "global_every": 1}  # 0 for the others
MOST = {"depth": 10_000}  # a shared layer may be visited any number of times; this guards against a damaged file
POSITIVE = ("eps", "init_std")


# Numbers that came after version 0.1. `repr` leaves them out where they are off, so that a run of that version is
# recognised by it.
LATER = (
    "task_types", "rms_norm", "dense_bias", "key_heads", "bias_buckets", "relative_span", "relative_limit",
    "relative_shared", "relative_norm",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Config:
    """Every number that defines a model's encoder.

    Zero switches a part off: `positions` 0 means no learned positions, `segments` 0 no segment
    vectors, `rotary_base` 0 no rotation, `local_window` 0 attention over the whole text.
    """

    vocabulary: int = 0  # 0: as many as the tokenizer has pieces
    width: int = 768
    depth: int = 12
    heads: int = 12
    inner: int = 3072
    embedding_width: int = 0  # 0: as wide as the encoder
    unique_layers: int = 0  # 0: every layer its own; 1: ALBERT's one layer visited `depth` times
    positions: int = 512  # rows of the learned position table
    first_position: int = 0  # RoBERTa counts from padding_idx + 1 = 2
    max_tokens: int = 512  # longest text, specials included
    segments: int = 2
    task_types: int = 0  # rows of ERNIE's table of tasks; every token gets the first, as in transformers
    padding: int = 0  # id of the padding piece; only written into config.json
    norm: str = "post"  # post | pre
    embedding_norm: bool = True
    norm_bias: bool = True
    rms_norm: bool = False  # norms divide by the root mean square and subtract no mean (EuroBERT)
    bias: bool = True
    dense_bias: bool = False  # the pooler and the mlm head have biases even where the layers have none
    gated: bool = False  # GeGLU: half of the inner layer gates the other half
    key_heads: int = 0  # heads of keys and values, each shared by heads / key_heads queries; 0: as many as heads
    activation: str = "gelu"
    rotary_base: float = 0.0
    local_rotary_base: float = 0.0
    local_window: int = 0  # tokens seen by a local layer, both sides together
    global_every: int = 1  # every n-th layer sees the whole text
    bias_buckets: int = 0  # MPNet: a bias per head and distance, added to the scores; this many kinds of distance
    relative_span: int = 0  # DeBERTa: distances told apart on either side, each with a vector that attention sees
    relative_limit: int = 0  # beyond half the span, distances share logarithmic buckets up to this one; 0: clipped
    relative_shared: bool = False  # distances pass through the maps of queries and keys instead of their own
    relative_norm: bool = False  # the vectors of distances are normalized
    causal: bool = False
    summary: str = "first"  # what represents the text: first | last | mean token; late: the pooler, then the mean
    summary_activation: str = "tanh"
    summary_norm: bool = False
    token_transform: bool = False  # ModernBERT puts a dense layer before token and span heads too
    tied: bool = True  # the mlm head reuses the token embeddings
    word_head: str = "full"  # full: dense, norm and bias before the vocabulary (BERT); plain: none of them (GPT)
    dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float = 0.1
    eps: float = 1e-12
    init_std: float = 0.02

    def __post_init__(self) -> None:
        """Fill in what follows from other numbers, and refuse impossible ones."""
        if not self.embedding_width:
            object.__setattr__(self, "embedding_width", self.width)
        if not self.unique_layers:
            object.__setattr__(self, "unique_layers", self.depth)
        for f in fields(self):
            requirement = _requirement(f.name, str(f.type), getattr(self, f.name))
            if requirement:
                raise UserError(f"{f.name} is {getattr(self, f.name)!r}; it must be {requirement}.")
        if self.width % self.heads:
            raise UserError(f"width {self.width} is not a multiple of heads {self.heads}; choose e.g. heads = 4.")
        if self.key_heads and self.heads % self.key_heads:
            raise UserError(f"heads {self.heads} is not a multiple of key_heads {self.key_heads}.")
        if self.rotary_base and self.head_width % 2:
            raise UserError(f"width / heads is {self.head_width}; rotary positions need an even number.")
        if self.relative_limit and not 2 <= self.relative_span < 2 * (self.relative_limit - 1):
            raise UserError(
                f"relative_span {self.relative_span} must be at least 2 and less than twice relative_limit."
            )
        if self.unique_layers > self.depth:
            raise UserError(f"unique_layers {self.unique_layers} is more than depth {self.depth}.")
        if self.positions and self.max_tokens > self.positions - self.first_position:
            raise UserError(
                f"max_tokens {self.max_tokens} is more than the position table holds "
                f"({self.positions} rows, the first {self.first_position} unused)."
            )
        tables = (
            ("norm", ("post", "pre")),
            ("summary", ("first", "last", "mean", "late")),
            ("word_head", ("full", "plain")),
            ("activation", ACTIVATIONS),
            ("summary_activation", (*ACTIVATIONS, "none")),
        )
        for name, choices in tables:
            if getattr(self, name) not in choices:
                raise UserError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}.")
        for name in ("dropout", "attention_dropout", "head_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)!r}; it must be at least 0 and less than 1.")

    @property
    def key_width(self) -> int:
        """By its config, the width of all keys, and of all values, of one token."""
        return (self.key_heads or self.heads) * self.head_width

    def __repr__(self) -> str:
        """Every number that is on, and all of version 0.1: a resumed run must have the same."""
        set_fields = [f for f in fields(self) if f.name not in LATER or getattr(self, f.name) != f.default]
        return f"Config({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in set_fields)})"

    @property
    def head_width(self) -> int:
        """The width of one attention head of this model."""
        return self.width // self.heads

    def is_global(self, layer: int) -> bool:
        """Whether this layer of the model sees the whole text."""
        return not self.local_window or layer % self.global_every == 0

    def rotary(self, layer: int) -> float:
        """The rotation base of this layer of the model; 0 means none."""
        return self.rotary_base if self.is_global(layer) else (self.local_rotary_base or self.rotary_base)


# ---- What you can ask of an encoder.


@dataclass(frozen=True)
class HeadKind:
    """What a head sees (the text's pooled vector, or every token) and how many outputs it has."""

    looks_at: str  # pooler | tokens
    outputs: int = 0  # 0: as many as there are labels
    transform: str = "never"  # a dense layer before the output: never | always | family (Config.token_transform)


HEADS = {
    "mlm": HeadKind("tokens", transform="always"),
    "replaced": HeadKind("tokens", 1, transform="always"),
    "next_sentence": HeadKind("pooler", 2),
    "order": HeadKind("pooler", 2),
    "text": HeadKind("pooler"),
    "choice": HeadKind("pooler", 1),
    "token": HeadKind("tokens", transform="family"),
    "span": HeadKind("tokens", 2, transform="family"),
}


def rows_for(vocabulary: int) -> int:
    """Rows of a model's embedding table for so many pieces; a multiple of 64 multiplies faster."""
    return -(-vocabulary // 64) * 64


def is_trained(kind: str, untrained: Collection[str]) -> bool:
    """Whether a model's head can be used: neither it nor the pooler it sees is untrained."""
    return kind not in untrained and HEADS[kind].looks_at not in untrained


def _requirement(name: str, kind: str, value: Any) -> str:
    """What this number of a model's settings must be, or empty if it is valid."""
    if kind == "int":
        least, most = LEAST.get(name, 0), MOST.get(name, math.inf)
        fits = type(value) is int and least <= value <= most
        return "" if fits else f"a whole number {f'from {least} to {most}' if name in MOST else f'of at least {least}'}"
    if kind == "float":
        fits = type(value) in (int, float) and math.isfinite(value) and value >= 0 and (value or name not in POSITIVE)
        return "" if fits else f"a number {'above' if name in POSITIVE else 'of at least'} 0"
    return "" if kind != "bool" or type(value) is bool else "true or false"
