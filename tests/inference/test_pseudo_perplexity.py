"""Pseudo-perplexity: each piece hidden by itself, guessed from all others."""

from __future__ import annotations

import math

import pytest
import torch

import bertkit
from bertkit.commands import evaluate
from bertkit.errors import UserError
from bertkit.inference.scoring import pseudo_perplexity
from tests.support.toy import make_model

TEXTS = ["the old house in the garden", "bread on the table", "children with a letter"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("bert") / "bert")


@torch.no_grad()
def test_it_is_what_hiding_one_piece_after_another_gives(folder):
    import transformers as hf

    model = bertkit.load(folder, precision="fp32")
    theirs = hf.BertForMaskedLM.from_pretrained(folder).eval()
    nats, pieces = 0.0, 0
    for text in TEXTS:
        ids = model.tokenizer.encode(text).ids
        for place in range(1, len(ids) - 1):
            hidden = torch.tensor([ids])
            hidden[0, place] = model.tokenizer.mask_id
            nats -= float(theirs(hidden).logits[0, place].log_softmax(-1)[ids[place]])
            pieces += 1
    found = pseudo_perplexity(model, TEXTS)
    assert found["pieces"] == pieces
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(nats / pieces), rel=1e-4)
    size = sum(len(text.encode()) for text in TEXTS)
    assert found["pseudo_bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-4)


def test_a_text_too_long_is_left_out_and_reported_and_nothing_to_measure_is_refused(folder, notes):
    model = bertkit.load(folder, precision="fp32")
    long = "house " * (model.config.max_tokens + 1)
    assert pseudo_perplexity(model, [*TEXTS, long]) == pseudo_perplexity(model, TEXTS)
    assert any("1 texts longer" in one for one in notes)
    with pytest.raises(UserError, match="no text to score"):
        pseudo_perplexity(model, [long, " "])


def test_the_command_measures_sentences(folder, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(". ".join(text.capitalize() for text in TEXTS) + ".\n\n" + TEXTS[0] + "\n")
    given = {"model": str(folder), "file": file, "task": "perplexity", "threads": 1}
    found = evaluate.run(evaluate.Settings(**given))
    assert found["rows"] == len(TEXTS) + 1
    assert any("pseudo_perplexity" in line for line in evaluate.lines(found))
    assert evaluate.run(evaluate.Settings(**given, most=2))["rows"] == 2
