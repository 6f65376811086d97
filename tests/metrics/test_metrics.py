"""The point metrics, with scikit-learn, scipy and seqeval as judges."""

import lzma
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from bertkit import metrics
from bertkit.errors import UserError

DATA = Path(__file__).resolve().parents[2] / "../shared/data"
LABELS = ["negative", "neutral", "positive"]
label = st.sampled_from(LABELS)
rows = st.lists(st.tuples(label, label), min_size=1, max_size=60)


def test_metrics_load_neither_torch_nor_scikit_learn() -> None:
    code = "import sys, bertkit.metrics.calibration; print({'torch', 'sklearn', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.filterwarnings("ignore:A single label")
@settings(deadline=None, max_examples=60)
@given(rows)
def test_classification_agrees_with_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    gold, predicted = map(list, zip(*pairs))
    ours = metrics.classification(gold, predicted, LABELS)
    assert list(ours) == ["accuracy", "macro_f1", "micro_f1", "mcc"]
    assert ours["accuracy"] == pytest.approx(sk.accuracy_score(gold, predicted))
    assert ours["macro_f1"] == pytest.approx(sk.f1_score(gold, predicted, average="macro"))
    assert ours["micro_f1"] == pytest.approx(sk.f1_score(gold, predicted, average="micro"))
    assert ours["mcc"] == pytest.approx(sk.matthews_corrcoef(gold, predicted))
    assert (
        metrics.confusion(gold, predicted, LABELS).tolist()
        == sk.confusion_matrix(gold, predicted, labels=LABELS).tolist()
    )
    judge = sk.precision_recall_fscore_support(gold, predicted, labels=LABELS, zero_division=0)
    for row, expected in zip(metrics.per_class(gold, predicted, LABELS), zip(LABELS, *judge)):
        assert tuple(row.values())[:5] == pytest.approx(expected)


@pytest.mark.parametrize("labels", [LABELS[:2], LABELS])
@pytest.mark.parametrize("decimals", [1, 8], ids=["many ties", "no ties"])
def test_auc_agrees_with_scikit_learn(labels: list[str], decimals: int) -> None:
    random = np.random.default_rng(3)
    gold = [*labels, *random.choice(labels, 80)]
    scores = np.round(random.dirichlet(np.ones(len(labels)), len(gold)), decimals)
    ours = metrics.classification(gold, gold, labels, scores)["auc"]
    if len(labels) == 2:
        assert ours == pytest.approx(sk.roc_auc_score(np.array(gold) == labels[1], scores[:, 1]))
        assert ours == pytest.approx(metrics.classification(gold, gold, labels, scores[:, 1])["auc"])
    else:
        each = [sk.roc_auc_score(np.array(gold) == name, scores[:, code]) for code, name in enumerate(labels)]
        assert ours == pytest.approx(np.mean(each))


def test_auc_is_left_out_with_a_reason_when_a_label_has_no_rows() -> None:
    scores = metrics.classification(["neutral", "negative"], ["neutral"] * 2, LABELS, np.eye(3)[:2])
    assert "auc" not in scores
    assert "'positive'" in scores.absent["auc"] and "neutral" not in scores.absent["auc"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sets(label), st.sets(label)), min_size=1, max_size=40))
def test_multi_label_agrees_with_scikit_learn(pairs: list[tuple[set[str], set[str]]]) -> None:
    gold, predicted = map(list, zip(*pairs))
    truth, guess = ([[name in row for name in LABELS] for row in side] for side in (gold, predicted))
    ours = metrics.multi_label(gold, predicted, LABELS)
    assert next(iter(ours)) == "micro_f1"
    assert ours["micro_f1"] == pytest.approx(sk.f1_score(truth, guess, average="micro", zero_division=0))
    judged = [
        sk.f1_score([row[code] for row in truth], [row[code] for row in guess])
        for code in range(3)
        if any(row[code] for row in truth + guess)
    ]
    assert ours["macro_f1"] == pytest.approx(np.mean(judged or [0]))
    assert ours["exact_match"] == pytest.approx(sk.accuracy_score(truth, guess))
    assert ours["hamming_loss"] == pytest.approx(sk.hamming_loss(truth, guess))


def test_multi_label_auc_is_the_mean_over_labels_that_divide_the_rows() -> None:
    gold = [{"negative"}, {"negative", "neutral"}, {"neutral"}, set()]
    scores = np.array([[0.9, 0.2, 0.1], [0.3, 0.1, 0.1], [0.4, 0.8, 0.1], [0.1, 0.5, 0.1]])
    expected = np.mean([sk.roc_auc_score([1, 1, 0, 0], scores[:, 0]), sk.roc_auc_score([0, 1, 1, 0], scores[:, 1])])
    assert metrics.multi_label(gold, gold, LABELS, scores)["auc"] == pytest.approx(expected)
    assert "others do not" in metrics.multi_label([set()], [set()], LABELS, scores[:1]).absent["auc"]


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.integers(-9, 9), st.floats(-1e4, 1e4, width=32)), min_size=2, max_size=60))
def test_regression_agrees_with_scipy(pairs: list[tuple[int, float]]) -> None:
    gold, predicted = map(list, zip(*pairs))
    ours = metrics.regression(gold, predicted)
    assert list(ours) == ["spearman", "pearson", "mae", "rmse"]
    assert ours["mae"] == pytest.approx(sk.mean_absolute_error(gold, predicted))
    assert ours["rmse"] == pytest.approx(sk.root_mean_squared_error(gold, predicted))
    if len(set(gold)) > 1 and len(set(predicted)) > 1:
        assert ours["spearman"] == pytest.approx(stats.spearmanr(gold, predicted)[0], abs=1e-9)
        if np.ptp(predicted) > 1e-3:
            assert ours["pearson"] == pytest.approx(stats.pearsonr(gold, predicted)[0], abs=1e-6)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_a_constant_correlates_with_nothing(constant: float) -> None:
    scores = metrics.regression([1.0, 2.0, 4.0], [constant] * 3)
    assert scores["spearman"] == scores["pearson"] == 0
    assert metrics.regression([5.0], [5.0]) == {"spearman": 0, "pearson": 0, "mae": 0, "rmse": 0}


TAGS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC")), "B", "I", "E", "S", "I-a-b"]
tag_sentences = st.lists(
    st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=12), min_size=1, max_size=8
)


@settings(deadline=None, max_examples=150)
@given(tag_sentences)
def test_tagging_agrees_with_seqeval_on_any_sequence(sentences: list[list[tuple[str, str]]]) -> None:
    judge = pytest.importorskip("seqeval.metrics.sequence_labeling")
    gold, predicted = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    ours = metrics.tagging(gold, predicted)
    assert list(ours) == ["f1", "precision", "recall", "accuracy"]
    assert ours["f1"] == pytest.approx(judge.f1_score(gold, predicted, zero_division=0))
    assert ours["precision"] == pytest.approx(judge.precision_score(gold, predicted, zero_division=0))
    assert ours["recall"] == pytest.approx(judge.recall_score(gold, predicted, zero_division=0))
    assert ours["accuracy"] == pytest.approx(judge.accuracy_score(gold, predicted))
    for tags in gold:
        assert metrics.entities(tags) == [(kind, start, end + 1) for kind, start, end in judge.get_entities(tags)]
    kinds = {kind for side in (gold, predicted) for tags in side for kind, _, _ in metrics.entities(tags)}
    report = judge.classification_report(gold, predicted, output_dict=True, zero_division=0) if kinds else {}
    for row in metrics.per_type(gold, predicted):
        expected = report[row["label"]]
        assert (row["f1"], row["gold"]) == pytest.approx((expected["f1-score"], expected["support"]))


@pytest.mark.parametrize(
    ("scheme", "tags", "expected"),
    [
        ("IOB1", "I-PER I-PER B-PER O I-LOC I-PER", [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 5), ("PER", 5, 6)]),
        ("IOB2", "B-PER I-PER B-PER O B-LOC", [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 5)]),
        ("BIOES", "S-LOC B-PER I-PER E-PER E-PER O", [("LOC", 0, 1), ("PER", 1, 4), ("PER", 4, 5)]),
        ("BILOU", "U-LOC B-PER I-PER L-PER O", [("LOC", 0, 1), ("PER", 1, 4)]),
        ("BMES", "S-LOC B-PER M-PER E-PER O", [("LOC", 0, 1), ("PER", 1, 4)]),
        ("word segmentation", "B M E S B E", [("_", 0, 3), ("_", 3, 4), ("_", 4, 6)]),
        ("no prefixes", "PER PER O LOC ORG", [("PER", 0, 2), ("LOC", 3, 4), ("ORG", 4, 5)]),
        ("nothing", "", []),
    ],
)
def test_entities_are_read_from_every_scheme(scheme: str, tags: str, expected: list) -> None:
    assert metrics.entities(tags.split()) == expected


def test_parts_of_speech_are_scored_by_tag_and_entities_by_whole_entity() -> None:
    gold, predicted = [["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["VERB"]]
    flat = [[tag for sentence in side for tag in sentence] for side in (gold, predicted)]
    assert metrics.tagging(gold, predicted) == metrics.classification(*flat, ["DET", "NOUN", "VERB"])
    assert next(iter(metrics.tagging([["O", "O", "film"]], [["O", "O", "O"]]))) == "f1"


def test_an_entity_never_crosses_from_one_sentence_to_the_next() -> None:
    apart, together = [["O", "B-PER"], ["I-PER", "O"]], [["O", "B-PER", "I-PER", "O"]]
    assert [row["gold"] for row in metrics.per_type(apart, apart)] == [2]
    assert [row["gold"] for row in metrics.per_type(together, together)] == [1]


@pytest.mark.parametrize("name", ["conll2003/eng.testa.xz", "zh_news_ner/dev.txt.xz"])
def test_entity_scores_on_real_files_agree_with_seqeval(name: str) -> None:
    judge = pytest.importorskip("seqeval.metrics")
    if not (DATA / "tagging" / name).exists():
        pytest.skip(f"the data file tagging/{name} is not here")
    with lzma.open(DATA / "tagging" / name, "rt", encoding="utf-8") as file:
        text = file.read()
    gold = [[line.split()[-1] for line in block.splitlines()] for block in re.split(r"\n\s*\n", text) if block.strip()]
    random, known = np.random.default_rng(0), sorted({tag for sentence in gold for tag in sentence})
    predicted = [[tag if random.random() < 0.9 else str(random.choice(known)) for tag in row] for row in gold]
    assert metrics.tagging(gold, predicted)["f1"] == pytest.approx(judge.f1_score(gold, predicted), abs=1e-12)


@pytest.mark.parametrize(
    ("gold", "said", "f1", "exact"),
    [
        (["the Norman Conquest"], "Norman conquest!", 1, 1),  # case, punctuation and articles do not count
        (["in 1066", "1066"], "1066", 1, 1),  # the best of several answers
        (["a b c d"], "b c x", 2 * 2 / 6, 0),  # "a" is an article: b c d against b c x
        (["to be or not to be"], "to to to", 2 * 2 / 9, 0),  # a word counts as often as both have it
        (["theatre"], "atre", 0, 0),  # an article inside a word stays
        (["U.S.A."], "USA", 1, 1),
        ([], "", 1, 1),  # nothing to find, nothing said
        ([], "something", 0, 0),
        (["something"], "", 0, 0),
        ([], "the", 1, 1),  # an article alone says nothing
        (["the", ""], "", 1, 1),
    ],
)
def test_english_answers_are_scored_by_squads_rules(gold: list[str], said: str, f1: float, exact: float) -> None:
    scores = metrics.answers([gold], [said], chinese=False)
    assert (scores["f1"], scores["exact"]) == pytest.approx((f1, exact))
    assert list(scores)[:2] == ["f1", "exact"]


@pytest.mark.parametrize(
    ("gold", "said", "f1", "exact"),
    [
        (["北京大学"], "北京，大学。", 1, 1),  # punctuation does not count
        (["北京大学"], "北京", 2 * 2 / 6, 0),
        (["北京大学"], "大学在北京", 2 * 2 / 9, 0),  # the longest common run, not a bag of characters
        (["使用BERT模型"], "bert模型", 2 * 3 / 8, 0),  # 使 用 bert 模 型: a Latin word is one piece
        (["约3.5米"], "35米", 2 * 1 / 5, 0),  # a number is one piece, and its point counts
        (["1998年", "98年"], "1998", 2 * 1 / 3, 0),
        (["《红楼梦》"], "红楼梦", 1, 1),
        ([], "没有", 0, 0),
        (["有"], "", 0, 0),
    ],
)
def test_chinese_answers_are_scored_by_cmrcs_rules(gold: list[str], said: str, f1: float, exact: float) -> None:
    scores = metrics.answers([gold], [said], chinese=True)
    assert (scores["f1"], scores["exact"]) == pytest.approx((f1, exact))


def squad_f1_told_anew(gold: str, said: str) -> float:
    """SQuAD 2.0's F1 from its published description: precision and recall over words, spelled out."""
    bags = []
    for text in (gold, said):
        letters = "".join(" " if c.isspace() else c for c in text.lower() if c.isspace() or c.isalnum())
        bags.append([word for word in letters.split() if word not in {"a", "an", "the"}])
    if not bags[0] or not bags[1]:
        return float(bags[0] == bags[1])
    same = sum(min(bags[0].count(word), bags[1].count(word)) for word in set(bags[0]))
    precision, recall = same / len(bags[1]), same / len(bags[0])
    return 2 * precision * recall / (precision + recall) if same else 0.0


sentence = st.lists(st.sampled_from(["a", "The", "an", "cat", "Cat,", "theme", "4", "-", "cat's"]), max_size=6).map(
    " ".join
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(sentence, max_size=3), sentence), min_size=1, max_size=6))
def test_answers_agree_with_a_second_telling_of_the_rules(questions: list[tuple[list[str], str]]) -> None:
    gold, said = map(list, zip(*questions))
    real = [[option for option in options if not squad_f1_told_anew(option, "")] or [""] for options in gold]
    expected = [max(squad_f1_told_anew(option, one) for option in options) for options, one in zip(real, said)]
    assert metrics.answers(gold, said, chinese=False)["f1"] == pytest.approx(np.mean(expected))


def test_answerable_and_unanswerable_questions_are_also_told_apart() -> None:
    scores = metrics.answers([["a cat"], ["two dogs"], [], []], ["cat", "dogs", "", "mouse"])
    assert scores["f1_answerable"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["exact_answerable"] == scores["accuracy_unanswerable"] == 0.5
    assert metrics.answers([[]], [""]).absent.keys() == {"f1_answerable", "exact_answerable"}


def test_the_language_of_answers_is_found_in_the_gold_file() -> None:
    gold, said = [["北京大学"], ["1998年"], ["BERT"]], ["京大", "1998", "bert"]
    assert metrics.answers(gold, said) == metrics.answers(gold, said, chinese=True)
    assert metrics.answers([["cat"], ["dog"], ["猫"]], ["a cat", "", "猫"]) == {"f1": 2 / 3, "exact": 2 / 3}


@settings(deadline=None)
@given(st.text("甲乙ab1 ", max_size=12), st.text("甲乙ab1 ", max_size=12))
def test_the_common_run_is_the_longest_one(left: str, right: str) -> None:
    pieces = [re.findall("[甲乙]|[ab1]+", side) for side in (left, right)]
    runs = [{tuple(p[i:j]) for i in range(len(p)) for j in range(i + 1, len(p) + 1)} for p in pieces]
    longest = max(map(len, runs[0] & runs[1]), default=0)
    if all(pieces):
        expected = 2 * longest / sum(map(len, pieces))
        assert metrics.answers([[left]], [right], chinese=True)["f1"] == pytest.approx(expected)


def test_choice_pairs_and_perplexity() -> None:
    assert metrics.choice([0, 2, 1, 1], [0, 1, 1, 1]) == {"accuracy": 0.75}
    assert metrics.minimal_pairs([-1.0, -2.0, -3.0, -4.0], [-2.0, -2.0, -1.0, -9.0]) == {"accuracy": 0.5, "ties": 0.25}
    assert metrics.perplexity(math.log(7)) == pytest.approx(7)
    assert metrics.perplexity(1e4) == math.inf


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (lambda: metrics.classification(["a"], ["a", "a"], ["a"]), "1 gold rows and 2 predicted"),
        (lambda: metrics.classification([], [], ["a"]), "at least one"),
        (
            lambda: metrics.classification(["pos", "postive"], ["pos"] * 2, ["neg", "pos"]),
            "Row 2.*gold.*'postive'.*pos",
        ),
        (lambda: metrics.classification(["pos"], ["x"], ["neg", "pos"]), "Row 1.*predicted.*'x'"),
        (lambda: metrics.classification(["a"], ["a"], ["a", "a"]), "once"),
        (lambda: metrics.classification(["a"], ["a"], ["a", "b"], [[1, 2, 3]]), r"\(1, 3\).*\(1, 2\)"),
        (lambda: metrics.classification(["a"], ["a"], ["a", "b"], [[1, np.nan]]), "Row 1.*'b'.*nan"),
        (lambda: metrics.multi_label([{"a"}, {"z"}], [{"a"}, set()], ["a", "b"]), "Row 2.*'z'.*a, b"),
        (lambda: metrics.multi_label(["ab"], [{"a"}], ["a"]), "set of labels"),
        (lambda: metrics.regression([1.0, np.inf], [1.0, 1.0]), "Row 2.*gold.*inf"),
        (lambda: metrics.tagging([["O"], ["O", "O"]], [["O"], ["O"]]), "Sentence 2 has 2 gold tags and 1"),
        (lambda: metrics.tagging([[]], [[]]), "every sentence is empty"),
        (lambda: metrics.answers(["cat"], ["cat"]), "Question 1.*list"),
        (lambda: metrics.answers([["cat"]], ["cat"], chinese="yes"), "'yes'.*'auto'"),
        (lambda: metrics.perplexity(math.nan), "nan"),
    ],
)
def test_mistakes_are_reported_with_the_row_the_value_and_the_fix(mistake, told: str) -> None:
    with pytest.raises(UserError, match=f"(?s){told}"):
        mistake()


def test_no_metric_names_a_label_by_its_number() -> None:
    rows = metrics.per_class(["b", "a"], ["b", "b"], ["a", "b"]) + metrics.per_type([["B-PER"]], [["B-LOC"]])
    assert [row["label"] for row in rows] == ["a", "b", "LOC", "PER"]
    assert Counter(type(row["label"]) for row in rows) == {str: 4}
