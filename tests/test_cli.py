"""The command line: quick help, results on stdout, and a mistake told in one line with exit code 2."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from journeys.running import CommandLine
from oracles import folders

import bertkit
from bertkit.verbs import VERBS

FIXTURES = Path(__file__).parent / "fixtures" / "google" / "bert"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    folders.write(folder, "bert", "BertForMaskedLM")
    return folder


HELP = """
import contextlib, io, json, sys
from bertkit import cli
from bertkit.verbs import VERBS
shown = {}
for words in ([], *([verb] for verb in VERBS)):
    sys.argv = ["bertkit", *words, "--help"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            cli.main()
        except SystemExit as leaving:
            assert not leaving.code, (words, leaving.code)
    heavy = [name for name in ("torch", "numpy", "tokenizers", "pydantic", "rich", "fastapi") if name in sys.modules]
    shown[" ".join(words)] = [out.getvalue(), heavy]
print(json.dumps(shown))
"""


def test_every_help_is_shown_without_importing_anything_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown.keys() == {"", *VERBS}
    for verb, (text, heavy) in shown.items():
        assert "torch" not in heavy and "tokenizers" not in heavy and "pydantic" not in heavy, (verb, heavy)
        assert "fastapi" not in heavy, verb
        assert f"bertkit {verb}".strip() in text and "--help" in text
        if verb:
            assert all(option in text for option in ("--seed", "--threads", "--device", "--precision", "--config",
                                                     "--set", "--json")), verb  # fmt: skip
    assert all(verb in shown[""][0] and about[:40] in shown[""][0] for verb, about in VERBS.items())


def test_the_installed_command_and_the_module_are_the_same() -> None:
    script = Path(sys.executable).with_name("bertkit")
    ways = [[sys.executable, "-m", "bertkit"]] + ([[str(script)]] if script.exists() else [])
    for way in ways:
        done = subprocess.run([*way, "--version"], capture_output=True, text=True)
        assert (done.returncode, done.stdout.strip()) == (0, bertkit.__version__), done.stderr
    done = subprocess.run([*ways[-1], "fil"], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def latin(folder: Path) -> Path:
    (folder / "rows.csv").write_bytes("text\ncafé crème\n".encode("latin-1"))
    return folder / "rows.csv"


def written(folder: Path, name: str, content: str | bytes) -> Path:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def copied(model: Path, folder: Path, **config) -> Path:
    shutil.copytree(model, folder / "copy")
    if config:
        folders.change(folder / "copy", **config)
    return folder / "copy"


def torn(model: Path, folder: Path) -> Path:
    path = copied(model, folder) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return path.parent


def torn_google(folder: Path) -> Path:
    shutil.copytree(FIXTURES, folder / "google")
    data = next((folder / "google").glob("*.data-*"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    return folder / "google"


MISTAKES = {  # name → (words, what must be told)
    "missing file": (lambda m, d: ["embed", m, d / "none.csv"], r"none\.csv"),
    "empty file": (lambda m, d: ["embed", m, written(d, "a.csv", "")], r"a\.csv"),
    "wrong encoding": (lambda m, d: ["embed", m, latin(d)], r"rows\.csv.*--encoding"),
    "unknown encoding": (lambda m, d: ["embed", m, latin(d), "--encoding", "klingon"], "klingon"),
    "lone surrogate": (lambda m, d: ["embed", m, written(d, "a.jsonl", '{"text": "x\\ud800"}\n')], r"a\.jsonl, line 1"),
    "NUL": (lambda m, d: ["embed", m, written(d, "a.txt", "fine\nx\0y\n")], r"a\.txt, line 2"),
    "unknown column": (lambda m, d: ["embed", m, written(d, "a.csv", "alpha,beta\nx,1\n")], r"a\.csv.*alpha"),
    "column asked for": (lambda m, d: ["embed", m, written(d, "a.csv", "text\nx\n"), "--text", "txet"], "txet.*text"),
    "corrupt safetensors": (lambda m, d: ["fill", torn(m, d), "a [MASK]"], r"model\.safetensors: not a whole"),
    "corrupt TF file": (lambda m, d: ["convert", torn_google(d), d / "out"], r"bert_model\.ckpt"),
    "config with a wrong number": (
        lambda m, d: ["fill", copied(m, d, hidden_size=-3), "a [MASK]"], r"config\.json: hidden_size is -3",
    ),
    "no such model": (lambda m, d: ["fill", d / "nowhere", "a [MASK]"], "There is no model"),
    "no mask": (lambda m, d: ["fill", m, "the cat"], r"no \[MASK\]"),
    "unknown verb": (lambda m, d: ["fil", m, "x"], "fil"),
    "unknown option": (lambda m, d: ["fill", m, "a [MASK]", "--topp", "3"], "--topp"),
    "missing argument": (lambda m, d: ["fill", m], "TEXT"),
    "a word for a number": (lambda m, d: ["fill", m, "a [MASK]", "--top", "many"], "many"),
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
        lambda m, d: ["fill", m, "a [MASK]", "--config", written(d, "r.toml", "top ==")], r"r\.toml: not TOML",
    ),
    "bad layers": (lambda m, d: ["embed", m, written(d, "a.txt", "x\n"), "--layers", "lsat"], "layers is 'lsat'"),
    "bad pool": (lambda m, d: ["embed", m, written(d, "a.txt", "x\n"), "--pool", "men"], "pool is 'men'.*'mean'"),
    "a pool there is not": (
        lambda m, d: ["embed", m, written(d, "a.txt", "x\n"), "--pool", "bogus"], "There is: cls, max, mean, none",
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
def test_a_folder_that_cannot_be_made_is_told_before_anything_is_read(verb, below, run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("mine")
    out = Path("notes", below, *(["page.html"] if verb == "inspect" else []))
    said = run(*NEEDS_A_FOLDER[verb], "--out", out)
    assert said.code == 2 and "A file stands where a folder is needed" in said.mistake, said
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
    assert said.code == 2 and "is the very file that is read" in said.mistake
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


def test_our_own_fault_is_exit_code_1_with_a_traceback(run: CommandLine, monkeypatch, model: Path) -> None:
    from bertkit.verbs import fill

    monkeypatch.setattr(fill, "run", lambda settings: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # Python itself prints the traceback and leaves with 1
        run("fill", model, "a [MASK]")


def test_an_interrupt_leaves_with_130(run: CommandLine, monkeypatch, model: Path) -> None:
    from bertkit.errors import Stopped
    from bertkit.verbs import fill

    def interrupted(reason: BaseException):
        def stop(settings):
            raise reason

        return stop

    for reason, code in ((KeyboardInterrupt(), 130), (Stopped(15, "saved and stopped"), 143)):
        monkeypatch.setattr(fill, "run", interrupted(reason))
        said = run("fill", model, "a [MASK]")
        assert said.code == code and "Traceback" not in said.err and said.mistake


def test_json_is_one_document_and_notes_stay_out_of_it(run: CommandLine, model: Path, tmp_path: Path) -> None:
    said = run("fill", model, "the [MASK] of [MASK]", "--top", 3, "--json")
    assert said.code == 0 and [len(mask) for mask in said.json["masks"]] == [3, 3]
    rows = written(tmp_path, "a.txt", "the cat\n北京\n")
    said = run("embed", model, rows, "--out", tmp_path / "v.npy", "--json", "--precision", "fp32")
    assert said.json["rows"] == 2 and said.json["precision"] == "fp32"
    assert "fp32 on cpu" in said.err and "fp32 on cpu" not in said.out


def rows_of(settings):
    return ({"row": number} for number in range(settings.top))


def test_rows_are_lines_or_with_json_one_array(run: CommandLine, model: Path, monkeypatch) -> None:
    from bertkit.verbs import fill

    monkeypatch.setattr(fill, "run", rows_of)
    for top in (1, 2, 3):
        rows = [{"row": number} for number in range(top)]
        assert run("fill", model, "x", "--top", top, "--json").json == rows
        assert [json.loads(line) for line in run("fill", model, "x", "--top", top).out.splitlines()] == rows
    monkeypatch.setattr(fill, "run", lambda settings: iter(()))
    assert run("fill", model, "x", "--json").json == [] and run("fill", model, "x").out == ""


def test_a_verb_without_a_result_prints_nothing_at_all(run: CommandLine, model: Path, monkeypatch) -> None:
    from bertkit.verbs import fill

    monkeypatch.setattr(fill, "run", lambda settings: None)
    assert run("fill", model, "x", "--json").out == run("fill", model, "x").out == ""


def test_settings_come_from_file_then_options_then_set(run: CommandLine, model: Path, tmp_path: Path) -> None:
    config = written(tmp_path, "r.toml", "top = 2\nprecision = 'fp32'\n")
    base = ["fill", model, "the [MASK]", "--config", config, "--json"]
    assert len(run(*base).json["masks"][0]) == 2
    assert len(run(*base, "--top", 3).json["masks"][0]) == 3
    assert len(run(*base, "--top", 3, "--set", "top=4").json["masks"][0]) == 4
    assert run(*base).json["precision"] == "fp32"


def test_the_doctor_tells_of_this_machine(run: CommandLine, monkeypatch) -> None:
    from bertkit import machine

    monkeypatch.setattr(machine, "matmul_speed", lambda kind: 1.0)  # half a second each that this test can do without
    found = run("doctor", "--json").json["machine"]
    assert found["threads"] >= 1 and found["memory_gb"] > 0 and found["versions"]["bertkit"] == bertkit.__version__
    text = run("doctor").out
    assert "threads" in text and "bf16" in text and "GFLOP/s" in text


@pytest.mark.parametrize(
    ("text", "name"), [("the cat sat on the mat", "en"), ("北京是一座古老的城市，有很多人住在那里。", "zh")]
)
def test_the_doctor_counts_tokens_without_being_told_a_model(text, name, run, monkeypatch, tmp_path: Path) -> None:
    from bertkit import machine
    from bertkit.text.tokenizer import Tokenizer

    monkeypatch.setattr(machine, "matmul_speed", lambda kind: 1.0)
    rows = written(tmp_path, "a.csv", f"text,label\n{text},a\n{text * 40},b\n")
    (file,) = run("doctor", rows, "--json").json["files"]
    longest = len(Tokenizer.load(Path(bertkit.__file__).parent / "models" / name).encode(text * 40).ids)
    (tokens,) = [one for one in file["lengths"] if one["unit"] == "tokens"]
    assert file["counted_by"] == name and tokens["percentiles"]["100"] == longest
    assert file["cuts"][0] == {**file["cuts"][0], "limit": 128, "rows": 1, "tokens": longest - 128}
    assert f"tokens ({name}'s tokenizer)" in run("doctor", rows).out


def test_the_reference_is_what_the_settings_say() -> None:
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, str(root / "docs/make_cli.py"), "--print"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    there = (root / "docs/cli.md").read_text("utf-8")
    assert there == done.stdout, "docs/cli.md is out of date: run python docs/make_cli.py"


def test_a_run_is_repeated_by_its_run_toml_alone(run: CommandLine, model: Path, tmp_path: Path) -> None:
    rows = written(tmp_path, "rows.csv", "text,label\n" + "".join(f"cat {n},x\nsea {n},y\n" for n in range(20)))
    first = run("finetune", "classify", "--train", rows, "--model", model, "--out", tmp_path / "a", "--steps", 2)
    again = run("finetune", "--config", tmp_path / "a/run.toml", "--out", tmp_path / "b")
    assert first.code == again.code == 0
    weights = [(tmp_path / out / "model.safetensors").read_bytes() for out in "ab"]
    assert weights[0] == weights[1]
    assert "TASK" in run("finetune", "--train", rows).err


def test_every_verb_that_makes_a_folder_leaves_its_settings_there(run: CommandLine, tmp_path: Path) -> None:
    text = written(tmp_path, "text.txt", "the cat sat on the mat\n" * 50)
    assert run("tokenizer", text, "--size", 60, "--out", tmp_path / "one").code == 0
    assert run("tokenizer", "--config", tmp_path / "one/run.toml", "--out", tmp_path / "two").code == 0
    assert (tmp_path / "one/tokenizer.json").read_bytes() == (tmp_path / "two/tokenizer.json").read_bytes()
