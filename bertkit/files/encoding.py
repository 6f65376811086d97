"""Which encoding a file has if it is not the expected one, and what to tell the user."""

from __future__ import annotations

import codecs
import re

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
    """The encoding given by a byte order mark; empty without one."""
    return next((name for bom, name in _BOMS.items() if sample.startswith(bom)), "")


def guess_encoding(sample: bytes) -> str:
    """The likeliest encoding of bytes that are not UTF-8. Always one that decodes (latin-1 takes anything)."""
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
    """The sentence that says what the bytes are instead of `encoding`, and what to do."""
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
