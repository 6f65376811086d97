"""Taggers to beat: each word's own most frequent tag, and the hidden Markov model with tags as numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from bertkit.ancestors.hmm import HmmTagger

Sentences = Sequence[Sequence[str]]


class FrequentTag:
    """The tag a word had most often; for a word never seen, the most frequent tag of all words seen once."""

    name = "most frequent tag"

    def fit(self, sentences: Sentences, tags: Sequence[Sequence[int]], count: int, *_: Any, **__: Any) -> Self:
        """Count."""
        seen: dict[str, Counter[int]] = {}
        for words, answers in zip(sentences, tags):
            for word, tag in zip(words, answers):
                seen.setdefault(word, Counter())[tag] += 1
        self.tags = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
        once = Counter(self.tags[word] for word, counts in seen.items() if counts.total() == 1)
        self.unknown = (once or Counter(self.tags.values())).most_common(1)[0][0]
        return self

    def tag(self, sentences: Sentences) -> list[list[int]]:
        """One tag a word."""
        return [[self.tags.get(word, self.unknown) for word in words] for words in sentences]

    @property
    def parameters(self) -> int:
        """One tag a word."""
        return len(self.tags) + 1

    def save(self, folder: Path) -> None:
        """As JSON."""
        described = {"tags": self.tags, "unknown": self.unknown}
        (folder / "tags.json").write_text(json.dumps(described, ensure_ascii=False), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        described = json.loads((folder / "tags.json").read_text("utf-8"))
        model = cls()
        model.tags, model.unknown = described["tags"], described["unknown"]
        return model


class Hmm:
    """The trigram tagger, for tags that are numbers."""

    name = "HMM, trigram"

    def __init__(self, tagger: HmmTagger | None = None) -> None:
        self.tagger = tagger or HmmTagger()

    def fit(self, sentences: Sentences, tags: Sequence[Sequence[int]], count: int, *_: Any, **__: Any) -> Self:
        """Count."""
        self.tagger.fit(sentences, [[str(tag) for tag in answers] for answers in tags])
        return self

    def tag(self, sentences: Sentences) -> list[list[int]]:
        """One tag a word."""
        return [[int(tag) for tag in answers] for answers in self.tagger.tag(sentences)]

    @property
    def parameters(self) -> int:
        """Counts kept: of tag triples and of words with their tags."""
        return int((self.tagger.trigrams > 0).sum()) + sum(map(len, self.tagger.lexicon.values()))

    def save(self, folder: Path) -> None:
        """As the tagger does."""
        self.tagger.save(folder)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What was saved."""
        return cls(HmmTagger.load(folder))
