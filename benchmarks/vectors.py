"""Many vectors: how fast, how exact and how large a graph of them is; and what it costs to add passages to an index.

    python benchmarks/vectors.py [--quick|--smoke] [--json] [--threads 2] [--only graph,add] [--vectors N]
                                 [--form f16|int8|binary] [--drawn clustered|random] [--work FOLDER]

graph: vectors of 256 numbers are drawn; clustered ones have 50 neighbours each around a centre, and directions of
falling importance, as those of encoders have; random ones have neither, which is the hardest there is. The graph is
the one that `bertkit index --engine usearch` makes; recall@10 and milliseconds are those of new vectors. --work keeps
it: a second call only asks.
add: `bertkit index --add` with vectors that are drawn instead of computed, so that only the index's own work is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Row, machine, neat, only_the_document, options, publish, row, tell

WIDTH, ASKED, AROUND = 256, 200, 50
FORMS = {  # vectors of the graph, passages of the indexes, passages that are added
    "full": (1_000_000, (10_000, 100_000), (1000, 5000, 10_000)),
    "quick": (20_000, (2000, 20_000), (200, 1000, 2000)),
    "smoke": (600, (50, 100), (10, 20)),
}


def drawn(count: int, kind: str, centres: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Vectors of length one: (count, WIDTH)."""
    rows = random.standard_normal((count, WIDTH), dtype=np.float32)
    if kind == "clustered":
        rows = centres[random.integers(len(centres), size=count)] + 0.6 * rows * importance()
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def importance() -> np.ndarray:
    return ((1 + np.arange(WIDTH)) ** -0.5).astype(np.float32)


def graph(count: int, kind: str, form: str, folder: Path) -> list[Row]:
    """Build the graph of a segment, unless the folder has it, and ask it."""
    from bertkit.retrieval.segments import BLOCK, Vectors, write_copies

    random = np.random.default_rng(0)
    centres = random.standard_normal((max(1, count // AROUND), WIDTH), dtype=np.float32) * importance()
    case = f"{count:,} {kind} vectors of {WIDTH} numbers, {form}"
    rows: list[Row] = []
    if not (folder / "vectors.usearch").is_file():
        with (folder / "vectors.f16").open("wb") as file:
            for start in range(0, count, BLOCK):
                file.write(drawn(min(BLOCK, count - start), kind, centres, random).tobytes())
        wall, cpu = time.perf_counter(), time.process_time()
        made = write_copies(folder, WIDTH, form, "usearch")
        seconds = {"s by the clock": time.perf_counter() - wall, "s of all cores": time.process_time() - cpu}
        tell(f"{case}: {made}, {seconds}")
        rows = [row(case, f"build, {unit}", [value], unit, ratio=None) for unit, value in seconds.items()]
    sizes = {path.name: path.stat().st_size / 1e6 for path in sorted(folder.iterdir())}
    before = resident()
    vectors = Vectors(folder, WIDTH)
    asked = drawn(ASKED, kind, centres, np.random.default_rng(1)).astype(np.float32)
    true = vectors.nearest(asked, 10)
    after = resident()
    hits, spent = 0, []
    for n, vector in enumerate(asked):
        wall, cpu = time.perf_counter(), time.thread_time()
        numbers = vectors.candidates(vector, 10)
        best = numbers[np.argsort(-vectors.cosines_of(vector, numbers))[:10]]
        spent.append((1000 * (time.perf_counter() - wall), 1000 * (time.thread_time() - cpu)))
        hits += len(np.intersect1d(best, true[n]))
    exact = []
    for vector in asked[:5]:
        cpu = time.perf_counter()
        vectors.cosines(vector)
        exact.append(1000 * (time.perf_counter() - cpu))
    recall = hits / (10 * ASKED)
    more = {"recall@10": recall, "megabytes": sizes, "resident_megabytes": [before, after, resident()]}
    walls, cores = zip(*spent)
    p95 = neat(float(np.percentile(walls, 95)))
    rows += [
        row(case, "graph, by the clock", walls, "ms", ratio=None, p95=p95, **more),
        row(case, "graph, of its core", cores, "ms", ratio=None),
        row(case, "every vector, by the clock", exact, "ms", ratio=None),
    ]
    tell(f"{case}: recall@10 {recall}, p50 {np.median(walls):.2f} ms ({np.median(cores):.2f} of its core), {more}")
    return rows


def resident() -> float:
    """Megabytes that this process holds, with the files it has mapped and read."""
    status = Path("/proc/self/status")
    lines = status.read_text().split("\n") if status.exists() else []
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def add(sizes: tuple[int, ...], parts: tuple[int, ...], threads: int) -> list[Row]:
    """Add passages to indexes of several sizes, each time to the same index as it was."""
    import shutil

    from bertkit.commands import index
    from bertkit.inference.predictor import Predictor

    random = np.random.default_rng(0)

    def embed(predictor: Predictor, texts: Any, *_: Any, **__: Any) -> np.ndarray:
        return drawn(1 if isinstance(texts, str) else len(texts), "random", np.zeros(0), random).astype(np.float32)

    rows, real = [], Predictor.embed
    Predictor.embed = embed  # type: ignore[method-assign, assignment]
    try:
        with tempfile.TemporaryDirectory() as place:
            for size in sizes:
                base = Path(place) / f"index{size}"
                index.run(index.Settings(files=(passages(place, 0, size),), model="en", out=base, threads=threads))
                for part in parts:
                    grown = Path(place) / "grown"
                    shutil.copytree(base, grown)
                    file = passages(place, size, part)
                    wall, cpu = time.perf_counter(), time.process_time()
                    index.run(index.Settings(files=(file,), out=grown, add=True, threads=threads))
                    spent = (time.perf_counter() - wall, time.process_time() - cpu)
                    shutil.rmtree(grown)
                    case = f"adding to {size:,} passages, without the encoder"
                    rows.append(row(case, f"{part:,} passages", [spent[1]], "s", ratio=None, clock=neat(spent[0])))
                    tell(f"{case}: {part:,} in {spent[0]:.2f} s by the clock, {spent[1]:.2f} s of all cores")
    finally:
        Predictor.embed = real  # type: ignore[method-assign]
    return rows


def passages(place: str, first: int, count: int) -> Path:
    """A file of passages of made-up words."""
    from _harness import made_up_lines, made_up_words

    path = Path(place) / f"passages{first}-{count}.jsonl"
    lines = made_up_lines(made_up_words(3000), count, seed=first, length=12)
    rows = (json.dumps({"id": f"d{n}", "text": line}) for n, line in enumerate(lines, first))
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--vectors", type=int, default=0)
    parser.add_argument("--form", default="int8")
    parser.add_argument("--drawn", default="clustered")
    parser.add_argument("--work", type=Path)
    parsed, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    chosen = options(__doc__ or "")
    count, sizes, parts = FORMS[chosen.form]
    wanted = [name for name in chosen.only.split(",") if name] or ["graph", "add"]
    rows: list[Row] = []
    with only_the_document() as out:
        if "graph" in wanted:
            with tempfile.TemporaryDirectory() as place:
                folder = parsed.work or Path(place)
                folder.mkdir(parents=True, exist_ok=True)
                rows += graph(parsed.vectors or count, parsed.drawn, parsed.form, folder)
        if "add" in wanted:
            rows += add(sizes, parts, chosen.threads)
        publish("vectors", {"machine": machine(chosen.threads), "rows": rows}, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
