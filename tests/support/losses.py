"""What the tests of the loop train: a real small model on uneven texts, and a loss that can be followed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.data.batch import Batch, pack
from bertkit.data.feed import PretrainingFeed, phases
from bertkit.data.store import Store
from bertkit.model.heads import Model
from bertkit.objectives.masked import Masked
from bertkit.settings.model import Config
from bertkit.settings.training import LoopSettings, MaskSettings
from bertkit.training.distributed import World
from bertkit.training.loop import Objective, Training

STEPS = 3


def training(folder: Path, world: World, micro_tokens: int = 10**6, **loop) -> Training:
    """BERT's objective on uneven texts, without dropout, in float32: whoever computes it, the same numbers."""
    store = Store.open(folder)
    torch.manual_seed(0)
    still = {"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0}
    numbers = {"width": 32, "depth": 2, "heads": 2, "inner": 48, "positions": 64, "max_tokens": 64}
    model = Model(Config(vocabulary=store.tokenizer.size, **numbers, **still), {"mlm": 0, "next_sentence": 2})
    feed = PretrainingFeed(
        store, np.arange(store.documents), packing="next-sentence", masking=MaskSettings(), seed=1, short_prob=0.5,
        plan=phases(STEPS, ((1.0, 48),), 480), micro_tokens=micro_tokens, rank=world.rank, ranks=world.size,
    )  # fmt: skip
    return Training(Masked(model), feed, STEPS, LoopSettings(lr=1e-3, clip=0.0, **loop), seed=1, world=world)


def gradients(run: Training) -> list[dict[str, Tensor]]:
    """The gradients of every step, as the optimiser sees them."""
    seen: list[dict[str, Tensor]] = []
    names = {id(p): name for name, p in run.objective.named_parameters()}

    def look(optimizer, *_) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        seen.append({names[id(p)]: p.grad.clone() for p in parameters if p.grad is not None})

    run.optimizers[0].register_step_pre_hook(look)
    return seen


class Distance(Objective):
    """Half the squared distance of W x + b to zero, summed over a batch's ids; `spoilt` makes one step NaN."""

    def __init__(self, spoilt: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 3)
        self.spoilt = spoilt

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        x = torch.stack([batch.ids.float(), torch.ones(batch.tokens)], 1) / 10
        loss = self.layer(x).square().sum() / 2
        return {"distance": loss * float("nan") if self.spoilt in batch.ids else loss}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"distance": batch.tokens}


class Numbers:
    """A feed of known numbers: step n has the texts [n], [n + 1, n + 2]."""

    def step(self, step: int) -> list[Batch]:
        return [pack([[step]]), pack([[step + 1, step + 2]])]
