"""The real data sets beside the project, as tasks: which file, which columns, which score."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.tasks import make
from bertkit.tasks.base import Reading

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True)
class RealTask:
    """train, dev, test: files under DATA. score: the metric to report; the first of the task where it is empty.

    Where there is a test file the dev file only chooses; where there is no dev file a tenth of the training rows does.
    """

    task: str
    train: str
    dev: str
    reading: Reading = field(default_factory=Reading)
    score: str = ""
    test: str = ""


REAL = {
    "SST-2": RealTask("classify", "glue/SST-2/train.tsv.xz", "glue/SST-2/dev.tsv.xz", Reading("sentence")),
    "CoLA": RealTask("classify", "glue/CoLA/train.tsv.xz", "glue/CoLA/dev.tsv.xz", Reading("4", label="2"), "mcc"),
    "MRPC": RealTask(
        "pair", "glue/MRPC/train.tsv.xz", "glue/MRPC/dev.tsv.xz", Reading("#1 String", "#2 String", "Quality"), "f1"
    ),
    "RTE": RealTask("pair", "glue/RTE/train.tsv.xz", "glue/RTE/dev.tsv.xz", Reading("sentence1", "sentence2")),
    "STS-B": RealTask(
        "regress", "glue/STS-B/train.tsv.xz", "glue/STS-B/dev.tsv.xz",
        Reading("sentence1", "sentence2", "score"), "spearman",
    ),
    "STS-B-vectors": RealTask(
        "embed", "glue/STS-B/train.tsv.xz", "glue/STS-B/dev.tsv.xz",
        Reading("sentence1", "sentence2", "score"), "spearman",
    ),
    "CoNLL-2003": RealTask("tag", "tagging/conll2003/eng.train.xz", "tagging/conll2003/eng.testa.xz"),
    "EWT UPOS": RealTask("tag", "tagging/ud_ewt/train.conllu.xz", "tagging/ud_ewt/dev.conllu.xz"),
    "ChnSentiCorp": RealTask(
        "classify", "classify/chnsenticorp_train.tsv.xz", "classify/chnsenticorp_dev.tsv.xz", Reading("text_a"),
        test="classify/chnsenticorp_test.tsv.xz",
    ),
    "OCNLI": RealTask(
        "pair", "nli/ocnli_train_10k.json.xz", "nli/ocnli_dev.json.xz", Reading("sentence1", "sentence2", "label")
    ),
    "LCQMC": RealTask("pair", "pairs/lcqmc_dev.txt.xz", "", Reading("1", "2", "3"), test="pairs/lcqmc_test.txt.xz"),
    "News NER": RealTask("tag", "tagging/zh_news_ner/train.txt.xz", "tagging/zh_news_ner/dev.txt.xz"),
    "DRCD": RealTask("answer", "qa/drcd_dev.json.xz", "", test="qa/drcd_test.json.xz"),
    "CMRC": RealTask("answer", "qa/cmrc2018_trial.json.xz", "", test="qa/cmrc2018_dev.json.xz"),
}  # fmt: skip


def rows_of(name: str, role: str, most: int = 0, seed: int = 0) -> list[Any]:
    """Examples of a set's train, dev or test file; at most so many, drawn by the seed."""
    real = REAL[name]
    examples = make(real.task).read(DATA / getattr(real, role), real.reading)
    if not most or len(examples) <= most:
        return examples
    chosen = np.random.default_rng((seed, len(examples))).permutation(len(examples))[:most]
    return [examples[n] for n in sorted(chosen)]


def score_of(name: str, examples: list[Any], predictions: list[dict[str, Any]], labels: tuple[str, ...]) -> float:
    """The reported score; F1 of a two-label task is that of its second label, as GLUE counts it."""
    from sklearn.metrics import f1_score

    real = REAL[name]
    if real.score == "f1":
        gold, predicted = ([label == labels[1] for label in column] for column in (
            [row.label for row in examples], [p["label"] for p in predictions],
        ))  # fmt: skip
        return float(f1_score(gold, predicted))
    scores = make(real.task, labels=labels).score(examples, predictions)
    return float(scores[real.score] if real.score else next(iter(scores.values())))
