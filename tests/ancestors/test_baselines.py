"""Cheap rivals: they learn what they can learn, answer as scikit-learn does, and open again as they were saved."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics.pairwise import paired_cosine_distances
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

from bertkit.ancestors.baselines.fasttext import FastText
from bertkit.ancestors.baselines.models import (
    LinearModel,
    Majority,
    MeanOfVectors,
    NaiveBayes,
    NgramClassifier,
    SharedWords,
    TfIdf,
    TfIdfNumber,
    VectorsNumber,
)
from bertkit.ancestors.hmm import FrequentTag, Hmm
from bertkit.runs.compare.contenders import Resources, contenders_for

GOOD, BAD = ["fine", "lovely", "bright", "warm"], ["dull", "cold", "grey", "sour"]
REST = ["the", "soup", "was", "rather", "today", "and", "so", "very"]


def reviews(rows: int, seed: int) -> tuple[list[str], list[int]]:
    chance = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(rows):
        label = int(chance.random() < 0.5)
        words = [*chance.choice(REST, 5), *chance.choice(GOOD if label else BAD, 2)]
        texts.append(" ".join(chance.permutation(words)))
        labels.append(label)
    return texts, labels


@pytest.mark.parametrize(
    "make", [TfIdf, NaiveBayes, NgramClassifier, FastText, MeanOfVectors, lambda: MeanOfVectors("glove")]
)
def test_every_rival_learns_words_that_decide_and_opens_as_it_was_saved(make, tmp_path):
    texts, labels = reviews(120, 0)
    dev, right = reviews(60, 1)
    model = make().fit(texts, labels, 2, dev, right, seed=0, minutes=0.0)
    found = model.probabilities(dev)
    assert found.shape == (60, 2) and np.allclose(found.sum(1), 1)
    assert (found.argmax(1) == np.array(right)).mean() > 0.9
    assert model.parameters > 0
    model.save(tmp_path)
    again = type(model).load(tmp_path)
    assert np.abs(again.probabilities(dev) - found).max() < 1e-5


def test_given_vectors_with_spaces_in_their_words_are_used_and_saved(tmp_path, notes):
    texts, labels = reviews(120, 0)
    chance = np.random.default_rng(1)
    lines = [f"{word} {chance.normal()} {chance.normal()} {chance.normal()}" for word in [*GOOD, *BAD, *REST, ". . ."]]
    (tmp_path / "v.txt").write_text("\n".join(lines), "utf-8")
    (entry,) = contenders_for("classify", ("word2vec",), Resources(vectors=str(tmp_path / "v.txt")))
    contender = entry.make(Resources(vectors=str(tmp_path / "v.txt")))
    assert contender.name == "given vectors, averaged"
    assert any("1 words with spaces" in note for note in notes)
    model = contender.model.fit(texts, labels, 2)
    (tmp_path / "saved").mkdir()
    model.save(tmp_path / "saved")
    again = MeanOfVectors.load(tmp_path / "saved")
    assert again.name == model.name and len(again.vectors) == 16
    assert np.abs(again.probabilities(texts) - model.probabilities(texts)).max() < 1e-5


def test_the_majority_is_the_share_of_each_label():
    model = Majority().fit(["a"] * 4, [2, 2, 2, 0], 3)
    assert model.probabilities(["x", "y"]).tolist() == [[0.25, 0.0, 0.75]] * 2


@pytest.mark.parametrize(("ours", "judge"), [(TfIdf, "logistic"), (NaiveBayes, "bayes")])
def test_counted_words_agree_with_scikit_learn(ours, judge):
    texts, labels = reviews(80, 2)
    fresh, _ = reviews(30, 3)
    judges = {"logistic": LogisticRegression(max_iter=1000, C=1.0), "bayes": MultinomialNB(alpha=0.1)}
    pipeline = make_pipeline(TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)), judges[judge])
    model = ours()
    if judge == "logistic":
        model.strengths = (1.0,)
    wanted = pipeline.fit(texts, labels).predict_proba(fresh)
    assert np.allclose(model.fit(texts, labels, 2).probabilities(fresh), wanted, atol=1e-6)


def test_a_label_without_training_rows_is_never_said():
    chance = np.random.default_rng(0)
    features = chance.normal(size=(40, 3))
    labels = (features[:, 0] > 0).astype(int) * 2  # labels 0 and 2 of three
    model = LinearModel().fit(features, labels, 3)
    found = model.probabilities(features)
    assert found.shape == (40, 3) and found[:, 1].max() < 1e-9
    assert (found.argmax(1) == labels).mean() > 0.9


def test_pairs_are_told_apart_by_what_they_share():
    chance = np.random.default_rng(5)
    words = [f"word{n}" for n in range(40)]
    pairs, labels = [], []
    for n in range(300):
        first = list(chance.choice(words, 6, replace=False))
        second = list(chance.permutation(first)) if n % 2 else list(chance.choice(words, 6, replace=False))
        pairs.append((" ".join(first), " ".join(second)))
        labels.append(n % 2)
    model = TfIdf().fit(pairs[:200], labels[:200], 2)
    assert (model.probabilities(pairs[200:]).argmax(1) == np.array(labels[200:])).mean() > 0.9


def test_chinese_is_counted_by_characters():
    texts = ["这道菜很好吃", "味道真好", "太难吃了", "难吃得很"] * 5
    model = TfIdf().fit(texts, [1, 1, 0, 0] * 5, 2)
    assert model.probabilities(["好吃极了", "真难吃"]).argmax(1).tolist() == [1, 0]


def test_the_fastText_like_model_tells_word_order_from_word_pairs():
    texts = ["not bad at all", "bad not at all"] * 30
    labels = [1, 0] * 30
    model = FastText().fit(texts, labels, 2, texts, labels, seed=0)
    assert model.probabilities(texts[:2]).argmax(1).tolist() == [1, 0]


@pytest.mark.parametrize("make", [FrequentTag, Hmm])
def test_taggers_with_numbers_for_tags_open_as_they_were_saved(make, tmp_path):
    sentences = [["the", "dog", "barks"], ["a", "cat", "sleeps"], ["the", "cat", "barks"]] * 4
    tags = [[0, 1, 2]] * 12
    model = make().fit(sentences, tags, 3, sentences, tags)
    assert model.tag([["a", "dog", "sleeps"], []]) == [[0, 1, 2], []]
    model.save(tmp_path)
    again = make.load(tmp_path)
    assert again.tag(sentences) == model.tag(sentences)
    for (numbers, shares), (same, others) in zip(model.judge(sentences), again.judge(sentences)):
        assert numbers == same == [0, 1, 2] and np.array_equal(shares, others)
        assert np.exp(shares).sum(1) == pytest.approx(1, abs=1e-6) and shares.shape == (3, 3)


def test_an_unseen_word_gets_the_tag_of_rare_words():
    model = FrequentTag().fit([["x", "x", "x", "odd", "rare"]], [[0, 0, 0, 1, 1]], 2)
    assert model.tag([["never", "x"]]) == [[1, 0]]


@pytest.mark.parametrize("make", [TfIdfNumber, VectorsNumber])
def test_rivals_for_numbers_learn_words_that_decide_and_open_as_they_were_saved(make, tmp_path):
    texts, labels = reviews(120, 0)
    dev, right = reviews(60, 1)
    model = make().fit(texts, [3.0 + 4.0 * label for label in labels], 1, seed=0)
    found = model.values(dev)
    assert found.shape == (60,) and np.corrcoef(found, right)[0, 1] > 0.8
    assert abs(found.mean() - (3.0 + 4.0 * np.mean(right))) < 0.5
    model.save(tmp_path)
    assert np.abs(type(model).load(tmp_path).values(dev) - found).max() < 1e-4


def test_numbers_are_those_of_scikit_learn():
    texts, labels = reviews(120, 0)
    model = TfIdfNumber()
    model.strengths = (2.0,)
    numbers = [3.0 + 4.0 * label for label in labels]
    theirs = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), Ridge(alpha=0.5)).fit(texts, numbers)
    assert np.allclose(model.fit(texts, numbers, 1).values(texts), theirs.predict(texts), atol=1e-6)


def test_shared_words_are_the_cosine_of_scikit_learn():
    first, second = reviews(40, 0)[0], reviews(40, 1)[0]
    model = SharedWords().fit(list(zip(first, second)), list(range(40)), 1)
    tfidf = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit([*first, *second])
    apart = paired_cosine_distances(tfidf.transform(first), tfidf.transform(second))
    assert np.allclose(model.features(list(zip(first, second)))[:, 0], 1 - apart, atol=1e-9)
