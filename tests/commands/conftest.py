from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import folders
from tests.support.command_line import CommandLine


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    folders.write(folder, "bert", "BertForMaskedLM")
    return folder
