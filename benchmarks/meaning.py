"""Do vectors tell the senses of a word apart? Twenty ambiguous words in English and in Chinese, AUC by model and layer.

    python benchmarks/meaning.py [--quick|--smoke|--table] [--json] [--threads 2] [--en LIST] [--zh LIST]
        [--corpus FOLDER --train FOLDER [--tokens 4000000] [--megabytes 24]]

--en, --zh: further models, separated by commas: folders of word2vec, GloVe, ELMo, GPT or BERT. --corpus: a folder of
running text, en_*.txt and zh_*.txt (also compressed); from some megabytes of each language, ELMo, a GPT with
the embedded model's vocabulary (--tokens each) and word2vec are trained into --train, unless they are there already: so
a new edition of `en` or `zh` is measured again in half a minute. --table prints the tables of docs/results.md.

Each word of bertkit/samples/*/senses.csv stands in six sentences, three of each of two senses. The AUC of a word is the
chance that two sentences of one sense are more alike, by the cosine of the word's vectors, than two of different
senses; a case is the mean over words, its range the 95 % interval over words. A model with one vector per word is at
0.5 by construction.
"""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _harness import machine, only_the_document, options, publish, tell

from bertkit import samples

KINDS = ("elmo", "gpt", "word2vec")


def senses(lang: str) -> dict[str, list[tuple[str, str]]]:
    """word → [(text, sense)]"""
    words: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with samples.path(lang, "senses.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            words[row["word"]].append((row["text"], row["sense"]))
    return dict(words)


def documents(path: Path, size: int) -> Iterator[str]:
    """Documents from the beginning of a file, about `size` bytes of them."""
    from bertkit.files.open import open_text

    lines: list[str] = []
    for line in open_text(path):
        if line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines) + "\n"
            size -= sum(len(line.encode()) for line in lines)
            lines = []
            if size <= 0:
                return


def corpus(folder: Path, lang: str, megabytes: int, out: Path) -> Path:
    """One text of all files of a language, in equal parts and shuffled."""
    if not out.exists():
        files = sorted(folder.glob(f"{lang}_*.txt*"))
        parts = [text for path in files for text in documents(path, megabytes * 1_000_000 // len(files))]
        random.Random(0).shuffle(parts)
        out.write_text("\n".join(parts), encoding="utf-8")
    return out


def trained(lang: str, chosen: Any, threads: int) -> list[str]:
    """The ancestors of a language, trained where they are not there yet: their folders."""
    base = Path(chosen.train)
    base.mkdir(parents=True, exist_ok=True)
    text = corpus(Path(chosen.corpus), lang, chosen.megabytes, base / f"{lang}.txt")

    def run(*words: object) -> None:
        tell(" ".join(map(str, words)))
        subprocess.run(
            [sys.executable, "-m", "bertkit", *map(str, words), "--threads", str(threads), "--quiet"], check=True
        )

    budget = ("--tokens", chosen.tokens)  # not minutes: a busy machine would train another model
    for kind in KINDS:
        folder = base / f"{kind}-{lang}"
        if folder.exists():
            continue
        if kind == "gpt":
            run("prepare", text, "--tokenizer", lang, "--out", base / f"store-{lang}")
            run("pretrain", "--preset", "gpt-mini", "--data", base / f"store-{lang}", "--out", folder, *budget)
        else:
            run("learn", kind, text, "--out", folder, *(budget if kind == "elmo" else ()))
    return [str(base / f"{kind}-{lang}") for kind in KINDS]


def measured(lang: str, name: str, words: dict[str, list[tuple[str, str]]]) -> list[dict[str, Any]]:
    """One row per layer of a model."""
    from bertkit.ancestors.meaning import find, sense_auc, word_vectors
    from bertkit.loading import open_model

    model = open_model(name, precision="fp32")
    aucs: list[list[float]] = []  # per word, by layer
    kind = ""
    for word, uses in words.items():
        texts = [text for text, _ in uses]
        kind, _, vectors = word_vectors(model, texts, [find(word, text) for text in texts])
        if vectors is not None:
            aucs.append([sense_auc(layer, [sense for _, sense in uses]) for layer in vectors])
    table = np.array(aucs)
    draws = table[np.random.default_rng(0).integers(0, len(table), (2000, len(table)))].mean(1)
    tell(f"{lang}: {name} best {table.mean(0).max():.3f}")
    return [
        {
            "case": f"{len(table)} words, {lang}", "contestant": f"{Path(name).name} ({kind}), layer {layer}",
            "value": round(float(table[:, layer].mean()), 3), "unit": "AUC",
            "range": [round(float(end), 3) for end in np.percentile(draws[:, layer], (2.5, 97.5))],
            "ratio": None, "unknown_words": len(words) - len(table), "model": name, "layer": layer, "lang": lang,
        }
        for layer in range(table.shape[1])
    ]  # fmt: skip


def as_table(rows: Sequence[dict[str, Any]], lang: str) -> str:
    """Models as columns, layers as rows, in Markdown."""
    selected = [row for row in rows if row["lang"] == lang]
    names = list(dict.fromkeys(row["model"] for row in selected))
    cells = {
        (row["model"], row["layer"]): f"{row['value']:.3f} ({row['range'][0]:.2f}–{row['range'][1]:.2f})"
        for row in selected
    }
    lines = [
        "| layer | " + " | ".join(f"`{Path(name).name}`" for name in names) + " |",
        "|---" * (1 + len(names)) + "|",
    ]
    for layer in range(1 + max(row["layer"] for row in selected)):
        lines.append("| " + " | ".join([str(layer), *(cells.get((name, layer), "") for name in names)]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    for lang in samples.LANGUAGES:
        parser.add_argument(f"--{lang}", default="")
    parser.add_argument("--corpus", default="")
    parser.add_argument("--train", default="")
    parser.add_argument("--tokens", type=int, default=4_000_000)
    parser.add_argument("--megabytes", type=int, default=24)
    parsed, rest = parser.parse_known_args()
    if bool(parsed.corpus) != bool(parsed.train):
        parser.error("--corpus says what to learn from, --train where the trained models go: give both or neither")
    sys.argv[1:] = rest
    chosen = options(__doc__ or "", ("full", "quick", "smoke", "table"))
    from bertkit import machine as here

    rows = []
    with only_the_document() as out:
        here.set_up(chosen.threads)
        for lang in samples.LANGUAGES:
            words = senses(lang)
            if chosen.form == "smoke":
                words = dict(list(words.items())[:2])
            ancestors = trained(lang, parsed, chosen.threads) if parsed.train else []
            for name in [*ancestors, lang, *filter(None, getattr(parsed, lang).split(","))]:
                rows += measured(lang, name, words)
        if chosen.form == "table":
            out.write("\n\n".join(as_table(rows, lang) for lang in samples.LANGUAGES) + "\n")
        else:
            publish("meaning", {"machine": machine(chosen.threads), "rows": rows}, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
