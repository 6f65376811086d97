"""Opening files: compressed or not, in whatever encoding, with errors that name the line."""

import bz2
import gzip
import lzma
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertkit.errors import DamagedFile, UserError
from bertkit.files.open import guess_encoding, kind_of, open_text

PACK = {
    "": lambda raw: raw,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
CHINESE = "今天天气很好，我们一起去公园散步。孩子们在草地上玩耍，老人们在树下下棋。\n他说这本书写得不错，值得一看。\n"
TRADITIONAL = (
    "今天天氣很好，我們一起去公園散步。孩子們在草地上玩耍，老人們在樹下下棋。\n他說這本書寫得不錯，值得一看。\n"
)
JAPANESE = "今日はとても天気がいいので、みんなで公園に行きました。\nこの本はおもしろいと思います。\n"
KOREAN = "오늘은 날씨가 좋아서 우리는 함께 공원에 갔습니다.\n이 책은 아주 재미있습니다.\n"
FRENCH = "Un été très agréable à la forêt, où l'on a déjà mangé.\nLes élèves étudient.\n"
quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def write(folder: Path, name: str, raw: bytes) -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("ending", PACK)
@quiet
@given(lines=st.lists(st.text(st.characters(exclude_characters="\0\r\n\ufeff", exclude_categories=["Cs"])), min_size=1))
def test_lines_come_back_from_any_compression(tmp_path: Path, ending: str, lines: list[str]) -> None:
    raw = "".join(line + "\n" for line in lines).encode()
    assert list(open_text(write(tmp_path, "a.txt" + ending, PACK[ending](raw)))) == lines


def test_a_zst_file_of_several_frames_is_read_to_its_end(tmp_path: Path) -> None:
    raw = b"".join(PACK[".zst"](f"part {n}\n".encode()) for n in range(5))
    assert list(open_text(write(tmp_path, "a.txt.zst", raw))) == [f"part {n}" for n in range(5)]


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zst"])
def test_a_truncated_compressed_file_is_named_as_damaged(tmp_path: Path, ending: str) -> None:
    raw = PACK[ending]("".join(f"line {n * n * 7919 % 10007}\n" for n in range(20000)).encode())
    with pytest.raises(DamagedFile, match="truncated or damaged"):
        list(open_text(write(tmp_path, "a.txt" + ending, raw[: len(raw) // 2])))


def test_bom_and_crlf_leave_no_trace(tmp_path: Path) -> None:
    assert list(open_text(write(tmp_path, "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n"))) == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (CHINESE, "gb18030"),
        (CHINESE, "utf-16"),
        ("text\tlabel\nan English row of Excel's\tham\n", "utf-16"),
        (TRADITIONAL, "big5"),
        (JAPANESE, "shift_jis"),
        (KOREAN, "euc_kr"),
        (FRENCH, "latin-1"),
        (FRENCH.replace("'", "’"), "cp1252"),
    ],
)
def test_another_encoding_is_refused_by_name_and_the_named_one_reads_it(
    tmp_path: Path, text: str, encoding: str
) -> None:
    path = write(tmp_path, "a.txt", text.encode(encoding))
    with pytest.raises(UserError) as error:
        list(open_text(path))
    assert f"line 1: not UTF-8; the file looks like {encoding}. Pass --encoding {encoding}" in str(error.value)
    assert list(open_text(path, encoding)) == text.splitlines()
    assert guess_encoding(path.read_bytes()) == encoding


def test_one_bad_line_in_a_good_file_is_called_damaged_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", (CHINESE * 5).encode() + b"\xff\xfe broken\n")
    with pytest.raises(UserError, match="line 11: the line has bytes that are not UTF-8, although the rest"):
        list(open_text(path))


def test_the_wrong_encoding_option_is_reported_to_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Leave --encoding out"):
        list(open_text(write(tmp_path, "a.txt", "é\n\xf5ß…‰".encode() * 3 + b"\n"), "shift_jis"))
    with pytest.raises(UserError, match=r"no text encoding 'gb18031'. Did you mean 'gb18030'"):
        open_text(tmp_path / "a.txt", "gb18031")


def test_nul_is_refused_with_its_line_or_dropped_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"good\n" + b"x" * 100 + b"\0\n")
    with pytest.raises(UserError, match="line 2: a NUL byte"):
        list(open_text(path))
    assert list(open_text(path, nul="drop")) == ["good", "x" * 100]
    with pytest.raises(UserError, match="NUL"):
        list(open_text(write(tmp_path, "b.txt", bytes(1000)), nul="drop"))


def test_missing_empty_and_folder_each_get_their_own_message(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", b"text,label\n")
    with pytest.raises(UserError, match=r"does not exist. Did you mean 'train.csv'"):
        open_text(tmp_path / "trian.csv")
    with pytest.raises(UserError, match="does not exist either"):
        open_text(tmp_path / "nowhere" / "a.csv")
    with pytest.raises(UserError, match="is a folder"):
        open_text(tmp_path)
    with pytest.raises(UserError, match="is empty"):
        open_text(write(tmp_path, "empty.txt", b""))
    with pytest.raises(UserError, match="cannot be read"):
        open_text("bad\0name")


@quiet
@given(text=st.text(st.sampled_from("ab é汉😀"), min_size=1, max_size=300), split=st.integers(4, 40))
def test_a_long_line_comes_in_pieces_that_make_it_whole(tmp_path: Path, text: str, split: int) -> None:
    path = write(tmp_path, "a.txt", (text + "\nnext\n").encode())
    *pieces, last = open_text(path, split=split)
    assert last == "next"
    assert "".join(pieces) == text


def test_the_kind_is_the_ending_before_the_compression() -> None:
    names = {"a.csv.gz": "csv", "b.JSONL": "jsonl", "c.ndjson.zst": "jsonl", "d.xz": "", "e": "", "-": "txt"}
    assert {name: kind_of(name) for name in names} == names


@pytest.mark.timeout(60)  # copying what is left for every small read would take minutes
def test_a_small_zst_file_of_one_huge_line_is_refused_like_any_other(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("bertkit.files.open.LONGEST_LINE", 1 << 25)
    path = write(tmp_path, "bomb.csv.zst", PACK[".zst"](b"a" * (1 << 26)))
    assert path.stat().st_size < 1 << 14
    with pytest.raises(UserError, match=r"line 1: longer than 32 MB"):
        list(open_text(path))
