"""A run's rows: held out, checked against each other, and every doubt reported with its place."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bertkit
from bertkit.config import build
from bertkit.data.examples import TextRow
from bertkit.data.inspect import inspect_file
from bertkit.errors import UserError
from bertkit.runs.compare.run import _read
from bertkit.runs.finetune.split import fold_of, held_out, names_of, read_split
from bertkit.settings.finetune import CompareSettings, FinetuneSettings
from bertkit.tasks import make
from bertkit.tasks.base import learnt_labels
from tests.support import toy

FEW = {"steps": 2}


def test_a_row_that_cannot_be_encoded_is_reported_by_file_and_line(runs):
    good = toy.pairs(12)
    long = " ".join(toy.FILLER * 4)
    train = toy.write(runs.folder / "long-pair.jsonl", [*good, {"text": long, "text_b": long, "label": "same"}])
    for on_long, told in (("error", "has .* tokens"), ("window", "leaves .* for windows")):
        with pytest.raises(UserError, match=rf"long-pair\.jsonl, line 13: the text .*{told}"):
            runs.tune("pair", "long-pair", train=train, dev=toy.write(runs.folder / "d.jsonl", good), on_long=on_long)


@pytest.mark.parametrize(
    ("values", "amounts"),
    [
        ([n * 1.25 for n in range(60)] * 2, True),
        (list(range(18, 90)) * 10, True),
        (list(range(60)) * 2, True),
        (list(range(77)) * 10, False),
        ([1, 2, 3, 4, 5] * 20, False),
        ([f"room {n}" for n in range(60)] * 2, False),
    ],
)
def test_a_column_of_amounts_is_noticed_before_they_are_learnt_as_names(values, amounts, tmp_path, notes):
    rows = [{"text": f"text {n}", "label": value} for n, value in enumerate(values)]
    train = toy.write(tmp_path / "a.jsonl", rows)
    settings = build(FinetuneSettings, {"task": "classify", "train": train})
    with contextlib.suppress(UserError):
        read_split(settings, make("classify"))
    with contextlib.suppress(UserError):
        _read(build(CompareSettings, {"task": "classify", "train": train}), make("classify"))
    for command in ("finetune", "compare"):
        assert any(f"learn them as numbers: bertkit {command} regress" in line for line in notes) == amounts


def rows_of(labels: list) -> list[TextRow]:
    return [TextRow(f"text {n}", label=label, line=n + 2) for n, label in enumerate(labels)]


@given(st.lists(st.sampled_from("aabbbbc"), min_size=4, max_size=80), st.integers(0, 9))
def test_a_split_loses_no_row_and_holds_out_no_label_that_is_not_learnt(labels, seed):
    examples = rows_of(labels)
    kept, out = held_out(examples, 0.1, seed)
    assert sorted([*kept, *out], key=lambda row: row.line) == examples
    assert [row.line for row in kept] == sorted(row.line for row in kept)
    assert {row.label for row in kept} == set(labels)


@given(st.integers(20, 200), st.integers(0, 5))
def test_a_split_holds_out_equal_shares_of_every_label(number, seed):
    examples = rows_of(["a" if n % 4 else "b" for n in range(number)])
    _, out = held_out(examples, 0.2, seed)
    counts, all_ = Counter(row.label for row in out), Counter(row.label for row in examples)
    for label in "ab":
        assert abs(counts[label] - all_[label] / 5) <= 1


@pytest.mark.parametrize("share", [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 1 / 3, 0.4, 0.45, 0.5])
def test_the_share_that_was_asked_for_is_held_out(share):
    _, out = held_out(rows_of(["a" if n % 4 else "b" for n in range(1000)]), share, 0)
    assert abs(len(out) - 1000 * share) <= 1


@pytest.mark.parametrize("share", [0.0001, 0.0004, 0.00125, 1 / 3])
def test_a_share_below_a_thousandth_is_held_out_as_asked(share):
    _, out = held_out(rows_of(["a" if n % 4 else "b" for n in range(30_000)]), share, 0)
    assert abs(len(out) - 30_000 * share) <= 1


def test_the_same_text_is_never_on_both_sides_of_a_split():
    examples = [TextRow(f"text {n // 3}", label="ab"[n // 3 % 2], line=n) for n in range(60)]
    folds = fold_of(examples, 5, 0)
    for n in range(0, 60, 3):
        assert len(set(folds[n : n + 3])) == 1
    assert set(folds) == set(range(5))


def test_one_row_of_several_labels_stays_where_its_rare_label_can_be_learnt():
    examples = rows_of([("a",), ("b",), ("a", "b")] * 20 + [("a", "rare")])
    kept, out = held_out(examples, 0.5, 1)
    assert "rare" in {name for row in kept for name in names_of(row)}
    assert len(out) > 15


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (["10", "9", "1"], ("1", "9", "10")),
        (["b", "10", "a"], ("10", "a", "b")),
        (["nan", "2", "1"], ("1", "2", "nan")),
        (["1.0", "1", "01"], ("01", "1", "1.0")),
        (["-1", "0.5", "1"], ("-1", "0.5", "1")),
    ],
)
def test_labels_have_one_order_however_the_rows_are_shuffled(found, wanted):
    assert learnt_labels(found, (), "x") == learnt_labels(found[::-1] * 2, (), "x") == wanted


def test_labels_keep_the_order_they_are_given_in(runs):
    train = toy.write(runs.folder / "order.csv", toy.messages(40))
    run = runs.tune("classify", "order", train=train, dev=train, labels="spam,ham,never", **FEW)
    assert list(run.predict(["a prize"])[0]["scores"]) == ["spam", "ham", "never"]
    config = json.loads((runs.folder / "order/config.json").read_text("utf-8"))
    assert config["id2label"] == {"0": "spam", "1": "ham", "2": "never"}


def test_a_label_of_the_data_that_is_not_in_labels_is_named(runs):
    train = toy.write(runs.folder / "order.csv", toy.messages(40))
    with pytest.raises(UserError, match="ham are in the data but not in --labels"):
        runs.tune("classify", "order-2", train=train, labels="spam,never", **FEW)


def test_without_a_dev_file_a_tenth_is_held_out_and_reported(runs, notes):
    train = toy.write(runs.folder / "alone.csv", toy.messages(100))
    run = runs.tune("classify", "alone", train=train, **FEW)
    assert any("No --dev file: 10 of 100 rows" in note and "equal shares" in note for note in notes)
    assert run.result["rows"] == 10
    assert run.result["data"]["labels"]["dev"] == {"ham": 5, "spam": 5}


def test_dev_rows_that_are_also_training_rows_are_reported(runs, notes):
    rows = toy.messages(60)
    train, dev = toy.write(runs.folder / "t.csv", rows[:50]), toy.write(runs.folder / "d.csv", rows[40:])
    run = runs.tune("classify", "overlap", train=train, dev=dev, test=dev, **FEW)
    assert any("10 of 20 dev rows are also training rows" in note for note in notes)
    assert any("10 of 20 test rows" in note for note in notes)
    assert run.result["data"]["dev_overlap"] == 10


def test_repeated_texts_are_reported(runs, notes):
    train = toy.write(runs.folder / "twice.csv", toy.messages(30) + toy.messages(12))
    runs.tune("classify", "twice", train=train, dev=train, **FEW)
    assert any("12 rows repeat an earlier text" in note for note in notes)


def test_repeated_texts_are_counted_in_the_whole_file_as_doctor_counts_them(runs, notes):
    train = toy.write(runs.folder / "twice-held.csv", toy.messages(30) + toy.messages(30))
    run = runs.tune("classify", "twice-held", train=train, held_out=0.3, **FEW)
    assert any("30 rows repeat an earlier text" in note for note in notes)
    assert run.result["data"]["duplicates"] == inspect_file(train).duplicates == 30


def test_empty_texts_are_counted_and_trained_on(runs, notes):
    train = toy.write(runs.folder / "empty.csv", [*toy.messages(20), {"text": "", "label": "ham"}])
    run = runs.tune("classify", "empty", train=train, dev=train, **FEW)
    assert any("1 of 21 rows have an empty text" in note for note in notes)
    assert run.result["rows"] == 21


def test_rows_of_one_label_alone_are_refused_with_the_fix(runs):
    train = toy.write(runs.folder / "one.csv", [{"text": f"text {n}", "label": "ham"} for n in range(20)])
    with pytest.raises(UserError, match=r"only one label \('ham'\).*--label"):
        runs.tune("classify", "one", train=train, **FEW)


def test_no_rows_to_choose_by_are_refused(runs):
    train = toy.write(runs.folder / "none-held.csv", toy.messages(30))
    with pytest.raises(UserError, match=r"--held-out is 0.*--dev"):
        runs.tune("classify", "none-held", train=train, held_out=0, **FEW)
    assert runs.tune("classify", "own-dev", train=train, dev=train, held_out=0, **FEW).result["rows"] == 30


def test_a_label_named_twice_is_refused_before_anything_is_read(runs):
    with pytest.raises(UserError, match="ham is listed twice"):
        runs.tune("classify", "twice-named", train=runs.folder / "never-read.csv", labels="ham,ham,spam", **FEW)


def test_too_few_rows_to_hold_any_out_are_refused(runs):
    train = toy.write(runs.folder / "few.csv", toy.messages(3))
    with pytest.raises(UserError, match=r"3 rows are too few.*--dev"):
        runs.tune("classify", "few", train=train, **FEW)


@pytest.mark.parametrize("multi", [False, True])
def test_an_unknown_label_in_a_dev_file_is_refused_with_its_line_before_training(multi, runs):
    rows = toy.many_labels(20) if multi else toy.messages(20)
    train = toy.write(runs.folder / "known.jsonl", rows)
    bad = [*rows[:6], {"text": "a", "label": ["spam", "hma"] if multi else "hma"}]
    dev = toy.write(runs.folder / "unknown.jsonl", bad)
    with pytest.raises(UserError, match=r"unknown.jsonl, line 7: label 'hma' is not one of ham, spam.*'ham'"):
        runs.tune("classify", f"unknown-{multi}", train=train, dev=dev, multi_label=multi, **FEW)
    assert not (runs.folder / f"unknown-{multi}" / "metrics.jsonl").exists()


def test_an_unknown_label_at_evaluation_is_refused_with_its_line(runs):
    test = toy.write(runs.folder / "test.csv", [*toy.messages(5), {"text": "a", "label": "eggs"}])
    with pytest.raises(UserError, match=r"test.csv, line 7: label 'eggs' is not one of ham, spam"):
        runs("classify").evaluate(test)


def test_labels_are_aligned_by_name_not_by_number_at_evaluation(runs):
    only_spam = toy.write(runs.folder / "only.csv", [row for row in toy.messages(60, 5) if row["label"] == "spam"])
    scores = runs("classify").evaluate(only_spam)
    assert scores["accuracy"] > 0.9 and "auc" not in scores


BAD = {
    "ragged.csv": ("text,label\na,ham\nb,spam,more\n", "classify", r"ragged.csv, line 3: 3 columns"),
    "nolabel.csv": ("text,label\na,ham\nb,\n", "classify", r"nolabel.csv, line 3: 'label' has no label"),
    "column.csv": ("text,topic\na,ham\n", "classify", r"column.csv.*label"),
    "number.csv": ("text,label\na,1\nb,two\n", "regress", r"number.csv, line 3: 'label' is .*two.*number"),
    "json.jsonl": ('{"text": "a", "label": "b"}\n{"text": \n', "classify", r"json.jsonl, line 2"),
    "tags.jsonl": ('{"tokens": ["a", "b"], "tags": ["O"]}\n', "tag", r"tags.jsonl, line 1: 2 tokens and 1 tags"),
    "choice.jsonl": ('{"text": "a", "choices": ["b", "c"], "label": 2}\n', "choose", r"choice.jsonl, line 1: 'label'"),
    "empty.csv": ("", "classify", r"empty.csv"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_an_error_with_file_and_line(name, runs):
    content, task, words = BAD[name]
    path = runs.folder / name
    path.write_text(content, "utf-8")
    with pytest.raises(UserError, match=words):
        runs.tune(task, "bad", train=path, **FEW)


def test_other_column_names_are_taken(runs):
    rows = [{"topic": row["label"], "message": row["text"]} for row in toy.messages(30)]
    train = toy.write(runs.folder / "named.csv", rows)
    run = runs.tune("classify", "named", train=train, text="message", label="topic", **FEW)
    assert set(run.predict(["x"])[0]["scores"]) == {"ham", "spam"}
    assert run.evaluate(train, text="message", label="topic")["accuracy"] >= 0


def test_numbers_in_pairs_are_read_as_pairs_whoever_splits_the_rows(runs):
    """Folds hand rows over in memory: the second text decides, so without it nothing could be learnt."""
    train = toy.write(runs.folder / "numbers.csv", toy.numbers(80, paired=True))
    result = runs.tune("regress", "numbers", train=train, folds=2, steps=60).result
    assert min(result["folds"]["scores"]) > 0.7


def test_a_model_must_exist_and_see_as_much_as_is_asked(runs):
    train = toy.write(runs.folder / "x.csv", toy.messages(20))
    with pytest.raises(UserError, match="no-such-model"):
        bertkit.finetune("classify", train=train, model="no-such-model", out=runs.folder / "x")
    with pytest.raises(UserError, match=r"--max-tokens 999.*\(512\)"):
        runs.tune("classify", "x", train=train, max_tokens=999)
    with pytest.raises(UserError, match="trian"):
        bertkit.finetune("classify", trian=train, model=str(runs.model), out=runs.folder / "x")


def test_a_dev_file_with_a_label_that_training_never_showed_can_be_named_beforehand(runs):
    rows = toy.messages(30)
    train = toy.write(runs.folder / "two.csv", rows)
    dev = toy.write(runs.folder / "three.csv", [*rows[:9], {"text": "a", "label": "other"}])
    run = runs.tune("classify", "three", train=train, dev=dev, labels="ham,other,spam", **FEW)
    assert run.result["rows"] == 10


def test_nothing_of_the_users_files_is_changed(runs):
    train = toy.write(runs.folder / "mine.csv", toy.messages(30))
    before, model = train.read_bytes(), {p.name: p.read_bytes() for p in Path(runs.model).iterdir() if p.is_file()}
    runs.tune("classify", "mine", train=train, **FEW)
    assert train.read_bytes() == before
    assert {p.name: p.read_bytes() for p in Path(runs.model).iterdir() if p.is_file()} == model


def test_settings_are_written_so_that_the_run_can_be_repeated(runs):
    from bertkit.config import build, read_toml
    from bertkit.runs.finetune.run import finetune
    from bertkit.settings.finetune import FinetuneSettings

    train = toy.write(runs.folder / "again.csv", toy.messages(40))
    first = runs.tune("classify", "again", train=train, steps=6, dropout=0.1)
    settings = build(FinetuneSettings, read_toml(runs.folder / "again/run.toml"))
    second = finetune(replace(settings, out=runs.folder / "again-2"))
    assert second["metrics"] == first.result["metrics"]
    one, two = ((runs.folder / out / "model.safetensors").read_bytes() for out in ("again", "again-2"))
    assert one == two


def test_rows_that_are_all_alike_cannot_be_held_out_and_that_is_reported(tmp_path):
    train = tmp_path / "train.csv"
    train.write_text("text,label\n" + "good,yes\nbad,no\n" * 20)
    with pytest.raises(UserError, match="none of 40 rows can be held out"):
        bertkit.finetune("classify", train=str(train), model="en", out=str(tmp_path / "run"))


def test_a_label_of_its_own_for_every_row_is_not_blamed_on_the_texts_alone(tmp_path):
    train = tmp_path / "train.csv"
    train.write_text("text,label\n" + "".join(f"text {n},{n}\n" for n in range(40)))
    with pytest.raises(UserError, match=r"too few of each label\. Is --label the right column"):
        bertkit.finetune("classify", train=str(train), model="en", out=str(tmp_path / "run"))


def test_numbers_that_are_all_the_same_are_refused_as_one_label_is(tmp_path):
    train = tmp_path / "train.csv"
    train.write_text("text,label\n" + "".join(f"text {n},5\n" for n in range(40)))
    with pytest.raises(UserError, match=r"every row has the same number \(5\)"):
        bertkit.finetune("regress", train=str(train), model="en", out=str(tmp_path / "run"))
