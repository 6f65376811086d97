"""Which tokens speak for an answer: the same numbers as captum's, on the same weights in transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import bertkit
from bertkit.inference.importance import STEPS, importance
from bertkit.inference.predictor import Predictor
from tests.support.folders import bert_classifier

# It needs matplotlib, so it is not among the development requirements: pip install captum
captum = pytest.importorskip("captum.attr", reason="captum is not installed")
TEXT, SECOND = "The cat sat on the old mat.", "It was tired."


def inputs_of(predictor: Predictor, shown: dict[str, Any], kept: int = -1) -> tuple[torch.Tensor, ...]:
    """The ids, their segments, and the ids of a text of [MASK] with the special tokens (and the place `kept`)."""
    tokens = shown["tokens"]
    mask = predictor.tokenizer.mask_id
    hidden = [token["id"] if token["special"] or n == kept else mask for n, token in enumerate(tokens)]
    return (
        torch.tensor([[token["id"] for token in tokens]]),
        torch.tensor([[t["segment"] for t in tokens]]),
        torch.tensor([hidden]),
    )


@pytest.mark.parametrize("second", [None, SECOND])
def test_integrated_gradients_of_a_label_are_captum_s(second, tmp_path) -> None:
    predictor, model = bert_classifier(tmp_path)
    shown = importance(predictor, TEXT, second)
    ids, segments, hidden = inputs_of(predictor, shown)
    score = lambda ids: model(ids, token_type_ids=segments.expand(len(ids), -1)).logits.softmax(-1)  # noqa: E731
    gradients = captum.LayerIntegratedGradients(score, model.bert.embeddings.word_embeddings)
    target = ["no", "yes"].index(shown["target"])
    theirs = gradients.attribute(ids, baselines=hidden, target=target, n_steps=STEPS, method="riemann_middle")
    assert np.abs(theirs.sum(-1)[0].detach().numpy() - shown["importance"]).max() < 1e-4


def test_what_is_lost_by_masking_a_token_is_captum_s(tmp_path) -> None:
    predictor, model = bert_classifier(tmp_path)
    shown = importance(predictor, TEXT, by="mask")
    ids, _, hidden = inputs_of(predictor, shown)
    ablation = captum.FeatureAblation(lambda ids: model(ids).logits.softmax(-1))
    theirs = ablation.attribute(ids, baselines=hidden, target=["no", "yes"].index(shown["target"]))
    assert np.abs(theirs[0].detach().numpy() - shown["importance"]).max() < 1e-4


def test_integrated_gradients_of_the_embedded_model_s_guess_are_captum_s() -> None:
    predictor = bertkit.load("en", precision="fp32")
    shown = importance(predictor, "The [MASK] barked at the cat.")
    place = next(n for n, token in enumerate(shown["tokens"]) if token["id"] == predictor.tokenizer.mask_id)
    ids, _, hidden = inputs_of(predictor, shown, kept=place)
    model = hf.AutoModelForMaskedLM.from_pretrained(
        predictor.source, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    gradients = captum.LayerIntegratedGradients(
        lambda ids: model(ids).logits[:, place].softmax(-1), model.get_input_embeddings()
    )
    target = predictor.tokenizer.token_to_id(shown["target"])
    theirs = gradients.attribute(
        ids, baselines=hidden, target=target, n_steps=STEPS, method="riemann_middle", internal_batch_size=8
    )
    assert np.abs(theirs.sum(-1)[0].detach().numpy() - shown["importance"]).max() < 1e-4
