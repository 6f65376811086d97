"""Readers of rows and tagged sentences: each format, and an error with file, line and fix for each bad row."""

import csv
import io
import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertkit.data.examples import TaggedSentence, TextRow
from bertkit.data.readers import read_rows, read_tagged
from bertkit.data.readers.frames import in_memory
from bertkit.data.readers.questions import read_choices, read_questions
from bertkit.data.write_rows import open_writer
from bertkit.errors import DamagedFile, UserError
from bertkit.files.atomic import PACKERS
from bertkit.tasks.base import Reading
from bertkit.tasks.classify import Classify

quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)
printable = st.text(st.characters(exclude_characters="\0\r\ufeff", exclude_categories=["Cs"]))


# ---- rows


@quiet
@given(rows=st.lists(st.tuples(printable, st.sampled_from(["a", "b"])), min_size=1, max_size=8))
def test_what_the_csv_module_writes_is_read_back(put: Any, rows: list[tuple[str, str]]) -> None:
    buffer = io.StringIO()
    csv.writer(buffer).writerows([("text", "label"), *rows])
    read = list(read_rows(put("a.csv", buffer.getvalue())))
    assert [(row.text, row.label) for row in read] == rows


def test_a_boolean_label_is_the_same_name_in_every_format(put: Any, tmp_path: Path) -> None:
    rows = [{"text": "one", "label": True}, {"text": "two", "label": False}]
    files = [put("a.csv", "text,label\none,True\ntwo,FALSE\n"), put("b.tsv", "text\tlabel\none\ttrue\ntwo\tFalse\n")]
    for name in ("a.jsonl", "a.parquet", "a.xlsx"):
        with open_writer(tmp_path / name) as out:
            for row in rows:
                out.write(row)
        files.append(tmp_path / name)
    with in_memory(
        {"train": rows, "dev": [{"text": "one", "label": "True"}, {"text": "two", "label": "false"}]}
    ) as held:
        for path in [*files, *held.values()]:
            assert [row.label for row in read_rows(path)] == ["true", "false"], path
            several = [row.label for row in read_rows(path, multi_label=True)]
            assert several == [("true",), ("false",)], path


def test_a_model_that_was_trained_on_True_still_scores_every_format(put: Any, tmp_path: Path) -> None:
    earlier = Classify(labels=("False", "True"))
    with open_writer(tmp_path / "a.parquet") as out:
        out.write({"text": "one", "label": True})
    for path in (
        put("a.csv", "text,label\none,True\n"),
        put("b.csv", "text,label\none,true\n"),
        tmp_path / "a.parquet",
    ):
        assert [row.label for row in earlier.read(path, Reading())] == ["True"], path


def test_a_csv_row_remembers_the_line_it_begins_at(put: Any) -> None:
    path = put("a.csv", 'text,label\r\n"two\nlines",x\r\n\r\nnext,y\r\n')
    assert list(read_rows(path)) == [TextRow("two\nlines", label="x", line=2), TextRow("next", label="y", line=5)]


def test_in_a_tsv_a_quote_is_a_character(put: Any) -> None:
    path = put("a.tsv", 'text\tlabel\n"he said\t1\n""\t0\n')
    assert [row.text for row in read_rows(path)] == ['"he said', '""']


def test_columns_by_number_read_files_without_header(put: Any) -> None:
    path = put("a.tsv", "src\t1\t\tfirst text\nsrc\t0\t*\tsecond\n")
    assert [(r.text, r.label) for r in read_rows(path, text="4", label="2")] == [("first text", "1"), ("second", "0")]
    path = put("pairs.txt", "one\ttwo\t1\nthree\tfour\t0\n")
    rows = list(read_rows(path, text="1", text_b="2", label="3"))
    assert rows[1] == TextRow("three", "four", "0", line=2)


def test_a_header_is_noticed_even_when_columns_are_numbers(put: Any, notes: list[str]) -> None:
    path = put("a.tsv", "label\tsentence\n1\tgood\n")
    assert [(r.text, r.label) for r in read_rows(path, text="2", label="1")] == [("good", "1")]
    assert "header" in notes[0]
    assert len(list(read_rows(path, text="2", label="1", header=False))) == 2


@pytest.mark.parametrize(
    ("header", "pair"),
    [
        ("sentence\tlabel", False),
        ("text_a\tgold_label", False),
        ("Text\tLABEL", False),
        ("sentence1\tsentence2\tscore", True),
        ("question\tsentence\tlabel", True),
        ("#1 String\t#2 String\tQuality", True),
        ("premise\thypothesis\tgold_label", True),
        ("文本\t标签", False),
        ("句子1\t句子2\t类别", True),
    ],
)
def test_well_known_column_names_are_used_and_reported(put: Any, notes: list[str], header: str, pair: bool) -> None:
    path = put("a.tsv", header + "\n" + ("one\ttwo\t1\n" if pair else "one\t1\n"))
    assert list(read_rows(path, text_b="text_b" if pair else None)) == [
        TextRow("one", "two" if pair else None, "1", line=2)
    ]
    assert "reading text from column" in notes[0]


def test_two_candidates_for_the_text_are_not_guessed_between(put: Any) -> None:
    with pytest.raises(UserError, match=r"no column 'text'.*question \| sentence \| label.*--text NAME"):
        list(read_rows(put("a.tsv", "question\tsentence\tlabel\na\tb\tc\n")))


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "text,label\na,b\nc\n", {}, r"line 3: 1 columns, but the first line has 2"),
        ("a.tsv", "text\tlabel\na\tb\tc\n", {}, r"line 2: 3 columns.*no quoting"),
        ("a.csv", 'text,label\n"open,b\n', {}, r"line 2: not a CSV row.*quote"),
        ("a.csv", "text，label\n好，正面\n", {}, r"line 1: the cells are separated by the full-width comma"),
        ("a.csv", "txt,label\na,b\n", {}, r"no column 'text'. Did you mean 'txt'\?"),
        ("a.tsv", "ham\thello\nspam\tbuy\n", {}, r"header.*ham \| hello.*--text 2 --label 1"),
        ("a.tsv", "hello there\tham\nbuy\tspam\n", {}, r"header.*--text 1 --label 2"),
        ("a.tsv", "how are you\thow old\t1\n", {"text_b": "text_b"}, r"--text 1 --text-b 2 --label 3"),
        ("a.csv", "id,message body,is spam\n1,a,b\n", {}, r"header.*--text 2 --label 3"),
        ("a.csv", "text,label\na,\n", {}, r"line 2: 'label' has no label"),
        ("a.csv", "text,label\na,4.x\n", {"number": True}, r"line 2: 'label' is '4.x'; it must be a number"),
        ("a.csv", "text,label\na,nan\n", {"number": True}, r"line 2.*number"),
        ("a.csv", "text,label\n", {}, r"no rows"),
        ("a.csv", "text,text,label\na,b,c\n", {}, r"two columns are named 'text'"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"\n', {}, r"line 2: not JSON"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"label": 1}\n', {}, r"line 2: there is no 'text'"),
        ("a.jsonl", '{"text": 5, "label": 1}\n', {}, r"line 1: 'text' is 5; it must be text"),
        ("a.jsonl", '{"text": "\\ud800", "label": 1}\n', {}, r"line 1: \\ud800 is half of a surrogate pair"),
        ("a.jsonl", '{"text": "a\\u0000", "label": 1}\n', {}, r"line 1: the text contains a NUL"),
        ("a.jsonl", '{"text": "a", "label": NaN}\n', {}, r"line 1: not valid JSON: NaN"),
        ("a.jsonl", '["text"]\n', {}, r"line 1: .*object"),
        ("a.jsonl", '{"text": "a", "label": ["x"]}\n', {}, r"line 1.*--multi-label"),
        ("a.jsonl", '{"a":' * 100000 + "\n", {}, r"line 1: not (valid )?JSON"),
        ("a.txt", "only texts\n", {}, r"labels are needed"),
        ("a.docx", "x", {}, r"cannot tell the format from the ending 'docx'"),
        ("a.csv", "text,label\na,b\n", {"text": "9"}, r"no column '9'"),
        ("a.csv", "text,label\na,b\n", {"label": "text"}, r"used twice"),
    ],
)
def test_a_bad_row_is_an_error_with_its_line(put: Any, name: str, content: str, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(read_rows(put(name, content), **options))


def test_json_labels_keep_the_spelling_of_the_file(put: Any) -> None:
    values = [0, True, "x ", 1.5]
    path = put("a.jsonl", "".join(json.dumps({"text": "t", "label": value}) + "\n" for value in values))
    assert [row.label for row in read_rows(path)] == ["0", "true", "x", "1.5"]


def test_a_json_file_may_be_lines_or_one_list(put: Any) -> None:
    rows = [{"id": {"$oid": "7"}, "text": "a", "label": "x"}, {"id": 8, "text": "b", "label": "y"}]
    lines = put("lines.json", "\n".join(map(json.dumps, rows)))
    whole = put("list.json", json.dumps(rows, indent=1))
    assert (
        list(read_rows(lines))
        == list(read_rows(whole))
        == [
            TextRow("a", None, "x", 1),
            TextRow("b", None, "y", 2),
        ]
    )


def test_several_labels_come_from_lists_and_bars_alike(put: Any) -> None:
    listed = put("a.jsonl", '{"text": "t", "label": ["a", "b", "a"]}\n{"text": "t", "label": []}\n')
    barred = put("a.csv", "text,label\nt,a | b\nt,\n")
    for path in (listed, barred):
        assert [row.label for row in read_rows(path, multi_label=True)] == [("a", "b"), ()]


def test_labels_are_optional_where_they_may_be_absent(put: Any) -> None:
    unlabelled = put("a.csv", "text,other\na,b\n")
    assert next(iter(read_rows(unlabelled, labelled="maybe"))).label is None
    assert next(iter(read_rows(put("b.csv", "text,label\na,b\n"), labelled="maybe"))).label == "b"
    assert next(iter(read_rows(put("c.csv", "text,label\na,b\n"), labelled=False))).label is None
    assert [r.text for r in read_rows(put("d.txt", "one\tstill one\n\ntwo\n"), labelled="maybe")] == [
        "one\tstill one",
        "two",
    ]


def test_empty_texts_are_counted_and_reported(put: Any, notes: list[str]) -> None:
    path = put("a.tsv", "text\tlabel\nb\tx\n \tx\n")
    assert [row.text for row in read_rows(path)] == ["b", " "]
    assert any("1 of 2 rows have an empty text" in note for note in notes)


def test_a_label_the_first_object_has_not_is_read_from_those_that_have_it(put: Any) -> None:
    path = put("a.jsonl", '{"text": "a"}\n{"text": "b", "label": "x"}\n')
    assert [row.label for row in read_rows(path, labelled="maybe")] == [None, "x"]
    with pytest.raises(UserError, match="'label'"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("content", "numbers", "first"),
    [
        ("where is it?,question\nso it is,answer\n", ("1", "2"), 1),
        ("question,label\nwhere is it?,a\n", ("1", "2"), 2),
        ("id,sentence,stars\n1,fine,5\n", ("2", "3"), 2),
        ("id,words,label\n1,fine,5\n", ("2", "3"), 2),
        ("1,fine,5\n2,bad,1\n", ("2", "3"), 1),
    ],
)
def test_columns_by_number_lose_no_row_to_a_label_that_looks_like_a_name(content, numbers, first, put: Any) -> None:
    text, label = numbers
    assert next(read_rows(put("a.csv", content), text=text, label=label)).line == first


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_csv_with_other_separators_is_read_and_reported(put: Any, notes: list[str], separator: str) -> None:
    path = put("a.csv", f"text{separator}label\na, b{separator}x\n")
    assert [(row.text, row.label) for row in read_rows(path)] == [("a, b", "x")]
    assert "separated by" in notes[0]


def test_parquet_rows_are_read_in_batches_and_numbered(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table({"sentence": [f"t{n}" for n in range(3000)], "label": list(range(3000))})
    pq.write_table(table, tmp_path / "a.parquet")
    rows = list(read_rows(tmp_path / "a.parquet"))
    assert len(rows) == 3000
    assert rows[-1] == TextRow("t2999", label="2999", line=3000)


@pytest.mark.parametrize("ending", list(PACKERS))
def test_parquet_is_read_packed_too_and_leaves_nothing_behind(ending: str, tmp_path: Path, monkeypatch) -> None:
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    with open_writer(tmp_path / "a.parquet") as out:
        for number in range(2000):
            out.write({"text": f"text {number}", "label": number % 2})
    path = tmp_path / f"a.parquet{ending}"
    with path.open("wb") as file, PACKERS[ending](file) as packed:
        packed.write((tmp_path / "a.parquet").read_bytes())
    rows = read_rows(path)
    assert next(rows) == next(read_rows(tmp_path / "a.parquet"))
    assert [row.text for row in rows] == [f"text {number}" for number in range(1, 2000)]
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DamagedFile, match=rf"a\.parquet\{ending} could not be unpacked"):
        list(read_rows(path))
    assert list(room.iterdir()) == []


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "txt", "parquet"])
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path, kind: str) -> None:
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.{kind}"
        if kind == "txt":
            path.write_text("".join(f"text {n} {'x' * 50}\n" for n in range(count)))
        else:
            with open_writer(path) as out:
                for n in range(count):
                    out.write({"text": f"text {n} {'x' * 50}", "label": n % 2})
        tracemalloc.start()
        rows = sum(1 for _ in read_rows(path, labelled="maybe"))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert rows == count
        return most

    peak(10)  # what is imported once
    # 9,000 rows more hold over 540 KB of text; the few KB of noise come from caches of the interpreter.
    assert peak(12_000) - peak(3000) < 100_000


# ---- tagged sentences


def test_conll_columns_give_the_first_word_and_the_last_tag(put: Any) -> None:
    path = put("eng.train", "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n\nOk UH O O")
    first = TaggedSentence(("EU", "rejects"), ("I-ORG", "O"), 3)
    assert list(read_tagged(path)) == [first, TaggedSentence(("Ok",), ("O",), 7)]
    assert next(iter(read_tagged(path, tag_column=2))).tags == ("NNP", "VBZ")


def test_a_wide_space_can_be_a_word(put: Any) -> None:
    assert next(iter(read_tagged(put("a.txt", "中 O\n\u3000x O\n")))).tokens == ("中", "\u3000x")


def test_conllu_skips_comments_ranges_and_empty_nodes(put: Any) -> None:
    def row(number: str, form: str, tag: str) -> str:
        return "\t".join([number, form, "_", tag, *"______"]) + "\n"

    rows = [row("1-2", "don't", "_"), row("1", "do", "AUX"), row("2", "n't", "PART"), row("2.1", "gap", "X")]
    path = put("a.conllu", "# sent_id = 1\n" + "".join(rows) + "\n")
    assert list(read_tagged(path)) == [TaggedSentence(("do", "n't"), ("AUX", "PART"), 3)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.conll", "EU NNP O\nrejects O\n", r"line 2: 2 columns, but the lines before have 3"),
        ("a.conllu", "1\tEU\tO\n", r"line 1: 3 columns, but CoNLL-U has 10"),
        ("a.conllu", "x\t" * 9 + "y\n", r"line 1: 'x' is not a CoNLL-U word number"),
        ("a.conll", "EU\nrejects\n", r"line 1: the words have no tags"),
        ("a.conll", "\n\n-DOCSTART- O\n", r"no sentence"),
        ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}', r"line 1: 2 tokens and 1 tags"),
        ("a.jsonl", '{"tokens": "a b", "tags": []}', r"line 1: 'tokens' is 'a b'; it must be a list"),
        ("a.jsonl", '{"tokens": [], "tags": []}', r"line 1: no words"),
        ("a.conll", "word\t\n", r"line 1: the word 'word' has no tag"),
    ],
)
def test_a_ragged_tagged_file_names_its_line(put: Any, name: str, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(read_tagged(put(name, content)))


def test_untagged_words_are_read_where_tags_are_optional(put: Any) -> None:
    assert list(read_tagged(put("a.conll", "EU\nrejects\n"), labelled="maybe")) == [
        TaggedSentence(("EU", "rejects"), None, 1)
    ]
    path = put("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}')
    assert list(read_tagged(path, labelled=False)) == [TaggedSentence(("a",), None, 1)]


def test_empty_lines_of_a_text_file_are_skipped_and_counted(put: Any, notes: list[str]) -> None:
    path = put("a.txt", "one\n\n  \ntwo\n")
    assert [(r.text, r.line) for r in read_rows(path, labelled=False)] == [("one", 1), ("two", 4)]
    assert notes == [f"{path}: 2 empty lines were skipped."]


def test_a_text_in_the_place_of_a_file_is_said_not_to_exist(put: Any) -> None:
    with pytest.raises(UserError, match=r"今天天气很好 does not exist"):
        list(read_rows("今天天气很好", labelled=False))


def test_questions_in_a_table_are_refused_as_such(put: Any) -> None:
    for read, name in ((read_questions, "questions"), (read_choices, "choices")):
        with pytest.raises(UserError, match=rf"the {name} are read from .jsonl and .json, not from .csv"):
            list(read(put("a.csv", "question,context\na,b\n")))
