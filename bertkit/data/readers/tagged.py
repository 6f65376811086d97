"""Sentences with one tag per word: CoNLL columns, CoNLL-U, JSON lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from bertkit.data.examples import TaggedSentence
from bertkit.data.readers.json import read_objects, strings
from bertkit.errors import UserError
from bertkit.files.open import kind_of, open_text
from bertkit.notify import note
from bertkit.text.words import is_cjk

UPOS = 4  # the column of universal part-of-speech tags in CoNLL-U
_WORD = re.compile(r"[0-9]+")
_NOT_A_WORD = re.compile(r"[0-9]+[-.][0-9]+")  # 3-4: a multiword token; 5.1: an empty node


def read_tagged(
    path: str | Path,
    *,
    labelled: bool | Literal["maybe"] = True,
    tag_column: int | None = None,
    encoding: str = "utf-8",
) -> Iterator[TaggedSentence]:
    """Each sentence of a tagged file, in any of three forms.

    CoNLL columns: word first, tag last (or in `tag_column`, from 1), blank line between sentences, columns separated by
    a tab or spaces, `-DOCSTART-` lines skipped; a file of one column has no tags.
    `.conllu`: the form and its UPOS tag; comments, multiword tokens and empty nodes are skipped.
    `.jsonl`: {"tokens": […], "tags": […]}.
    labelled: False: tags are not read; "maybe": tags are optional.
    """
    kind = kind_of(path)
    if kind in ("jsonl", "json"):
        sentences = _from_objects(path, encoding, kind)
    else:
        sentences = _from_columns(path, encoding, kind == "conllu", tag_column)
    is_any = False
    for sentence in sentences:
        is_any = True
        if sentence.tags is None and labelled is True:
            raise UserError(f"{path}, line {sentence.line}: the words have no tags. Put the tag in the last column.")
        yield sentence if labelled else TaggedSentence(sentence.tokens, None, sentence.line)
    if not is_any:
        raise UserError(f"{path} contains no sentences.")


def _from_objects(path: str | Path, encoding: str, kind: str) -> Iterator[TaggedSentence]:
    """Tagged sentences of JSON lines."""
    for line, row in read_objects(path, encoding, kind):
        where = f"{path}, line {line}"
        tokens = strings(where, row, "tokens", "words")
        has_tags = any(row.get(name) is not None for name in ("tags", "ner_tags", "labels"))
        tags = strings(where, row, "tags", "ner_tags", "labels") if has_tags else None
        if not tokens or not all(token.strip() for token in tokens):
            raise UserError(
                f"{where}: {'an empty word' if tokens else 'no words'} in 'tokens'. Correct or remove the line."
            )
        if tags is not None and len(tags) != len(tokens):
            raise UserError(f"{where}: {len(tokens)} tokens and {len(tags)} tags. Each token needs one tag.")
        yield TaggedSentence(tokens, tags, line)


def _from_columns(path: str | Path, encoding: str, conllu: bool, tag_column: int | None) -> Iterator[TaggedSentence]:
    """Tagged sentences in columns (CoNLL, CoNLL-U): one word per line, a blank line between sentences."""
    width, start = 0, 0
    words: list[str] = []
    tags: list[str] = []
    place = tag_column or (UPOS if conllu else 0)  # 0 - 1 is the last column
    for number, line in enumerate(open_text(path, encoding), start=1):
        if not line.strip(" \t\r"):
            if words:
                yield TaggedSentence(tuple(words), tuple(tags) if tags else None, start)
            words, tags = [], []
            continue
        if line.startswith("-DOCSTART-") or (conllu and line.startswith("#")):
            continue
        cells = columns_in(line, conllu)
        width = width or (10 if conllu else len(cells))
        where = f"{path}, line {number}"
        if len(cells) != width:
            needed = "CoNLL-U has" if conllu else "the lines before have"
            raise UserError(f"{where}: {len(cells)} columns, but {needed} {width}: {line[:60]!r}. Correct the line.")
        if tag_column is not None and not 1 <= tag_column <= width:
            raise UserError(f"{where}: there is no column {tag_column}; the line has {width}.")
        if conllu and not _WORD.fullmatch(cells[0]):
            if _NOT_A_WORD.fullmatch(cells[0]):
                continue
            raise UserError(f"{where}: {cells[0][:20]!r} is not a CoNLL-U word number. Correct the line.")
        word = cells[1 if conllu else 0]
        if not word.strip():
            raise UserError(f"{where}: an empty word. Correct or remove the line.")
        if not words:
            start = number
        words.append(word)
        if width > 1:
            if not cells[place - 1]:
                raise UserError(f"{where}: the word {word!r} has no tag. Correct the line.")
            tags.append(cells[place - 1])
    if words:
        yield TaggedSentence(tuple(words), tuple(tags) if tags else None, start)


def columns_in(line: str, conllu: bool = False) -> list[str]:
    """A line of a tagged file in columns: split at a tab, or else at plain spaces.

    Other spaces can be words in Chinese files.
    """
    line = line.rstrip("\r\n")
    if conllu or "\t" in line:
        return line.split("\t")
    return [cell for cell in line.split(" ") if cell]


# ---- What a .txt file without tags holds: texts, one a line, or the columns of CoNLL, one word a line.

LOOKED_AT = 1000  # lines by which a file is judged
MOST = 0.9  # of them must be columns: a damaged line is then reported by its number, not taken for text
LONGEST_WORD = 4  # characters of most Chinese words
_TAG = re.compile(r"[A-Z]+\$?([-_].+)?|[-_?]")  # O, B-PER, NNP, PRP$, and what stands for none
READ_AS = {
    True: "every line is read as one text. If the file has one word per line, name it .conll.",
    False: (
        "read as one word per line with blank lines between sentences. If every line is a text, pipe it in: … - < FILE."
    ),
}


def holds_texts(path: str | Path, encoding: str = "utf-8", labels: Sequence[str] = ()) -> bool:
    """Whether a tagged file's lines are texts. Applies only to .txt files (compressed or not); the answer is reported.

    Its first lines are columns, not texts, if nine in ten
    - have equally many columns, two or more, separated by tabs, or end in a tag: one of `labels`, or capitals as in
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
    """Whether most lines of a tagged file are a word and at least one column more."""
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
    """Whether most lines of a tagged file are single words, in sentences of several lines."""
    words = [line for line in lines if _counts(line)]
    sentences = sum(bool(line.strip()) and not before.strip() for before, line in zip(["", *lines], lines))
    return len(words) >= 2 * sentences > 2 and _most(map(_is_word, words))


def _is_word(line: str) -> bool:
    chinese = any(map(is_cjk, line))
    return len(line.split()) == 1 and (not chinese or (len(line) <= LONGEST_WORD and line.isalnum()))


def _counts(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("-DOCSTART-")


def _most(fit: Iterable[bool]) -> bool:
    fits = list(fit)
    return bool(fits) and sum(fits) >= MOST * len(fits)
