"""ELMo's networks (Peters et al., 2018): characters to words, and a language model that reads both ways."""

from __future__ import annotations

import warnings
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.ancestors.elmo.words import PADDING
from bertkit.ancestors.lstm.lstm_order import ReadingOrder, read_in_order
from bertkit.data.batch import Batch
from bertkit.model.layers import Chance, Dropout
from bertkit.settings.elmo_settings import ElmoNumbers
from bertkit.training.objective import Objective

# The one who trains cannot do anything about it: LSTMs that project, as ELMo's do, are not in that library.
warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
HEAD = 2000  # frequent words that the softmax looks at first


class CharacterWords(nn.Module):
    """A word's letters through filters of several widths, the highest answer of each, highways, and a projection."""

    def __init__(self, letters: int, numbers: ElmoNumbers) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, numbers.character_width, padding_idx=PADDING)
        self.widths = [width for width, _ in numbers.filters]
        self.filters = nn.ModuleList(nn.Linear(w * numbers.character_width, n) for w, n in numbers.filters)
        total = sum(n for _, n in numbers.filters)
        self.highways = nn.ModuleList(_highway(total) for _ in range(numbers.highways))
        self.project = nn.Linear(total, numbers.width // 2)

    def forward(self, spelt: Tensor) -> Tensor:
        """spelt: (words, longest) letters. Returns (words, width / 2); padding never changes a word."""
        inside = spelt != PADDING
        # Every filter starts at every letter of the word, and reads zeros beyond its end.
        x = F.pad(self.letters(spelt), (0, 0, 0, max(self.widths) - 1))
        found = []
        for width, filters in zip(self.widths, self.filters):
            seen = x.unfold(1, width, 1)[:, : spelt.shape[1]].flatten(2)
            found.append(filters(seen).masked_fill(~inside[:, :, None], -torch.inf).amax(1))
        x = torch.cat(found, 1).relu()
        for highway in self.highways:
            new, kept = highway(x).chunk(2, dim=-1)
            share = kept.sigmoid()
            x = share * x + (1 - share) * new.relu()
        return self.project(x)


class Direction(nn.Module):
    """LSTM layers that read one way; from the second on each adds what it was given."""

    def __init__(self, numbers: ElmoNumbers, chance: Chance) -> None:
        super().__init__()
        half = numbers.width // 2
        self.layers = nn.ModuleList(_lstm(half, numbers.cells) for _ in range(numbers.depth))
        self.dropout = Dropout(numbers.dropout, chance)

    def forward(self, x: Tensor, order: ReadingOrder) -> list[Tensor]:
        """x: (tokens, width / 2). Returns every layer's output, each like x."""
        found: list[Tensor] = []
        for layer in self.layers:
            y = read_in_order(layer, self.dropout(x), order)
            x = x + y if found else y
            found.append(x)
        return found


class BothWays(nn.Module):
    """The language model: letters and softmax are shared, the LSTMs of the two directions are not."""

    def __init__(self, letters: int, guesses: int, numbers: ElmoNumbers) -> None:
        super().__init__()
        self.chance = Chance()
        self.words = CharacterWords(letters, numbers)
        self.ahead, self.back = Direction(numbers, self.chance), Direction(numbers, self.chance)
        self.dropout = Dropout(numbers.dropout, self.chance)
        half = numbers.width // 2
        # Rarer words are told apart by fewer numbers, where there are enough to begin with.
        fewer = 4.0 if half >= 64 else 1.0
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(half, guesses, cutoffs(guesses), div_value=fewer)

    def forward(self, batch: Batch) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The words (tokens, width / 2), and every layer's output ahead and back, each like it."""
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


class GuessBothWays(Objective):
    """Guess every word from those before it, and from those after it."""

    weights: ClassVar[dict[str, float]] = {"ahead": 0.5, "back": 0.5}

    def __init__(self, model: BothWays) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """ahead, back: minus the log-probabilities."""
        ahead, back = self.model.log_probabilities(batch)
        return {"ahead": -ahead.sum(), "back": -back.sum()}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Words that are guessed."""
        return dict.fromkeys(self.weights, batch.tokens - batch.texts)

    @torch.no_grad()
    def judge(self, batch: Batch) -> dict[str, float]:
        """The losses."""
        return {name: float(loss) for name, loss in self(batch).items()}


def cutoffs(guesses: int) -> list[int]:
    """Where the frequent words end and the rarer ones begin, which the softmax puts into clusters behind them."""
    return sorted({min(HEAD, guesses - 1), min(5 * HEAD, guesses - 1)})


def _highway(width: int) -> nn.Linear:
    made = nn.Linear(width, 2 * width)
    nn.init.ones_(made.bias[width:])  # it begins by letting most pass as it is
    return made


def _lstm(width: int, cells: int) -> nn.LSTM:
    made = nn.LSTM(width, cells, proj_size=width)
    nn.init.ones_(made.get_parameter("bias_ih_l0")[cells : 2 * cells])  # it begins by forgetting little
    return made
