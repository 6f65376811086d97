from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.ancestors.vectors.corpus import number
from bertkit.ancestors.vectors.glove import (
    PAIR,
    UNIT,
    Glove,
    GloveSettings,
    count_pairs,
    merged,
    shuffled_pairs,
    train,
    unpack,
)
from bertkit.errors import UserError
from tests.support.two_topics import topic_purity, two_topics


def plain_counts(corpus, window):
    """Both directions, as the definition says."""
    near = defaultdict(float)
    for begin, end in pairwise(corpus.ends):
        sentence = corpus.words[begin:end].tolist()
        for i, word in enumerate(sentence):
            for j in range(max(0, i - window), i):
                near[word, sentence[j]] += 1 / (i - j)
                near[sentence[j], word] += 1 / (i - j)
    return near


def all_pairs(corpus, window, budget, folder):
    runs = count_pairs(corpus, window, budget, folder)
    parts = list(merged(runs, budget))
    return len(runs), [np.concatenate(part) for part in zip(*parts)]


def some_text(seed=0, sentences=150):
    rng = np.random.default_rng(seed)
    return [[f"w{i}" for i in rng.geometric(0.03, rng.integers(1, 15))] for _ in range(sentences)]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=14), min_size=1, max_size=12).map(lambda t: [*t, ["a", "b"]]),
    st.integers(1, 16),
)
def test_counts_are_those_of_a_plain_dictionary(tmp_path_factory, text, window):
    corpus = number(text, 1)
    _, (keys, sums) = all_pairs(corpus, window, 1 << 20, tmp_path_factory.mktemp("runs"))
    expected = plain_counts(corpus, window)
    found = {}
    for low, high, value in zip(*unpack(keys), sums / UNIT):
        found[low, high] = found[high, low] = value * (1 + (low == high))
    assert found.keys() == expected.keys()
    for pair, value in expected.items():
        assert found[pair] == pytest.approx(value, rel=1e-9)


def test_counting_on_disk_gives_the_counts_of_counting_in_memory(tmp_path):
    corpus = number(some_text(sentences=800), 1)
    runs, small = all_pairs(corpus, 10, 40_000, tmp_path)
    assert runs > 3 and list(tmp_path.iterdir())
    one, large = all_pairs(corpus, 10, 1 << 30, tmp_path)
    assert one == 1
    assert np.array_equal(small[0], large[0]) and np.array_equal(small[1], large[1])
    assert (np.diff(small[0].astype(np.int64)) > 0).all()


def test_merging_yields_pieces_within_the_budget(tmp_path):
    corpus = number(some_text(sentences=800), 1)
    pieces = [len(keys) * 16 for keys, _ in merged(count_pairs(corpus, 10, 40_000, tmp_path), 40_000)]
    assert len(pieces) > 5 and max(pieces) <= 40_000


@pytest.mark.parametrize("memory_mb", [0.05, 1024.0])
def test_shuffled_pairs_hold_both_directions_once(tmp_path, memory_mb):
    corpus = number(some_text(sentences=400), 1)
    paths = shuffled_pairs(corpus, GloveSettings(window=4, memory_mb=memory_mb), tmp_path)
    assert (len(paths) > 3) == (memory_mb < 1)
    pairs = np.concatenate([np.fromfile(path, PAIR) for path in paths])
    expected = plain_counts(corpus, 4)
    assert len(pairs) == len(expected)
    for word, other, near in pairs.tolist():
        assert near == pytest.approx(expected[word, other], rel=1e-6)


def test_learning_is_the_plain_adagrad_of_the_weighted_squares():
    rng = np.random.default_rng(0)
    model = Glove(9, GloveSettings(dim=21, x_max=10, rate=0.1))
    pairs = np.array(list(zip(rng.integers(0, 9, 200), rng.integers(0, 9, 200), rng.gamma(1, 8, 200))), PAIR)
    sides, squares = ([each.astype(float) for each in both] for both in (model.sides, model.squares))
    loss = 0.0
    for word, other, near in pairs.tolist():
        a, b, squares_a, squares_b = sides[0][word], sides[1][other], squares[0][word], squares[1][other]
        weight = min((near / 10) ** 0.75, 1)
        off = a[:21] @ b[:21] + a[21] + b[21] - np.log(near)
        loss += weight * off**2 / 2
        move_a, move_b = 0.1 * weight * off * np.append(b[:21], 1), 0.1 * weight * off * np.append(a[:21], 1)
        a[:22] -= move_a / np.sqrt(squares_a[:22])
        b[:22] -= move_b / np.sqrt(squares_b[:22])
        squares_a[:22] += move_a**2
        squares_b[:22] += move_b**2
    assert model.step(pairs) == pytest.approx(loss, rel=1e-4)
    np.testing.assert_allclose(model.sides, sides, atol=1e-4)
    np.testing.assert_allclose(model.squares, squares, rtol=1e-3)
    np.testing.assert_allclose(model.vectors(), (sides[0] + sides[1])[:, :21], atol=1e-4)


def test_the_loss_falls_with_every_pass(tmp_path):
    corpus = number(two_topics(500), 1)
    chosen = GloveSettings(dim=10, min_count=1, epochs=8, threads=1)
    model = Glove(len(corpus.names), chosen)
    losses = list(model.learn(shuffled_pairs(corpus, chosen, tmp_path)))
    assert all(after < before for before, after in pairwise(losses))
    assert losses[-1] < losses[0] / 3


def test_words_of_one_topic_are_neighbours_and_the_last_loss_is_reported(notes):
    vectors = train(two_topics(), GloveSettings(dim=16, epochs=25, x_max=1000, threads=2))
    assert topic_purity(vectors) > 0.95
    assert any("squared error" in each for each in notes)


def test_one_thread_and_one_seed_give_the_same_vectors():
    text = two_topics(100)
    first, second, other = (train(text, GloveSettings(dim=8, epochs=2, threads=1, seed=s)).matrix for s in (1, 1, 2))
    assert np.array_equal(first, second) and not np.allclose(first, other)


def test_sentences_of_one_word_have_no_pairs():
    with pytest.raises(UserError, match="near"):
        train([["a"], ["b"]], GloveSettings(min_count=1))


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"rate": 0.0}, {"memory_mb": -1.0}, {"threads": -1}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        GloveSettings(**wrong)
