"""What a row of the table of families is made of, and the parts that many rows share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bertkit.settings.model import Config

if TYPE_CHECKING:
    from torch import Tensor

Rows = dict[str, str | tuple[str, ...]]
Raw = dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    """One class of a family in transformers: its name, and where it keeps the pooler (None: it has none)."""

    name: str
    pooler: str | None = None


def _no_numbers(raw: Raw, where: str) -> dict[str, Any]:
    return {}


def _no_keys(config: Config) -> Raw:
    return {}


@dataclass(frozen=True)
class Family:
    """A row of the table of families: how transformers spells its config and its tensors."""

    model_type: str
    base: str
    numbers: dict[str, str]  # our number → their key
    fixed: dict[str, Any]  # our numbers that no key tells
    defaults: dict[str, Any]  # their keys' defaults, for configs that leave them out
    rows: Rows
    architectures: dict[frozenset[str], Architecture]
    written: dict[str, Any] = field(default_factory=dict)  # keys config.json carries beside the numbers
    transposed: tuple[str, ...] = ()  # our modules whose weights this family stores the other way round
    untied_bias: str = ""  # the mlm head's bias when it is not tied: beside the decoder instead of beside the head
    refused: dict[str, Any] = field(default_factory=dict)  # keys of this family, and the only value we implement
    spellings: dict[str, dict[str, str]] = field(default_factory=dict)  # where values are not spelled as elsewhere
    older_keys: dict[str, str] = field(default_factory=dict)  # names that older files use → today's
    derive: Callable[[Raw, str], dict[str, Any]] = _no_numbers  # our numbers that no single key tells; str: the file
    fold: Callable[[Config], Raw] = _no_keys  # those numbers back into keys
    older_tensors: tuple[tuple[str, str], ...] = ()  # regular expressions of older tensor names → today's
    interleaved: tuple[str, ...] = ()  # our modules whose queries and keys rotate neighbours instead of halves
    computed: Mapping[str, Callable[[Config], Tensor]] = field(default_factory=dict)  # tensors that are no weights
    own_ids: tuple[str, ...] = ()  # ids of special tokens whose defaults fit transformers' own vocabulary only
    zero_biases: bool = False  # older files leave out biases that are zero


def layer(at: str, rows: Rows) -> Rows:
    """Rows of a family's layers, each below `at` on transformers' side and `encoder.layers.{n}.` on ours."""
    return {
        f"encoder.layers.{{n}}.{ours}": f"{at}{theirs}"
        if isinstance(theirs, str)
        else tuple(f"{at}{part}" for part in theirs)
        for ours, theirs in rows.items()
    }


def architectures(
    stem: str,
    special: dict[tuple[str, ...], Architecture],
    text: str,
    choice: str | None = None,
    pooled: bool = True,
    without: tuple[str, ...] = (),
) -> dict[frozenset[str], Architecture]:
    """The six classes of transformers nearly every family has, `without` those this one lacks, and special ones."""
    table = {
        (): Architecture(f"{stem}Model", "{base}pooler.dense" if pooled else None),
        ("mlm",): Architecture(f"{stem}ForMaskedLM"),
        ("text",): Architecture(f"{stem}ForSequenceClassification", text),
        ("token",): Architecture(f"{stem}ForTokenClassification"),
        ("span",): Architecture(f"{stem}ForQuestionAnswering"),
        ("choice",): Architecture(f"{stem}ForMultipleChoice", choice or text),
    }
    table = {heads: row for heads, row in table.items() if not set(heads) & set(without)}
    return {frozenset(heads): architecture for heads, architecture in (table | special).items()}


EMBEDDINGS: Rows = {
    "encoder.embeddings.tokens": "{base}embeddings.word_embeddings",
    "encoder.embeddings.positions": "{base}embeddings.position_embeddings",
    "encoder.embeddings.segments": "{base}embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "{base}embeddings.LayerNorm",
}
BERT_LAYER = layer(
    "{base}encoder.layer.{n}.",
    {
        "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "feed_forward.wide": "intermediate.dense",
        "feed_forward.narrow": "output.dense",
        "feed_forward_norm": "output.LayerNorm",
    },
)
TASKS: Rows = {
    "heads.text.out": "classifier",
    "heads.token.out": "classifier",
    "heads.span.out": "qa_outputs",
    "heads.choice.out": "classifier",
}
BERT_WORDS: Rows = {
    "heads.mlm.transform.dense": "cls.predictions.transform.dense",
    "heads.mlm.transform.norm": "cls.predictions.transform.LayerNorm",
    "heads.mlm.bias": "cls.predictions.bias",
    "heads.mlm.decoder": "cls.predictions.decoder.weight",
}
ROBERTA_WORDS: Rows = {
    "heads.mlm.transform.dense": "lm_head.dense",
    "heads.mlm.transform.norm": "lm_head.layer_norm",
    "heads.mlm.bias": "lm_head.bias",
    "heads.mlm.decoder": "lm_head.decoder.weight",
}
NUMBERS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "padding": "pad_token_id",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "head_dropout": "classifier_dropout",
    "eps": "layer_norm_eps",
    "init_std": "initializer_range",
    "tied": "tie_word_embeddings",
}
DEFAULTS: dict[str, Any] = {
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "max_position_embeddings": 512,
}
