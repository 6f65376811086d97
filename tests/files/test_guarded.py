"""Files of a folder that anyone may have written: read within bounds, or refused in one message that names the file."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bertkit.errors import DamagedFile, UserError
from bertkit.files import guarded
from bertkit.files.guarded import open_regular, read_array, read_arrays, read_json


@pytest.mark.parametrize("what", ["pipe", "device", "folder", "loop"])
def test_a_file_that_is_none_is_refused_at_once(what, tmp_path):
    path = tmp_path / "config.json"
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(path),
    }[what]()
    with pytest.raises(DamagedFile, match=r"config\.json"):
        read_json(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 300 + b"]" * 300, "nested too deeply"),
        (b'{"a":' * 5000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "5,000 digits"),
        (b'{"a": -' + b"9" * 60 + b"}", "61 digits"),
        (b"[1, 2", "line 1: not JSON"),
        (b"\xff\xfe{", "not UTF-8 at byte 0"),
        (b"3", "holds a int, not an object"),
    ],
)
def test_json_that_would_hurt_its_reader_is_damage(content, reason, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"a\.json.*{reason}"):
        read_json(tmp_path / "a.json")


def test_json_of_usual_depth_and_numbers_is_read(tmp_path):
    value = {"model_max_length": 1000000000000000019884624838656, "a": [[{"b": [1.5, None, "é"]}]], "c": -(2**63)}
    guarded.write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert read_json(tmp_path / "a.json", object) == value
    (tmp_path / "deep.json").write_text("[" * 99 + "]" * 99)
    assert read_json(tmp_path / "deep.json", list)


def test_a_file_beyond_its_size_or_of_too_many_values_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(guarded, "MOST_VALUES", 100)
    (tmp_path / "a.json").write_text("[" + "[]," * 200 + "[]]")
    with pytest.raises(DamagedFile, match="holds 402 values; at most 100"):
        read_json(tmp_path / "a.json", list)
    with pytest.raises(DamagedFile, match=r"has \d+ bytes; a file of this kind has at most 10"):
        open_regular(tmp_path / "a.json", 10)
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DamagedFile, match=r"claims 1,099,511,627,776 bytes but is empty"):
        open_regular(tmp_path / "holes")
    with pytest.raises(UserError, match=r"contains no b\.json"):
        read_json(tmp_path / "b.json")


def npy(shape: str, descr: str = "'<i8'", body: bytes = bytes(8)) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


def npz(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


ARRAYS = {
    "huge": npy("(1000000000000,)"), "wide": npy("(10000000000, 10000000000)"), "negative": npy("(-1,)"),
    "object": npy("(1,)", "'|O'"), "code": npy("__import__('os').getcwd()"), "empty": b"", "other": b"PK\x03\x04",
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_that_claims_more_than_it_holds_takes_no_memory(name, tmp_path):
    (tmp_path / "a.npy").write_bytes(ARRAYS[name])
    with pytest.raises(DamagedFile, match=r"a\.npy"):
        read_array(tmp_path / "a.npy")
    (tmp_path / "a.npz").write_bytes(npz(a=ARRAYS[name]))
    with pytest.raises(DamagedFile, match=r"a\.npz"):
        read_arrays(tmp_path / "a.npz")


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(guarded, "LARGEST_UNPACKED", 10_000)
    (tmp_path / "a.npz").write_bytes(npz(a=npy("(2000,)", body=bytes(16_000))))
    with pytest.raises(DamagedFile, match="unpacks to more than 10,000 bytes"):
        read_arrays(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"")
    with pytest.raises(DamagedFile, match=r"a\.npz"):
        read_arrays(tmp_path / "a.npz")


def test_sound_arrays_come_back(tmp_path):
    numbers = np.arange(6).reshape(2, 3)
    np.save(tmp_path / "a.npy", numbers)
    np.savez_compressed(tmp_path / "a.npz", numbers=numbers)
    assert (read_array(tmp_path / "a.npy") == numbers).all()
    assert (read_arrays(Path(tmp_path / "a.npz"))["numbers"] == numbers).all()
