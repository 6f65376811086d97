"""Words and sentences in English and Chinese, and lines that look like anything but prose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bertkit.errors import UserError

# The blocks BERT treats as Chinese characters (google-research/bert, tokenization.py): neither kana nor hangul.
CJK_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


# Character classes for regular expressions. HAN is wider than BERT's blocks: it includes those added to Unicode since.
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KANA = "\u3040-\u30ff"
HANGUL = "\uac00-\ud7a3"


def is_cjk(char: str) -> bool:
    """Whether this character is Chinese, by BERT's definition."""
    code = ord(char)
    return code >= 0x3400 and any(first <= code <= last for first, last in CJK_RANGES)


_WIDE = "".join(f"{chr(first)}-{chr(last)}" for first, last in CJK_RANGES) + "\u3000-\u303f\uff00-\uffef“”‘’—…"
_BETWEEN = re.compile(f"(?<=[{_WIDE}]) | (?=[{_WIDE}])")


def without_spaces(texts: Sequence[str]) -> bool:
    """Whether a quarter of the characters or more are of a script such as Chinese, which writes no spaces."""
    return sum(ord(char) > 0x2E7F for text in texts for char in text) > sum(map(len, texts)) / 4


def closed_up(text: str) -> str:
    """A text without the blanks that decoding pieces leaves around Chinese words and their punctuation."""
    return _BETWEEN.sub("", text) if any(map(is_cjk, text)) else text


def segment(text: str) -> list[tuple[int, int]]:
    """Chinese words as half-open character ranges that together cover the text."""
    try:
        import rjieba
    except ImportError:
        raise UserError("Segmenting Chinese words needs the rjieba library. Run: pip install rjieba") from None
    spans, start = [], 0
    for word in rjieba.cut(text):
        spans.append((start, start + len(word)))
        start += len(word)
    return spans


# Where a sentence may end. One set comes first so that the regex engine can skip over plain text quickly.
# After it: a blank line; or more closing marks and a space; or, after a Chinese mark, its closing quotes.
_ENDS_ASCII = re.compile(r"""[.!?\n](?:(?<=\n)[^\S\n]*\n\s*|(?<!\n)[.!?]*["')\]}]*\s+)""")
_ENDS = re.compile(
    r"""[.!?\n。！？；…｡]
    (?: (?<=\n)[^\S\n]*\n\s*
      | (?<=[.!?…])[.!?…]*["'”’)\]}»›]*\s+
      | (?<=[。！？；…｡])[。！？；…｡!?]*["'”’」』）)】》〉\]]*\s*
    )""",
    re.VERBOSE,
)
_NEXT = re.compile(r"""["'“‘(\[{«‹*_—–-]*([^\W_]*)""")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_CHINESE_END = frozenset("。！？；｡")

# Followed by a name, not by the end of the sentence.
_NEVER_LAST = _set(
    """mr mrs ms dr prof rev fr st mt gen col capt lt sgt maj cmdr adm gov sen rep hon pres messrs mme mlle msgr
    vs cf viz e.g i.e eg ie esp incl"""
)
# The end of the sentence unless a number follows.
_BEFORE_NUMBER = _set(
    """no nos p pp fig figs vol vols ch chap sec art eq ref tab jan feb mar apr jun jul aug sep sept oct nov dec
    approx ca c"""
)
# The end of the sentence only when the next word is one that mostly begins sentences.
_MAYBE_LAST = _set("inc ltd co corp jr sr bros etc al ph.d m.d b.a m.a est dept univ assn ave blvd rd")
_STARTERS = _set(
    """The A An In On At He She It They We You This That These Those There Here But And Or So Then When While If As
    After Before Although However For From His Her Its Their Our My What Who Why How Where Not No Yes With By To Since
    Because During Under Both Each Every Some Many Most One Two Now Once Still Yet Also Meanwhile Instead"""
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order, without the spaces around them; no other character is lost.

    English ends at . ! ? (with closing quotes and brackets) before a space and a capital or digit, but not after
    abbreviations, initials and list numbers. Chinese ends at 。！？；…… with their closing quotes. A blank line always
    ends a sentence, a single line break never does.
    """
    sentences, start = [], 0
    for end in _ends(text):
        if sentence := text[start:end].strip():
            sentences.append(sentence)
        start = end
    if last := text[start:].strip():
        sentences.append(last)
    return sentences


def _ends(text: str) -> Iterator[int]:
    """Where the sentences of a text end."""
    begin = 0
    for match in (_ENDS_ASCII if text.isascii() else _ENDS).finditer(text):
        first = text[match.start()]
        if first == "\n" or first in _CHINESE_END or _is_end(text, begin, match):
            begin = match.end()
            yield begin


def _is_end(text: str, begin: int, match: re.Match[str]) -> bool:
    """Whether the sentence that began at `begin` ends with this mark (in splitting a text into sentences)."""
    dot, end = match.span()
    mark = match.group()
    if "\n" in mark and mark.count("\n") > 1:
        return True
    if text[dot] == "…" and dot > begin and is_cjk(text[dot - 1]):
        return True
    if end == len(text) or not mark[-1].isspace():
        return end == len(text)
    following = _NEXT.match(text, end)
    word = following.group(1) if following else ""
    if word[:1].islower():
        return False
    if text[dot] != "." or mark[1:2] == ".":
        return True
    before = text[max(dot - 20, begin) : dot].rsplit(None, 1)
    last = before[-1].lstrip("\"'“‘([{*_") if before else ""
    if len(last) > 6 or not last:
        return True
    key = last.lower()
    if key in _NEVER_LAST:
        return False
    if key in _BEFORE_NUMBER:
        return not word[:1].isdigit()
    if key in _MAYBE_LAST or (len(last) == 1 and last.isupper()) or ("." in last and last.replace(".", "").isalpha()):
        return word in _STARTERS
    # "1. Introduction": a sentence that consists of a number only.
    return not (last.isdigit() and len(last) <= 3 and text[begin:dot].strip() == last)


_WRAPPED = re.compile(r"\n[a-z]")
_CONTROLS = "".join(map(chr, [*range(1, 9), 11, 12, *range(14, 32), 127]))
# What a line of prose seldom holds: a pattern, and strings without which it cannot be there (quick to look for).
SUSPICIONS: dict[str, tuple[Sequence[str], re.Pattern[str]]] = {
    "broken characters (U+FFFD)": ("\ufffd", re.compile("\ufffd")),
    "text decoded twice (Ã©, â€™)": (
        ("Ã", "â€", "Â", "锟斤拷", "ï»¿"),
        re.compile("Ã[\u0080-\u00bf\u2018-\u2122]|Â[\u00a0-\u00bf]|â€|锟斤拷|ï»¿"),
    ),
    "markup (<tag>, &amp;)": (
        "<&",
        re.compile(r"</?(?!unk>)[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>\n]{0,200})?/?>|&(?:[a-z]{2,8}|#\d{1,6});"),
    ),
    "rules and tables (-----, |…|…|)": (
        ("|", *(mark * 10 for mark in "-=_*#~.")),
        re.compile(r"([-=_*#~.])\1{9}|\|[^|\n]*\|[^|\n]*\|"),
    ),
    "control characters": (_CONTROLS, re.compile(f"[{re.escape(_CONTROLS)}]")),
}


def sentences_of(document: str) -> list[str]:
    """The sentences of a document. A line end is a paragraph's end, unless the text is wrapped.

    Text counts as wrapped if most of its lines continue with a lower-case letter.
    """
    if 2 * len(_WRAPPED.findall(document)) > document.count("\n"):
        return split_sentences(document)
    return [sentence for line in document.split("\n") for sentence in split_sentences(line)]


def suspicious_lines(document: str) -> dict[str, int]:
    """The number of lines of each kind that is rarely prose, as `prepare` and `doctor` report them."""
    counts = {}
    for kind, (needles, pattern) in SUSPICIONS.items():
        if any(needle in document for needle in needles) and (
            count := sum(pattern.search(line) is not None for line in document.split("\n"))
        ):
            counts[kind] = count
    return counts
