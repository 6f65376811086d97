"""BERT's objective: predict the masked pieces, and whether the second text follows the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.data.batch import Batch
from bertkit.model.encoder import Encoded
from bertkit.model.heads import Model, first_vectors
from bertkit.model.layers import Linear
from bertkit.objectives.causal import next_term
from bertkit.objectives.vocab_loss import judged, rounded, vocab_loss
from bertkit.tasks.embed import Taught
from bertkit.training.loop import Objective

PAIR_HEADS = ("next_sentence", "order")
STATES = "states"  # the term of a teacher's word states


class Masked(Objective):
    """BERT's objective: masked words, with next sentence or sentence order where the model has that head.

    A batch read from left to right masks nothing: the same head predicts each next piece. If the
    batch carries a teacher's word states, they are matched too (`match`).
    """

    passing = ("match.", "likeness.")

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.match: WordStates | None = None
        self.match_weight: Callable[[float], float] = lambda progress: 1.0  # by the fraction of the run that is done
        self.pair = next((head for head in PAIR_HEADS if head in model.heads), None)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Masked-word training's losses: over masked places; next_sentence or order: over texts; next: over pieces."""
        matched = self._matched(batch)
        encoded = self.model.encoder(batch, layers=matched)
        if batch.causal:
            return {"next": next_term(self.model, encoded)}
        losses = {"words": mlm_term(self.model, encoded, batch)}
        if matched and self.match is not None:
            losses[STATES] = self.match(encoded)
        if self.pair:
            answers = self.model.ask(self.pair, encoded).float()
            losses[self.pair] = F.cross_entropy(answers, batch.extra["labels"], reduction="sum")
        return losses

    def counts(self, batch: Batch) -> dict[str, int]:
        """Masked-word training: the number of masked places, of texts, and of pieces with a predecessor."""
        if batch.causal:
            return {"next": batch.tokens - batch.texts}
        counts = {"words": len(batch.extra["targets"])}
        if self._matched(batch) and self.match is not None:
            counts[STATES] = self.match.count(batch)
        return counts | {self.pair: batch.texts} if self.pair else counts

    def weights_at(self, progress: float) -> dict[str, float]:
        """Masked-word training with a teacher: lower the weight of the matching loss as the run progresses."""
        return {STATES: self.match_weight(progress)}

    def _matched(self, batch: Batch) -> bool:
        return self.match is not None and STATES in batch.extra and not batch.causal

    @torch.no_grad()
    def judge(self, batch: Batch) -> dict[str, float]:
        """Losses and correct predictions of every term of masked-word training."""
        encoded = self.model.encoder(batch, layers=self._matched(batch))
        vectors = self.model.head("mlm").vectors(encoded.tokens[batch.extra["places"]])
        loss, right = judged(vectors, *self.model.mlm_weights(), batch.extra["targets"])
        sums = {"words": loss, "words:right": right}
        if encoded.layers and self.match is not None:
            sums[STATES] = float(self.match(encoded))
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
    """Masked words with a teacher of sentences.

    A batch is masked text, or texts with the teacher's vectors ("target"), or pairs read together, with its cosine of
    both texts ("likeness"). The map to that cosine serves training only and is discarded.
    """

    def __init__(self, model: Model, task: Taught, likeness_weight: float = 0.0) -> None:
        super().__init__(model)
        self.task = task
        self.likeness_weight = likeness_weight
        self.likeness = Linear(model.config.width, 1) if likeness_weight else None

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Masked words with a sentence teacher. vectors: over texts; likeness: over pairs; the rest as without."""
        if "likeness" in batch.extra:
            return {"likeness": self._likeness(batch)}
        if "target" not in batch.extra:
            return super().forward(batch)
        return {"vectors": self.task.loss(self.model, self.model.encoder(batch))}

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of texts or pairs with a sentence teacher, or the counts of the masked-word terms."""
        if "likeness" in batch.extra:
            return {"likeness": len(batch.extra["likeness"])}
        return super().counts(batch) if "target" not in batch.extra else {"vectors": self.task.count(batch)}

    def weights_at(self, progress: float) -> dict[str, float]:
        """Masked-word training with a teacher of sentences: the weight of pairs read together stays."""
        return super().weights_at(progress) | {"likeness": self.likeness_weight}

    def _likeness(self, batch: Batch) -> Tensor:
        """The loss of pairs read together: squared error of the teacher's cosine."""
        assert self.likeness is not None
        pool = self.model.config.summary
        vectors = first_vectors(self.model.encoder(batch), pool if pool in ("first", "last") else "mean")
        guessed = batch.restore(self.likeness(vectors)).float()[:, 0]
        return (guessed - batch.extra["likeness"]).square().sum()


# ---- A teacher at every word: the student's states of some layers must match those of a better encoder.
#
# For a word w and a pair of layers (t, s), with the mean taken over the word's pieces on either side:
#
#     loss(w) = smooth_l1(map_s(norm(mean student_s(w))), norm(mean teacher_t(w)))
#
# averaged over the pairs and the teacher's width. The student reads masked text, the teacher the full text: a masked
# word can be matched too, or left to the masked-word loss. The vocabularies may differ: words are aligned by their
# characters. TinyBERT (Jiao et al. 2020) matches states piece by piece; data2vec (Baevski et al. 2022) predicts them at
# masked places. The maps serve training only and are discarded.


class WordStates(nn.Module):
    """The loss of matching a teacher's word states: maps from the student's layers to the teacher's.

    A batch carries the teacher's word states in extra["states"]: (words, pairs, teacher's width), and in extra["word"]
    the word of every token: (tokens,), `words` for a token of none.
    """

    def __init__(self, layers: Sequence[int], width: int, teacher_width: int, masked: bool = True) -> None:
        """layers: the student's, one for each of the teacher's that are matched. masked: match masked words too."""
        super().__init__()
        self.masked = masked
        self.chosen = tuple(layers)
        self.maps = nn.ModuleList(Linear(width, teacher_width) for _ in self.chosen)

    def forward(self, encoded: Encoded) -> Tensor:
        """The loss against a word teacher's states, summed over the words of the batch; `encoded` has its layers."""
        targets, word = encoded.batch.extra[STATES], encoded.batch.extra["word"]
        words = len(targets)
        total = targets.new_zeros((), dtype=torch.float32)
        if not words:
            return total
        pieces = torch.bincount(word, minlength=words + 1)[:words, None].clamp(min=1)
        matched = self._shown(encoded.batch)
        for pair, (layer, linear) in enumerate(zip(self.chosen, self.maps)):
            states = encoded.layers[layer]
            sums = torch.zeros(words + 1, states.shape[1], device=states.device).index_add(0, word, states.float())
            means = F.layer_norm(sums[:words] / pieces, states.shape[1:])
            guessed = linear(means[matched].to(states.dtype)).float()
            target = targets[matched, pair].float()
            total = total + F.smooth_l1_loss(guessed, target, reduction="sum") / guessed.shape[1]
        return total / len(self.chosen)

    def count(self, batch: Batch) -> int:
        """The number of words that are matched with a word teacher's state."""
        return len(batch.extra[STATES][self._shown(batch)])

    def _shown(self, batch: Batch) -> Tensor | slice:
        """Which words of the batch are matched: all, or those without a masked piece."""
        if self.masked:
            return slice(None)
        matched = torch.ones(len(batch.extra[STATES]) + 1, dtype=torch.bool, device=batch.extra["word"].device)
        matched[batch.extra["word"][batch.extra["places"]]] = False
        return matched[:-1]
