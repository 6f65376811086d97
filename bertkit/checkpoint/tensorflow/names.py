"""Google's names of variables and Hugging Face's names of tensors: one table per family.

A row maps a stem of variable names to a stem of tensor names. Its `sizes` are letters, one per axis, that stand
for numbers of the config: V vocabulary, E embedding width, H width, I inner width, P positions, T segments,
L labels; a digit stands for itself. A dense layer's letters go from in to out, as TensorFlow stores kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class VariableRow(NamedTuple):
    """One stem of Google's variable names, the stem of tensor names it becomes, its kind and its sizes."""

    variable: str
    tensor: str
    kind: str
    sizes: str


# kind -> (end of the variable's name, end of the tensor's name, which of the row's sizes are its axes)
KINDS: dict[str, tuple[tuple[str, str, tuple[int, ...]], ...]] = {
    "dense": (("/kernel", ".weight", (0, 1)), ("/bias", ".bias", (1,))),
    "norm": (("/gamma", ".weight", (0,)), ("/beta", ".bias", (0,))),
    "table": (("", ".weight", (0, 1)),),
    "head": (("/output_weights", ".weight", (0, 1)), ("/output_bias", ".bias", (0,))),
    "bias": (("/output_bias", ".bias", (0,)),),
}
TRANSPOSED = "/kernel"  # TensorFlow stores (in, out), Hugging Face (out, in)


@dataclass(frozen=True)
class GoogleFamily:
    """How Google's checkpoints of one family name their variables, and the config numbers Hugging Face wants for it."""

    model_type: str
    parts: tuple[str, ...]  # by which words of `part` this family is meant
    mark: str  # a variable that only this family has
    embeddings: tuple[str, ...]  # scopes the embeddings may lie in: the first that is there holds them
    tensor_scope: str
    body: tuple[VariableRow, ...]
    layer: str  # scope of one layer, with a {} for each number counted
    layer_tensor: str
    layer_rows: tuple[VariableRow, ...]
    counted: tuple[str, ...]  # config keys of those counts
    groups: dict[str, tuple[VariableRow, ...]]  # what may be absent, but only as a whole
    architectures: tuple[tuple[tuple[str, ...], str], ...]  # groups needed -> class; the first that fits
    sizes: dict[str, str]  # letter -> config key
    head_width: int  # for checkpoints without a config; 0: the family's models differ, the config must say
    exact_gelu: str  # what Hugging Face calls the form that Google's code of this family uses
    settings: dict[str, Any]  # defaults of the config's other values
    elsewhere: tuple[str, ...] = ()  # scopes that belong to the other part


EMBEDDINGS = (
    VariableRow("word_embeddings", "embeddings.word_embeddings", "table", "VE"),
    VariableRow("position_embeddings", "embeddings.position_embeddings", "table", "PE"),
    VariableRow("token_type_embeddings", "embeddings.token_type_embeddings", "table", "TE"),
    VariableRow("LayerNorm", "embeddings.LayerNorm", "norm", "E"),
)
BERT_LAYER = (
    VariableRow("attention/self/query", "attention.self.query", "dense", "HH"),
    VariableRow("attention/self/key", "attention.self.key", "dense", "HH"),
    VariableRow("attention/self/value", "attention.self.value", "dense", "HH"),
    VariableRow("attention/output/dense", "attention.output.dense", "dense", "HH"),
    VariableRow("attention/output/LayerNorm", "attention.output.LayerNorm", "norm", "H"),
    VariableRow("intermediate/dense", "intermediate.dense", "dense", "HI"),
    VariableRow("output/dense", "output.dense", "dense", "IH"),
    VariableRow("output/LayerNorm", "output.LayerNorm", "norm", "H"),
)
ALBERT_LAYER = (
    VariableRow("attention_1/self/query", "attention.query", "dense", "HH"),
    VariableRow("attention_1/self/key", "attention.key", "dense", "HH"),
    VariableRow("attention_1/self/value", "attention.value", "dense", "HH"),
    VariableRow("attention_1/output/dense", "attention.dense", "dense", "HH"),
    VariableRow("LayerNorm", "attention.LayerNorm", "norm", "H"),
    VariableRow("ffn_1/intermediate/dense", "ffn", "dense", "HI"),
    VariableRow("ffn_1/intermediate/output/dense", "ffn_output", "dense", "IH"),
    VariableRow("LayerNorm_1", "full_layer_layer_norm", "norm", "H"),
)
FINE_TUNED = {
    "classify": (VariableRow("", "classifier", "head", "LH"),),
    "answer": (VariableRow("cls/squad", "qa_outputs", "head", "2H"),),
}
SIZES = {
    "V": "vocab_size",
    "E": "embedding_size",
    "H": "hidden_size",
    "I": "intermediate_size",
    "P": "max_position_embeddings",
    "T": "type_vocab_size",
    "L": "num_labels",
}
SETTINGS: dict[str, Any] = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,  # fixed in TensorFlow's layer_norm
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}

BERT = GoogleFamily(
    model_type="bert",
    parts=("",),
    mark="bert/encoder/layer_0/attention/self/query/kernel",
    embeddings=("bert/embeddings",),
    tensor_scope="bert",
    body=(),
    layer="bert/encoder/layer_{}",
    layer_tensor="bert.encoder.layer.{}",
    layer_rows=BERT_LAYER,
    counted=("num_hidden_layers",),
    groups={
        "pooler": (VariableRow("bert/pooler/dense", "bert.pooler.dense", "dense", "HH"),),
        "predictions": (
            VariableRow("cls/predictions/transform/dense", "cls.predictions.transform.dense", "dense", "HH"),
            VariableRow("cls/predictions/transform/LayerNorm", "cls.predictions.transform.LayerNorm", "norm", "H"),
            VariableRow("cls/predictions", "cls.predictions", "bias", "V"),
        ),
        "pair": (VariableRow("cls/seq_relationship", "cls.seq_relationship", "head", "2H"),),
        **FINE_TUNED,
    },
    architectures=(
        (("answer",), "BertForQuestionAnswering"),
        (("classify",), "BertForSequenceClassification"),
        (("predictions", "pair"), "BertForPreTraining"),
        (("predictions",), "BertForMaskedLM"),
        (("pair",), "BertForNextSentencePrediction"),
        ((), "BertModel"),
    ),
    sizes={**SIZES, "E": "hidden_size"},
    head_width=64,
    exact_gelu="gelu_new",
    settings=SETTINGS,
)

ALBERT = GoogleFamily(
    model_type="albert",
    parts=("",),
    mark="bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/kernel",
    embeddings=("bert/embeddings",),
    tensor_scope="albert",
    body=(
        VariableRow(
            "bert/encoder/embedding_hidden_mapping_in", "albert.encoder.embedding_hidden_mapping_in", "dense", "EH"
        ),
    ),
    layer="bert/encoder/transformer/group_{}/inner_group_{}",
    layer_tensor="albert.encoder.albert_layer_groups.{}.albert_layers.{}",
    layer_rows=ALBERT_LAYER,
    counted=("num_hidden_groups", "inner_group_num"),
    groups={
        "pooler": (VariableRow("bert/pooler/dense", "albert.pooler", "dense", "HH"),),
        "predictions": (
            VariableRow("cls/predictions/transform/dense", "predictions.dense", "dense", "HE"),
            VariableRow("cls/predictions/transform/LayerNorm", "predictions.LayerNorm", "norm", "E"),
            VariableRow("cls/predictions", "predictions", "bias", "V"),
        ),
        "pair": (VariableRow("cls/seq_relationship", "sop_classifier.classifier", "head", "2H"),),
        **FINE_TUNED,
    },
    architectures=(
        (("answer",), "AlbertForQuestionAnswering"),
        (("classify",), "AlbertForSequenceClassification"),
        (("predictions", "pair"), "AlbertForPreTraining"),
        (("predictions",), "AlbertForMaskedLM"),
        ((), "AlbertModel"),
    ),
    sizes=SIZES,
    head_width=0,
    exact_gelu="gelu_new",
    settings={
        **SETTINGS,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
)

DISCRIMINATOR = GoogleFamily(
    model_type="electra",
    parts=("", "discriminator"),
    mark="electra/encoder/layer_0/attention/self/query/kernel",
    embeddings=("electra/embeddings",),
    tensor_scope="electra",
    body=(),
    layer="electra/encoder/layer_{}",
    layer_tensor="electra.encoder.layer.{}",
    layer_rows=BERT_LAYER,
    counted=("num_hidden_layers",),
    groups={
        "project": (VariableRow("electra/embeddings_project", "electra.embeddings_project", "dense", "EH"),),
        "predictions": (
            VariableRow("discriminator_predictions/dense", "discriminator_predictions.dense", "dense", "HH"),
            VariableRow(
                "discriminator_predictions/dense_1", "discriminator_predictions.dense_prediction", "dense", "H1"
            ),
        ),
    },
    architectures=((("predictions",), "ElectraForPreTraining"), ((), "ElectraModel")),
    sizes=SIZES,
    head_width=64,
    exact_gelu="gelu",  # ELECTRA's own code uses the erf form
    settings={
        **SETTINGS,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
    },
    elsewhere=("generator/", "generator_predictions/"),
)

GENERATOR = GoogleFamily(
    model_type="electra",
    parts=("generator",),
    mark="generator/encoder/layer_0/attention/self/query/kernel",
    embeddings=("generator/embeddings", "electra/embeddings"),  # its own only if it was trained untied
    tensor_scope="electra",
    body=(),
    layer="generator/encoder/layer_{}",
    layer_tensor="electra.encoder.layer.{}",
    layer_rows=BERT_LAYER,
    counted=("num_hidden_layers",),
    groups={
        "project": (VariableRow("generator/embeddings_project", "electra.embeddings_project", "dense", "EH"),),
        "predictions": (
            VariableRow("generator_predictions/dense", "generator_predictions.dense", "dense", "HE"),
            VariableRow("generator_predictions/LayerNorm", "generator_predictions.LayerNorm", "norm", "E"),
            VariableRow("generator_predictions", "generator_lm_head", "bias", "V"),
        ),
    },
    architectures=((("predictions",), "ElectraForMaskedLM"), ((), "ElectraModel")),
    sizes=SIZES,
    head_width=64,
    exact_gelu="gelu",
    settings=DISCRIMINATOR.settings,
    elsewhere=("electra/", "discriminator_predictions/"),
)

FAMILIES = (BERT, ALBERT, DISCRIMINATOR, GENERATOR)
