r"""n-gram models as ARPA files: the text format that KenLM, SRILM, NLTK and speech recognisers read.

A line is `log10 probability <tab> words <tab> log10 back-off weight`. Words cannot hold white space there, so the
model of characters writes a space as `<U+0020>`, other white space alike.
"""

from __future__ import annotations

import gzip
import lzma
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.ngram.kneser_ney import NEVER, Level
from bertkit.ancestors.ngram.model import SPECIAL, NgramModel, NgramSettings
from bertkit.errors import DamagedFile, UserError
from bertkit.files.atomic import open_new
from bertkit.notify import note
from bertkit.text.words import is_cjk

OPENERS = {".gz": gzip.open, ".xz": lzma.open}
WRITTEN_AT_ONCE = 100_000
# SRILM leaves the unknown word out of closed vocabularies; KenLM then reads this probability.
NO_UNKNOWN = -100.0


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
        yield cast(TextIO, file)


def _escape(word: str) -> str:
    return "".join(f"<U+{ord(letter):04X}>" if letter.isspace() else letter for letter in word)


def _unescape(word: str) -> str:
    return re.sub(r"<U\+([0-9A-F]{4,6})>", lambda match: chr(int(match[1], 16)), word)


def write_arpa(model: NgramModel, path: str | Path) -> None:
    """Write the model as an ARPA file, whole or not at all (`.gz` and `.xz` are compressed).

    The speller of unknown words is left out.
    """
    names = np.array([_escape(word) for word in model.words], object)
    with open_new(path) as raw:
        file = TextIOWrapper(cast(BinaryIO, raw), "utf-8", newline="")
        sizes = [size for size in model.ngrams if size]  # Short sentences leave the highest orders empty.
        file.write("\\data\\\n" + "".join(f"ngram {k}={size}\n" for k, size in enumerate(sizes, 1)))
        for order, level in enumerate(model.levels[: len(sizes)], 1):
            file.write(f"\n\\{order}-grams:\n")
            for begin in range(0, len(level.log_prob), WRITTEN_AT_ONCE):
                ranks = np.arange(begin, min(begin + WRITTEN_AT_ONCE, len(level.log_prob)))
                columns = [names[column] for column in words_of(model, order, ranks)]
                grams = (" ".join(words) for words in zip(*columns))
                probs = level.log_prob[ranks].tolist()
                if order < len(sizes):
                    weights = level.back_off[ranks].tolist()
                    file.writelines(f"{p:.9g}\t{g}\t{w:.9g}\n" for p, g, w in zip(probs, grams, weights))
                else:
                    file.writelines(f"{p:.9g}\t{g}\n" for p, g in zip(probs, grams))
        file.write("\n\\end\\\n")
        file.flush()
        file.detach()  # open_new closes it


def words_of(model: NgramModel, order: int, ranks: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The word ids of n-grams as an ARPA file lists them, first word first: `order` arrays like ranks."""
    columns = []
    vocabulary = np.uint64(len(model.words))
    for level in reversed(model.levels[1:order]):
        keys = level.keys[ranks]
        columns.append((keys % vocabulary).astype(np.int64))
        ranks = (keys // vocabulary).astype(np.int64)
    return [ranks, *reversed(columns)]


def read_arpa(path: str | Path, settings: NgramSettings | None = None) -> NgramModel:
    """Read an ARPA file. `settings` say how texts are cut (units, cased), else its words tell; the order is its own."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist. Name an ARPA file.")
    try:
        with _text(path) as file:
            sections = list(_sections(path, file))
    except (UnicodeDecodeError, EOFError, OSError, lzma.LZMAError) as problem:
        raise DamagedFile(f"{path} cannot be read as an ARPA file: {problem}.") from problem
    model = NgramModel(replace(settings or NgramSettings(), order=len(sections)))
    model.levels.append(_single_words(path, model, *sections[0]))
    for section in sections[1:]:
        model.levels.append(_level(path, model, *section))
    model.levels[-1].back_off = np.empty(0, np.float32)
    if settings is None:
        model.settings = replace(model.settings, **_way_of_cutting(model.words[len(SPECIAL) :]))
    return model


def _way_of_cutting(words: Sequence[str]) -> dict[str, Any]:
    """How an ARPA file's texts are cut, as its words tell: with capitals, by character, or Chinese in words."""
    units = "characters" if " " in words else "words"
    if any(len(word) > 1 and any(map(is_cjk, word)) for word in words):
        units = "jieba"
    return {"units": units, "cased": any(word != word.lower() for word in words)}


Section = tuple[list[list[str]], NDArray[np.float32], NDArray[np.float32], int]


def _sections(path: Path, file: TextIO) -> Iterator[Section]:
    """An ARPA file's orders: the words of every n-gram, log probabilities, back-off weights, and the line before."""
    promised: list[int] = []
    lines = enumerate((line.strip() for line in file), 1)
    number, order = 0, 0
    for number, line in lines:
        if match := re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line):
            promised.append(int(match[2]))
            if int(match[1]) != len(promised):
                raise DamagedFile(f"{path}, line {number}: order {match[1]} is announced out of order.")
        elif re.fullmatch(r"\\\d+-grams:", line):
            order += 1
            if line != f"\\{order}-grams:" or order > len(promised):
                raise DamagedFile(f"{path}, line {number}: '{line}' where \\{order}-grams: was expected.")
            yield _section(path, lines, number, order, promised[order - 1])
        elif line == "\\end\\":
            break
    if not order or order != len(promised):
        raise DamagedFile(
            f"{path}, line {number}: {order} of {len(promised)} announced orders are present. Is the file complete?"
        )


def _section(path: Path, lines: Iterator[tuple[int, str]], began: int, order: int, promised: int) -> Section:
    """The n-grams of one order in an ARPA file, with their probabilities and back-off weights."""
    grams: list[list[str]] = []
    probs, weights = np.zeros(promised, np.float32), np.zeros(promised, np.float32)
    for number, line in lines:
        if not line:
            if len(grams) == promised:
                break
            continue
        parts = line.split()
        if line.startswith("\\") or len(grams) == promised or len(parts) not in (order + 1, order + 2):
            raise DamagedFile(
                f"{path}, line {number}: '{line[:80]}' is not n-gram {len(grams) + 1} "
                f"of the {promised} announced for order {order}."
            )
        try:
            probs[len(grams)] = float(parts[0])
            weights[len(grams)] = float(parts[order + 1]) if len(parts) == order + 2 else 0.0
        except ValueError as problem:
            raise DamagedFile(f"{path}, line {number}: {problem}.") from problem
        grams.append([_unescape(word) for word in parts[1 : order + 1]])
    if len(grams) != promised:
        raise DamagedFile(f"{path}: {len(grams)} n-grams of order {order} where {promised} are announced.")
    return grams, probs, weights, began


def _single_words(
    path: Path, model: NgramModel, grams: list[list[str]], probs: NDArray[np.float32], weights: NDArray[np.float32],
    began: int,
) -> Level:  # fmt: skip
    """The unigrams of an ARPA file name the words of the model."""
    names = [words[0] if words[0].lower() not in SPECIAL else words[0].lower() for words in grams]
    model.name_words([*SPECIAL, *(name for name in names if name not in SPECIAL)])
    if len(set(names)) != len(names):
        raise DamagedFile(f"{path}, line {began}: a word occurs twice among the 1-grams that follow.")
    if SPECIAL[0] not in names:
        note(f"{path}: no <unk>: unknown words get log10 probability {NO_UNKNOWN:g}.")
    size = len(model.words)
    ids = np.array([model.ids[name] for name in names], np.int64)
    level = Level(np.empty(0, np.uint64), np.full(size, NEVER, np.float32), np.zeros(size, np.float32))
    level.log_prob[0] = NO_UNKNOWN
    level.log_prob[ids], level.back_off[ids] = probs, weights
    return level


def _level(
    path: Path, model: NgramModel, grams: list[list[str]], probs: NDArray[np.float32], weights: NDArray[np.float32],
    began: int,
) -> Level:  # fmt: skip
    """The n-grams of a higher order of an ARPA file become a level of the model."""
    order = len(model.levels) + 1
    ids_by_word = {**model.ids, **{name.upper(): i for i, name in enumerate(SPECIAL) if name.upper() not in model.ids}}
    ids = np.array([[ids_by_word.get(word, -1) for word in words] for words in grams], np.int64).reshape(-1, order)
    ranks = ids[:, 0]
    for k, level in enumerate(model.levels[1:], start=1):
        ranks = model.find(level, ranks, ids[:, k])
    for row in np.flatnonzero((ids < 0).any(1) | (ranks < 0))[:1]:
        raise DamagedFile(
            f"{path}, among the {order}-grams after line {began}: '{' '.join(grams[row])}' begins with words "
            f"that are not among the {order - 1}-grams, or holds a word that is not among the 1-grams."
        )
    keys = ranks.astype(np.uint64) * np.uint64(len(model.words)) + ids[:, -1].astype(np.uint64)
    place = np.argsort(keys)
    if (keys[place][1:] == keys[place][:-1]).any():
        raise DamagedFile(f"{path}: an n-gram occurs twice among the {order}-grams after line {began}.")
    return Level(keys[place], probs[place], weights[place])
