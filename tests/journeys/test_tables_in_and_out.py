"""People's tables go in and come out as they expect: files, sheets, DataFrames."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertkit
from bertkit.ancestors.ngram.model import NgramModel, NgramSettings
from bertkit.commands import evaluate, predict
from bertkit.data.readers.frames import in_memory, read_memory
from bertkit.data.readers.rows import cells_of
from bertkit.errors import UserError
from tests.support import toy


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> toy.Runs:
    return toy.Runs(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def spam(runs) -> Any:
    train = toy.write(runs.folder / "train.csv", toy.messages(40))
    return runs.tune("classify", "spam", train=train, **toy.SMALL | {"steps": 4})


@pytest.fixture(scope="module")
def spam_folder(runs, spam) -> Path:
    return runs.folder / "spam"


ROWS = [
    {"id": "007", "text": "a prize for the winner", "note": "=1+1"},
    {"id": "-5", "text": "dinner, and a meeting", "note": "@home"},
    {"id": "3", "text": 'the "old" house\nby the river', "note": ""},
]


def put_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".xlsx":
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        book.active.append(list(rows[0]))
        for row in rows:
            book.active.append(list(row.values()))
            for cell in book.active[book.active.max_row]:
                cell.data_type = "s" if isinstance(cell.value, str) else cell.data_type
        book.save(path)
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def answers(model: Path, file: Path | str, out: Path, **settings: Any) -> list[dict[str, Any]]:
    predict.run(predict.Settings(model=str(model), file=str(file), out=out, precision="fp32", threads=1, **settings))
    return [row for _, row in cells_of(out)]


@pytest.mark.parametrize("ending", ["csv", "xlsx", "parquet", "jsonl"])
@pytest.mark.parametrize("out", ["csv", "xlsx", "parquet"])
def test_predict_keeps_the_columns_of_the_input_and_gives_every_score_its_own(
    tmp_path: Path, spam_folder: Path, spam, ending: str, out: str
) -> None:
    file = put_table(tmp_path / f"in.{ending}", ROWS)
    rows = answers(spam_folder, file, tmp_path / f"p.{out}")
    assert list(rows[0]) == ["id", "text", "note", "label", "score", "score_ham", "score_spam", "tokens", "cut"]
    assert [row["id"] for row in rows] == ["007", "-5", "3"] and [row["text"] for row in rows] == [
        row["text"] for row in ROWS
    ]
    wanted = bertkit.load(spam_folder, precision="fp32").predict([row["text"] for row in ROWS])
    for row, answer in zip(rows, wanted, strict=True):
        assert row["label"] == answer["label"]
        assert float(row["score_spam"]) == pytest.approx(answer["scores"]["spam"], abs=1e-6)


def test_a_formula_in_the_input_is_text_in_a_sheet_and_reported_of_in_a_csv(tmp_path, spam_folder, notes) -> None:
    file = put_table(tmp_path / "in.csv", ROWS)
    assert [row["note"] for row in answers(spam_folder, file, tmp_path / "p.csv")] == ["'=1+1", "'@home", ""]
    assert any("2 cells begin like a formula" in note and ".xlsx" in note for note in notes)
    sheet = answers(spam_folder, file, tmp_path / "p.xlsx")
    assert [row["note"] or "" for row in sheet] == ["=1+1", "@home", ""]


def test_a_column_of_the_answer_never_takes_the_place_of_one_of_the_input(tmp_path, spam_folder, notes) -> None:
    file = put_table(tmp_path / "in.csv", [{"text": "a prize", "label": "gold", "score_spam": "mine"}])
    (row,) = answers(spam_folder, file, tmp_path / "p.csv")
    assert (row["label"], row["score_spam"]) == ("gold", "mine")
    assert row["predicted_label"] in ("ham", "spam") and 0 <= float(row["predicted_score_spam"]) <= 1
    assert any("'predicted_label'" in note for note in notes)


def test_jsonl_keeps_the_input_beside_the_answer(tmp_path: Path, spam_folder: Path) -> None:
    file = put_table(
        tmp_path / "in.jsonl", [{"text": "a prize", "label": "gold", "n": 3}, {"text": "dinner", "m": [1]}]
    )
    out = answers(spam_folder, file, tmp_path / "p.jsonl")
    assert [row["input"] for row in out] == [{"text": "a prize", "label": "gold", "n": 3}, {"text": "dinner", "m": [1]}]
    assert set(out[0]["scores"]) == {"ham", "spam"} and out[0]["label"] in ("ham", "spam")


@pytest.mark.parametrize("out", ["csv", "parquet"])
@pytest.mark.parametrize("source", ["file", "-"])
def test_no_score_is_lost_where_a_later_row_has_more_choices(runs, tmp_path, monkeypatch, source, out) -> None:
    if out == "parquet":
        pytest.importorskip("pyarrow")
    given = [{"text": "a house", "choices": ["in paris", "anna", "peter", "maria"][:size]} for size in (2, 4, 3)]
    file = put_table(tmp_path / "in.jsonl", given)
    model = runs("choose")
    if source == "-":
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file.open("rb"), "utf-8"))
    rows = answers(runs.folder / "run-choose", "-" if source == "-" else file, tmp_path / f"p.{out}")
    scores = [[row[f"score_{n}"] for n in range(4)] for row in rows]
    for found, wanted in zip(scores, model.predict(given), strict=True):
        padding = [None] * (4 - len(wanted["scores"]))
        assert [None if score in (None, "") else float(score) for score in found] == pytest.approx(
            [*wanted["scores"], *padding], abs=1e-6
        )
    names = list(rows[0])
    assert names[names.index("score_0") :] == ["score_0", "score_1", "score_2", "score_3", "tokens", "cut"]


def test_columns_by_number_keep_every_column(tmp_path: Path, spam_folder: Path) -> None:
    (tmp_path / "in.tsv").write_text("x\ta prize\ny\tdinner\n", "utf-8")
    rows = answers(spam_folder, tmp_path / "in.tsv", tmp_path / "p.csv", text="2")
    assert [(row["1"], row["2"]) for row in rows] == [("x", "a prize"), ("y", "dinner")]


def test_a_sheet_of_numbers_dates_and_empty_rows_is_read(tmp_path: Path, notes) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    import datetime

    from bertkit.data.readers import read_rows

    book = openpyxl.Workbook()
    for row in (["text", "label", "day"], ["one", 1, datetime.date(2026, 1, 2)], [None, None], [12345, 2.5, None]):
        book.active.append(row)
    book.create_sheet("Other")
    book.save(tmp_path / "a.xlsx")
    assert [(r.text, r.label, r.line) for r in read_rows(tmp_path / "a.xlsx")] == [("one", "1", 2), ("12345", "2.5", 4)]
    assert any("'Other' is not" in note for note in notes)


# ---- Tables in memory. The stand-ins have what the libraries' tables are known by.


class Pandas:
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.columns = rows, list(rows[0])

    def itertuples(self, index: bool, name: None) -> Iterator[tuple[Any, ...]]:
        return (tuple(row.values()) for row in self.rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


class ClassLabel:
    names = ("ham", "spam")


class Dataset:
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.column_names = rows, list(rows[0])
        self.features = {"text": object(), "label": ClassLabel()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (row | {"label": ClassLabel.names.index(row["label"])} for row in self.rows)


class Frame(Pandas):
    """Polars' has no itertuples."""

    def __getattribute__(self, name: str) -> Any:
        if name == "itertuples":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def iter_rows(self, named: bool) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


TABLES = {"pandas": Pandas, "polars": Frame, "datasets": Dataset, "list": list}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_in_memory_gives_the_same_model_as_its_file(runs, spam, spam_folder: Path, kind: str) -> None:
    made = runs.tune("classify", f"by-{kind}", train=TABLES[kind](toy.messages(40)), **toy.SMALL | {"steps": 4})
    assert made.result["metrics"] == spam.result["metrics"]
    folder = runs.folder / f"by-{kind}"
    assert (folder / "model.safetensors").read_bytes() == (spam_folder / "model.safetensors").read_bytes()
    about = json.loads((folder / "bertkit.json").read_text("utf-8"))
    toml = tomllib.loads((folder / "run.toml").read_text("utf-8"))
    assert len(about["data"]["train"]["sha256"]) == 64
    assert about["data"]["train"]["sha256"][:16] in toml["train"]


def test_a_model_reads_the_columns_that_it_was_trained_on_without_being_told_again(runs, tmp_path, notes) -> None:
    rows = toy.messages(40)
    own = [{"id": n, "body": row["text"], "topic": row["label"]} for n, row in enumerate(rows)]
    small = toy.SMALL | {"steps": 30}
    made = runs.tune(
        "classify", "own-columns", train=toy.write(tmp_path / "t.csv", own), text="body", label="topic", **small
    )
    folder, file, usual = (
        runs.folder / "own-columns",
        toy.write(tmp_path / "a.csv", own),
        toy.write(tmp_path / "b.csv", rows),
    )
    wanted = run_evaluate(folder, usual)
    assert not any("as in training" in note for note in notes)
    assert run_evaluate(folder, file) == wanted
    assert f"{file}: reading text from column 'body', label from column 'topic', as in training." in notes
    assert made.evaluate(own)["accuracy"] == wanted["accuracy"]
    notes.clear()
    predict.run(predict.Settings(model=str(folder), file=str(file), out=tmp_path / "p.csv", threads=1))
    assert f"{file}: reading text from column 'body', as in training." in notes
    written = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [row["label"] for row in written] == [row["label"] for row in made.predict([row["text"] for row in rows])]
    assert [row["body"] for row in written] == [row["text"] for row in rows]
    swapped = [{"body": row["label"], "mail": row["text"], "kind": row["label"]} for row in rows]
    other = run_evaluate(folder, toy.write(tmp_path / "c.csv", swapped), text="mail", label="kind")
    assert other == wanted  # columns that are named are read


def run_evaluate(folder: Path, file: Path, **columns: str) -> dict[str, float]:
    settings = evaluate.Settings(model=str(folder), file=file, threads=1, precision="fp32", **columns)
    return evaluate.run(settings)["metrics"]


def test_rows_from_python_are_called_by_the_name_of_their_argument(runs, notes) -> None:
    rows = toy.messages(40)
    made = runs.tune("classify", "by-name", train=[*rows, rows[0]], **toy.SMALL | {"steps": 4})
    assert "train: 1 rows repeat an earlier text." in notes and any("rows of train are held out" in n for n in notes)
    page = (runs.folder / "by-name/report.html").read_text("utf-8")
    assert not any("memory:" in note for note in notes) and "held out of train" in page
    with pytest.raises(UserError, match=r"^train, row 2: 'label' has no label"):
        runs.tune("classify", "other", train=[rows[0], rows[1] | {"label": None}], **toy.SMALL)
    with pytest.raises(UserError, match=r"^rows, line 1: label 'eggs' is not one of"):
        made.evaluate([rows[0] | {"label": "eggs"}])
    with pytest.raises(UserError, match=r"^input, row 1: 'text' is .3\.5"):
        made.predict(Pandas([{"text": [3.5]}]))


@pytest.mark.parametrize("kind", TABLES)
def test_predict_and_evaluate_take_a_table(spam, kind: str) -> None:
    rows = toy.messages(6, 3)
    table = TABLES[kind](rows)
    assert spam.predict(table) == spam.predict([row["text"] for row in rows])
    assert spam.evaluate(table)["accuracy"] == pytest.approx(
        sum(a["label"] == r["label"] for a, r in zip(spam.predict(table), rows)) / 6
    )


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_embedded_by_its_texts_not_by_the_names_of_its_columns(spam, kind: str) -> None:
    rows = toy.messages(6, 3)
    texts = [row["text"] for row in rows]
    given = texts if kind == "list" else TABLES[kind](rows)
    assert np.array_equal(spam.embed(given), spam.embed(texts))
    if kind != "list":
        with pytest.raises(UserError, match="no column 'text', only Body of it"):
            spam.embed(TABLES[kind]([{"Body of it": "a prize", "label": "ham"}]))


def test_the_name_of_a_file_is_noted_where_a_text_is_expected(spam, tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("text\na prize\n", "utf-8")
    for answer in (spam.predict, spam.embed):
        caplog.clear()
        assert len(answer("rows.csv")) == 1
        assert "'rows.csv' is taken as a text" in caplog.text
        caplog.clear()
        answer("a prize")
        assert not caplog.text


def test_one_text_is_scored_as_a_text_by_every_model_not_letter_by_letter() -> None:
    model = NgramModel(NgramSettings(order=2, min_count=1)).fit(["a prize for you", "you and a prize"])
    assert model.score("a prize") == model.score(["a prize"]) == model.score(Pandas([{"text": "a prize"}]))
    assert model.perplexity("a prize") == model.perplexity(["a prize"])


def test_two_readers_of_the_same_rows_do_not_take_them_from_each_other() -> None:
    rows = toy.messages(6, 3)
    for digest in (True, False):
        with in_memory({"rows": rows}, digest=digest) as first:
            with in_memory({"rows": rows}, digest=digest) as second:
                assert len(list(read_memory(second["rows"]))) == 6
            assert len(list(read_memory(first["rows"]))) == 6, "the other reader is done, this one is not"
        with pytest.raises(UserError, match="memory of another process"):
            list(read_memory(first["rows"]))


def test_a_table_without_a_text_column_is_refused_with_the_names_it_has(spam) -> None:
    table = Pandas([{"Body of it": "a prize", "n": 1}])
    with pytest.raises(UserError, match=r'no column \'text\'.*Body of it \| n.*text="NAME"'):
        spam.predict(table)
    assert len(spam.predict(table, text="Body of it")) == 1


def test_a_run_on_rows_in_memory_is_resumed_with_the_same_rows_and_not_from_its_settings_alone(runs) -> None:
    small = toy.SMALL | {"steps": 4, "resume": True}
    runs.tune("classify", "again", train=toy.messages(40), **toy.SMALL | {"steps": 4})
    again = runs.tune("classify", "again", train=toy.messages(40), **small)
    assert again.result["rows"] == 4
    text = (runs.folder / "again/run.toml").read_text("utf-8")
    with pytest.raises(UserError, match="memory of another process"):
        runs.tune("classify", "third", train=tomllib.loads(text)["train"], **toy.SMALL)


def test_the_splits_of_a_dataset_are_not_taken_for_one_table(runs) -> None:
    with pytest.raises(UserError, match=r"several tables: train, test.*'train'"):
        runs.tune("classify", "x", train={"train": Dataset(toy.messages(4)), "test": Dataset(toy.messages(4))})
