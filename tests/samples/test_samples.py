"""The embedded sample data is what its README says: enough of it, true to its formats, and never twice the same."""

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from bertkit import samples
from bertkit.errors import UserError

FOLDER = Path(samples.__file__).parent
FOLDERS = sorted(entry.name for entry in FOLDER.iterdir() if entry.is_dir() and not entry.name.startswith("_"))
NEAR = 0.6  # character 5-gram Jaccard above which two texts count as the same one

# The least number of rows, per language.
LEAST_ROWS = {
    "messages_train.csv": {"en": 600, "zh": 450},
    "messages_dev.csv": {"en": 100, "zh": 70},
    "messages_test.csv": {"en": 100, "zh": 70},
    "pairs_train.csv": {"en": 160, "zh": 120},
    "pairs_dev.csv": {"en": 40, "zh": 30},
    "similar_dev.csv": {"en": 40, "zh": 30},
    "senses.csv": {"en": 120, "zh": 120},
    "entities_train.conll": {"en": 220, "zh": 170},
    "entities_dev.conll": {"en": 40, "zh": 30},
    "entities_test.conll": {"en": 40, "zh": 30},
    "questions_train.json": {"en": 200, "zh": 120},
    "questions_dev.json": {"en": 50, "zh": 30},
    "choices_train.jsonl": {"en": 60, "zh": 40},
    "choices_dev.jsonl": {"en": 20, "zh": 15},
    "fresh.txt": {"en": 8, "zh": 8},
}


def table(lang: str, name: str) -> list[dict[str, str]]:
    with (FOLDER / lang / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def sentences(lang: str, name: str) -> list[list[tuple[str, str]]]:
    blocks = (FOLDER / lang / name).read_text(encoding="utf-8").strip("\n").split("\n\n")
    return [[(row.split(" ")[0], row.split(" ")[1]) for row in block.split("\n")] for block in blocks]


def passages(lang: str, name: str) -> list[dict]:
    articles = json.loads((FOLDER / lang / name).read_text(encoding="utf-8"))["data"]
    return [paragraph for article in articles for paragraph in article["paragraphs"]]


def questions(lang: str, name: str) -> list[tuple[str, dict]]:
    return [(passage["context"], question) for passage in passages(lang, name) for question in passage["qas"]]


def choices(lang: str, name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / lang / name).read_text(encoding="utf-8").splitlines()]


def fresh(lang: str, name: str = "fresh.txt") -> list[str]:
    return (FOLDER / lang / name).read_text(encoding="utf-8").splitlines()


ROWS = {".csv": table, ".conll": sentences, ".json": questions, ".jsonl": choices, ".txt": fresh}


def grams(text: str) -> set[str]:
    text = re.sub(r"\s+", " ", text.lower().strip())
    return {text[i : i + 5] for i in range(max(1, len(text) - 4))}


def likeness(a: set[str], b: set[str]) -> float:
    return len(a & b) / len(a | b)


def near_duplicates(texts: list[str]) -> list[tuple[str, str]]:
    # Two sets of unlike sizes cannot overlap enough, so sorted by size the search may stop early.
    known = sorted(((text, grams(text)) for text in texts), key=lambda pair: len(pair[1]))
    found = []
    for i, (a, x) in enumerate(known):
        for b, y in known[i + 1 :]:
            if len(y) * NEAR > len(x):
                break
            if likeness(x, y) > NEAR:
                found.append((a, b))
    return found


def test_the_search_for_near_duplicates_finds_what_differs_by_a_word_and_only_that() -> None:
    a, b = (
        "The ferry to the island leaves at nine in the morning.",
        "The ferry to the island leaves at ten in the morning.",
    )
    other = "Grandmother keeps the button jar on the highest shelf of all."
    assert [set(pair) for pair in near_duplicates([a, other, b])] == [{a, b}]


def test_every_language_listed_has_a_folder_and_every_folder_is_listed() -> None:
    assert sorted(samples.LANGUAGES) == FOLDERS


@pytest.mark.parametrize("lang", FOLDERS)
@pytest.mark.parametrize("name", LEAST_ROWS)
def test_each_file_has_at_least_the_rows_it_promises(lang: str, name: str) -> None:
    rows = ROWS[Path(name).suffix](lang, samples.path(lang, name).name)
    assert len(rows) >= LEAST_ROWS[name][lang]


@pytest.mark.parametrize("lang", FOLDERS)
def test_no_sample_file_has_odd_bytes(lang: str) -> None:
    for file in (FOLDER / lang).iterdir():
        raw = file.read_bytes()
        text = raw.decode("utf-8")
        assert not raw.startswith(b"\xef\xbb\xbf") and "\r" not in text and "\ufffd" not in text, file.name
        assert text.endswith("\n") and not text.endswith("\n\n"), file.name
        assert not re.search(r"[ \t]$", text, re.M), file.name


@pytest.mark.parametrize("lang", FOLDERS)
def test_no_message_is_near_another_in_any_split_or_among_the_fresh(lang: str) -> None:
    rows = [row for split in ("train", "dev", "test") for row in table(lang, f"messages_{split}.csv")]
    assert near_duplicates([row["text"] for row in rows] + fresh(lang)) == []


@pytest.mark.parametrize("lang", FOLDERS)
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_messages_are_about_a_third_spam_and_no_topic_is_rare(lang: str, split: str) -> None:
    rows = table(lang, f"messages_{split}.csv")
    assert set(rows[0]) == {"text", "label", "topic"} and all(all(row.values()) for row in rows)
    labels, topics = Counter(row["label"] for row in rows), Counter(row["topic"] for row in rows)
    assert len(labels) == 2 and 0.30 <= min(labels.values()) / len(rows) <= 0.40
    assert len(topics) == 8 and min(topics.values()) >= 0.06 * len(rows)
    assert max(topics.values()) <= 0.2 * len(rows)


@pytest.mark.parametrize("lang", FOLDERS)
def test_both_labels_occur_in_every_topic(lang: str) -> None:
    rows = table(lang, "messages_train.csv")
    assert len({(row["label"], row["topic"]) for row in rows}) == 16


@pytest.mark.parametrize("lang", FOLDERS)
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_entity_tags_are_bio2_and_every_kind_occurs(lang: str, split: str) -> None:
    kinds: Counter[str] = Counter()
    for sentence in sentences(lang, f"entities_{split}.conll"):
        before = "O"
        for word, tag in sentence:
            assert word and re.fullmatch(r"O|[BI]-(PER|ORG|LOC|DATE)", tag), (word, tag)
            assert not tag.startswith("I-") or before[2:] == tag[2:], (sentence, word)
            kinds[tag] += tag.startswith("B-")
            before = tag
    assert all(kinds[f"B-{kind}"] >= 5 for kind in ("PER", "ORG", "LOC", "DATE"))
    assert any(all(tag == "O" for _, tag in s) for s in sentences(lang, f"entities_{split}.conll"))


@pytest.mark.parametrize("lang", FOLDERS)
def test_no_entity_sentence_is_near_another(lang: str) -> None:
    every = [s for split in ("train", "dev", "test") for s in sentences(lang, f"entities_{split}.conll")]
    assert near_duplicates([" ".join(word for word, _ in s) for s in every]) == []


@pytest.mark.parametrize("lang", FOLDERS)
@pytest.mark.parametrize("split", ["train", "dev"])
def test_every_answer_stands_where_its_offset_says(lang: str, split: str) -> None:
    rows = questions(lang, f"questions_{split}.json")
    for context, question in rows:
        assert question["is_impossible"] == (question["answers"] == []), question["id"]
        for answer in question["answers"]:
            start = answer["answer_start"]
            assert answer["text"].strip() and context[start : start + len(answer["text"])] == answer["text"]
    assert 0.15 <= sum(question["is_impossible"] for _, question in rows) / len(rows) <= 0.25


@pytest.mark.parametrize("lang", FOLDERS)
def test_no_question_or_passage_is_repeated(lang: str) -> None:
    both = ("questions_train.json", "questions_dev.json")
    every = [question for name in both for _, question in questions(lang, name)]
    contexts = [passage["context"] for name in both for passage in passages(lang, name)]
    assert len({question["id"] for question in every}) == len(every)
    assert near_duplicates(contexts) == [] and len(contexts) >= 40
    asked = Counter((context, question["question"]) for name in both for context, question in questions(lang, name))
    assert max(asked.values()) == 1


@pytest.mark.parametrize("lang", FOLDERS)
def test_no_pair_of_sentences_is_repeated(lang: str) -> None:
    rows = [row for split in ("train", "dev") for row in table(lang, f"pairs_{split}.csv")]
    halves = [(grams(row["text"]), grams(row["text_b"]), row) for row in rows + table(lang, "similar_dev.csv")]
    repeated = [
        (p, q) for (a, b, p), (c, d, q) in combinations(halves, 2) if min(likeness(a, c), likeness(b, d)) > NEAR
    ]
    assert repeated == []
    assert all(row["text"] != row["text_b"] for row in rows)


@pytest.mark.parametrize("lang", FOLDERS)
def test_no_first_sentence_of_a_pair_is_in_both_splits(lang: str) -> None:
    train, dev = ({row["text"] for row in table(lang, f"pairs_{split}.csv")} for split in ("train", "dev"))
    assert not train & dev


@pytest.mark.parametrize("lang", FOLDERS)
@pytest.mark.parametrize("split", ["train", "dev"])
def test_pairs_have_two_labels_in_balance(lang: str, split: str) -> None:
    labels = Counter(row["label"] for row in table(lang, f"pairs_{split}.csv"))
    assert len(labels) == 2 and min(labels.values()) >= 0.4 * labels.total()


@pytest.mark.parametrize("lang", FOLDERS)
def test_similarity_scores_lie_between_zero_and_five_and_use_the_range(lang: str) -> None:
    scores = [float(row["label"]) for row in table(lang, "similar_dev.csv")]
    assert min(scores) >= 0 and max(scores) <= 5
    assert min(scores) <= 1 and max(scores) >= 4.5 and len(set(scores)) >= 5


@pytest.mark.parametrize("lang", FOLDERS)
def test_choices_are_four_different_ones_and_the_answer_hides_in_no_favourite_place(lang: str) -> None:
    rows = [row for split in ("train", "dev") for row in choices(lang, f"choices_{split}.jsonl")]
    assert all(len(set(row["choices"])) == len(row["choices"]) == 4 for row in rows)
    places = Counter(row["label"] for row in rows)
    assert set(places) == {0, 1, 2, 3} and max(places.values()) <= 0.4 * len(rows)
    assert near_duplicates([row["text"] for row in rows]) == []


@pytest.mark.parametrize("lang", FOLDERS)
def test_passages_are_enough_for_a_demo_and_no_document_is_repeated(lang: str) -> None:
    text = (FOLDER / lang / "passages.txt").read_text(encoding="utf-8")
    documents = text.strip("\n").split("\n\n")
    assert len(text.encode()) >= 60_000 and len(documents) >= 60
    assert near_duplicates(documents) == []


@pytest.mark.parametrize(("lang", "name"), [("xx", "fresh.txt"), ("en", "mesages_train.csv"), ("en", ""), ("en", "..")])
def test_a_sample_that_is_not_there_is_a_users_mistake_with_a_way_out(lang: str, name: str) -> None:
    with pytest.raises(UserError, match=r"Did you mean|Choose from"):
        samples.path(lang, name)


def test_looking_up_a_sample_loads_nothing_heavy() -> None:
    code = "import sys; from bertkit import samples; samples.path('en', 'fresh.txt'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "sklearn", "transformers"} & set(loaded)


@pytest.mark.parametrize("lang", FOLDERS)
def test_each_ambiguous_word_stands_once_in_each_of_its_six_sentences(lang: str) -> None:
    rows = table(lang, "senses.csv")
    assert set(Counter((row["word"], row["sense"]) for row in rows).values()) == {3}
    assert set(Counter(row["word"] for row in rows).values()) == {6}
    for row in rows:
        pattern = row["word"] if lang == "zh" else rf"\b{row['word']}\b"
        assert len(re.findall(pattern, row["text"], re.IGNORECASE)) == 1, row
    assert near_duplicates([row["text"] for row in rows]) == []
