"""Texts to vectors: bertkit and its peers on the same weights, texts a second and milliseconds for one sentence.

    python benchmarks/embed.py [--table|--quick|--smoke] [--json] [--threads 2] [--rounds N] [--only NAME,NAME]
        [--case MODEL]

Random weights of BERT-base's and MiniLM's shape; texts of two length mixes. Every contestant gets raw texts, so
tokenization counts. Each has a process of its own and is warmed up; then they take turns. Under --quick and --table a
contestant too slow for its share of the time runs on a part of the texts a turn (`part` in its row). `cosine` is that
of vectors around their mean against the baseline's: 1 is the same, and int8 loses some. `tier` says who may be compared
with whom: those whose mean cosine is at least 0.999, and those with at least 0.98; whoever is below is shown last.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import _workers as workers
import numpy as np
from _contestants import BASELINE, BATCH, CONTESTANTS, LIBRARIES, Embed
from _harness import (
    PAUSE,
    Row,
    machine,
    neat,
    row,
    skipped,
    table,
    take_turns,
    tell,
    texts_of,
    timed,
    with_ratios,
)
from _models import CONVERSIONS, learn_vocabulary, make

from bertkit.text.tokenizer import Tokenizer

TIERS = (0.999, 0.98)  # least mean cosine
FIRST = 128  # texts of the first run and of the guess at speed; a turn is never less


@dataclass(frozen=True)
class Case:
    """What is measured: texts a second, or for `latency` the time of single sentences. seconds: for all turns."""

    model: str
    mix: str
    texts: int
    rounds: int
    seconds: float = math.inf
    latency: bool = False

    @property
    def name(self) -> str:
        return f"{self.model} {self.mix}, " + ("one sentence" if self.latency else f"{self.texts} texts")


FORMS = {
    "smoke": [Case("tiny", "short", 40, 1), Case("tiny", "short", 3, 1, latency=True)],
    "quick": [
        Case("minilm", "short", 20, 3, 8, latency=True),
        Case("minilm", "short", 100, 3, 12),
        Case("minilm", "short", 2000, 3, 40),
        Case("base", "short", 100, 1, 12),
        Case("base", "short", 10, 2, 6, latency=True),
    ],
    "table": [  # for docs/benchmarks.md, in some seven minutes a model: --case minilm, --case base
        Case("minilm", "short", 20, 4, 16, latency=True),
        Case("minilm", "short", 2000, 3, 50),
        Case("minilm", "short", 100, 4, 25),
        Case("minilm", "long", 60, 3, 45),
        Case("base", "short", 8, 3, 20, latency=True),
        Case("base", "short", 100, 2, 75),
        Case("base", "long", 10, 2, 45),
    ],
    "full": [
        Case(model, *rest)
        for model, rounds in (("minilm", 5), ("base", 3))
        for rest in (
            ("short", 2000, rounds),
            ("short", 100, 2 * rounds),
            ("long", 200, rounds),
            ("short", 20, 2 * rounds, math.inf, True),
        )
    ],
}
ENOUGH = {
    "smoke": math.inf,
    "quick": 140.0,
    "table": 420.0,
    "full": math.inf,
}  # seconds after which nothing new is started


def vectors(embed: Embed, texts: Sequence[str]) -> np.ndarray:
    return np.asarray(embed(texts), dtype=np.float32)


def turn(embed: Embed, texts: Sequence[str]) -> list[tuple[float, float]]:
    """Times of the whole set: once, or for half a second where that is short."""
    embed(texts[:1])  # wakes threads that slept through the others' turns
    until = time.perf_counter() + 0.5
    times = [timed(embed, texts)]
    while time.perf_counter() < until and len(times) < 10:
        times.append(timed(embed, texts))
    return times


def single(embed: Embed, texts: Sequence[str]) -> list[tuple[float, float]]:
    embed(texts[:1])
    return [timed(embed, [text]) for text in texts]


def centred_cosine(vectors: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Least and mean cosine of two sets of vectors around the reference's mean; texts the reference lacks are left."""
    vectors = vectors[: len(reference)] - reference.mean(0)
    reference = reference - reference.mean(0)
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    cosines = (vectors * reference).sum(1) / np.maximum(norms, 1e-12)
    return {"min": round(float(cosines.min()), 5), "mean": round(float(cosines.mean()), 5)}


def tier(cosine: float) -> float:
    """The best of the tiers of exactness that vectors of this cosine belong to; 0: none."""
    return next((least for least in TIERS if cosine >= least), 0.0)


def part(texts: Sequence[str], step: int, number: int) -> list[str]:
    """One of `step` parts of the texts, in their order: every step-th batch of those that sorting by length gives.

    So whoever sorts gets the very batches of the whole set, and whoever does not gets the same mix of lengths.
    """
    if step == 1:
        return list(texts)
    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    return [texts[place] for place in sorted(chain(*batches[(step // 2 + number) % step :: step]))]


class Field:
    """The contestants on one model: who is there, and why the others are not."""

    def __init__(self, folder: Path, names: Sequence[str], threads: int, form: str, until: float) -> None:
        self.pause = 0 if form == "smoke" else PAUSE
        self.until = until
        self.there: dict[str, workers.Worker] = {}
        self.absent: dict[str, str] = {}
        done: set[Any] = set()
        for name in names:
            contestant = CONTESTANTS[name]
            try:
                if reason := contestant.lacks():
                    raise workers.Failed(reason)
                for step in CONVERSIONS.get(contestant.conversion, ()):
                    if step not in done:
                        self.check_time()
                        workers.apart(step, folder)
                        done.add(step)
                self.check_time()
                self.there[name] = workers.Worker(contestant.open, folder, threads)
            except Exception as reason:
                self.drop(name, reason)

    def check_time(self) -> None:
        if time.perf_counter() > self.until:
            raise workers.Failed("no time was left in this form of the benchmark")

    def drop(self, name: str, reason: Exception) -> None:
        self.absent[name] = workers.told(reason)
        tell(f"  {name} is out: {self.absent[name]}")
        if name in self.there:
            self.there.pop(name).close()

    def close(self) -> None:
        for worker in self.there.values():
            worker.close()

    def measure(self, case: Case, texts: list[str], rounds: int) -> list[Row]:
        """Rows of a case, the absent among them."""
        share = case.seconds / max(1, len(self.there))
        steps: dict[str, int] = {}
        spent = dict.fromkeys(self.there, 0.0)
        played = dict.fromkeys(self.there, 0)
        usual = sum(map(len, texts)) / len(texts)

        def warm_up(name: str) -> np.ndarray:
            self.check_time()
            computed = self.there[name].ask(vectors, texts[:FIRST])
            (clock, _), *_ = self.there[name].ask(turn, texts[:FIRST])
            whole = 0 if case.latency else clock * len(texts) / FIRST
            steps[name] = max(1, min(math.ceil(2 * whole / share), len(texts) // FIRST))
            if steps[name] == 1 and len(texts) > FIRST:
                self.there[name].ask(vectors, texts)
            return computed

        def play(name: str) -> list[tuple[float, float]] | None:
            """Texts (of the usual length) a second and a CPU-second, or both times of each sentence."""
            if played[name] and (spent[name] > share or time.perf_counter() > self.until):
                return None
            some = part(texts, steps[name], played[name])
            times = self.there[name].ask(single if case.latency else turn, some)
            spent[name] += sum(clock for clock, _ in times)
            played[name] += 1
            if case.latency:
                return times
            amount = sum(map(len, some)) / usual
            return [(amount / clock, amount / max(cpu, 1e-9)) for clock, cpu in times]

        warm = take_turns({name: partial(warm_up, name) for name in self.there}, 1, self.drop, 0)
        turns_by_name = take_turns({name: partial(play, name) for name in warm}, rounds, self.drop, self.pause)
        rows = []
        for name, turns in turns_by_name.items():
            results = [result for one in turns for result in one]
            more: Row = {"turns": len(turns), "part": neat(1 / steps[name])}
            if name == BASELINE:
                more["tier"] = TIERS[0]
            elif BASELINE in warm:
                more["cosine"] = centred_cosine(warm[name][0], warm[BASELINE][0])
                more["tier"] = tier(more["cosine"]["mean"])
            if case.latency:
                rows.append(row(case.name, name, [1000 * clock for clock, _ in results], "ms", **more))
                continue
            more["per_cpu_second"] = neat(statistics.median(by_cpu for _, by_cpu in results))
            rows.append(row(case.name, name, [by_clock for by_clock, _ in results], "texts/s", **more))
        return rows + [skipped(case.name, name, reason) for name, reason in self.absent.items()]


def run(form: str, names: Sequence[str], threads: int, rounds: int, case: str = "") -> dict[str, Any]:
    began = time.perf_counter()
    cases = [one for one in FORMS[form] if one.name.startswith(case)]
    document: dict[str, Any] = {"machine": workers.apart(machine, threads, LIBRARIES), "form": form, "cases": {}}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        for model in dict.fromkeys(one.model for one in cases):
            folder = Path(temporary) / model
            folder.mkdir()
            small = (1000, 600) if form == "smoke" else ()
            words = workers.apart(learn_vocabulary, folder, *small)
            workers.apart(make, folder, model)
            tokenizer = Tokenizer.load(folder)
            field = Field(folder, names, threads, form, began + ENOUGH[form])
            tell(f"{time.perf_counter() - began:4.0f} s  {model}: {len(field.there)} contestants are ready")
            for one in (one for one in cases if one.model == model):
                texts = texts_of(one.mix, one.texts, tokenizer, words)
                counts = [len(ids) for ids in tokenizer.ids_batch(texts)]
                document["cases"][one.name] = {"texts": len(texts), "tokens": sum(counts), "longest": max(counts)}
                measured = field.measure(one, texts, rounds or one.rounds)
                rows += measured
                tell(f"{time.perf_counter() - began:4.0f} s  {one.name}: done")
                # A run that is stopped has printed something.
                tell("\n".join(table(with_ratios(measured, BASELINE))))
            field.close()
    return document | {"rows": with_ratios(rows, BASELINE), "seconds": round(time.perf_counter() - began)}


def main() -> None:
    workers.compete("embed", __doc__ or "", list(CONTESTANTS), BASELINE, run)


if __name__ == "__main__":
    main()
