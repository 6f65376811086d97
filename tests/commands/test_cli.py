"""The command line: quick help, results on stdout, settings from files, options and --set."""

from __future__ import annotations

import io
import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bertkit
from bertkit.commands import COMMANDS
from bertkit.errors import UserError
from tests.support.bad_files import written
from tests.support.command_line import CommandLine

HELP = """
import contextlib, io, json, sys
from bertkit import cli
from bertkit.commands import COMMANDS
from bertkit.errors import UserError
shown = {}
for words in ([], *([verb] for verb in COMMANDS)):
    sys.argv = ["bertkit", *words, "--help"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            cli.main()
        except SystemExit as leaving:
            assert not leaving.code, (words, leaving.code)
    heavy = [name for name in ("torch", "numpy", "tokenizers", "pydantic", "fastapi", "tqdm", "rich", "typer", "click")
             if name in sys.modules]
    shown[" ".join(words)] = [out.getvalue(), heavy]
print(json.dumps(shown))
"""


def test_every_help_is_shown_without_importing_anything_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown.keys() == {"", *COMMANDS}
    for verb, (text, heavy) in shown.items():
        assert heavy == [], verb
        assert text.startswith(f"usage: bertkit {verb}".strip()) and "--help" in text
        if verb:
            assert all(option in text for option in ("--seed", "--threads", "--device", "--precision", "--config",
                                                     "--set", "--json", "--quiet")), verb  # fmt: skip
    assert all(verb in shown[""][0] and about[:40] in shown[""][0] for verb, about in COMMANDS.items())


def test_the_installed_command_and_the_module_are_the_same() -> None:
    script = Path(sys.executable).with_name("bertkit")
    ways = [[sys.executable, "-m", "bertkit"]] + ([[str(script)]] if script.exists() else [])
    for way in ways:
        done = subprocess.run([*way, "--version"], capture_output=True, text=True)
        assert (done.returncode, done.stdout.strip()) == (0, bertkit.__version__), done.stderr
    done = subprocess.run([*ways[-1], "fil"], capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_our_own_fault_is_exit_code_1_with_a_traceback(run: CommandLine, monkeypatch, model: Path) -> None:
    from bertkit.commands import fill

    monkeypatch.setattr(fill, "run", lambda settings: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # Python itself prints the traceback and leaves with 1
        run("fill", model, "a [MASK]")


def test_an_interrupt_leaves_with_130(run: CommandLine, monkeypatch, model: Path) -> None:
    from bertkit.commands import fill
    from bertkit.errors import Stopped

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


def test_quiet_leaves_the_result_and_the_errors(run: CommandLine, model: Path, tmp_path: Path) -> None:
    command = ["embed", model, written(tmp_path, "a.txt", "the cat\n"), "--out", tmp_path / "v.npy"]
    loud, quiet = run(*command), run(*command, "--quiet")
    assert loud.err and quiet.err == "" and quiet.code == 0
    assert quiet.out.split()[0] == loud.out.split()[0] and len(quiet.out.splitlines()) == len(loud.out.splitlines())
    assert run("embed", model, tmp_path / "none.txt", "--quiet").mistake


def test_the_bar_of_a_terminal_passes_everything_on_and_clears_itself(monkeypatch, capsys) -> None:
    from bertkit.cli import Terminal

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(Terminal().track(iter(range(5)), "counting", 5)) == [0, 1, 2, 3, 4]
    shown = capsys.readouterr().err
    assert "counting" in shown and "5" in shown and shown.endswith("\r")
    assert list(Terminal(quiet=True).track(iter("abc"), "counting", 3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


def test_a_reader_that_has_had_enough_is_no_fault() -> None:
    change = "fill.run = lambda s: iter(range(99_999))"
    script = f"from bertkit import cli\nfrom bertkit.commands import fill\n{change}\ncli.main()"
    command = f"{sys.executable} -c '{script}' fill en x | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_the_environment_chooses_the_language_of_reports_but_not_of_texts(run: CommandLine, monkeypatch) -> None:
    from bertkit.commands import demo, prepare

    for verb in (demo, prepare):
        monkeypatch.setattr(verb, "run", lambda settings: settings.lang)
    monkeypatch.setenv("BERTKIT_LANG", "zh")
    assert run("demo", "--json").json == "zh" and run("demo", "--lang", "en", "--json").json == "en"
    assert run("prepare", "a.txt", "--tokenizer", "en", "--out", "x", "--json").json == "auto"
    monkeypatch.setenv("BERTKIT_LANG", "fr")
    said = run("demo")
    assert said.code == 2 and "BERTKIT_LANG is 'fr'" in said.mistake


def test_without_a_choice_the_locale_is_the_language(run: CommandLine, monkeypatch) -> None:
    from bertkit.commands import demo

    monkeypatch.setattr(demo, "run", lambda settings: settings.lang)
    monkeypatch.delenv("BERTKIT_LANG", raising=False)
    for locale, lang in [("zh_CN.UTF-8", "zh"), ("zh-Hans", "zh"), ("de_DE.UTF-8", "en"), ("C", "en"), ("", "en")]:
        monkeypatch.setenv("LC_ALL", locale)
        monkeypatch.setenv("LC_MESSAGES", "C")
        assert run("demo", "--json").json == lang, locale
    monkeypatch.setenv("LC_ALL", "zh_TW.UTF-8")
    monkeypatch.setenv("BERTKIT_LANG", "en")
    assert run("demo", "--json").json == "en"


def rows_of(settings):
    return ({"row": number} for number in range(settings.top))


def test_rows_are_lines_or_with_json_one_array(run: CommandLine, model: Path, monkeypatch) -> None:
    from bertkit.commands import fill

    monkeypatch.setattr(fill, "run", rows_of)
    for top in (1, 2, 3):
        rows = [{"row": number} for number in range(top)]
        assert run("fill", model, "x", "--top", top, "--json").json == rows
        assert [json.loads(line) for line in run("fill", model, "x", "--top", top).out.splitlines()] == rows
    monkeypatch.setattr(fill, "run", lambda settings: iter(()))
    assert run("fill", model, "x", "--json").json == [] and run("fill", model, "x").out == ""


def test_a_verb_without_a_result_prints_nothing_at_all(run: CommandLine, model: Path, monkeypatch) -> None:
    from bertkit.commands import fill

    monkeypatch.setattr(fill, "run", lambda settings: None)
    assert run("fill", model, "x", "--json").out == run("fill", model, "x").out == ""


def test_settings_come_from_file_then_options_then_set(run: CommandLine, model: Path, tmp_path: Path) -> None:
    config = written(tmp_path, "r.toml", "top = 2\nprecision = 'fp32'\n")
    base = ["fill", model, "the [MASK]", "--config", config, "--json"]
    assert len(run(*base).json["masks"][0]) == 2
    assert len(run(*base, "--top", 3).json["masks"][0]) == 3
    assert len(run(*base, "--top", 3, "--set", "top=4").json["masks"][0]) == 4
    assert run(*base).json["precision"] == "fp32"


def test_a_vocabulary_is_learnt_from_standard_input_in_one_pass(run: CommandLine, monkeypatch, tmp_path: Path) -> None:
    text = "the cat sat on the mat\n" * 40
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    said = run("tokenizer", "-", "--size", 60, "--out", tmp_path / "piped", "--json")
    assert said.code == 0, said.err
    whole = run("tokenizer", written(tmp_path, "a.txt", text), "--size", 60, "--out", tmp_path / "read", "--json")
    assert said.json["report"] == whole.json["report"]


def test_the_doctor_tells_of_this_machine(run: CommandLine, monkeypatch) -> None:
    from bertkit import machine

    monkeypatch.setattr(machine, "matmul_speed", lambda *_: 1.0)  # half a second each that this test can do without
    found = run("doctor", "--json").json["machine"]
    assert found["threads"] >= 1 and found["memory_gb"] > 0 and found["versions"]["bertkit"] == bertkit.__version__
    text = run("doctor").out
    assert "threads" in text and "bf16" in text and "GFLOP/s" in text


@pytest.mark.parametrize(
    ("text", "name"), [("the cat sat on the mat", "en"), ("北京是一座古老的城市，有很多人住在那里。", "zh")]
)
def test_the_doctor_counts_tokens_without_being_reported_a_model(text, name, run, monkeypatch, tmp_path: Path) -> None:
    from bertkit import machine
    from bertkit.text.tokenizer import Tokenizer

    monkeypatch.setattr(machine, "matmul_speed", lambda *_: 1.0)
    rows = written(tmp_path, "a.csv", f"text,label\n{text},a\n{text * 40},b\n")
    (file,) = run("doctor", rows, "--json").json["files"]
    longest = len(Tokenizer.load(Path(bertkit.__file__).parent / "models" / name).encode(text * 40).ids)
    (tokens,) = [one for one in file["lengths"] if one["unit"] == "tokens"]
    assert file["counted_by"] == name and tokens["percentiles"]["100"] == longest
    assert file["cuts"][0] == {**file["cuts"][0], "limit": 128, "rows": 1, "tokens": longest - 128}
    assert f"tokens ({name}'s tokenizer)" in run("doctor", rows).out


def test_the_reference_is_what_the_settings_say() -> None:
    docs = Path(__file__).parents[2] / "docs"
    reference = runpy.run_path(str(docs / "make_cli.py"))["reference"]
    assert (docs / "cli.md").read_text("utf-8") == reference(), (
        "docs/cli.md is out of date: run python docs/make_cli.py"
    )


def test_other_names_of_options_work_and_are_not_shown(run: CommandLine, model: Path, tmp_path: Path) -> None:
    rows = written(tmp_path, "rows.csv", "text,label\n" + "".join(f"cat {n},x\nsea {n},y\n" for n in range(20)))
    config = written(tmp_path, "r.toml", "other_settings = true\nlearning_rate = 0.5\n")
    words = ["finetune", "classify", "--train", rows, "--model", model, "--steps", 1, "--config", config]
    said = run(*words, "--output-dir", tmp_path / "a", "--learning-rate", 0.01, "--batch-size", 4, "--max-length", 32)
    assert said.code == 0, said.err
    settings = tomllib.loads((tmp_path / "a/run.toml").read_text("utf-8"))
    assert (settings["lr"], settings["batch"], settings["max_tokens"]) == (0.01, 4, 32)
    assert settings["allow_changed_settings"] is True
    shown = run("finetune", "--help").out
    assert "--lr" in shown and "--learning-rate" not in shown and "--other-settings" not in shown
    both = written(tmp_path, "both.toml", "lr = 0.01\nlearning_rate = 0.02\n")
    assert "same setting" in run(*words[:-1], both, "--out", tmp_path / "b").mistake


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


HOSTILE_LABELS = ("\x1b]0;owned\x07", "\x9b31mred", "\u202egnp.exe", "\x7f\x08\x08")


def test_escape_sequences_in_labels_never_reach_the_terminal(run: CommandLine, tmp_path: Path) -> None:
    rows = "".join(f'"the {word} text","{label}"\n' for label in HOSTILE_LABELS for word in ("first", "second"))
    file = tmp_path / "rows\x1b[2J.csv"
    file.write_text("text,label\n" + rows, "utf-8")
    for words in (("doctor", file), ("evaluate", "en", file), ("finetune", "classify", "--train", tmp_path / "\x9b2J")):
        told = run(*words)
        shown = told.out + told.err
        assert shown and not set(shown) & set("\x1b\x07\x08\x7f\x9b\u202e"), words


def test_json_output_means_the_same_without_control_characters(capsys) -> None:
    from bertkit.cli import _print, _print_rows

    row = {"label": HOSTILE_LABELS[0] + HOSTILE_LABELS[1], "text": "tab\tand\nline é 中"}
    _print_rows(iter([row]), as_json=False)
    _print(row, None, as_json=True)
    for line in capsys.readouterr().out.splitlines():
        assert json.loads(line) == row and not set(line) & set("\x1b\x07\x9b") and "é 中" in line


def test_layers_are_compared_as_features_from_python_too() -> None:
    with pytest.raises(UserError, match="no model 'nowhere'"):
        bertkit.features(model="nowhere", file="rows.csv")
