"""What a BiLSTM reads of a word: a vector learnt with the rest, or features that others give and nobody changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.ancestors.lstm.scalar_mix import ScalarMix
from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.data.batch import Batch, pack
from bertkit.errors import UserError
from bertkit.model.layers import Chance

Sentences = Sequence[Sequence[str]]
# Sentences to (layers, words, width) each; one layer may also be (words, width).
Features = Callable[[Sentences], Sequence[np.ndarray]]
UNKNOWN = 0
FORGOTTEN = 0.5  # share of the words seen once that training reads as unknown, so that the unknown has a meaning


class LearntWords(nn.Module):
    """A vector a word. words: those that are learnt; further: those that have a vector from elsewhere, and keep it.

    once: which of `words` the training text holds only once. A word not known as it stands is looked up in lower case.
    """

    def __init__(
        self, words: Sequence[str], further: Sequence[str], width: int, chance: Chance, once: Iterable[str] = ()
    ) -> None:
        super().__init__()
        self.names, self.further, self.width, self.chance = list(words), list(further), width, chance
        self.places = {word: place for place, word in enumerate((*words, *further), UNKNOWN + 1)}
        self.table = nn.Embedding(1 + len(self.names), width)
        nn.init.normal_(self.table.weight, std=0.1)
        self.once: Tensor
        self.kept: Tensor
        rare = set(once)
        self.register_buffer("once", torch.tensor([False, *(word in rare for word in words)]))
        self.register_buffer("kept", torch.zeros(len(self.further), width))

    @classmethod
    def of(cls, sentences: Sentences, width: int, vectors: WordVectors | None, chance: Chance) -> LearntWords:
        """The words of the training sentences; with `vectors`, these begin there, and its other words are known too."""
        counts = Counter(word for words in sentences for word in words)
        words = sorted(counts)
        further = [word for word in vectors.words if word not in counts] if vectors else []
        made = cls(
            words, further, vectors.width if vectors else width, chance, (w for w in words if counts[w] == 1)
        )  # fmt: skip
        if vectors:
            found = np.array([vectors.places.get(w, vectors.places.get(w.lower(), -1)) for w in words])
            known = np.flatnonzero(found >= 0)
            made.table.weight.data[known + UNKNOWN + 1] = torch.from_numpy(vectors.matrix[found[known]])
            made.kept.copy_(torch.from_numpy(vectors.matrix[[vectors.places[word] for word in further]]))
        return made

    def read(self, sentences: Sentences) -> list[np.ndarray]:
        """Numbers of the words: (words,) a sentence."""
        get = self.places.get
        return [np.array([get(w, get(w.lower(), UNKNOWN)) for w in words], np.int64) for words in sentences]

    def batch(self, rows: Sequence[np.ndarray]) -> Batch:
        """Rows as `read` gives them, packed."""
        return pack(rows)

    def forward(self, batch: Batch) -> Tensor:
        """(tokens, width)"""
        ids, learnt = batch.ids, len(self.once)
        inside = ids.clamp(max=learnt - 1)
        if self.training:
            draws = torch.from_numpy(self.chance.uniform(len(ids))).to(ids.device)
            inside = torch.where(self.once[inside] & (draws < FORGOTTEN), UNKNOWN, inside)
        found: Tensor = self.table(inside)
        if not len(self.kept):
            return found
        return torch.where((ids < learnt)[:, None], found, self.kept[(ids - learnt).clamp(min=0)])


class GivenFeatures(nn.Module):
    """Features of words that a function gives; of several layers, a learnt mix."""

    def __init__(self, features: Features, layers: int, width: int) -> None:
        super().__init__()
        self.features, self.layers, self.width = features, layers, width
        self.mix = ScalarMix(layers) if layers > 1 else None

    @staticmethod
    def given(features: Features, sentences: Sentences) -> list[np.ndarray]:
        """What the function says, one (layers, words, width) a sentence, or what is wrong with it."""
        found = [one[None] if one.ndim == 2 else one for one in map(np.asarray, features(sentences))]
        if len(found) != len(sentences):
            raise UserError(f"The features are of {len(found)} sentences, and {len(sentences)} were asked for.")
        for number, (one, words) in enumerate(zip(found, sentences), 1):
            if one.ndim != 3 or one.shape[1] != len(words) or one.shape[::2] != found[0].shape[::2]:
                raise UserError(
                    f"Sentence {number} has {len(words)} words, and features of shape {one.shape}; they must be "
                    f"(layers, words, width), here ({found[0].shape[0]}, {len(words)}, {found[0].shape[-1]})."
                )
        return found

    def read(self, sentences: Sentences) -> list[np.ndarray]:
        """The features, (layers, words, width) a sentence, as they are given."""
        found = self.given(self.features, sentences)
        if found and found[0].shape[::2] != (self.layers, self.width):
            raise UserError(
                f"The features have {found[0].shape[0]} layers of width {found[0].shape[2]}; this model was trained "
                f"on {self.layers} of width {self.width}. Give it the same features."
            )
        return found

    def batch(self, rows: Sequence[np.ndarray]) -> Batch:
        """Rows as `read` gives them, packed. extra["features"]: (tokens, layers, width) float32."""
        packed = pack([np.zeros(row.shape[1], np.int64) for row in rows])
        joined = np.concatenate([rows[caller] for caller in packed.order], 1, dtype=np.float32)
        packed.extra["features"] = torch.from_numpy(joined).transpose(0, 1)
        return packed

    def forward(self, batch: Batch) -> Tensor:
        """(tokens, width)"""
        given = batch.extra["features"]
        return given[:, 0] if self.mix is None else self.mix(given)
