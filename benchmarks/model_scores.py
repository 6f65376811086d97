"""What a pretrained model is worth: fine-tuned dev scores, the median over seeds, beside the same shape untrained.

    python benchmarks/model_scores.py --model en [--tasks MRPC] [--seeds 5] [--random] [--most N] [--quick] [--json]

Needs the real data sets beside the project. Each task is fine-tuned as `bertkit finetune` does by itself; the numbers
that differ are in PASSES. `--random` starts from random weights of the same shape instead. `--most` caps the rows.
`--first N` begins with seed N, so that two processes can share the seeds. `--lr`, `--dropout` and `--passes`
try other numbers.
`--quick` is one seed on 480 rows of SST-2: whether it runs, not what it is worth.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _harness import machine, only_the_document, options, publish, tell
from _real_tasks import DATA, REAL, rows_of, score_of

# Passes over the training rows: large sets need few, small ones what `finetune` takes by itself (0).
PASSES = {
    "SST-2": 2.0, "News NER": 1.0, "CoNLL-2003": 4.0, "EWT UPOS": 4.0, "CoLA": 5.0, "MRPC": 5.0, "STS-B": 5.0,
    "STS-B-vectors": 4.0,
    "ChnSentiCorp": 3.0, "OCNLI": 4.0, "LCQMC": 3.0, "DRCD": 3.0, "CMRC": 3.0,
}  # fmt: skip


def own_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", default="en")
    parser.add_argument("--tasks", default="SST-2,MRPC,STS-B-vectors,STS-B,CoLA,RTE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.0)
    parser.add_argument("--dropout", type=float, default=-1.0)
    parser.add_argument("--passes", type=float, default=-1.0)
    parser.add_argument("--random", action="store_true")
    parsed, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    return parsed


def untrained(model: str, folder: Path, seed: int) -> str:
    """The model's shape and tokenizer with fresh weights."""
    import torch

    from bertkit.checkpoint.folder import read_folder, write_folder
    from bertkit.checkpoint.locate import locate
    from bertkit.model.layers import initialise

    torch.manual_seed(seed)
    found = read_folder(locate(model))
    initialise(found.model, found.model.config)
    write_folder(folder, found)
    return str(folder)


def read(name: str, most: int) -> dict[str, list[Any]]:
    """Rows by role."""
    from bertkit.runs.finetune.split import held_out

    train = rows_of(name, "train", most)
    train, dev = (train, rows_of(name, "dev")) if REAL[name].dev else held_out(train, 0.1, 0)
    return {"train": train, "dev": dev} | ({"test": rows_of(name, "test")} if REAL[name].test else {})


def score(name: str, model: str, rows: dict[str, list[Any]], **numbers: Any) -> float:
    """One fine-tuning; the best pass on the dev rows counts: scored on the test rows, or, as in GLUE, on those same."""
    from bertkit.runs.finetune.run import Finetuning
    from bertkit.runs.finetune.split import Split
    from bertkit.settings.finetune import FinetuneSettings

    with tempfile.TemporaryDirectory() as out:
        settings = FinetuneSettings(
            task=REAL[name].task,
            train=Path(name),
            model=model,
            out=Path(out) / "run",
            crf=False,
            baseline=False,
            **numbers,
        )
        run = Finetuning(settings, Split(rows))
        run.go()
        examples, predictions = run.predictions("test" if "test" in rows else "dev")
        return score_of(name, examples, predictions, run.task.labels)


def main() -> None:
    mine = own_options()
    chosen = options(__doc__ or "", forms=("quick",))
    if chosen.form == "quick":
        mine.tasks, mine.seeds, mine.most = "SST-2", 1, 480
    if not DATA.is_dir():
        raise SystemExit("The real data sets are not beside this project (../shared/data).")
    rows = []
    with only_the_document() as out, tempfile.TemporaryDirectory() as place:
        for name in (part.strip() for part in mine.tasks.split(",")):
            data = read(name, mine.most)
            passes = PASSES.get(name, 0.0) if mine.passes < 0 else mine.passes
            numbers = {"lr": mine.lr, "dropout": mine.dropout, "epochs": passes, "threads": chosen.threads}
            begun, scores = time.perf_counter(), []
            for seed in range(mine.first, mine.first + mine.seeds):
                model = untrained(mine.model, Path(place) / f"{name}-{seed}", seed) if mine.random else mine.model
                scores.append(score(name, model, data, seed=seed, **numbers))
                tell(f"{name} seed {seed}: {scores[-1]:.4f}")
            rows.append(
                {
                    "case": name, "contestant": "random weights" if mine.random else Path(mine.model).name,
                    "value": round(statistics.median(scores), 4), "unit": REAL[name].score or "headline",
                    "range": [round(min(scores), 4), round(max(scores), 4)], "ratio": None, "scores": scores,
                    "first_seed": mine.first, "numbers": numbers, "rows": len(data["train"]),
                    "seconds": round(time.perf_counter() - begun, 1),
                }
            )  # fmt: skip
        publish("model_scores", {"machine": machine(chosen.threads), "rows": rows}, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
