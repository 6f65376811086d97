"""The command line in this process: its words, its exit code, and what it wrote."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from json import loads
from typing import Any

import pytest

from bertkit import cli, notify


@dataclass(frozen=True)
class Said:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document it is."""
        return loads(self.out)

    @property
    def mistake(self) -> str:
        """The one line that tells a mistake."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("bertkit: ")]
        return line


class CommandLine:
    """`bertkit WORDS…`, without starting a process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> Said:
        self.monkeypatch.setattr(sys, "argv", ["bertkit", *map(str, words)])
        self.monkeypatch.setattr(notify, "_listener", notify._listener)  # main() sets its own; pytest puts it back
        self.capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        out, err = self.capsys.readouterr()
        return Said(code, out, err)
