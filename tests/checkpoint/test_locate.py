"""From a name to a folder: the network is touched for hub names alone, and only when nothing is at hand."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit.checkpoint import locate as locating
from bertkit.checkpoint.locate import locate
from bertkit.errors import UserError
from tests.support import folders


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    asked: list[tuple] = []

    def refuse(*where: object) -> None:
        asked.append(where)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


def cached(root: Path, name: str = "some-org/tiny-bert") -> Path:
    """A hub cache as huggingface_hub lays it out: blobs, a snapshot of links to them, and a ref."""
    repo = root / f"models--{name.replace('/', '--')}"
    blobs, snapshot = repo / "blobs", repo / "snapshots" / ("c" * 40)
    folders.write(root / "made", "bert", "BertForMaskedLM")
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted((root / "made").iterdir())):
        file.replace(blobs / f"{number:040}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{number:040}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("c" * 40)
    return snapshot


SCRIPT = """
import sys
from bertkit.errors import UserError
from bertkit.checkpoint.locate import locate
try:
    print(locate(sys.argv[1]))
    import bertkit
    print(bertkit.load(sys.argv[1], precision="fp32").fill("the [MASK]", top=1)[0][0]["id"])
except UserError as mistake:
    print("told:", mistake)
"""


def asked(name: str, cache: Path, **environment: str) -> list[str]:
    """What a fresh process says of a name; huggingface_hub reads its environment when it is imported."""
    settings = os.environ | {"HF_HUB_CACHE": str(cache), "HF_HOME": str(cache)} | environment
    done = subprocess.run([sys.executable, "-c", SCRIPT, name], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_hub_name_that_is_in_the_cache_opens_offline_through_its_links(tmp_path: Path) -> None:
    snapshot = cached(tmp_path)
    where, guess = asked("some-org/tiny-bert", tmp_path, HF_HUB_OFFLINE="1")
    assert Path(where) == snapshot and guess.isdigit()


TOLD = "is not a local folder and could not be downloaded from the hub ("
FIX = "Check the name and the network connection, or copy the folder to this machine and pass its path."


@pytest.mark.parametrize(
    "kind", [ConnectionRefusedError, TimeoutError, type("ConnectError", (Exception,), {}), ValueError]
)
@pytest.mark.parametrize("words", ["Connection refused\nby 127.0.0.1", ""])
def test_whatever_the_network_says_is_reported_in_one_line_with_the_fix(
    kind, words: str, tmp_path, monkeypatch
) -> None:
    import huggingface_hub

    def fail(name: str) -> None:
        raise kind(words)

    monkeypatch.setattr(huggingface_hub, "list_repo_files", fail)
    with pytest.raises(UserError) as told:
        locate("some-org/not-there")
    text = str(told.value)
    assert TOLD in text and kind.__name__ in text and text.endswith(FIX) and "\n" not in text


def test_a_hub_name_in_offline_mode_is_reported_too(tmp_path: Path) -> None:
    (told,) = asked("some-org/not-there", tmp_path, HF_HUB_OFFLINE="1")
    assert TOLD in told and told.endswith(FIX)


def test_folders_and_checkpoint_prefixes_are_found_without_the_network(tmp_path: Path, no_network) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "bert_model.ckpt.index").touch()
    assert locate(tmp_path / "a") == tmp_path / "a"
    assert locate(str(tmp_path / "bert_model.ckpt")) == tmp_path / "bert_model.ckpt"
    assert no_network == []


def test_a_folder_wins_over_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert locate("org/name") == Path("org/name") and no_network == []


@pytest.mark.parametrize(
    "name", ["nothing", "a/b/c", "../x/y", "/no/where", "./org/name", "org/na me", "", "org/", "~/x"]
)
def test_a_name_that_is_none_is_reported_without_the_network(name: str, tmp_path, monkeypatch, no_network) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"There is no model|no such|no config\.json"):
        from bertkit.checkpoint.folder import read_folder

        read_folder(locate(name))
    assert no_network == []


def test_embedded_names_are_reported_and_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("english", "chinese"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    monkeypatch.setattr(locating, "EMBEDDED", tmp_path)
    assert locate("english") == tmp_path / "english"
    with pytest.raises(UserError, match=r"'englsh'.*\(chinese, english\).*Did you mean 'english'"):
        locate("englsh")


def test_no_pickle_and_no_code_is_fetched_where_safetensors_exist() -> None:
    from fnmatch import fnmatch

    wanted = ["config.json", "vocab.txt", "model.safetensors", "model-00001-of-00002.safetensors", "spiece.model"]
    never = ["modeling_evil.py", "pytorch_model.bin", "model.pkl", "tf_model.h5", "model.onnx", "rust_model.ot"]
    assert all(any(fnmatch(name, pattern) for pattern in locating.WANTED) for name in wanted)
    assert not any(fnmatch(name, pattern) for name in never for pattern in locating.WANTED)


def test_a_mistyped_folder_does_not_go_to_the_network(tmp_path: Path, monkeypatch, no_network) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/spam").mkdir(parents=True)
    with pytest.raises(UserError, match=r"runs contains no 'spma'\. Did you mean 'spam'"):
        locate("runs/spma")
    assert not no_network


def test_a_weights_file_stands_for_its_folder(tmp_path: Path, notes) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    assert locate(tmp_path / "pytorch_model.bin") == tmp_path and not notes
    (tmp_path / "model.safetensors").touch()
    assert locate(tmp_path / "model.safetensors") == tmp_path and not notes
    assert locate(tmp_path / "pytorch_model.bin") == tmp_path and "also has model.safetensors" in notes[0]
