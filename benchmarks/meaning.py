"""Do vectors tell the senses of a word apart? Twenty ambiguous words in English and in Chinese, AUC by model and layer.

    python benchmarks/meaning.py [--quick|--smoke] [--json] [--threads 2] [--en LIST] [--zh LIST]

--en, --zh: further models, separated by commas: folders of word2vec, GloVe, ELMo, GPT or BERT. Each word of
bertkit/samples/*/senses.csv stands in six sentences, three of each of two senses. The AUC of a word is the chance that
two sentences of one sense are more alike, by the cosine of the word's vectors, than two of different senses; a case is
the mean over words, its range the 95 % interval over words. A model with one vector per word is at 0.5 by construction.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict

import numpy as np
from _harness import machine, only_the_document, options, publish, tell

from bertkit import samples


def senses(lang: str) -> dict[str, list[tuple[str, str]]]:
    """word → [(text, sense)]"""
    words: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with samples.path(lang, "senses.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            words[row["word"]].append((row["text"], row["sense"]))
    return dict(words)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    for lang in samples.LANGUAGES:
        parser.add_argument(f"--{lang}", default="")
    mine, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    chosen = options(__doc__ or "")
    from bertkit import machine as here
    from bertkit.ancestors.meaning import find, sense_auc, word_vectors
    from bertkit.loading import open_model

    rows = []
    with only_the_document() as out:
        here.set_up(chosen.threads)
        for lang in samples.LANGUAGES:
            words = senses(lang)
            if chosen.form == "smoke":
                words = dict(list(words.items())[:2])
            for name in [lang, *filter(None, getattr(mine, lang).split(","))]:
                model = open_model(name, precision="fp32")
                aucs: list[list[float]] = []  # per word, by layer
                unknown = 0
                for word, uses in words.items():
                    texts = [text for text, _ in uses]
                    kind, _, vectors = word_vectors(model, texts, [find(word, text) for text in texts])
                    if vectors is None:
                        unknown += 1
                        continue
                    aucs.append([sense_auc(layer, [sense for _, sense in uses]) for layer in vectors])
                table = np.array(aucs)
                draws = table[np.random.default_rng(0).integers(0, len(table), (2000, len(table)))].mean(1)
                for layer in range(table.shape[1]):
                    low, high = np.percentile(draws[:, layer], (2.5, 97.5))
                    rows.append(
                        {
                            "case": f"{len(table)} words, {lang}", "contestant": f"{name} ({kind}), layer {layer}",
                            "value": round(float(table[:, layer].mean()), 3), "unit": "AUC",
                            "range": [round(low, 3), round(high, 3)], "ratio": None, "unknown_words": unknown,
                        }
                    )  # fmt: skip
                tell(f"{lang}: {name} best {table.mean(0).max():.3f}")
        publish("meaning", {"machine": machine(chosen.threads), "rows": rows}, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
