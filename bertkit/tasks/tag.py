"""One tag a word: named entities, parts of speech."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit import metrics
from bertkit.data.batch import Batch
from bertkit.data.examples import TaggedSentence
from bertkit.data.readers import read_tagged
from bertkit.data.rows import Row, Windows, rows_of
from bertkit.errors import UserError
from bertkit.model.encoder import Encoded
from bertkit.model.heads import Model
from bertkit.tasks.task import Item, Prediction, Reading, Task, learnt_labels
from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Words:
    """Words to tag. text, spans: the user's own text and where each word stands in it."""

    sentence: TaggedSentence
    text: str
    spans: tuple[tuple[int, int], ...]

    @property
    def line(self) -> int:
        """Where the sentence stands in its file."""
        return self.sentence.line


def first_pieces(row: Row) -> list[tuple[int, int]]:
    """(place, word) of the first piece of every word whose first piece this row owns."""
    encoding = row.encoding
    assert encoding is not None
    words = encoding.words
    return [
        (place, words[place])
        for place in range(*row.core)
        if not encoding.special[place]
        and (place == 0 or words[place] != words[place - 1] or encoding.special[place - 1])
    ]


@dataclass
class Tag(Task):
    """The first piece of a word speaks for it; a word is tagged by the window in which it has most context."""

    name: ClassVar[str] = "tag"
    head: ClassVar[str] = "token"
    labelled_by_name: ClassVar[bool] = True

    def read(self, path: str | Path, reading: Reading, labelled: bool = True) -> list[Words]:
        """Sentences of a CoNLL file or JSON lines."""
        return [_joined(s) for s in read_tagged(path, labelled=labelled, encoding=reading.encoding)]

    def wrap(self, inputs: Sequence[Any]) -> list[Words]:
        """Texts, or lists of words."""
        found = []
        for number, one in enumerate(inputs, 1):
            if isinstance(one, Words):
                found.append(one)
            elif isinstance(one, str):
                found.append(Words(TaggedSentence((), None, number), one, ()))
            else:
                tokens = one.get("tokens") if isinstance(one, dict) else one
                if not isinstance(tokens, (list, tuple)) or not all(isinstance(w, str) for w in tokens):
                    raise UserError(f"Input {number} is {one!r}; it must be a text or a list of words.")
                found.append(_joined(TaggedSentence(tuple(tokens), None, number)))
        return found

    def learn(self, examples: Sequence[Words]) -> None:
        """All tags that occur."""
        tags = [tag for words in examples for tag in words.sentence.tags or ()]
        self.labels = learnt_labels(tags, self.labels, "training data")

    def encode(self, examples: Sequence[Words], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Words to pieces; a plain text is split into words as the tokenizer splits it."""
        items = []
        for number, words in enumerate(examples):
            if not words.spans and words.text:
                words = _split(words, tokenizer)
            found = rows_of(tokenizer, tokenizer.encode_words(list(words.sentence.tokens)), windows, number)
            items.append(Item.of(words, found))
        return items

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Tags of all first pieces, row after row in the caller's order, and their places within each row."""
        tags, places, owners = [], [], []
        number = 0
        for item in items:
            sentence = item.example.sentence
            numbers = [self.check_label(tag, f"line {sentence.line}") for tag in sentence.tags]
            for row in item.rows:
                for place, word in first_pieces(row):
                    tags.append(numbers[word])
                    places.append(place)
                    owners.append(number)
                number += 1
        return {"target": torch.tensor(tags), "place": torch.tensor(places), "row": torch.tensor(owners)}

    def loss(self, model: Model, batch: Batch) -> Tensor:
        """Cross-entropy over words."""
        at = _starts(batch)[batch.extra["row"]] + batch.extra["place"]
        logits = model.ask("token", model.encoder(batch), at).float()
        return F.cross_entropy(logits, batch.extra["target"], reduction="sum")

    def answers(self, model: Model, encoded: Encoded, items: Sequence[Item]) -> list[np.ndarray]:
        """Log-probabilities of every word: (words, labels); a word without pieces has zeros."""
        rows = encoded.batch.split(model.ask("token", encoded).float().log_softmax(-1))
        found = []
        at = 0
        for item in items:
            table = np.zeros((len(item.example.sentence.tokens), len(self.labels)), np.float32)
            for row in item.rows:
                pairs = first_pieces(row)
                if pairs:
                    places, words = zip(*pairs)
                    table[list(words)] = rows[at].cpu().numpy()[list(places)]
                at += 1
            found.append(table)
        return found

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """{tokens, tags, entities}, with tokens seen (`seen`) and cut."""
        words = item.example
        best = output.argmax(-1) if len(output) else np.zeros(0, int)
        outside = self.labels.index("O") if "O" in self.labels else 0
        # A word of nothing but invisible characters has no piece and no opinion.
        tags = [self.labels[outside if not output[n].any() else k] for n, k in enumerate(best)]
        entities = []
        for label, start, end in metrics.entities(tags) if metrics.chunk_like([tags, ["B-X"]]) else ():
            first, last = words.spans[start][0], words.spans[end - 1][1]
            score = float(np.exp(output[start:end].max(-1).mean()))
            entities.append(
                {"text": words.text[first:last], "label": label, "start": first, "end": last, "score": score}
            )
        return {
            "tokens": list(words.sentence.tokens), "tags": tags, "entities": entities,
            "seen": item.tokens, "cut": item.cut,
        }  # fmt: skip

    def judged(self, examples: Sequence[Words], predictions: Sequence[Prediction]) -> tuple[Any, list, list, dict]:
        """Entity F1 where tags are chunks, else accuracy: on whole words of the whole file."""
        gold = [list(words.sentence.tags or ()) for words in examples]
        return metrics.tagging, gold, [p["tags"] for p in predictions], {}


def _starts(batch: Batch) -> Tensor:
    """First token of each row, in the caller's order."""
    return batch.restore(batch.starts)


def _joined(sentence: TaggedSentence) -> Words:
    """Words with single spaces between them (none between Chinese characters)."""
    spans, text = [], ""
    for word in sentence.tokens:
        wide = len(word) == 1 and ord(word) > 0x2E7F
        if text and not (wide and ord(text[-1]) > 0x2E7F):
            text += " "
        spans.append((len(text), len(text) + len(word)))
        text += word
    return Words(sentence, text, tuple(spans))


def _split(words: Words, tokenizer: Tokenizer) -> Words:
    """A text split into words as the tokenizer splits it."""
    encoding = tokenizer.encode(words.text)
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(encoding.words, encoding.offsets):
        if word >= 0 and end > start:
            first = spans.get(word, (start, end))[0]
            spans[word] = (first, end)
    kept = tuple(spans[word] for word in sorted(spans))
    tokens = tuple(words.text[a:b] for a, b in kept)
    return Words(TaggedSentence(tokens, None, words.sentence.line), words.text, kept)
