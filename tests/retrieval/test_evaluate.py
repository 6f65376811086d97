"""A search is measured: the same numbers as the field's own tools, and what is wrong with a query file is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bertkit
from bertkit import metrics
from bertkit.commands import compare, evaluate, index
from bertkit.errors import UserError
from bertkit.retrieval.bm25 import BM25, LENGTH, SATURATION
from bertkit.retrieval.evaluate import measure, read_queries, relevant_ids
from bertkit.retrieval.index import Index
from tests.support.toy import make_model

TOPICS = ["garden", "train", "bread", "school", "river", "winter", "table", "market"]
ROWS = [
    {"id": f"d{n}", "text": f"The {a} was near the {b}. Nobody saw the {a} again.", "year": 2015 + n}
    for n, (a, b) in enumerate(zip(TOPICS, TOPICS[3:] + TOPICS[:3]))
]
QUERIES = [{"query": f"Who saw the {word}?", "relevant": [f"d{n}"]} for n, word in enumerate(TOPICS)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    write(folder / "documents.jsonl", ROWS)
    write(folder / "queries.jsonl", QUERIES)
    settings = index.Settings(files=(folder / "documents.jsonl",), model="en", out=folder / "index", threads=1)
    index.run(settings)
    return folder


ids = st.sampled_from([f"d{n}" for n in range(14)])


@given(st.lists(st.tuples(st.sets(ids, min_size=1), st.lists(ids, unique=True)), min_size=1, max_size=6))
def test_rankings_score_as_sentence_transformers_says(rows):
    evaluation = pytest.importorskip(
        "sentence_transformers.sentence_transformer.evaluation", reason="needs sentence-transformers"
    )
    gold, ranked = [row[0] for row in rows], [row[1] for row in rows]
    judge = evaluation.InformationRetrievalEvaluator(
        {str(n): "" for n in range(len(rows))}, {}, {str(n): relevant for n, relevant in enumerate(gold)},
        precision_recall_at_k=[1, 5, 10, 100],
    )  # fmt: skip
    hits = [[{"corpus_id": name, "score": -rank} for rank, name in enumerate(names)] for names in ranked]
    theirs = judge.compute_metrics(hits)
    ours = metrics.ranking(gold, ranked)
    assert ours["ndcg@10"] == pytest.approx(theirs["ndcg@k"][10], abs=1e-9)
    assert ours["mrr@10"] == pytest.approx(theirs["mrr@k"][10], abs=1e-9)
    for k in (1, 5, 10, 100):
        assert ours[f"recall@{k}"] == pytest.approx(theirs["recall@k"][k], abs=1e-9)


def test_an_index_scores_as_sentence_transformers_evaluates_its_vectors(place):
    evaluation = pytest.importorskip(
        "sentence_transformers.sentence_transformer.evaluation", reason="needs sentence-transformers"
    )
    opened, queries = Index.open(place / "index"), read_queries(place / "queries.jsonl")
    gold = relevant_ids(queries, opened.documents(), place / "queries.jsonl")
    ours = metrics.ranking(
        gold, measure("vectors", lambda text, top: opened.search(text, top, "vectors"), queries, len(opened)).ranked
    )
    judge = evaluation.InformationRetrievalEvaluator(
        {str(n): query.text for n, query in enumerate(queries)}, {row["id"]: row["text"] for row in ROWS},
        {str(n): relevant for n, relevant in enumerate(gold)}, batch_size=4, show_progress_bar=False, write_csv=False,
        score_functions={"cosine": lambda a, b: a @ b.T},
    )  # fmt: skip
    model = bertkit.load("en")

    class Vectors:
        similarity_fn_name, card_data = "cosine", None

        def encode_query(self, texts, **_):
            import torch

            return torch.from_numpy(np.asarray(model.embed(list(texts), normalize=True)))

        encode_document = encode = encode_query

    theirs = judge.compute_metrices(Vectors())["cosine"]
    assert ours["ndcg@10"] == pytest.approx(theirs["ndcg@k"][10], abs=1e-4)
    assert ours["mrr@10"] == pytest.approx(theirs["mrr@k"][10], abs=1e-4)


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=8),
    st.lists(st.integers(0, 9), max_size=5, unique=True),
)
def test_words_score_as_rank_bm25_does_with_the_same_rarity(rows, question):
    """rank_bm25 lets rarity be negative or replaces it; with Lucene's formula in its place, the scores are equal."""
    reference = pytest.importorskip("rank_bm25", reason="needs rank_bm25")

    class Lucene(reference.BM25Okapi):
        def _calc_idf(self, counts):
            self.idf = {t: np.log1p((self.corpus_size - n + 0.5) / (n + 0.5)) for t, n in counts.items()}

    theirs = Lucene(rows, k1=SATURATION, b=LENGTH).get_scores(question)
    assert BM25.of(rows, 10).scores(question) == pytest.approx(theirs, abs=1e-4)


def test_evaluate_puts_the_ways_to_search_side_by_side_with_a_page(place, tmp_path):
    result = evaluate.run(
        evaluate.Settings(model=str(place / "index"), file=place / "queries.jsonl", out=tmp_path, threads=1)
    )
    assert {row["name"] for row in result["ranked_by"]} == {"words", "vectors", "both"}
    best = result["ranked_by"][0]
    assert best["metrics"]["ndcg@10"] == max(row["metrics"]["ndcg@10"] for row in result["ranked_by"])
    assert all(low <= best["metrics"][name] <= high for name, (low, high) in best["intervals"].items())
    assert "ndcg@10" in evaluate.lines(result)[1]
    page = (tmp_path / "report.html").read_text("utf-8")
    assert best["name"] in page and "words" in page
    assert json.loads((tmp_path / "result.json").read_text("utf-8"))["verdict"] == result["verdict"]


@pytest.mark.parametrize(
    "given", [{"task": "perplexity"}, {"most": 3}, {"engine": "onnx"}, {"text": "q"}, {"label": "y"}]
)
def test_an_option_that_an_index_does_not_read_is_refused_with_what_it_is_for(place, given):
    with pytest.raises(UserError, match=rf"--{next(iter(given))} is for .*, not for an index\. Leave it out"):
        evaluate.run(evaluate.Settings(model=str(place / "index"), file=place / "queries.jsonl", threads=1, **given))


def test_the_worst_queries_are_listed_with_what_was_found_instead(place, tmp_path):
    queries = write(tmp_path / "q.jsonl", [*QUERIES, {"query": "Who saw the garden?", "relevant": "d6"}])
    result = evaluate.run(evaluate.Settings(model=str(place / "index"), file=queries, threads=1))
    first = result["worst"][0]
    assert first["line"] == len(QUERIES) + 1 and first["relevant"] == "d6" and first["first"] == "d0"


def test_relevant_documents_may_be_given_by_their_text(place, tmp_path):
    part = write(tmp_path / "part.jsonl", [{"query": "train", "relevant": "Nobody  saw the train again."}])
    whole = write(tmp_path / "whole.jsonl", [{"query": "train", "relevant": [ROWS[1]["text"]]}])
    documents = Index.open(place / "index").documents()
    for path in (part, whole):
        assert relevant_ids(read_queries(path), documents, path) == [{"d1"}]


@pytest.mark.parametrize(
    "row, message",
    [
        ({"query": "x", "relevant": "no such thing"}, "line 1: 'no such thing' is neither an id nor a text"),
        ({"query": "x"}, "line 1: there is no 'relevant', only query"),
        ({"query": " ", "relevant": "d1"}, "the query is ' '"),
        ({"query": "x", "relevant": []}, "give at least one id or text"),
    ],
)
def test_a_query_that_cannot_be_judged_is_named_with_its_line(place, tmp_path, row, message):
    queries = write(tmp_path / "q.jsonl", [row])
    with pytest.raises(UserError, match=message):
        evaluate.run(evaluate.Settings(model=str(place / "index"), file=queries, threads=1))


def test_an_id_that_is_missing_is_not_looked_for_in_every_year_and_price(place, tmp_path) -> None:
    documents = {f"d{n}": [f"In 2015 it cost {n} pounds."] for n in range(20)}
    path = write(tmp_path / "queries.jsonl", [{"query": "how much?", "relevant": "5"}])
    with pytest.raises(UserError, match="'5' is neither an id nor a text"):
        relevant_ids(read_queries(path), documents, path)


def test_a_text_that_many_documents_contain_is_told(tmp_path, caplog) -> None:
    documents = {f"d{n}": [f"In 2015 it cost {n} pounds."] for n in range(20)}
    path = write(tmp_path / "queries.jsonl", [{"query": "how much?", "relevant": "pounds"}])
    assert len(relevant_ids(read_queries(path), documents, path)[0]) == 20
    assert "'pounds' in 20 documents" in caplog.text


def test_of_a_single_query_only_one_way_to_search_is_called_the_best(place, tmp_path) -> None:
    path = write(tmp_path / "queries.jsonl", QUERIES[:1])
    settings = evaluate.Settings(model=str(place / "index"), file=path, threads=1)
    shown = "\n".join(evaluate.lines(evaluate.run(settings)))
    assert shown.count("best") == 1 and "nan" not in shown


def test_compare_search_runs_bm25_word_vectors_and_encoders_on_the_same_queries(place, tmp_path):
    words = tmp_path / "words.vec"
    random = np.random.default_rng(0)
    lines = [f"{word} {' '.join(f'{x:.3f}' for x in random.normal(size=4))}" for word in [*TOPICS, "the", "was"]]
    words.write_text(f"{len(lines)} 4\n" + "\n".join(lines) + "\n", "utf-8")
    settings = compare.Settings(
        task="search", train=place / "documents.jsonl", test=place / "queries.jsonl", vectors=words, models="en",
        out=tmp_path / "out", threads=1,
    )  # fmt: skip
    result = compare.run(settings)
    names = {row["name"] for row in result["ranked_by"]}
    assert names == {"words (BM25)", "word vectors words.vec", "vectors, en", "both, en"}
    assert all(row["megabytes"] > 0 and row["ms_per_query"] > 0 for row in result["ranked_by"])
    assert result["verdict"] in compare.lines(result)
    with pytest.raises(UserError, match="--test"):
        compare.run(compare.Settings(task="search", train=place / "documents.jsonl", out=tmp_path / "o", threads=1))


def test_a_model_that_does_not_read_pairs_cannot_rerank(place, tmp_path):
    from bertkit.retrieval.evaluate import Reranker

    with pytest.raises(UserError, match="has not been fine-tuned"):
        Reranker(make_model(tmp_path / "model"))
