"""Hugging Face's names for our numbers and tensors: one table per family, and no code per family.

A tensor row reads: our module → their module (three of them for query, key and value, which we
keep as one). `{n}` is the layer; `{base}` is the family's prefix inside a task model ("bert.")
and empty in a bare encoder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Rows = dict[str, str | tuple[str, str, str]]


@dataclass(frozen=True)
class Architecture:
    """One class of transformers: its name, and where it keeps the pooler (None: it has none)."""

    name: str
    pooler: str | None = None
    summary_activation: str | None = None  # where it is not the family's


@dataclass(frozen=True)
class Family:
    """How transformers spells one family."""

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


def _layer(at: str, rows: Rows) -> Rows:
    """Layer rows, each below `at` on their side and `encoder.layers.{n}.` on ours."""
    return {
        f"encoder.layers.{{n}}.{ours}": f"{at}{theirs}"
        if isinstance(theirs, str)
        else (f"{at}{theirs[0]}", f"{at}{theirs[1]}", f"{at}{theirs[2]}")
        for ours, theirs in rows.items()
    }


def _architectures(
    stem: str, special: dict[tuple[str, ...], Architecture], text: str, choice: str | None, pooled: bool
) -> dict[frozenset[str], Architecture]:
    """The five classes every family has, and the special ones."""
    table = {
        (): Architecture(f"{stem}Model", "{base}pooler.dense" if pooled else None),
        ("mlm",): Architecture(f"{stem}ForMaskedLM"),
        ("text",): Architecture(f"{stem}ForSequenceClassification", text),
        ("token",): Architecture(f"{stem}ForTokenClassification"),
        ("span",): Architecture(f"{stem}ForQuestionAnswering"),
        ("choice",): Architecture(f"{stem}ForMultipleChoice", choice or text),
    }
    return {frozenset(heads): architecture for heads, architecture in (table | special).items()}


_EMBEDDINGS: Rows = {
    "encoder.embeddings.tokens": "{base}embeddings.word_embeddings",
    "encoder.embeddings.positions": "{base}embeddings.position_embeddings",
    "encoder.embeddings.segments": "{base}embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "{base}embeddings.LayerNorm",
}
_BERT_LAYER = _layer(
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
_TASKS: Rows = {
    "heads.text.out": "classifier",
    "heads.token.out": "classifier",
    "heads.span.out": "qa_outputs",
    "heads.choice.out": "classifier",
}
_NUMBERS = {
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
_DEFAULTS: dict[str, Any] = {
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

BERT = Family(
    model_type="bert",
    base="bert.",
    numbers=_NUMBERS,
    fixed={},
    defaults=_DEFAULTS,
    rows=_EMBEDDINGS
    | _BERT_LAYER
    | _TASKS
    | {
        "heads.mlm.transform.dense": "cls.predictions.transform.dense",
        "heads.mlm.transform.norm": "cls.predictions.transform.LayerNorm",
        "heads.mlm.bias": "cls.predictions.bias",
        "heads.mlm.decoder": "cls.predictions.decoder.weight",
        "heads.next_sentence.out": "cls.seq_relationship",
    },
    architectures=_architectures(
        "Bert",
        {
            ("mlm", "next_sentence"): Architecture("BertForPreTraining", "{base}pooler.dense"),
            ("next_sentence",): Architecture("BertForNextSentencePrediction", "{base}pooler.dense"),
        },
        text="{base}pooler.dense",
        choice=None,
        pooled=True,
    ),
    untied_bias="cls.predictions.decoder.bias",
)

ROBERTA = Family(
    model_type="roberta",
    base="roberta.",
    numbers=_NUMBERS,
    fixed={"first_position": 2},
    defaults=_DEFAULTS | {"pad_token_id": 1},
    rows=_EMBEDDINGS
    | _BERT_LAYER
    | _TASKS
    | {
        "heads.text.out": "classifier.out_proj",
        "heads.mlm.transform.dense": "lm_head.dense",
        "heads.mlm.transform.norm": "lm_head.layer_norm",
        "heads.mlm.bias": "lm_head.bias",
        "heads.mlm.decoder": "lm_head.decoder.weight",
    },
    architectures=_architectures("Roberta", {}, text="classifier.dense", choice="{base}pooler.dense", pooled=True),
    written={"bos_token_id": 0, "eos_token_id": 2},
    untied_bias="lm_head.decoder.bias",
)

ALBERT = Family(
    model_type="albert",
    base="albert.",
    numbers=_NUMBERS
    | {
        "embedding_width": "embedding_size",
        "unique_layers": "num_hidden_groups",
        "head_dropout": "classifier_dropout_prob",
    },
    fixed={},
    defaults=_DEFAULTS
    | {
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "hidden_act": "gelu_new",
        "classifier_dropout_prob": 0.1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    rows=_EMBEDDINGS
    | {"encoder.embeddings.project": "{base}encoder.embedding_hidden_mapping_in"}
    | _layer(
        "{base}encoder.albert_layer_groups.{n}.albert_layers.0.",
        {
            "attention.qkv": ("attention.query", "attention.key", "attention.value"),
            "attention.out": "attention.dense",
            "attention_norm": "attention.LayerNorm",
            "feed_forward.wide": "ffn",
            "feed_forward.narrow": "ffn_output",
            "feed_forward_norm": "full_layer_layer_norm",
        },
    )
    | _TASKS
    | {
        "heads.mlm.transform.dense": "predictions.dense",
        "heads.mlm.transform.norm": "predictions.LayerNorm",
        "heads.mlm.bias": "predictions.bias",
        "heads.mlm.decoder": "predictions.decoder.weight",
        "heads.order.out": "sop_classifier.classifier",
    },
    architectures=_architectures(
        "Albert",
        {
            (): Architecture("AlbertModel", "{base}pooler"),
            ("mlm", "order"): Architecture("AlbertForPreTraining", "{base}pooler"),
        },
        text="{base}pooler",
        choice=None,
        pooled=True,
    ),
    written={"bos_token_id": 2, "eos_token_id": 3, "inner_group_num": 1},
    untied_bias="predictions.decoder.bias",
)

ELECTRA = Family(
    model_type="electra",
    base="electra.",
    numbers=_NUMBERS | {"embedding_width": "embedding_size"},
    fixed={"summary_activation": "gelu"},
    defaults=_DEFAULTS | {"embedding_size": 128},
    rows=_EMBEDDINGS
    | {"encoder.embeddings.project": "{base}embeddings_project"}
    | _BERT_LAYER
    | _TASKS
    | {
        "heads.text.out": "classifier.out_proj",
        "heads.mlm.transform.dense": "generator_predictions.dense",
        "heads.mlm.transform.norm": "generator_predictions.LayerNorm",
        "heads.mlm.bias": "generator_lm_head.bias",
        "heads.mlm.decoder": "generator_lm_head.weight",
        "heads.replaced.transform.dense": "discriminator_predictions.dense",
        "heads.replaced.out": "discriminator_predictions.dense_prediction",
    },
    architectures=_architectures(
        "Electra",
        {("replaced",): Architecture("ElectraForPreTraining")},
        text="classifier.dense",
        choice="sequence_summary.summary",
        pooled=False,
    ),
    written={
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
    },
)

DISTILBERT = Family(
    model_type="distilbert",
    base="distilbert.",
    numbers={
        "vocabulary": "vocab_size",
        "width": "dim",
        "depth": "n_layers",
        "heads": "n_heads",
        "inner": "hidden_dim",
        "positions": "max_position_embeddings",
        "padding": "pad_token_id",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "head_dropout": "seq_classif_dropout",
        "init_std": "initializer_range",
        "tied": "tie_word_embeddings",
    },
    fixed={"segments": 0, "summary_activation": "relu"},
    defaults=_DEFAULTS | {"activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1, "seq_classif_dropout": 0.2},
    rows={
        "encoder.embeddings.tokens": "{base}embeddings.word_embeddings",
        "encoder.embeddings.positions": "{base}embeddings.position_embeddings",
        "encoder.embeddings.norm": "{base}embeddings.LayerNorm",
    }
    | _layer(
        "{base}transformer.layer.{n}.",
        {
            "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            "attention.out": "attention.out_lin",
            "attention_norm": "sa_layer_norm",
            "feed_forward.wide": "ffn.lin1",
            "feed_forward.narrow": "ffn.lin2",
            "feed_forward_norm": "output_layer_norm",
        },
    )
    | _TASKS
    | {
        "heads.mlm.transform.dense": "vocab_transform",
        "heads.mlm.transform.norm": "vocab_layer_norm",
        "heads.mlm.bias": "vocab_projector.bias",
        "heads.mlm.decoder": "vocab_projector.weight",
    },
    architectures=_architectures("DistilBert", {}, text="pre_classifier", choice=None, pooled=False),
    written={"sinusoidal_pos_embds": False, "qa_dropout": 0.1},
)

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
    | _layer(
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
    | {k: v for k, v in _TASKS.items() if k != "heads.span.out"},
    architectures=_architectures("ModernBert", {}, text="head.dense", choice=None, pooled=False),
    written={"mlp_bias": False, "decoder_bias": True, "embedding_dropout": 0.0, "classifier_bias": False},
)

GPT2 = Family(
    model_type="gpt2",
    base="transformer.",
    numbers={
        "vocabulary": "vocab_size",
        "width": "n_embd",
        "depth": "n_layer",
        "heads": "n_head",
        "inner": "n_inner",
        "positions": "n_positions",
        "padding": "pad_token_id",
        "activation": "activation_function",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "head_dropout": "summary_first_dropout",
        "eps": "layer_norm_epsilon",
        "init_std": "initializer_range",
        "tied": "tie_word_embeddings",
    },
    fixed={
        "segments": 0,
        "norm": "pre",
        "embedding_norm": False,
        "causal": True,
        "summary": "last",
        "summary_activation": "none",
        "word_head": "plain",
    },
    defaults={
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "summary_first_dropout": 0.1,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "pad_token_id": None,
        "n_positions": 1024,
    },
    rows=_layer(
        "{base}h.{n}.",
        {
            "attention.qkv": "attn.c_attn",
            "attention.out": "attn.c_proj",
            "attention_norm": "ln_1",
            "feed_forward.wide": "mlp.c_fc",
            "feed_forward.narrow": "mlp.c_proj",
            "feed_forward_norm": "ln_2",
        },
    )
    | {
        "encoder.embeddings.tokens": "{base}wte",
        "encoder.embeddings.positions": "{base}wpe",
        "encoder.final_norm": "{base}ln_f",
        "heads.mlm.decoder": "lm_head.weight",
        "heads.text.out": "score",
        "heads.token.out": "classifier",
        "heads.span.out": "qa_outputs",
    },
    architectures={
        frozenset(): Architecture("GPT2Model"),
        frozenset({"mlm"}): Architecture("GPT2LMHeadModel"),
        frozenset({"text"}): Architecture("GPT2ForSequenceClassification"),
        frozenset({"token"}): Architecture("GPT2ForTokenClassification"),
        frozenset({"span"}): Architecture("GPT2ForQuestionAnswering"),
    },
    transposed=("attention.qkv", "attention.out", "feed_forward.wide", "feed_forward.narrow"),
)

FAMILIES = {f.model_type: f for f in (BERT, ROBERTA, ALBERT, ELECTRA, DISTILBERT, MODERN, GPT2)}
