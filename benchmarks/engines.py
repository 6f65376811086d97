"""Do exported models answer as PyTorch does? Every task, many rows, each engine against torch in fp32.

    python benchmarks/engines.py [--rows 10000] [--engines onnx,openvino] [--only TASK,TASK] [--json]

Small random models, one per task, with labels, thresholds, a temperature, a CRF and windows; made-up rows, one in fifty
of them longer than the model's limit, read in windows and truncated. A row agrees if its label (its tags, its answer,
its choice) is the same; `difference` is the largest of any score, and `cut` says whether as many tokens were cut from
every row. For `embed`, vectors are compared, and for `words` the guesses for a mask.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import made_up_lines, made_up_words, publish, tell

WORDS, LONG, LIMIT = 3000, 50, 64
# Task: what bertkit.json says, the head and its outputs.
MODELS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "classify": ({"options": {"abstain": 0.5, "temperature": 2.5}, "labels": ["a", "b", "c", "d"]}, {"text": 4}),
    "multi-label": (
        {"task": "classify", "labels": ["a", "b", "c"],
         "options": {"multi_label": True, "thresholds": {"a": 0.4, "b": 0.6, "c": 0.5}}}, {"text": 3},
    ),
    "pair": ({"labels": ["no", "yes"], "options": {"temperature": 0.7}}, {"text": 2}),
    "regress": ({"options": {"mean": 3.0, "spread": 2.0}}, {"text": 1}),
    "tag": ({"options": {"crf": True, "rules": True, "word": "mean"}, "labels": ["B-A", "I-A", "O"]}, {"token": 3}),
    "answer": ({"options": {"impossible": True, "threshold": 0.1}}, {"span": 2}),
    "choose": ({}, {"choice": 1}),
    "embed": ({"options": {"pool": "mean"}}, {}),
    "words": ({"task": "pretraining"}, {"mlm": 0}),
}  # fmt: skip
NUMBERS = ("score", "scores", "value", "likelihoods")  # compared as numbers; everything else must be equal


def make(place: Path, task: str, words: list[str]) -> tuple[Path, Path]:
    """A random model of a task, and its export."""
    import torch

    from bertkit.checkpoint.folder import Folder, write_folder
    from bertkit.config import build
    from bertkit.model.heads import Crf, Model
    from bertkit.runs.compress import measure
    from bertkit.runs.compress.export import export
    from bertkit.settings.compress import ExportSettings
    from bertkit.settings.model import Config
    from bertkit.text.vocabulary import VocabularySettings, learn

    tokenizer = learn(made_up_lines(words, 2 * WORDS), VocabularySettings(size=2000))
    about, heads = MODELS[task]
    torch.manual_seed(len(task))
    config = Config(vocabulary=tokenizer.size, width=64, depth=2, heads=2, inner=128, init_std=0.3)
    model = Model(config, heads, pooler="text" in heads or "choice" in heads)
    if task == "tag":
        model.crf = Crf(3)
        torch.nn.init.normal_(model.crf.step)
    about = {"task": task, "windows": {"limit": LIMIT, "on_long": "window", "overlap": 16}} | about
    labels = tuple(about.get("labels", ("LABEL_0",)))
    write_folder(place / task, Folder(model, tokenizer, "bert", labels=labels, about=about, name=task))
    measure.SECONDS, measure.TURNS, measure.MOST = 0.0, 1, 8  # its own comparison of speeds is not needed here
    export(build(ExportSettings, {"model": str(place / task), "out": place / f"{task}-out", "weights": "fp32"}))
    return place / task, place / f"{task}-out"


def inputs(task: str, rows: int, words: list[str]) -> list[Any]:
    """Rows of a task; one in LONG does not fit into the model's limit."""
    rng = random.Random(task)

    def text(most: int = 24, may_be_long: bool = True) -> str:
        long = may_be_long and rng.randrange(LONG) == 0
        return " ".join(rng.choices(words, k=rng.randint(80, 240) if long else rng.randint(1, most)))

    if task in ("pair", "answer"):
        return [(text(8, False), text()) for _ in range(rows)]
    if task == "choose":
        return [{"text": text(), "choices": [text(6, False) for _ in range(3)]} for _ in range(rows)]
    return [text() for _ in range(rows)]


def answers(model: Any, task: str, rows: list[Any], on_long: str) -> list[dict[str, Any]]:
    if task == "embed":
        return [{"score": vector} for vector in model.embed(rows, on_long=on_long)]
    if task == "words":
        from bertkit.inference import fill

        mask = " ".join(["", "[MASK]"])
        masked = [" ".join(row.split()[:20]) + mask for row in rows]
        guesses = fill.guesses(model, fill.encode_masked(model, masked), 3)
        return [
            {"token": [guess["token"] for guess in row[0]], "score": [guess["score"] for guess in row[0]]}
            for row in guesses
        ]
    predictions: list[dict[str, Any]] = model.predict(rows, on_long)
    return predictions


def numbers_of(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers_of(part)
    elif isinstance(value, (list, tuple, np.ndarray)):
        for part in value:
            yield from numbers_of(part)
    elif isinstance(value, (float, int, np.floating)):
        yield float(value)


def compared(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """How many rows agree in all but numbers, the largest difference of numbers, and whether `cut` is the same."""
    agreeing, furthest, cuts = 0, 0.0, True
    for ours_row, other in zip(ours, theirs, strict=True):
        words = [
            {k: v for k, v in row.items() if k not in (*NUMBERS, "vector", "entities")} for row in (ours_row, other)
        ]
        values = [list(numbers_of([row.get(name, 0.0) for name in NUMBERS])) for row in (ours_row, other)]
        agreeing += words[0] == words[1] and len(values[0]) == len(values[1])
        if len(values[0]) == len(values[1]):
            furthest = max(furthest, float(np.abs(np.subtract(*values)).max(initial=0.0)))
        cuts &= ours_row.get("cut") == other.get("cut")
    return {"rows": len(ours), "same": agreeing, "difference": float(f"{furthest:.2g}"), "cut": cuts}


def run(rows: int, engines: list[str], tasks: list[str]) -> dict[str, Any]:
    import bertkit

    words = made_up_words(WORDS)
    results = []
    with tempfile.TemporaryDirectory() as place:
        for task in tasks:
            source, out = make(Path(place), task, words)
            given = inputs(task, rows, words)
            exact = bertkit.load(str(source), "fp32", engine="torch")
            for on_long in ("window", "truncate") if task != "words" else ("window",):
                wanted = answers(exact, task, given, on_long)
                cut = sum(row.get("cut", 0) > 0 for row in wanted)
                for engine in engines:
                    opened = bertkit.load(str(out), "fp32", engine=engine)
                    result = compared(wanted, answers(opened, task, given, on_long))
                    results.append({"task": task, "on_long": on_long, "engine": engine, "rows_cut": cut, **result})
                    tell(json.dumps(results[-1]))
    return {"rows": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--engines", default="onnx")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    document = run(asked.rows, asked.engines.split(","), asked.only.split(",") if asked.only else list(MODELS))
    import sys

    if asked.json:
        publish("engines", document, as_json=True, out=sys.stdout, results=None)
        return
    print("| task | long texts | engine | rows | same answer | largest difference | same cut |")
    print("|---|---|---|---|---|---|---|")
    for row in document["rows"]:
        print(f"| {row['task']} | {row['on_long']} | {row['engine']} | {row['rows']:,} | {row['same']:,} | "
              f"{row['difference']:.1e} | {'yes' if row['cut'] else 'NO'} |")  # fmt: skip


if __name__ == "__main__":
    main()
