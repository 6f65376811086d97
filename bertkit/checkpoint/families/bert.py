"""BERT and the families built like it: learned positions, layer norms, and every token attending to every other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertkit.checkpoint.families.table import (
    BERT_LAYER,
    BERT_WORDS,
    DEFAULTS,
    EMBEDDINGS,
    NUMBERS,
    ROBERTA_WORDS,
    TASKS,
    Architecture,
    Family,
    Raw,
    architectures,
    layer,
)
from bertkit.settings.model import Config


def _with_next_sentence(stem: str) -> dict[frozenset[str], Architecture]:
    pooler = "{base}pooler.dense"
    special = {
        ("mlm", "next_sentence"): Architecture(f"{stem}ForPreTraining", pooler),
        ("next_sentence",): Architecture(f"{stem}ForNextSentencePrediction", pooler),
    }
    return architectures(stem, special, text=pooler)


BERT = Family(
    model_type="bert",
    base="bert.",
    numbers=NUMBERS,
    fixed={},
    defaults=DEFAULTS,
    rows=EMBEDDINGS | BERT_LAYER | TASKS | BERT_WORDS | {"heads.next_sentence.out": "cls.seq_relationship"},
    architectures=_with_next_sentence("Bert"),
    untied_bias="cls.predictions.decoder.bias",
)


def _after_padding(raw: Raw, where: str) -> dict[str, Any]:
    """RoBERTa counts positions from the one after its padding's id, whatever that is."""
    padding = raw.get("pad_token_id", 1)
    return {"first_position": padding + 1 if type(padding) is int else 1}


def padding_key(config: Config) -> Raw:
    """RoBERTa's padding id in config.json, from which its positions are counted."""
    return {"pad_token_id": max(config.first_position - 1, 0)}


ROBERTA = Family(
    model_type="roberta",
    base="roberta.",
    numbers=NUMBERS,
    fixed={},
    defaults=DEFAULTS | {"pad_token_id": 1},
    derive=_after_padding,
    fold=padding_key,
    rows=EMBEDDINGS | BERT_LAYER | TASKS | ROBERTA_WORDS | {"heads.text.out": "classifier.out_proj"},
    architectures=architectures("Roberta", {}, text="classifier.dense", choice="{base}pooler.dense"),
    written={"bos_token_id": 0, "eos_token_id": 2},
    untied_bias="lm_head.decoder.bias",
)


def _like_roberta(model_type: str, base: str, stem: str) -> Family:
    classes = architectures(stem, {}, text="classifier.dense", choice="{base}pooler.dense")
    return replace(ROBERTA, model_type=model_type, base=base, architectures=classes)


XLM_ROBERTA = _like_roberta("xlm-roberta", "roberta.", "XLMRoberta")
CAMEMBERT = _like_roberta("camembert", "roberta.", "Camembert")
DATA2VEC = _like_roberta("data2vec-text", "data2vec_text.", "Data2VecText")


def _task_types(raw: Raw, where: str) -> dict[str, Any]:
    return {"task_types": raw.get("task_type_vocab_size", 3) if raw.get("use_task_id") else 0}


def _task_keys(config: Config) -> Raw:
    return {"use_task_id": config.task_types > 0, "task_type_vocab_size": config.task_types or 3}


ERNIE = replace(
    BERT,
    model_type="ernie",
    base="ernie.",
    rows=BERT.rows | {"encoder.embeddings.tasks": "{base}embeddings.task_type_embeddings"},
    architectures=_with_next_sentence("Ernie"),
    derive=_task_types,
    fold=_task_keys,
)

MEGATRON = replace(
    BERT,
    model_type="megatron-bert",
    fixed={"norm": "pre", "embedding_norm": False},
    rows=BERT.rows
    | {"encoder.final_norm": "{base}encoder.ln"}
    | layer("{base}encoder.layer.{n}.", {"attention_norm": "attention.ln", "feed_forward_norm": "ln"}),
    architectures=_with_next_sentence("MegatronBert"),
)

ALBERT = Family(
    model_type="albert",
    base="albert.",
    numbers=NUMBERS
    | {
        "embedding_width": "embedding_size",
        "unique_layers": "num_hidden_groups",
        "head_dropout": "classifier_dropout_prob",
    },
    fixed={},
    defaults=DEFAULTS
    | {
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "hidden_act": "gelu_new",
        "classifier_dropout_prob": 0.1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    rows=EMBEDDINGS
    | {"encoder.embeddings.project": "{base}encoder.embedding_hidden_mapping_in"}
    | layer(
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
    | TASKS
    | {
        "heads.mlm.transform.dense": "predictions.dense",
        "heads.mlm.transform.norm": "predictions.LayerNorm",
        "heads.mlm.bias": "predictions.bias",
        "heads.mlm.decoder": "predictions.decoder.weight",
        "heads.order.out": "sop_classifier.classifier",
    },
    architectures=architectures(
        "Albert",
        {
            (): Architecture("AlbertModel", "{base}pooler"),
            ("mlm", "order"): Architecture("AlbertForPreTraining", "{base}pooler"),
        },
        text="{base}pooler",
    ),
    written={"bos_token_id": 2, "eos_token_id": 3, "inner_group_num": 1},
    untied_bias="predictions.decoder.bias",
)

ELECTRA = Family(
    model_type="electra",
    base="electra.",
    numbers=NUMBERS | {"embedding_width": "embedding_size"},
    fixed={"summary_activation": "gelu"},
    defaults=DEFAULTS | {"embedding_size": 128},
    rows=EMBEDDINGS
    | {"encoder.embeddings.project": "{base}embeddings_project"}
    | BERT_LAYER
    | TASKS
    | {
        "heads.text.out": "classifier.out_proj",
        "heads.mlm.transform.dense": "generator_predictions.dense",
        "heads.mlm.transform.norm": "generator_predictions.LayerNorm",
        "heads.mlm.bias": "generator_lm_head.bias",
        "heads.mlm.decoder": "generator_lm_head.weight",
        "heads.replaced.transform.dense": "discriminator_predictions.dense",
        "heads.replaced.out": "discriminator_predictions.dense_prediction",
    },
    architectures=architectures(
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
    defaults=DEFAULTS | {"activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1, "seq_classif_dropout": 0.2},
    rows={
        "encoder.embeddings.tokens": "{base}embeddings.word_embeddings",
        "encoder.embeddings.positions": "{base}embeddings.position_embeddings",
        "encoder.embeddings.norm": "{base}embeddings.LayerNorm",
    }
    | layer(
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
    | TASKS
    | {
        "heads.mlm.transform.dense": "vocab_transform",
        "heads.mlm.transform.norm": "vocab_layer_norm",
        "heads.mlm.bias": "vocab_projector.bias",
        "heads.mlm.decoder": "vocab_projector.weight",
    },
    architectures=architectures("DistilBert", {}, text="pre_classifier", pooled=False),
    written={"sinusoidal_pos_embds": False, "qa_dropout": 0.1},
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
    rows=layer(
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
        "heads.choice.out": "score",
        "heads.token.out": "classifier",
        "heads.span.out": "qa_outputs",
    },
    architectures={
        frozenset(): Architecture("GPT2Model"),
        frozenset({"mlm"}): Architecture("GPT2LMHeadModel"),
        frozenset({"text"}): Architecture("GPT2ForSequenceClassification"),
        # transformers has no multiple choice for GPT-2; a classifier with one output scores each choice.
        frozenset({"choice"}): Architecture("GPT2ForSequenceClassification"),
        frozenset({"token"}): Architecture("GPT2ForTokenClassification"),
        frozenset({"span"}): Architecture("GPT2ForQuestionAnswering"),
    },
    transposed=("attention.qkv", "attention.out", "feed_forward.wide", "feed_forward.narrow"),
)
