"""BERT's table of features on CoNLL-2003: a frozen encoder's layers under a two-layer BiLSTM tagger, dev entity F1.

    python benchmarks/six_features.py [--quick|--smoke] [--json] [--threads 2] [--model en]

Needs the real data sets beside the project. Each choice of layers is tagged by BiLSTMs of several seeds; beside them
the same encoder fine-tuned on the same sentences. full: 2,000 sentences, 2 seeds; the paper took all 14,041 and 5.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from _harness import machine, only_the_document, options, publish, tell
from _real_tasks import DATA, rows_of, score_of

FORMS = {"full": (2000, 1000, 2, 8), "quick": (400, 400, 1, 4), "smoke": (60, 60, 1, 1)}  # train, dev, seeds, passes


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", default="en")
    parsed, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    chosen = options(__doc__ or "")
    if not DATA.is_dir():
        raise SystemExit("The real data sets are not beside this project (../shared/data).")
    from bertkit import machine as here
    from bertkit.ancestors.bert_features import six_features
    from bertkit.inference.predictor import Predictor
    from bertkit.runs.finetune.run import Finetuning
    from bertkit.runs.finetune.split import Split
    from bertkit.settings.finetune import FinetuneSettings

    size, judged, seeds, passes = FORMS[chosen.form]
    with only_the_document() as out:
        here.set_up(chosen.threads)
        train, dev = rows_of("CoNLL-2003", "train", size), rows_of("CoNLL-2003", "dev", judged)
        begun = time.perf_counter()
        table = six_features(
            Predictor.load(parsed.model), [row.sentence for row in train], [row.sentence for row in dev],
            seeds=seeds, epochs=passes,
        )  # fmt: skip
        seconds = time.perf_counter() - begun
        rows = []
        for one in table:
            spread = [round(min(one["scores"]), 4), round(max(one["scores"]), 4)]
            rows.append(
                {
                    "case": f"CoNLL-2003, {len(train)} sentences", "contestant": one["choice"],
                    "value": round(one["mean"], 4), "unit": one["metric"], "range": spread, "ratio": None,
                    "seconds": round(seconds / len(table), 1),
                }
            )  # fmt: skip
        scores = []
        begun = time.perf_counter()
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                settings = FinetuneSettings(
                    task="tag", train=Path("CoNLL-2003"), model=parsed.model, out=Path(folder) / "run",
                    epochs=passes / 2,
                    crf=False, baseline=False,
                    seed=seed, threads=chosen.threads,
                )  # fmt: skip
                run = Finetuning(settings, Split({"train": train, "dev": dev}))
                run.go()
                examples, predictions = run.predictions("dev")
                scores.append(score_of("CoNLL-2003", examples, predictions, run.task.labels))
                tell(f"fine-tuned, seed {seed}: {scores[-1]:.4f}")
        rows.append(
            {
                "case": rows[0]["case"], "contestant": "fine-tuned", "value": round(sum(scores) / seeds, 4),
                "unit": "f1", "range": [round(min(scores), 4), round(max(scores), 4)], "ratio": None,
                "seconds": round(time.perf_counter() - begun, 1),
            }
        )  # fmt: skip
        publish("six_features", {"machine": machine(chosen.threads), "rows": rows}, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
