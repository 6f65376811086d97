"""The families with rotary positions (ModernBERT, RoFormer, Nomic, EuroBERT) or relative ones (MPNet, DeBERTa)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bertkit.checkpoint.families.bert import padding_key
from bertkit.checkpoint.families.table import (
    BERT_LAYER,
    BERT_WORDS,
    DEFAULTS,
    EMBEDDINGS,
    NUMBERS,
    ROBERTA_WORDS,
    TASKS,
    Family,
    Raw,
    architectures,
    layer,
)
from bertkit.errors import UserError
from bertkit.machine import torch
from bertkit.settings.model import Config

if TYPE_CHECKING:
    from torch import Tensor


def _base_of(rope: Any, name: str, where: str, ours: str = "rotary_base") -> dict[str, Any]:
    """ModernBERT's and its kin's rotation base that an entry of rope_parameters holds, or nothing."""
    if not isinstance(rope, dict):
        raise UserError(f"{where}: {name} is {rope!r}; it must be an object.")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"{where}: rope_type {kind!r} is not implemented, only 'default'.")
    return {ours: rope["rope_theta"]} if "rope_theta" in rope else {}


def _by_layer(raw: Raw, where: str) -> dict[str, Any]:
    """ModernBERT as transformers 5 writes it: layer_types and rope_parameters hold three of our numbers."""
    numbers: dict[str, Any] = {}
    ropes = raw.get("rope_parameters")
    if isinstance(ropes, dict):
        for kind, ours in (("full_attention", "rotary_base"), ("sliding_attention", "local_rotary_base")):
            numbers |= _base_of(ropes.get(kind) or {}, f"rope_parameters.{kind}", where, ours)
    kinds = raw.get("layer_types")
    if isinstance(kinds, list) and kinds:
        full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
        every = full[1] if len(full) > 1 else max(len(kinds), 1)
        if full != list(range(0, len(kinds), every)):
            raise UserError(f"{where}: layer_types is not one global layer in every n, starting with the first.")
        numbers["global_every"] = every
    return numbers


def _layer_keys(config: Config) -> Raw:
    """ModernBERT's config keys of its global and local layers."""
    kinds = ["full_attention" if config.is_global(i) else "sliding_attention" for i in range(config.depth)]
    ropes = {"full_attention": config.rotary_base, "sliding_attention": config.local_rotary_base}
    return {
        "layer_types": kinds,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in ropes.items()},
    }


MODERN = Family(
    model_type="modernbert",
    base="model.",
    numbers={
        "vocabulary": "vocab_size",
        "width": "hidden_size",
        "depth": "num_hidden_layers",
        "heads": "num_attention_heads",
        "inner": "intermediate_size",
        "max_tokens": "max_position_embeddings",
        "padding": "pad_token_id",
        "activation": "hidden_activation",
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "head_dropout": "classifier_dropout",
        "eps": "norm_eps",
        "init_std": "initializer_range",
        "tied": "tie_word_embeddings",
        "norm_bias": "norm_bias",
        "bias": "attention_bias",
        "local_window": "local_attention",
        "global_every": "global_attn_every_n_layers",
        "rotary_base": "global_rope_theta",
        "local_rotary_base": "local_rope_theta",
        "summary": "classifier_pooling",
        "summary_activation": "classifier_activation",
    },
    fixed={
        "positions": 0,
        "segments": 0,
        "norm": "pre",
        "gated": True,
        "summary_norm": True,
        "token_transform": True,
    },
    defaults={
        "max_position_embeddings": 8192,
        "pad_token_id": 50283,
        "hidden_activation": "gelu",
        "mlp_dropout": 0.0,
        "attention_dropout": 0.0,
        "classifier_dropout": 0.0,
        "norm_eps": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "norm_bias": False,
        "attention_bias": False,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "classifier_pooling": "cls",
        "classifier_activation": "gelu",
    },
    rows={
        "encoder.embeddings.tokens": "{base}embeddings.tok_embeddings",
        "encoder.embeddings.norm": "{base}embeddings.norm",
        "encoder.final_norm": "{base}final_norm",
        "heads.mlm.transform.dense": "head.dense",
        "heads.mlm.transform.norm": "head.norm",
        "heads.mlm.bias": "decoder.bias",
        "heads.mlm.decoder": "decoder.weight",
        "heads.token.transform.dense": "head.dense",
        "heads.token.transform.norm": "head.norm",
        "heads.span.transform.dense": "head.dense",
        "heads.span.transform.norm": "head.norm",
        "heads.span.out": "classifier",
        "pooler.norm": "head.norm",
    }
    | layer(
        "{base}layers.{n}.",
        {
            "attention.qkv": "attn.Wqkv",
            "attention.out": "attn.Wo",
            "attention_norm": "attn_norm",
            "feed_forward.wide": "mlp.Wi",
            "feed_forward.narrow": "mlp.Wo",
            "feed_forward_norm": "mlp_norm",
        },
    )
    | {k: v for k, v in TASKS.items() if k != "heads.span.out"},
    architectures=architectures("ModernBert", {}, text="head.dense", pooled=False),
    written={"mlp_bias": False, "decoder_bias": True, "embedding_dropout": 0.0, "classifier_bias": False},
    derive=_by_layer,
    fold=_layer_keys,
    own_ids=("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"),
)


def _one_rotation(default: float) -> Callable[[Raw, str], dict[str, Any]]:
    """A family with one rotation base for every layer, in rope_parameters or, in older files, in a key of its own."""

    def derive(raw: Raw, where: str) -> dict[str, Any]:
        width, heads, head_width = (raw.get(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
        if head_width is not None and not (type(head_width) is type(heads) is int and head_width * heads == width):
            raise UserError(
                f"{where}: head_dim is {head_width!r}; only hidden_size / num_attention_heads is implemented."
            )
        older = {"rotary_base": raw.get("rope_theta") or default}
        ropes = raw.get("rope_parameters") or raw.get("rope_scaling")
        return older | (_base_of(ropes, "rope_parameters", where) if ropes is not None else {})

    return derive


def _one_rotation_keys(config: Config) -> Raw:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base}}


def _as_far_as_trained(raw: Raw, where: str) -> dict[str, Any]:
    """Nomic's rotation; beyond the length they were trained with, its first checkpoints scale it, which we do not."""
    trained, longest = raw.get("max_trained_positions"), raw.get("max_position_embeddings", 2048)
    shorter = type(trained) is type(longest) is int and 0 < trained < longest
    return _one_rotation(1000.0)(raw, where) | ({"max_tokens": trained} if shorter else {})


def _grouped(raw: Raw, where: str) -> dict[str, Any]:
    """EuroBERT's rotation, and how many heads of keys there are."""
    key_heads = raw.get("num_key_value_heads")
    same = key_heads is None or key_heads == raw.get("num_attention_heads")
    return _one_rotation(10000.0)(raw, where) | {"key_heads": 0 if same else key_heads}


def _sines(config: Config) -> Tensor:
    """RoFormer's angles as a table of sines and cosines, which its files hold like a weight."""
    steps = torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width
    angles = torch.arange(config.max_tokens, dtype=torch.float64)[:, None] / config.rotary_base**steps
    return torch.cat((angles.sin(), angles.cos()), dim=1).float()


_WITHOUT_POSITIONS = {ours: theirs for ours, theirs in NUMBERS.items() if ours != "positions"} | {
    "max_tokens": "max_position_embeddings"
}
_SWIGLU_LAYER = layer(
    "{base}layers.{n}.",
    {
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.out": "self_attn.o_proj",
        "feed_forward.wide": ("mlp.gate_proj", "mlp.up_proj"),
        "feed_forward.narrow": "mlp.down_proj",
    },
)

ROFORMER = Family(
    model_type="roformer",
    base="roformer.",
    numbers=_WITHOUT_POSITIONS | {"embedding_width": "embedding_size", "summary_activation": "hidden_act"},
    fixed={"positions": 0, "rotary_base": 10000.0},
    defaults=DEFAULTS | {"embedding_size": 0, "max_position_embeddings": 1536},
    rows={ours: theirs for ours, theirs in EMBEDDINGS.items() if ours != "encoder.embeddings.positions"}
    | {"encoder.embeddings.project": "{base}embeddings_project"}
    | BERT_LAYER
    | TASKS
    | BERT_WORDS
    | {"heads.text.out": "classifier.out_proj"},
    # transformers' class for multiple choice reads the last place of a row, padding or not: no answer to agree with.
    architectures=architectures("RoFormer", {}, text="classifier.dense", pooled=False, without=("choice",)),
    untied_bias="cls.predictions.decoder.bias",
    refused={"rotary_value": False},
    interleaved=("attention.qkv",),
    computed={"{base}encoder.embed_positions.weight": _sines},
)

NOMIC = Family(
    model_type="nomic_bert",
    base="nomic_bert.",
    numbers=_WITHOUT_POSITIONS,
    fixed={"positions": 0, "gated": True, "bias": False, "dense_bias": True},
    defaults=DEFAULTS
    | {
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 2048,
    },
    rows={ours: theirs for ours, theirs in EMBEDDINGS.items() if ours != "encoder.embeddings.positions"}
    | _SWIGLU_LAYER
    | layer(
        "{base}layers.{n}.",
        {"attention_norm": "post_attention_layernorm", "feed_forward_norm": "post_mlp_layernorm"},
    )
    | TASKS
    | BERT_WORDS
    | {"heads.mlm.transform.norm": "cls.predictions.transform.layer_norm"},
    architectures=architectures("NomicBert", {}, text="{base}pooler.dense", pooled=False, without=("span", "choice")),
    untied_bias="cls.predictions.decoder.bias",
    refused={
        "prenorm": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "causal": False,
    },
    derive=_as_far_as_trained,
    fold=_one_rotation_keys,
    spellings={"activation": {"silu": "silu", "swiglu": "silu", "gelu": "gelu", "geglu": "gelu"}},
    # The first checkpoints came with code of their own, and its names.
    older_keys={
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "layer_norm_eps",
        "resid_pdrop": "hidden_dropout_prob",
        "attn_pdrop": "attention_probs_dropout_prob",
        "rotary_emb_base": "rope_theta",
    },
    older_tensors=(
        (r"^bert\.", "nomic_bert."),
        (r"\bencoder\.layers\.", "layers."),
        (r"\bemb_ln\.", "embeddings.LayerNorm."),
        (r"\battn\.out_proj\.", "self_attn.o_proj."),
        (r"\battn\.Wqkv\.", "self_attn.{q_proj,k_proj,v_proj}."),
        (r"\bfc11\.", "up_proj."),
        (r"\bfc12\.", "gate_proj."),
        (r"\bfc2\.", "down_proj."),
        (r"\bnorm1\.", "post_attention_layernorm."),
        (r"\bnorm2\.", "post_mlp_layernorm."),
    ),
    zero_biases=True,
)

EUROBERT = Family(
    model_type="eurobert",
    base="model.",
    numbers={ours: theirs for ours, theirs in _WITHOUT_POSITIONS.items() if ours != "segments"}
    | {
        "attention_dropout": "attention_dropout",
        "eps": "rms_norm_eps",
        "summary": "classifier_pooling",
    },
    fixed={
        "positions": 0,
        "segments": 0,
        "norm": "pre",
        "rms_norm": True,
        "norm_bias": False,
        "embedding_norm": False,
        "gated": True,
        "bias": False,
        "dense_bias": True,
        "summary_activation": "gelu",
        "word_head": "plain",
    },
    defaults=DEFAULTS
    | {
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,  # not in transformers' config; a key of our own, which it ignores
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "pad_token_id": 128001,
        "max_position_embeddings": 8192,
        "classifier_pooling": "late",
    },
    rows={
        "encoder.embeddings.tokens": "{base}embed_tokens",
        "encoder.final_norm": "{base}norm",
        "heads.mlm.decoder": "lm_head.weight",
        "heads.text.out": "classifier",
        "heads.token.out": "classifier",
    }
    | _SWIGLU_LAYER
    | layer(
        "{base}layers.{n}.", {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
    ),
    architectures=architectures("EuroBert", {}, text="dense", pooled=False, without=("span", "choice")),
    refused={"attention_bias": False, "mlp_bias": False},
    spellings={"summary": {"bos": "first", "mean": "mean", "late": "late"}},
    derive=_grouped,
    fold=lambda config: _one_rotation_keys(config) | {"num_key_value_heads": config.key_heads or config.heads},
    own_ids=("bos_token_id", "eos_token_id", "mask_token_id"),
)

MPNET = Family(
    model_type="mpnet",
    base="mpnet.",
    numbers={ours: theirs for ours, theirs in NUMBERS.items() if ours != "segments"}
    | {"bias_buckets": "relative_attention_num_buckets"},
    fixed={"first_position": 2, "segments": 0},
    defaults=DEFAULTS | {"pad_token_id": 1, "relative_attention_num_buckets": 32},
    rows={ours: theirs for ours, theirs in EMBEDDINGS.items() if ours != "encoder.embeddings.segments"}
    | layer(
        "{base}encoder.layer.{n}.",
        {
            "attention.qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
            "attention.out": "attention.attn.o",
            "attention_norm": "attention.LayerNorm",
            "feed_forward.wide": "intermediate.dense",
            "feed_forward.narrow": "output.dense",
            "feed_forward_norm": "output.LayerNorm",
        },
    )
    | TASKS
    | ROBERTA_WORDS
    | {"encoder.position_bias": "{base}encoder.relative_attention_bias", "heads.text.out": "classifier.out_proj"},
    architectures=architectures("MPNet", {}, text="classifier.dense", choice="{base}pooler.dense"),
    written={"bos_token_id": 0, "eos_token_id": 2},
    untied_bias="lm_head.decoder.bias",
    fold=padding_key,
    refused={"relative_attention_num_buckets": 32},  # transformers' code has it built in, like the first position
)


def _relative(raw: Raw, where: str) -> dict[str, Any]:
    """DeBERTa's keys about positions: absolute ones in the input, and relative ones in attention."""
    longest = raw.get("max_position_embeddings", 512)
    listed = raw.get("pos_att_type") or []
    kinds = (
        {kind.strip() for kind in listed.lower().split("|")} if isinstance(listed, str) else {str(k) for k in listed}
    )
    is_relative = bool(raw.get("relative_attention", False))
    if kinds != ({"c2p", "p2c"} if is_relative else set()):
        raise UserError(
            f"{where}: pos_att_type is {raw.get('pos_att_type')!r} and relative_attention {is_relative}; bertkit "
            "implements ['c2p', 'p2c'] with relative attention, and none without."
        )
    if raw.get("embedding_size", raw.get("hidden_size")) != raw.get("hidden_size"):
        raise UserError(f"{where}: embedding_size differs from hidden_size, which is not implemented for DeBERTa.")
    numbers = {"positions": longest if raw.get("position_biased_input", True) else 0}
    if not is_relative:
        return numbers
    farthest = raw.get("max_relative_positions", -1)
    farthest = farthest if isinstance(farthest, int) and farthest >= 1 else longest
    buckets = raw.get("position_buckets", -1)
    bucketed = isinstance(buckets, int) and buckets > 0
    return numbers | {
        "relative_span": buckets if bucketed else farthest,
        "relative_limit": farthest if bucketed else 0,
        "relative_shared": bool(raw.get("share_att_key", False)),
        "relative_norm": "layer_norm" in str(raw.get("norm_rel_ebd", "none")).lower(),
    }


def _relative_keys(config: Config) -> Raw:
    """DeBERTa's config keys of relative positions."""
    return {
        "position_biased_input": config.positions > 0,
        "relative_attention": config.relative_span > 0,
        "pos_att_type": ["c2p", "p2c"] if config.relative_span else [],
        "position_buckets": config.relative_span if config.relative_limit else -1,
        "max_relative_positions": config.relative_limit or config.relative_span or -1,
        "share_att_key": config.relative_shared,
        "norm_rel_ebd": "layer_norm" if config.relative_norm else "none",
        "legacy": True,  # only the names of the mlm head's tensors depend on it
    }


DEBERTA = Family(
    model_type="deberta-v2",
    base="deberta.",
    numbers=_WITHOUT_POSITIONS | {"head_dropout": "cls_dropout", "summary_activation": "pooler_hidden_act"},
    fixed={},
    defaults=DEFAULTS
    | {"type_vocab_size": 0, "layer_norm_eps": 1e-7, "cls_dropout": None, "pooler_hidden_act": "gelu"},
    rows=EMBEDDINGS
    | BERT_LAYER
    | layer(
        "{base}encoder.layer.{n}.attention.self.",
        {
            "attention.qkv": ("query_proj", "key_proj", "value_proj"),
            "attention.position_key": "pos_key_proj",
            "attention.position_query": "pos_query_proj",
        },
    )
    | TASKS
    | BERT_WORDS
    | {"encoder.relative": "{base}encoder.rel_embeddings", "encoder.relative_norm": "{base}encoder.LayerNorm"},
    architectures=architectures("DebertaV2", {}, text="pooler.dense", pooled=False),
    untied_bias="cls.predictions.decoder.bias",
    refused={"conv_kernel_size": 0},
    derive=_relative,
    fold=_relative_keys,
    older_tensors=(
        (r"^lm_predictions\.lm_head\.bias$", "cls.predictions.bias"),
        (r"^lm_predictions\.lm_head\.", "cls.predictions.transform."),
    ),
)
