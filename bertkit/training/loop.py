"""The training loop, an iterator: the caller reports, evaluates and saves.

It knows objectives, not models: `Objective` is the interface of everything that can be trained.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bertkit.data.batch import Batch
from bertkit.data.feed import Feed, Prefetcher
from bertkit.errors import UserError
from bertkit.model.layers import DropoutMasks
from bertkit.settings.training import LoopSettings
from bertkit.training.checkpoints import under_current_names
from bertkit.training.distributed import Exchange, World, is_sharded, like, whole
from bertkit.training.optimizer import load_optimizer_tensors, make_optimizers, named, optimizer_tensors, rate, set_rate


class Objective(nn.Module):
    """The base of every training objective: a loss as a module that owns encoders and heads.

    The loop sees only this interface.
    """

    weights: ClassVar[dict[str, float]] = {}  # terms whose weight is not 1

    passing: ClassVar[tuple[str, ...]] = ()  # prefixes of weights that may be missing on resume

    def weights_at(self, progress: float) -> dict[str, float]:
        """The weights of an objective's terms when this fraction of the run is done."""
        return self.weights

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss of each of an objective's terms, SUMMED over the batch."""
        raise NotImplementedError

    def counts(self, batch: Batch) -> dict[str, int]:
        """What each of an objective's sums is divided by, over all ranks and micro-batches."""
        raise NotImplementedError

    def judge(self, batch: Batch) -> dict[str, float]:
        """Sums of an objective's losses by name for evaluation, and correct predictions under `name:right`."""
        raise NotImplementedError

    def dropout_masks(self) -> list[DropoutMasks]:
        """Every source of dropout among an objective's submodules."""
        candidates = (getattr(module, "dropout_masks", None) for module in self.modules())
        return list({id(masks): masks for masks in candidates if isinstance(masks, DropoutMasks)}.values())

    def set_precision(self, dtype: torch.dtype) -> None:
        """Compute an objective's activations in this precision; the weights stay float32."""
        from bertkit.model.encoder import Encoder

        for module in self.modules():
            if isinstance(module, Encoder):
                module.dtype = dtype


@dataclass(frozen=True)
class Step:
    """The result of one step of the training loop. losses: each term's mean; loss: their weighted sum."""

    step: int
    loss: float
    losses: dict[str, float]
    lr: float
    gradient: float
    tokens: int


class NotFinite(UserError):
    """A loss or gradient of the training loop that is not a number."""


@dataclass
class Training:
    """The training loop of an objective over a feed. `done` counts finished steps."""

    objective: Objective
    feed: Feed
    steps: int
    settings: LoopSettings
    seed: int = 0
    world: World = field(default_factory=World)
    scale: Callable[[str], float] = lambda name: 1.0
    done: int = 0

    def __post_init__(self) -> None:
        s = self.settings
        self.optimizers = make_optimizers(
            self.objective, kind=s.optimizer, decay=s.decay, betas=(s.beta1, s.beta2), eps=s.eps, scale=self.scale
        )
        self.parameters = list(named(self.objective).values())
        self.sharded = any(is_sharded(parameter) for parameter in self.parameters)
        self.exchange = Exchange(self.parameters, self.world, s.exchange)
        self.average = (
            {k: p.detach().clone() for k, p in named(self.objective).items()} if s.ema else {}
        )  # fmt: skip
        self._prefetcher: Prefetcher | None = None  # while steps are taken

    def __iter__(self) -> Iterator[Step]:
        """The remaining steps, one at a time."""
        self._prefetcher = Prefetcher(self.feed.step, self.steps)
        try:
            while self.done < self.steps:
                self.objective.train()
                step = self._step(self._prefetcher.step(self.done))
                self.done += 1
                yield step
        finally:
            self._prefetcher.close()
            self._prefetcher = None

    def set_steps(self, steps: int) -> None:
        """Move the end of the run; batches prefetched under the old plan are made again."""
        self.steps = steps
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = Prefetcher(self.feed.step, steps)

    def _step(self, batches: list[Batch]) -> Step:
        """A step of the training loop: count, divide, backward, add up, clip, update."""
        s = self.settings
        lr = rate(self.done, self.steps, s.lr, warmup=s.warmup, shape=s.schedule, floor=s.floor)
        local: dict[str, float] = {"tokens": float(sum(batch.tokens for batch in batches))}
        for batch in batches:
            for name, count in self.objective.counts(batch).items():
                local[name] = local.get(name, 0.0) + count
        counts = self.world.sums(local)
        weights = self.objective.weights_at(self.done / max(1, self.steps))
        sums = dict.fromkeys((name for name in counts if name != "tokens"), 0.0)
        blamed = batches[:1]
        # Ranks with sharded weights must compute in lockstep: one with fewer parts repeats its last, with weight zero.
        parts = self.world.most(len(batches)) if self.sharded else len(batches)
        for part in range(parts):
            batch = batches[min(part, len(batches) - 1)]
            for masks in self.objective.dropout_masks():
                masks.seed(self.seed, self.done, self.world.rank, part)
            losses = self.objective(batch.to(self.world.device))
            if part == parts - 1:
                self.exchange.overlap()
            if part >= len(batches):
                torch.stack([loss * 0 for loss in losses.values()]).sum().backward()
                continue
            weighted = [loss * (weights.get(k, 1.0) / max(1.0, counts[k])) for k, loss in losses.items()]
            torch.stack(weighted).sum().backward()
            values = {name: float(loss.detach()) for name, loss in losses.items()}
            if not math.isfinite(sum(values.values())) and math.isfinite(sum(sums.values())):
                blamed = [batch]
            sums |= {name: sums[name] + value for name, value in values.items()}
        self.exchange.finish()
        sums = self.world.sums(sums)
        means = {name: value / max(1.0, counts[name]) for name, value in sums.items()}
        total = sum(weights.get(name, 1.0) * value for name, value in means.items())
        length = self.world.clip(self.parameters, s.clip)
        if not math.isfinite(total) or not math.isfinite(length):
            self._refuse(total, length, lr, means, blamed)
        set_rate(self.optimizers, lr)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._follow()
        return Step(self.done, total, means, lr, length, int(counts["tokens"]))

    def _refuse(self, loss: float, length: float, lr: float, means: dict[str, float], batches: list[Batch]) -> None:
        """The training loop stops before the weights change, and reports the step and its batch."""
        terms = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
        first = batches[0].ids[:12].tolist() if batches else []
        raise NotFinite(
            f"Step {self.done}: the loss is {loss:.4g} and the gradient norm {length:.4g} ({terms}; learning rate "
            f"{lr:.3g}; the batch begins with the pieces {first}). The weights were not changed. "
            "Lower the learning rate or use --precision fp32, and continue with --resume --allow-changed-settings."
        )

    @torch.no_grad()
    def _follow(self) -> None:
        """The training loop moves the averaged weights towards the current ones."""
        for name, parameter in named(self.objective).items() if self.average else ():
            self.average[name].lerp_(parameter, 1 - self.settings.ema)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The objective with the training loop's averaged weights, if they are kept; afterwards with its own again."""
        parameters = named(self.objective) if self.average else {}
        own = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(self.average[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(own[name])

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The training loop's tensors to save, by file. Every rank must call this."""
        tensors = {
            "weights": {name: whole(p.detach()) for name, p in named(self.objective).items()},
            "optimizer": optimizer_tensors(self.optimizers, self.objective),
        }
        averaged = {name: whole(tensor) for name, tensor in self.average.items()}
        return tensors | ({"average": averaged} if averaged else {})

    def state(self) -> dict[str, Any]:
        """The training loop's numbers to save beside the tensors."""
        return {"done": self.done, "steps": self.steps, "seed": self.seed}

    @torch.no_grad()
    def load(self, tensors: Callable[[str], dict[str, Tensor]], state: dict[str, Any]) -> None:
        """The training loop continues where `state` and the tensors were saved."""
        names, passing = named(self.objective), self.objective.passing
        saved = under_current_names(tensors("weights"), names)
        for name, parameter in names.items():
            if name in saved or not name.startswith(passing):
                parameter.copy_(like(saved[name], parameter))
        moments = under_current_names(tensors("optimizer"), names)
        load_optimizer_tensors(self.optimizers, self.objective, moments, passing)
        if self.average:
            averaged = under_current_names(tensors("average"), names)
            current = {name: t for name, t in averaged.items() if name in names or not name.startswith(passing)}
            self.average |= {name: like(t, names[name]).clone() for name, t in current.items()}
        self.done, self.steps = int(state["done"]), int(state["steps"])


@dataclass(frozen=True)
class Trial:
    """What a few steps of the training loop cost on this machine at this moment."""

    seconds_per_step: float
    tokens_per_step: float
    steps: int


def try_out(training: Training, seconds: float) -> Trial:
    """Run the training loop for a moment, and undo it: afterwards the weights are as before."""
    t = training
    # Not on a copy of the objective: sharded layers cannot be copied.
    before = {name: parameter.detach().clone() for name, parameter in named(t.objective).items()}
    times, tokens = [time.perf_counter()], 0
    for step in Training(t.objective, t.feed, t.steps, t.settings, t.seed, t.world, t.scale):
        times.append(time.perf_counter())
        # The first steps fill caches and are slower than the others.
        tokens += step.tokens if len(times) > 3 else 0
        if t.world.anywhere(len(times) > 4 and times[-1] - times[0] > seconds):
            break
    with torch.no_grad():
        for name, parameter in named(t.objective).items():
            parameter.copy_(before[name])
    measured = max(1, len(times) - 3)
    return Trial((times[-1] - times[-1 - measured]) / measured, tokens / measured, len(times) - 1)
