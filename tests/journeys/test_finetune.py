"""From labelled rows to answers, as a user types it: finetune, predict, evaluate, and the same from Python."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bertkit
from bertkit.commands import evaluate, predict
from bertkit.errors import UserError
from tests.support import toy
from tests.support.command_line import CommandLine


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> toy.Runs:
    return toy.Runs(tmp_path_factory.mktemp("journey"))


def cli(*words: Any, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bertkit", *map(str, words)],
        input=stdin, capture_output=True, text=True, encoding="utf-8", env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def options(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def made(runs) -> dict[str, Any]:
    """One run by the command line."""
    train = toy.write(runs.folder / "train.csv", toy.messages(120))
    dev = toy.write(runs.folder / "dev.csv", toy.messages(40, 1))
    shared = toy.SMALL | {"steps": 60}
    out = runs.folder / "by-hand"
    given = shared | {"train": train, "dev": dev, "model": runs.model, "out": out}
    done = cli("finetune", "classify", *options(given), "--json")
    assert done.returncode == 0, done.stderr
    return {"out": out, "train": train, "dev": dev, "shared": shared, "stdout": done.stdout, "stderr": done.stderr}


def test_the_command_line_and_python_make_the_same_model_and_scores(made, runs):
    typed = json.loads(made["stdout"])
    run = runs.tune("classify", "by-python", train=made["train"], dev=made["dev"], **made["shared"])
    assert typed["metrics"] == run.result["metrics"] and typed["intervals"] == run.result["intervals"]
    for name in ("model.safetensors", "metrics.jsonl", "tokenizer.json"):
        assert (made["out"] / name).read_bytes() == (runs.folder / "by-python" / name).read_bytes()
    assert "step 60" in made["stderr"] and "step" not in made["stdout"].split('"metrics"')[0]


def test_the_run_folder_holds_what_is_promised(made):
    there = {path.name for path in made["out"].iterdir()}
    assert there >= {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
        "special_tokens_map.json", "README.md", "bertkit.json", "run.toml", "metrics.jsonl", "report.html",
    }  # fmt: skip
    about = json.loads((made["out"] / "bertkit.json").read_text("utf-8"))
    assert about["task"] == "classify" and set(about["data"]) == {"train", "dev"}
    assert json.loads((made["out"] / "tokenizer_config.json").read_text("utf-8"))["model_max_length"] == 512
    page = (made["out"] / "report.html").read_text("utf-8")
    assert "<script" not in page and "default-src 'none'" in page


def test_predict_answers_lines_of_standard_input_in_order(made, monkeypatch, capsys):
    texts = [row["text"] for row in toy.messages(9, 4)] + ["", "{a prize}", '{"text": "a meeting with dinner"}']
    done = cli("predict", made["out"], "-", "--precision", "fp32", stdin="\n".join(texts) + "\n")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = bertkit.load(made["out"], precision="fp32").predict([*texts[:-1], "a meeting with dinner"])
    assert [said["label"] for said in found] == [said["label"] for said in wanted]
    for one, two in zip(found, wanted, strict=True):
        assert set(one) == set(two) and one["score"] == pytest.approx(two["score"], abs=1e-5)
    lines, whole = (_predict_lines(texts, made, monkeypatch, capsys, *more) for more in ((), ("--json",)))
    assert whole.json == [json.loads(line) for line in lines.out.splitlines()]


def _predict_lines(texts, made, monkeypatch, capsys, *more):
    """The same without starting a process."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join([*texts, ""]).encode())))
    return CommandLine(monkeypatch, capsys)("predict", made["out"], "-", "--precision", "fp32", *more)


def predicted(model: Path, file: Any, out: Path | None = None, **more: Any) -> Any:
    return predict.run(predict.Settings(model=str(model), file=str(file), out=out, precision="fp32", **more))


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    if path.suffix == ".csv":
        rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"))))
        return [row | {"score": float(row["score"]), "cut": int(row["cut"])} for row in rows]
    import pyarrow.parquet as parquet

    return parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("source", ["rows.csv", "rows.jsonl"])
@pytest.mark.parametrize("target", ["out.jsonl", "out.csv", "out.parquet"])
def test_predict_reads_and_writes_every_kind_of_file_in_order(source, target, made, tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.inference.predictor.AT_ONCE", 7)  # many chunks
    rows = [row | {"text": f"{row['text']} {n}"} for n, row in enumerate(toy.messages(30, 6))]
    path = toy.write(tmp_path / source, rows)
    result = predicted(made["out"], path, tmp_path / target)
    assert result["rows"] == 30 and result["rows_cut"] == 0
    wanted = bertkit.load(made["out"], precision="fp32").predict([row["text"] for row in rows])
    found = read(tmp_path / target)
    named = "label" if target == "out.jsonl" else "predicted_label"  # the input has a column `label`
    for got, answer in zip(found, wanted, strict=True):
        scores = got.get("scores") or {name: float(got[f"score_{name}"]) for name in answer["scores"]}
        assert got[named] == answer["label"] and got["cut"] == 0
        assert got["score"] == pytest.approx(answer["score"], abs=1e-5)
        assert scores == pytest.approx(answer["scores"], abs=1e-5)


@pytest.mark.parametrize("case", [name for name in toy.CASES if name != "classify"])
def test_every_task_predicts_a_file_and_evaluates_it(case, runs):
    run = runs(case)
    dev, out = runs.folder / f"{case}-dev.jsonl", Path(run.result["out"])
    found = list(predicted(out, dev))
    assert len(found) == toy.DEV.get(case, 48)
    result = evaluate.run(evaluate.Settings(model=str(out), file=dev, precision="fp32"))
    assert result["metrics"] == pytest.approx(dict(run.result["metrics"]), abs=1e-6)
    assert result["rows"] == len(found) and result["tokens_cut"] == 0
    assert set(result["intervals"]) <= set(result["metrics"])
    assert evaluate.lines(result)


def test_what_was_cut_is_reported_at_the_end_of_a_prediction(made, tmp_path, notes):
    path = toy.write(tmp_path / "long.csv", [{"text": "bread " * 200}, {"text": "bread"}])
    result = predicted(made["out"], path, tmp_path / "said.jsonl", on_long="truncate")
    assert result["rows_cut"] == 1 and result["tokens_cut"] == 138
    assert any("1 of 2 rows were cut: 138 of" in note for note in notes)


def test_evaluate_prints_metrics_with_intervals(made):
    result = evaluate.run(evaluate.Settings(model=str(made["out"]), file=made["dev"], precision="fp32"))
    lines = evaluate.lines(result)
    assert lines[0].startswith("accuracy") and "95 % interval" in lines[0]
    assert result["metrics"] == json.loads(made["stdout"])["metrics"]


@pytest.mark.parametrize("given", [{"out": "report"}, {"rerank": "en"}, {"most": 3}])
def test_an_option_that_evaluate_would_not_read_is_refused_with_what_it_is_for(made, given):
    with pytest.raises(UserError, match=rf"--{next(iter(given))} is for .*, not for a fine-tuned model's own task"):
        evaluate.run(evaluate.Settings(model=str(made["out"]), file=made["dev"], precision="fp32", **given))
    with pytest.raises(UserError, match=r"--label is for .*, not for --task minimal-pairs\. Leave it out"):
        evaluate.run(evaluate.Settings(model=str(made["out"]), file=made["dev"], task="minimal-pairs", label="x"))


def test_minimal_pairs_count_how_often_the_good_sentence_is_likelier(runs, tmp_path):
    model = bertkit.load(runs.model, precision="fp32")
    texts = [" ".join(toy.words(toy.chance(n), most=6)) for n in range(12)]
    scores = model.score(texts)
    order = sorted(range(12), key=lambda n: -scores[n])
    good = [(texts[a], texts[b]) for a, b in zip(order[:6], order[6:])]  # the model prefers the first of each
    for name, part in (("agreement", good[:4]), ("binding", [pair[::-1] for pair in good[4:]])):
        rows = [{"sentence_good": one, "sentence_bad": two} for one, two in part]
        toy.write(tmp_path / f"{name}.jsonl", rows)
    result = evaluate.run(
        evaluate.Settings(model=str(runs.model), file=tmp_path, task="minimal-pairs", precision="fp32")
    )
    assert result["groups"] == {"agreement": 1.0, "binding": 0.0}
    low, high = result["intervals"]["mean_of_groups"]
    assert 0 <= low <= 0.5 <= high <= 1
    assert result["metrics"]["mean_of_groups"] == 0.5 and result["metrics"]["accuracy"] == pytest.approx(4 / 6)
    few = evaluate.run(
        evaluate.Settings(model=str(runs.model), file=tmp_path, task="minimal-pairs", most=1, precision="fp32")
    )
    assert few["rows"] == 2
    with pytest.raises(UserError, match="minimal-pairs"):
        evaluate.run(evaluate.Settings(model=str(runs.model), file=tmp_path, task="minimal"))
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_text("utf-8").encode("utf-16"))
    settings = evaluate.Settings(model=str(runs.model), file=tmp_path, task="minimal-pairs", encoding="utf-16")
    assert evaluate.run(settings)["groups"] == result["groups"]


def test_a_users_mistake_is_one_message_and_code_two(made, tmp_path, monkeypatch, capsys):
    bad = toy.write(tmp_path / "bad.csv", [{"text": "a", "label": "eggs"}])
    said = CommandLine(monkeypatch, capsys)("evaluate", made["out"], bad)
    assert said.code == 2 and "Traceback" not in said.err
    assert "bad.csv, line 2: label 'eggs' is not one of ham, spam" in said.err


CHILD = """
import sys
from pathlib import Path
from bertkit.commands import predict
for file in sys.argv[2:]:
    out = Path(file).with_suffix(".jsonl")
    predict.run(predict.Settings(model=sys.argv[1], file=file, out=out, precision="fp32", threads=1))
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_predicting_four_times_the_rows_takes_no_more_memory(made, tmp_path):
    sizes = (10_000, 40_000)
    files = [tmp_path / f"{number}.csv" for number in sizes]
    for number, path in zip(sizes, files):
        with path.open("w", encoding="utf-8") as file:
            file.write("text\n")
            file.writelines(f"the old house {n} in the garden\n" for n in range(number))
    command = [sys.executable, "-c", CHILD, str(made["out"]), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert [sum(1 for _ in path.with_suffix(".jsonl").open()) for path in files] == list(sizes)
    small, large = map(int, done.stdout.split())  # the highest until then
    assert large < small * 1.05, (small, large)
