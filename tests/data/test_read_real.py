"""The real data sets, where they are: every row is read, and the counts are those of their publishers."""

from pathlib import Path
from typing import Any

import pytest

from bertkit.data.readers import read_documents, read_minimal_pairs, read_questions, read_rows, read_tagged

PAIR = {"text_b": "text_b"}
NUMBERS = {"text": "1", "text_b": "2", "label": "3"}
ROWS: list[tuple[str, int, int, dict[str, Any]]] = [  # file, rows, labels, columns
    ("glue/CoLA/train.tsv.xz", 8551, 2, {"text": "4", "label": "2"}),
    ("glue/CoLA/dev.tsv.xz", 1043, 2, {"text": "4", "label": "2"}),
    ("glue/SST-2/train.tsv.xz", 67349, 2, {}),
    ("glue/SST-2/dev.tsv.xz", 872, 2, {}),
    ("glue/MRPC/train.tsv.xz", 3668, 2, PAIR),
    ("glue/MRPC/dev.tsv.xz", 408, 2, PAIR),
    ("glue/RTE/train.tsv.xz", 2490, 2, PAIR),
    ("glue/RTE/dev.tsv.xz", 277, 2, PAIR),
    ("glue/QNLI/dev.tsv.xz", 5463, 2, PAIR),
    ("nli/snli_train_100k.tsv.xz", 100_000, 4, PAIR),
    ("nli/snli_test.tsv.xz", 10_000, 4, PAIR),
    ("nli/mnli_subsample_train.jsonl.xz", 7107, 3, PAIR),
    ("nli/mnli_subsample_dev.jsonl.xz", 1777, 3, PAIR),
    ("nli/ocnli_train_10k.json.xz", 10_000, 4, PAIR),
    ("nli/ocnli_dev.json.xz", 3000, 4, PAIR),
    ("classify/imdb_train.jsonl.xz", 25_000, 2, {}),
    ("classify/sms_spam.tsv.xz", 5574, 2, {"text": "2", "label": "1"}),
    ("classify/chnsenticorp_train.tsv.xz", 9600, 2, {}),
    ("classify/chnsenticorp_dev.tsv.xz", 1200, 2, {}),
    ("classify/chnsenticorp_test.tsv.xz", 1200, 2, {}),
    ("classify/tnews_train.json.xz", 53_360, 15, {}),
    ("pairs/atec_train.csv.xz", 39_346, 2, {"text": "2", "text_b": "3", "label": "4"}),
    ("pairs/lcqmc_dev.txt.xz", 8802, 2, NUMBERS),
    ("pairs/lcqmc_test.txt.xz", 12_500, 2, NUMBERS),
]


@pytest.mark.parametrize(("file", "count", "labels", "columns"), ROWS, ids=[row[0] for row in ROWS])
def test_every_row_is_read(shared_data: Path, file: str, count: int, labels: int, columns: dict[str, Any]) -> None:
    rows = list(read_rows(shared_data / file, **columns))
    assert len(rows) == count
    assert len({row.label for row in rows}) == labels
    assert all((row.text_b is not None) == ("text_b" in columns) for row in rows)


@pytest.mark.parametrize(("part", "count"), [("train", 5749), ("dev", 1500)])
def test_similarity_scores_are_numbers_from_0_to_5(shared_data: Path, part: str, count: int) -> None:
    rows = list(read_rows(shared_data / f"glue/STS-B/{part}.tsv.xz", number=True, **PAIR))
    assert len(rows) == count
    assert all(isinstance(row.label, float) and 0 <= row.label <= 5 for row in rows)


@pytest.mark.parametrize(
    ("file", "count", "tags"),
    [
        ("conll2003/eng.train.xz", 14_041, 8),
        ("conll2003/eng.testa.xz", 3250, 6),
        ("conll2003/eng.testb.xz", 3453, 8),
        ("ud_ewt/train.conllu.xz", 12_544, 17),
        ("ud_ewt/dev.conllu.xz", 2001, 17),
        ("ud_ewt/test.conllu.xz", 2077, 17),
        ("zh_news_ner/dev.txt.xz", 4631, 7),
    ],
)
def test_every_sentence_is_read(shared_data: Path, file: str, count: int, tags: int) -> None:
    sentences = list(read_tagged(shared_data / "tagging" / file))
    assert len(sentences) == count
    assert len({tag for sentence in sentences for tag in sentence.tags or ()}) == tags


@pytest.mark.parametrize(
    ("file", "count", "told"),
    [
        ("qamr_dev.jsonl.xz", 18_863, 1),
        ("qamr_test.jsonl.xz", 18_720, 1),
        ("policyqa_dev.json.xz", 3809, 0),
        ("policyqa_test.json.xz", 4152, 0),
        ("drcd_dev.json.xz", 3524, 0),
        ("drcd_test.json.xz", 3493, 0),
        ("cmrc2018_trial.json.xz", 1002, 1),
        ("cmrc2018_dev.json.xz", 3219, 2),
    ],
)
def test_every_question_is_read_and_its_answers_stand_in_the_context(
    shared_data: Path, notes: list[str], file: str, count: int, told: int
) -> None:
    questions = list(read_questions(shared_data / "qa" / file))
    assert len(questions) == len({question.id for question in questions}) == count
    assert all(q.context[start : start + len(text)] == text for q in questions for text, start in q.placed)
    assert len(notes) == told


@pytest.mark.parametrize(("folder", "groups", "count"), [("blimp", 67, 67_000), ("zhoblimp", 118, 35_400)])
def test_every_minimal_pair_is_read(shared_data: Path, folder: str, groups: int, count: int) -> None:
    pairs = list(read_minimal_pairs(shared_data / "minimal_pairs" / folder))
    assert len(pairs) == count
    assert len({pair.group for pair in pairs}) == groups


@pytest.mark.parametrize(
    ("file", "count"), [("wikitext103_valid.tokens.xz", 60), ("zh_lctt.txt.xz", 7754), ("en_enwik8.txt.xz", 7278)]
)
def test_every_document_is_read(shared_data: Path, file: str, count: int) -> None:
    assert sum(1 for _ in read_documents(shared_data / "corpus" / file)) == count
