"""The README's commands do what it says, in its own order."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit import samples
from tests.support.command_line import CommandLine

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL)


@pytest.mark.slow
def test_every_command_of_the_visit_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bertkit = CommandLine(monkeypatch, capsys)
    shutil.copy(samples.path("en", "messages_train.csv"), tmp_path / "mine.csv")
    shutil.copy(samples.path("en", "passages.txt"), tmp_path / "text.txt")
    commands = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    visit = [command for command in commands if command.startswith("bertkit")]
    assert len(visit) >= 8
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(visit[0], shell=True, capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    for command in visit[1:]:
        said = bertkit(*shlex.split(command)[1:])
        assert said.code == 0 and "Traceback" not in said.err, f"{command}\n{said.err}"
    (python,) = blocks("python")
    exec(python, {})
    assert (tmp_path / "spam" / "report.html").is_file() and (tmp_path / "vectors.npy").is_file()


def test_every_file_the_readme_points_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text("utf-8"))
    missing = [link for link in links if "://" not in link and not (README.parent / link).exists()]
    assert not missing


def test_the_make_targets_of_the_readme_exist() -> None:
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.MULTILINE)
    makefile = (README.parent / "Makefile").read_text("utf-8")
    assert targets and all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_the_chinese_readme_has_the_same_code_headings_tables_and_links() -> None:
    """Only words differ: comments, text, and that each names the other in its first lines."""
    english, chinese = README.read_text("utf-8"), README.with_name("README.zh-CN.md").read_text("utf-8")

    def code(text: str) -> list[str]:
        found = re.findall(r"```(\w+)\n(.*?)```", text, flags=re.DOTALL)
        return [re.sub(r" *# .*", "", body) if kind in ("sh", "python") else body for kind, body in found]

    assert code(english) == code(chinese)
    for pattern in (r"^(#+) ", r"^\|(?!-)", r"^\d\. \[(.+?)\]", r"^- "):
        assert len(re.findall(pattern, english, re.M)) == len(re.findall(pattern, chinese, re.M)), pattern
    links = [
        {link.replace(".zh.md", ".md") for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("README")}
        for text in (english, chinese)
    ]
    assert links[0] == links[1]
    numbers, theirs = (set(re.findall(r"\d[\d,.]*\d", text)) for text in (english, chinese))
    assert numbers - theirs <= {"38", "79"}  # millions of tokens, which Chinese counts in ten thousands
