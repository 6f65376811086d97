import json
import os

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import DamagedFile
from bertkit.files import tensors as tensor_file

SHAPES = st.lists(st.integers(0, 3), max_size=3)
GROUPS = st.dictionaries(st.text(max_size=8), st.tuples(st.sampled_from(list(tensor_file.DTYPES)), SHAPES), max_size=5)


def make(dtype: str, shape: list[int], seed: int = 0) -> torch.Tensor:
    size = int(np.prod(shape, dtype=int)) * getattr(torch, tensor_file.DTYPES[dtype]).itemsize
    data = np.random.default_rng(seed).integers(0, 2 if dtype == "BOOL" else 256, max(size, 1), dtype=np.uint8)
    return torch.from_numpy(data)[:size].view(getattr(torch, tensor_file.DTYPES[dtype])).reshape(shape)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def read(path) -> dict[str, torch.Tensor]:
    handle = os.open(path, os.O_RDONLY)
    try:
        return tensor_file.read(handle, path.name)
    finally:
        os.close(handle)


@given(GROUPS)
def test_the_safetensors_library_reads_what_we_write_and_we_what_it_writes(tmp_path_factory, group):
    group.pop("__metadata__", None)
    tensors = {name: make(dtype, shape, seed) for seed, (name, (dtype, shape)) in enumerate(group.items())}
    path = tmp_path_factory.mktemp("t") / "a.safetensors"
    path.write_bytes(b"".join(tensor_file.chunks(tensors)))
    assert path.stat().st_size == tensor_file.size(tensors)
    theirs, ours = safetensors.torch.load_file(path), read(path)
    safetensors.torch.save_file(tensors, path)
    for found in (theirs, ours, read(path)):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert raw(found[name]) == raw(tensor)


def test_views_parameters_numpy_arrays_and_shared_storage_are_saved_as_their_values(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    frozen = np.arange(5, dtype=np.int16)
    frozen.flags.writeable = False
    tensors = {"t": base.T, "tied": base, "p": torch.nn.Parameter(base[1:]), "n": frozen, "n0": np.array(7.5)}
    (tmp_path / "a").write_bytes(b"".join(tensor_file.chunks(tensors)))
    found = read(tmp_path / "a")
    for name, values in tensors.items():
        assert np.array_equal(found[name].numpy(), values.detach().numpy() if torch.is_tensor(values) else values)
        assert found[name].shape == values.shape


def test_every_tensor_begins_at_a_multiple_of_its_numbers_width():
    tensors = {"a": torch.zeros(3, dtype=torch.uint8), "b": torch.zeros(3, dtype=torch.int64), "c": torch.zeros(1)}
    header = bytes(next(tensor_file.chunks(tensors)))
    rows = json.loads(header[8:])
    assert all((len(header) + rows[name]["data_offsets"][0]) % tensors[name].element_size() == 0 for name in tensors)


def test_a_type_the_format_lacks_is_refused_by_name():
    with pytest.raises(TypeError, match=r"'wide'.*complex128"):
        tensor_file.size({"wide": torch.zeros(1, dtype=torch.complex128)})


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in "ab"},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}},
        {"a": {"dtype": "Q7", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"shape": [1], "data_offsets": [0, 4]}},
        {"a": 3},
        [],
    ],
)
def test_a_header_that_lies_is_refused_before_memory_is_taken(tmp_path, header):
    text = json.dumps(header).encode()
    (tmp_path / "bad.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0\0\0\0")
    with pytest.raises(DamagedFile, match=r"bad\.safetensors"):
        read(tmp_path / "bad.safetensors")


@pytest.mark.parametrize(
    "content", [b"", b"\1", b"\xff" * 8, b"\xff" * 40, b"\2\0\0\0\0\0\0\0{", b"\2" + b"\0" * 7 + b"\xff\xfe"]
)
def test_a_file_that_is_something_else_is_refused(tmp_path, content):
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"bad\.safetensors"):
        read(tmp_path / "bad.safetensors")
