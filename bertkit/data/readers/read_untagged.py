"""What a .txt file without tags holds: texts, one a line, or the columns of CoNLL, one word a line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from bertkit.data.readers.tagged import columns_in
from bertkit.files.open import kind_of, open_text
from bertkit.notify import note
from bertkit.text.words import is_cjk

LOOKED_AT = 1000  # lines by which a file is judged
MOST = 0.9  # of them must be columns: a line that is damaged is then told by its number, and is no text
LONGEST_WORD = 4  # characters of most Chinese words
_TAG = re.compile(r"[A-Z]+\$?([-_].+)?|[-_?]")  # O, B-PER, NNP, PRP$, and what stands for none
READ_AS = {
    True: "every line is read as one text. If it holds one word a line, name it .conll.",
    False: "read as one word a line, blank lines between sentences. If every line is a text, give it as -: … - < FILE.",
}


def holds_texts(path: str | Path, encoding: str = "utf-8", labels: Sequence[str] = ()) -> bool:
    """Whether a file's lines are texts: only of .txt files (compressed or not) is it asked, and the answer is told.

    Its first lines are columns, and no texts, where nine in ten
    - have equally many columns, two or more, and are apart by tabs, or end in a tag: one of `labels`, or capitals as in
      O, B-PER, NNP; or
    - are one word (Chinese: of up to four characters), in sentences of two lines or more with blank lines between.
    """
    if kind_of(path) != "txt" or str(path) == "-":
        return False
    lines = list(islice(open_text(path, encoding), LOOKED_AT))
    texts = not (_has_tags(lines, set(labels)) or _has_words(lines))
    note(f"{path}: {READ_AS[texts]}")
    return texts


def _has_tags(lines: Sequence[str], labels: set[str]) -> bool:
    """Whether most lines are a word and at least one column more."""
    rows = [columns_in(line) for line in lines if _counts(line)]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    tabbed = sum("\t" in line for line in lines) >= MOST * len(rows)
    fit = [
        len(row) == width and not any(" " in cell for cell in row)
        and (tabbed or row[-1] in labels or _TAG.fullmatch(row[-1]) is not None)
        for row in rows
    ]  # fmt: skip
    return width > 1 and _most(fit)


def _has_words(lines: Sequence[str]) -> bool:
    """Whether most lines are single words, in sentences of several lines."""
    words = [line for line in lines if _counts(line)]
    sentences = sum(bool(line.strip()) and not before.strip() for before, line in zip(["", *lines], lines))
    return len(words) >= 2 * sentences > 2 and _most(map(_is_word, words))


def _is_word(line: str) -> bool:
    chinese = any(map(is_cjk, line))
    return len(line.split()) == 1 and (not chinese or (len(line) <= LONGEST_WORD and line.isalnum()))


def _counts(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("-DOCSTART-")


def _most(fit: Iterable[bool]) -> bool:
    found = list(fit)
    return bool(found) and sum(found) >= MOST * len(found)
