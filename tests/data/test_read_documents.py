"""Readers of running text: where a document ends, and that none of it is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertkit.data.readers import (
    read_documents,
)
from bertkit.data.readers.documents import LONGEST_DOCUMENT


def test_an_empty_line_ends_a_document(put: Any) -> None:
    path = put("a.txt", "one\ntwo\n\n\nthree\r\n \r\nfour\n")
    assert list(read_documents(path)) == ["one\ntwo", "three\nfour"]


def test_a_title_begins_a_wikitext_document(put: Any) -> None:
    path = put("a.tokens", " \n = A = \n \n text \n \n = = Part = = \n \n more \n \n = B C = \n \n end \n")
    assert [" ".join(document.split()) for document in read_documents(path)] == [
        "= A = text = = Part = = more",
        "= B C = end",
    ]


def test_folders_are_walked_by_name_and_other_files_reported(put: Any, tmp_path: Path, notes: list[str]) -> None:
    put("d/b/x.jsonl", '{"text": "third"}\n')
    put("d/a.txt", "first\n\nsecond\n")
    put("d/z.png", "x")
    put("d/.hidden.txt", "x")
    assert list(read_documents([tmp_path / "d"])) == ["first", "second", "third"]
    assert "1 files of other formats are skipped" in notes[0]


@pytest.mark.parametrize("unit", ["word ", "字", "a line\n"])
def test_a_huge_document_is_cut_but_loses_nothing(put: Any, notes: list[str], unit: str) -> None:
    text = unit * (int(2.5 * LONGEST_DOCUMENT) // len(unit))
    pieces = list(read_documents(put("a.txt", text)))
    assert len(pieces) >= 3
    assert max(map(len, pieces)) <= LONGEST_DOCUMENT
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert any("were split" in note for note in notes)
    rows = list(read_documents(put("a.jsonl", json.dumps({"text": text}))))
    assert "".join(rows) == text
    assert max(map(len, rows)) <= LONGEST_DOCUMENT
