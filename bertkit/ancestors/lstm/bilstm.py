"""What stood before BERT in most tasks: a two-layer BiLSTM over word vectors, that tags words or judges texts.

Its words are vectors of its own, perhaps begun from word2vec or GloVe, or frozen features: ELMo's layers with a learnt
mix, or BERT's (six_features.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax

from bertkit.ancestors.lstm.bilstm_base import BiLstm
from bertkit.ancestors.lstm.network import Sentences
from bertkit.ancestors.ngram.ngram_words import cut
from bertkit.errors import UserError

Tags = Sequence[Sequence[int]]


class BiLstmTagger(BiLstm):
    """One label a word."""

    ancestor = "bilstm-tagger"

    def fit(
        self,
        sentences: Sentences,
        tags: Tags,
        labels_count: int,
        dev_sentences: Sentences = (),
        dev_tags: Tags = (),
        *,
        seed: int = 0,
        minutes: float = 0,
        epochs: int = 0,
        measure: Callable[[list[list[int]], list[list[int]]], float] | None = None,
    ) -> Self:
        """Learn tags (numbers below labels_count), one a word; epochs 0: as in the settings; minutes 0: no limit.

        measure(right, said): what the best pass is chosen by; the share of right tags if not given.
        """
        kept = [n for n, words in enumerate(sentences) if len(words)]
        _check_pairs(sentences, tags, "training")
        _check_pairs(dev_sentences, dev_tags, "dev")
        judged = [n for n, words in enumerate(dev_sentences) if len(words)]
        right = [list(dev_tags[n]) for n in judged]
        judge = measure or _right_share

        def of(logits: list[np.ndarray]) -> float:
            return judge(right, [one.argmax(-1).tolist() for one in logits])

        dev = [dev_sentences[n] for n in judged]
        self._learn([sentences[n] for n in kept], [tags[n] for n in kept], labels_count, dev, of, seed, minutes, epochs)
        return self

    def tag(self, sentences: Sentences) -> list[list[int]]:
        """The most likely label of every word."""
        return [numbers for numbers, _ in self.judge(sentences)]

    def judge(self, sentences: Sentences) -> list[tuple[list[int], np.ndarray]]:
        """Of each sentence the most likely labels, and the log-probabilities of all: (words, labels)."""
        found = iter(self._answers([words for words in sentences if len(words)]))
        judged = []
        for words in sentences:
            logits = next(found) if len(words) else np.zeros((0, 1))
            judged.append((logits.argmax(-1).tolist(), log_softmax(logits, -1)))
        return judged


class BiLstmClassifier(BiLstm):
    """One label a text; its words are pooled (settings.pool)."""

    ancestor = "bilstm-classifier"

    @property
    def _pool(self) -> str:
        return self.settings.pool

    def fit(
        self,
        texts: Sequence[str],
        labels: Sequence[int],
        labels_count: int,
        dev_texts: Sequence[str] = (),
        dev_labels: Sequence[int] = (),
        *,
        seed: int = 0,
        minutes: float = 0,
        epochs: int = 0,
    ) -> Self:
        """Learn labels (numbers below labels_count); epochs 0: as in the settings; minutes 0: no limit."""
        for given, answers, which in ((texts, labels, "training"), (dev_texts, dev_labels, "dev")):
            if len(given) != len(answers):
                raise UserError(f"There are {len(given)} {which} texts but {len(answers)} labels.")
        right = np.array(dev_labels)

        def of(logits: list[np.ndarray]) -> float:
            return float((np.concatenate(logits).argmax(-1) == right).mean())

        targets = [[label] for label in labels]
        self._learn(self._cut(texts), targets, labels_count, self._cut(dev_texts), of, seed, minutes, epochs)
        return self

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(texts, labels)"""
        found = self._answers(self._cut(texts))
        labels = self.model.out.out_features if self.model else 0
        logits = np.concatenate(found) if found else np.zeros((0, labels), np.float32)
        return torch.from_numpy(logits).softmax(-1).numpy()

    def _cut(self, texts: Sequence[str]) -> list[list[str]]:
        """Texts as words; a text without any has the empty word, which nobody knows."""
        s = self.settings
        return [[word for word in cut(text, s.units, s.cased) if word != "\n"] or [""] for text in texts]


def _right_share(right: list[list[int]], said: list[list[int]]) -> float:
    pairs = [one == other for a, b in zip(right, said) for one, other in zip(a, b)]
    return sum(pairs) / max(1, len(pairs))


def _check_pairs(sentences: Sentences, tags: Tags, which: str) -> None:
    if len(sentences) != len(tags):
        raise UserError(f"There are {len(sentences)} {which} sentences but {len(tags)} lists of tags.")
    for number, (words, answers) in enumerate(zip(sentences, tags), 1):
        if len(words) != len(answers):
            raise UserError(f"{which} sentence {number} has {len(words)} words but {len(answers)} tags.")
