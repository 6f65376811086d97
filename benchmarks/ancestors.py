"""Do the ancestors learn, in the order history predicts? Every one on the same text; the networks a third of it.

    python benchmarks/ancestors.py [--quick] [--json] [--threads 1] [--only lstm,gpt] [--place FOLDER]

Needs the real data sets beside the project. Text: 20 MB of books and encyclopaedia (quick: 3 MB), the same for all;
held out: half a megabyte of other documents of the same two. Left-to-right models guess pieces of one vocabulary, so
that their bits per byte compare; BLiMP: the mean over its 67 sets of the share of pairs whose good sentence is
likelier (quick: 10 pairs a set). Word vectors: analogies and similarity. What is finished in --place is kept.
"""

from __future__ import annotations

import argparse
import lzma
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _harness import machine, only_the_document, options, publish, tell
from _real_tasks import DATA

SOURCES = ("en_books", "en_enwik8")
NETWORKS = ("nnlm", "rnn", "gru", "lstm")
VECTORS = {
    "word2vec skip-gram negative": ("word2vec", "skip-gram", "negative"),
    "word2vec skip-gram hierarchical": ("word2vec", "skip-gram", "hierarchical"),
    "word2vec cbow negative": ("word2vec", "cbow", "negative"),
    "word2vec cbow hierarchical": ("word2vec", "cbow", "hierarchical"),
    "GloVe": ("glove", "skip-gram", "negative"),
}
PAIRED = {"SimLex": "simlex999.txt.xz", "WordSim": "wordsim353.tsv.xz", "MEN": "men3k.txt.xz"}
# megabytes, steps of 4,096 tokens a network (full: a third of the text), BLiMP pairs a set, passes of the vectors
FORMS = {"full": (20, 400, 50, 5), "quick": (3, 60, 10, 2)}


def own_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--place", type=Path, default=None)
    parsed, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    return parsed


def cut(place: Path, megabytes: int) -> tuple[Path, Path]:
    """The text to learn from and the text to measure on, documents drawn from every source alike."""
    train, held = place / "train.txt", place / "held.txt"
    if held.is_file():
        return train, held
    with train.open("w", encoding="utf-8") as into, held.open("w", encoding="utf-8") as apart:
        for source in SOURCES:
            with lzma.open(DATA / "corpus" / f"{source}.txt.xz", "rt", encoding="utf-8") as file:
                documents = file.read().split("\n\n")
            random.Random(0).shuffle(documents)
            sizes = iter([(into, megabytes * 1e6 / len(SOURCES)), (apart, 5e5 / len(SOURCES))])
            target, room = next(sizes)
            for document in documents:
                target.write(document.strip() + "\n\n")
                room -= len(document.encode())
                if room < 0:
                    step = next(sizes, None)
                    if step is None:
                        break
                    target, room = step
    return train, held


def left_to_right(kind: str, place: Path, steps: int, threads: int) -> dict[str, Any]:
    """Learn a language model over pieces, unless it is there."""
    from bertkit import config
    from bertkit.commands import learn, pretrain

    out = place / kind
    if kind == "gpt":
        table = {"preset": "gpt-mini", "data": place / "store", "out": out, "steps": steps, "threads": threads}
        settings = config.build(pretrain.Settings, pretrain.resolve(table), "ancestors")
        return pretrain.run(settings)
    return learn.run(learn.Settings(kind=kind, source=(place / "store",), out=out, steps=steps, threads=threads))


def measure(kind: str, folder: Path, held: Path, pairs: int) -> dict[str, float]:
    """Bits per byte and BLiMP."""
    from bertkit.commands import evaluate

    def score(task: str, file: Path, most: int) -> dict[str, Any]:
        perplexity: dict[str, Any] = evaluate.run(
            evaluate.Settings(model=str(folder), file=file, task=task, most=most, threads=1)
        )["metrics"]
        return perplexity

    blimp = score("minimal-pairs", DATA / "minimal_pairs" / "blimp", pairs)["mean_of_groups"]
    if kind == "elmo":
        return {"blimp": blimp}
    perplexity = score("perplexity", held, 0)
    return {"bits_per_byte": perplexity["bits_per_byte"], "perplexity": perplexity["perplexity"], "blimp": blimp}


def vectors(name: str, place: Path, train: Path, passes: int, threads: int) -> dict[str, float]:
    """Learn word vectors unless they are there; analogies and similarities."""
    from bertkit.commands import evaluate, learn

    kind, architecture, loss = VECTORS[name]
    out = place / name.replace(" ", "-").lower()
    if not (out / "bertkit.json").is_file():
        learn.run(
            learn.Settings(
                kind=kind, source=(train,), out=out, architecture=architecture, loss=loss, threads=threads,
                epochs=passes * (3 if kind == "glove" else 1),
            )
        )  # fmt: skip

    def score(task: str, file: str, which: str) -> float:
        settings = evaluate.Settings(model=str(out), file=DATA / "vectors" / file, task=task, threads=1)
        return float(evaluate.run(settings)["metrics"][which])

    scores = {name: score("similarity", file, "spearman") for name, file in PAIRED.items()}
    return {"analogies": score("analogies", "questions-words.txt.xz", "accuracy"), **scores}


def main() -> None:
    mine = own_options()
    chosen = options(__doc__ or "", forms=("full", "quick"))
    if not DATA.is_dir():
        raise SystemExit("The real data sets are not beside this project (../shared/data).")
    megabytes, steps, pairs, passes = FORMS[chosen.form]
    asked = {name.strip() for name in chosen.only.split(",") if name.strip()}
    rows: list[dict[str, Any]] = []

    def report(name: str, measured: dict[str, float], seconds: float) -> None:
        tell(f"{name}: " + ", ".join(f"{k} {v:.4g}" for k, v in measured.items()))
        for unit, value in measured.items():
            rows.append(
                {
                    "case": unit, "contestant": name, "value": round(value, 4), "unit": unit, "ratio": None,
                    "range": [round(value, 4)] * 2, "seconds": round(seconds, 1),
                }
            )  # fmt: skip

    with only_the_document() as out, tempfile.TemporaryDirectory() as temporary:
        from bertkit.commands import learn, prepare, tokenizer

        place = mine.place or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        train, held = cut(place, megabytes)
        if not (place / "tokenizer").is_dir():
            tokenizer.run(tokenizer.Settings(texts=(train,), out=place / "tokenizer", size=8192))
        if not (place / "store").is_dir():
            prepare.run(prepare.Settings(texts=(train,), tokenizer=str(place / "tokenizer"), out=place / "store"))
        for kind in ("piece-ngram", *NETWORKS, "gpt", "elmo"):
            if asked and kind not in asked:
                continue
            begun = time.perf_counter()
            if not (place / kind / "bertkit.json").is_file():
                if kind == "elmo":
                    how = {
                        "steps": steps // 2,
                        "threads": chosen.threads,
                    }  # of 2,048 words: its steps are dear
                    learn.run(learn.Settings(kind=kind, source=(train,), out=place / kind, **how))
                else:
                    left_to_right(kind, place, steps, chosen.threads)
            seconds = time.perf_counter() - begun
            report(kind, measure(kind, place / kind, held, pairs), seconds)
        for name in VECTORS:
            if asked and name.split()[0].lower() not in asked:
                continue
            begun = time.perf_counter()
            report(name, vectors(name, place, train, passes, chosen.threads), time.perf_counter() - begun)
        publish("ancestors", {"machine": machine(chosen.threads), "rows": rows}, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
