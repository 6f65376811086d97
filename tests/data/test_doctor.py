"""Doctor: counts that can be checked by hand, whatever the form of the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertkit import cli, notify
from bertkit.commands import doctor
from bertkit.data.inspect import inspect_file
from bertkit.data.readers import form_of
from bertkit.errors import UserError


class Words:
    """A tokenizer of words between spaces."""

    def pieces_batch(self, texts: list[str]) -> list[list[int]]:
        return [[len(word) for word in text.split()] for text in texts]


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_labels_duplicates_and_conflicts_are_counted(tmp_path: Path) -> None:
    rows = ["good,pos", "bad,neg", "good ,pos", "good,neg", ",pos", "new,pos"]
    report = inspect_file(put(tmp_path, "a.csv", "text,label\n" + "\n".join(rows) + "\n"))
    assert (report.rows, report.columns, report.kind) == (6, ["text", "label"], "csv")
    assert report.labels == {"pos": 4, "neg": 2}
    assert (report.duplicates, report.conflicts, report.empty) == (2, 1, 1)


def test_overlap_with_other_files_is_counted_in_rows(tmp_path: Path) -> None:
    train = put(tmp_path, "train.csv", "text,label\na,x\nb,y\nc,x\n")
    dev = put(
        tmp_path, "dev.jsonl", '{"text": "b", "label": 1}\n{"text": "b", "label": 2}\n{"text": "z", "label": 1}\n'
    )
    report = inspect_file(dev, others=[train])
    assert report.overlaps == {str(train): 2}
    assert any("also in" in line and "2 rows" in line for line in report.lines())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(1, 700), min_size=1, max_size=60))
def test_lengths_and_cuts_agree_with_numpy(tmp_path: Path, lengths: list[int]) -> None:
    rows = "".join(json.dumps({"text": "w " * n, "label": 0}) + "\n" for n in lengths)
    report = inspect_file(put(tmp_path, "a.jsonl", rows), tokenizer=Words())
    tokens = np.array(lengths) + 2
    found = next(each for each in report.lengths if each.unit == "tokens")
    for share, value in found.percentiles.items():
        assert value == np.percentile(tokens, share, method="inverted_cdf")
    assert found.mean == pytest.approx(tokens.mean())
    for cut in report.cuts:
        assert cut.rows == (tokens > cut.limit).sum()
        assert cut.tokens == np.maximum(tokens - cut.limit, 0).sum()


def test_pairs_are_noticed_by_their_names_and_counted_together(tmp_path: Path) -> None:
    path = put(tmp_path, "a.tsv", "sentence1\tsentence2\tlabel\na b\tc\t1\na b\td\t1\n")
    report = inspect_file(path, tokenizer=Words())
    assert report.duplicates == 0
    assert report.lengths[1].percentiles[100] == 3 + 3  # three words, [CLS] and two [SEP]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("bell \x07", "control characters"),
        ("cafÃ©", "text decoded twice (Ã©, â€™)"),
        ("it â€™ s", "text decoded twice (Ã©, â€™)"),
        ("a <br /> b", "markup (<tag>, &amp;)"),
        ("fish &amp; chips", "markup (<tag>, &amp;)"),
        ("x" * 20001, "very long (over 20,000 characters)"),
    ],
)
def test_suspicious_lines_are_named(tmp_path: Path, text: str, what: str) -> None:
    fine = ["naïve café", "a < b and c > d", "R&D", "汉字"]
    rows = "".join(json.dumps({"text": each}) + "\n" for each in [*fine, text])
    report = inspect_file(put(tmp_path, "a.jsonl", rows))
    assert report.suspicious == {what: {"rows": 1, "lines": [5]}}


def test_the_share_of_chinese_is_of_letters(tmp_path: Path) -> None:
    assert inspect_file(put(tmp_path, "a.txt", "汉字 ab, 12!\n")).cjk_share == 0.5


@pytest.mark.parametrize(
    ("name", "content", "form", "rows"),
    [
        ("a.csv", "text,label\na,b\n", "rows", 1),
        ("a.jsonl", '{"text": "a"}\n', "rows", 1),
        ("a.json", '[{"text": "a"},\n {"text": "b"}]', "rows", 2),
        ("eng.train", "-DOCSTART- O\n\nEU B-ORG\nsays O\n\nok O\n", "tagged sentences", 2),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n', "tagged sentences", 1),
        ("a.jsonl", '{"question": "?", "context": "c"}\n', "questions", 1),
        ("a.json", '{"data": [{"paragraphs":\n [{"context": "c", "qas": [{"question": "?"}]}]}]}', "questions", 1),
        ("a.jsonl", '{"text": "a", "choices": ["b", "c"]}\n', "multiple choices", 1),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": "b"}\n', "minimal pairs", 1),
        ("a.txt", "one two\nthree\n\nfour\n", "documents", 2),
    ],
)
def test_the_form_of_a_file_is_recognised(tmp_path: Path, name: str, content: str, form: str, rows: int) -> None:
    path = put(tmp_path, name, content)
    assert form_of(path)[0].name == form
    assert inspect_file(path).rows == rows


def test_a_bom_is_reported_and_another_encoding_is_read_when_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("\ufefftext,label\na,b\n".encode())
    assert inspect_file(tmp_path / "a.csv").encoding == "utf-8 with BOM"
    (tmp_path / "b.csv").write_bytes("text,label\n今天天气很好我们去公园,b\n".encode("gb18030"))
    with pytest.raises(UserError, match="--encoding gb18030"):
        inspect_file(tmp_path / "b.csv")
    assert inspect_file(tmp_path / "b.csv", encoding="gb18030").encoding == "gb18030"


def test_the_report_is_json_and_sentences(tmp_path: Path) -> None:
    report = inspect_file(put(tmp_path, "a.csv", "text,label\na,b\nc,d\n"), tokenizer=Words())
    again = json.loads(json.dumps(report.asdict()))
    assert again["rows"] == 2
    assert next(iter(report.lines())).endswith("a.csv: 2 rows (csv, utf-8)")
    assert any("nothing is truncated" in line for line in report.lines())


def lines(path: Path) -> str:
    return "\n".join(inspect_file(path).lines())


def test_rare_and_near_identical_labels_are_listed_by_name(tmp_path: Path) -> None:
    counts = {"Billing": 40, "billing": 3, "biling": 1, "Bill ing": 1} | {f"topic {n}": 30 for n in range(14)}
    rows = [f"text {label} {n},{label}" for label, count in counts.items() for n in range(count)]
    path = put(tmp_path, "a.csv", "text,label\n" + "\n".join(rows) + "\n")
    report = inspect_file(path)
    assert report.rare_labels == {"Bill ing": 1, "biling": 1, "billing": 3}
    assert [set(group) for group in report.alike_labels] == [{"Billing", "billing", "biling", "Bill ing"}]
    assert "'biling' (1)" in lines(path) and "…" not in lines(path) and "and 6 more" in lines(path)


def test_a_label_s_share_is_of_all_rows_however_many_labels_there_are(tmp_path: Path) -> None:
    rows = [f"text {n},label {n % 60}" for n in range(120)]
    path = put(tmp_path, "a.csv", "text,label\n" + "\n".join(rows) + "\n")
    assert "60 different: label 0 2 (1.7%)" in lines(path)


def test_labels_beyond_those_that_are_counted_are_not_left_out_of_the_number(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("bertkit.data.inspect.MOST_LABELS", 20)
    rows = [f"text {n},label {n % 25}" for n in range(100)]
    report = inspect_file(put(tmp_path, "a.csv", "text,label\n" + "\n".join(rows) + "\n"))
    shown = "\n".join(report.lines())
    assert "labels: at least 20 different: label 0 4 (4.0%)" in shown and "and more" in shown
    assert "8 more" not in shown
    exact = inspect_file(put(tmp_path, "b.csv", "text,label\n" + "\n".join(rows[:20]) + "\n"))
    assert any("labels: 20 different" in line for line in exact.lines())


def test_labels_in_other_chinese_forms_are_listed_as_one(tmp_path: Path) -> None:
    labels = ["正面"] * 6 + ["负面"] * 6 + ["正 面", "負面", "ＯＫ", "ok"]
    report = inspect_file(
        put(tmp_path, "a.csv", "text,label\n" + "".join(f"好{n},{x}\n" for n, x in enumerate(labels)))
    )
    assert report.alike_labels == [{"正面": 6, "正 面": 1}, {"负面": 6, "負面": 1}, {"ＯＫ": 1, "ok": 1}]


def test_a_chinese_sentence_with_tags_is_as_long_as_it_is_written(tmp_path: Path) -> None:
    report = inspect_file(put(tmp_path, "a.conll", "北 B-LOC\n京 I-LOC\n很 O\n大 O\n。 O\n\n"))
    assert report.lengths[0].mean == 5


def test_pairs_of_a_file_are_counted_and_compared_by_the_command_too(tmp_path: Path) -> None:
    rows = [f'{{"sentence1": "猫{n}", "sentence2": "狗", "label": "a"}}\n' for n in range(9)]
    files = (put(tmp_path, "a.json", "".join(rows)), put(tmp_path, "b.json", "".join(rows[:3])))
    first, second = doctor.run(doctor.Settings(files=files))["files"]
    assert (first["rows"], first["overlaps"], second["overlaps"]) == (9, {str(files[1]): 3}, {str(files[0]): 3})


def test_a_note_that_is_told_twice_is_printed_once(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(notify, "_listener", cli.Terminal())
    doctor.run(doctor.Settings(files=(put(tmp_path, "a.jsonl", '{"text": "", "label": "x"}\n' * 3),)))
    assert capsys.readouterr().err.count("3 of 3 rows have an empty text") == 1


def test_rare_labels_that_are_left_out_of_the_list_are_counted(tmp_path: Path) -> None:
    rows = [f"text {n},label {n % 55}" for n in range(165)]
    path = put(tmp_path, "a.csv", "text,label\n" + "\n".join(rows) + "\n")
    (rare,) = (line for line in lines(path).splitlines() if "rare labels" in line)
    assert rare.count("label ") == 50 and rare.endswith("and 5 more")


def test_every_bad_line_is_listed_not_only_the_first(tmp_path: Path) -> None:
    table = put(tmp_path, "a.csv", "text,label\na,x\nb,x,y\nc,y\nd\ne,x\n")
    report = inspect_file(table)
    assert (report.rows, report.bad_rows) == (3, 2)
    assert "line 3: 3 columns" in lines(table) and "line 5: 1 columns" in lines(table)
    objects = put(tmp_path, "a.jsonl", '{"text": "a"}\n{oops\n{"text": 3}\n[]\n{"text": "b"}\n')
    report = inspect_file(objects)
    assert (report.rows, report.bad_rows) == (2, 3)
    assert all(f"line {n}" in lines(objects) for n in (2, 3, 4))


def test_a_quote_left_open_is_reported_after_the_rows_before_it(tmp_path: Path) -> None:
    report = inspect_file(put(tmp_path, "a.csv", 'text,label\na,x\n"b,x\nc,y\n'))
    assert report.rows == 1 and "Reading stopped here" in report.bad[0]


def test_excels_line_with_the_separator_is_understood(tmp_path: Path) -> None:
    report = inspect_file(put(tmp_path, "a.csv", "sep=;\ntext;label\na, b;x\nc;y\n"))
    assert (report.columns, report.rows, report.labels) == (["text", "label"], 2, {"x": 1, "y": 1})


def test_a_copy_in_capitals_or_with_other_spaces_is_leakage(tmp_path: Path) -> None:
    train = put(tmp_path, "train.csv", "text,label\nFree  prize,x\nb,y\n")
    dev = put(tmp_path, "dev.csv", "text,label\nFREE prize ,x\nz,y\n")
    assert inspect_file(dev, others=[train]).overlaps == {str(train): 1}


def test_spaces_around_labels_empty_labels_and_two_labels_of_one_text_are_named(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "text,label\na,x\nb, x\nc,\nd,y\nA,y\n")
    report = inspect_file(path)
    assert (report.labels, report.spaced_labels, report.unlabelled) == ({"x": 2, "y": 2}, 1, 1)
    assert (report.conflicts, report.conflict_lines) == (1, [6])
    assert "spaces around them: 1 rows" in lines(path) and "first at 6" in lines(path)
