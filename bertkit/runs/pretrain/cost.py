"""Estimates the cost of a run from a few seconds of real steps."""

from __future__ import annotations

import math
from typing import Any

from bertkit import machine
from bertkit.runs.pretrain.build import Components, make_feed
from bertkit.training.distributed import World
from bertkit.training.loop import Training, Trial, try_out
from bertkit.training.run import FIRST_GUESS


def measure(built: Components, world: World, seconds: float = 20.0) -> Trial:
    """Measure a step of this run; the run itself is untouched."""
    s = built.settings
    return try_out(
        Training(built.objective, make_feed(built, FIRST_GUESS, world), FIRST_GUESS, s.loop, s.seed, world), seconds
    )


def plan(built: Components, world: World, seconds: float = 20.0) -> dict[str, Any]:
    """Time, memory and text of the configured run, and warnings."""
    s = built.settings
    cost = measure(built, world, seconds)
    feed = make_feed(built, 1000, world)
    length = s.length_plan[0][1]
    examples = len(feed.packing(length))
    rows = feed.plan[0].rows
    steps_per_epoch = max(1, math.ceil(examples / rows))
    steps = s.steps or (s.tokens // s.batch_tokens if s.tokens else 0)
    steps = steps or (int(s.minutes * 60 / cost.seconds_per_step) if s.minutes else steps_per_epoch)
    tokens = int(steps * cost.tokens_per_step)
    store_tokens = built.store.tokens
    parameters = sum(p.numel() for p in built.objective.parameters())
    low, high = expected_loss(parameters, tokens)
    warnings = []
    if tokens > 40 * store_tokens:
        warnings.append(
            f"The text would be read {tokens / store_tokens:.0f} times; beyond about 40 passes little is learned. "
            "Add text, or train for less time."
        )
    if parameters > 2 * store_tokens:
        warnings.append(
            f"The model has {parameters / 1e6:.1f}M parameters for {store_tokens / 1e6:.1f}M tokens of text: "
            "a smaller preset will learn as much in less time."
        )
    if tokens < 4 * parameters:
        warnings.append(
            f"{tokens / 1e6:.1f}M tokens are few for {parameters / 1e6:.1f}M parameters: "
            "use a smaller preset, or train longer."
        )
    return {
        "preset": s.preset, "parameters": parameters,
        "tokens_per_second": round(cost.tokens_per_step / cost.seconds_per_step, 1),
        "seconds_a_step": round(cost.seconds_per_step, 4), "steps": steps,
        "seconds": round(steps * cost.seconds_per_step, 1), "tokens": tokens,
        "store_tokens": store_tokens, "epochs": round(steps / steps_per_epoch, 2),
        "seconds_an_epoch": round(steps_per_epoch * cost.seconds_per_step, 1),
        "memory_gb": round(machine.peak_memory() / 2**30, 2),
        "expected_loss": [round(low, 1), round(high, 1)], "warnings": warnings,
    }  # fmt: skip


def expected_loss(parameters: int, tokens: int) -> tuple[float, float]:
    """A rough range of the final masked-word loss for English with a 12k–30k vocabulary.

    Fitted by eye to small runs on mixed Wikipedia and book text: about 6.3 before a million tokens, 5.5 after
    ten, 3.8 after a hundred, 3.0 after a billion; a smaller model ends higher.
    """
    middle = 6.4 - 1.05 * max(0.0, math.log10(max(tokens, 1) / 3e6)) ** 0.9
    middle -= 0.15 * math.log10(max(parameters, 1) / 10e6)
    return max(1.5, middle - 0.5), min(7.5, middle + 0.5)
