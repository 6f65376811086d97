"""Examples cut from a store: every token where it belongs, as a plain reading of the rules would cut them."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertkit.data.feed import phases
from bertkit.data.packing import PACKINGS, Example
from bertkit.data.prepare.run import prepare
from bertkit.data.store import Store
from bertkit.errors import UserError
from bertkit.text.vocabulary import VocabularySettings, learn

WORDS = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "en")]
quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)


def make(folder: Path, documents: list[list[int]]) -> Store:
    """A store of documents given as the number of words of each sentence; document n has only the word n."""
    tokenizer = learn([" ".join(WORDS) + "."] * 5, VocabularySettings(size=400, min_frequency=1))
    lines = [
        "\n".join(" ".join([WORDS[n % len(WORDS)]] * words).capitalize() + "." for words in sentences)
        for n, sentences in enumerate(documents)
    ]
    (folder / "text.txt").write_text("\n\n".join(lines), "utf-8")
    store, _ = prepare([folder / "text.txt"], tokenizer, folder / "store", workers=1)
    assert (store.documents, store.sentences) == (len(documents), sum(map(len, documents)))
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    chance = np.random.default_rng(0)
    documents = [chance.integers(1, 40, chance.integers(1, 14)).tolist() for _ in range(40)]
    return make(tmp_path_factory.mktemp("packing"), [[3, 70, 2], [150], *documents])


def some(store: Store) -> np.ndarray:
    """Two documents of three: what a split leaves for training."""
    return np.array([n for n in range(store.documents) if n % 3])


def text_of(example: Example) -> list[list[int]]:
    """The ids between special tokens, by segment."""
    real = ~example.special
    return [example.ids[real & (example.segments == side)].tolist() for side in range(example.segments.max() + 1)]


def joined(parts: list[list[int]]) -> list[int]:
    return list(chain(*parts))


class Plain:
    """The documented rules read aloud with lists, for the same random draws in the same order."""

    def __init__(self, store: Store, documents: np.ndarray, length: int, short_prob: float, least: int) -> None:
        self.texts = []
        for n in documents:
            first, last = store.document_starts[n], store.document_starts[n + 1]
            starts = store.sentence_starts[first : last + 1]
            self.texts.append([store.ids[a:b].tolist() for a, b in pairwise(starts)])
        self.room, self.short_prob = length - (2 if least == 1 else 3), short_prob
        self.chunks = []
        for place, sentences in enumerate(self.texts):
            now: list[list[int]] = []
            for sentence in sentences:
                # A pair is gathered until it is full, and cut later; a whole row must fit.
                size = sum(map(len, now)) + (len(sentence) if least == 1 else 1)
                if len(now) >= least and size > self.room:
                    self.chunks.append((place, now))
                    now = []
                now = [*now, sentence]
            self.chunks.append((place, now))
        self.chunks = [(place, chunk) for place, chunk in self.chunks if len(chunk) >= least]

    def whole(self) -> list[list[int]]:
        rows = [joined(chunk) for _, chunk in self.chunks]
        return [row[at : at + self.room] for row in rows for at in range(0, len(row), self.room)]

    @staticmethod
    def gathered(sentences: list[list[int]], target: int, least: int) -> list[list[int]]:
        """Sentences until they hold the target."""
        taken: list[list[int]] = []
        for sentence in sentences:
            if len(taken) >= least and sum(map(len, taken)) >= target:
                break
            taken.append(sentence)
        return taken

    def pair(self, number: int, chance: np.random.Generator, kind: str) -> tuple[list[int], list[int], int]:
        place, chunk = self.chunks[number]
        target = self.room
        if chance.random() < self.short_prob:
            target = int(chance.integers(2, self.room + 1))
        chunk = self.gathered(chunk, target, 2)
        middle = int(chance.integers(1, len(chunk)))
        a, b = joined(chunk[:middle]), joined(chunk[middle:])
        if kind == "sentence-order":
            a, b = self.fitted(a, b, target, chance)
            swap = chance.random() < 0.5
            return (b, a, 1) if swap else (a, b, 0)
        label = int(chance.random() < 0.5)
        if label:
            others = [text for n, text in enumerate(self.texts) if n != place]
            other = others[int(chance.integers(0, len(others)))]
            start = int(chance.integers(0, len(other)))
            whole = len(a) + len(b) < target
            taken = self.gathered(other[start:], len(b), 1)
            missed = [abs(len(joined(part)) - len(b)) for part in (taken, taken[:-1])]
            # A pair that is not to be cut gets the number of sentences that comes nearest to the true one's length.
            b = joined(taken[:-1] if whole and len(taken) > 1 and missed[1] < missed[0] else taken)
        return (*self.fitted(a, b, target, chance), label)

    @staticmethod
    def fitted(a: list[int], b: list[int], target: int, chance: np.random.Generator) -> list[list[int]]:
        """One token at a time from the longer; each from the front or the back by a coin."""
        loss = [0, 0]
        while len(a) + len(b) - sum(loss) > target:
            loss[0 if len(a) - loss[0] > len(b) - loss[1] else 1] += 1
        parts = []
        for tokens, lost in zip((a, b), loss):
            front = int(chance.binomial(lost, 0.5)) if lost else 0
            parts.append(tokens[front : len(tokens) - (lost - front)])
        return parts


class Same(np.random.Generator):
    """A generator whose `integers(a, b)` draws alike for ranges of one size, wherever they begin."""

    def integers(self, low, high):  # type: ignore[override]
        return low + super().integers(0, high - low)


def chance(seed: int) -> Same:
    return Same(np.random.PCG64(seed))


@quiet
@given(length=st.integers(8, 90), number=st.integers(0), seed=st.integers(0, 9999), short=st.sampled_from([0, 0.1, 1]))
@pytest.mark.parametrize("kind", ["next-sentence", "sentence-order"])
def test_a_pair_is_what_plain_python_makes_of_the_same_draws(kind, store, length, number, seed, short):
    packing = PACKINGS[kind](store, some(store), length, short)
    plain = Plain(store, some(store), length, short, least=2)
    assert len(packing) == len(plain.chunks)
    number %= len(packing)
    example = packing.example(number, chance(seed))
    a, b, label = plain.pair(number, chance(seed), kind)
    assert text_of(example) == [a, b]
    assert example.label == label
    cls, sep = store.tokenizer.cls_id, store.tokenizer.sep_id
    assert example.ids.tolist() == [cls, *a, sep, *b, sep] and a and b
    assert example.segments.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert example.special.nonzero()[0].tolist() == [0, len(a) + 1, len(a) + len(b) + 2]


@pytest.mark.parametrize("length", [5, 16, 48, 400])
def test_full_sentences_are_what_plain_python_cuts_and_hold_every_token_once(length, store):
    packing = PACKINGS["full-sentences"](store, some(store), length)
    rows = [text_of(packing.example(n, chance(0)))[0] for n in range(len(packing))]
    assert rows == Plain(store, some(store), length, 0, least=1).whole()
    whole = []
    for n in some(store):
        first, last = store.sentence_starts[store.document_starts[n : n + 2]]
        whole += store.ids[first:last].tolist()
    assert joined(rows) == whole


@pytest.mark.parametrize("length", [16, 400])
def test_sentences_stand_alone_and_short_ones_go_with_the_next(length, tmp_path):
    sizes = [[9, 1, 6, 30, 2, 1], [1], [2, 2, 12]]
    store = make(tmp_path, sizes)
    packing = PACKINGS["sentences"](store, np.arange(3), length)
    rows = [text_of(packing.example(n, chance(0)))[0] for n in range(len(packing))]
    assert joined(rows) == store.ids.tolist()
    runs = [10, 2 + 7, 31, 3 + 2, 2, 3 + 3, 13]  # tokens: words, and each sentence's full stop
    cut = [part for size in runs for part in ([length - 2] * (size // (length - 2)) + [size % (length - 2)]) if part]
    assert [len(row) for row in rows] == cut


def test_a_step_of_sentences_is_as_full_as_one_of_whole_rows(store):
    typical = partial(PACKINGS["sentences"].typical, store)
    assert typical(8) == 8
    mean = np.diff(store.sentence_starts).mean()
    assert typical(128) == round(mean) + 2
    assert PACKINGS["mixed-sentences"].typical(store, 128) == (128 + round(mean) + 2) // 2
    (phase,) = phases(10, ((1.0, 128),), 4096, typical=typical)
    assert phase.rows == round(4096 / (round(mean) + 2)) and phase.length == 128


def test_half_of_the_mixed_rows_are_whole_and_the_others_one_sentence_of_theirs(tmp_path):
    store = make(tmp_path, [[9, 1, 6, 30, 2, 5, 1]])
    packing = PACKINGS["mixed-sentences"](store, np.arange(1), 400)
    draws = 3000
    rows = [text_of(packing.example(0, chance(n)))[0] for n in range(draws)]
    sizes = Counter(len(row) for row in rows)
    # Tokens are words and each sentence's full stop; one of two or three tokens goes with the next, if there is one.
    alone = [10, 2 + 7, 7, 31, 3 + 6, 6, 2]
    assert set(sizes) == {store.tokens, *alone}
    for size, times in sizes.items():
        share = 0.5 if size == store.tokens else alone.count(size) / 14
        assert abs(times - share * draws) < 4.5 * np.sqrt(draws * share * (1 - share))
    starts = np.cumsum([0, 10, 2, 7, 31, 3, 6])
    assert {tuple(row) for row in rows} == {
        tuple(store.ids[a : a + size].tolist()) for a, size in [(0, store.tokens), *zip(starts, alone, strict=True)]
    }


def test_a_mixed_row_of_a_cut_sentence_has_no_smaller_part(tmp_path):
    store = make(tmp_path, [[60], [70]])
    whole, mixed = (PACKINGS[kind](store, np.arange(2), 16) for kind in ("full-sentences", "mixed-sentences"))
    for n in range(len(whole)):
        texts = {tuple(text_of(mixed.example(n, chance(seed)))[0]) for seed in range(50)}
        assert texts == {tuple(text_of(whole.example(n, chance(0)))[0])}


@pytest.mark.parametrize("kind", sorted(PACKINGS))
@pytest.mark.parametrize("length", [16, 48, 128])
def test_no_example_is_longer_than_its_length(kind, length, store):
    packing = PACKINGS[kind](store, some(store), length, 0.1)
    sizes = [len(packing.example(n, chance(n)).ids) for n in range(len(packing))]
    assert max(sizes) <= length
    assert min(sizes) >= 3
    if length < 128 and kind not in {"sentences", "mixed-sentences"}:  # longer than most documents
        assert np.mean(sizes) > 0.6 * length


@pytest.mark.parametrize("kind", ["next-sentence", "sentence-order"])
def test_half_of_the_pairs_are_true(kind, store):
    packing = PACKINGS[kind](store, some(store), 48)
    draws = 2000
    labels = [packing.example(n % len(packing), chance(n)).label for n in range(draws)]
    assert set(labels) == {0, 1}
    assert abs(sum(labels) - draws / 2) < 4.5 * np.sqrt(draws) / 2  # once in 150,000 for a fair coin


def test_a_false_next_text_comes_from_another_document_and_a_true_one_from_the_same(store):
    packing = PACKINGS["next-sentence"](store, some(store), 64)
    stop = store.tokenizer.token_to_id(".")
    seen: Counter[tuple[int, bool]] = Counter()
    picked = set()
    for n in range(1500):
        example = packing.example(n % len(packing), chance(n))
        a, b = (set(side) - {stop} for side in text_of(example))
        assert len(a) <= 1 and len(b) <= 1, "a side is of one document"
        if a and b:
            seen[example.label, a == b] += 1
            picked |= b if example.label else set()
    assert seen[0, False] == 0 and seen[1, True] == 0
    assert min(seen[0, True], seen[1, False]) > 500
    assert len(picked) == len(some(store)), "every document is drawn from"


def test_the_length_of_a_pair_does_not_give_its_label_away(tmp_path):
    chance_ = np.random.default_rng(0)
    alike = make(tmp_path, [chance_.integers(3, 12, 12).tolist() for _ in range(60)])
    packing = PACKINGS["next-sentence"](alike, np.arange(60), 40)
    sizes: dict[int, list[int]] = {0: [], 1: []}
    for n in range(3000):
        example = packing.example(n % len(packing), chance(n))
        sizes[example.label].append(len(example.ids))
    shares = [np.mean(np.array(size) == 40) for size in sizes.values()]
    assert abs(shares[0] - shares[1]) < 0.12
    assert abs(np.mean(sizes[0]) - np.mean(sizes[1])) < 1.5


def test_swapped_sentences_are_the_true_ones_turned_round(store):
    packing = PACKINGS["sentence-order"](store, some(store), 500)
    sides: dict[int, set[tuple]] = {0: set(), 1: set()}
    for seed in range(500):
        example = packing.example(5, chance(seed))
        sides[example.label].add(tuple(map(tuple, text_of(example)[:: 1 if example.label == 0 else -1])))
    assert sides[0] == sides[1]


def test_a_text_too_long_is_cut_at_both_ends(tmp_path):
    """Two sentences of many different words: which end was cut can be read off."""
    tokenizer = learn([" ".join(WORDS) + "."] * 5, VocabularySettings(size=400, min_frequency=1))
    line = " ".join(WORDS[:80]).capitalize() + "."
    (tmp_path / "text.txt").write_text(f"{line}\n{line}\n\nOther words.\nAnd more.", "utf-8")
    store, _ = prepare([tmp_path / "text.txt"], tokenizer, tmp_path / "store", workers=1)
    packing = PACKINGS["sentence-order"](store, np.array([0, 1]), 63)
    whole = store.ids[: store.sentence_starts[1]].tolist()
    fronts = []
    for seed in range(200):
        for side in text_of(packing.example(0, chance(seed))):
            assert len(side) == 30
            at = whole.index(side[0])
            assert whole[at : at + 30] == side, "what is left is in one piece"
            fronts.append(at)
    assert abs(np.mean(fronts) - (len(whole) - 30) / 2) < 1.5
    assert min(fronts) > 0 and max(fronts) < len(whole) - 30


def test_a_share_of_the_pairs_is_short_on_purpose(store):
    packings = [PACKINGS["next-sentence"](store, some(store), 128, share) for share in (0, 0.3, 1)]
    means = [
        np.mean([len(packing.example(n % len(packing), chance(n)).ids) for n in range(800)]) for packing in packings
    ]
    assert means[0] > means[1] + 3 > means[2] + 6


@pytest.mark.parametrize("kind", sorted(PACKINGS))
def test_an_example_is_a_pure_function_of_its_number_and_chance(kind, store):
    one, other = (PACKINGS[kind](store, some(store), 40, 0.2) for _ in range(2))
    for n in reversed(range(len(one))):
        other.example(n, chance(n + 1))
    for n in range(len(one)):
        assert one.example(n, chance(n)).ids.tolist() == other.example(n, chance(n)).ids.tolist()


def test_words_begin_where_the_store_says(store):
    packing = PACKINGS["full-sentences"](store, some(store), 40)
    example = packing.example(7, chance(0))
    continues = np.array(store.tokenizer.continuation)[example.ids]
    assert (example.word_starts == ~continues).all()


def test_texts_without_pairs_are_reported_with_the_presets_that_need_none(tmp_path, store):
    single = make(tmp_path, [[3], [5], [4]])
    for kind in ("next-sentence", "sentence-order"):
        with pytest.raises(UserError, match=r"two sentences.*roberta"):
            PACKINGS[kind](single, np.arange(3), 32)
    with pytest.raises(UserError, match="at least two documents"):
        PACKINGS["next-sentence"](store, np.array([0]), 32)
    with pytest.raises(UserError, match="no room"):
        PACKINGS["full-sentences"](store, some(store), 3)
