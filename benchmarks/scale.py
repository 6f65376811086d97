"""From one core to a thousand machines: what a billion rows or tokens cost, and what the exchange takes of it.

Costs follow from single-node figures of docs/benchmarks.md and a price per core-hour. Pretraining over many machines is
simulated step by step: every machine computes its share of the batch, some slower than others (log-normal); gradients
leave in buckets as the backward pass finishes them, last layer first, around a ring; the step ends when the last bucket
has arrived everywhere. `--check` compares the simulated exchange between two hosts with what benchmarks/two_hosts.py
measured. The tables of docs/scale.md are what this script prints.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results"
PRICE = 0.04  # dollars per core-hour: an assumption
CORES = 32  # of a machine: an assumption
# docs/benchmarks.md, two cores of an AMD EPYC with AVX512-BF16, halved. That 32 cores do 16 times as much is assumed.
TOKENS = {"mini": 8481 / 2, "small": 3087 / 2, "base": 614 / 2}  # pretrained, per core and second
ROWS = 515 / 2  # texts of 28 tokens embedded by a 6×384 encoder, per core and second
TCP = 0.94  # of a cable's rate that arrives as data: measured by sending zeros over shaped cables
BUCKET = 1 << 23  # numbers in one message (bertkit/training/distributed.py)
BACKWARD = 2 / 3  # of a step's time: twice the products of the forward pass


@dataclass(frozen=True)
class Sizes:
    """Parameters of an encoder: embeddings come first, and their gradients last."""

    embeddings: int
    layer: int
    depth: int
    heads: int

    @classmethod
    def of(cls, depth: int, width: int, vocabulary: int = 30528) -> Sizes:
        """BERT's numbers: 12 width² and 13 width a layer, pooler and word head."""
        return cls((vocabulary + 514 + 2) * width, 12 * width**2 + 13 * width, depth, 2 * width**2 + vocabulary)

    @property
    def all(self) -> int:
        return self.embeddings + self.depth * self.layer + self.heads

    def buckets(self) -> list[tuple[int, float]]:
        """(numbers, fraction of the backward pass after which they are complete), in the order of sending."""
        parts = [(self.heads, 0.0)] + [(self.layer, (n + 1) / self.depth) for n in range(self.depth)]
        parts.append((self.embeddings, 1.0))
        made, size = [], 0
        for numbers, ready in parts:
            size += numbers
            if size >= BUCKET or ready == 1.0:
                made.append((size, ready))
                size = 0
        return [bucket for bucket in made if bucket[0]]


SIZES = {"mini": Sizes.of(4, 256), "small": Sizes.of(4, 512), "base": Sizes.of(12, 768)}


@dataclass(frozen=True)
class Cluster:
    """Machines and the cables between them. spread: of a machine's time for a step, as a fraction."""

    machines: int
    gbit: float = 10.0
    ms: float = 0.1
    spread: float = 0.05
    bytes_per_number: int = 4
    days_between_failures: float = 1000.0  # of one machine
    minutes_lost: float = 7.0  # by a failure: half of --save-minutes 10, and the restart

    def send(self, numbers: int) -> float:
        """Seconds of a ring all-reduce: 2 (n - 1) messages in a row, each a part of the numbers."""
        steps = 2 * (self.machines - 1)
        return steps * (self.ms / 1000 + numbers * self.bytes_per_number * 8 / self.machines / (self.gbit * 1e9 * TCP))

    def exchange(self, sizes: Sizes) -> float:
        """Seconds of an exchange with nothing to compute."""
        return sum(self.send(numbers) for numbers, _ in sizes.buckets())

    def step(self, sizes: Sizes, compute: float, backward: float, chance: np.random.Generator) -> float:
        """Seconds of one step. compute: of a machine of average speed. backward: of its last micro-batch."""
        slowest = float(np.exp(chance.normal(0.0, self.spread, self.machines)).max())
        now = done = slowest * (compute - backward)
        for numbers, ready in sizes.buckets():
            done = max(done, now + slowest * backward * ready) + (self.send(numbers) if self.machines > 1 else 0.0)
        return max(done, slowest * compute)

    def kept(self) -> float:
        """The fraction of the time that failures leave."""
        return 1 / (1 + self.machines * self.minutes_lost / (self.days_between_failures * 24 * 60))


def simulate(name: str, batch: int, cluster: Cluster, micro: int = 8192, steps: int = 200) -> dict[str, float]:
    """Tokens per second of a cluster, and the fraction that it makes of its machines' speed."""
    chance = np.random.default_rng(0)
    speed = TOKENS[name] * CORES
    share = batch / cluster.machines
    backward = min(share, micro) / speed * BACKWARD
    seconds = float(np.mean([cluster.step(SIZES[name], share / speed, backward, chance) for _ in range(steps)]))
    rate = batch / seconds * cluster.kept()
    return {"tokens_per_second": rate, "efficiency": rate / (speed * cluster.machines)}


def core_hours(number: float, per_core_second: float) -> float:
    return number / per_core_second / 3600


CLUSTERS = (  # machines, and tokens per step
    (1, 2**17), (2, 2**17), (8, 2**17), (32, 2**17), (32, 2**20), (100, 2**20), (1000, 2**20), (1000, 2**23),
)  # fmt: skip


def costs() -> list[str]:
    """The first table: one billion of each, on any number of cores that do not wait for one another."""
    work = {"rows embedded, 6×384, 28 tokens each": ROWS} | {f"tokens pretrained, {n}": v for n, v in TOKENS.items()}
    lines = ["| a billion | per core and second | core-hours | dollars |", "|---|---|---|---|"]
    for name, speed in work.items():
        hours = core_hours(1e9, speed)
        lines.append(f"| {name} | {speed:,.0f} | {hours:,.0f} | {hours * PRICE:,.2f} |")
    return lines


def clusters() -> list[str]:
    """The second table: base, by machines and batch."""
    lines = [
        "| machines | batch | 1 Gbit/s | 10 Gbit/s | 10 Gbit/s, bf16 | 25 Gbit/s | hours per billion | dollars |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for machines, batch in CLUSTERS:
        results = [
            simulate("base", batch, Cluster(machines, gbit, bytes_per_number=size))
            for gbit, size in ((1, 4), (10, 4), (10, 2), (25, 4))
        ]
        hours = 1e9 / results[1]["tokens_per_second"] / 3600
        cells = " | ".join(f"{result['efficiency']:.2f}" for result in results)
        lines.append(f"| {machines:,} | {batch:,} | {cells} | {hours:,.2f} | {hours * machines * CORES * PRICE:,.0f} |")
    return lines


def rows() -> list[str]:
    """Rows are independent: machines wait for nothing but the disk that takes the vectors (384 numbers of 4 bytes)."""
    lines = ["| machines | rows per second | hours per billion | vectors written |", "|---|---|---|---|"]
    for machines in (1, 10, 100, 1000):
        speed = ROWS * CORES * machines
        written = speed * 384 * 4 / 1e6
        volume = f"{written:,.0f} MB/s" if written < 1000 else f"{written / 1000:.1f} GB/s"
        lines.append(f"| {machines:,} | {speed:,.0f} | {1e9 / speed / 3600:.2f} | {volume} |")
    return lines


def limits() -> list[str]:
    """The third table: what the exchange of base takes by itself, by machines and cable."""
    lines = [
        "| machines | 1 Gbit/s | 10 Gbit/s | 10 Gbit/s, 1 ms | 25 Gbit/s | 10 Gbit/s, bf16 |",
        "|---|---|---|---|---|---|",
    ]
    for machines in (2, 8, 32, 100, 1000):
        plain = Cluster(machines)
        kinds = [
            replace(plain, gbit=1), plain, replace(plain, ms=1.0), replace(plain, gbit=25),
            replace(plain, bytes_per_number=2),
        ]  # fmt: skip
        cells = " | ".join(f"{kind.exchange(SIZES['base']):.2f} s" for kind in kinds)
        lines.append(f"| {machines:,} | {cells} |")
    return lines


def check() -> list[str]:
    """Simulated and measured seconds of an exchange between two hosts; the newest measurement of each shape."""
    rows: dict[tuple[str, int, float], dict[str, float]] = {}
    for line in (RESULTS / "two_hosts.jsonl").read_text("utf-8").splitlines():
        for row in json.loads(line).get("speed", []):
            rows[row["case"], row["mbit"], row["ms"]] = row["exchange"]
    lines = ["| model | cable | simulated | measured | bf16, simulated | measured |", "|---|---|---|---|---|---|"]
    for (name, mbit, ms), measured in sorted(rows.items()):
        both = [Cluster(2, mbit / 1000, ms, bytes_per_number=size).exchange(SIZES[name]) for size in (4, 2)]
        cable = f"{mbit / 1000:g} Gbit/s" + (f", {ms:g} ms" if ms else "")
        cells = f"{both[0]:.2f} s | {measured['fp32']:.2f} s | {both[1]:.2f} s | {measured['bf16']:.2f} s"
        lines.append(f"| {name} | {cable} | {cells} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only the comparison with measurements")
    tables = [check()] if parser.parse_args().check else [costs(), rows(), clusters(), limits(), check()]
    print("\n\n".join("\n".join(table) for table in tables))


if __name__ == "__main__":
    main()
