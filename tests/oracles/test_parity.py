"""Every family and every head agrees with transformers, and every tensor survives the round trip."""

from __future__ import annotations

import pytest
import torch

from bertkit.checkpoint.families import FAMILIES
from bertkit.checkpoint.translate import config_from, config_to, tensors_to
from bertkit.data.batch import pack
from bertkit.model.heads import HEADS
from tests.support.families import load, padded, random_model

CASES = [
    (family.model_type, tuple(sorted(heads)), architecture.name)
    for family in FAMILIES.values()
    for heads, architecture in family.architectures.items()
]
LENGTHS = (7, 23, 1, 23, 12, 38)
OUTPUTS = {  # where transformers puts each head's numbers
    "mlm": ("logits", "prediction_logits"),
    "next_sentence": ("seq_relationship_logits", "logits"),
    "order": ("sop_logits",),
    "replaced": ("logits",),
    "text": ("logits",),
    "choice": ("logits",),
    "token": ("logits",),
}


def texts(segmented: bool) -> tuple[list[list[int]], list[list[int]]]:
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(5, 60, (n,), generator=generator).tolist() for n in LENGTHS]
    return ids, [[0] * (n // 2) + [1 if segmented else 0] * (n - n // 2) for n in LENGTHS]


@pytest.mark.parametrize("family, heads, name", CASES)
@torch.no_grad()
def test_every_head_of_every_family_agrees_with_transformers(family, heads, name):
    theirs = random_model(family, name, labels=1 if "choice" in heads else 3)
    ours = load(theirs, family, heads, name)
    ids, segments = texts(segmented=ours.config.segments > 1)
    inputs = padded(ids, theirs.config.pad_token_id or 0)
    if ours.config.segments:
        width = inputs["input_ids"].shape[1]
        inputs["token_type_ids"] = torch.tensor([row + [0] * (width - len(row)) for row in segments])
    encoded = ours.encoder(pack(ids, segments), layers=True)
    batch = encoded.batch
    if heads == ("choice",) and name.endswith("MultipleChoice"):
        expected = theirs(**{k: v.view(2, 3, -1) for k, v in inputs.items()}).logits
        torch.testing.assert_close(batch.restore(ours.ask("choice", encoded)).view(2, 3), expected, atol=1e-5, rtol=0)
        return
    expected = theirs(**inputs, output_hidden_states=True)
    for layer, (mine, other) in enumerate(zip(encoded.layers, expected.hidden_states, strict=True)):
        for row, n, tokens in zip(other, LENGTHS, batch.split(mine), strict=True):
            torch.testing.assert_close(tokens, row[:n], atol=1e-5, rtol=0, msg=lambda m, i=layer: f"layer {i}: {m}")
    if name.endswith("Model") and ours.pooler is not None:
        torch.testing.assert_close(batch.restore(ours.pooled(encoded)), expected.pooler_output, atol=1e-5, rtol=0)
    for kind in heads:
        answer = ours.ask(kind, encoded)
        if HEADS[kind].looks_at == "pooler":
            other = next(getattr(expected, key) for key in OUTPUTS[kind] if hasattr(expected, key))
            torch.testing.assert_close(batch.restore(answer), other, atol=1e-5, rtol=0)
            continue
        if kind == "span":
            other = torch.stack([expected.start_logits, expected.end_logits], -1)
        else:
            other = next(getattr(expected, key) for key in reversed(OUTPUTS[kind]) if hasattr(expected, key))
            other = other if other.dim() == 3 else other[..., None]
        for row, n, tokens in zip(other, LENGTHS, batch.split(answer), strict=True):
            torch.testing.assert_close(tokens, row[:n], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family, heads, name", CASES)
def test_tensors_and_numbers_survive_the_round_trip(family, heads, name):
    theirs = random_model(family, name, labels=1 if "choice" in heads else 3)
    ours = load(theirs, family, heads, name)
    architecture = FAMILIES[family].architectures[frozenset(heads)]
    back = tensors_to(ours, FAMILIES[family], architecture)
    stored = {k: v for k, v in theirs.state_dict().items() if k not in (theirs.all_tied_weights_keys or {})}
    assert sorted(back) == sorted(stored)
    assert all(torch.equal(back[key], stored[key]) for key in stored)
    raw = config_to(ours.config, FAMILIES[family], name)
    assert config_from(raw, "config.json") == ours.config
    assert theirs.config.__class__.from_dict(raw).num_hidden_layers == ours.config.depth
