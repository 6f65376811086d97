"""A small encoder-decoder Transformer, and what its decoder makes of a batch of pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from bertkit.ancestors.transformer.data import TextPair, collate
from bertkit.ancestors.transformer.model import Transformer
from bertkit.settings.ancestors import Seq2SeqShape

VOCABULARY = 30


def shape(**numbers) -> Seq2SeqShape:
    made = {"vocabulary": VOCABULARY, "width": 16, "depth": 2, "heads": 4, "inner": 24, "max_tokens": 12, "eps": 1e-5}
    return Seq2SeqShape(**made | numbers)


def transformer(**numbers) -> Transformer:
    torch.manual_seed(3)
    model = Transformer(shape(**numbers))
    model.initialise()
    with torch.no_grad():
        for weight in model.parameters():  # biases and norms that would show if they were mistaken for one another
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.3)
    return model.eval()


def outputs(model: Transformer, pairs: list[TextPair], multiple: int = 1) -> list[Tensor]:
    """What the decoder makes of each target, in the order of the pairs."""
    batch = collate(pairs, multiple)
    with torch.no_grad():
        return batch.target.split(model(batch))
