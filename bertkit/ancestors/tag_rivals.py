"""Taggers to beat: each word's own most frequent tag, and the hidden Markov model with tags as numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.hmm import HmmTagger

Sentences = Sequence[Sequence[str]]
Judged = list[tuple[list[int], NDArray[np.floating[Any]]]]  # of each sentence: tags, and (words, labels) log-shares


class FrequentTag:
    """The tag a word had most often; for a word never seen, the most frequent tag of all words seen once."""

    name = "most frequent tag"

    def fit(self, sentences: Sentences, tags: Sequence[Sequence[int]], count: int, *_: Any, **__: Any) -> Self:
        """Count."""
        seen: dict[str, Counter[int]] = {}
        for words, answers in zip(sentences, tags):
            for word, tag in zip(words, answers):
                seen.setdefault(word, Counter())[tag] += 1
        self.count = count
        self.tags = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
        self.shares = {word: counts[self.tags[word]] / counts.total() for word, counts in seen.items()}
        once = Counter(self.tags[word] for word, counts in seen.items() if counts.total() == 1)
        ((self.unknown, times),) = (once or Counter(self.tags.values())).most_common(1)
        self.unknown_share = times / (once or Counter(self.tags.values())).total()
        return self

    def judge(self, sentences: Sentences) -> Judged:
        """Tags with the share of each word's own; the rest is dealt out evenly."""
        judged: Judged = []
        for words, numbers in zip(sentences, self.tag(sentences)):
            own = np.array([self.shares.get(word, self.unknown_share) for word in words]).reshape(-1, 1)
            table = np.repeat((1 - own) / max(1, self.count - 1), self.count, axis=1)
            table[np.arange(len(words)), numbers] = own[:, 0]
            judged.append((numbers, np.log(np.maximum(table, 1e-12))))
        return judged

    def tag(self, sentences: Sentences) -> list[list[int]]:
        """One tag a word."""
        return [[self.tags.get(word, self.unknown) for word in words] for words in sentences]

    @property
    def parameters(self) -> int:
        """A tag and its share a word."""
        return 2 * (len(self.tags) + 1)

    def save(self, folder: Path) -> None:
        """As JSON."""
        described = {
            "count": self.count, "tags": self.tags, "shares": self.shares, "unknown": self.unknown,
            "unknown_share": self.unknown_share,
        }  # fmt: skip
        (folder / "tags.json").write_text(json.dumps(described, ensure_ascii=False), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        described = json.loads((folder / "tags.json").read_text("utf-8"))
        model = cls()
        vars(model).update(described)
        return model


class Hmm:
    """The trigram tagger, for tags that are numbers."""

    name = "HMM, trigram"

    def __init__(self, tagger: HmmTagger | None = None) -> None:
        self.tagger = tagger or HmmTagger()

    def fit(self, sentences: Sentences, tags: Sequence[Sequence[int]], count: int, *_: Any, **__: Any) -> Self:
        """Count."""
        self.count = count
        self.tagger.fit(sentences, [[str(tag) for tag in answers] for answers in tags])
        return self

    def tag(self, sentences: Sentences) -> list[list[int]]:
        """One tag a word."""
        return [[int(tag) for tag in answers] for answers in self.tagger.tag(sentences)]

    def judge(self, sentences: Sentences) -> Judged:
        """Tags of the best path, with the shares all paths give them."""
        places = [int(tag) for tag in self.tagger.tags]
        judged: Judged = []
        for words, numbers in zip(sentences, self.tag(sentences)):
            table = np.full((len(words), self.count), -np.inf)
            table[:, places] = self.tagger.log_shares(words)
            judged.append((numbers, np.maximum(table, np.log(1e-12))))
        return judged

    @property
    def parameters(self) -> int:
        """Counts kept: of tag triples and of words with their tags."""
        return int((self.tagger.trigrams > 0).sum()) + sum(map(len, self.tagger.lexicon.values()))

    def save(self, folder: Path) -> None:
        """As the tagger does, and how many tags there are."""
        self.tagger.save(folder)
        (folder / "count.json").write_text(json.dumps(self.count), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        model = cls(HmmTagger.load(folder))
        model.count = int(json.loads((folder / "count.json").read_text("utf-8")))
        return model
