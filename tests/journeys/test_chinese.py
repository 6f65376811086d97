"""A whole visit in Chinese: help, messages, results and mistakes; no English sentence is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertkit import samples
from bertkit.commands import COMMANDS
from tests.support.command_line import CommandLine

# Four Latin words in a row are an English sentence: names, commands and file types come in ones and twos.
ENGLISH = re.compile(r"(?:\b[A-Za-z][a-z]+\b[ ,;:'’]+){3}[a-z]+")
NAMES = re.compile(r"bertkit [\w ]+|TF-IDF \+ logistic regression|--\S+|`[^`]*`|'[^']*'|“[^”]*”")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("BERTKIT_LANG", "zh")
    return CommandLine(monkeypatch, capsys)


def english(text: str) -> list[str]:
    return [line for line in text.splitlines() if ENGLISH.search(NAMES.sub("·", line))]


def test_the_check_itself_finds_english_sentences() -> None:
    assert english("· 6 行\nThe text is new and untrained.\n用 bertkit pretrain --resume 继续") == [
        "The text is new and untrained."
    ]


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_help_of_every_command_is_chinese(run: CommandLine, verb: str) -> None:
    assert english(run(verb, "--help").out) == []


def test_the_doctor_describes_a_machine_and_a_file_in_chinese(run: CommandLine, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{'<b>好</b>' * (n % 3)}第{n % 70}条,类{n % 60}" for n in range(120)] + [
        "很" * 700 + ",类1",
        " ,类 1",
        "空,",
    ]
    Path("rows.csv").write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8")
    Path("dev.csv").write_text("text,label\n" + "\n".join(rows[:9]) + "\n", "utf-8")
    said = run("doctor", "rows.csv", "dev.csv")
    names = re.compile(r"^(bf16|GPU) ")  # these two are called so in Chinese, too
    left = [line for line in said.out.splitlines() if line and not re.search("^ *[一-鿿]", names.sub("", line))]
    assert [line for line in left if not re.match(r"\w+\.csv：\d+ 行（csv，utf-8）", line)] == []


@pytest.mark.slow
def test_ten_commands_leave_no_english_sentence(run: CommandLine, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = samples.path("zh", "passages.txt")
    rows = samples.path("zh", "messages_train.csv").read_text("utf-8").splitlines()
    Path("rows.csv").write_text("\n".join(rows[:81]) + "\n", "utf-8")
    tiny = [
        "--set",
        "model.width=32",
        "--set",
        "model.inner=64",
        "--set",
        "lengths=[[1.0,32]]",
        "--set",
        "batch_tokens=256",
    ]
    visit = [
        ["doctor", "rows.csv"],
        ["tokenizer", text, "--size", "2000", "--out", "tok"],
        ["prepare", text, "--tokenizer", "tok", "--out", "store", "--workers", "1"],
        ["pretrain", "--preset", "bert-tiny", "--data", "store", "--out", "own", "--steps", "2", *tiny],
        ["inspect", "store"],
        ["fill", "zh", "今天天[MASK]很好。"],
        ["finetune", "classify", "--train", "rows.csv", "--model", "own", "--out", "spam", "--steps", "2"],
        ["predict", "spam", "rows.csv", "--out", "answers.jsonl"],
        ["evaluate", "spam", "rows.csv"],
        ["embed", "own", "rows.csv", "--out", "vectors.npy"],
        ["next", "own", "今天下雨。", "我们在家看书。"],
        ["meaning", "长", "桌子的长度是两米", "孩子长高了", "--models", "own"],
        ["features", "own", "rows.csv"],
        ["learn", "ngram", text, "--out", "lm", "--order", "2"],
        ["score", "lm", "海水为什么是咸的"],
        ["suggest", "lm", "一个"],
        ["index", text, "--model", "own", "--out", "idx"],
        ["search", "idx", "海水为什么是咸的"],
        ["quantize", "spam", "--to", "bf16", "--out", "small"],
    ]  # fmt: skip
    left = {}
    for words in visit:
        said = run(*words)
        assert said.code == 0, (words, said.err)
        if lines := english(said.out + said.err):
            left[words[0]] = lines
    assert left == {}


MISTAKES = [
    ["fill", "zh", "没有空格。"],
    ["fill", "nowhere", "今天天[MASK]很好。"],
    ["predict", "zh", "rows.csv"],
    ["finetune", "classify", "--train", "missing.csv"],
    ["finetune", "classify", "--train", "rows.csv", "--text", "nichts"],
    ["finetune", "classfy", "--train", "rows.csv"],
    ["tokenizer", "rows.csv", "--kind", "bytes"],
    ["tokenizer", "rows.csv", "--sise", "9"],
    ["pretrain", "--preset", "bert-nano", "--data", "store"],
    ["pretrain", "--data", "rows.csv"],
    ["embed", "zh", "rows.csv", "--layers", "99", "--out", "v.npy"],
    ["search", "nowhere", "海"],
    ["prepare", "rows.csv", "--tokenizer", "zh"],
    ["fil", "zh", "x"],
]


@pytest.mark.parametrize("words", MISTAKES, ids=lambda words: " ".join(words[:2]) + f" {len(words)}")
def test_a_mistake_is_reported_in_chinese(run: CommandLine, tmp_path: Path, monkeypatch, words: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("text,label\n你好,正常\n中奖了,垃圾\n", "utf-8")
    said = run(*words)
    assert said.code == 2
    assert english(said.err) == [] and re.search("[一-鿿]", said.mistake), said.err
