"""The text a left-to-right model learns from, and the text it is measured on: those of a GPT run on the same store."""

from __future__ import annotations

import numpy as np
import torch

from bertkit.data.batch import Batch
from bertkit.data.budget import budgeted
from bertkit.data.feed import Phase, PretrainingFeed, collate, phases
from bertkit.data.store import Store
from bertkit.settings.learn_settings import LearnSettings
from bertkit.settings.settings import MaskSettings
from bertkit.training.distributed import World

PACKING = "full-sentences"
NOTHING_HIDDEN = MaskSettings(rate=0.0)


def split(store: Store, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents to learn from and to measure on, as pretraining splits them (two on either side where there are)."""
    least = 2 / store.documents if held_out and store.documents >= 4 else 0.0
    return store.split(max(held_out, least), seed)


def training_feed(
    store: Store, documents: np.ndarray, steps: int, settings: LearnSettings, world: World
) -> PretrainingFeed:
    """Examples for this many steps."""
    return PretrainingFeed(
        store, documents, packing=PACKING, masking=NOTHING_HIDDEN, plan=plan(steps, settings), seed=settings.seed,
        micro_tokens=settings.micro_tokens, rank=world.rank, ranks=world.size,
    )  # fmt: skip


def plan(steps: int, settings: LearnSettings) -> list[Phase]:
    """One stretch, from the first step to the last."""
    return phases(steps, ((1.0, settings.length),), settings.batch_tokens)


def held_out_batches(store: Store, documents: np.ndarray, settings: LearnSettings) -> list[Batch]:
    """A fixed choice of held-out examples: the ones pretraining's evaluation takes."""
    if not len(documents):
        return []
    s, length = settings, settings.length
    feed = PretrainingFeed(
        store, documents, packing=PACKING, masking=NOTHING_HIDDEN, plan=[Phase(0, 1, length, 1)], seed=s.seed + 1,
        micro_tokens=s.micro_tokens,
    )  # fmt: skip
    size = len(feed.packing(length))
    order = torch.randperm(size, generator=torch.Generator().manual_seed(s.seed))
    taken = order[: min(size, max(1, s.eval_tokens // length))]
    rows = [feed.masked(length, int(number), 0, 0.0) for number in taken]
    return [collate([rows[i] for i in part]) for part in budgeted([len(row[0].ids) for row in rows], 8192)]
