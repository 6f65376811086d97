"""GloVe in bounded memory: the peak of counting and learning over texts that grow, beside one that may hold all.

    python benchmarks/glove.py [--quick] [--json] [--threads 2]

Made-up text by Zipf's law, a vocabulary of 30,000 words, one pass. `64 MB` is what counting and shuffling may hold
beside the text itself (which is four bytes a word) and the vectors; `unbounded` may hold everything. `ratio` is the
growth over the smallest text with the same bound. Nobody else trains GloVe from Python, so nothing stands beside it.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path

from _harness import RESULTS, Row, machine, made_up_words, only_the_document, options, peak_of, publish, row, tell

# megabytes of text
SIZES: dict[str, tuple[float, ...]] = {"smoke": (0.2, 0.4), "quick": (4, 8, 16), "full": (8, 32, 128)}
BOUNDS = {"64 MB": 64.0, "unbounded": 1e5}
LEARN = """
import sys
from bertkit.ancestors.vectors import glove
settings = glove.GloveSettings(dim=50, epochs=1, memory_mb=float(sys.argv[2]), threads=int(sys.argv[3]))
with open(sys.argv[1]) as file:
    glove.train((line.split() for line in file), settings)
"""


def write(path: Path, megabytes: float) -> Path:
    """Lines of twenty words."""
    words = made_up_words(30_000)
    heights = list(accumulate(1 / (n + 3) for n in range(len(words))))
    rng, left = random.Random(0), int(megabytes * 1_000_000)
    with path.open("w", encoding="utf-8") as file:
        while left > 0:
            left -= file.write(" ".join(rng.choices(words, cum_weights=heights, k=20)) + "\n")
    return path


def memory(folder: Path, sizes: tuple[float, ...], threads: int) -> list[Row]:
    """Bound by bound, text by text."""
    texts = [(size, write(folder / f"{size}.txt", size)) for size in sizes]
    rows: list[Row] = []
    for name, bound in BOUNDS.items():
        first = 0.0
        for size, path in texts:
            tell(f"{name}: {size} MB")
            begun = time.perf_counter()
            peak = peak_of([sys.executable, "-c", LEARN, str(path), str(bound), str(threads)]) / 1e6
            first = first or peak
            seconds = round(time.perf_counter() - begun, 1)
            measured = row(name, f"{size} MB of text", [peak], "MB", seconds=seconds)
            rows.append({**measured, "ratio": round(peak / first, 3)})
    return rows


def main() -> None:
    chosen = options(__doc__ or "")
    with only_the_document() as out, tempfile.TemporaryDirectory() as folder:
        rows = memory(Path(folder), SIZES[chosen.form], chosen.threads)
        results = None if chosen.form == "smoke" else RESULTS
        publish(
            "glove", {"machine": machine(chosen.threads), "rows": rows}, as_json=chosen.json, out=out, results=results
        )


if __name__ == "__main__":
    main()
