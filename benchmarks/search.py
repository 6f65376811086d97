"""Search by words, by vectors and by both, on real questions whose right document is known.

    python benchmarks/search.py [--quick|--smoke] [--json] [--threads 2] [--model FOLDER]

Documents are the paragraphs (QNLI, QAMR: sentences) of a question set; a question's right document is the one it was
asked about. Documents are ranked by their best passage. nDCG@10 has one right document: 1 / log2(1 + its rank).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from _harness import machine, only_the_document, options, publish, tell
from _real_tasks import DATA

SETS = {  # name → its embedded model, its file
    "DRCD": ("zh", "qa/drcd_dev.json.xz"),
    "CMRC": ("zh", "qa/cmrc2018_dev.json.xz"),
    "QNLI": ("en", "glue/QNLI/dev.tsv.xz"),
    "QAMR": ("en", "qa/qamr_dev.jsonl.xz"),
}
FORMS = {"full": (500, 4000), "quick": (200, 300), "smoke": (10, 20)}  # questions, documents
DEEP = 100  # passages looked through for the right document


def questions_of(file: Path) -> Iterator[tuple[str, str]]:
    """(question, document) pairs."""
    from bertkit.data.readers import read_questions
    from bertkit.files.open import open_text

    if file.name.startswith("dev.tsv"):  # QNLI: number, question, sentence, whether it answers
        for line in islice(open_text(file), 1, None):
            _, question, sentence, label = line.rstrip("\n").split("\t")
            if label == "entailment":
                yield question, sentence
    else:
        yield from ((row.question, row.context) for row in read_questions(file))


def scores(ranks: list[float]) -> dict[str, float]:
    """ranks: of the right documents, from 1; infinity if not found."""
    mean = {
        "nDCG@10": [1 / math.log2(1 + rank) if rank <= 10 else 0.0 for rank in ranks],
        "MRR": [1 / rank for rank in ranks],
        "recall@1": [float(rank <= 1) for rank in ranks],
        "recall@10": [float(rank <= 10) for rank in ranks],
    }
    return {name: sum(values) / len(values) for name, values in mean.items()}


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", default="")
    mine, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    chosen = options(__doc__ or "")
    if not DATA.is_dir():
        raise SystemExit("The real data sets are not beside this project (../shared/data).")
    from bertkit.commands import index
    from bertkit.retrieval.index import BY, Index

    asked, most = FORMS[chosen.form]
    rows = []
    with only_the_document() as out, tempfile.TemporaryDirectory() as place:
        for name, (model, file) in SETS.items():
            if chosen.case and not name.startswith(chosen.case):
                continue
            pairs = list(questions_of(DATA / file))
            documents = list(dict.fromkeys(document for _, document in pairs))[:most]
            numbers = {document: number for number, document in enumerate(documents, 1)}
            pairs = [pair for pair in pairs if pair[1] in numbers]
            random.Random(0).shuffle(pairs)
            path = Path(place) / f"{name}.jsonl"
            path.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents), "utf-8")
            folder = Path(place) / name
            index.run(index.Settings(files=(path,), model=mine.model or model, out=folder, threads=chosen.threads))
            opened = Index.open(folder)
            for by in BY:
                ranks = []
                for question, document in pairs[:asked]:
                    order = dict.fromkeys(hit["document"] for hit in opened.search(question, DEEP, by))
                    places = {number: rank for rank, number in enumerate(order, 1)}
                    ranks.append(places.get(numbers[document], math.inf))
                measured = scores(ranks)
                tell(f"{name}, {by}: {measured} (weight of vectors {opened.about['vector_weight']})")
                for unit, value in measured.items():
                    shown = round(value, 3)
                    rows.append(
                        {
                            "case": f"{name}, {len(ranks)} questions, {len(documents)} documents", "contestant": by,
                            "value": shown, "unit": unit, "range": [shown, shown], "ratio": None,
                            "vector_weight": opened.about["vector_weight"], "model": mine.model or model,
                        }
                    )  # fmt: skip
        publish("search", {"machine": machine(chosen.threads), "rows": rows}, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
