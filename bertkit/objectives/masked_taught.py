"""Masked words, and beside them the sentence vectors of a teacher: one model that fills gaps and embeds."""

from __future__ import annotations

from torch import Tensor

from bertkit.data.batch import Batch
from bertkit.model.heads import Model
from bertkit.objectives.masked import Masked
from bertkit.tasks.embed_taught import Taught


class MaskedTaught(Masked):
    """A batch is either masked text or texts with a teacher's vectors ("target")."""

    def __init__(self, model: Model, task: Taught) -> None:
        super().__init__(model)
        self.task = task

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """vectors: over texts; words (and the pairs' term): as without a teacher."""
        if "target" not in batch.extra:
            return super().forward(batch)
        return {"vectors": self.task.loss(self.model, self.model.encoder(batch))}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Texts, or what masked words count."""
        return super().counts(batch) if "target" not in batch.extra else {"vectors": self.task.count(batch)}
