"""Options as they are typed, shown in help, and completed by the shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from bertkit import notify
from bertkit.commands import COMMANDS
from bertkit.commands.parser import LONG, Command, Invocation
from bertkit.config import Common
from tests.support.command_line import CommandLine


def test_options_may_stand_before_between_and_after_arguments() -> None:
    wanted = {"texts": [Path("a"), Path("b"), Path("-")], "size": 9, "cased": True}
    for words in (
        "a b - --size 9 --cased",
        "--size=9 a b --cased -",
        "--cased a --size 9 b -",
        "--cased --size 9 -- a b -",
    ):
        assert Command("tokenizer").parse(words.split()) == wanted, words


@pytest.mark.parametrize(
    "words, wanted",
    [
        (["--layers", "-1,-2"], {"layers": "-1,-2"}),
        (["--layers=-1,-2"], {"layers": "-1,-2"}),
        (["--text", ""], {"text": ""}),
        (["--set", "a=b=c", "--set", "d=-1"], {"sets": ["a=b=c", "d=-1"]}),
        (["--", "-m", "--top"], {"model": "-m", "file": Path("--top")}),
        (["- a text with a dash", "-5"], {"model": "- a text with a dash", "file": Path("-5")}),
        (["--pool", "cls", "--pool", "max"], {"pool": "max"}),
        ([], {}),
    ],
)
def test_values_and_arguments_are_taken_as_they_are_typed(words: list[str], wanted: dict) -> None:
    assert Command("embed").parse(words) == wanted


def test_short_options_take_their_value_in_every_usual_way() -> None:
    for words in (["-k", "7"], ["-k7"], ["-k=7"], ["--k", "7"], ["--k=7"]):
        assert Command("search").parse(words) == {"k": 7}


def test_a_flag_that_is_on_by_default_can_be_switched_off() -> None:
    command = Command("compare")
    assert (command.parse(["--no-curve"]), command.parse(["--curve"]), command.parse([])) == (
        {"curve": False}, {"curve": True}, {},
    )  # fmt: skip
    assert "--no-json" not in command.spellings


def test_the_usual_spellings_of_other_tools_are_accepted_and_shown_nowhere() -> None:
    command = Command("finetune")
    usual = {
        "--learning-rate": "lr", "--batch-size": "batch", "--max-length": "max_tokens", "--output-dir": "out",
        "--num-epochs": "epochs", "--passes": "epochs", "--warmup-ratio": "warmup", "--weight-decay": "decay",
    }  # fmt: skip
    for alias, name in usual.items():
        assert list(command.parse([alias, "1"])) == [name]
        assert alias not in command.parser().format_help()
    reference = (Path(__file__).parents[2] / "docs/cli.md").read_text("utf-8")
    assert not [alias for alias in usual if alias in reference]


def test_an_alias_never_hides_an_option_of_that_name() -> None:
    for verb in COMMANDS:
        command = Command(verb)
        for o in [*command.own, *command.common]:
            if not o.meta["argument"]:
                assert all(command.spellings[spelling][1] is o for spelling in o.spellings), (verb, o.spelled)


def test_no_verb_has_a_setting_of_the_command_lines_own_name() -> None:
    own = {f.name for f in fields(Invocation)} - {"lang"}  # a command's own lang takes the place of the common one
    for verb in COMMANDS:
        assert not own & {f.name for f in fields(Command(verb).module.Settings)}, verb


def test_every_option_of_a_long_command_has_a_heading() -> None:
    long = [command for verb in COMMANDS if len((command := Command(verb)).own) - len(command.arguments) > LONG]
    assert {"finetune", "pretrain"} <= {command.verb for command in long}
    for command in long:
        groups = command.groups()
        assert [o.spelled for o in groups.get("Options", [])] == [], command.verb
        assert {"Training", "Output"} <= groups.keys(), command.verb


@pytest.mark.parametrize("columns", [60, 100, 300])
def test_help_is_as_wide_as_the_terminal_and_at_most_100_columns(columns: int, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for verb in COMMANDS:
        lines = Command(verb).parser().format_help().splitlines()
        described = [line for line in lines[1:] if not line.startswith("  -")]
        assert max(map(len, described)) <= min(columns, 100), verb
        assert columns == 60 or max(map(len, described)) > 60


def test_help_shows_defaults_choices_and_what_is_required(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = Command("finetune").parser().format_help()
    assert text.startswith("usage: bertkit finetune TASK --train PATH [options]\n")
    assert "(default: runs/finetune)" in text and "(required)" in text
    assert "--schedule linear|cosine|trapezoid|constant" in text and "--micro-tokens" not in text
    assert "[FILES…]" in Command("doctor").usage and "--curve, --no-curve" in Command("compare").parser().format_help()


def test_help_is_shown_whatever_else_is_typed(run: CommandLine) -> None:
    said = run("finetune", "--top", "--help")
    assert said.code == 2  # a mistake that comes first is told first
    said = run("finetune", "--train", "x", "--help", "--bogus")
    assert said.code == 0 and said.out.startswith("usage: bertkit finetune")


def test_without_a_command_the_commands_are_shown_as_a_mistake(run: CommandLine) -> None:
    said = run()
    assert said.code == 2 and said.out == "" and said.err.startswith("usage: bertkit COMMAND")
    said = run("--help")
    assert said.code == 0 and said.out.startswith("usage: bertkit COMMAND")


COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _bertkit; echo "${COMPREPLY[@]}"
"""


def test_bash_completes_commands_options_and_values(run: CommandLine, tmp_path: Path) -> None:
    script = tmp_path / "bertkit.bash"
    script.write_text(run("completion", "bash").out, "utf-8")

    def completed(*words: str) -> str:
        command = ["bash", "-c", COMPLETE, "bash", str(script), "bertkit", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert completed("fi") == "finetune fill" and completed("--v") == "--version"
    assert completed("finetune", "c") == "classify choose"
    assert completed("finetune", "classify", "--lang", "") == "en zh"
    assert (
        completed("finetune", "classify", "--la")
        == "--label --label-separator --labels --layer-decay --language --lang"
    )
    assert completed("compare", "tag", "--no") == "--no-curve"
    assert completed("fill", "en", "a") == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_has_every_option_and_no_hidden_one(shell: str, run: CommandLine) -> None:
    text = run("completion", shell).out
    for verb in COMMANDS:
        command = Command(verb)
        for o in [*command.own, *command.common]:
            if not o.meta["argument"] and not o.meta["hidden"]:
                name = o.spelled[2:] if shell == "fish" else o.spelled
                assert (f"'__bertkit_command {verb}' -l {name} " if shell == "fish" else name) in text, (verb, name)
    assert "learning-rate" not in text and "eval-length" not in text
    assert {f.name for f in fields(Common)} <= set(text.replace("-", " ").replace("[", " ").split())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_completion_script_is_one_its_shell_can_read(shell: str, run: CommandLine, tmp_path: Path) -> None:
    from shutil import which

    if not which(shell):
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(run("completion", shell).out, "utf-8")
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_the_command_line_does_without_typer_and_rich() -> None:
    script = "import sys; sys.modules.update(typer=None, rich=None, click=None); from bertkit import cli; cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "doctor", "--help"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0 and "usage: bertkit doctor" in done.stdout, done.stderr


@pytest.mark.parametrize("verb", ["embed", "finetune", "index", "demo"])
def test_help_in_chinese_fits_the_terminal_and_breaks_no_word(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(notify, "_language", "zh")
    command = Command(verb)
    page = command.parser().format_help()
    assert max(map(notify.columns, page.splitlines()[1:])) <= 80
    unbroken = set(re.findall(r"[\w./-]{9,}", page, re.ASCII))
    shown = [o for o in [*command.own, *command.common] if not o.meta["hidden"]]
    said = " ".join(notify.translated(o.meta["help"]) for o in shown)
    assert set(re.findall(r"[\w./-]{9,}", said, re.ASCII)) <= unbroken
    if verb == "finetune":
        assert "报告的语言。（默认：zh）" in page
