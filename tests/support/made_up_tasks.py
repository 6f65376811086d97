"""Results of the other tasks as the commands give them, and what `inspect` finds in a text; all of it made up."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from tests.support.made_up_results import LABELS, TEXTS, finetuning_result

SETTINGS = {"task": "", "train": "letters train.csv", "lr": 0.0, "batch": 32, "precision": "auto", "lang": "en"}


def task_result(task: str) -> dict[str, Any]:
    """A result of `tag`, `answer`, `regress` or `multi-label`, scored on test rows, with more errors than are shown."""
    draw = random.Random(task)
    curves: list[dict[str, Any]] = []
    metrics = SCORES[task]
    for step in range(5, 201, 5):
        curves.append({"step": step, "loss": 0.2 + math.exp(-step / 60) + 0.05 * draw.random(), "lr": 4.5e-4})
        if step % 40 == 0:
            curves.append({"step": step, "eval": True, **{name: 0.9 * value for name, value in metrics.items()}})
    return {
        "task": "classify" if task == "multi-label" else task,
        "model": "en",
        "out": "runs/letters",
        "headline": next(iter(metrics)),
        "metrics": metrics,
        "intervals": {name: [value - 0.03, value + 0.03] for name, value in metrics.items()},
        "rows": 400,
        "scored_on": "test",
        "dev_metrics": metrics,
        "data": {
            "files": [{"role": role, "name": f"{role}.csv", "rows": 400} for role in ("train", "dev", "test")],
            "labels": {"train": {label: 40 + n for n, label in enumerate(LABELS)}} if task in LABELLED else {},
            "lengths": {"values": [max(3, round(draw.lognormvariate(3, 0.5))) for _ in range(400)], "limit": 512},
            "cut": {"train": {"rows": 400, "rows_cut": 3, "tokens": 9000, "tokens_cut": 120}},
            "test_overlap": 4,
        },
        "run": {
            "settings": SETTINGS | {"task": task},
            "curves": curves,
            "steps": 200,
            "passes": 4.0,
            "best_step": 160,
            "seconds": 59.6,
            "stopped": "",
            "learning_rate": 4.5e-4,
            "precision": "bfloat16",
        },
        "errors": [
            {"text": TEXTS[n % 5], "line": n + 2, "gold": GOLD[task], "predicted": SAID[task], "score": 0.99 - n / 99}
            for n in range(40)
        ],
        "per_class": finetuning_result()["per_class"] if task == "tag" else [],
        "environment": {
            "bertkit": "0.1.0",
            "python": "3.11.9",
            "torch": "2.10.0",
            "threads": 2,
            "platform": "Linux x86_64",
            "peak_memory_gb": 1.27,
            "command_line": f"bertkit finetune {task}",
        },
        "command": f"bertkit finetune {task} --train train.csv --dev dev.csv --test test.csv",
    }


LABELLED = ("tag", "multi-label")
SCORES: dict[str, dict[str, float]] = {
    "tag": {"f1": 0.871, "precision": 0.866, "recall": 0.876, "accuracy": 0.958},
    "answer": {"f1": 0.742, "exact": 0.655, "f1_answerable": 0.71, "accuracy_unanswerable": 0.8},
    "regress": {"pearson": 0.812, "spearman": 0.805, "rmse": 0.71, "mae": 0.55},
    "multi-label": {"micro_f1": 0.81, "macro_f1": 0.772, "exact": 0.61, "hamming_loss": 0.08},
}
GOLD = {"tag": "Marta/B-PER", "answer": "in the porch", "regress": 3.2, "multi-label": "billing, praise"}
SAID = {"tag": "Marta/O", "answer": "in the rain", "regress": 1.234, "multi-label": "billing"}
PIECES = ["[CLS]", "the", "par", "##cel", "was", "not", "left", "in", "the", "<rain>", "[SEP]"]
WEIGHTS = [0.0, 0.01, 0.12, 0.31, 0.002, -0.22, 0.05, 0.0, -0.0004, 0.41, 0.0]


def inspection(size: int = 11, layers: int = 2, heads: int = 4, *, is_tuned: bool = True) -> dict[str, Any]:
    """What `inspect` finds in a text of `size` tokens."""
    draw = np.random.default_rng(5)
    maps = draw.dirichlet([0.2] * size, size=(layers, heads, size))
    maps[0, 0] = np.eye(size)
    pieces = [PIECES[n % len(PIECES)] for n in range(size)]
    tokens = [
        {
            "token": piece,
            "start": n,
            "end": n + 1,
            "side": 0,
            "special": piece.startswith("["),
            "importance": WEIGHTS[n % len(WEIGHTS)],
            "looked_at": round(float(maps[..., n].mean()), 4),
        }
        for n, piece in enumerate(pieces)
    ]
    habits = [
        {
            "layer": layer + 1, "head": head + 1, "itself": float(maps[layer, head].diagonal().mean()),
            "before": 1e-44 if head == 0 else 0.2, "after": 0.125, "special": 1e-9, "spread": 3.4,
        }
        for layer in range(layers) for head in range(heads)
    ]  # fmt: skip
    prediction = {"label": "delivery", "score": 0.9312, "baseline": 0.3104} if is_tuned else None
    return {
        "text": TEXTS[0], "text_b": None, "tokens": tokens, "attention": maps, "said": prediction, "heads": habits,
    }  # fmt: skip
