"""What word vectors know: analogies (a is to b as c is to d), and similarity as people judge it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.errors import UserError
from bertkit.files.open import open_text
from bertkit.metrics.numbers import regression

BATCH = 512  # questions answered by one product of matrices


@dataclass(frozen=True)
class AnalogyCount:
    """Score of word vectors on analogies.

    asked: questions in the file; answered: those whose words all have vectors; correct: of these.
    """

    asked: int = 0
    answered: int = 0
    correct: int = 0

    @property
    def accuracy(self) -> float:
        """Analogies answered correctly among those answered."""
        return self.correct / self.answered if self.answered else 0.0

    @property
    def coverage(self) -> float:
        """Analogies answered among those asked."""
        return self.answered / self.asked if self.asked else 0.0

    def __add__(self, other: AnalogyCount) -> AnalogyCount:
        """Two sections as one."""
        return AnalogyCount(self.asked + other.asked, self.answered + other.answered, self.correct + other.correct)


@dataclass(frozen=True)
class Similarity:
    """Score of word vectors on similarity.

    spearman: correlation of cosines with people's scores, over `known` of `pairs` pairs.
    """

    spearman: float
    pairs: int
    known: int

    @property
    def coverage(self) -> float:
        """Word pairs whose vectors are known among all."""
        return self.known / self.pairs if self.pairs else 0.0


def analogies(vectors: WordVectors, path: str | Path, encoding: str = "utf-8") -> dict[str, AnalogyCount]:
    """Evaluate word vectors on analogies: answers by section of a file like questions-words.txt or CA8, last 'total'.

    A line ': name' begins a section; others are four words. Words are taken in lower case if not known as they stand.
    """
    sections: dict[str, list[tuple[int, ...]]] = {}
    name = "all"
    for number, line in enumerate(open_text(path, encoding), 1):
        fields = line.split()
        if fields[:1] == [":"]:
            name = " ".join(fields[1:])
        elif len(fields) == 4:
            sections.setdefault(name, []).append(tuple(_place(vectors, word) for word in fields))
        elif fields:
            raise UserError(
                f"{path}, line {number}: four words or ': section' are needed, but there are {len(fields)}."
            )
    if not sections:
        raise UserError(f"{path}: it contains no analogies.")
    answers = {name: _answer(vectors, np.array(places)) for name, places in sections.items()}
    return {**answers, "total": sum(answers.values(), AnalogyCount())}


def _answer(vectors: WordVectors, questions: np.ndarray) -> AnalogyCount:
    """Answer analogies. questions: (n, 4) places of words, -1 for one without a vector."""
    answerable = questions[(questions >= 0).all(1)]
    unit, correct = vectors.unit, 0
    for begin in range(0, len(answerable), BATCH):
        a, b, c, d = answerable[begin : begin + BATCH].T
        scores = (unit[b] - unit[a] + unit[c]) @ unit.T
        for question_word in (a, b, c):
            scores[np.arange(len(a)), question_word] = -np.inf
        correct += int((scores.argmax(1) == d).sum())
    return AnalogyCount(len(questions), len(answerable), correct)


def similarities(vectors: WordVectors, path: str | Path, encoding: str = "utf-8") -> Similarity:
    """Evaluate word vectors on similarity: cosines and the scores of lines 'word, word, score' (SimLex, WordSim, MEN).

    Fields are parted by tabs, spaces or commas; lines that begin with # are passed over.
    """
    pairs = list(_scored(path, encoding))
    places = [(_place(vectors, first), _place(vectors, second), score) for first, second, score in pairs]
    known = [(first, second, score) for first, second, score in places if first >= 0 and second >= 0]
    if len(known) < 2:
        return Similarity(0.0, len(pairs), len(known))
    cosines = [float(vectors.unit[first] @ vectors.unit[second]) for first, second, _ in known]
    return Similarity(regression([score for *_, score in known], cosines)["spearman"], len(pairs), len(known))


def _scored(path: str | Path, encoding: str) -> Iterator[tuple[str, str, float]]:
    """Pairs of words with the similarity that people gave them, line by line."""
    for number, line in enumerate(open_text(path, encoding), 1):
        if line.startswith("#") or not line.strip():
            continue
        fields = line.replace(",", " ").split()
        try:
            first, second, score = fields[0], fields[1], float(fields[2])
        except (IndexError, ValueError) as error:
            raise UserError(f"{path}, line {number}: two words and a score are needed, not {line[:60]!r}.") from error
        yield first, second, score


def _place(vectors: WordVectors, word: str) -> int:
    return vectors.places.get(word, vectors.places.get(word.lower(), -1))
