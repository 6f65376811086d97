"""BERT's objective: predict the masked pieces, and whether the second text follows the first."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.batch import Batch
from bertkit.model.encoder import Encoded
from bertkit.model.heads import Model
from bertkit.objectives.causal import next_term
from bertkit.objectives.vocab_loss import rounded, vocab_loss
from bertkit.objectives.word_states import TERM, WordStates
from bertkit.tasks.embed import Taught
from bertkit.training.objective import Objective

PAIR_HEADS = ("next_sentence", "order")


class Masked(Objective):
    """BERT's objective: masked words, with next sentence or sentence order where the model has that head.

    A batch read from left to right masks nothing: the same head predicts each next piece. If the
    batch carries a teacher's word states, they are matched too (`match`).
    """

    passing = ("match.",)

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.match: WordStates | None = None
        self.match_weight: Callable[[float], float] = lambda progress: 1.0  # by the fraction of the run that is done
        self.pair = next((head for head in PAIR_HEADS if head in model.heads), None)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """words: over masked places; next_sentence or order: over texts; next: over pieces, from left to right."""
        matched = self._matched(batch)
        encoded = self.model.encoder(batch, layers=matched)
        if batch.causal:
            return {"next": next_term(self.model, encoded)}
        losses = {"words": mlm_term(self.model, encoded, batch)}
        if matched and self.match is not None:
            losses[TERM] = self.match(encoded)
        if self.pair:
            answers = self.model.ask(self.pair, encoded).float()
            losses[self.pair] = F.cross_entropy(answers, batch.extra["labels"], reduction="sum")
        return losses

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of masked places, of texts, and of pieces with a predecessor."""
        if batch.causal:
            return {"next": batch.tokens - batch.texts}
        counts = {"words": len(batch.extra["targets"])}
        if self._matched(batch):
            counts[TERM] = WordStates.count(batch)
        return counts | {self.pair: batch.texts} if self.pair else counts

    def weights_at(self, progress: float) -> dict[str, float]:
        """Lower the weight of the matching loss as the run progresses."""
        return {TERM: self.match_weight(progress)}

    def _matched(self, batch: Batch) -> bool:
        return self.match is not None and TERM in batch.extra and not batch.causal

    @torch.no_grad()
    def judge(self, batch: Batch) -> dict[str, float]:
        """Losses and correct predictions of every term."""
        encoded = self.model.encoder(batch, layers=self._matched(batch))
        logits = self.model.ask("mlm", encoded, batch.extra["places"]).float()
        targets = batch.extra["targets"]
        sums = {
            "words": float(F.cross_entropy(logits, targets, reduction="sum")),
            "words:right": float((logits.argmax(-1) == targets).sum()),
        }
        if encoded.layers and self.match is not None:
            sums[TERM] = float(self.match(encoded))
        if self.pair:
            answers = self.model.ask(self.pair, encoded).float()
            labels = batch.extra["labels"]
            sums[self.pair] = float(F.cross_entropy(answers, labels, reduction="sum"))
            sums[f"{self.pair}:right"] = float((answers.argmax(-1) == labels).sum())
        return sums


def mlm_term(model: Model, encoded: Encoded, batch: Batch) -> Tensor:
    """The masked-word loss of the mlm head, summed, computed only at the masked places."""
    places, targets = rounded(batch.extra["places"], batch.extra["targets"])
    vectors = model.head("mlm").vectors(encoded.tokens[places])
    return vocab_loss(vectors, *model.mlm_weights(), targets)


# ---- Masked words and a teacher's sentence vectors in one run: one model that fills gaps and embeds.


class MaskedTaught(Masked):
    """Masked words with a teacher: a batch is either masked text or texts with a teacher's vectors ("target")."""

    def __init__(self, model: Model, task: Taught) -> None:
        super().__init__(model)
        self.task = task

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """vectors: over texts; words (and the pairs' term): as without a teacher."""
        if "target" not in batch.extra:
            return super().forward(batch)
        return {"vectors": self.task.loss(self.model, self.model.encoder(batch))}

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of texts, or the counts of the masked-word terms."""
        return super().counts(batch) if "target" not in batch.extra else {"vectors": self.task.count(batch)}
