"""ELMo's networks (Peters et al., 2018): characters to words, and a language model that reads both ways."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit.ancestors import folder as storage
from bertkit.ancestors.elmo.words import BORDER, FIRST_WORD, PADDING, UNKNOWN, Lexicon
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.lstm.network import ReadingOrder, read_in_order
from bertkit.ancestors.ngram.model import cut, word_offsets
from bertkit.config import build
from bertkit.data.batch import Batch, run_batched
from bertkit.data.readers.frames import texts_of
from bertkit.errors import UserError
from bertkit.model.layers import Dropout, DropoutMasks
from bertkit.notify import short_count
from bertkit.settings.ancestors import ElmoNumbers

# The user cannot do anything about this: oneDNN has no LSTMs with projections, as ELMo's are.
warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
HEAD = 2000  # frequent words that the softmax looks at first


class CharacterWords(nn.Module):
    """ELMo's character CNN: a word's letters through filters of several widths, maxima, highways and a projection."""

    def __init__(self, letters: int, numbers: ElmoNumbers) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, numbers.character_width, padding_idx=PADDING)
        self.widths = [width for width, _ in numbers.filters]
        self.filters = nn.ModuleList(nn.Linear(w * numbers.character_width, n) for w, n in numbers.filters)
        total = sum(n for _, n in numbers.filters)
        self.highways = nn.ModuleList(_highway(total) for _ in range(numbers.highways))
        self.project = nn.Linear(total, numbers.width // 2)

    def forward(self, letters: Tensor) -> Tensor:
        """ELMo's words from letters: (words, longest) → (words, width / 2); padding never changes a word."""
        inside = letters != PADDING
        # Every filter starts at every letter of the word, and reads zeros beyond its end.
        x = F.pad(self.letters(letters), (0, 0, 0, max(self.widths) - 1))
        features = []
        for width, filters in zip(self.widths, self.filters):
            windows = x.unfold(1, width, 1)[:, : letters.shape[1]].flatten(2)
            features.append(filters(windows).masked_fill(~inside[:, :, None], -torch.inf).amax(1))
        x = torch.cat(features, 1).relu()
        for highway in self.highways:
            new, carry = highway(x).chunk(2, dim=-1)
            share = carry.sigmoid()
            x = share * x + (1 - share) * new.relu()
        return self.project(x)


class LstmStack(nn.Module):
    """ELMo's LSTM layers in one direction; from the second on, each has a residual connection."""

    def __init__(self, numbers: ElmoNumbers, chance: DropoutMasks) -> None:
        super().__init__()
        half = numbers.width // 2
        self.layers = nn.ModuleList(_lstm(half, numbers.cells) for _ in range(numbers.depth))
        self.dropout = Dropout(numbers.dropout, chance)

    def forward(self, x: Tensor, order: ReadingOrder) -> list[Tensor]:
        """One direction of ELMo. x: (tokens, width / 2). Returns every layer's output, each like x."""
        outputs: list[Tensor] = []
        for layer in self.layers:
            y = read_in_order(layer, self.dropout(x), order)
            x = x + y if outputs else y
            outputs.append(x)
        return outputs


class BiLM(nn.Module):
    """ELMo's bidirectional language model: letters and softmax are shared, the LSTMs of the two directions are not."""

    def __init__(self, letters: int, guesses: int, numbers: ElmoNumbers) -> None:
        super().__init__()
        self.dropout_masks = DropoutMasks()
        self.words = CharacterWords(letters, numbers)
        self.ahead, self.back = LstmStack(numbers, self.dropout_masks), LstmStack(numbers, self.dropout_masks)
        self.dropout = Dropout(numbers.dropout, self.dropout_masks)
        half = numbers.width // 2
        # Rarer words have narrower output vectors, if the width allows it.
        fewer = 4.0 if half >= 64 else 1.0
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(half, guesses, cutoffs(guesses), div_value=fewer)

    def forward(self, batch: Batch) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """ELMo's words (tokens, width / 2), and every layer's output ahead and back, each like it."""
        words = self.words(batch.extra["letters"])[batch.ids]
        orders = ReadingOrder.of(batch), ReadingOrder.of(batch, backwards=True)
        return words, self.ahead(words, orders[0]), self.back(words, orders[1])

    def log_probabilities(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of each two neighbours (pairs,): log P(second | all up to the first), log P(first | all from the second)."""
        _, ahead, back = self(batch)
        last = batch.starts + torch.tensor(batch.lengths, device=batch.ids.device) - 1
        has_next = torch.ones(batch.tokens, dtype=torch.bool, device=batch.ids.device)
        has_next[last] = False
        first = has_next.nonzero()[:, 0]
        targets = batch.extra["targets"]
        return (
            self.softmax(self.dropout(ahead[-1][first]), targets[first + 1]).output,
            self.softmax(self.dropout(back[-1][first + 1]), targets[first]).output,
        )


def cutoffs(guesses: int) -> list[int]:
    """Where the clusters of ELMo's adaptive softmax begin: frequent words first, rarer ones in clusters."""
    return sorted({min(HEAD, guesses - 1), min(5 * HEAD, guesses - 1)})


def _highway(width: int) -> nn.Linear:
    """A highway layer of ELMo's character network (Srivastava et al., 2015)."""
    layer = nn.Linear(width, 2 * width)
    nn.init.ones_(layer.bias[width:])  # initially, most of the input passes through
    return layer


def _lstm(width: int, cells: int) -> nn.LSTM:
    """An LSTM layer of ELMo with a projection."""
    layer = nn.LSTM(width, cells, proj_size=width)
    nn.init.ones_(layer.get_parameter("bias_ih_l0")[cells : 2 * cells])  # the forget gate starts open
    return layer


# ---- ELMo (Peters et al., 2018): vectors of words in their sentences, from a language model that reads both ways.
#
# Words are read by their characters, so every word has a vector. `train.py` makes one.


class Elmo:
    """A trained ELMo: a lexicon and the model over it. about: facts of its training, kept in its folder."""

    name = "ELMo"
    LAYOUT = Layout("ELMo", "bertkit.json", "model.safetensors", ("elmo",))

    def __init__(self, lexicon: Lexicon, numbers: ElmoNumbers | None = None, seed: int = 0) -> None:
        """An untrained model; seed: of its first weights."""
        self.lexicon, self.numbers = lexicon, numbers or ElmoNumbers()
        self.about: dict[str, Any] = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = BiLM(lexicon.letters, lexicon.guesses, self.numbers)

    def __repr__(self) -> str:
        """Its shape and size."""
        size = f"{short_count(self.parameters)} parameters"
        return f"<bertkit ELMo: width {self.width}, {self.numbers.depth} layers per direction, {size}>"

    @property
    def width(self) -> int:
        """Numbers in an ELMo word vector."""
        return self.numbers.width

    @property
    def parameters(self) -> int:
        """Number of ELMo's weights."""
        return sum(p.numel() for p in self.model.parameters())

    def layers(self, sentences: Sequence[Sequence[str]]) -> list[NDArray[np.float32]]:
        """Every word's vectors: (1 + depth, words, width) per sentence. Layer 0 knows the word alone (both halves are
        the same); in the others the first half has read the words before, the second half those after."""

        def use(batch: Batch) -> list[NDArray[np.float32]]:
            words, ahead, back = self.model(batch)
            pairs = [(words, words), *zip(ahead, back)]
            stacked = torch.stack([torch.cat(pair, 1) for pair in pairs], 1)
            return [sentence[1:-1].transpose(0, 1).cpu().numpy() for sentence in batch.split(stacked)]

        return self._each(sentences, use)

    __call__ = layers  # usable as a `Features` function

    def score(self, texts: Sequence[str]) -> list[float]:
        """Log-likelihood of each text, read ahead: its words and the ends of its lines. Nothing is known of a word
        that cannot be guessed but that it is one of those."""
        split_texts = [self.lexicon.cut(text) for text in texts_of(texts)]

        def use(batch: Batch) -> list[float]:
            ahead, _ = self.model.log_probabilities(batch)
            totals = torch.stack([row.sum() for row in ahead.split([size - 1 for size in batch.lengths])])
            return [float(total) for total in batch.restore(totals)]

        scores = iter(self._each([words for lines in split_texts for words in lines], use))
        return [sum(next(scores) for _ in lines) for lines in split_texts]

    def suggest(self, text: str, top: int = 5) -> list[dict[str, Any]]:
        """ELMo's likeliest next words, by the direction that reads ahead: [{word, score}, …], best first."""
        return self._guesses((self.lexicon.cut(text) or [[]])[-1], top, backwards=False)

    def suggest_before(self, text: str, top: int = 5) -> list[dict[str, Any]]:
        """ELMo's likeliest words before the text, by the direction that reads back: [{word, score}, …], best first."""
        return self._guesses((self.lexicon.cut(text) or [[]])[0], top, backwards=True)

    def _guesses(self, words: list[str], top: int, *, backwards: bool) -> list[dict[str, Any]]:
        """ELMo's likeliest words after the last word, or before the first."""

        def use(batch: Batch) -> list[Tensor]:
            _, ahead, back = self.model(batch)
            # After the last word, whose border comes next; before the first, which follows its border.
            states = back[-1][1:2] if backwards else ahead[-1][len(words) : len(words) + 1]
            chances = self.model.softmax.log_prob(states)[0].double().exp()
            chances[[BORDER, UNKNOWN]] = 0.0
            return [chances]

        (chances,) = self._each([words], use)
        return self._best(chances, top)

    def both_ways(self, text: str, top: int = 3) -> list[dict[str, Any]]:
        """Each word of a text (its first line) as both directions guess it, without seeing it.

        [{word, forward, backward}]; forward (from the words before) and backward (from those after) are each
        {probability, guesses: [{word, score}]}; the probability of a word that cannot be guessed is that of all such.
        """
        words = (self.lexicon.cut(text) or [[]])[0]
        if not words:
            raise UserError("The text is empty: there is nothing to read.")

        def use(batch: Batch) -> list[tuple[Tensor, Tensor, Tensor]]:
            _, ahead, back = self.model(batch)
            chances = [self.model.softmax.log_prob(states).double().exp() for states in (ahead[-1][:-2], back[-1][2:])]
            return [(chances[0], chances[1], batch.extra["targets"][1:-1])]

        ((forward, backward, targets),) = self._each([words], use)
        return [
            {"word": word, "forward": self._seen(before, target, top), "backward": self._seen(after, target, top)}
            for word, before, after, target in zip(words, forward, backward, targets.tolist())
        ]

    def _seen(self, chances: Tensor, target: int, top: int) -> dict[str, Any]:
        probability = float(chances[target])
        chances = chances.clone()
        chances[[BORDER, UNKNOWN]] = 0.0
        return {"probability": probability, "guesses": self._best(chances, top)}

    def _best(self, chances: Tensor, top: int) -> list[dict[str, Any]]:
        best = chances.topk(min(top, len(self.lexicon.words)))
        return [
            {"word": self.lexicon.words[n - FIRST_WORD], "score": chance}
            for n, chance in zip(best.indices.tolist(), best.values.tolist())
        ]

    def embed(
        self, texts: str | Sequence[str], layers: str | Sequence[int] = "mix", pool: str = "mean"
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Vectors of texts: (n, width), or with pool "none" a list of (words, width).

        layers: "mix" (the mean of all layers: the paper's scalar mix before a task has weighed them), "all" (side by
        side), "last", or layer numbers, 0 the characters alone. pool: mean, max or none. An empty text is zero.
        """
        texts = texts_of(texts)
        vectors = [answer["vectors"] for answer in self.embed_tokens(texts, layers)]
        if pool == "none":
            return vectors
        if pool not in ("mean", "max"):
            raise UserError(f"pool is {pool!r}; ELMo's words are pooled by mean, max or none.")
        pooled = [(v.mean(0) if pool == "mean" else v.max(0)) if len(v) else np.zeros(v.shape[1]) for v in vectors]
        return np.stack(pooled).astype(np.float32)

    def embed_tokens(self, texts: Sequence[str], layers: str | Sequence[int] = "mix") -> list[dict[str, Any]]:
        """ELMo's vector of every word: per text {tokens, offsets, vectors}. Each line of a text is a sentence."""
        every = range(self.numbers.depth + 1)
        named = {"mix": every, "all": every, "last": every[-1:]}
        if not isinstance(layers, str):
            chosen: Sequence[int] = list(layers)
        elif layers in named:
            chosen = named[layers]
        elif re.fullmatch(r"-?\d+(,-?\d+)*", layers):
            chosen = [int(number) for number in layers.split(",")]
        else:
            raise UserError(f"layers is {layers!r}; ELMo has mix, all, last, or the numbers 0 to {every[-1]}.")
        if any(not -len(every) <= n < len(every) for n in chosen):
            raise UserError(f"layers is {layers!r}; ELMo's layers are 0 to {every[-1]}.")
        lines = [[line for line in text.splitlines() if line.strip()] for text in texts]
        cut_lines = [[cut(line, self.lexicon.units, cased=True) for line in group] for group in lines]
        answers = iter(self.layers([words for group in cut_lines for words in group if words]))
        results = []
        for text, group in zip(texts, cut_lines):
            tokens = [word for words in group for word in words]
            stacks = [next(answers)[list(chosen)] for words in group if words]
            joined = [s.mean(0) if layers == "mix" else np.concatenate(list(s), -1) for s in stacks]
            wide = self.width * (1 if layers == "mix" else len(chosen))
            vectors = np.concatenate(joined) if joined else np.zeros((0, wide), np.float32)
            results.append({"tokens": tokens, "offsets": word_offsets(tokens, text), "vectors": vectors})
        return results

    def _each(self, sentences: Sequence[Sequence[str]], use: Any) -> list[Any]:
        """`use` of every sentence, computed by ELMo in batches in the fastest order."""
        for place, words in enumerate(sentences):
            if isinstance(words, str):
                raise UserError(
                    f"Sentence {place + 1} must be a list of words, not the text {words[:40]!r}. Split it first."
                )
        text = self.lexicon.number(sentences)
        spans = text.sentences()
        answers: list[Any] = [None] * len(spans)
        device = next(self.model.parameters()).device

        def compute(numbers: list[int]) -> None:
            batch = text.batch([spans[n] for n in numbers]).to(device)
            for number, answer in zip(numbers, use(batch), strict=True):
                answers[number] = answer

        self.model.eval()
        run_batched([last - first for first, last in spans], compute, str(device))
        return answers

    def save(self, folder: str | Path) -> None:
        """Write an ELMo's model.safetensors and bertkit.json into a folder."""
        lexicon = asdict(self.lexicon)
        described = {"ancestor": "elmo", "numbers": asdict(self.numbers), **self.about, "lexicon": lexicon}
        storage.save(folder, self.LAYOUT, described, self.model.state_dict())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open a saved ELMo."""
        described, tensors = storage.load(folder, cls.LAYOUT)
        with storage.opened(folder, cls.LAYOUT):
            lexicon = described.pop("lexicon")
            lexicon = Lexicon(**lexicon | {"words": tuple(lexicon["words"])})
            elmo = cls(lexicon, build(ElmoNumbers, described.pop("numbers"), str(Path(folder) / cls.LAYOUT.numbers)))
            elmo.model.load_state_dict(tensors)
        elmo.about = {key: value for key, value in described.items() if key != "ancestor"}
        elmo.model.eval()
        return elmo
