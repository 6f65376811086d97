"""A mistake is reported in one line with exit code 2, before anything is read or written over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bad_files import copied, latin, torn, torn_google, written
from tests.support.command_line import CommandLine

MISTAKES = {  # name → (words, what must be told)
    "missing file": (lambda m, d: ["embed", m, d / "none.csv"], r"none\.csv"),
    "empty file": (lambda m, d: ["embed", m, written(d, "a.csv", "")], r"a\.csv"),
    "wrong encoding": (lambda m, d: ["embed", m, latin(d)], r"rows\.csv.*--encoding"),
    "unknown encoding": (lambda m, d: ["embed", m, latin(d), "--encoding", "klingon"], "klingon"),
    "lone surrogate": (lambda m, d: ["embed", m, written(d, "a.jsonl", '{"text": "x\\ud800"}\n')], r"a\.jsonl, line 1"),
    "NUL": (lambda m, d: ["embed", m, written(d, "a.txt", "fine\nx\0y\n")], r"a\.txt, line 2"),
    "text too long": (
        lambda m, d: ["embed", m, written(d, "a.txt", f"fine\n\n{'cat ' * 200}\n"), "--on-long", "error"],
        r"a\.txt, line 3.*tokens",
    ),
    "unknown column": (lambda m, d: ["embed", m, written(d, "a.csv", "alpha,beta\nx,1\n")], r"a\.csv.*alpha"),
    "column asked for": (lambda m, d: ["embed", m, written(d, "a.csv", "text\nx\n"), "--text", "txet"], "txet.*text"),
    "corrupt safetensors": (lambda m, d: ["fill", torn(m, d), "a [MASK]"], r"model\.safetensors is not a complete"),
    "corrupt TF file": (lambda m, d: ["convert", torn_google(d), d / "out"], r"bert_model\.ckpt"),
    "config with a wrong number": (
        lambda m, d: ["fill", copied(m, d, hidden_size=-3), "a [MASK]"], r"config\.json: hidden_size is -3",
    ),
    "no such model": (lambda m, d: ["fill", d / "nowhere", "a [MASK]"], "There is no model"),
    "no mask": (lambda m, d: ["fill", m, "the cat"], r"no \[MASK\]"),
    "unknown verb": (lambda m, d: ["fil", m, "x"], "'fil'. Did you mean 'fill'"),
    "unknown verb like no other": (lambda m, d: ["zzz"], "'zzz'. See: bertkit --help"),
    "unknown option": (lambda m, d: ["fill", m, "a [MASK]", "--topp", "3"], "'--topp'. Did you mean '--top'"),
    "unknown option like no other": (lambda m, d: ["fill", m, "x", "--qqqq"], "'--qqqq'. See: bertkit fill --help"),
    "half an option": (lambda m, d: ["finetune", "classify", "--tra", "x"], "'--tra'. Did you mean '--train'"),
    "an alias mistyped": (lambda m, d: ["finetune", "--learning-rat", "1"], "Did you mean '--lr'"),
    "a hidden option mistyped": (lambda m, d: ["distill", m, "--class-wieghts"], r"'--class-wieghts'\. See"),
    "option before the command": (lambda m, d: ["--json", "fill", m, "x"], "after the command: bertkit fill … --json"),
    "unknown option alone": (lambda m, d: ["--foo"], "--foo"),
    "missing argument": (lambda m, d: ["fill", m], "TEXT"),
    "one argument too many": (lambda m, d: ["fill", m, "a", "[MASK]"], r"MODEL TEXT; '\[MASK\]' is one .* quotes"),
    "an argument where there is none": (lambda m, d: ["pretrain", "x"], "options only; 'x'"),
    "missing value": (lambda m, d: ["fill", m, "a [MASK]", "--top"], "--top needs a value"),
    "missing value before an option": (lambda m, d: ["fill", m, "x", "--config", "--json"], "--config needs a value"),
    "missing value of a short option": (lambda m, d: ["search", d, "x", "-k"], "-k needs a value"),
    "a value for a flag": (lambda m, d: ["fill", m, "a [MASK]", "--json=1"], "--json takes no value"),
    "a text like an option": (lambda m, d: ["fill", m, "-[MASK]"], "after `--`"),
    "a word for a number": (
        lambda m, d: ["fill", m, "a [MASK]", "--top", "many"], "--top must be a whole number, not 'many'",
    ),
    "a shell there is not": (lambda m, d: ["completion", "tcsh"], "Choose from: bash, fish, zsh"),
    "too small a number": (lambda m, d: ["fill", m, "a [MASK]", "--top", "0"], "--top is 0"),
    "bad --set": (lambda m, d: ["fill", m, "a [MASK]", "--set", "top"], "KEY=VALUE"),
    "unknown --set key": (lambda m, d: ["fill", m, "a [MASK]", "--set", "tpo=3"], "'tpo'. Did you mean 'top'"),
    "wrong --set type": (lambda m, d: ["fill", m, "a [MASK]", "--set", "top=high"], "top must be a whole number"),
    "unknown --config key": (
        lambda m, d: ["fill", m, "a [MASK]", "--config", written(d, "r.toml", "topp = 3")],
        "'topp'. Did you mean 'top'",
    ),
    "no --config file": (lambda m, d: ["fill", m, "a [MASK]", "--config", d / "none.toml"], r"none\.toml"),
    "broken --config file": (
        lambda m, d: ["fill", m, "a [MASK]", "--config", written(d, "r.toml", "top ==")], r"r\.toml: not valid TOML",
    ),
    "bad layers": (lambda m, d: ["embed", m, written(d, "a.txt", "x\n"), "--layers", "lsat"], "layers is 'lsat'"),
    "bad pool": (lambda m, d: ["embed", m, written(d, "a.txt", "x\n"), "--pool", "men"], "pool is 'men'.*'mean'"),
    "a pool there is not": (
        lambda m, d: ["embed", m, written(d, "a.txt", "x\n"), "--pool", "bogus"], "Choose from: cls, lasttoken, max",
    ),
    "bad device": (lambda m, d: ["fill", m, "a [MASK]", "--device", "tpu"], "device is 'tpu'"),
    "bad precision": (lambda m, d: ["fill", m, "a [MASK]", "--precision", "fp8"], "precision is 'fp8'"),
    "bad threads": (lambda m, d: ["fill", m, "a [MASK]", "--threads", "-2"], "threads is -2"),
    "bad ending": (lambda m, d: ["embed", m, written(d, "a.txt", "x\n"), "--out", d / "v.xls"], r"v\.xls"),
    "token vectors to npy": (
        lambda m, d: ["embed", m, written(d, "a.txt", "x\n"), "--pool", "none", "--out", d / "v.npy"],
        r"v\.npy.*parquet",
    ),
    "too long a text": (
        lambda m, d: ["embed", m, written(d, "a.txt", "x " * 99), "--on-long", "error", "--out", d / "v.npy"], "tokens",
    ),
    "a full folder": (lambda m, d: ["convert", m, m], "exists and is not empty"),
    "a vocabulary of nothing": (lambda m, d: ["tokenizer", written(d, "a.txt", ""), "--out", d / "t"], r"."),
    "no text": (lambda m, d: ["tokenizer", d / "none.txt", "--out", d / "t"], r"none\.txt"),
    "doctor of nothing": (lambda m, d: ["doctor", d / "none.csv"], r"none\.csv"),
}  # fmt: skip


FINETUNE = ["finetune", "classify", "--train", "none.csv"]
PRETRAIN = ["pretrain", "--data", "nowhere"]
OUT_OF_RANGE = [
    (FINETUNE, "--batch 0", "at least 1"), (FINETUNE, "--held-out 1.5", "from 0 to 0.5"),
    (FINETUNE, "--steps -1", "at least 0"), (FINETUNE, "--warmup 2", "from 0 to 1"),
    (FINETUNE, "--epochs -1", "at least 0"), (FINETUNE, "--minutes inf", "a finite number"),
    (FINETUNE, "--lr nan", "from 0 to 1"), (FINETUNE, "--seed -1", "from 0 to 4294967295"),
    (PRETRAIN, "--steps -3", "at least 0"), (PRETRAIN, "--micro-tokens 0", "at least 1"),
    (PRETRAIN, "--held-out -1", "from 0 to 0.99"), (PRETRAIN, "--batch-tokens 0", "at least 1"),
    (PRETRAIN, "--set loop.lr=-1", "loop: lr is -1"), (PRETRAIN, "--set masking.rate=2", "masking: rate is 2"),
    (["index", "none.txt"], "--passage 3", "at least 8"), (["ask", "x", "y", "--reader", "z"], "-k 0", "--k is 0"),
    (["convert", "a", "b"], "--share 2", "from 0 to 1"), (["serve", "en"], "--port 65536", "from 0 to 65535"),
    (["compare", "classify", "--train", "none.csv"], "--seeds 0", "at least 1"),
    (["tokenizer", "none.txt"], "--max-tokens 0", "at least 1"),
    (["learn", "elmo", "none.txt"], "--vocabulary 0", "at least 1"),
    (["seq2seq", "--train", "none.tsv"], "--smoothing 1", "from 0 to 0.99"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "wrong", "told"), OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused_before_anything_is_read(command, wrong, told, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run(*command, *wrong.split())
    assert said.code == 2 and told in said.mistake, said
    assert "none." not in said.mistake and not list(tmp_path.iterdir())


NEEDS_A_FOLDER = {  # the words before --out; their input is not there, so --out is told first or not at all
    "finetune": FINETUNE, "pretrain": PRETRAIN, "distill": ["distill", "nowhere", "--train", "none.csv"],
    "tokenizer": ["tokenizer", "none.txt"], "demo": ["demo"], "learn": ["learn", "ngram", "none.txt"],
    "compare": ["compare", "classify", "--train", "none.csv"], "seq2seq": ["seq2seq", "--train", "none.tsv"],
    "index": ["index", "none.txt"], "prune": ["prune", "nowhere"], "quantize": ["quantize", "nowhere"],
    "export": ["export", "nowhere"], "inspect": ["inspect", "nowhere", "a text"],
}  # fmt: skip


@pytest.mark.parametrize("below", ["", "run"])
@pytest.mark.parametrize("verb", NEEDS_A_FOLDER)
def test_a_folder_that_cannot_be_made_is_reported_before_anything_is_read(
    verb, below, run, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("mine")
    out = Path("notes", below, *(["page.html"] if verb == "inspect" else []))
    said = run(*NEEDS_A_FOLDER[verb], "--out", out)
    assert said.code == 2 and "A file is where a folder is needed" in said.mistake, said
    assert [path.name for path in tmp_path.rglob("*")] == ["notes"] and (tmp_path / "notes").read_text() == "mine"


def test_a_tokenizer_is_not_written_over_another_or_into_a_model(run: CommandLine, model: Path, tmp_path: Path) -> None:
    text = written(tmp_path, "text.txt", "the cat sat on the mat and the dog ran\n" * 50)
    before = (model / "tokenizer.json").read_bytes()
    said = run("tokenizer", text, "--size", 300, "--out", model)
    assert said.code == 2 and "exists and is not empty" in said.mistake
    assert (model / "tokenizer.json").read_bytes() == before
    assert run("tokenizer", text, "--size", 300, "--out", tmp_path / "t").code == 0
    assert "not empty" in run("tokenizer", text, "--size", 300, "--out", tmp_path / "t").mistake
    assert not [path for path in (tmp_path / "t").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("verb", ["predict", "embed", "rewrite"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_is_never_written_over_by_what_reads_it(verb: str, is_link: bool, run, model: Path, tmp_path) -> None:
    rows = written(tmp_path, "a.jsonl", '{"text": "the cat"}\n')
    out = tmp_path / "link.jsonl" if is_link else rows
    if is_link:
        out.symlink_to(rows)
    said = run(verb, model, rows, "--out", out)
    assert said.code == 2 and "is also the input file" in said.mistake
    assert rows.read_text() == '{"text": "the cat"}\n'


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_exit_code_2(name: str, run, model: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a result would go by default
    words, told = MISTAKES[name]
    before = set(tmp_path.iterdir())
    command = words(model, tmp_path)
    given = set(tmp_path.iterdir()) - before
    said = run(*command)
    assert said.code == 2, said
    assert "Traceback" not in said.err and said.out == ""
    assert re.search(told, said.mistake), said.mistake
    # Nothing half-written is left behind.
    assert {path.name for path in tmp_path.iterdir()} <= {path.name for path in given}


def test_a_mistake_in_a_real_process_is_one_line_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bertkit", "tokenizer", str(tmp_path / "none.txt")],
        capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bertkit: ") and done.stderr.count("\n") == 1
