"""Whatever the bytes, a reader gives examples or a UserError, never another exception."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertkit.data.inspect import inspect_file
from bertkit.data.readers import (
    read_choices,
    read_documents,
    read_minimal_pairs,
    read_questions,
    read_rows,
    read_tagged,
)
from bertkit.data.write_rows import open_writer
from bertkit.errors import UserError
from bertkit.files.open import COMPRESSIONS

quiet = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=40)
SQUAD = {"data": [{"paragraphs": [{"context": "a b c", "qas": [{"id": 1, "question": "?", "answers": []}]}]}]}
ANSWER = {"id": "1", "question": "?", "context": "a b", "answers": [{"text": "b", "start": 2}]}
CONLLU = "# c\n1\tDo\tdo\tAUX" + "\t_" * 6 + "\n1-2\tx" + "\t_" * 8 + "\n\n"

Reader = Callable[[Path], Iterator[Any]]
# name of the file, a valid content, its reader
CASES: dict[str, tuple[str, str, Reader]] = {
    "csv": ("a.csv", 'text,label\n"a ""b"",\nc",x\nd é汉,y\n', read_rows),
    "csv numbers": ("a.csv", "text,label\na,1.5\nb,-2\n", lambda path: read_rows(path, number=True)),
    "csv pairs": ("a.csv", "text;text_b;label\na;b;x\n", lambda path: read_rows(path, text_b="text_b")),
    "tsv": ("a.tsv", 'id\tsentence\tlabel\n1\t"a\tx\n2\td é汉\ty\n', read_rows),
    "tsv by number": ("a.tsv", "x\ta b\ny\tc\n", lambda path: read_rows(path, text="2", label="1")),
    "txt": ("a.txt", "one\ntwo\n", lambda path: read_rows(path, labelled="maybe")),
    "jsonl": ("a.jsonl", '{"text": "a\\u00e9", "label": [1, "b"]}\n' * 3, lambda p: read_rows(p, multi_label=True)),
    "json list": ("a.json", '[{"text": "a", "label": 1},\n{"text": "b", "label": true}]', read_rows),
    "conll": ("a.conll", "-DOCSTART- O\n\nEU NNP B-ORG\nsays VB O\n\nok UH O\n", read_tagged),
    "conllu": ("a.conllu", CONLLU, read_tagged),
    "tagged jsonl": ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O", 1]}\n', read_tagged),
    "squad": ("a.json", json.dumps(SQUAD), read_questions),
    "questions": ("a.jsonl", json.dumps(ANSWER) + "\n", read_questions),
    "choices": ("a.jsonl", '{"text": "a", "choices": ["x", "y"], "label": 1}\n', read_choices),
    "pairs": ("a.jsonl", '{"sentence_good": "a", "sentence_bad": "b", "UID": 3}\n', read_minimal_pairs),
    "documents": ("a.txt", "one\ntwo\n\nthree\n", read_documents),
    "wikitext": ("a.tokens", " \n = A = \n \n b \n", read_documents),
    "doctor": ("a.csv", "text,label\na,x\n", lambda path: iter(inspect_file(path).lines())),
    "doctor json": ("a.json", json.dumps(SQUAD), lambda path: iter(inspect_file(path).lines())),
}
TOKENS = [
    '"',
    "\n",
    "\r",
    "\t",
    ",",
    "\0",
    "{",
    "}",
    "[",
    "]",
    ":",
    "null",
    "1e999",
    "NaN",
    "\\ud800",
    "-",
    "é",
    "\ufeff",
]


def only_user_errors(reader: Reader, path: Path) -> None:
    try:
        for _ in reader(path):
            pass
    except UserError as error:
        assert path.name in str(error)


def mutated(raw: bytes, seed: int) -> bytes:
    """A valid file with a few bytes changed, cut out, repeated or replaced by what parsers trip over."""
    chance = random.Random(seed)
    data = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data) + 1)
        end = min(len(data), place + chance.randint(0, 6))
        new = chance.choice([b"", bytes(data[place:end]) * 2, chance.randbytes(2), chance.choice(TOKENS).encode()])
        data[place:end] = new
    return bytes(data)


@pytest.mark.parametrize("case", CASES)
def test_a_valid_file_is_read(tmp_path: Path, case: str) -> None:
    name, content, reader = CASES[case]
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    assert list(reader(path))


@pytest.mark.parametrize("case", CASES)
@quiet
@given(raw=st.binary(max_size=200) | st.lists(st.sampled_from(TOKENS), max_size=30).map(lambda t: "".join(t).encode()))
def test_random_bytes_raise_only_user_errors(tmp_path: Path, case: str, raw: bytes) -> None:
    name, _, reader = CASES[case]
    (tmp_path / name).write_bytes(raw)
    only_user_errors(reader, tmp_path / name)


@pytest.mark.parametrize("case", CASES)
def test_damaged_valid_files_raise_only_user_errors(tmp_path: Path, case: str) -> None:
    name, content, reader = CASES[case]
    for seed in range(120):
        (tmp_path / name).write_bytes(mutated(content.encode(), seed))
        only_user_errors(reader, tmp_path / name)


KEYS = ["text", "label", "tokens", "tags", "data", "paragraphs", "context", "qas", "id", "question", "answers", "start"]
KEYS += ["answer_start", "choices", "sentence_good", "sentence_bad", "UID", "is_impossible"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("case", [case for case in CASES if "json" in CASES[case][0]])
@quiet
@given(rows=st.lists(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=6), min_size=1, max_size=3))
def test_json_of_the_wrong_shape_raises_only_user_errors(tmp_path: Path, case: str, rows: list[Any]) -> None:
    name, _, reader = CASES[case]
    (tmp_path / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    only_user_errors(reader, tmp_path / name)


def fifty_rows(path: Path) -> bytes:
    """Write a file of rows; its bytes."""
    with open_writer(path) as out:
        for n in range(50):
            out.write({"text": f"row {n}", "label": n % 3})
    return path.read_bytes()


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_damaged_compressed_files_raise_only_user_errors(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    sound = fifty_rows(path)
    for seed in range(60):
        path.write_bytes(mutated(sound, seed))
        only_user_errors(read_rows, path)
        path.write_bytes(sound[: seed * len(sound) // 60])
        only_user_errors(read_rows, path)


def test_damaged_parquet_files_raise_only_user_errors(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    sound = fifty_rows(path)
    for seed in range(60):
        path.write_bytes(mutated(sound, seed))
        only_user_errors(read_rows, path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "gb18030", "utf-7", "unicode_escape", "idna", "hex", "x"])
@quiet
@given(raw=st.binary(min_size=1, max_size=100))
def test_any_encoding_option_raises_only_user_errors(tmp_path: Path, encoding: str, raw: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(raw)
    with suppress(UserError):
        list(read_rows(path, labelled=False, encoding=encoding))
