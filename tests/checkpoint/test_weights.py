"""Weight files: whole or refused, and a pickle is never more than tensors."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from bertkit.checkpoint.folder import read_folder
from bertkit.checkpoint.weights import clean, read_weights
from bertkit.errors import DamagedFile, UserError
from tests.support import folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    folders.write(folder, "bert", "BertForMaskedLM")
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def same(folder: Path, whole: Path) -> bool:
    mine, other = read_folder(folder).model.state_dict(), read_folder(whole).model.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[key], other[key]) for key in other)


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "_forward_module.", "model.", "module.model."],
)
def test_a_training_wrappers_prefix_is_stripped_and_reported(prefix: str, folder: Path, whole: Path, notes) -> None:
    save_file({prefix + k: v for k, v in folders.tensors_of(whole).items()}, folder / "model.safetensors")
    assert same(folder, whole)
    assert sum("left by a training wrapper; the prefix was stripped" in note for note in notes) == prefix.count(".")


def test_a_prefix_that_only_some_names_have_is_left_alone() -> None:
    raw = {"module.a": torch.ones(1), "b": torch.ones(1)}
    assert clean(raw) == raw


def test_a_bare_encoder_opens_with_and_without_its_base_prefix(folder: Path, whole: Path) -> None:
    folders.change(folder, architectures=["BertModel"])
    tensors = {k: v for k, v in folders.tensors_of(whole).items() if k.startswith("bert.")}
    vectors = []
    for strip in ("", "bert."):
        save_file({k.removeprefix(strip): v for k, v in tensors.items()}, folder / "model.safetensors")
        vectors.append(read_folder(folder).model.encoder.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(vectors[0].values(), vectors[1].values(), strict=True))


def test_norms_spelled_gamma_and_beta_open(folder: Path, whole: Path) -> None:
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = folders.tensors_of(whole)
    for new, ancient in old.items():
        tensors = {k.replace(new, ancient): v for k, v in tensors.items()}
    assert any("gamma" in key for key in tensors)
    save_file(tensors | {"bert.embeddings.position_ids": torch.arange(40)}, folder / "model.safetensors")
    assert same(folder, whole)


def shard(folder: Path, whole: Path, parts: int = 3) -> Path:
    tensors = folders.tensors_of(whole)
    (folder / "model.safetensors").unlink()
    table = {key: f"model-{n % parts + 1:05}-of-{parts:05}.safetensors" for n, key in enumerate(tensors)}
    for name in set(table.values()):
        save_file({k: v for k, v in tensors.items() if table[k] == name}, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": table}))
    return index


def test_sharded_safetensors_open(folder: Path, whole: Path) -> None:
    shard(folder, whole)
    assert same(folder, whole)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", 7, None, "x\\..\\y"]
)
def test_an_index_cannot_name_a_file_outside_the_folder(name, folder: Path, whole: Path) -> None:
    index = shard(folder, whole)
    table = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": table | {"bert.pooler.dense.weight": name}}))
    with pytest.raises(UserError, match=r"index\.json"):
        read_weights(folder)


@pytest.mark.parametrize(
    "raw", ["", "{}", "[]", '{"weight_map": []}', '{"weight_map": 3}', '{"weight_map": {}}', "[" * 9999]
)
def test_a_broken_index_is_reported(raw: str, folder: Path, whole: Path) -> None:
    shard(folder, whole).write_text(raw)
    with pytest.raises(UserError, match=r"index\.json"):
        read_folder(folder)


def test_a_missing_shard_is_reported_by_name(folder: Path, whole: Path) -> None:
    shard(folder, whole)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(DamagedFile, match=r"names model-00002-of-00003\.safetensors, which is not in the folder"):
        read_weights(folder)


def test_a_truncated_file_is_refused_at_every_length(folder: Path, whole: Path) -> None:
    content = (whole / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for length in (0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1, len(content) // 2, len(content) - 1):
        (folder / "model.safetensors").write_bytes(content[:length])
        with pytest.raises(DamagedFile, match=rf"model\.safetensors is not a complete.*{length:,} bytes.*again"):
            read_weights(folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_header_is_refused_or_found_out_later_and_never_crashes(folder: Path, whole: Path, data) -> None:
    content = bytearray((whole / "model.safetensors").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    (folder / "model.safetensors").write_bytes(content)
    try:
        read_folder(folder)
    except UserError as mistake:
        assert "model.safetensors" in str(mistake)


def with_header(header: dict | bytes, claim: int | None = None, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if claim is None else claim) + raw + data


HEADERS = {
    "a claim of 4 GB": with_header(b"{}", claim=4 << 30),
    "a claim of 2^63": with_header(b"{}", claim=1 << 63),
    "a billion rows": with_header(
        {"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]}}, data=b"1234"
    ),
    "negative": with_header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, data=b"1234"),
    "overlap": with_header({n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}, data=b"1234"),
    "unknown type": with_header({"a": {"dtype": "P64", "shape": [1], "data_offsets": [0, 4]}}, data=b"1234"),
    "not JSON": with_header(b"{'a': 1}"),
    "deep": with_header(b'{"a":' * 5000),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_lying_header_is_refused_before_memory_is_taken(name: str, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(HEADERS[name])
    with pytest.raises(DamagedFile, match=r"model\.safetensors is not a complete safetensors file"):
        read_weights(folder)


def test_shapes_that_do_not_fit_the_config_are_reported_with_both(folder: Path, whole: Path) -> None:
    tensors = folders.tensors_of(whole)
    key = "bert.encoder.layer.1.attention.self.key.weight"
    save_file(tensors | {key: torch.zeros(16, 32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"layer\.1\.attention.*\[32, 32\].*do not belong together"):
        read_folder(folder)


def test_pytorch_files_open_with_a_warning(folder: Path, whole: Path, notes) -> None:
    tensors = folders.tensors_of(whole)
    (folder / "model.safetensors").unlink()
    for saved in (tensors, {"state_dict": tensors}):
        torch.save(saved, folder / "pytorch_model.bin")
        assert same(folder, whole)
    assert sum("is a pickle file" in note and "bertkit convert" in note for note in notes) == 2


def test_safetensors_are_preferred_to_a_pickle_beside_them(folder: Path, whole: Path, notes) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    assert same(folder, whole) and notes == []


class Evil:
    """Unpickling this makes a folder."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return os.mkdir, (str(self.proof),)


def zipped(payload: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", payload)
        archive.writestr("archive/version", "3\n")


@pytest.mark.parametrize("kind", ["plain", "zip", "torch", "nested"])
def test_a_malicious_pickle_runs_nothing_and_is_refused(kind: str, folder: Path, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    path = folder / "pytorch_model.bin"
    (folder / "model.safetensors").unlink()
    evil = {"bert.pooler.dense.weight": Evil(proof)}
    if kind == "plain":
        path.write_bytes(pickle.dumps(evil))
    elif kind == "zip":
        zipped(pickle.dumps(evil, protocol=2), path)
    elif kind == "torch":
        torch.save(evil, path)
    else:
        torch.save({"state_dict": {"a": torch.ones(2)}, "extra": [Evil(proof)]}, path)
    with pytest.raises(DamagedFile, match=r"pytorch_model\.bin holds more than tensors.*nothing in it was executed"):
        read_folder(folder)
    assert not proof.exists()
    pickle.loads(pickle.dumps(Evil(proof)))  # noqa: S301 - the proof that it would have run
    assert proof.exists()


@pytest.mark.parametrize(
    "content", [[1, 2], {"a": 1}, {"a": torch.ones(1), "b": "text"}, torch.ones(3), {3: torch.ones(1)}]
)
def test_a_pytorch_file_without_a_table_of_tensors_is_refused(content, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(DamagedFile, match="not a state_dict"):
        read_weights(folder)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 0.999])
def test_a_truncated_pytorch_file_is_refused(share: float, folder: Path, whole: Path) -> None:
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(folders.tensors_of(whole), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DamagedFile, match=r"pytorch_model\.bin"):
        read_weights(folder)


def test_half_precision_files_open_as_float32(folder: Path, whole: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        save_file({k: v.to(dtype) for k, v in folders.tensors_of(whole).items()}, folder / "model.safetensors")
        model = read_folder(folder).model
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        words = folders.tensors_of(whole)["bert.embeddings.word_embeddings.weight"]
        assert torch.equal(model.encoder.embeddings.tokens.weight, words.to(dtype).float())
