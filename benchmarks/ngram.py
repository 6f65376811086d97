"""n-gram counting and fitting in megabytes of text a second, on one core.

    python benchmarks/ngram.py [--quick] [--json] [--text FILE[.xz|.gz]] [--megabytes N]

Contestants take turns in one run. The baseline counts the same words with a dictionary of tuples, as a plain script
would. `counting` is text to counted n-grams; `fitting` adds smoothing and the speller of unknown words.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import os
import platform
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

from bertkit.ancestors.ngram.counting import Spool, count_windows
from bertkit.ancestors.ngram.model import START, NgramModel, NgramSettings, cut, sentences

CORPUS = Path(__file__).resolve().parents[2] / "shared/data/corpus/en_wikipedia.txt.xz"
RESULTS = Path(__file__).resolve().parent / "results"


def made_up(size: int) -> str:
    """Text of Zipf-distributed words, for machines without a corpus."""
    rng = random.Random(0)
    weights = np.cumsum([1 / (i + 3) for i in range(60_000)])
    lines = []
    while size > 0:
        words = [f"w{i:x}" for i in rng.choices(range(60_000), cum_weights=weights.tolist(), k=20)]
        lines.append(" ".join(words))
        size -= len(lines[-1]) + 1
    return "\n".join(lines)


def read(path: Path, size: int) -> tuple[str, str]:
    """The text, and what to call it."""
    if not path.exists():
        return made_up(size), "made-up"
    with {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
        return file.read(size), path.name.split(".")[0]


def count_plainly(text: str, order: int) -> int:
    counts: Counter[tuple[str, ...]] = Counter()
    for line in sentences(text):
        words = ["<s>"] * (order - 1) + cut(line, "words", True) + ["</s>"]
        counts.update(zip(*(words[i:] for i in range(order))))
    return len(counts)


def count_ours(text: str, order: int, memory_mb: float) -> int:
    model = NgramModel(NgramSettings(order=order, min_count=1, memory_mb=memory_mb))
    budget = int(memory_mb * 2**20)
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(budget // 4, Path(folder))
        known = model._choose(*model._read([text], spool, budget))
        chunks = lambda: model._chunks(spool, known, budget)  # noqa: E731
        return len(count_windows(chunks, order, len(model.words), START, budget, Path(folder))[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less text, fewer rounds")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--text", type=Path, default=CORPUS)
    parser.add_argument("--megabytes", type=int)
    options = parser.parse_args()
    size, rounds = (8, 2) if options.quick else (50, 3)
    text, name = read(options.text, (options.megabytes or size) * 1_000_000)
    megabytes = len(text.encode()) / 1e6
    rows = []
    for order in (3, 5):
        contestants: dict[str, Callable[[], object]] = {
            "dictionary of tuples": lambda order=order: count_plainly(text, order),
            "counting": lambda order=order: count_ours(text, order, 1024),
            "counting, 32 MB": lambda order=order: count_ours(text, order, 32),
            "fitting": lambda order=order: NgramModel(NgramSettings(order=order)).fit([text]),
        }
        speeds: dict[str, list[float]] = {who: [] for who in contestants}
        results = {}
        for _ in range(rounds):
            for who, work in contestants.items():
                began = time.perf_counter()
                results[who] = work()
                speeds[who].append(megabytes / (time.perf_counter() - began))
        if len({results[who] for who in contestants if who != "fitting"}) != 1:
            raise SystemExit(f"The contestants disagree about the number of {order}-grams: {results}")
        base = statistics.median(speeds["dictionary of tuples"])
        for who, values in speeds.items():
            value = statistics.median(values)
            case = f"order {order}, {megabytes:.0f} MB of {name}"
            rows.append({"case": case, "contestant": who, "value": round(value, 3), "unit": "MB/s",
                         "ratio": round(value / base, 3)})  # fmt: skip
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
               "python": platform.python_version(), "numpy": np.__version__}  # fmt: skip
    document = {"machine": machine, "rows": rows}
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "ngram.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(document) + "\n")
    if options.json:
        print(json.dumps(document))
    else:
        for row in rows:
            print(f"{row['case']:40} {row['contestant']:22} {row['value']:8.2f} {row['unit']}  × {row['ratio']:.2f}")


if __name__ == "__main__":
    main()
