"""ELECTRA's objective: a small generator fills the masked places, and the encoder detects replaced pieces."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.batch import Batch
from bertkit.model.heads import Model
from bertkit.objectives.masked import mlm_term
from bertkit.settings.model import Config
from bertkit.training.loop import Objective


def generator_config(config: Config, fraction: float) -> Config:
    """ELECTRA's generator: equally deep, a fraction as wide; it shares the discriminator's embeddings."""
    heads = max(1, round(config.heads * fraction))
    width = max(heads, round(config.width * fraction) // heads * heads)
    inner = max(1, round(config.inner * fraction))
    return replace(config, width=width, heads=heads, inner=inner)


class Electra(Objective):
    """ELECTRA's objective: replaced-token detection with tied embeddings."""

    weights: ClassVar[dict[str, float]] = {"replaced": 50.0}

    def __init__(self, model: Model, generator: Model) -> None:
        """model: the discriminator, with the head `replaced`; generator: with the head `mlm`."""
        super().__init__()
        self.model = model
        self.generator = generator
        ours, theirs = model.encoder.embeddings, generator.encoder.embeddings
        theirs.tokens, theirs.positions, theirs.segments = ours.tokens, ours.positions, ours.segments

    def _filled(self, batch: Batch) -> tuple[Tensor, Batch, Tensor]:
        """ELECTRA's generator's loss, the batch with its guesses filled in, which pieces are replaced: (tokens,)."""
        places, targets = batch.extra["places"], batch.extra["targets"]
        encoded = self.generator.encoder(batch)
        loss = mlm_term(self.generator, encoded, batch)
        with torch.no_grad():
            logits = self.generator.ask("mlm", encoded, places).float()
            cumulative = logits.softmax(-1).cumsum(-1)
            draws = torch.from_numpy(self.generator.encoder.dropout_masks.uniform(len(places))).to(cumulative)
            guesses = torch.searchsorted(cumulative, draws[:, None] * cumulative[:, -1:]).squeeze(1)
            guesses.clamp_(max=logits.shape[-1] - 1)
            filled = batch.ids.clone()
            filled[places] = guesses
            wrong = torch.zeros(len(filled), device=filled.device)
            wrong[places] = (guesses != targets).float()
        return loss, replace(batch, ids=filled), wrong

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """ELECTRA's losses. words: the generator's; replaced: over every piece that is not special."""
        loss, filled, wrong = self._filled(batch)
        real = (~batch.extra["special"]).nonzero()[:, 0]
        scores = self.model.ask("replaced", self.model.encoder(filled))[:, 0].float()
        return {
            "words": loss,
            "replaced": F.binary_cross_entropy_with_logits(scores[real], wrong[real], reduction="sum"),
        }

    def counts(self, batch: Batch) -> dict[str, int]:
        """What ELECTRA's losses are divided by: masked places, and pieces that are not special."""
        return {"words": len(batch.extra["targets"]), "replaced": int((~batch.extra["special"]).sum())}

    @torch.no_grad()
    def judge(self, batch: Batch) -> dict[str, float]:
        """Losses and correct predictions of ELECTRA's generator and of its discriminator."""
        loss, filled, wrong = self._filled(batch)
        real = (~batch.extra["special"]).nonzero()[:, 0]
        scores = self.model.ask("replaced", self.model.encoder(filled))[:, 0].float()[real]
        guessed = batch.extra["targets"] == filled.ids[batch.extra["places"]]
        return {
            "words": float(loss),
            "words:right": float(guessed.sum()),
            "replaced": float(F.binary_cross_entropy_with_logits(scores, wrong[real], reduction="sum")),
            "replaced:right": float(((scores > 0) == (wrong[real] > 0.5)).sum()),
        }
