"""A trigram hidden Markov tagger, after TnT (Brants, 2000).

The best tags maximise the product of P(tag | two tags before it) and P(word | tag). Transitions mix one-, two- and
three-tag frequencies by deleted interpolation. A word never seen is judged by its shape and its ending: the
frequencies of tags among rare words with the same ending, each longer ending mixed with the one a letter shorter.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors import folder as storage
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.ngram.model import HAN
from bertkit.errors import UserError
from bertkit.files.guarded import read_arrays

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
MOST_TAGS = 400  # transitions are a cube of tags: 400 tags take half a gigabyte
SHAPES: dict[str, Callable[[str], bool]] = {
    "ideograph": lambda word: bool(re.search(f"[{HAN}]", word)),
    "digit": lambda word: any(map(str.isdigit, word)),
    "hyphen": lambda word: "-" in word[1:],
    "capitals": lambda word: len(word) > 1 and word.isupper(),
    "capital": lambda word: word[:1].isupper(),
}


def shape(word: str) -> str:
    """What an unknown word looks like to the HMM: the names of all shapes it has, such as 'digit hyphen'."""
    return " ".join(name for name, has in SHAPES.items() if has(word))


@dataclass(frozen=True)
class HmmSettings:
    """How the HMM tagger learns. longest_suffix: letters of the longest ending.

    rare: words seen up to so often teach the endings.

    mixing: the verdict of the ending one letter shorter counts as much as so many rare words.
    beam: a tag is dropped when its best path is more than so many times less likely than the best; 0 keeps all.
    """

    longest_suffix: int = 10
    rare: int = 10
    mixing: float = 3.0
    beam: float = 0.0


class HmmTagger:
    """A hidden Markov tagger: learns tags of words in sentences with `fit`, gives them with `tag`."""

    LAYOUT = Layout("HMM tagger", "hmm.json")

    def __init__(self, settings: HmmSettings | None = None) -> None:
        """A tagger that has seen nothing yet."""
        self.settings = settings or HmmSettings()
        self.tags: list[str] = []
        self.lexicon: dict[str, dict[int, int]] = {}
        self.trigrams: Ids = np.zeros((1, 1, 1), np.int64)

    def fit(self, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> Self:
        """Learn the HMM from sentences of words and their tags, one tag per word."""
        if len(sentences) != len(tags):
            raise UserError(f"There are {len(sentences)} sentences but {len(tags)} lists of tags.")
        for number, (words, answers) in enumerate(zip(sentences, tags), 1):
            if len(words) != len(answers):
                raise UserError(f"Sentence {number} has {len(words)} words but {len(answers)} tags.")
        self.tags = sorted({tag for answers in tags for tag in answers})
        if not 0 < len(self.tags) <= MOST_TAGS:
            raise UserError(f"There are {len(self.tags)} different tags; the tagger takes 1 to {MOST_TAGS}.")
        number_of = {tag: i for i, tag in enumerate(self.tags)}
        border = len(self.tags)  # before the first word and after the last
        paths: Counter[tuple[int, int, int]] = Counter()
        lexicon: dict[str, Counter[int]] = {}
        for words, answers in zip(sentences, tags):
            if not words:
                continue
            ids = [border, border, *(number_of[tag] for tag in answers), border]
            paths.update(zip(ids, ids[1:], ids[2:]))
            for word, tag in zip(words, ids[2:]):
                lexicon.setdefault(word, Counter())[tag] += 1
        self.lexicon = {word: dict(counts) for word, counts in lexicon.items()}
        self.trigrams = np.zeros((border + 1,) * 3, np.int64)
        self.trigrams[tuple(np.array(list(paths)).T)] = list(paths.values())
        self._estimate()
        return self

    def _estimate(self) -> None:
        """The HMM's probabilities from its counts: transitions, tags, and word endings."""
        self.transitions = np.log(interpolated(self.trigrams))
        self.totals = self.trigrams.sum((0, 1))[:-1].astype(np.float64)
        self.log_share = np.log(self.totals / self.totals.sum())
        endings: dict[str, Counter[int]] = {}
        for word, counts in self.lexicon.items():
            if sum(counts.values()) <= self.settings.rare:
                for key in self._endings(word):
                    endings.setdefault(key, Counter()).update(counts)
        self.endings = {key: dict(counts) for key, counts in endings.items()}
        self._seen: dict[str, tuple[Ids, Floats]] = {}

    def _endings(self, word: str) -> list[str]:
        """What the HMM knows an unknown word by: its shape alone, then with its last letter, last two, and so on."""
        kind = shape(word)
        letters = word.lower()[-self.settings.longest_suffix :] if self.settings.longest_suffix else ""
        return [f"{kind}|{letters[len(letters) - size :]}" for size in range(len(letters) + 1)]

    def emissions(self, word: str, is_first: bool = False) -> tuple[Ids, Floats]:
        """The tags a word can have and log P(word | tag) of each, up to a constant of the word if it is unknown."""
        counts = self.lexicon.get(word)
        if counts is None and is_first:
            counts = self.lexicon.get(word[:1].lower() + word[1:])  # The capital may be the sentence's.
        if counts is not None:
            ids = np.array(sorted(counts), np.int64)
            return ids, np.log([counts[i] / self.totals[i] for i in ids.tolist()])
        if word not in self._seen:
            self._seen[word] = self._judged_by_ending(word)
        return self._seen[word]

    def _judged_by_ending(self, word: str) -> tuple[Ids, Floats]:
        """How likely each tag of the HMM is for an unknown word, by its ending."""
        prob = np.exp(self.log_share)
        for key in self._endings(word):
            if key not in self.endings:
                break
            tag_counts = self.endings[key]
            counts = np.zeros(len(prob))
            counts[list(tag_counts)] = list(tag_counts.values())
            # Brants mixes all endings with one small weight, so one rare word outvotes a thousand; weighing by
            # evidence was measured 4 points better on unknown English words.
            prob = (counts + self.settings.mixing * prob) / (counts.sum() + self.settings.mixing)
        return np.arange(len(prob)), np.log(prob) - self.log_share

    def tag(self, sentences: Iterable[Sequence[str]]) -> list[list[str]]:
        """The HMM's best tags of each sentence's words."""
        if not self.tags:
            raise UserError("This tagger has not been trained yet. Call fit(sentences, tags), or load a saved one.")
        return [[self.tags[i] for i in self._best_path(words)] for words in sentences]

    def _best_path(self, words: Sequence[str]) -> list[int]:
        """Viterbi over pairs of tags: best[b, c] is the best path that ends in tags b and c."""
        if not words:
            return []
        border = np.array([len(self.tags)])
        earlier, latest = border, border
        best = np.zeros((1, 1))
        steps: list[tuple[Ids, NDArray[np.intp]]] = []  # per word: its tags, and the best tag two places before
        for place, word in enumerate(words):
            ids, costs = self.emissions(word, place == 0)
            paths = best[:, :, None] + self.transitions[np.ix_(earlier, latest, ids)]
            came_from = paths.argmax(0)
            best = paths.max(0) + costs
            if self.settings.beam > 0:
                tops = best.max(0)
                within_beam = tops >= tops.max() - math.log(max(1.0, self.settings.beam))
                ids, best, came_from = ids[within_beam], best[:, within_beam], came_from[:, within_beam]
            steps.append((ids, came_from))
            earlier, latest = latest, ids
        best = best + self.transitions[np.ix_(earlier, latest, border)][:, :, 0]
        before, last = np.unravel_index(best.argmax(), best.shape)
        path = []
        for ids, came_from in reversed(steps):
            path.append(int(ids[last]))
            before, last = came_from[before, last], before
        return path[::-1]

    def log_shares(self, words: Sequence[str]) -> Floats:
        """log P(tag of each word | the sentence), over all paths: (words, tags). Forward and backward over pairs."""
        log_probs = np.full((len(words), len(self.tags)), -np.inf)
        if not words:
            return log_probs
        add_up, border = np.logaddexp.reduce, np.array([len(self.tags)])
        scored = [(border, np.zeros(1)), (border, np.zeros(1))]
        scored += [self.emissions(word, place == 0) for place, word in enumerate(words)]
        scored.append((border, np.zeros(1)))
        # turns[k][a, b, c]: the three tags that end at place k (two borders stand before the sentence, one behind).
        turns = [
            self.transitions[np.ix_(scored[k - 2][0], scored[k - 1][0], scored[k][0])] + scored[k][1]
            for k in range(2, len(scored))
        ]
        forward, backward = [np.zeros((1, 1))], [np.zeros((len(scored[-2][0]), 1))]
        for turn in turns:
            forward.append(add_up(forward[-1][:, :, None] + turn, axis=0))
        for turn in reversed(turns[1:]):
            backward.append(add_up(turn + backward[-1][None, :, :], axis=2))
        total = add_up(forward[-1], axis=None)
        for place, (ids, _) in enumerate(scored[2:-1]):
            log_probs[place, ids] = add_up(forward[place + 1] + backward[-1 - place], axis=0) - total
        return log_probs

    def save(self, folder: str | Path) -> None:
        """Write the HMM's `hmm.json` (settings, tags, words) and `hmm.npz` (counts of tags in threes) into a folder."""
        described = {"settings": asdict(self.settings), "tags": self.tags, "lexicon": self.lexicon}
        places = np.nonzero(self.trigrams)

        def write_counts(path: Path) -> None:
            np.savez_compressed(path / "hmm.npz", places=np.array(places), counts=self.trigrams[places])

        storage.save(folder, self.LAYOUT, described, also=write_counts)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open the HMM that was saved in a folder."""
        with storage.opened(folder, cls.LAYOUT):
            described, _ = storage.load(folder, cls.LAYOUT)
            tagger = cls(HmmSettings(**described["settings"]))
            tagger.tags = described["tags"]
            if len(tagger.tags) > MOST_TAGS:
                raise ValueError(f"{len(tagger.tags):,} tags, at most {MOST_TAGS} can be held")
            tagger.lexicon = {w: {int(t): n for t, n in counts.items()} for w, counts in described["lexicon"].items()}
            tagger.trigrams = np.zeros((len(tagger.tags) + 1,) * 3, np.int64)
            arrays = read_arrays(Path(folder) / "hmm.npz")
            tagger.trigrams[tuple(arrays["places"])] = arrays["counts"]
        tagger._estimate()
        return tagger


def interpolated(trigrams: Ids) -> Floats:
    """The HMM's P(c | a, b) by deleted interpolation. trigrams: (n, n, n) counts of tags a, b, c in a row.

    Returns like it.

    Each trigram votes with its count for the length of context that predicts it best when its own occurrence is
    left out. One vote goes to each length beforehand, so that no probability is zero.
    """
    pairs = trigrams.sum(0)
    contexts = trigrams.sum(2)
    singles, histories = pairs.sum(0), pairs.sum(1)
    a, b, c = np.nonzero(trigrams)
    without = np.stack(
        [
            _ratio(singles[c] - 1, np.full(len(c), singles.sum() - 1)),
            _ratio(pairs[b, c] - 1, histories[b] - 1),
            _ratio(trigrams[a, b, c] - 1, contexts[a, b] - 1),
        ]
    )
    votes = 1.0 + np.bincount(without.argmax(0), trigrams[a, b, c], minlength=3)
    unigram_weight, bigram_weight, trigram_weight = votes / votes.sum()
    single = singles / singles.sum()
    pair = np.where(histories[:, None] > 0, _ratio(pairs, histories[:, None]), single)
    triple = np.where(contexts[:, :, None] > 0, _ratio(trigrams, contexts[:, :, None]), pair)
    return unigram_weight * single + bigram_weight * pair + trigram_weight * triple


def _ratio(part: Ids, whole: Ids) -> Floats:
    return np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole > 0)


# ---- Baseline taggers: each word's most frequent tag, and the hidden Markov model with tags as numbers.

Sentences = Sequence[Sequence[str]]
Judged = list[tuple[list[int], NDArray[np.floating[Any]]]]  # of each sentence: tags, and (words, labels) log-shares


class FrequentTag:
    """The HMM's simplest rival: the tag a word had most often; for an unknown word, that of most words seen once."""

    name = "most frequent tag"
    LAYOUT = Layout("table of tags", "tags.json")

    def fit(self, sentences: Sentences, tags: Sequence[Sequence[int]], count: int, *_: Any, **__: Any) -> Self:
        """Count every word's tags, for the most frequent one (the HMM's baseline)."""
        by_word: dict[str, Counter[int]] = {}
        for words, answers in zip(sentences, tags):
            for word, tag in zip(words, answers):
                by_word.setdefault(word, Counter())[tag] += 1
        self.count = count
        self.tags = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
        self.shares = {word: counts[self.tags[word]] / counts.total() for word, counts in by_word.items()}
        single = Counter(self.tags[word] for word, counts in by_word.items() if counts.total() == 1)
        ((self.unknown, times),) = (single or Counter(self.tags.values())).most_common(1)
        self.unknown_share = times / (single or Counter(self.tags.values())).total()
        return self

    def judge(self, sentences: Sentences) -> Judged:
        """Most frequent tags with their frequency for the word; the remaining probability is spread evenly."""
        results: Judged = []
        for words, numbers in zip(sentences, self.tag(sentences)):
            share = np.array([self.shares.get(word, self.unknown_share) for word in words]).reshape(-1, 1)
            table = np.repeat((1 - share) / max(1, self.count - 1), self.count, axis=1)
            table[np.arange(len(words)), numbers] = share[:, 0]
            results.append((numbers, np.log(np.maximum(table, 1e-12))))
        return results

    def tag(self, sentences: Sentences) -> list[list[int]]:
        """Each word's most frequent tag."""
        return [[self.tags.get(word, self.unknown) for word in words] for words in sentences]

    @property
    def parameters(self) -> int:
        """A most frequent tag and its frequency per word."""
        return 2 * (len(self.tags) + 1)

    def save(self, folder: Path) -> None:
        """Write the table of most frequent tags as JSON."""
        described = {
            "count": self.count, "tags": self.tags, "shares": self.shares, "unknown": self.unknown,
            "unknown_share": self.unknown_share,
        }  # fmt: skip
        storage.save(folder, self.LAYOUT, described)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved table of most frequent tags."""
        model = cls()
        with storage.opened(folder, cls.LAYOUT):
            described, _ = storage.load(folder, cls.LAYOUT)
            model.count, model.unknown = int(described["count"]), int(described["unknown"])
            model.tags, model.shares = dict(described["tags"]), dict(described["shares"])
            model.unknown_share = float(described["unknown_share"])
        return model


class Hmm:
    """The trigram HMM tagger, for tags that are numbers."""

    name = "HMM, trigram"
    LAYOUT = Layout("HMM tagger of numbered tags", "count.json")

    def __init__(self, tagger: HmmTagger | None = None) -> None:
        self.tagger = tagger or HmmTagger()

    def fit(self, sentences: Sentences, tags: Sequence[Sequence[int]], count: int, *_: Any, **__: Any) -> Self:
        """Count tags and words: the HMM behind the methods of a contender."""
        self.count = count
        self.tagger.fit(sentences, [[str(tag) for tag in answers] for answers in tags])
        return self

    def tag(self, sentences: Sentences) -> list[list[int]]:
        """The HMM's tag of every word."""
        return [[int(tag) for tag in answers] for answers in self.tagger.tag(sentences)]

    def judge(self, sentences: Sentences) -> Judged:
        """Tags of the HMM's best path, with the shares all paths give them."""
        places = [int(tag) for tag in self.tagger.tags]
        results: Judged = []
        for words, numbers in zip(sentences, self.tag(sentences)):
            table = np.full((len(words), self.count), -np.inf)
            table[:, places] = self.tagger.log_shares(words)
            results.append((numbers, np.maximum(table, np.log(1e-12))))
        return results

    @property
    def parameters(self) -> int:
        """Counts an HMM keeps: of tag triples and of words with their tags."""
        return int((self.tagger.trigrams > 0).sum()) + sum(map(len, self.tagger.lexicon.values()))

    def save(self, folder: Path) -> None:
        """Write the HMM's files and the number of tags."""
        self.tagger.save(folder)
        storage.save(folder, self.LAYOUT, self.count)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved HMM contender."""
        model = cls(HmmTagger.load(folder))
        with storage.opened(folder, cls.LAYOUT):
            model.count = int(storage.load(folder, cls.LAYOUT)[0])
        return model
