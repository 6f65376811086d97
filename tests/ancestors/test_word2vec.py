import heapq
import math
from itertools import pairwise

import numpy as np
import pytest
from gensim.models import Word2Vec
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.ancestors.vectors import kernels
from bertkit.ancestors.vectors.corpus import number
from bertkit.ancestors.vectors.word2vec import (
    Word2VecSettings,
    alias_tables,
    cut_jobs,
    huffman_paths,
    kept_of_2_32,
    nce_shifts,
    rows,
    train,
)
from bertkit.errors import UserError
from tests.support.two_topics import topic_purity, two_topics

MODES = [(architecture, loss) for architecture in ("skip-gram", "cbow") for loss in ("negative", "nce", "hierarchical")]
COUNTS = st.lists(st.integers(1, 1000), min_size=2, max_size=40).map(lambda c: np.array(sorted(c, reverse=True)))


# The plain reference: whole-number randomness and float64 arithmetic, one word after the other.
WRAP = (1 << 64) - 1


def plain_bits(state):
    bits = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WRAP
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & WRAP
    return bits ^ (bits >> 31)


class PlainWord2Vec:
    def __init__(self, inputs, outputs, counts, loss, negatives, window, keep, rate, state):
        self.inputs, self.outputs = inputs.astype(float), outputs.astype(float)
        self.loss, self.negatives, self.window, self.keep, self.rate = loss, negatives, window, keep, rate
        self.state = state
        self.alias = [each.tolist() for each in alias_tables(counts**0.75)]
        self.paths = [each.tolist() for each in huffman_paths(counts)]
        # Noise-contrastive estimation: minus log(k q(w)), plus the fixed bias log p(w).
        noise, shares = counts**0.75 / (counts**0.75).sum(), counts / counts.sum()
        self.shifts = np.log(negatives * noise) - np.log(shares) if loss == "nce" else np.zeros(len(counts))

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & WRAP
        return plain_bits(self.state)

    def targets(self, word):
        if self.loss == "hierarchical":
            starts, nodes, codes = self.paths
            return [(nodes[i], 1 - codes[i]) for i in range(starts[word], starts[word + 1])]
        thresholds, others = self.alias
        picked = [(word, 1)]
        for _ in range(self.negatives):
            bits = self.bits()
            place = ((bits >> 32) * len(thresholds)) >> 32
            drawn = place if bits & 0xFFFFFFFF < thresholds[place] else others[place]
            picked += [(drawn, 0)] if drawn != word else []
        return picked

    def move(self, hidden, targets):
        error = np.zeros_like(hidden)
        before = self.outputs.copy()
        for row, label in targets:
            pull = self.rate * (label - 1 / (1 + math.exp(self.shifts[row] - before[row] @ hidden)))
            error += pull * self.outputs[row]
            self.outputs[row] += pull * hidden
        return error

    def learn(self, architecture, sentence):
        kept = [word for word in sentence if (self.bits() >> 32) < self.keep[word]]
        for i, word in enumerate(kept):
            reach = 1 + self.bits() % self.window
            around = [kept[j] for j in range(max(0, i - reach), min(len(kept), i + reach + 1)) if j != i]
            if architecture == "cbow":
                if around:
                    error = self.move(np.mean([self.inputs[j] for j in around], 0), self.targets(word))
                    for j in around:
                        self.inputs[j] += error
                continue
            for j, targets in zip(around, [self.targets(word) for _ in around]):
                self.inputs[j] += self.move(self.inputs[j].copy(), targets)


@pytest.mark.parametrize(("architecture", "loss"), MODES)
@pytest.mark.parametrize("sample", [0.0, 0.05])
def test_the_compiled_loops_do_what_a_plain_program_does(architecture, loss, sample):
    rng = np.random.default_rng(5)
    text = [[f"w{i}" for i in rng.geometric(0.2, 9)] for _ in range(12)]
    corpus = number(text, 2)
    size, dim, window, negatives, rate, state = len(corpus.names), 20, 3, 4, 0.3, np.uint64(12345)
    keep = kept_of_2_32(corpus.counts, sample)
    inputs, outputs = rows(size, dim), rows(size, dim)
    inputs[:, :dim], outputs[:, :dim] = rng.normal(0, 0.5, (2, size, dim))
    plain = PlainWord2Vec(inputs, outputs, corpus.counts, loss, negatives, window, keep.tolist(), rate, int(state))
    noise = corpus.counts**0.75
    choice = {
        "negative": lambda: kernels.drawn(negatives, *alias_tables(corpus.counts**0.75)),
        "nce": lambda: kernels.drawn(negatives, *alias_tables(noise), nce_shifts(corpus.counts, noise, negatives)),
        "hierarchical": lambda: kernels.along_paths(*huffman_paths(corpus.counts)),
    }[loss]()
    numbered = kernels.Text(corpus.words, corpus.ends, int(np.diff(corpus.ends).max()), keep)
    span = (0, len(corpus.ends) - 1)
    kernels.KERNELS[architecture](numbered, span, choice, inputs, outputs, window, np.float32(rate), state)
    for begin, end in pairwise(corpus.ends):
        plain.learn(architecture, corpus.words[begin:end].tolist())
    np.testing.assert_allclose(inputs, plain.inputs, atol=2e-4)
    np.testing.assert_allclose(outputs, plain.outputs, atol=2e-4)
    assert not inputs[:, dim:].any() and not outputs[:, dim:].any()


@pytest.mark.parametrize("repeated", [False, True])
def test_one_step_goes_down_the_numerical_gradient(repeated):
    rng = np.random.default_rng(1)
    dim, rate, labels = 16, 0.01, np.array([1, 0, 0, 1], np.float32)
    targets = np.array([3, 1, 1 if repeated else 5, 0])
    hidden, outputs = rng.normal(0, 1, dim), rng.normal(0, 1, (6, dim))

    def loss(vector, matrix):
        signs = 2 * labels - 1
        return np.log1p(np.exp(-signs * (matrix[targets] @ vector))).sum()

    def slope(at, of):
        bumps = np.eye(at.size).reshape(at.size, *at.shape) * 1e-5
        return np.reshape([(of(at + bump) - of(at - bump)) / 2e-5 for bump in bumps], at.shape)

    moved, error = outputs.astype(np.float32), np.empty(dim, np.float32)
    still = hidden.astype(np.float32)
    kernels.step(still, error, moved, targets, labels, 0, 4, np.float32(rate), np.empty(4, np.float32),
                 kernels.NO_SHIFTS)  # fmt: skip
    if not repeated:  # a row drawn twice lends its second move to the hidden vector's
        np.testing.assert_allclose(error, -rate * slope(hidden, lambda h: loss(h, outputs)), atol=1e-6)
    np.testing.assert_allclose(moved - outputs, -rate * slope(outputs, lambda m: loss(hidden, m)), atol=1e-6)


def test_products_far_beyond_the_sigmoid_give_no_nonsense():
    hidden, outputs = np.full(16, 100, np.float32), np.array([[100] * 16, [-100] * 16], np.float32)
    error = np.empty(16, np.float32)
    arguments = np.array([0, 1]), np.array([0, 1], np.float32), 0, 2, np.float32(0.01), np.empty(2, np.float32)
    kernels.step(hidden, error, outputs, *arguments, kernels.NO_SHIFTS)
    np.testing.assert_allclose(outputs, [[99] * 16, [-99] * 16], rtol=1e-4)
    np.testing.assert_allclose(error, [-2] * 16, rtol=1e-4)


def huffman_cost(counts):
    heap, cost = list(counts), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        cost += both
        heapq.heappush(heap, both)
    return cost


@given(COUNTS)
def test_huffman_codes_are_prefix_free_and_as_short_as_can_be(counts):
    starts, nodes, codes = huffman_paths(counts)
    words = ["".join(map(str, codes[b:e])) for b, e in pairwise(starts)]
    assert sum(len(code) * int(count) for code, count in zip(words, counts)) == huffman_cost(counts.tolist())
    ordered = sorted(words)
    assert not any(after.startswith(before) for before, after in pairwise(ordered))
    at = {}  # the same turns from the root lead to the same inner node, and no others do
    for word, (begin, end) in enumerate(pairwise(starts)):
        for depth, node in enumerate(nodes[begin:end]):
            assert at.setdefault(words[word][:depth], int(node)) == node
    assert sorted(at.values()) == list(range(len(counts) - 1))


@given(COUNTS)
def test_alias_tables_hold_exactly_the_wanted_shares(counts):
    thresholds, others = alias_tables(counts**0.75)
    shares = thresholds / 2**32
    np.add.at(shares, others, 1 - thresholds / 2**32)
    np.testing.assert_allclose(shares / len(counts), counts**0.75 / (counts**0.75).sum(), atol=1e-8)


def test_negatives_are_drawn_in_proportion_to_counts_to_the_three_quarters():
    counts = np.array([4000, 900, 300, 60, 10, 1])
    tables = alias_tables(counts**0.75)
    drawn = np.bincount(
        [kernels.draw(np.uint64(plain_bits((i * 0x9E3779B97F4A7C15) & WRAP)), *tables) for i in range(60_000)],
        minlength=6,
    )
    expected = counts**0.75 / (counts**0.75).sum() * 60_000
    assert ((drawn - expected) ** 2 / expected).sum() < 20.5  # chi-squared with 5 degrees of freedom: p = 0.001


def test_frequent_words_are_kept_as_often_as_in_gensim():
    text = two_topics(400)
    theirs = Word2Vec(min_count=1, sample=0.01)
    theirs.build_vocab(text)
    corpus = number(text, 1)
    ours = kept_of_2_32(corpus.counts, 0.01) / 2**32
    expected = [min(1, theirs.wv.get_vecattr(word, "sample_int") / 2**32) for word in corpus.names]
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    assert (kept_of_2_32(corpus.counts, 0) == 2**32).all()


@settings(max_examples=50)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=60))
def test_jobs_hold_every_sentence_once(lengths):
    ends = np.concatenate([[0], np.cumsum(lengths)])
    jobs = cut_jobs(ends)
    assert [s for begin, end in jobs for s in range(begin, end)] == list(range(len(lengths)))


@pytest.mark.parametrize(("architecture", "loss"), MODES)
def test_words_of_one_topic_are_neighbours(architecture, loss):
    chosen = Word2VecSettings(architecture, loss, dim=24, epochs=10, sample=0, rate=0.05, threads=2)
    assert topic_purity(train(two_topics(), chosen)) > 0.95


@pytest.mark.parametrize(("architecture", "loss"), MODES)
def test_one_thread_and_one_seed_give_the_same_vectors(architecture, loss):
    text = two_topics(200)
    first, second, other = (
        train(text, Word2VecSettings(architecture, loss, dim=10, epochs=2, threads=1, seed=seed)).matrix
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, second)
    assert not np.allclose(first, other)


def test_cosines_agree_with_gensims_as_well_as_two_gensims_agree():
    text = two_topics(3000)
    common = {
        "vector_size": 24,
        "window": 5,
        "negative": 5,
        "sg": 1,
        "min_count": 1,
        "sample": 0,
        "epochs": 5,
        "workers": 1,
    }
    theirs = [Word2Vec(text, seed=seed, **common).wv for seed in (1, 2)]
    ours = train(text, Word2VecSettings(dim=24, min_count=1, sample=0, threads=1))
    order = sorted(ours.words)
    upper = np.triu_indices(len(order), 1)

    def cosines(vector_of):
        matrix = np.array([vector_of(word) for word in order])
        matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        return (matrix @ matrix.T)[upper]

    first, second, own = cosines(theirs[0].get_vector), cosines(theirs[1].get_vector), cosines(ours.vector)
    between_gensims = np.corrcoef(first, second)[0, 1]
    assert np.corrcoef(own, first)[0, 1] > between_gensims - 0.03
    assert abs(own.mean() - first.mean()) < 0.05


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"architecture": "skipgram"}, "skip-gram"), ({"loss": "hs"}, "hierarchical"), ({"dim": 0}, "dim"),
     ({"sample": -1}, "sample"), ({"rate": 0.0}, "rate")],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(UserError, match=said):
        Word2VecSettings(**wrong)
