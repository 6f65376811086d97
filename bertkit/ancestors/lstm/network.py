"""The BiLSTM's network: what it reads of a word, in which order, and what is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.data.batch import Batch, pack
from bertkit.errors import UserError
from bertkit.model.layers import Dropout, DropoutMasks
from bertkit.settings.ancestors import BiLstmSettings
from bertkit.training.loop import Objective

# ---- Packed texts in the order in which an LSTM reads them: all first words, then all second words, and so on.


@dataclass(frozen=True)
class ReadingOrder:
    """tokens: (longest, texts), which token of the run each text gives at each moment; place: (tokens,), where in that
    square each token of the run stands. A text that has ended repeats its last token, which is ignored.

    torch's own packed sequences waste nothing on ended texts, but their backward pass fills zeros for the whole run at
    every moment: nearly twice as slow as squares of texts of about the same length.
    """

    tokens: Tensor
    place: Tensor

    @classmethod
    def of(cls, batch: Batch, backwards: bool = False) -> ReadingOrder:
        """The order in which an LSTM reads: ahead, or from each text's last token back to its first."""
        device = batch.ids.device
        lengths = torch.tensor(batch.lengths, device=device)
        moment = torch.arange(max(batch.lengths, default=0), device=device)[:, None]
        steps = torch.minimum(moment, lengths - 1)
        tokens = batch.starts + (lengths - 1 - steps if backwards else steps)
        is_inside = moment < lengths
        place = torch.empty(int(lengths.sum()), dtype=torch.int64, device=device)
        place[tokens[is_inside]] = is_inside.flatten().nonzero()[:, 0]
        return cls(tokens, place)


def read_in_order(lstm: nn.Module, x: Tensor, order: ReadingOrder) -> Tensor:
    """Run a one-way torch LSTM over packed texts. x: (tokens, in). Returns (tokens, out), in the run's own order."""
    outputs, _ = lstm(x[order.tokens])
    return outputs.flatten(0, 1)[order.place]


# ---- Several layers as one: the weighted sum that ELMo taught its users.


class ScalarMix(nn.Module):
    """ELMo's mix for a BiLSTM: scale × the sum of softmax(weights) × layer; begins as the mean of the layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def shares(self) -> Tensor:
        """How much each layer counts in a mix of an LSTM's features, (layers,): positive, and together one."""
        return self.weights.softmax(0)

    def forward(self, x: Tensor) -> Tensor:
        """Features mixed for an LSTM: (tokens, layers, width) → (tokens, width)."""
        return self.scale * torch.einsum("tlw,l->tw", x, self.shares())


# ---- A BiLSTM's input for a word: a learned vector, or frozen features of another model.

Sentences = Sequence[Sequence[str]]
# Sentences to (layers, words, width) each; one layer may also be (words, width).
Features = Callable[[Sentences], Sequence[np.ndarray]]
UNKNOWN = 0
FORGOTTEN = 0.5  # fraction of the words seen once that training reads as unknown, so that the unknown vector is trained


class WordEmbedding(nn.Module):
    """The word vectors of a BiLSTM network.

    words: those that are trained; further: those with a fixed vector from another model.

    once: which of `words` the training text holds only once. A word not known as it stands is looked up in lower case.
    """

    def __init__(
        self, words: Sequence[str], further: Sequence[str], width: int, chance: DropoutMasks, once: Iterable[str] = ()
    ) -> None:
        super().__init__()
        self.names, self.further, self.width, self.dropout_masks = list(words), list(further), width, chance
        self.places = {word: place for place, word in enumerate((*words, *further), UNKNOWN + 1)}
        self.table = nn.Embedding(1 + len(self.names), width)
        nn.init.normal_(self.table.weight, std=0.1)
        self.once: Tensor
        self.kept: Tensor
        rare = set(once)
        self.register_buffer("once", torch.tensor([False, *(word in rare for word in words)]))
        self.register_buffer("kept", torch.zeros(len(self.further), width))

    @classmethod
    def of(cls, sentences: Sentences, width: int, vectors: WordVectors | None, chance: DropoutMasks) -> WordEmbedding:
        """The BiLSTM's words: of the training sentences, and all of `vectors` if any, from which they start."""
        counts = Counter(word for words in sentences for word in words)
        words = sorted(counts)
        further = [word for word in vectors.words if word not in counts] if vectors else []
        embedding = cls(
            words, further, vectors.width if vectors else width, chance, (w for w in words if counts[w] == 1)
        )  # fmt: skip
        if vectors:
            places = np.array([vectors.places.get(w, vectors.places.get(w.lower(), -1)) for w in words])
            known = np.flatnonzero(places >= 0)
            embedding.table.weight.data[known + UNKNOWN + 1] = torch.from_numpy(vectors.matrix[places[known]])
            embedding.kept.copy_(torch.from_numpy(vectors.matrix[[vectors.places[word] for word in further]]))
        return embedding

    def read(self, sentences: Sentences) -> list[np.ndarray]:
        """The BiLSTM's numbers of the words: (words,) per sentence."""
        get = self.places.get
        return [np.array([get(w, get(w.lower(), UNKNOWN)) for w in words], np.int64) for words in sentences]

    def batch(self, rows: Sequence[np.ndarray]) -> Batch:
        """Rows of the BiLSTM's words as `read` gives them, packed."""
        return pack(rows)

    def forward(self, batch: Batch) -> Tensor:
        """The BiLSTM's input, looked up: (tokens, width)."""
        ids, learned = batch.ids, len(self.once)
        inside = ids.clamp(max=learned - 1)
        if self.training:
            draws = torch.from_numpy(self.dropout_masks.uniform(len(ids))).to(ids.device)
            inside = torch.where(self.once[inside] & (draws < FORGOTTEN), UNKNOWN, inside)
        vectors: Tensor = self.table(inside)
        if not len(self.kept):
            return vectors
        return torch.where((ids < learned)[:, None], vectors, self.kept[(ids - learned).clamp(min=0)])


class GivenFeatures(nn.Module):
    """The input of a BiLSTM network: features of words from a function; several layers are mixed as learned."""

    def __init__(self, features: Features, layers: int, width: int) -> None:
        super().__init__()
        self.features, self.layers, self.width = features, layers, width
        self.mix = ScalarMix(layers) if layers > 1 else None

    @staticmethod
    def given(features: Features, sentences: Sentences) -> list[np.ndarray]:
        """The BiLSTM's features from a function, checked: one (layers, words, width) per sentence."""
        arrays = [array[None] if array.ndim == 2 else array for array in map(np.asarray, features(sentences))]
        if len(arrays) != len(sentences):
            raise UserError(f"The features cover {len(arrays)} sentences, but {len(sentences)} were requested.")
        for number, (array, words) in enumerate(zip(arrays, sentences), 1):
            if array.ndim != 3 or array.shape[1] != len(words) or array.shape[::2] != arrays[0].shape[::2]:
                raise UserError(
                    f"Sentence {number} has {len(words)} words, and features of shape {array.shape}; they must be "
                    f"(layers, words, width), here ({arrays[0].shape[0]}, {len(words)}, {arrays[0].shape[-1]})."
                )
        return arrays

    def read(self, sentences: Sentences) -> list[np.ndarray]:
        """The features a BiLSTM is given: (layers, words, width) per sentence."""
        arrays = self.given(self.features, sentences)
        if arrays and arrays[0].shape[::2] != (self.layers, self.width):
            raise UserError(
                f"The features have {arrays[0].shape[0]} layers of width {arrays[0].shape[2]}; this model was trained "
                f"on {self.layers} of width {self.width}. Give it the same features."
            )
        return arrays

    def batch(self, rows: Sequence[np.ndarray]) -> Batch:
        """Rows of a BiLSTM's given features, packed. extra["features"]: (tokens, layers, width) float32."""
        packed = pack([np.zeros(row.shape[1], np.int64) for row in rows])
        joined = np.concatenate([rows[caller] for caller in packed.order], 1, dtype=np.float32)
        packed.extra["features"] = torch.from_numpy(joined).transpose(0, 1)
        return packed

    def forward(self, batch: Batch) -> Tensor:
        """The BiLSTM's input, mixed from given features: (tokens, width)."""
        features = batch.extra["features"]
        return features[:, 0] if self.mix is None else self.mix(features)


# ---- The BiLSTM and what it is trained on.

Source = WordEmbedding | GivenFeatures


def _reduced(how: str) -> Callable[[Tensor, Batch], Tensor]:
    return lambda x, batch: torch.segment_reduce(x, how, lengths=torch.tensor(batch.lengths, device=x.device))


# (tokens, width) to what is labelled: every word, or one vector per text.
POOL: dict[str, Callable[[Tensor, Batch], Tensor]] = {
    "none": lambda x, batch: x,
    "max": _reduced("max"),
    "mean": _reduced("mean"),
}


class BiLstmNetwork(Objective):
    """The BiLSTM's network: words through BiLSTM layers to labels, of words (pool "none") or of texts."""

    def __init__(self, source: Source, labels: int, settings: BiLstmSettings, pool: str, chance: DropoutMasks) -> None:
        super().__init__()
        self.source, self.pool = source, POOL[pool]
        widths = [source.width] + [2 * settings.cells] * (settings.depth - 1)
        self.ahead, self.back = (nn.ModuleList(nn.LSTM(width, settings.cells) for width in widths) for _ in range(2))
        self.dropout = Dropout(settings.dropout, chance)
        self.out = nn.Linear(2 * settings.cells, labels)

    def logits(self, batch: Batch) -> Tensor:
        """Label scores of the BiLSTM: (tokens or texts, labels), packed order."""
        orders = ReadingOrder.of(batch), ReadingOrder.of(batch, backwards=True)
        x = self.source(batch)
        for pair in zip(self.ahead, self.back):
            x = self.dropout(x)
            x = torch.cat([read_in_order(lstm, x, order) for lstm, order in zip(pair, orders)], -1)
        return self.out(self.dropout(self.pool(x, batch)))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The BiLSTM's loss, `label`: cross-entropy."""
        return {"label": F.cross_entropy(self.logits(batch), batch.extra["targets"], reduction="sum")}

    def counts(self, batch: Batch) -> dict[str, int]:
        """What the BiLSTM's loss is divided by: words, or texts."""
        return {"label": len(batch.extra["targets"])}


class SentenceFeed:
    """The feed of a BiLSTM network: mini-batches of sentences of similar length, in another order every epoch."""

    def __init__(
        self, source: Source, rows: Sequence[np.ndarray], targets: Sequence[np.ndarray], size: int, seed: int
    ) -> None:
        """targets: (words,) or (1,) per sentence."""
        self.source, self.rows, self.targets, self.size, self.seed = source, rows, targets, size, seed
        self.lengths = np.array([row.shape[-2] if row.ndim > 1 else len(row) for row in rows])
        self.batches = -(-len(rows) // size)
        self._plan: tuple[int, list[np.ndarray]] = (-1, [])

    def step(self, step: int) -> list[Batch]:
        """The BiLSTM's one batch of this step."""
        epoch, number = divmod(step, self.batches)
        if self._plan[0] != epoch:
            chance = np.random.default_rng((self.seed, epoch))
            order = chance.permutation(len(self.rows))
            order = order[np.argsort(self.lengths[order], kind="stable")]
            parts = np.split(order, range(self.size, len(order), self.size))
            self._plan = (epoch, [parts[n] for n in chance.permutation(len(parts))])
        rows = self._plan[1][number]
        batch = self.source.batch([self.rows[n] for n in rows])
        batch.extra["targets"] = torch.from_numpy(np.concatenate([self.targets[rows[i]] for i in batch.order]))
        return [batch]
