"""What torchrun starts on each of two hosts: steps of pretraining with and without the exchange of gradients, timed.

Each process shapes its own end of the cable. Modes take turns step by step, so that other work on the machine slows all
of them alike: alone (no exchange), after (exchange when the backward pass is over), during (while it runs), bf16 (the
same with 16-bit gradients).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _namespaces import CABLE, shaping

from bertkit import machine
from bertkit.data.feed import PretrainingFeed, phases
from bertkit.data.store import Store
from bertkit.model.heads import Model
from bertkit.objectives.masked import Masked
from bertkit.settings.model import Config
from bertkit.settings.training import LoopSettings, MaskSettings
from bertkit.training import distributed as worlds
from bertkit.training.distributed import Exchange, World
from bertkit.training.loop import Training

FOREVER = 1_000_000


class Turns:
    """A run of one model whose exchange can be replaced between two steps."""

    def __init__(self, case: dict[str, Any], world: World) -> None:
        store = Store.open(Path(case["store"]))
        torch.manual_seed(0)
        sizes = {name: case[name] for name in ("width", "depth", "heads")}
        config = Config(vocabulary=-(-case["vocabulary"] // 64) * 64, inner=4 * case["width"], **sizes)
        objective = Masked(Model(config, {"mlm": 0, "next_sentence": 2}))
        feed = PretrainingFeed(
            store, np.arange(store.documents), packing="next-sentence", masking=MaskSettings(), seed=0,
            plan=phases(FOREVER, ((1.0, 128),), case["tokens"] * world.size), rank=world.rank, ranks=world.size,
        )  # fmt: skip
        self.tokens, made = 0, feed.step
        self.training = Training(objective, feed, FOREVER, LoopSettings(lr=1e-4, warmup=0.0), 0, world)
        self.modes: dict[str, tuple[World, Exchange]] = {}
        for mode in ("alone", "after", "during", "bf16"):
            own = World(world.rank) if mode == "alone" else world
            self.modes[mode] = own, Exchange(self.training.parameters, own, "bf16" if mode == "bf16" else "fp32")
        self.modes["after"][1].overlaps = False
        self.parameters = sum(p.numel() for p in self.training.parameters)
        self.batches = lambda: made(self.training.done)

    def step(self, mode: str) -> dict[str, float]:
        """Seconds of a step by the clock and of this process's cores, and those it waited for the exchange."""
        self.training.world, self.training.exchange = self.modes[mode]
        batches = self.batches()
        exchange, waited = self.training.exchange, 0.0
        finish = exchange.finish

        def timed() -> None:
            nonlocal waited
            start = time.perf_counter()
            finish()
            waited = time.perf_counter() - start

        exchange.finish = timed  # type: ignore[method-assign]
        clock, cpu = time.perf_counter(), time.process_time()
        self.training.objective.train()
        self.training._step(batches)
        taken = {"seconds": time.perf_counter() - clock, "cpu": time.process_time() - cpu, "waited": waited}
        exchange.finish = finish  # type: ignore[method-assign]
        self.training.done += 1
        return taken | {"tokens": float(sum(batch.tokens for batch in batches))}

    def exchange_only(self, mode: str) -> float:
        """Seconds of an exchange with nothing else to do."""
        self.modes[mode][0].wait()
        start = time.perf_counter()
        self.modes[mode][1].finish()
        seconds = time.perf_counter() - start
        for parameter in self.training.parameters:
            parameter.grad = None
        return seconds


def shape(mbit: int) -> None:
    """Shape this end of the cable."""
    subprocess.run(["tc", "qdisc", "del", "dev", CABLE, "root"], capture_output=True)
    if mbit:
        subprocess.run(["tc", "qdisc", "add", "dev", CABLE, "root", *shaping(mbit)], check=True)


def main() -> None:
    asked = json.loads(sys.argv[1])
    machine.set_up(1)
    world = worlds.join("cpu")
    rows = []
    for case in asked["cases"]:
        turns = Turns(case, world)
        turns.step("alone")  # the first step is slow
        for mbit in case["mbit"]:
            shape(mbit)
            world.wait()
            modes = case["modes"] if mbit in case["stepped"] else []
            seen: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
            only: dict[str, list[float]] = {"fp32": [], "bf16": []}
            for number in range(case["rounds"]):
                for mode in modes[:: -1 if number % 2 else 1]:
                    world.wait()  # both begin together
                    seen[mode].append(turns.step(mode))
                only["fp32"].append(turns.exchange_only("after"))
                only["bf16"].append(turns.exchange_only("bf16"))
            row = {"case": case["name"], "parameters": turns.parameters, "mbit": mbit, "ms": asked["ms"]}
            # The least: whatever else runs on the machine can only add to it.
            row["exchange"] = {kind: min(seconds) for kind, seconds in only.items()}
            for mode, steps in seen.items():
                row[mode] = {name: statistics.mean(step[name] for step in steps) for name in steps[0]}
            rows.append(row)
            if world.is_main:
                print(json.dumps(row), file=sys.stderr, flush=True)
        shape(0)
        del turns
    if world.is_main:
        Path(asked["out"]).write_text(json.dumps(rows), "utf-8")
    worlds.leave()


if __name__ == "__main__":
    main()
