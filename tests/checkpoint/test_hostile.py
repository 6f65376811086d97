"""Opening a model folder runs nothing from it, writes nothing, and calls nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support import folders
from tests.support import hostile_checkpoints as hostile

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    root = tmp_path_factory.mktemp("hostile")
    healthy = root / "folders" / "a-healthy"
    folders.write(healthy, "bert", "BertForMaskedLM")
    good = {file.name: file.read_bytes() for file in healthy.iterdir()}
    pickled = root / "folders" / "a-healthy-pickle"
    pickled.mkdir()
    for name, content in good.items():
        (pickled / name).write_bytes(content)
    torch.save(folders.tensors_of(healthy), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    for name, make in hostile.variants(good):
        make(root / "folders" / name)
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    done = subprocess.run(
        [sys.executable, "-P", str(Path(hostile.__file__)), str(root / "folders")],
        capture_output=True, text=True, cwd=root, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before
    return root, json.loads(done.stdout)


def test_no_hostile_folder_runs_code_writes_a_file_or_opens_a_connection(watched) -> None:
    root, found = watched
    assert len(found["outcomes"]) > 70
    assert found["seen"] == []
    assert not list(root.rglob("RAN"))


def test_every_hostile_folder_opens_harmlessly_or_is_refused_in_words(watched) -> None:
    _, found = watched
    outcomes = found["outcomes"]
    assert outcomes["a-healthy"] == outcomes["a-healthy-pickle"] == "opened"
    assert {name: words for name, words in outcomes.items() if words.startswith("CRASH")} == {}
    opened = {name for name, words in outcomes.items() if words == "opened"}
    assert not [name for name in opened if name.startswith(("bin-", "index-", "giant", "zip", "deep-json"))]


def test_the_watcher_would_have_seen_it(tmp_path: Path) -> None:
    script = (
        "import sys, json; from pathlib import Path; from tests.support import hostile_checkpoints as hostile\n"
        "import bertkit.inference.predictor as p\n"
        "class Bad:\n"
        "    def embed(self, texts): (Path(sys.argv[1]) / 'x').write_text('x'); import colorsys; exec('1'); "
        "__import__('pickle').loads(b'cos\\nmkdir\\n.')\n"
        "p.Predictor.load = staticmethod(lambda *a: Bad())\n"
        "print(json.dumps(hostile.watch([Path(sys.argv[1])])))\n"
    )
    root = Path(hostile.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=root, capture_output=True, text=True)
    seen = " ".join(json.loads(done.stdout)["seen"])
    assert all(event in seen for event in ("open", "compile", "exec", "pickle.find_class")), seen
