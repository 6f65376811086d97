"""A run that teaches a left-to-right model, from start (or resume) to the finished folder."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from bertkit import machine
from bertkit.ancestors.language_model.model import LanguageModel, fill, network_of
from bertkit.ancestors.language_model.networks import LanguageModelObjective, LanguageModelShape
from bertkit.data.batch import Batch, batches_by_tokens
from bertkit.data.feed import Phase, PretrainingFeed, collate, phases
from bertkit.data.store import Store
from bertkit.model.inference import choose
from bertkit.notify import short_count
from bertkit.settings.ancestors import LearnSettings
from bertkit.settings.model import rows_for
from bertkit.settings.training import MaskSettings
from bertkit.training import distributed as worlds
from bertkit.training.distributed import World
from bertkit.training.loop import Training
from bertkit.training.run import FIRST_GUESS, Run
from bertkit.training.run_folder import RunFolder, Signals

# ---- The text a left-to-right model learns from, and the text it is measured on: those of a GPT run on the same
# store.

PACKING = "full-sentences"
NOTHING_HIDDEN = MaskSettings(rate=0.0)


def split(store: Store, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents to train a language model on and to measure it on, as pretraining splits them (at least two each)."""
    least = 2 / store.documents if held_out and store.documents >= 4 else 0.0
    return store.split(max(held_out, least), seed)


def training_feed(
    store: Store, documents: np.ndarray, steps: int, settings: LearnSettings, world: World
) -> PretrainingFeed:
    """A language model's training examples for this many steps."""
    return PretrainingFeed(
        store, documents, packing=PACKING, masking=NOTHING_HIDDEN, plan=plan(steps, settings), seed=settings.seed,
        micro_tokens=settings.micro_tokens, rank=world.rank, ranks=world.size,
    )  # fmt: skip


def plan(steps: int, settings: LearnSettings) -> list[Phase]:
    """The one phase of a language model's training, from the first step to the last."""
    return phases(steps, ((1.0, settings.length),), settings.batch_tokens)


def held_out_batches(store: Store, documents: np.ndarray, settings: LearnSettings) -> list[Batch]:
    """A fixed choice of held-out examples for a language model in training: the ones pretraining's evaluation takes."""
    if not len(documents):
        return []
    s, length = settings, settings.length
    feed = PretrainingFeed(
        store, documents, packing=PACKING, masking=NOTHING_HIDDEN, plan=[Phase(0, 1, length, 1)], seed=s.seed + 1,
        micro_tokens=s.micro_tokens,
    )  # fmt: skip
    size = len(feed.packing(length))
    order = torch.randperm(size, generator=torch.Generator().manual_seed(s.seed))
    chosen = order[: min(size, max(1, s.eval_tokens // length))]
    rows = [feed.masked(length, int(number), 0, 0.0) for number in chosen]
    return [collate([rows[i] for i in part]) for part in batches_by_tokens([len(row[0].ids) for row in rows], 8192)]


# ---- A run that teaches a left-to-right model, from start (or resume) to the finished folder.


def learn(settings: LearnSettings) -> dict[str, Any]:
    """Train a left-to-right language model. Returns what was reached; the folder opens with LanguageModel.load."""
    machine.set_up(settings.threads)
    world = worlds.join(machine.device_for(settings.device))
    try:
        with RunFolder(settings.out, world, resume=settings.resume) as run, Signals() as signals:
            return _Learning(settings, world, run, signals).go()
    finally:
        worlds.leave()


class _Learning(Run[dict[str, Any]]):
    unit = "tokens"

    def __init__(self, settings: LearnSettings, world: World, run: RunFolder, signals: Signals) -> None:
        self.settings = s = settings
        budget = s.run_plan(s.batch_tokens)
        steps = budget.steps or FIRST_GUESS
        self.store = Store.open(s.data, verify=world.is_main)
        documents, held_out = split(self.store, s.held_out, s.seed)
        # Rows of the word table: a multiple of 64 multiplies faster.
        vocabulary = rows_for(self.store.tokenizer.size)
        self.shape = LanguageModelShape(s.kind, vocabulary, s.width, s.hidden, s.layers, s.context, s.direct, s.dropout)
        torch.manual_seed(s.seed)
        self.objective = LanguageModelObjective(network_of(self.shape))
        self.objective.set_precision(choose(s.precision, world.device))
        self.objective.to(world.device)
        self.store_feed = training_feed(self.store, documents, steps, s, world)
        self.held_out = held_out_batches(self.store, held_out, s)
        training = Training(self.objective, self.store_feed, steps, s.loop, s.seed, world)
        about = {"tokenizer": self.store.fingerprint, "model": repr(asdict(self.shape))}
        super().__init__(s, budget, training, run, signals, about, feed=self.store_feed)

    def introduce(self) -> str:
        """The message before a language model is trained: model and steps."""
        s = self.settings
        numbers = sum(p.numel() for p in self.objective.parameters())
        precision = str(self.objective.network.dtype).removeprefix("torch.")
        return (
            f"{s.kind}: {short_count(numbers)} parameters, the vocabulary's product in {precision}; "
            f"{self.training.steps:,} steps of about {s.batch_tokens:,} tokens."
        )

    def planned(self) -> None:
        """A language model's training has one stretch, from the first step to the last."""
        self.store_feed.plan = plan(self.training.steps, self.settings)

    def evaluate(self) -> dict[str, float]:
        """The language model's loss, accuracy and perplexity on held-out text, under the names a GPT run gives them."""
        if not self.held_out:
            return {}
        objective = self.objective.eval()
        sums = {"next": 0.0, "next:right": 0.0, "count": 0.0}
        for batch in self.held_out:
            for name, value in objective.judge(batch.to(self.world.device)).items():
                sums[name] += value
            sums["count"] += objective.counts(batch)["next"]
        loss = sums["next"] / sums["count"]
        return {
            "lm_loss": loss, "lm_accuracy": sums["next:right"] / sums["count"], "perplexity": math.exp(min(50.0, loss)),
        }  # fmt: skip

    def finish(self) -> dict[str, Any]:
        """Write the trained language model into the run's folder."""
        result, weights = self.result(), self.training.tensors()
        if self.world.is_main:
            final = weights.get("average", weights["weights"])
            with torch.device("meta"):
                network = network_of(self.shape)
            fill(network, {k.removeprefix("network."): v.cpu() for k, v in final.items()}, "the run")
            LanguageModel(network, self.store.tokenizer, {"result": result}).save(self.settings.out)
        return result
