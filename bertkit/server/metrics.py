"""Counters and histograms under TEI's names, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
FAMILY = {"embed": "embed", "predict": "predict"}  # operations that TEI counts by themselves


@dataclass
class Histogram:
    """A histogram: how often a value fell into each bucket."""

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def add(self, value: float) -> None:
        """Add one value."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        """The histogram in Prometheus' format, with cumulative buckets."""
        shown, sofar = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts or [0] * (len(self.bounds) + 1)):
            sofar += count
            shown.append(f'{name}_bucket{{le="{bound}"}} {sofar}')
        return [f"# TYPE {name} histogram", *shown, f"{name}_sum {self.total:.6f}", f"{name}_count {sofar}"]


class Metrics:
    """What the server counts."""

    def __init__(self, prefix: str = "te") -> None:
        self.prefix = prefix
        self.counters: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.histograms = {
            f"{family}_{what}": Histogram()
            for family in ("request", *FAMILY.values())
            for what in ("duration", "tokenization_duration", "queue_duration", "inference_duration")
        } | {name: Histogram(COUNTS) for name in ("request_input_length", "batch_next_size", "batch_next_tokens")}

    def arrived(self, operation: str, items: int) -> None:
        """Count a request with this many inputs."""
        self._count("request_count", items)
        if operation in FAMILY:
            self.counters[f"{FAMILY[operation]}_count"][""] += items

    def answered(self, operation: str, tokens: list[int], seconds: dict[str, float]) -> None:
        """Count a successful response; seconds: by stage."""
        self._count("request_success", len(tokens))
        families = ["request"]
        if operation in FAMILY:
            families.append(FAMILY[operation])
            self.counters[f"{FAMILY[operation]}_success"][""] += len(tokens)
        for family in families:
            for what, spent in seconds.items():
                self.histograms[f"{family}_{what}"].add(spent)
        for count in tokens:
            self.histograms["request_input_length"].add(count)

    def failed(self, kind: str) -> None:
        """Count a failed request."""
        self.counters["request_failure"][f'{{err="{kind.lower()}"}}'] += 1

    def batch(self, items: int, tokens: int) -> None:
        """Count a batch."""
        self.histograms["batch_next_size"].add(items)
        self.histograms["batch_next_tokens"].add(tokens)

    def text(self, waiting: int) -> str:
        """All metrics as Prometheus text."""
        lines = []
        for name, values in sorted(self.counters.items()):
            lines.append(f"# TYPE {self.prefix}_{name} counter")
            lines += [f"{self.prefix}_{name}{labels} {value}" for labels, value in sorted(values.items())]
        lines += [f"# TYPE {self.prefix}_queue_size gauge", f"{self.prefix}_queue_size {waiting}"]
        for name, histogram in self.histograms.items():
            lines += histogram.lines(f"{self.prefix}_{name}")
        return "\n".join(lines) + "\n"

    def _count(self, name: str, items: int) -> None:
        method = "single" if items == 1 else "batch"
        self.counters[name][f'{{method="{method}"}}'] += 1
