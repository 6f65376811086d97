"""GPT's objective: predict every piece from the pieces before it."""

from __future__ import annotations

import torch
from torch import Tensor

from bertkit.data.batch import Batch
from bertkit.model.encoder import Encoded
from bertkit.model.heads import Model
from bertkit.objectives.vocab_loss import judged, rounded, vocab_loss
from bertkit.training.loop import Objective


class NextToken(Objective):
    """GPT's causal objective: predict the next piece; the model must be causal."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        assert model.config.causal
        self.model = model

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The causal objective's loss, `next`: over every piece but the first of each text."""
        return self.guess(self.model.encoder(batch))

    def guess(self, encoded: Encoded) -> dict[str, Tensor]:
        """The causal objective's loss from the encoder's output."""
        return {"next": next_term(self.model, encoded)}

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of pieces the causal objective predicts."""
        return {"next": batch.tokens - batch.texts}

    @torch.no_grad()
    def judge(self, batch: Batch) -> dict[str, float]:
        """The causal objective's loss and the number of correct predictions."""
        places, targets = next_pieces(batch)
        vectors = self.model.head("mlm").vectors(self.model.encoder(batch).tokens[places])
        loss, right = judged(vectors, *self.model.mlm_weights(), targets)
        return {"next": loss, "next:right": right}


def next_pieces(batch: Batch) -> tuple[Tensor, Tensor]:
    """Places with a next piece to predict from left to right, and that piece."""
    last = batch.starts + torch.tensor(batch.lengths, device=batch.ids.device) - 1
    inner = torch.ones(batch.tokens, dtype=torch.bool, device=batch.ids.device)
    inner[last] = False
    places = inner.nonzero()[:, 0]
    return places, batch.ids[places + 1]


def next_term(model: Model, encoded: Encoded) -> Tensor:
    """The causal objective's loss: every piece from those before it, summed."""
    places, targets = rounded(*next_pieces(encoded.batch))
    vectors = model.head("mlm").vectors(encoded.tokens[places])
    return vocab_loss(vectors, *model.mlm_weights(), targets)
