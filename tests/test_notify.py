"""What is printed in Chinese: every help text and the usual messages; no entry outlives its message."""

from __future__ import annotations

import ast
import re
import string
import time
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit import cli, notify
from bertkit.commands import COMMANDS, fill, inspect
from bertkit.commands.parser import GROUPS, Command
from bertkit.data.readers.rows import read_rows
from bertkit.errors import UserError
from bertkit.runs.compress import measure
from bertkit.text.words import SUSPICIONS

PACKAGE = Path(notify.__file__).parent
TABLES = tomllib.loads((notify.MESSAGES / "zh.toml").read_text("utf-8"))


@pytest.fixture
def chinese() -> Iterator[None]:
    notify.speak("zh")
    yield
    notify.speak("en")


def helps() -> set[str]:
    """Every help text that a user can see."""
    seen = set(COMMANDS.values())
    for verb in COMMANDS:
        command = Command(verb)
        seen |= {command.about, *(o.meta["help"] for o in [*command.own, *command.common] if not o.meta["hidden"])}
    return seen


@cache
def parsed() -> dict[str, list[ast.AST]]:
    """Every file of the package by its name, as syntax."""
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: list(ast.walk(ast.parse(source))) for name, source in files.items()}


def templates() -> set[str]:
    """Every string of the source code, with {} for each value of an f-string."""
    found = set()
    for nodes in parsed().values():
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value.strip())
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
                found.add("".join(map(str, parts)).strip())
    return found


# The calls whose text a user reads, and the number of the argument it is in.
SAID = {"UserError": 0, "DamagedFile": 0, "note": 0, "status": 0, "track": 1, "Stopped": 1, "ApiError": 1,
        "tell": 0, "LeftOut": 1, "BadRow": 1}  # fmt: skip
# Calls whose English is for programmers, or for the help, which has a test of its own.
OTHERS = {"ValueError", "TypeError", "AttributeError", "OSError", "option", "Field"}
# English by design: model cards, the schemas of the server, the report's own words, and files that say who wrote them.
ENGLISH = ("checkpoint/card.py", "server/", "report/", "commands/demo.py", "runs/compare/run.py")
CARDS = ("remark", "change")  # the names of what a model card says
SENTENCE = re.compile(r".* .*[a-z)}][.?!]$", re.DOTALL)  # with a small letter, it follows a place: "x.csv, line 3: "


def spelled(node: ast.expr) -> list[str]:
    """What an expression may spell, with {} for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [first + second for first in spelled(node.left) for second in spelled(node.right)]
    if isinstance(node, ast.IfExp):
        return spelled(node.body) + spelled(node.orelse)
    return ["{}"]


def messages() -> Iterator[tuple[str, str]]:
    """Every message of the package, with its place: what is raised or notified, and each whole sentence elsewhere."""
    for name, nodes in parsed().items():
        aside: set[int] = set()  # docstrings, cards, errors of programmers, and what belongs to a longer message
        for node in nodes:
            if isinstance(node, ast.Expr):
                aside.add(id(node.value))
            elif isinstance(node, ast.JoinedStr):
                aside |= {id(part) for part in node.values}
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in (
                "remark",
                "change",
            ):  # of a card
                aside |= {id(part) for part in ast.walk(node)}
            elif isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                place = SAID.get(called)
                if place is not None and len(node.args) > place:
                    yield from ((f"{name}:{node.lineno}", text.strip()) for text in spelled(node.args[place]))
                if place is not None or called in OTHERS:
                    aside |= {id(part) for part in ast.walk(node)}
        if not name.startswith(ENGLISH):
            for node in nodes:
                if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in aside:
                    text = spelled(node)[0].strip()
                    if SENTENCE.match(text) and len(re.findall("[A-Za-z]{2,}", text)) > 1:
                        yield f"{name}:{node.lineno}", text


def test_no_message_falls_back_to_english() -> None:
    """A missing one is added to bertkit/messages/zh.toml, [messages], as "English {}" = "中文 {0}"."""
    known = {english.strip() for table in TABLES.values() for english in table}
    missing = [
        f"{place}: {text}"
        for place, text in messages()
        if re.search("[A-Za-z]{2}", text.replace("{}", "")) and text not in known
    ]
    assert missing == []


# Files with lines of results outside of `commands`.
OF_RESULTS = ("runs/compress/measure.py", "text/coverage.py", "data/prepare/run.py", "data/inspect.py")


def printed() -> Iterator[tuple[str, str]]:
    """Every line that a command prints as its result, with its place; {} for each value."""

    def strings(node: ast.AST) -> Iterator[ast.expr]:
        inside = ast.walk(node)
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp, ast.IfExp)) and not any(
            isinstance(part, (ast.List, ast.ListComp)) for part in inside
        ):
            yield node
        else:
            for part in [node.value] if isinstance(node, ast.Subscript) else ast.iter_child_nodes(node):
                yield from strings(part)

    for path in [*sorted((PACKAGE / "commands").glob("*.py")), *(PACKAGE / name for name in OF_RESULTS)]:
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef) and function.name.endswith(("lines", "_baseline")):
                for part in function.body[1:]:
                    for node in strings(part):
                        yield from ((f"{path.name}:{node.lineno}", text.strip()) for text in spelled(node))


def test_every_line_of_a_result_has_its_chinese() -> None:
    known = {english.strip() for table in TABLES.values() for english in table} | {"fp32 {} GFLOP/s (numpy)"}
    words = re.compile("[a-z]{3}")
    left = [
        f"{place}: {text}"
        for place, text in printed()
        if " " in text
        and words.search(text.replace("{}", ""))
        and text not in known
        and text.split("  ")[0] not in TABLES["rows"]
    ]
    assert left == []


def test_every_help_text_has_a_chinese_entry_and_none_is_stale():
    frame = set(TABLES["frame"])
    assert helps() - set(TABLES["help"]) - frame == set()
    assert set(TABLES["help"]) - helps() == set()
    assert {*GROUPS, "Arguments", "Options", "Commands", "Common options", cli.ABOUT} <= frame


def test_every_message_with_a_chinese_entry_is_still_in_the_code():
    everything = templates() | {"usage:"} | {text for _, text in [*messages(), *printed()]}
    stale = [
        english
        for table in ("messages", "frame", "rows", "values", "server")
        for english in TABLES[table]
        if english.strip() not in everything
        and english.removesuffix(", {}") not in everything  # of a list
        and not (table == "rows" and any(text.startswith(english + "  ") for text in everything))
    ]
    assert stale == []


def test_a_translation_uses_the_values_of_its_message():
    for table in TABLES.values():
        for english, chinese in table.items():
            used = {int(name) for _, name, _, _ in string.Formatter().parse(chinese) if name}
            assert used <= set(range(english.count("{}"))), english
            assert any("\u4e00" <= char <= "\u9fff" for char in chinese) or any(
                sign in chinese for sign in ("±", "true", ":T}")
            ), english


def test_messages_are_printed_in_chinese_with_their_values_untouched(chinese):
    said = notify.translated("3 of 7 rows were cut: 12 of 99 tokens were not seen.")
    assert said == "7 行中有 3 行被截断：99 个词元中有 12 个未被读取。"
    assert notify.translated("No such message 7.") == "No such message 7."
    assert notify.translated("x.csv does not exist. Did you mean 'y.csv'?") == "x.csv 不存在。是不是想写“y.csv”？"
    assert "The text" in notify.translated("  0.5  The text  (The text, document 3)")


def test_a_template_of_few_words_holds_only_around_a_message(chinese):
    assert notify.translated("tokenizer: kind is 'x'. Choose from: bpe.") == "tokenizer：kind 为 'x'。可选：bpe。"
    assert notify.translated("x.csv: this is not known. Nobody says so.") == "x.csv: this is not known. Nobody says so."


def test_a_file_in_gbk_and_a_line_that_is_not_json_are_refused_in_chinese(chinese, tmp_path):
    table, lines = tmp_path / "评论.csv", tmp_path / "评论.jsonl"
    table.write_bytes("text,label\n很好吃,正面\n".encode("gbk") * 9)
    lines.write_text('{"text": "好", "label": "正面"}，\n', "utf-8")
    said = []
    for path in (table, lines):
        with pytest.raises(UserError) as refused:
            list(read_rows(path))
        said.append(notify.translated(str(refused.value)).removeprefix(f"{path}"))
    assert said == [
        "，第 2 行：不是 UTF-8 编码；这个文件看起来是 gb18030。请加上 --encoding gb18030，或把文件另存为 UTF-8。",
        "，第 1 行：不是 JSON：第 29 个字符处有多余的内容。",
    ]


def test_a_place_is_in_chinese_only_where_a_message_begins_with_it(chinese):
    told = notify.translated("a.csv, line 1,203: 'label' has no label. Add one, or remove the row.")
    assert told == "a.csv，第 1,203 行：'label' 没有标签。请补上，或删去该行。"
    assert notify.translated("his poem, line 3") == "his poem, line 3"
    assert notify.translated("There is no model b.csv, line 3 here. Choose from: zh.").startswith(
        "这里没有模型 b.csv, line 3。"
    )


def test_two_models_are_compared_in_chinese_in_columns_as_wide_as_in_english(chinese):
    side = {"megabytes": 25.45, "texts_per_second": 268.0, "precision": "bf16"}
    table = measure.lines(
        {"before": side, "after": side, "threads": 1, "rows": 100, "parity": {"agreement": 1.0, "cosine": 0.9}}
    )
    said = [notify.translated(line) for line in table]
    assert said[0].split() == ["原模型", "新模型"]
    assert said[1] == "权重（MB）                     25.45       25.45  （大小为原来的 1.00 倍）"
    assert not re.search("[a-z]{3}", "".join(said[:2]))
    numbers = [line.split("  （")[0].split("  (")[0] for line in (*table, *said)]
    assert {notify.columns(line) for line in numbers} == {48}


def test_a_row_of_a_table_keeps_its_columns_in_chinese_and_a_users_own_line_its_words(chinese):
    rows = [f"  {name:34}{7:>10}" for name in SUSPICIONS]
    said = [notify.translated(row) for row in rows]
    assert {notify.columns(row) for row in said} == {46} and said[4].startswith("  控制字符  ")
    assert notify.translated("control  characters") == "control  characters"
    assert notify.columns("abc繁体ｘe\u0301") == 3 + 6 + 1 and notify.padded("繁", 4) == "繁  "


def test_guesses_in_chinese_and_in_letters_stand_in_the_same_columns():
    guesses = [{"score": 0.5, "token": token, "text": "$"} for token in ("天", "abc", "##ing", "ｘ", "[UNK]")]
    together = [{"score": 0.5, "tokens": [token, "好"], "text": "$"} for token in ("天", "abc")]
    tokens = [{"token": token, "importance": 1.0, "special": False} for token in ("天", "abc")]
    for lines in (fill.lines({"masks": [guesses]}), fill.lines({"joint": "beam", "fillings": together})):
        assert len({notify.columns(line.split("$")[0]) for line in lines}) == 1
    assert len({notify.columns(line) for line in inspect.lines({"said": None, "tokens": tokens, "page": "x"})[:2]}) == 1


def test_a_line_in_chinese_is_indented_as_in_english(chinese):
    rows = [f"  {name:32} 0.861   (95 % interval 0.778 to 0.931)" for name in ("bertkit", "majority")]
    assert [notify.translated(row)[:6] for row in rows] == ["  bert", "  majo"]


@pytest.mark.parametrize(
    "english, chinese_words",
    [
        ("step 14: accuracy 0.875  auc 0.94  ← best", "第 14 步：accuracy 0.875  auc 0.94  ← 最佳"),
        ("step 1/8  loss 0.7  lr 1e-03  1,200 tokens/s  0.4 GB  3 min 05 s to go",
         "第 1/8 步  损失 0.7  学习率 1e-03  1,200 词元/秒  0.4 GB  还需 3 分 05 秒"),
        ("tag from zh: 9 rows, 2 labels; 3 steps of 32 (1.0 passes), learning rate 4e-04, of word vectors 2e-03, "
         "dropout 0, bf16, 1 threads.",
         "tag，从 zh 开始：9 行，2 种标签；共 3 步，每步 32 行（1.0 轮），学习率 4e-04，词向量为 2e-03，dropout 0，"
         "bf16，1 个线程。"),
        ("a.tsv: reading text from column 'text_a', label from column 'y'.",
         "a.tsv：读取的列：text 取自列 'text_a'，label 取自列 'y'。"),
        ("  left out: gpt: it needs --gpt MODEL: a causal model (bertkit pretrain --preset gpt-mini)",
         "  略去：gpt：需要 --gpt MODEL：因果模型（bertkit pretrain --preset gpt-mini）"),
        ("300 of 599 training rows are used (--rows).", "599 行训练数据中（--rows）只用 300 行。"),
        ("warning         0.1M tokens are few for 2M parameters: use a smaller preset, or train longer.",
         "警告            0.1M 词元对 2M 参数来说太少：请用更小的预设，或训练更久。"),
        ("Text 1 has 2002 tokens; the model's limit is 1024. Shorten it, or choose --on-long window or truncate.",
         "第 1 条文本有 2002 个词元；模型的上限是 1024。请缩短文本，或用 --on-long window 或 truncate。"),
        ("a, line 3: the text has 9 tokens; the model's limit is 8. "
         "Shorten it, or choose --on-long window or truncate.",
         "a，第 3 行：文本有 9 个词元；模型的上限是 8。请缩短文本，或用 --on-long window 或 truncate。"),
        ("3 of 5 things.", "3 of 5 things."),
        ("it took 3 min 05 s", "it took 3 min 05 s"),
    ],
)  # fmt: skip
def test_what_a_run_tells_is_in_chinese_with_all_its_parts(chinese, english, chinese_words):
    assert notify.translated(english) == chinese_words


def test_a_long_passage_is_printed_in_chinese_without_a_wait(chinese):
    passage = "The quick fox: jumps over, the lazy dog. It is what it was, and more (see below), 1 of 2; or so. " * 40
    start = time.process_time()
    assert notify.translated(passage) == passage
    assert time.process_time() - start < 5  # of regular expressions, each sentence more took twice as long


@given(st.text("ab: ", max_size=12), st.text("ab: {", max_size=8).map(lambda text: text.replace("{", "{}")))
def test_values_are_those_that_a_regular_expression_finds(text, template):
    pattern = re.escape(template).replace(r"\{\}", "(.*?)")
    match = re.fullmatch(pattern, text, re.DOTALL)
    if "{}" in template:
        assert notify.values_of(template.split("{}"), text) == (list(match.groups()) if match else None)


def test_without_a_language_nothing_changes():
    assert notify.translated("nothing found") == "nothing found"


@pytest.mark.parametrize("ask", [["--help", "--lang", "zh"], ["fill", "--help", "--lang=zh"], ["prepare", "--help"]])
def test_help_is_chinese_by_option_or_environment(ask, capsys, monkeypatch):
    if "zh" not in "".join(ask):
        monkeypatch.setenv("BERTKIT_LANG", "zh")
    monkeypatch.setattr("sys.argv", ["bertkit", *ask])
    try:
        cli.main()
    except SystemExit as done:
        assert not done.code
    finally:
        notify.speak("en")
    out = capsys.readouterr().out
    assert out.startswith("用法：") and "显示本帮助。" in out and "Show this help" not in out


def test_an_error_is_chinese(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bertkit", "fill", "--topp", "3", "--lang", "zh"])
    with pytest.raises(SystemExit):
        cli.main()
    notify.speak("en")
    assert capsys.readouterr().err == "bertkit: fill：没有选项“--topp”。是不是想写“--top”？参见：bertkit fill --help\n"
