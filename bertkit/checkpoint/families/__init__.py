"""Hugging Face's names for our numbers and tensors: one row per family, and no code per family elsewhere.

A tensor row reads: our module → their module (several where we keep as one what they keep apart: query, key and value).
`{n}` is the layer; `{base}` is the family's prefix inside a task model ("bert.") and empty in a bare encoder.
"""

from __future__ import annotations

from bertkit.checkpoint.families.bert import (
    ALBERT,
    BERT,
    CAMEMBERT,
    DATA2VEC,
    DISTILBERT,
    ELECTRA,
    ERNIE,
    GPT2,
    MEGATRON,
    ROBERTA,
    XLM_ROBERTA,
)
from bertkit.checkpoint.families.modern import DEBERTA, EUROBERT, MODERN, MPNET, NOMIC, ROFORMER
from bertkit.checkpoint.families.table import Architecture, Family

__all__ = ["FAMILIES", "Architecture", "Family"]

FAMILIES = {
    family.model_type: family
    for family in (
        BERT, ROBERTA, ALBERT, ELECTRA, DISTILBERT, MODERN, GPT2, XLM_ROBERTA, CAMEMBERT, DATA2VEC, ERNIE, MEGATRON,
        MPNET, ROFORMER, NOMIC, EUROBERT, DEBERTA,
    )
}  # fmt: skip
