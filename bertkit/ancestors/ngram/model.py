"""n-gram language models of any order with interpolated modified Kneser-Ney smoothing.

Every line of a text is a sentence. Words seen fewer than `min_count` times are `<unk>`; a probability of a text
never stops there: the unknown word is spelled, letter by letter, by a small character model, so that texts and
models with different vocabularies can be compared in bits per byte. What is not paid for is what cutting into words
loses: the spaces between words, and capitals when `cased` is off. Units 'characters' lose nothing.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors import folder as storage
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.ngram.counting import BYTES_PER_WORD, Spool, count_windows
from bertkit.ancestors.ngram.kneser_ney import Level, estimate, gather
from bertkit.data.readers.frames import texts_of
from bertkit.errors import UserError, suggest
from bertkit.files.atomic import write_folder
from bertkit.notify import note
from bertkit.text.words import HAN

# ---- How an n-gram model splits a text into sentences and words.

# Ideographs: the unified blocks, their extensions A and B onwards, and the compatibility forms.
_WORD = rf"[^\W{HAN}]+(?:['’][^\W{HAN}]+)*|[^\w\s]|\n"
_WORDS = re.compile(rf"[{HAN}]|{_WORD}")
_RUNS = re.compile(rf"[{HAN}]+|{_WORD}")
_HAN_FIRST = re.compile(f"[{HAN}]")


def _segmented(text: str) -> list[str]:
    """Chinese text cut into words by jieba."""
    try:
        import rjieba
    except ImportError as problem:
        raise UserError(
            "units 'jieba' needs the package rjieba. Run: pip install rjieba, or choose units 'words'."
        ) from problem
    words: list[str] = []
    for run in _RUNS.findall(text):
        words.extend(rjieba.cut(run) if _HAN_FIRST.match(run) else (run,))
    return words


UNITS: dict[str, Callable[[str], list[str]]] = {
    "words": _WORDS.findall,  # English words with their apostrophes, marks, and every ideograph by itself
    "jieba": _segmented,  # the same, but runs of ideographs are cut into words by rjieba
    "characters": list,  # every character, spaces too
}


def check_units(units: str) -> None:
    """Refuse a way of splitting text into words that an n-gram model does not have."""
    if units not in UNITS:
        raise UserError(f"units '{units}' is not a way to split text. {suggest(units, list(UNITS))}")


def sentences(text: str) -> list[str]:
    """Sentences of an n-gram model: the lines of a text that hold anything."""
    return [line for line in text.splitlines() if line and not line.isspace()]


def blocks(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Text for an n-gram model: sentences in blocks of about so many characters, a line break after each."""
    lines: list[str] = []
    size = 0
    for text in texts:
        for line in sentences(text):
            lines.append(line)
            size += len(line) + 1
            if size >= characters:
                yield "\n".join(lines) + "\n"
                lines, size = [], 0
    if lines:
        yield "\n".join(lines) + "\n"


def cut(block: str, units: str, cased: bool) -> list[str]:
    """The words an n-gram model reads in a block; a line break is a word of its own and ends a sentence."""
    return UNITS[units](block if cased else block.lower())


def word_offsets(words: Sequence[str], text: str) -> list[list[int]]:
    """[start, end) of each word that was cut from a text, with its case kept."""
    offsets, start = [], 0
    for word in words:
        start = text.index(word, start)
        offsets.append([start, start + len(word)])
        start += len(word)
    return offsets


# ---- n-gram language models of any order with interpolated modified Kneser-Ney smoothing.

Ids = NDArray[np.int64]
SPECIAL = ("<unk>", "<s>", "</s>")
UNKNOWN, START, END = range(3)
CODE_POINTS = 0x110000  # an unseen character is one of these
SPELLER_TYPES = 200_000
SCORED_AT_ONCE = 1 << 20  # characters; bounds the memory of scoring


@dataclass(frozen=True)
class NgramSettings:
    """Settings of an n-gram model: how it reads text, and how far it looks back.

    order: words in the longest n-gram. min_count: rarer words are unknown. cased: keep capitals apart.
    units: 'words' (every ideograph by itself), 'jieba' (Chinese words) or 'characters'.
    memory_mb: what counting may hold before it spills to disk; the finished model comes on top.
    """

    order: int = 5
    min_count: int = 2
    cased: bool = True
    units: str = "words"
    memory_mb: float = 1024

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        check_units(self.units)
        for name, least in (("order", 1), ("min_count", 1), ("memory_mb", 0.001)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least {least}.")


class NgramModel:
    """An n-gram language model: `fit` it on texts, then `score`, `perplexity`, `probability` and `suggest`."""

    LAYOUT = Layout("n-gram model", "ngram.json", "ngram.safetensors")

    def __init__(self, settings: NgramSettings | None = None) -> None:
        """An untrained model."""
        self.settings = settings or NgramSettings()
        self.words: list[str] = list(SPECIAL)
        self.ids: dict[str, int] = {}
        self.levels: list[Level] = []
        self.speller: NgramModel | None = None

    # ---- learning

    def fit(self, texts: Iterable[str]) -> Self:
        """Learn an n-gram model from texts, read once, line by line a sentence."""
        budget = int(self.settings.memory_mb * 2**20)
        with tempfile.TemporaryDirectory(prefix="ngram-", ignore_cleanup_errors=True) as name:
            spool = Spool(budget // 4, Path(name))
            types, counts = self._read(texts, spool, budget)
            id_of_type = self._choose(types, counts)
            columns, window_counts = count_windows(
                lambda: self._chunks(spool, id_of_type, budget),
                self.settings.order, len(self.words), START, budget, Path(name),
            )  # fmt: skip
        orders = gather(columns, window_counts, START)
        del columns, window_counts
        self.levels, fallen = estimate(orders, len(self.words), START, END)
        if self.settings.units != "characters":
            self.speller = self._spelling(types, counts)
            if fallen:
                note(
                    f"n-gram model: too few counts to estimate the discounts of order {', '.join(map(str, fallen))}; "
                    "0.5, 1 and 1.5 are used instead."
                )
        return self

    def _read(self, texts: Iterable[str], spool: Spool, budget: int) -> tuple[list[str], Ids]:
        """Number the words for an n-gram model as they come, the line break 0. Returns the words and their counts."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        numbers["\n"] = 0
        counts = np.zeros(1, np.int64)
        for block in blocks(texts, max(1, min(1 << 20, budget // BYTES_PER_WORD))):
            words = cut(block, self.settings.units, self.settings.cased)
            ids = np.fromiter(map(numbers.__getitem__, words), np.uint32, len(words))
            spool.append(ids)
            totals = np.bincount(ids, minlength=len(numbers))
            totals[: len(counts)] += counts
            counts = totals
        if not counts[0]:
            raise UserError("There is no text to learn from: every text is empty. Check the file and its column.")
        return list(numbers), counts

    def _choose(self, types: list[str], counts: Ids) -> Ids:
        """Set an n-gram model's vocabulary, frequent words first. Returns the id of every type."""
        frequent = np.flatnonzero(counts[1:] >= self.settings.min_count) + 1
        frequent = frequent[np.argsort(-counts[frequent], kind="stable")]
        self.name_words([*SPECIAL, *(types[i] for i in frequent)])
        id_of_type = np.full(len(types), UNKNOWN, np.int64)
        id_of_type[frequent] = np.arange(len(frequent)) + len(SPECIAL)
        id_of_type[0] = END
        return id_of_type

    def name_words(self, words: list[str]) -> None:
        """Set an n-gram model's vocabulary; the special words come first."""
        self.words = words
        self.ids = {word: i for i, word in enumerate(words)}

    def _chunks(self, spool: Spool, id_of_type: Ids, budget: int) -> Iterator[Ids]:
        """The padded ids of an n-gram model's training text, in chunks that fit the memory budget."""
        parts: list[Ids] = []
        for ids in spool:
            parts.append(padded(id_of_type[ids], self.settings.order - 1))
            if sum(map(len, parts)) * BYTES_PER_WORD > budget // 2:
                yield np.concatenate(parts)
                parts = []
        if parts:
            yield np.concatenate(parts)

    def _spelling(self, types: list[str], counts: Ids) -> NgramModel:
        """The n-gram model of characters in the words that are most like unknown ones: the rarest."""
        rare = np.flatnonzero(counts[1:] < max(2, self.settings.min_count)) + 1
        words = [types[i] for i in rare[:SPELLER_TYPES]] or types[1:] or ["?"]
        return NgramModel(replace(self.settings, order=5, min_count=1, cased=True, units="characters")).fit(words)

    # ---- looking up

    def __repr__(self) -> str:
        """Its order, and how much it has learnt."""
        grams = sum(len(level.log_prob) for level in self.levels)
        return f"<bertkit {self.settings.order}-gram model: {len(self.words):,} words, {grams:,} n-grams>"

    @property
    def ngrams(self) -> list[int]:
        """How many n-grams there are of each order."""
        return [len(level.log_prob) for level in self._learnt()]

    def _learnt(self) -> list[Level]:
        if not self.levels:
            raise UserError("This n-gram model has not been trained yet. Call fit(texts), or load a saved one.")
        return self.levels

    def find(self, level: Level, prefix: Ids, words: Ids) -> Ids:
        """The ranks of n-grams given by the rank of all but the last word, and that word; -1 where there is none."""
        ranks = np.full(len(words), -1, np.int64)
        candidates = np.flatnonzero(prefix >= 0)
        if not len(level.keys) or not len(candidates):
            return ranks
        keys = prefix[candidates].astype(np.uint64) * np.uint64(len(self.words)) + words[candidates].astype(np.uint64)
        places = np.minimum(np.searchsorted(level.keys, keys), len(level.keys) - 1)
        ranks[candidates] = np.where(level.keys[places] == keys, places, -1)
        return ranks

    def log10_of(self, stream: Ids) -> NDArray[np.float64]:
        """log10 probability of every word given those before it. stream: (t,) ids, each sentence from START to END.

        Returns (t,); meaningless at START.
        """
        levels = self._learnt()
        before = np.full(len(stream), -1, np.int64)  # rank of the context of k - 1 words, which ends just before
        before[1:] = stream[:-1]
        total = levels[0].log_prob[stream].astype(np.float64)
        for k, level in enumerate(levels[1:], start=1):
            ranks = self.find(level, before, stream)
            is_context = before >= 0
            total[is_context] += levels[k - 1].back_off[before[is_context]]
            is_found = ranks >= 0
            total[is_found] = level.log_prob[ranks[is_found]]
            before[0] = -1
            before[1:] = ranks[:-1]
        return total

    def probability(self, context: Sequence[str]) -> NDArray[np.float64]:
        """The n-gram model's distribution of the next word, (vocabulary,), in the order of `self.words`.

        Begin the context with `<s>` if it is the beginning of a sentence.
        """
        levels = self._learnt()
        ids = [self.ids.get(word, UNKNOWN) for word in context][-(len(levels) - 1) or len(context) :]
        prob = 10.0 ** levels[0].log_prob.astype(np.float64)
        prob[START] = 0.0
        vocabulary = len(self.words)
        for length in range(1, min(len(ids), len(levels) - 1) + 1):
            rank = self._rank(ids[-length:])
            if rank < 0:
                break
            level = levels[length]
            borders = np.array([rank * vocabulary, (rank + 1) * vocabulary], np.uint64)
            begin, end = np.searchsorted(level.keys, borders)
            prob *= 10.0 ** float(levels[length - 1].back_off[rank])
            prob[(level.keys[begin:end] % np.uint64(vocabulary)).astype(np.int64)] = 10.0 ** level.log_prob[
                begin:end
            ].astype(np.float64)
        return prob

    def _rank(self, ids: list[int]) -> int:
        rank = np.array(ids[:1], np.int64)
        for level, word in zip(self.levels[1:], ids[1:]):
            rank = self.find(level, rank, np.array([word]))
        return int(rank[0])

    def suggest(self, context: str, top: int = 5) -> list[dict[str, str | float]]:
        """An n-gram model's likeliest next words after a sentence's beginning: [{"word", "score"}, …], best first."""
        words = cut(context, self.settings.units, self.settings.cased)
        prob = self.probability([SPECIAL[START], *words])
        prob[UNKNOWN] = 0.0
        best = np.argsort(-prob, kind="stable")[:top]
        return [{"word": self.words[i], "score": float(prob[i])} for i in best if prob[i] > 0]

    def listing(self, text: str) -> list[dict[str, Any]]:
        """Where the probability of each word of a text comes from, the end of each sentence included.

        Per word {word, context, order, probability}: order is the length of the longest n-gram found (1: the word by
        itself, 0: an unknown word), context the words before it in that n-gram.
        """
        levels = self._learnt()
        rows: list[dict[str, Any]] = []
        for line in sentences(text):
            words = [*cut(line, self.settings.units, self.settings.cased), SPECIAL[END]]
            stream = np.array([START, *(self.ids.get(word, UNKNOWN) for word in words)])
            stream[-1] = END
            logs = self.log10_of(stream)
            for place, word in enumerate(words, 1):
                ids = stream[max(0, place - len(levels) + 1) : place + 1].tolist()
                order = next(size for size in range(len(ids), 0, -1) if self._rank(ids[-size:]) >= 0)
                context = [self.words[n] for n in ids[len(ids) - order : -1]]
                known = stream[place] != UNKNOWN
                rows.append({
                    "word": word, "context": context if known else [], "order": order if known else 0,
                    "probability": float(10.0 ** logs[place]),
                })  # fmt: skip
        return rows

    def top(self, order: int, count: int = 20) -> list[dict[str, Any]]:
        """The n-grams of one order with the highest probability of their last word: [{words, probability}], best first.

        For order 1 these are the most probable words; higher orders need the words before to have been seen.
        """
        levels = self._learnt()
        if not 1 <= order <= len(levels):
            raise UserError(f"This model has n-grams of 1 to {len(levels)} words, not of {order}.")
        best = np.argsort(-levels[order - 1].log_prob, kind="stable")
        rows = []
        for rank in best.tolist():
            ids, place = [], rank
            for level in reversed(levels[1:order]):
                place, last = divmod(int(level.keys[place]), len(self.words))
                ids.append(last)
            ids.append(place)
            if START not in ids[:1] and UNKNOWN not in ids:
                named = [self.words[n] for n in reversed(ids)]
                rows.append({"words": named, "probability": float(10.0 ** levels[order - 1].log_prob[rank])})
            if len(rows) == count:
                break
        return rows

    # ---- scoring texts

    def score(self, texts: Iterable[str]) -> list[float]:
        """The n-gram model's log probability of each text, ends of sentences and spelling of unknown words included."""
        return [closed + spelling for closed, spelling, _, _ in self._measure(texts_of(texts))]

    def perplexity(self, texts: Iterable[str]) -> dict[str, float]:
        """How surprised an n-gram model is, over all texts.

        perplexity: per word and end of sentence, unknown words spelled. perplexity_unk: the same, `<unk>` counted as
        one word like any other, which flatters small vocabularies. bits_per_byte: per byte of the raw text in UTF-8,
        unknown words spelled. words (ends of sentences included), unknown, bytes: what was counted.
        """
        texts = texts_of(texts)
        rows = np.array(list(self._measure(texts))).reshape(-1, 4)
        closed, spelling, words, unknown = rows.sum(0)
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if not size:
            raise UserError("There is no text to measure: every text is empty.")
        return {
            "perplexity": math.exp(min(700.0, -(closed + spelling) / words)),  # one long strange word is beyond a float
            "perplexity_unk": math.exp(min(700.0, -closed / words)),
            "bits_per_byte": float(-(closed + spelling) / math.log(2) / size),
            "words": int(words),
            "unknown": int(unknown),
            "bytes": size,
        }

    def _measure(self, texts: Iterable[str]) -> Iterator[tuple[float, float, int, int]]:
        """n-gram log-probability of each text with `<unk>`, that of spelling unknown words, words, unknown words."""
        batch: list[str] = []
        size = 0
        for text in texts:
            batch.append(text)
            size += len(text)
            if size > SCORED_AT_ONCE:
                yield from self._measure_some(batch)
                batch, size = [], 0
        yield from self._measure_some(batch)

    def _measure_some(self, texts: list[str]) -> Iterator[tuple[float, float, int, int]]:
        """The n-gram model's log-probability of each word of some texts."""
        if not texts:
            return
        lines = [sentences(text) or [""] for text in texts]
        words = cut(
            "".join(f"{line}\n" for group in lines for line in group),
            self.settings.units,
            self.settings.cased,
        )
        ids = np.fromiter((END if word == "\n" else self.ids.get(word, UNKNOWN) for word in words), np.int64)
        spelling = np.zeros(len(ids))
        unknown = np.flatnonzero(ids == UNKNOWN)
        names = [words[i] for i in unknown]
        costs = self._spell(sorted(set(names)))
        spelling[unknown] = [costs[name] for name in names]
        stream = padded(ids, 1)
        logs = self.log10_of(stream)[stream != START] * math.log(10)
        ends = np.flatnonzero(ids == END)[np.cumsum([len(group) for group in lines]) - 1]
        begins = np.append(0, ends[:-1] + 1)
        for begin, end in zip(begins, ends + 1):
            part = slice(begin, end)
            yield logs[part].sum(), spelling[part].sum(), end - begin, int((ids[part] == UNKNOWN).sum())

    def _spell(self, words: list[str]) -> dict[str, float]:
        """The n-gram model's log probability of each unknown word's letters and its end."""
        if self.settings.units == "characters":
            return dict.fromkeys(words, -math.log(CODE_POINTS))
        if self.speller:
            return dict(zip(words, self.speller.score(words)))
        return {word: -(len(word) + 1) * math.log(CODE_POINTS + 1) for word in words}

    # ---- saving

    def save(self, folder: str | Path) -> None:
        """Write `ngram.json` (settings, words) and `ngram.safetensors` (the levels) into a folder; both or none."""
        write_folder(Path(folder), self.write)

    def write(self, folder: Path) -> None:
        """The files of an n-gram model, into a folder that the caller makes whole."""
        arrays = {
            f"{k}.{name}": part for k, level in enumerate(self._learnt(), 1) for name, part in vars(level).items()
        }
        storage.write(folder, self.LAYOUT, {"settings": asdict(self.settings), "words": self.words}, arrays)
        if self.speller:
            self.speller.write(folder / "speller")

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open the n-gram model that was saved in a folder."""
        folder = Path(folder)
        with storage.opened(folder, cls.LAYOUT):
            described, tensors = storage.load(folder, cls.LAYOUT)
            arrays = storage.arrays(tensors)
            model = cls(NgramSettings(**described["settings"]))
            names = ("keys", "log_prob", "back_off")
            model.levels = [Level(*(arrays[f"{k}.{n}"] for n in names)) for k in range(1, model.settings.order + 1)]
            model.name_words(described["words"])
        if (folder / "speller").is_dir():
            model.speller = cls.load(folder / "speller")
        return model


def padded(ids: Ids, starts: int) -> Ids:
    """Put so many START before each sentence of an n-gram model. ids: (t,), every sentence closed by END."""
    is_end = ids == END
    sentence = np.cumsum(is_end) - is_end
    stream = np.full(len(ids) + starts * int(is_end.sum()), START, np.int64)
    stream[np.arange(len(ids)) + starts * (sentence + 1)] = ids
    return stream
