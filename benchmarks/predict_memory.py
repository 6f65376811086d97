"""`bertkit predict`: peak memory over the rows of a file, from ten thousand to a million.

Each file is answered by a `bertkit predict` of its own with a tiny random classifier, so that what grows with the rows
would show beside so small a model. Its peak is the kernel's own (VmHWM); `ratio` is the growth over the smallest file,
and 1.0 is constant memory.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from _harness import (
    RESULTS,
    Row,
    machine,
    made_up_words,
    only_the_document,
    options,
    peak_of,
    publish,
    row,
    tell,
    with_ratios,
)

SIZES = {"smoke": (200, 400), "quick": (10_000, 100_000), "full": (10_000, 100_000, 1_000_000)}
LABELS = ("down", "even", "up")


def make_model(folder: Path, words: list[str]) -> None:
    """A random classifier of three labels with a vocabulary of these words."""
    import torch

    from bertkit.checkpoint.folder import Folder, write_folder
    from bertkit.model.heads import Model
    from bertkit.settings.model import Config
    from bertkit.text.vocabulary import VocabularySettings, learn

    torch.manual_seed(0)
    tokenizer = learn([" ".join(words)] * 3, VocabularySettings(size=2000))
    config = Config(vocabulary=tokenizer.size, width=64, depth=2, heads=2, inner=128)
    about = {"task": "classify", "labels": list(LABELS)}
    write_folder(folder, Folder(Model(config, {"text": len(LABELS)}), tokenizer, "bert", LABELS, about))


def write_rows(path: Path, words: list[str], rows: int) -> Path:
    """Rows of 3 to 30 words, no two files of a size alike in anything but their words."""
    rng = random.Random(rows)
    with path.open("w", encoding="utf-8") as file:
        file.write("text\n")
        file.writelines(" ".join(rng.choices(words, k=rng.randint(3, 30))) + "\n" for _ in range(rows))
    return path


def memory(folder: Path, sizes: tuple[int, ...], threads: int) -> list[Row]:
    """One row a size."""
    words = made_up_words(3000)
    make_model(folder / "model", words)
    rows = []
    for size in sizes:
        tell(f"{size:,} rows")
        source = write_rows(folder / f"{size}.csv", words, size)
        began = time.perf_counter()
        peak = peak_of([
            sys.executable, "-m", "bertkit", "predict", str(folder / "model"), str(source),
            "--out", str(folder / f"{size}.jsonl"), "--threads", str(threads),
        ])  # fmt: skip
        seconds = round(time.perf_counter() - began, 1)
        rows.append(row("peak memory of predict", f"{size:,} rows", [peak / 1e6], "MB", seconds=seconds))
    return with_ratios(rows, f"{sizes[0]:,} rows")


def main() -> None:
    chosen = options(__doc__ or "")
    with only_the_document() as out, tempfile.TemporaryDirectory() as folder:
        rows = memory(Path(folder), SIZES[chosen.form], chosen.threads)
        document = {"machine": machine(chosen.threads), "rows": rows}
        results = None if chosen.form == "smoke" else RESULTS
        publish("predict_memory", document, as_json=chosen.json, out=out, results=results)


if __name__ == "__main__":
    main()
