"""A store opens whole or not at all, and splits its documents the same way every time."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertkit.data.prepare.run import prepare
from bertkit.data.store import Store
from bertkit.errors import DamagedFile, UserError
from bertkit.files.manifest import accept
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary import VocabularySettings, learn

DOCUMENTS = [f"Document {n} begins here. It has words {n * n}. The end of it comes." for n in range(30)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return learn(DOCUMENTS, VocabularySettings(size=120, min_frequency=1))


@pytest.fixture(scope="module")
def made(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "a.txt").write_text("\n\n".join(DOCUMENTS))
    prepare([folder / "a.txt"], tokenizer, folder / "store")
    return folder / "store"


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def test_documents_come_back_as_the_text_they_were(made: Path) -> None:
    store = Store.open(made)
    assert (store.documents, store.sentences, store.tokens) == (30, 90, len(store.ids))
    for number, text in enumerate(DOCUMENTS):
        first, last = store.document_starts[number], store.document_starts[number + 1]
        ids = store.ids[store.sentence_starts[first] : store.sentence_starts[last]]
        assert ids.tolist() == store.tokenizer.pieces_batch([text])[0]


def test_nothing_is_written_to_an_open_store(made: Path) -> None:
    store = Store.open(made)
    with pytest.raises(ValueError):
        store.ids[0] = 1


def test_another_process_opens_the_folder_instead_of_copying_the_arrays(made: Path) -> None:
    store = Store.open(made)
    message = pickle.dumps(store)
    assert len(message) < 500
    assert pickle.loads(message).ids.tolist() == store.ids.tolist()  # noqa: S301


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(held_out=st.floats(0, 0.99), seed=st.integers(0, 2**32))
def test_a_split_is_the_same_each_time_and_loses_no_document(made: Path, held_out: float, seed: int) -> None:
    train, held = Store.open(made).split(held_out, seed)
    again = Store.open(made).split(held_out, seed)
    assert train.tolist() == again[0].tolist() and held.tolist() == again[1].tolist()
    assert sorted([*train, *held]) == list(range(30))
    assert len(train) and (len(held) > 0) == (held_out > 0)
    assert abs(len(held) - held_out * 30) <= 1
    assert (np.diff(train) > 0).all() and (np.diff(held) > 0).all()


def test_another_seed_holds_other_documents_out(made: Path) -> None:
    store = Store.open(made)
    assert len({tuple(store.split(0.2, seed)[1].tolist()) for seed in range(10)}) > 5


@pytest.mark.parametrize("held_out", [-0.1, 1.0, 2])
def test_a_share_that_is_none_is_refused(made: Path, held_out: float) -> None:
    with pytest.raises(UserError, match="fraction of documents"):
        Store.open(made).split(held_out, 0)


def test_a_store_of_another_tokenizer_is_refused(made: Path, tokenizer: Tokenizer) -> None:
    store = Store.open(made)
    store.check(tokenizer)
    store.check(store.tokenizer)
    with pytest.raises(UserError, match=r"different tokenizer.*Use the tokenizer in"):
        store.check(tokenizer.extended(["xylophone"]))


@pytest.mark.parametrize("name", ["tokens.bin", "words.bin", "sentences.bin", "documents.bin", "tokenizer/vocab.txt"])
@pytest.mark.parametrize("cut", [1, 8, None])
def test_a_truncated_or_missing_file_is_named(copy: Path, name: str, cut: int | None) -> None:
    path = copy / name
    content = path.read_bytes()
    path.unlink() if cut is None else path.write_bytes(content[:-cut])
    with pytest.raises(DamagedFile, match=rf"{path.name} .*Make it again"):
        Store.open(copy)


def test_an_altered_byte_is_found(copy: Path) -> None:
    for path in sorted(copy.rglob("*")):
        if path.is_file() and path.name not in ("store.json", "report.txt"):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
            with pytest.raises(DamagedFile, match=path.name):
                Store.open(copy)
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    Store.open(copy).verify()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b"\xff\xfe", b'{"format": 1, "files": {}}'])
def test_a_store_json_that_is_none_is_reported_as_damage(copy: Path, content: bytes) -> None:
    (copy / "store.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"store\.json"):
        Store.open(copy)


def test_files_that_do_not_fit_together_are_refused(copy: Path) -> None:
    facts = json.loads((copy / "store.json").read_text())
    (copy / "store.json").write_text(json.dumps({**facts, "sentences": facts["sentences"] + 1}))
    accept(copy)
    with pytest.raises(DamagedFile, match="do not match each other"):
        Store.open(copy)


def test_a_pipe_in_place_of_a_file_does_not_wait_for_ever(copy: Path) -> None:
    (copy / "words.bin").unlink()
    os.mkfifo(copy / "words.bin")
    accept(copy)
    with pytest.raises(DamagedFile, match=r"words\.bin: not a regular file"):
        Store.open(copy)


def test_a_later_format_is_reported(copy: Path) -> None:
    facts = json.loads((copy / "store.json").read_text())
    (copy / "store.json").write_text(json.dumps({**facts, "format": 99}))
    accept(copy)
    with pytest.raises(UserError, match="format 99"):
        Store.open(copy)


def test_what_is_no_store_is_reported_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not exist.*bertkit prepare"):
        Store.open(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not a token store.*bertkit prepare"):
        Store.open(tmp_path)
    (tmp_path / "half.partial").mkdir()
    with pytest.raises(UserError, match=r"interrupted.*same `bertkit prepare` command"):
        Store.open(tmp_path / "half")
