import lzma
import math
import random
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.ancestors.ngram import model as ngram_words
from bertkit.ancestors.ngram.counting import NgramWindows, Runs, count_windows
from bertkit.ancestors.ngram.kneser_ney import FALLBACK, discounts
from bertkit.ancestors.ngram.model import NgramModel, NgramSettings
from bertkit.errors import DamagedFile, UserError
from bertkit.settings.ancestors import UNITS

DATA = Path(__file__).resolve().parents[2] / "../shared/data"


class PlainKneserNey:
    """Modified Kneser-Ney as the paper writes it: dictionaries and recursion."""

    def __init__(self, sentences, order, vocabulary):
        self.order, self.vocabulary = order, vocabulary
        raw = [Counter() for _ in range(order + 1)]
        for sentence in sentences:
            words = ["<s>", *sentence, "</s>"]
            for end in range(1, len(words)):
                for k in range(1, min(order, end + 1) + 1):
                    raw[k][tuple(words[end - k + 1 : end + 1])] += 1
        self.counts = {order: dict(raw[order])}
        for k in range(1, order):
            before = defaultdict(set)
            for gram in raw[k + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[k] = {g: raw[k][g] if g[0] == "<s>" else len(before[g]) for g in raw[k]}
        self.taken, self.children = {}, {}
        for k, counts in self.counts.items():
            n = Counter(counts.values())
            found = None
            if all(n[i] for i in (1, 2, 3, 4)):
                y = n[1] / (n[1] + 2 * n[2])
                found = [i - (i + 1) * y * n[i + 1] / n[i] for i in (1, 2, 3)]
                if not all(0 < d <= i for i, d in enumerate(found, 1)):
                    found = None
            self.taken[k] = found or [0.5, 1.0, 1.5]
            kids = defaultdict(dict)
            for gram, count in counts.items():
                kids[gram[:-1]][gram[-1]] = count
            self.children[k] = kids

    def probability(self, word, context):
        context = tuple(context)[-(self.order - 1) :] if self.order > 1 else ()
        if len(context) == 0:
            lower = 1 / self.vocabulary
        else:
            lower = self.probability(word, context[1:])
        k = len(context) + 1
        kids = self.children[k].get(context)
        if not kids:
            return lower
        total = sum(kids.values())
        taken = self.taken[k]
        gamma = sum(taken[min(c, 3) - 1] for c in kids.values()) / total
        count = kids.get(word, 0)
        return (count - taken[min(count, 3) - 1] if count else 0) / total + gamma * lower


def corpus(seed, sentences=60, kinds=12, longest=9):
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(kinds)]
    weights = [1 / (i + 1) for i in range(kinds)]
    return [rng.choices(words, weights, k=rng.randint(1, longest)) for _ in range(sentences)]


def fitted(sentences, **options):
    return NgramModel(NgramSettings(**{"min_count": 1, **options})).fit(" ".join(words) for words in sentences)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), order=st.integers(1, 6), size=st.integers(1, 150), kinds=st.integers(1, 30))
def test_probabilities_equal_a_plain_dictionary_implementation(seed, order, size, kinds):
    sentences = corpus(seed, size, kinds)
    model = fitted(sentences, order=order)
    plain = PlainKneserNey(sentences, order, len(model.words) - 1)
    rng = random.Random(seed)
    for _ in range(10):
        context = ["<s>", *rng.choice(sentences)][: rng.randint(1, 8)]
        if rng.random() < 0.5:
            context = rng.choices(model.words[3:], k=rng.randint(0, 7))
        word = rng.choice([*model.words[2:], "<unk>"])
        found = model.probability(context)[model.ids[word]]
        assert found == pytest.approx(plain.probability(word, context), rel=1e-5)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), order=st.integers(1, 6), min_count=st.integers(1, 4))
def test_probabilities_sum_to_one_after_any_context(seed, order, min_count):
    model = fitted(corpus(seed, 80, 25), order=order, min_count=min_count)
    rng = random.Random(seed)
    for length in range(8):
        prob = model.probability(rng.choices([*model.words, "unheard"], k=length))
        assert prob.shape == (len(model.words),)
        assert prob.sum() == pytest.approx(1, abs=1e-5)
        assert prob.min() >= 0 and prob[model.ids["<s>"]] == 0
        assert (np.delete(prob, model.ids["<s>"]) > 0).all()


@pytest.mark.parametrize("order", [1, 2, 3, 5, 7])
def test_the_score_of_a_text_is_the_product_of_its_words(order):
    sentences = corpus(3, 100, 20)
    model = fitted(sentences, order=order, min_count=2)
    for words in corpus(4, 20, 25):
        path = ["<s>", *words, "</s>"]
        logs = [math.log(model.probability(path[:i])[model.ids.get(path[i], 0)]) for i in range(1, len(path))]
        logs += model.speller.score([word for word in words if word not in model.ids])
        assert model.score([" ".join(words)])[0] == pytest.approx(sum(logs), rel=1e-5)


def test_a_text_scores_the_same_alone_among_others_and_line_by_line():
    model = fitted(corpus(5), order=4)
    texts = [" ".join(words) for words in corpus(6, 30, 15)]
    together = model.score(texts)
    assert together == pytest.approx([model.score([text])[0] for text in texts])
    assert model.score(["\n\n".join(texts)])[0] == pytest.approx(sum(together))


@pytest.mark.parametrize("order", [1, 2, 5, 9])
@pytest.mark.parametrize("memory_mb", [0.005, 0.05])
def test_counting_within_a_memory_budget_equals_counting_in_memory(order, memory_mb):
    texts = [" ".join(words) for words in corpus(7, 900, 3000, 20)]
    free = NgramModel(NgramSettings(order=order)).fit(texts)
    tight = NgramModel(NgramSettings(order=order, memory_mb=memory_mb)).fit(iter(texts))
    assert free.words == tight.words
    for one, other in zip(free.levels, tight.levels):
        for name, array in vars(one).items():
            assert np.array_equal(array, getattr(other, name)), name


@settings(deadline=None, max_examples=60)
@given(
    arrays=st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=40), min_size=1, max_size=12),
    budget=st.integers(0, 2000),
)
def test_runs_count_like_a_counter_however_often_they_spill(tmp_path_factory, arrays, budget):
    runs = Runs(budget, tmp_path_factory.mktemp("runs"))
    for keys in arrays:
        runs.add(np.array(keys, np.uint64))
    keys, counts = runs.merged()
    expected = Counter(key for keys in arrays for key in keys)
    assert list(zip(keys.tolist(), counts.tolist())) == sorted(expected.items())


@pytest.mark.parametrize(("order", "vocabulary"), [(1, 9), (3, 50), (5, 2**20), (7, 2**31 - 1), (11, 2**28), (24, 40)])
def test_windows_too_wide_for_64_bits_are_counted_exactly(tmp_path, order, vocabulary):
    rng = np.random.default_rng(order)
    start = vocabulary - 1
    words = rng.choice(rng.integers(0, start, 7), 400)
    words[rng.random(400) < 0.1] = start
    words[: order - 1] = start
    columns, counts = count_windows(lambda: [words], order, vocabulary, start, 10**6, tmp_path)
    windows = (tuple(words[i - order + 1 : i + 1][::-1].tolist()) for i in range(order - 1, 400) if words[i] != start)
    expected = sorted(Counter(windows).items())
    assert [(tuple(row), n) for row, n in zip(np.stack(columns, 1).tolist(), counts.tolist())] == expected


def test_a_wide_window_grows_no_more_spans_than_it_needs():
    windows = NgramWindows(5, 2**17)
    windows.sizes[2] = 2**23
    assert windows.pieces(5) == [(2, 0), (2, 2), (1, 4)] and windows.fits()


def test_discounts_fall_back_when_counts_of_counts_are_missing():
    assert discounts(np.array([1, 1, 2])) == (FALLBACK, False)
    assert discounts(np.repeat([1, 2, 3, 4], [10, 5, 50, 1])) == (FALLBACK, False)  # would take off less than nothing
    found, usable = discounts(np.repeat([1, 2, 3, 4, 9], [100, 40, 20, 12, 30]))
    y = 100 / 180
    assert usable and found == pytest.approx((1 - 2 * y * 0.4, 2 - 3 * y * 0.5, 3 - 4 * y * 0.6))


def test_a_synthetic_language_is_learnt_and_longer_contexts_help():
    rng = random.Random(0)
    # The next word depends on the last one, and on the parity of the one before that.
    sentences = []
    for _ in range(3000):
        words = rng.choices("abcd", k=2)
        for _ in range(8):
            words.append(
                "abcd"[(ord(words[-1]) + ord(words[-2]) * 2) % 4] if rng.random() < 0.95 else rng.choice("abcd")
            )
        sentences.append(words)
    held_out = [" ".join(words) for words in sentences[2500:]]
    perplexity_of = [fitted(sentences[:2500], order=k).perplexity(held_out)["perplexity"] for k in (1, 2, 3)]
    assert perplexity_of[0] > perplexity_of[1] * 1.2 and perplexity_of[1] > perplexity_of[2] * 1.2
    best = fitted(sentences, order=3).suggest("a b", top=1)[0]
    assert best["word"] == "abcd"[(ord("b") + ord("a") * 2) % 4] and best["score"] > 0.8


def test_unknown_words_are_spelled_so_that_a_small_vocabulary_is_no_advantage():
    texts = [" ".join(words) for words in corpus(8, 400, 200)]
    rows = [NgramModel(NgramSettings(order=2, min_count=n)).fit(texts).perplexity(texts) for n in (1, 60)]
    assert rows[0]["unknown"] == 0 and rows[1]["unknown"] > 300
    assert rows[1]["perplexity_unk"] < rows[0]["perplexity_unk"]
    assert rows[1]["bits_per_byte"] > rows[0]["bits_per_byte"]


def test_a_long_word_of_a_script_never_seen_is_measured():
    model = NgramModel(NgramSettings(order=2, min_count=1)).fit(["the cat sat on the mat", "a dog ran"])
    found = model.perplexity(["\u30ab" * 120])  # katakana: one word of 120 letters, spelled by a model of English
    assert 1e300 < found["perplexity"] < math.inf and found["unknown"] == 1
    assert found["bits_per_byte"] == pytest.approx(-sum(model.score(["\u30ab" * 120])) / math.log(2) / 360)


def test_bits_per_byte_follow_from_the_score():
    model = NgramModel(NgramSettings(order=3, units="characters", min_count=1)).fit(["春眠不觉晓", "处处闻啼鸟"])
    texts = ["春 鸟", "never seen ☃"]
    found = model.perplexity(texts)
    assert found["bytes"] == sum(len(text.encode()) for text in texts)
    assert found["bits_per_byte"] == pytest.approx(-sum(model.score(texts)) / math.log(2) / found["bytes"])
    assert found["perplexity"] == pytest.approx(math.exp(-sum(model.score(texts)) / found["words"]))
    assert found["words"] == 3 + 12 + 2


@pytest.mark.parametrize(
    ("units", "cased", "expected"),
    [
        ("words", True, {"Don't", "stop", "!", "我", "们", "喜", "欢", "BERT2", "。"}),
        ("words", False, {"don't", "stop", "!", "我", "们", "喜", "欢", "bert2", "。"}),
        ("jieba", True, {"Don't", "stop", "!", "我们", "喜欢", "BERT2", "。"}),
        ("characters", True, set("Don't stop! 我们喜欢BERT2。")),
    ],
)
def test_texts_are_cut_as_the_settings_say(units, cased, expected):
    model = NgramModel(NgramSettings(units=units, cased=cased, min_count=1)).fit(["Don't stop! 我们喜欢BERT2。"])
    assert set(model.words[3:]) == expected


def test_a_saved_model_is_the_same_model(tmp_path):
    model = fitted(corpus(9), order=4, min_count=3)
    model.save(tmp_path / "model")
    again = NgramModel.load(tmp_path / "model")
    texts = ["w1 w2 unheard w3", "", "w5"]
    assert again.score(texts) == model.score(texts) and again.settings == model.settings
    assert not list(tmp_path.rglob("*.pkl"))


def test_sentences_shorter_than_the_order_leave_the_highest_orders_empty(tmp_path):
    model = fitted([["a"], ["a"], ["b"]], order=5)
    assert model.ngrams[3:] == [0, 0]
    model.save(tmp_path)
    assert NgramModel.load(tmp_path).score(["a b c a b c"]) == model.score(["a b c a b c"])


def test_a_damaged_or_absent_model_is_named(tmp_path):
    with pytest.raises(UserError, match=r"ngram\.json"):
        NgramModel.load(tmp_path)
    fitted(corpus(10), order=2).save(tmp_path)
    weights = tmp_path / "ngram.safetensors"
    weights.write_bytes(weights.read_bytes()[:-20])
    with pytest.raises(DamagedFile, match="damaged"):
        NgramModel.load(tmp_path)


def test_mistakes_are_reported():
    with pytest.raises(UserError, match="words"):
        NgramSettings(units="word")
    with pytest.raises(UserError, match="order is 0"):
        NgramSettings(order=0)
    with pytest.raises(UserError, match="no text"):
        NgramModel().fit(["", " \n "])
    with pytest.raises(UserError, match="not been trained"):
        NgramModel().score(["a"])


def test_perplexity_falls_with_the_order_on_real_text():
    path = DATA / "corpus/en_wikipedia.txt.xz"
    if not path.exists():
        pytest.skip("the shared corpus is not here")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        train, held_out = file.read(2_500_000), file.read(200_000)
    rows = [NgramModel(NgramSettings(order=k)).fit([train]).perplexity([held_out]) for k in (1, 2, 3, 4)]
    assert all(longer["bits_per_byte"] < shorter["bits_per_byte"] for shorter, longer in pairwise(rows))
    assert all(longer["perplexity"] < shorter["perplexity"] for shorter, longer in pairwise(rows))
    assert rows[-1]["bits_per_byte"] < 2.2


def test_every_unit_that_can_be_asked_for_is_known() -> None:
    assert tuple(ngram_words.UNITS) == UNITS


@pytest.mark.parametrize("order", [1, 2, 4])
def test_the_listing_names_the_ngram_behind_each_probability(order):
    model = fitted(corpus(3, 100, 20), order=order, min_count=2)
    for words in corpus(4, 10, 25):
        rows = model.listing(" ".join(words))
        path = ["<s>", *words, "</s>"]
        assert [row["word"] for row in rows] == path[1:]
        for place, row in enumerate(rows, 1):
            expected = model.probability(path[:place])[model.ids.get(path[place], 0)]
            assert row["probability"] == pytest.approx(expected, rel=1e-5)
            assert len(row["context"]) == max(0, row["order"] - 1) < order
            known = path[place] in model.ids
            assert (row["order"] > 0) == known
            if known:
                assert row["context"] == path[place - row["order"] + 1 : place]


def test_the_top_ngrams_are_those_with_the_likeliest_last_word():
    model = fitted(corpus(3, 100, 8), order=3)
    for order in (1, 2, 3):
        rows = model.top(order, 5)
        values = [row["probability"] for row in rows]
        assert values == sorted(values, reverse=True) and all(len(row["words"]) == order for row in rows)
        for row in rows:
            expected = model.probability(row["words"][:-1])[model.ids[row["words"][-1]]]
            assert row["probability"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(UserError, match="1 to 3 words, not of 4"):
        model.top(4)
