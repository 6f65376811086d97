"""A teacher at every word: the student's states of some layers must match those of a better encoder.

For a word w and a pair of layers (t, s), with the mean taken over the word's pieces on either side:

    loss(w) = smooth_l1(map_s(norm(mean student_s(w))), norm(mean teacher_t(w)))

averaged over the pairs and the teacher's width. The student reads masked text, the teacher the full text, so masked
words are matched too. The vocabularies may differ: words are aligned by their characters. TinyBERT (Jiao et al. 2020)
matches states piece by piece; data2vec (Baevski et al. 2022) predicts them at masked places. The maps serve training
only and are discarded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.data.batch import Batch
from bertkit.model.encoder import Encoded
from bertkit.model.layers import Linear

TERM = "states"


class WordStates(nn.Module):
    """The loss of matching a teacher's word states: maps from the student's layers to the teacher's.

    A batch carries the teacher's word states in extra["states"]: (words, pairs, teacher's width), and in extra["word"]
    the word of every token: (tokens,), `words` for a token of none.
    """

    def __init__(self, layers: Sequence[int], width: int, teacher_width: int) -> None:
        """layers: the student's, one for each of the teacher's that are matched."""
        super().__init__()
        self.chosen = tuple(layers)
        self.maps = nn.ModuleList(Linear(width, teacher_width) for _ in self.chosen)

    def forward(self, encoded: Encoded) -> Tensor:
        """Summed over the words of the batch; `encoded` has its layers."""
        targets, word = encoded.batch.extra[TERM], encoded.batch.extra["word"]
        words = len(targets)
        total = targets.new_zeros((), dtype=torch.float32)
        if not words:
            return total
        pieces = torch.bincount(word, minlength=words + 1)[:words, None].clamp(min=1)
        for pair, (layer, linear) in enumerate(zip(self.chosen, self.maps)):
            states = encoded.layers[layer]
            sums = torch.zeros(words + 1, states.shape[1], device=states.device).index_add(0, word, states.float())
            means = F.layer_norm(sums[:words] / pieces, states.shape[1:])
            guessed = linear(means.to(states.dtype)).float()
            total = total + F.smooth_l1_loss(guessed, targets[:, pair].float(), reduction="sum") / guessed.shape[1]
        return total / len(self.chosen)

    @staticmethod
    def count(batch: Batch) -> int:
        """The number of words that have a teacher state."""
        return len(batch.extra[TERM])
