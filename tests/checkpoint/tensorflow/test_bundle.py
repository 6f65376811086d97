"""TensorFlow checkpoints come back bit for bit, and damage never comes back as numbers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.checkpoint.tensorflow.bundle import crc32c, is_bundle_index, masked_crc32c, read_bundle
from bertkit.errors import DamagedFile, UserError
from tests.support import make_google
from tests.support.bundle_writer import BFloat16, entry_message, field, plain_crc32c, write_bundle, write_table

FIXTURES = Path(__file__).parents[2] / "fixtures"
HEADER = field(1, 1)
BERT = FIXTURES / "google" / "bert" / "bert_model.ckpt"


def small() -> dict[str, np.ndarray]:
    return {
        "a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
        "a/kernel_2": np.array([1.5, -2.5], dtype=np.float64),
        "half": np.array([1.5, np.inf], dtype=np.float16),
        "long": np.array([2**40], dtype=np.int64),
        "none": np.zeros((0, 4), dtype=np.float32),
        "step": np.array(-7, dtype=np.int32),
    }


def same(arrays: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> bool:
    return arrays.keys() == others.keys() and all(
        (array.dtype, array.shape, array.tobytes()) == (other.dtype, other.shape, other.tobytes())
        for array, other in ((arrays[name], others[name]) for name in arrays)
    )


@pytest.mark.parametrize(
    ("data", "crc"),  # RFC 3720, appendix B.4, and the check value of the polynomial
    [(bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E), (b"123456789", 0xE3069283)],
)
def test_the_checksum_is_the_published_one(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@given(length=st.integers(0, 2000), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_the_folded_checksum_agrees_with_the_bit_by_bit_one(length: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(length)
    assert crc32c(data) == plain_crc32c(data)


@pytest.mark.parametrize("length", [65_535, 65_536, 65_537, 65_540, 131_072, 131_073])
def test_the_checksum_holds_at_the_widths_it_folds_by(length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    assert crc32c(data) == plain_crc32c(data)
    assert crc32c(np.frombuffer(data, dtype=np.uint8)) == crc32c(data)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("block_entries", [1, 2, 64])
def test_a_checkpoint_comes_back_bit_for_bit(tmp_path: Path, shards: int, block_entries: int) -> None:
    write_bundle(tmp_path / "m.ckpt", small(), shards=shards, block_entries=block_entries)
    assert same(small(), read_bundle(tmp_path / "m.ckpt"))
    assert same(small(), read_bundle(str(tmp_path / "m.ckpt.index")))
    assert is_bundle_index(tmp_path / "m.ckpt.index")


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1), min_size=1, max_size=40),
        st.lists(st.floats(width=32), max_size=5),
        max_size=40,
    ),
    st.integers(1, 20),
)
@settings(max_examples=40, deadline=None)
def test_any_names_and_numbers_come_back(
    tmp_path_factory: pytest.TempPathFactory, lists: dict[str, list[float]], block_entries: int
) -> None:
    arrays = {name: np.array(numbers, dtype=np.float32) for name, numbers in lists.items()}
    prefix = tmp_path_factory.mktemp("bundle") / "any"
    write_bundle(prefix, arrays, block_entries=block_entries)
    assert same(arrays, read_bundle(prefix))


def test_names_and_shapes_are_known_before_any_number_is_read(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m", small())
    data = tmp_path / "m.data-00000-of-00001"
    data.write_bytes(bytes(data.stat().st_size))  # every tensor is now damaged
    bundle = read_bundle(tmp_path / "m")
    assert bundle.shapes["a/kernel"] == (2, 3) and bundle.dtype("long") == "int64" and "step" in bundle
    with pytest.raises(DamagedFile, match=r"data-00000-of-00001: tensor 'a/kernel' is damaged.*again"):
        bundle["a/kernel"]


def test_bfloat16_is_read_as_the_float32_it_stands_for(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m", {"b": np.array([1.0, -0.5, 3.25], dtype=np.float32).view(BFloat16)})
    bundle = read_bundle(tmp_path / "m")
    assert bundle.dtype("b") == "bfloat16"
    assert bundle["b"].dtype == np.float32 and bundle["b"].tolist() == [1.0, -0.5, 3.25]


def test_a_tensor_of_another_kind_does_not_stop_the_rest(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m", small() | {"odd": np.array([1], dtype=np.int8)})
    bundle = read_bundle(tmp_path / "m")
    assert bundle["step"] == -7
    with pytest.raises(UserError, match=r"'odd' holds TensorFlow type 6.*float32"):
        bundle["odd"]


def test_every_flipped_byte_is_found_or_harmless(tmp_path: Path) -> None:
    arrays = small()
    write_bundle(tmp_path / "m", arrays, block_entries=3)
    found = 0
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for place in range(len(whole)):
            for flip in (0x01, 0x80, 0xFF):
                path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
                try:
                    assert same(arrays, read_bundle(tmp_path / "m")), (path.name, place)
                except DamagedFile as error:
                    found += 1
                    assert path.name in str(error) or "data-" in str(error)
        path.write_bytes(whole)
    assert found > 500


def test_every_length_a_file_can_be_cut_to_is_found(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m", small(), block_entries=3)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(DamagedFile, match=path.name):
                read_bundle(tmp_path / "m")
        path.write_bytes(whole)


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_never_end_in_another_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, as_table: bool
) -> None:
    prefix = tmp_path_factory.mktemp("noise") / "m"
    Path(f"{prefix}.data-00000-of-00001").write_bytes(b"12345678")
    if as_table:  # valid checksums around noise where the messages should be
        write_table(Path(f"{prefix}.index"), {b"": HEADER, b"name": noise})
    else:
        Path(f"{prefix}.index").write_bytes(noise + BERT.with_name("bert_model.ckpt.index").read_bytes()[-48:])
    with contextlib.suppress(UserError):
        dict(read_bundle(prefix))


def written_entry(tmp_path: Path, message: bytes, header: bytes = HEADER) -> Path:
    (tmp_path / "m.data-00000-of-00001").write_bytes(b"12345678")
    write_table(tmp_path / "m.index", {b"": header, b"w": message})
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("dtype", "shape", "offset", "shard"),
    [
        (1, (2**62,), 0, 0),  # far more than the file holds
        (1, (2**63, 2), 0, 0),  # overflows 64 bits
        (1, (0, 2**40, 2**40), 0, 0),  # empty, yet numpy cannot shape it
        (1, (3,), 0, 0),  # does not fit its bytes
        (1, (1,) * 70, 0, 0),
        (1, (2,), 1, 0),  # ends after the file
        (1, (2,), 2**64 - 1, 0),  # a negative offset
        (1, (2,), 0, 1),  # in a file that the header does not count
    ],
)
def test_numbers_that_cannot_be_true_are_refused_before_memory_is_asked_for(
    tmp_path: Path, dtype: int, shape: tuple[int, ...], offset: int, shard: int
) -> None:
    prefix = written_entry(tmp_path, entry_message(dtype, shape, shard, offset, b"12345678"))
    with pytest.raises(DamagedFile, match="'w'"):
        read_bundle(prefix)


def test_keys_that_unfold_to_terabytes_are_refused(tmp_path: Path) -> None:
    write_table(
        tmp_path / "m.index", {b"": HEADER} | {b"k" * length: b"" for length in range(1, 6000, 500)}, block_entries=6000
    )
    with pytest.raises(DamagedFile, match="runs past its end"):
        read_bundle(tmp_path / "m")


def test_compressed_blocks_are_named(tmp_path: Path) -> None:
    write_table(tmp_path / "m.index", {b"": HEADER}, compression=1)
    with pytest.raises(UserError, match="compressed"):
        read_bundle(tmp_path / "m")


@pytest.mark.parametrize(("key", "message"), [(b"\0w\0\0\1", b""), (b"w", field(7, b"\x0a\x00"))])
def test_partitioned_variables_are_named(tmp_path: Path, key: bytes, message: bytes) -> None:
    write_table(tmp_path / "m.index", {b"": HEADER, key: message})
    with pytest.raises(UserError, match=r"'w.*partitioned.*save it again"):
        read_bundle(tmp_path / "m")


def test_big_endian_numbers_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="big-endian"):
        read_bundle(written_entry(tmp_path, b"", header=HEADER + field(2, 1)))


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"m\.ckpt\.index cannot be read"):
        read_bundle(tmp_path / "m.ckpt")
    write_bundle(tmp_path / "m.ckpt", small(), shards=2)
    (tmp_path / "m.ckpt.data-00001-of-00002").unlink()
    with pytest.raises(DamagedFile, match=r"m\.ckpt\.data-00001-of-00002 is missing"):
        read_bundle(tmp_path / "m.ckpt")


def test_entries_encoded_by_googles_protocol_buffers_are_understood(tmp_path: Path) -> None:
    """The message types are declared here from tensor_bundle.proto's field numbers; the library does the encoding."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    declared = {
        "Dim": [("size", 1, 3), ("name", 2, 9)],
        "Shape": [("dim", 2, "Dim"), ("unknown_rank", 3, 8)],
        "Entry": [
            ("dtype", 1, 5),
            ("shape", 2, "Shape"),
            ("shard_id", 3, 5),
            ("offset", 4, 3),
            ("size", 5, 3),
            ("crc32c", 6, 7),
        ],
        "Header": [("num_shards", 1, 5), ("endianness", 2, 5)],
    }
    file = descriptor_pb2.FileDescriptorProto(name="bundle.proto", package="bundle", syntax="proto3")
    for name, fields in declared.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            of_message = isinstance(kind, str)
            message.field.add(
                name=field_name,
                number=number,
                type=11 if of_message else kind,
                type_name=f".bundle.{kind}" if of_message else None,
                label=3 if field_name == "dim" else 1,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    make = {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bundle.{name}")) for name in declared}
    numbers = np.arange(600, dtype="<f4").reshape(200, 3)
    data = b"pad." + numbers.tobytes()
    (tmp_path / "m.data-00000-of-00001").write_bytes(data)
    shape = make["Shape"](dim=[make["Dim"](size=200, name="rows"), make["Dim"](size=3)])
    entry = make["Entry"](dtype=1, shape=shape, offset=4, size=2400, crc32c=masked_crc32c(data[4:]))
    write_table(
        tmp_path / "m.index", {b"": make["Header"](num_shards=1).SerializeToString(), b"w": entry.SerializeToString()}
    )
    assert np.array_equal(read_bundle(tmp_path / "m")["w"], numbers)


def test_the_shipped_checkpoints_are_what_the_script_writes(tmp_path: Path) -> None:
    make_google.make(tmp_path)
    shipped = {path.relative_to(FIXTURES / "google"): path.read_bytes() for path in (FIXTURES / "google").rglob("*.*")}
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert shipped == written


def test_a_checkpoint_may_lie_anywhere(tmp_path: Path) -> None:
    folder = tmp_path / "a folder.with dots" / "模型"
    shutil.copytree(BERT.parent, folder)
    assert same(dict(read_bundle(BERT)), read_bundle(folder / BERT.name))
