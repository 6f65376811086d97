"""Training an ELMo, from running text (or a saved checkpoint) to the finished folder."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bertkit import machine
from bertkit.ancestors.elmo.model import BiLM, Elmo
from bertkit.ancestors.elmo.words import Ids, Numbered, read_text
from bertkit.data.batch import Batch
from bertkit.data.readers.documents import read_documents
from bertkit.errors import UserError
from bertkit.notify import short_count
from bertkit.settings.ancestors import ElmoSettings
from bertkit.training.distributed import World
from bertkit.training.loop import Objective, Training
from bertkit.training.run import FIRST_GUESS, Run
from bertkit.training.run_folder import RunFolder, Signals


class BiLMObjective(Objective):
    """ELMo's objective: predict every word from those before it, and from those after it."""

    weights: ClassVar[dict[str, float]] = {"ahead": 0.5, "back": 0.5}

    def __init__(self, model: BiLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """ELMo's two losses, ahead and back: minus the log-probabilities."""
        ahead, back = self.model.log_probabilities(batch)
        return {"ahead": -ahead.sum(), "back": -back.sum()}

    def counts(self, batch: Batch) -> dict[str, int]:
        """What ELMo's two losses are divided by: the words predicted in each direction."""
        return dict.fromkeys(self.weights, batch.tokens - batch.texts)

    @torch.no_grad()
    def judge(self, batch: Batch) -> dict[str, float]:
        """ELMo's losses, for evaluation."""
        return {name: float(loss) for name, loss in self(batch).items()}


# ---- What ELMo is trained on: rows of words as a pure function of (seed, step).

POOL = 32  # batches whose rows are sorted by length together, so that rows of a batch have similar lengths


def stretches(first: Ids, last: Ids, length: int) -> Ids:
    """ELMo's training rows: sentences [first, last) split into rows of at most `length` words: (rows, 2).

    Neighbouring rows share one word, so that every word but a sentence's first follows another in exactly one row.
    """
    pieces = np.maximum(1, -(-(last - first - 1) // (length - 1)))
    inside = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = np.repeat(first, pieces) + inside * (length - 1)
    return np.stack([begin, np.minimum(begin + length, np.repeat(last, pieces))], 1)


class WordFeed:
    """ELMo's feed: batches of about `batch_words` words; every row comes once per epoch."""

    def __init__(self, text: Numbered, rows: Ids, *, batch_words: int, seed: int) -> None:
        self.text, self.rows, self.seed = text, rows, seed
        self.sizes = rows[:, 1] - rows[:, 0]
        # A batch has room for the longest row, so that no batch of an epoch is empty.
        self.batches = max(1, int(self.sizes.sum()) // batch_words)
        self._plans: dict[int, list[Ids]] = {}

    def epoch(self, step: int) -> float:
        """Passes over ELMo's training text before this step."""
        return step / self.batches

    def step(self, step: int) -> list[Batch]:
        """ELMo's one training batch of this step."""
        epoch, number = divmod(step, self.batches)
        return [self.text.batch(self.rows[self._plan(epoch)[number]].tolist())]

    def _plan(self, epoch: int) -> list[Ids]:
        """The rows of every batch of an epoch of ELMo's training."""
        if epoch not in self._plans:
            if len(self._plans) > 1:
                self._plans.pop(next(iter(self._plans)))
            chance = np.random.default_rng((self.seed, 3, epoch))
            order = chance.permutation(len(self.rows))
            share = self.sizes.sum() / self.batches
            pool = ((np.cumsum(self.sizes[order]) - self.sizes[order]) / (share * POOL)).astype(np.int64)
            order = order[np.lexsort((self.sizes[order], pool))]
            begin = np.cumsum(self.sizes[order]) - self.sizes[order]
            owner = np.minimum(begin / share, self.batches - 1).astype(np.int64)
            parts = np.split(order, np.flatnonzero(np.diff(owner)) + 1)
            self._plans[epoch] = [parts[n] for n in chance.permutation(len(parts))]
        return self._plans[epoch]


# ---- Training an ELMo, from running text (or a saved checkpoint) to the finished folder.


def train(settings: ElmoSettings) -> dict[str, Any]:
    """Train an ELMo on running text. Returns what was reached; the model is in settings.out."""
    machine.set_up(settings.threads)
    world = World(device=machine.device_for(settings.device))
    lexicon, text = read_text(
        read_documents(settings.texts), vocabulary=settings.vocabulary, units=settings.units, cased=settings.cased
    )
    elmo = Elmo(lexicon, settings.model, settings.seed)
    elmo.model.to(world.device)
    with RunFolder(settings.out, world, resume=settings.resume) as run, Signals() as signals:
        return _Run(settings, elmo, text, run, signals, world).go()


class _Run(Run[dict[str, Any]]):
    unit = "words"

    def __init__(
        self, settings: ElmoSettings, elmo: Elmo, text: Numbered, run: RunFolder, signals: Signals, world: World
    ) -> None:
        self.settings = s = settings
        self.elmo = elmo
        to_train, held_out = _split(text, s.held_out, s.seed)
        rows = [stretches(text.ends[numbers], text.ends[numbers + 1], s.length) for numbers in (to_train, held_out)]
        feed = WordFeed(text, rows[0], batch_words=s.batch_words, seed=s.seed)
        enough = np.cumsum(rows[1][:, 1] - rows[1][:, 0]) <= s.eval_words
        self.held_out = WordFeed(text, rows[1][enough], batch_words=s.batch_words, seed=0) if enough.any() else None
        self.objective = BiLMObjective(elmo.model)
        plan = s.run_plan(s.batch_words)
        training = Training(self.objective, feed, plan.steps or FIRST_GUESS, s.loop, s.seed, world)
        about = {"lexicon": elmo.lexicon.fingerprint, "model": repr(s.model)}
        super().__init__(s, plan, training, run, signals, about, feed=feed)

    def introduce(self) -> str:
        """The message before an ELMo is trained: model and steps."""
        steps, words = self.training.steps, self.settings.batch_words
        return f"ELMo: {short_count(self.elmo.parameters)} parameters, {steps:,} steps of {words:,} words."

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """ELMo's mean losses and its perplexity ahead on the held-out text."""
        if self.held_out is None:
            return {}
        self.objective.eval()
        sums, count = dict.fromkeys(self.objective.weights, 0.0), 0
        for number in range(self.held_out.batches):
            (batch,) = self.held_out.step(number)
            judged = self.objective.judge(batch.to(self.world.device))
            sums = {name: value + judged[name] for name, value in sums.items()}
            count += batch.tokens - batch.texts
        losses = {f"held_out_{name}": value / max(1, count) for name, value in sums.items()}
        return losses | {"perplexity": math.exp(min(700.0, losses["held_out_ahead"]))}

    def finish(self) -> dict[str, Any]:
        """Write the trained ELMo into the run's folder."""
        result = self.result() | {"parameters": self.elmo.parameters}
        weights = self.training.average or dict(self.objective.named_parameters())
        final = Elmo(self.elmo.lexicon, self.settings.model)
        final.model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()})
        final.about = {"result": result}
        final.save(self.settings.out)
        return result


def _split(text: Numbered, share: float, seed: int) -> tuple[Ids, Ids]:
    """Numbers of the sentences to train an ELMo on, and of those held out."""
    if not 0 <= share < 1:
        raise UserError(f"held_out is {share}; it must be at least 0 and less than 1.")
    order = np.random.default_rng((seed, 4)).permutation(len(text))
    held = min(round(len(text) * share), len(text) - 1)
    return np.sort(order[held:]), order[:held]
