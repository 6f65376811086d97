"""word2vec against gensim in words a second, by mode and threads; what the vectors know; and GloVe's memory.

    python benchmarks/word2vec.py [--quick] [--json]

Both learn the same sentences with the same settings, and take turns. Words are counted before rare ones are dropped and
frequent ones thinned; building the vocabulary is not timed, for either. `gensim` is handed lists of words and
`gensim, file` the same text as a file, which it reads without the interpreter's lock. Quality (SimLex, MEN, analogies)
is measured where the test sets are found, under --quick for the first mode alone. GloVe counts in a process of its
own, with a small and with a large budget.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _harness import (
    Row,
    machine,
    made_up_lines,
    made_up_words,
    neat,
    only_the_document,
    options,
    publish,
    row,
    skipped,
    take_turns,
    tell,
    timed,
    with_ratios,
)

DATA = Path(__file__).resolve().parents[2] / "shared/data"
CORPUS = DATA / "corpus/en_wikipedia.txt.xz"
# Megabytes of text, turns; for quality: how many modes, passes and seeds.
FORMS = {"full": (30, 3, 4, 5, 3), "quick": (5, 2, 1, 3, 2), "smoke": (0.3, 1, 0, 0, 0)}
MODES = [(architecture, loss) for architecture in ("skip-gram", "cbow") for loss in ("negative", "hierarchical")]
QUALITIES = {"simlex999.txt.xz": "SimLex", "men3k.txt.xz": "MEN", "questions-words.txt.xz": "analogies"}
RATE = 0.025
COUNTING = """
import json, sys, tempfile
from pathlib import Path
from bertkit.ancestors.vectors.glove import GloveSettings, shuffled_pairs
from bertkit.ancestors.vectors.corpus import number
def count(corpus, megabytes):
    with tempfile.TemporaryDirectory() as folder:
        paths = shuffled_pairs(corpus, GloveSettings(memory_mb=megabytes), Path(folder))
        return sum(path.stat().st_size for path in paths) // 12
def memory(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(what))
with open(sys.argv[1], encoding="utf-8") as file:
    corpus = number((line.split() for line in file), 5)
count(number([["a", "b"] * 20] * 9, 5), 1)  # loads and compiles what counting needs
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
before = memory("VmRSS")
pairs = count(corpus, float(sys.argv[2]))
print(json.dumps({"peak": memory("VmHWM") - before, "pairs": pairs}))
"""


def read(megabytes: float) -> tuple[list[list[str]], str]:
    """Sentences, and what to call the text."""
    from bertkit.ancestors.vectors.corpus import words_of
    from bertkit.files.open import open_text

    size, sentences = int(megabytes * 1e6), []
    known = CORPUS.exists()
    lines = open_text(CORPUS) if known else iter(made_up_lines(made_up_words(30_000), size // 100))
    for line in lines:
        size -= len(line.encode()) + 1
        if words := words_of(line):
            sentences.append(words)
        if size <= 0:
            break
    return sentences, "en_wikipedia" if known else "made-up text"


def write(sentences: list[list[str]], path: Path) -> Path:
    path.write_text("\n".join(map(" ".join, sentences)) + "\n", encoding="utf-8")
    return path


def gensim_model(architecture: str, loss: str, threads: int, epochs: int) -> Any:
    from gensim.models import Word2Vec

    negative = 5 if loss == "negative" else 0
    return Word2Vec(vector_size=100, window=5, min_count=5, sample=1e-3, alpha=RATE, min_alpha=1e-4, epochs=epochs,
                    sg=int(architecture == "skip-gram"), hs=int(not negative), negative=negative,
                    workers=threads)  # fmt: skip


def settings(architecture: str, loss: str, threads: int, epochs: int, seed: int = 0) -> Any:
    from bertkit.ancestors.vectors.word2vec import Word2VecSettings

    return Word2VecSettings(architecture, loss, rate=RATE, threads=threads, epochs=epochs, seed=seed)


def speed(sentences: list[list[str]], text: Path, rounds: int, threads: int, case: str) -> list[Row]:
    from bertkit.ancestors.vectors.corpus import number
    from bertkit.ancestors.vectors.word2vec import train_corpus

    corpus, few = number(sentences, 5), number(sentences[:200], 1)
    rows: list[Row] = []
    for architecture, loss in MODES:
        train_corpus(few, settings(architecture, loss, 1, 1))  # compile, or open what was compiled before
        for count in sorted({1, threads}):
            name = f"{architecture}, {loss}, {count} thread{'s' * (count > 1)}, {case}"
            listed, filed = (gensim_model(architecture, loss, count, 1) for _ in range(2))
            for model in (listed, filed):
                model.build_vocab(sentences)
            turns: dict[str, Callable[[], Any]] = {
                "gensim": partial(timed, partial(listed.train, sentences, total_examples=len(sentences), epochs=1)),
                "gensim, file": partial(
                    timed, partial(filed.train, corpus_file=str(text), total_words=corpus.read, epochs=1)
                ),
                "bertkit": partial(timed, train_corpus, corpus, settings(architecture, loss, count, 1)),
            }
            failed: dict[str, Exception] = {}
            results = take_turns(turns, rounds, failed.__setitem__)
            for who, times in results.items():
                tell(f"{name}: {who} {min(clock for clock, _ in times):.2f} s")
                busy = neat(corpus.read / 1e3 / min(cpu for _, cpu in times))
                speeds = [corpus.read / 1e3 / clock for clock, _ in times]
                rows.append(row(name, who, speeds, "thousand words/s", per_cpu_second=busy))
            rows += [skipped(name, who, f"{type(why).__name__}: {why}") for who, why in failed.items()]
    return with_ratios(rows, "gensim")


def quality(sentences: list[list[str]], modes: int, epochs: int, seeds: int, threads: int, case: str) -> list[Row]:
    """What the vectors know after the same training; several seeds show how much is chance."""
    from bertkit.ancestors.vectors.evaluate import analogies, similarities
    from bertkit.ancestors.vectors.vectors import WordVectors
    from bertkit.ancestors.vectors.word2vec import train

    def by_gensim(architecture: str, loss: str, seed: int) -> WordVectors:
        model = gensim_model(architecture, loss, threads, epochs)
        model.seed = seed
        model.build_vocab(sentences)
        model.train(sentences, total_examples=len(sentences), epochs=epochs)
        return WordVectors(model.wv.index_to_key, model.wv.vectors)

    def by_bertkit(architecture: str, loss: str, seed: int) -> WordVectors:
        return train(sentences, settings(architecture, loss, threads, epochs, seed))

    rows: list[Row] = []
    for architecture, loss in MODES[:modes]:
        for who, trainer in (("gensim", by_gensim), ("bertkit", by_bertkit)):
            scores: dict[str, list[float]] = {name: [] for name in QUALITIES}
            for seed in range(1, seeds + 1):
                vectors = trainer(architecture, loss, seed)
                for name in QUALITIES:
                    path = DATA / "vectors" / name
                    asked = name.startswith("questions")
                    scores[name].append(
                        analogies(vectors, path)["total"].accuracy if asked else similarities(vectors, path).spearman
                    )
            for name, label in QUALITIES.items():
                unit = "accuracy" if label == "analogies" else "spearman"
                rows.append(
                    row(f"{label}, {architecture}, {loss}, {epochs} passes over {case}", who, scores[name], unit)
                )
            tell(f"{architecture}, {loss}, {who}: " + ", ".join(f"{QUALITIES[n]} {s}" for n, s in scores.items()))
    return with_ratios(rows, "gensim")


def memory(text: Path, case: str) -> list[Row]:
    """How far counting pairs raises the peak of memory, beyond the numbered text itself."""
    rows: list[Row] = []
    for budget in (64, 1024):
        done = subprocess.run(
            [sys.executable, "-c", COUNTING, str(text), str(budget)], capture_output=True, text=True, check=False
        )
        who = f"budget {budget} MB"
        if done.returncode:
            rows.append(skipped(f"GloVe counting, {case}", who, done.stderr.strip().splitlines()[-1]))
            continue
        measured = json.loads(done.stdout)
        rows.append(row(f"GloVe counting, {case}", who, [measured["peak"]], "MB", pairs=int(measured["pairs"])))
    return with_ratios(rows, "budget 1024 MB")


def main() -> None:
    chosen = options(__doc__ or "")
    megabytes, rounds, modes, epochs, seeds = FORMS[chosen.form]
    with only_the_document() as out, tempfile.TemporaryDirectory() as folder:
        sentences, name = read(megabytes)
        case = f"{megabytes:g} MB of {name}"
        text = write(sentences, Path(folder) / "text.txt")
        rows = speed(sentences, text, chosen.rounds or rounds, chosen.threads, case)
        if CORPUS.exists() and (DATA / "vectors").is_dir():
            rows += quality(sentences, modes, epochs, seeds, chosen.threads, case)
        rows += memory(text, case)
        document = {"machine": machine(chosen.threads, ("gensim", "numba", "numpy")), "rows": rows}
        publish("word2vec", document, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
