"""Opening the user's files: plain or compressed, any encoding, in bounded memory, with errors that name the line."""

from __future__ import annotations

import codecs
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, cast

from bertkit.errors import DamagedFile, UserError, suggest
from bertkit.notify import note

# A line beyond this is no text file; the limit keeps a decompression bomb from filling the memory.
LONGEST_LINE = 1 << 28
DAMAGE = (EOFError, lzma.LZMAError, zlib.error)
_WIDE = ("utf-16", "utf-32")  # encodings whose newline is more than one byte


def _gzip(path: Path) -> IO[bytes]:
    import gzip

    return cast(IO[bytes], gzip.open(path, "rb"))


def _bz2(path: Path) -> IO[bytes]:
    import bz2

    return bz2.open(path, "rb")


def _xz(path: Path) -> IO[bytes]:
    return lzma.open(path, "rb")


def _zstd(path: Path) -> IO[bytes]:
    return io.BufferedReader(_Zstd(path))


def _plain(path: Path) -> IO[bytes]:
    return path.open("rb")


COMPRESSIONS: dict[str, Callable[[Path], IO[bytes]]] = {".gz": _gzip, ".xz": _xz, ".zst": _zstd, ".bz2": _bz2}
_OTHER_NAMES = {"ndjson": "jsonl", "jsonlines": "jsonl", "tab": "tsv", "pq": "parquet", "text": "txt"}


def kind_of(path: str | Path) -> str:
    """The ending of a file's name that tells its format: 'csv' for `a.csv.gz`, '' if none, 'txt' for `-` (stdin)."""
    if str(path) == "-":
        return "txt"
    name = Path(path)
    if name.suffix.lower() in COMPRESSIONS:
        name = name.with_suffix("")
    ending = name.suffix.lower().removeprefix(".")
    return _OTHER_NAMES.get(ending, ending)


def check_file(path: str | Path) -> Path:
    """A user's path, if a file that can be opened is there; otherwise the error says what is there instead."""
    path = Path(path)
    try:
        if "\0" in str(path):
            raise ValueError("a NUL in the name")
        if path.is_dir():
            raise UserError(f"{path} is a folder, but a file is needed. Pass one of the files in it.")
        if not path.exists():
            raise UserError(f"{path} does not exist. {_near(path)}")
        with path.open("rb") as file:
            if not file.read(1):
                raise UserError(f"{path} is empty. Was it written completely?")
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {error}.") from error
    return path


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return f"Its folder {path.parent} does not exist either."
    names = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")][:1000]
    return suggest(path.name, names) if 0 < len(names) <= 20 else _close(path.name, names)


def _close(name: str, names: list[str]) -> str:
    clause = suggest(name, names) if names else ""
    return (
        clause
        if clause.startswith("Did you mean")
        else f"None of the {len(names)} files in its folder has a similar name."
    )


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a user's file, compressed or not: a stream of the unpacked bytes."""
    if str(path) == "-":
        return sys.stdin.buffer
    path = check_file(path)
    return COMPRESSIONS.get(path.suffix.lower(), _plain)(path)


def open_text(
    path: str | Path, encoding: str = "utf-8", split: int | None = None, nul: Literal["refuse", "drop"] = "refuse"
) -> Iterator[str]:
    """Open a user's text file: its lines without line ends (LF or CRLF), decoded strictly; a BOM is dropped.

    The file is opened at once, so that a wrong name is reported before any work. `split`: lines longer than this
    many bytes are split, at a space if possible: bounded memory for texts without line ends.
    nul: "drop" skips stray NUL bytes and reports their number; a line full of them is still refused.
    """
    return _lines(str(path), open_bytes(path), _known(encoding), split, nul)


def open_whole(path: str | Path, encoding: str = "utf-8") -> str:
    """Open a user's file and return its whole text, for formats that are one document (SQuAD)."""
    return "\n".join(open_text(path, encoding))


def _known(encoding: str) -> str:
    """The name of an encoding of text, or an error with those that are usual."""
    try:
        name = codecs.lookup(encoding).name
        "a".encode(encoding)  # refuses codecs that are not text, such as hex
    except (LookupError, ValueError, UnicodeError) as error:
        known = ["utf-8", "utf-16", "gb18030", "big5", "shift_jis", "euc-kr", "latin-1", "cp1252"]
        raise UserError(f"There is no text encoding {encoding!r}. {suggest(encoding, known)}") from error
    return "utf-8" if name in ("utf-8-sig", "ascii") else name


def _lines(path: str, stream: IO[bytes], encoding: str, split: int | None, nul: str) -> Iterator[str]:
    """The decoded lines of a file with their numbers; longer lines come in parts."""
    number, rest, stray = 0, "", 0
    limit = split or LONGEST_LINE
    decoder: codecs.IncrementalDecoder | None = None  # there is one while inside a line that comes in pieces
    with stream:
        for raw in _raw_lines(path, stream, encoding, limit):
            number += decoder is None
            whole = raw.endswith(b"\n") or len(raw) < limit
            if b"\0" in raw:
                count = raw.count(b"\0")
                if nul == "refuse" or count * 50 > len(raw):
                    raise UserError(f"{path}, line {number}: {_why_nul(path, encoding)}")
                raw, stray = raw.replace(b"\0", b""), stray + count
            if decoder is None and whole:
                line = _decode(path, number, raw, encoding)
                yield line.lstrip("\ufeff") if number == 1 else line
                continue
            if not split:
                raise UserError(f"{path}, line {number}: longer than {limit >> 20} MB. Is this a text file?")
            decoder = decoder or codecs.getincrementaldecoder(_inside(encoding))()
            piece = rest + _decode(path, number, raw, encoding, decoder, final=whole)
            cut = len(piece) if whole else piece.rfind(" ") + 1 or len(piece)
            if cut:  # the limit may fall right before the line's end
                yield piece[:cut]
            rest, decoder = piece[cut:], None if whole else decoder
        if rest:
            yield rest
    if stray:
        note(f"{path}: {stray} NUL bytes were dropped.")


def _why_nul(path: str, encoding: str) -> str:
    sample = _sample(path)
    # Every other byte of English in UTF-16 is a NUL: what Excel saves as "Unicode text".
    return why_not(encoding, sample) if by_mark(sample) else "a NUL byte. Is this a text file, or is the line damaged?"


def _inside(encoding: str) -> str:
    """The unpacked lines of a user's file, as `_raw_lines` gives them: wide encodings come out of it as UTF-8."""
    return "utf-8" if encoding.startswith(_WIDE) else encoding


def _raw_lines(path: str, stream: IO[bytes], encoding: str, limit: int) -> Iterator[bytes]:
    """The lines of a file as bytes."""
    if encoding.startswith(_WIDE):
        stream = _as_utf8(path, stream, encoding)
    number = 1
    try:
        while raw := stream.readline(limit):
            yield raw
            number += 1
    except (OSError, *DAMAGE) as error:
        what = f"{path}, after line {number - 1}: the file is truncated or damaged ({error})"
        raise DamagedFile(f"{what}. Download or write it again.") from error


def _as_utf8(path: str, stream: IO[bytes], encoding: str) -> IO[bytes]:
    return cast(IO[bytes], io.BufferedReader(_Recoded(path, stream, encoding)))


def _decode(
    path: str,
    number: int,
    raw: bytes,
    encoding: str,
    pieces: codecs.IncrementalDecoder | None = None,
    final: bool = True,
) -> str:
    """Decode a line; an error names it and the encoding it may be in."""
    encoding = _inside(encoding)
    try:
        line = pieces.decode(raw, final) if pieces else raw.decode(encoding)
        if encoding != "utf-8":
            line.encode()  # utf-7 and the escape codecs let lone surrogates through
    except ValueError as error:  # UnicodeError, and what odd codecs raise
        raise UserError(f"{path}, line {number}: {why_not(encoding, _sample(path) or raw)}") from error
    return line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")


def _sample(path: str) -> bytes:
    """The first bytes of a file, to guess its encoding from."""
    if path == "-":
        return b""
    try:
        with open_bytes(path) as stream:
            return stream.read(1 << 20)
    except (OSError, UserError, *DAMAGE):
        return b""


class _Refilled(io.RawIOBase):
    """A stream over chunks of any size. `_refill` gives the next chunk, empty at the end.

    A chunk is handed over through a memoryview, so a large one is never copied whole for each small read.
    """

    _ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ready:
            self._ready = memoryview(self._refill())
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _refill(self) -> bytes:
        raise NotImplementedError


class _Recoded(_Refilled):
    """A UTF-16 or UTF-32 stream seen as UTF-8."""

    def __init__(self, path: str, stream: IO[bytes], encoding: str) -> None:
        self._path, self._stream, self._encoding = path, stream, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def _refill(self) -> bytes:
        chunk, text = b"start", ""
        while chunk and not text:
            chunk = self._stream.read(1 << 16)
            try:
                text = self._decoder.decode(chunk, final=not chunk)
            except UnicodeError as error:
                raise UserError(f"{self._path}: {why_not(self._encoding, _sample(self._path))}") from error
        return text.encode()


class _Zstd(_Refilled):
    """A .zst file unpacked; unlike the library's own reader, it detects a file that ends too early."""

    def __init__(self, path: Path) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise UserError(f"{path}: reading .zst needs the zstandard library: pip install zstandard") from error
        self._file = path.open("rb")
        self._library, self._packed = zstandard, b""
        self._frame: Any = None

    def close(self) -> None:
        self._file.close()
        super().close()

    def _refill(self) -> bytes:
        unpacked = b""
        while not unpacked:
            # Small bites: 4 bytes of zstd can stand for 128 KB.
            packed = self._packed or self._file.read(1 << 10)
            self._packed = b""
            if not packed:
                if self._frame is not None:
                    raise EOFError("it ends inside a compressed frame")
                break
            self._frame = self._frame or self._library.ZstdDecompressor().decompressobj()
            try:
                unpacked = self._frame.decompress(packed)
            except self._library.ZstdError as error:
                raise EOFError(str(error)) from error
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        return unpacked


# Byte pairs that are everyday characters in each encoding: level-1 hanzi and punctuation of GB 2312, level-1 hanzi
# and punctuation of Big5, kana of Shift-JIS and EUC-JP, hangul of EUC-KR. Nearly all pairs of a real text fall here.
# Korean comes first: its pairs are a part of the Chinese ones, which must therefore fit better to be believed.
_EVERYDAY = {
    "euc_kr": rb"[\xa1\xa3\xb0-\xc8][\xa1-\xfe]",
    "gb18030": rb"[\xa1\xa3\xb0-\xd7][\xa1-\xfe]",
    "big5": rb"[\xa1\xa4-\xc6][\x40-\x7e\xa1-\xfe]",
    "shift_jis": rb"[\x81-\x83\x88-\x97][\x40-\x7e\x80-\xfc]",
    "euc_jp": rb"[\xa1\xa4\xa5\xb0-\xcf][\xa1-\xfe]",
}
# What the letters of each look like once decoded: tells hangul from hanzi, which share byte pairs.
_LETTERS = {
    "gb18030": r"[\u4e00-\u9fff]",
    "big5": r"[\u4e00-\u9fff]",
    "shift_jis": r"[\u3040-\u30ff]",
    "euc_jp": r"[\u3040-\u30ff]",
    "euc_kr": r"[\uac00-\ud7a3]",
}
_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def by_mark(sample: bytes) -> str:
    """The encoding of a file given by its byte order mark; empty without one."""
    return next((name for bom, name in _BOMS.items() if sample.startswith(bom)), "")


def guess_encoding(sample: bytes) -> str:
    """The likeliest encoding of a file's bytes that are not UTF-8. Always one that decodes (latin-1 takes anything)."""
    if marked := by_mark(sample):
        return marked
    best, best_share = _western(sample), 0.5
    for name, pairs in _EVERYDAY.items():
        text = _decoded(sample, name)
        if text is None:
            continue
        foreign = [character for character in text if ord(character) > 127]
        everyday = sum(len(bytes_) for bytes_ in re.findall(pairs, sample, re.DOTALL)) / 2
        letters = len(re.findall(_LETTERS[name], text))
        share = min(everyday, len(foreign)) / max(1, len(foreign)) * (0.5 + 0.5 * letters / max(1, len(foreign)))
        if share > best_share + 0.02:  # a tie goes to the earlier name
            best, best_share = name, share
    return best


def why_not(encoding: str, sample: bytes) -> str:
    """Why a file cannot be read as `encoding`, and what to do about it, as a sentence."""
    text = sample.decode("utf-8", errors="replace")
    damaged, sound = text.count("\ufffd"), sum(character > "\u007f" for character in text)
    if encoding == "utf-8" and not by_mark(sample) and sound - damaged > 4 * damaged > 0:
        return "the line has bytes that are not UTF-8, although the rest of the file is UTF-8. Correct or remove it."
    if encoding != "utf-8" and not damaged:
        return f"not {encoding}; the file looks like UTF-8. Leave --encoding out."
    guess = guess_encoding(sample)
    if guess == encoding:
        return f"the line has bytes that are not {encoding}. Correct or remove it."
    name = "UTF-8" if encoding == "utf-8" else encoding
    return f"not {name}; the file looks like {guess}. Pass --encoding {guess}, or save the file as UTF-8."


def _western(sample: bytes) -> str:
    # 0x80-0x9f are curly quotes and dashes in cp1252 and unused in latin-1.
    return "cp1252" if re.search(rb"[\x80-\x9f]", sample) and _decoded(sample, "cp1252") is not None else "latin-1"


def _decoded(sample: bytes, encoding: str) -> str | None:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(
            sample
        )  # a character cut at the sample's end is no error
    except UnicodeError:
        return None
