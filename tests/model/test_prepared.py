"""A prepared model answers as the trained one did."""

from __future__ import annotations

import copy

import pytest
import torch

from bertkit.data.batch import pack
from bertkit.errors import UserError
from bertkit.model import inference as preparing
from bertkit.model.heads import word_scores
from bertkit.model.inference import choose, has_fast_bf16, prepare
from tests.support.small_encoders import FAMILIES, model_of, rows

HEADS = (("mlm", 0), ("text", 3), ("token", 4), ("span", 2), ("choice", 1), ("replaced", 1), ("next_sentence", 2))
BATCH = pack(rows([1, 4, 9, 17, 17, 30]))


def answers(model, heads) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        encoded = model.encoder(BATCH)
        return {"tokens": encoded.tokens} | {kind: model.ask(kind, encoded) for kind, _ in heads}


def close(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0))


@pytest.mark.parametrize("family", FAMILIES)
def test_in_float32_every_head_answers_the_same_after_preparing(family: str) -> None:
    heads = HEADS if family != "gpt2" else HEADS[:1]
    model = copy.deepcopy(model_of(family, heads))
    before = answers(model, heads)
    ready = prepare(model, "fp32")
    assert ready is model and not model.training and not any(p.requires_grad for p in model.parameters())
    for kind, after in answers(model, heads).items():
        torch.testing.assert_close(after, before[kind], atol=1e-6, rtol=0)


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_vectors_point_the_same_way(family: str, onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if onednn and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bfloat16 in oneDNN")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
    heads = HEADS if family != "gpt2" else HEADS[:1]
    before = answers(model_of(family, heads), heads)
    model = prepare(copy.deepcopy(model_of(family, heads)), "bf16")
    assert model.encoder.dtype == torch.bfloat16
    after = answers(model, heads)
    assert after["tokens"].dtype == torch.bfloat16
    assert close(after["tokens"], before["tokens"]) >= 0.999
    for kind, _ in heads:
        assert close(after[kind], before[kind]) >= 0.99, kind


def test_words_have_the_same_scores_to_the_bit_however_their_weights_are_laid_out() -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bfloat16 in oneDNN")
    model = prepare(copy.deepcopy(model_of("bert", HEADS[:1])), "bf16")
    laid_out = answers(model, HEADS[:1])["mlm"]
    model.head("mlm").word_scores = word_scores
    torch.testing.assert_close(laid_out, answers(model, HEADS[:1])["mlm"], atol=0, rtol=0)


def test_auto_is_bf16_exactly_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("auto") == (torch.bfloat16 if has_fast_bf16() else torch.float32)
    for able, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(preparing, "has_fast_bf16", lambda able=able: able)
        assert choose("auto") == dtype
    assert (choose("fp32"), choose("bf16")) == (torch.float32, torch.bfloat16)


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"precision is 'int3'.*fp32, bf16"):
        prepare(copy.deepcopy(model_of("bert")), "int3")
