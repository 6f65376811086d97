"""A tiny random BERT, and made-up data in which one word decides: what any working fine-tuning learns in seconds."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit import samples
from bertkit.checkpoint.folder import Folder, write_folder
from bertkit.model.heads import Model
from bertkit.settings.model import Config
from bertkit.text.vocabulary import VocabularySettings, learn

WORDS = (
    "the a and of in on with house garden street water morning people children table window door bread letter "
    "summer winter river train station market school friend mother father book chair kitchen evening small old new"
)
FILLER = WORDS.split()
KEYS = {"spam": ("prize", "winner"), "ham": ("meeting", "dinner")}
CITIES, NAMES = ("london", "paris", "berlin", "madrid"), ("anna", "peter", "maria", "john")
SMALL = {
    "lr": 3e-3, "steps": 80, "batch": 16, "threads": 1, "precision": "fp32", "evals": 1, "max_tokens": 64,
    "overlap": 16, "dropout": 0.0,
}  # fmt: skip


def make_model(folder: Path, seed: int = 0, **numbers: Any) -> Path:
    """A random BERT of width 32 with a vocabulary learnt from the embedded sample messages."""
    texts = samples.path("en", "messages_train.csv").read_text("utf-8").splitlines()
    own = [*FILLER, *(key for keys in KEYS.values() for key in keys), *CITIES, *NAMES]
    tokenizer = learn([*texts, *[" ".join(own)] * 20], VocabularySettings(size=1200))
    torch.manual_seed(seed)
    small = {"width": 32, "depth": 2, "heads": 2, "inner": 64, "init_std": 0.1} | numbers
    model = Model(Config(vocabulary=tokenizer.size, **small), {"mlm": 0, "next_sentence": 2})
    write_folder(folder, Folder(model, tokenizer, "bert"))
    return folder


def chance(seed: int) -> np.random.Generator:
    return np.random.default_rng((seed, 77))


def words(rng: np.random.Generator, least: int = 4, most: int = 40) -> list[str]:
    return rng.choice(FILLER, int(rng.integers(least, most))).tolist()


def with_word(rng: np.random.Generator, word: str, **lengths: int) -> str:
    """A text with this word somewhere in it."""
    tokens = words(rng, **lengths)
    tokens.insert(int(rng.integers(len(tokens) + 1)), word)
    return " ".join(tokens)


def messages(
    number: int, seed: int = 0, names: dict[str, tuple[str, ...]] = KEYS, **lengths: int
) -> list[dict[str, Any]]:
    """Texts whose label one word decides, the labels in turn."""
    rng = chance(seed)
    labels = [list(names)[n % len(names)] for n in range(number)]
    return [{"text": with_word(rng, str(rng.choice(names[label])), **lengths), "label": label} for label in labels]


def many_labels(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts with no, one or both of two labels, each shown by its own word."""
    rng = chance(seed)
    rows = []
    for n in range(number):
        label = [name for bit, name in enumerate(KEYS) if n >> bit & 1]
        text = words(rng)
        for name in label:
            text.insert(int(rng.integers(len(text) + 1)), str(rng.choice(KEYS[name])))
        rows.append({"text": " ".join(text), "label": label})
    return rows


def pairs(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Two texts that agree when the second names the city."""
    rng = chance(seed)
    rows = []
    for n in range(number):
        same = n % 2
        second = str(rng.choice(CITIES if same else NAMES))
        label = "same" if same else "different"
        first, second = with_word(rng, "market", most=8), with_word(rng, second, most=8)
        rows.append({"text": first, "text_b": second, "label": label})
    return rows


def numbers(number: int, seed: int = 0, paired: bool = False) -> list[dict[str, Any]]:
    """Texts worth 10 for a prize and 100 for a meeting; in pairs the second text decides."""
    rng = chance(seed)
    rows = []
    for n in range(number):
        row = {"text": with_word(rng, "meeting" if n % 2 else "prize", most=8), "label": 100.0 if n % 2 else 10.0}
        rows.append(
            row if not paired else {"text": " ".join(words(rng, most=8)), "text_b": row["text"], "label": row["label"]}
        )
    return rows


def sentences(number: int, seed: int = 0, least: int = 4, most: int = 40) -> list[dict[str, Any]]:
    """Words with tags: cities are places, names are people; `new` before a city belongs to it."""
    rng = chance(seed)
    rows = []
    for _ in range(number):
        tokens, tags = [], []
        for word in words(rng, least, most):
            drawn = rng.random()
            if drawn < 0.1:
                tokens += ["new", str(rng.choice(CITIES))]
                tags += ["B-LOC", "I-LOC"]
            elif drawn < 0.25:
                tokens.append(str(rng.choice(NAMES)))
                tags.append("B-PER")
            elif word != "new":
                tokens.append(word)
                tags.append("O")
        rows.append({"tokens": tokens or ["bread"], "tags": tags or ["O"]})
    return rows


def questions(number: int, seed: int = 0, impossible: bool = False) -> list[dict[str, Any]]:
    """Contexts with one name, which is the answer; with `impossible` every third has none."""
    rng = chance(seed)
    rows = []
    for n in range(number):
        name = str(rng.choice(NAMES))
        none = impossible and n % 3 == 2
        context = " ".join([*words(rng, most=8), "" if none else name, *words(rng, most=8)]).replace("  ", " ")
        answers = [] if none else [{"text": name, "start": context.index(name)}]
        rows.append({"id": str(n), "question": "which friend", "context": context, "answers": answers})
    return rows


def choices(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Three continuations of which one names a city."""
    rng = chance(seed)
    rows = []
    for n in range(number):
        options = [with_word(rng, str(rng.choice(NAMES)), most=6) for _ in range(3)]
        options[n % 3] = with_word(rng, str(rng.choice(CITIES)), most=6)
        rows.append({"text": " ".join(words(rng, most=6)), "choices": options, "label": n % 3})
    return rows


def alike(number: int, seed: int = 0, scored: bool = False) -> list[dict[str, Any]]:
    """Pairs about the same thing; scored ones are alike (5) or not (0)."""
    rng = chance(seed)
    keys = [*CITIES, *NAMES, *KEYS["spam"], *KEYS["ham"]]
    rows: list[dict[str, Any]] = []
    for n in range(number):
        first = keys[n % len(keys)]
        same = not scored or n % 2 == 0
        second = first if same else keys[(n + 1 + int(rng.integers(len(keys) - 1))) % len(keys)]
        row: dict[str, Any] = {"text": with_word(rng, first, most=6), "text_b": with_word(rng, second, most=6)}
        rows.append(row | ({"label": 5.0 if same else 0.0} if scored else {}))
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A .csv or .jsonl file of rows."""
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


CASES = {  # name → (task, rows, more of the rows, more settings)
    "classify": ("classify", messages, {}, {}),
    "multi-label": ("classify", many_labels, {}, {"multi_label": True, "steps": 160}),
    "pair": ("pair", pairs, {}, {}),
    "regress": ("regress", numbers, {}, {}),
    "regress-pair": ("regress", numbers, {"paired": True}, {}),
    "tag": ("tag", sentences, {}, {"steps": 120, "crf": False}),
    "answer": ("answer", questions, {}, {}),
    "answer-or-none": ("answer", questions, {"impossible": True}, {}),
    "choose": ("choose", choices, {}, {}),
    "embed": ("embed", alike, {}, {"steps": 120}),
    "embed-scored": ("embed", alike, {"scored": True}, {"steps": 120}),
}  # fmt: skip
DEV = {"embed": 12}  # every key once: a text's partner is then the only right one


def files(folder: Path, case: str, train: int = 200) -> dict[str, Path]:
    """Train and dev file of a case."""
    _, make, more, _ = CASES[case]
    parts = {"train": make(train, 0, **more), "dev": make(DEV.get(case, 48), 1, **more)}
    return {role: write(folder / f"{case}-{role}.jsonl", rows) for role, rows in parts.items()}


class Runs:
    """Every case fine-tuned once per test session, when it is first asked for, and copied into this folder."""

    def __init__(self, folder: Path) -> None:
        """folder: one of pytest's, whose parent belongs to the session, or to one of its workers."""
        self.folder = folder
        self.shared = folder.parents["PYTEST_XDIST_WORKER" in os.environ] / "toy-runs"
        self.model = make_model(folder / "model")
        self.made: dict[str, Any] = {}

    def __call__(self, case: str) -> Any:
        if case not in self.made:
            self.made[case] = self._copied(case)
        return self.made[case]

    def _copied(self, case: str) -> Any:
        import bertkit

        there, out = self.shared / case, self.folder / f"run-{case}"
        there.mkdir(parents=True, exist_ok=True)
        with (there / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the workers ask for the same cases
            if not (there / "result").exists():
                task, _, _, settings = CASES[case]
                model, run = make_model(there / "model"), there / f"run-{case}"
                made = bertkit.finetune(task, model=str(model), out=run, **SMALL | files(there, case) | settings)
                (there / "result").write_bytes(pickle.dumps(made.result))
        files(self.folder, case)
        shutil.copytree(there / f"run-{case}", out)
        run = bertkit.load(out, precision=SMALL["precision"])
        result = pickle.loads((there / "result").read_bytes())  # noqa: S301 (written above, in this session)
        run.result = result | {"out": str(out)}
        return run

    def tune(self, task: str, out: str | Path, **settings: Any) -> Any:
        """A run of this task with small numbers."""
        import bertkit

        return bertkit.finetune(task, model=str(self.model), out=self.folder / out, **SMALL | settings)


def likeness(model, texts: list[str]) -> np.ndarray:
    """The cosines of all pairs of texts."""
    vectors = np.asarray(model.embed(texts))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors @ vectors.T)[np.triu_indices(len(texts), 1)]
