"""One tag per word: named entities, parts of speech."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertkit import metrics
from bertkit.data.batch import ROUND, Batch
from bertkit.data.examples import TaggedSentence
from bertkit.data.readers import columns_of, read_rows
from bertkit.data.readers.annotations import SpanTagger, holds_spans, read_annotated, word_spans
from bertkit.data.readers.rows import ROW_KINDS
from bertkit.data.readers.tagged import holds_texts, read_tagged
from bertkit.data.windows import Row, Windows, rows_of
from bertkit.errors import UserError
from bertkit.files.open import kind_of, open_text
from bertkit.machine import F, torch
from bertkit.model import crf
from bertkit.model.engine import Engine, Wanted
from bertkit.notify import note
from bertkit.tasks.base import Item, Labelled, Prediction, Reading, Task, learnt_labels
from bertkit.text.checks import of_row
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.model.encoder import Encoded
    from bertkit.model.heads import Model
    from bertkit.settings.finetune import FinetuneSettings

AUTO = "auto"  # option crf, until `fit_labels` has seen the tags
POOLS = ("first", "mean", "max")  # which of a word's pieces speak for it
AT_ONCE = 64  # sentences whose tags a CRF chooses together


@dataclass(frozen=True)
class Words:
    """Words to tag. text, spans: the user's own text and where each word stands in it. file: of a folder's texts."""

    sentence: TaggedSentence
    text: str
    spans: tuple[tuple[int, int], ...]
    file: str = ""

    @property
    def line(self) -> int:
        """Where a sentence to tag stands in its file."""
        return self.sentence.line


def words_of(row: Row) -> list[tuple[int, int, int]]:
    """(place, pieces, word) of every word to tag whose first piece this row owns.

    Where it begins, how many pieces it has.
    """
    encoding = row.encoding
    assert encoding is not None
    words, special = encoding.words, encoding.special
    places = []
    for place in range(*row.core):
        if not special[place] and (place == 0 or words[place] != words[place - 1] or special[place - 1]):
            end = place + 1
            while end < len(words) and words[end] == words[place] and not special[end]:
                end += 1
            places.append((place, end - place, words[place]))
    return places


@dataclass
class Tag(Task):
    """Tagging of words.

    A word is tagged by the window in which it has most context; its first piece, or all of them, speak for it.

    options: word (one of POOLS), crf (tags are chosen together, by the model's `crf`), rules (what BIO forbids is never
    said), class_weights {tag: weight}.
    """

    name: ClassVar[str] = "tag"
    head: ClassVar[str] = "token"
    labelled_by_name: ClassVar[bool] = True
    example_type: ClassVar[type] = Words
    accepted_settings: ClassVar[tuple[str, ...]] = ("labels", "class_weights", "crf", "word")
    stored_settings: ClassVar[tuple[str, ...]] = ("crf", "word")
    answers_vary: ClassVar[bool] = True
    abilities: ClassVar[tuple[str, ...]] = ("tag",)
    sample: ClassVar[str] = "entities_dev.conll"

    @classmethod
    def options_of(cls, settings: FinetuneSettings) -> dict[str, Any]:
        """The options of tagging: also a CRF where the tags are made for one, unless words are weighed one by one."""
        if settings.crf and settings.class_weights:
            raise UserError("--class-weights weighs words one by one, and --crf chooses tags together. Leave one out.")
        undecided = settings.crf is None and not settings.class_weights
        return super().options_of(settings) | ({"crf": AUTO} if undecided else {})

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[Words]:
        """Sentences of a CoNLL file or JSON lines, or texts with labelled spans (`readers.annotations`).

        Without tags also the lines of a .txt file (`holds_texts`) and the texts of a table.
        """
        return list(self._sentences(path, reading, labelled))

    def stream(self, path: str | Path, reading: Reading) -> Iterator[Words]:
        """Tagging reads sentences without tags, one at a time."""
        yield from self._sentences(path, reading, labelled=False)

    def _sentences(self, path: str | Path, reading: Reading, labelled: Labelled) -> Iterator[Words]:
        """The sentences of a file: tagged, annotated with spans, or plain text."""
        if labelled is False and holds_texts(path, reading.encoding, self.labels):
            for number, line in enumerate(open_text(path, reading.encoding), 1):
                yield from self.from_inputs([line], number) if line.strip() else ()
            return
        if holds_spans(path, reading.encoding):
            yield from _annotated(path, reading.encoding, labelled)
            return
        if self._is_table_of_texts(path, reading):
            if labelled is True:
                raise UserError(
                    f"{path}: the texts have no tags and no spans. Pass CoNLL columns, or texts with labelled spans "
                    "(docs/tasks/tag.md)."
                )
            for row in read_rows(path, text=reading.text, labelled=False, encoding=reading.encoding):
                yield Words(TaggedSentence((), None, row.line), row.text, ())
            return
        yield from map(_joined, read_tagged(path, labelled=labelled, encoding=reading.encoding))

    def _is_table_of_texts(self, path: str | Path, reading: Reading) -> bool:
        """Whether a file to tag is a table with a column of texts, not one of words."""
        kind = kind_of(path)
        if kind in ("jsonl", "json", "rows"):
            return not {"tokens", "words"} & set(columns_of(path, [reading.text], reading.encoding))
        return kind in ("csv", "parquet", "xlsx") or (kind == "tsv" and reading.text in first_cells(path, reading))

    def reads_table(self, path: str | Path, reading: Reading) -> bool:
        """Whether tagging reads a table where a row is a text or a sentence, not CoNLL's columns."""
        kind = kind_of(path)
        return kind in ("jsonl", "json") or (kind in ROW_KINDS and self._is_table_of_texts(path, reading))

    def from_inputs(self, inputs: Sequence[Any], first: int = 1) -> list[Words]:
        """Tagging takes texts, or lists of words."""
        sentences = []
        for number, given in enumerate(inputs, first):
            if isinstance(given, Words):
                sentences.append(given)
            elif isinstance(given, str):
                sentences.append(Words(TaggedSentence((), None, number), given, ()))
            else:
                tokens = given.get("tokens") if isinstance(given, dict) else given
                if not isinstance(tokens, (list, tuple)) or not all(isinstance(w, str) for w in tokens):
                    raise UserError(f"Input {number} is {given!r}; it must be a text or a list of words.")
                sentences.append(_joined(TaggedSentence(tuple(tokens), None, number)))
        return sentences

    def fit_labels(self, examples: Sequence[Words]) -> None:
        """Learn all tags that occur."""
        tags = [tag for words in examples for tag in words.sentence.tags or ()]
        self.labels = learnt_labels(tags, self.labels, "training data")
        if self.options.get("crf") == AUTO:
            # `zh` on 3,000 sentences of Chinese news: entity F1 0.665 with a CRF, 0.574 without (docs/decisions.md).
            self.options["crf"] = crf.rules_of(self.labels) is not None
            if self.options["crf"]:
                note(
                    "The tags are BIO or similar: a CRF chooses those of a sentence jointly. transformers opens the "
                    "folder without it; pass --no-crf for a model that answers the same there."
                )
        if self.options.get("crf"):
            self.options["rules"] = self._obeyed(examples)

    def _obeyed(self, examples: Sequence[Words]) -> bool:
        """Whether the tags are BIO or the like and the examples keep to it."""
        rules = crf.rules_of(self.labels)
        if rules is None:
            return False
        number = {tag: n for n, tag in enumerate(self.labels)}
        broken = [w for w in examples if not crf.obeys(rules, [number[tag] for tag in w.sentence.tags or ()])]
        if broken:
            note(
                f"{len(broken)} of {len(examples)} training sentences have tags that BIO forbids, such as an I- with "
                f"nothing before it (first: line {broken[0].line}); so nothing is forbidden when tags are chosen."
            )
        return not broken

    def encode(self, examples: Sequence[Words], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Words to pieces; a plain text is split into words as the tokenizer splits it.

        Windows share a token at least: by it a word that began in the window before is known.
        """
        items = []
        windows = replace(windows, overlap=max(1, windows.overlap))
        for number, words in enumerate(examples):
            with of_row(number):
                if not words.spans and words.text:
                    words = _split(words, tokenizer)
                encoding = tokenizer.encode_words(list(words.sentence.tokens))
            items.append(Item.of(words, rows_of(tokenizer, encoding, windows, number)))
        return items

    def collate(self, items: Sequence[Item], training: bool, steady: bool = False) -> Batch:
        """A tagging batch: any task's, with each word's row, place, pieces, word (words seen,), and words per item."""
        batch = super().collate(items, training, steady)
        rows = [(n, row) for n, item in enumerate(items) for row in item.rows]
        places = [(at, *spot, n) for at, (n, row) in enumerate(rows) for spot in words_of(row)]
        columns = torch.tensor(places, dtype=torch.long).reshape(-1, 5).unbind(1)
        return replace(batch, extra=batch.extra | dict(zip(("row", "place", "pieces", "word", "item"), columns)))

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """The tags of all words that are seen, item after item."""
        tags = []
        for item in items:
            sentence = item.example.sentence
            numbers = [self.check_label(tag, f"line {sentence.line}") for tag in sentence.tags]
            tags += [numbers[word] for row in item.rows for _, _, word in words_of(row)]
        return {"target": torch.tensor(tags, dtype=torch.long)}

    def logits(self, model: Model, encoded: Encoded, items: int = 0) -> Tensor:
        """Logits of tags: (words seen, labels), float32, item after item."""
        from bertkit.model.inference import join_tokens

        batch = encoded.batch
        at = _starts(batch)[batch.extra["row"]] + batch.extra["place"]
        if not len(at):
            return torch.zeros(0, len(self.labels), device=at.device)
        vectors = join_tokens(encoded.tokens, at, batch.extra["pieces"], self.options.get("word", "first"))
        filled = F.pad(vectors, (0, 0, 0, -len(at) % ROUND))  # few different shapes, as for batches
        return model.ask("token", replace(encoded, tokens=filled))[: len(at)].float()

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """Tagging's loss: cross-entropy over words; with a CRF minus the log-probability of each sentence's tags."""
        batch = encoded.batch
        target = batch.extra["target"]
        logits = self.logits(model, encoded)
        if model.crf is None:
            return F.cross_entropy(logits, target, weight=self.weights(logits.device), reduction="sum")
        _, counts = batch.extra["item"].unique_consecutive(return_counts=True)
        if not len(counts):
            return logits.sum()
        pad = torch.nn.utils.rnn.pad_sequence
        chains, tags = (pad(part.split(counts.tolist()), batch_first=True) for part in (logits, target))
        return -model.crf(chains, tags, counts).sum()

    def wanted(self, items: Sequence[Item]) -> Wanted:
        """What is wanted to tag words: the place of each word whose first piece a row owns."""
        places = [[(place, pieces) for place, pieces, _ in words_of(row)] for item in items for row in item.rows]
        return Wanted(self.head, places, self.options.get("word", "first"))

    def answers(self, engine: Engine, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[np.ndarray]:
        """The number of every word's tag, then the log-probabilities of all tags: (words, 1 + labels).

        With a CRF these are the best sequence and the marginals, over the whole sentence whatever its windows.
        """
        rows = iter(outputs)
        scores = []
        for item in items:
            seen = np.tile(self._silence(), (len(item.example.sentence.tokens), 1))
            for row in item.rows:
                seen[[word for _, _, word in words_of(row)]] = _log_softmax(next(rows))
            scores.append(seen)
        if engine.crf is None:
            return [np.hstack([table.argmax(-1)[:, None], table]) for table in scores]
        chain = engine.crf.under(crf.rules_of(self.labels) if self.options.get("rules") else None)
        return _chosen(scores, chain)

    def _silence(self) -> np.ndarray:
        """The tag scores of a word that is not seen, cut off or invisible: outside. (1, labels)."""
        outside = [0.0 if "O" not in self.labels or tag == "O" else crf.FORBIDDEN for tag in self.labels]
        return np.array([outside], np.float32)

    @property
    def _marks_entities(self) -> bool:
        """Whether the tags mark entities, not, say, parts of speech."""
        return "O" in self.labels or metrics.chunk_like([self.labels])

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """{tokens, tags, entities}, with tokens seen (`seen`) and cut.

        An entity's score is the geometric mean of its tags' probabilities: the words' own, or the CRF's marginals.
        """
        words = item.example
        best, sure = output[:, 0].astype(int), output[:, 1:]
        tags = [self.labels[k] for k in best]
        entities = []
        for label, start, end in metrics.entities(tags) if self._marks_entities else ():
            first, last = words.spans[start][0], words.spans[end - 1][1]
            score = float(np.exp(sure[range(start, end), best[start:end]].mean()))
            entities.append(
                {"text": words.text[first:last], "label": label, "start": first, "end": last, "score": score}
            )
        return {
            "tokens": list(words.sentence.tokens), "tags": tags, "entities": entities,
            "seen": item.tokens, "cut": item.cut,
        }  # fmt: skip

    def metric_inputs(
        self, examples: Sequence[Words], predictions: Sequence[Prediction]
    ) -> tuple[Any, list, list, dict]:
        """Tagging is measured by entity F1 where tags are chunks, else accuracy: on whole words of the whole file."""
        gold = [list(words.sentence.tags or ()) for words in examples]
        return metrics.tagging, gold, [p["tags"] for p in predictions], {}

    def key(self, example: Words) -> tuple[Any, ...]:
        """What identifies a sentence to tag: the text."""
        return (example.text,)

    def answer_of(self, example: Words) -> tuple[str, ...] | None:
        """The right tags of a sentence."""
        return example.sentence.tags

    def stratum(self, example: Words) -> str:
        """None for tagging: a sentence has many tags."""
        return ""

    def digest_of(self, example: Words) -> list[Any]:
        """Nothing beside the tags tells a tagged row from others."""
        return [None, None]

    def answer_in(self, prediction: Prediction) -> tuple[str, ...]:
        """The predicted tags."""
        return tuple(prediction["tags"])

    def answers_in(self, prediction: Prediction) -> list[str]:
        """Each predicted tag."""
        return list(prediction["tags"])

    def with_answer(self, example: Words, prediction: Prediction) -> Words:
        """The sentence with these tags."""
        return replace(example, sentence=replace(example.sentence, tags=self.answer_in(prediction)))

    def shown(self, example: Words) -> dict[str, Any]:
        """A tagged sentence in a report: the text and its line."""
        return {"text": example.text, "line": example.line}

    def cells(self, example: Words) -> dict[str, Any]:
        """Columns beside the tags: the text, and its file where it has one of its own."""
        return ({"file": example.file} if example.file else {}) | {"text": example.text}

    def mistake(self, example: Words, prediction: Prediction) -> dict[str, Any] | None:
        """A sentence's wrong tags: the words that got another; score: how many."""
        words, gold, tags = example.sentence.tokens, example.sentence.tags or (), prediction["tags"]
        if list(gold) == tags:
            return None
        wrong = [n for n, (right, tag) in enumerate(zip(gold, tags)) if right != tag]
        sides = (" ".join(f"{words[n]}/{side[n]}" for n in wrong) for side in (gold, tags))
        return {**self.shown(example), **dict(zip(("gold", "predicted"), sides)), "score": len(wrong)}

    @classmethod
    def guessed(cls, head: str, labels: tuple[str, ...], config: Mapping[str, Any]) -> dict[str, Any] | None:
        """A folder is one of tagging if it has a token head."""
        return {} if head == cls.head else None

    def by_label(self, gold: list[Any], predicted: list[Any]) -> dict[str, Any]:
        """The task `tag` reports precision and recall of each kind of entity."""
        return {"per_class": metrics.per_type(gold, predicted)} if metrics.chunk_like(gold) else {}

    @property
    def answer_kind(self) -> str:
        """Tagging is distilled as a distribution for each word."""
        return "labels"

    def as_logits(self, output: np.ndarray) -> np.ndarray:
        """A tagger's answers without the first column, which is the tag itself."""
        return output[:, 1:]

    def lessons(self, batch: Batch, taught: Sequence[np.ndarray], known: Sequence[bool]) -> dict[str, Tensor]:
        """A teacher of tagging speaks of words, not of pieces, so that the two tokenizers may differ."""
        first = torch.tensor([0, *(len(words) for words in taught[:-1])]).cumsum(0)
        rows = torch.from_numpy(np.concatenate(taught))[first[batch.extra["item"]] + batch.extra["word"]]
        return {"taught": rows, "known": torch.tensor(known)[batch.extra["item"]]}


def first_cells(path: str | Path, reading: Reading) -> list[str]:
    """The cells of the first line of a file to tag."""
    return next(open_text(path, reading.encoding), "").split("\t")


def _annotated(path: str | Path, encoding: str, labelled: Labelled) -> Iterator[Words]:
    """Texts with spans as words with tags; without labels, the texts alone."""
    tagger = SpanTagger()
    is_folder = Path(path).is_dir()
    for annotated in read_annotated(path, encoding):
        file = annotated.where if is_folder else ""
        if labelled is False or annotated.spans is None:
            if labelled is True:
                raise UserError(f"{annotated.where}: the text has no spans. Annotate it, or leave it out.")
            yield Words(TaggedSentence((), None, annotated.line), annotated.text, (), file)
            continue
        places = tuple(word_spans(annotated.text))
        tokens = tuple(annotated.text[start:end] for start, end in places)
        sentence = TaggedSentence(tokens, tagger.tags(annotated, places), annotated.line)
        yield Words(sentence, annotated.text, places, file)
    tagger.report(path)


def _starts(batch: Batch) -> Tensor:
    """First token of each row of a tagging batch, in the caller's order."""
    return batch.restore(batch.starts)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities of tags from logits: (words, labels)."""
    shifted = logits - logits.max(-1, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _chosen(scores: Sequence[np.ndarray], chain: crf.Chain) -> list[np.ndarray]:
    """A tagger's best sequence and marginals of each sentence (words, labels). Returns (words, 1 + labels) each.

    Sentences of similar length are processed together.
    """
    answers = [np.zeros((0, 1 + table.shape[1]), np.float32) for table in scores]
    order = sorted((n for n, table in enumerate(scores) if len(table)), key=lambda n: len(scores[n]))
    for numbers in (order[first : first + AT_ONCE] for first in range(0, len(order), AT_ONCE)):
        lengths = [len(scores[n]) for n in numbers]
        padded = np.zeros((len(numbers), max(lengths), scores[numbers[0]].shape[1]), np.float32)
        for chain_scores, n in zip(padded, numbers):
            chain_scores[: len(scores[n])] = scores[n]
        best, marginals = crf.best_path(padded, lengths, chain), crf.log_marginals(padded, lengths, chain)
        for row, (n, length) in enumerate(zip(numbers, lengths)):
            answers[n] = np.hstack([best[row, :length, None], marginals[row, :length]])
    return answers


def _joined(sentence: TaggedSentence) -> Words:
    """Tagged words with single spaces between them (none between Chinese characters)."""
    spans, text = [], ""
    for word in sentence.tokens:
        wide = len(word) == 1 and ord(word) > 0x2E7F
        if text and not (wide and ord(text[-1]) > 0x2E7F):
            text += " "
        spans.append((len(text), len(text) + len(word)))
        text += word
    return Words(sentence, text, tuple(spans))


def _split(words: Words, tokenizer: Tokenizer) -> Words:
    """A text to tag, split into words as the tokenizer splits it."""
    encoding = tokenizer.encode(words.text)
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(encoding.words, encoding.offsets):
        if word >= 0 and end > start:
            first = spans.get(word, (start, end))[0]
            spans[word] = (first, end)
    kept = tuple(spans[word] for word in sorted(spans))
    tokens = tuple(words.text[a:b] for a, b in kept)
    return Words(TaggedSentence(tokens, None, words.sentence.line), words.text, kept)
