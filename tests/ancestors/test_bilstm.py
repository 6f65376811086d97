"""BiLSTM tagger and classifier: they learn what only context tells, and come back from disk as they were."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.ancestors.lstm.bilstm import BiLstmClassifier, BiLstmTagger
from bertkit.ancestors.lstm.network import ReadingOrder, read_in_order
from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.data.batch import pack
from bertkit.errors import DamagedFile, UserError
from bertkit.settings.ancestors import BiLstmSettings

SMALL = BiLstmSettings(cells=16, word_width=12, dropout=0.1, lr=1e-2, epochs=8)
WORDS = ("left", "right", "a", "b", "c")


def rule(words: list[str]) -> list[int]:
    """Two bits a word: whether the nearest `left` or `right` before it is `left`, and the nearest after it `right`."""
    before = [_nearest(words[:n][::-1]) == "left" for n in range(len(words))]
    after = [_nearest(words[n + 1 :]) == "right" for n in range(len(words))]
    return [2 * one + other for one, other in zip(before, after)]


def _nearest(words: list[str]) -> str:
    return next((w for w in words if w in ("left", "right")), "")


def sentences(count: int, seed: int) -> list[list[str]]:
    chance = np.random.default_rng(seed)
    return [[str(w) for w in chance.choice(WORDS, chance.integers(1, 9))] for _ in range(count)]


def one_hot(asked, layers: int = 1) -> list[np.ndarray]:
    """Features: which word it is in the last layer, noise that says nothing in the others."""
    found = []
    for words in asked:
        noise = np.random.default_rng(len(words)).normal(size=(layers - 1, len(words), len(WORDS)))
        known = np.eye(len(WORDS))[[WORDS.index(w) for w in words]].reshape(1, -1, len(WORDS))
        found.append(np.concatenate([noise, known]).astype(np.float32))
    return found


TRAIN, DEV, TEST = sentences(500, 0), sentences(80, 1), sentences(100, 2)


def tags(given_sentences) -> list[list[int]]:
    return [rule(words) for words in given_sentences]


def right_share(found, given_sentences=TEST) -> float:
    pairs = [x == y for a, b in zip(found, tags(given_sentences)) for x, y in zip(a, b, strict=True)]
    return sum(pairs) / len(pairs)


@pytest.fixture(scope="module")
def tagger() -> BiLstmTagger:
    return BiLstmTagger(SMALL).fit(TRAIN, tags(TRAIN), 4, DEV, tags(DEV), seed=1)


@pytest.fixture(scope="module")
def over_features() -> BiLstmTagger:
    made = BiLstmTagger(SMALL, features=lambda asked: one_hot(asked, 3))
    return made.fit(TRAIN, tags(TRAIN), 4, DEV, tags(DEV), epochs=14)


def test_a_tagger_learns_what_only_the_words_around_decide(tagger: BiLstmTagger) -> None:
    wanted = tags(TEST)
    by_word = right_share([[0] * len(words) for words in TEST])
    to_the_left = right_share([[tag & 2 for tag in one] for one in wanted])  # all that the words before it tell
    to_the_right = right_share([[tag & 1 for tag in one] for one in wanted])
    assert max(by_word, to_the_left, to_the_right) < 0.85 and right_share(tagger.tag(TEST)) > 0.97


def test_a_tagger_learns_from_features_and_weights_the_informative_layer(over_features: BiLstmTagger) -> None:
    assert right_share(over_features.tag(TEST)) > 0.95
    shares = over_features.model.source.mix.shares().tolist()
    assert sum(shares) == pytest.approx(1, abs=1e-5) and max(shares) == shares[2]
    assert over_features.name == "BiLSTM over features"


def test_features_are_asked_for_once_a_fit_and_never_changed() -> None:
    asked = []
    given_features = {tuple(words): one for words, one in zip(TRAIN + DEV, one_hot(TRAIN + DEV, 2))}
    before = {key: one.copy() for key, one in given_features.items()}

    def features(some):
        asked.append(len(some))
        return [given_features[tuple(words)] for words in some]

    BiLstmTagger(SMALL, features=features).fit(TRAIN[:60], tags(TRAIN[:60]), 4, DEV, tags(DEV), epochs=3)
    assert asked == [60, 80]
    assert all(np.array_equal(one, before[key]) for key, one in given_features.items())


def test_the_best_pass_on_dev_is_kept() -> None:
    judged = iter([0.3, 0.9, 0.5, 0.4])
    said = []

    def measure(right, guesses) -> float:
        said.append(guesses)
        return next(judged)

    made = BiLstmTagger(SMALL).fit(TRAIN, tags(TRAIN), 4, DEV, tags(DEV), epochs=4, measure=measure)
    assert made.result == {"epochs": 4.0, "best": 2, "dev": 0.9}
    assert made.tag(DEV) == said[1] and said[1] != said[3]


def test_training_stops_when_dev_no_longer_improves_but_not_in_its_first_steps() -> None:
    patient = BiLstmSettings(cells=4, word_width=4, epochs=9, patience=2, batch=2)
    for size, passes in ((140, 3), (20, 9)):
        made = BiLstmTagger(patient)
        made.fit(TRAIN[:size], tags(TRAIN[:size]), 4, DEV[:5], tags(DEV[:5]), measure=lambda right, said: 0.5)
        assert made.result["epochs"] == passes and made.result["best"] == 1


def test_the_same_seed_gives_the_same_tagger_and_torchs_own_chance_is_left_alone() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    made = [
        BiLstmTagger(SMALL).fit(TRAIN[:64], tags(TRAIN[:64]), 4, DEV, tags(DEV), seed=seed, epochs=2)
        for seed in (4, 4, 5)
    ]
    assert torch.equal(torch.rand(3), wanted)
    weights = [one.model.out.weight for one in made]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_sentence_is_tagged_the_same_alone_and_among_others(tagger: BiLstmTagger) -> None:
    some = [*TEST[:20], [], ["left", "never-seen", "a", "right"]]
    assert tagger.tag(some) == [tagger.tag([words])[0] for words in some] and tagger.tag([]) == []


def test_a_tagger_without_dev_keeps_the_last_pass_and_says_so(notes) -> None:
    made = BiLstmTagger(SMALL).fit(TRAIN[:64], tags(TRAIN[:64]), 4, epochs=2)
    assert made.result == {"epochs": 2.0} and "the last pass is kept" in notes[-1]


def test_time_that_is_up_ends_the_training(notes) -> None:
    made = BiLstmTagger(SMALL).fit(TRAIN, tags(TRAIN), 4, DEV, tags(DEV), minutes=1e-6)
    assert made.result["epochs"] < 1 and made.result["best"] == 1 and "time ran out" in notes[-1]


@pytest.mark.parametrize("which", ["tagger", "over_features"])
def test_a_saved_tagger_opens_as_it_was(which: str, tmp_path: Path, request) -> None:
    made = request.getfixturevalue(which)
    made.save(tmp_path / "t")
    again = BiLstmTagger.load(tmp_path / "t", features=made.features)
    assert again.tag(TEST) == made.tag(TEST) and again.parameters == made.parameters > 0
    assert again.settings == made.settings and again.result == made.result
    described = json.loads((tmp_path / "t/bilstm.json").read_text())
    assert described["ancestor"] == "bilstm-tagger"


def test_what_cannot_be_opened_is_reported(tagger: BiLstmTagger, over_features: BiLstmTagger, tmp_path: Path) -> None:
    tagger.save(tmp_path / "words")
    over_features.save(tmp_path / "features")
    with pytest.raises(UserError, match="trained with features; give load the same features"):
        BiLstmTagger.load(tmp_path / "features")
    with pytest.raises(UserError, match="trained without features; load it without"):
        BiLstmTagger.load(tmp_path / "words", features=one_hot)
    with pytest.raises(UserError, match=r"holds no bilstm-classifier but another kind of model: .*'bilstm-tagger'"):
        BiLstmClassifier.load(tmp_path / "words")
    with pytest.raises(UserError, match="missing"):
        BiLstmTagger.load(tmp_path)
    with pytest.raises(UserError, match="1 layers of width 5; this model was trained on 3"):
        BiLstmTagger.load(tmp_path / "features", features=one_hot).tag(TEST)
    described = json.loads((tmp_path / "words/bilstm.json").read_text())
    described["words"].append("more")
    (tmp_path / "words/bilstm.json").write_text(json.dumps(described))
    with pytest.raises(DamagedFile, match="damaged"):
        BiLstmTagger.load(tmp_path / "words")


def test_words_begin_at_given_vectors_and_those_not_trained_on_keep_theirs(tmp_path: Path) -> None:
    # `a` and `x` have one vector, `b` and `y` another: what is learnt of a and b holds for words never trained on.
    matrix = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    vectors = WordVectors(["a", "b", "x", "y"], matrix[[0, 1, 0, 1]])
    train = [["a"], ["b"], ["a", "b"]] * 20
    made = BiLstmTagger(SMALL, vectors=vectors)
    made.fit(train, [[int(w == "b") for w in words] for words in train], 2, train[:3], [[0], [1], [0, 1]], epochs=6)
    assert made.tag([["x", "y"], ["Y"], ["b"]]) == [[0, 1], [1], [1]]
    assert np.array_equal(made.model.source.kept, matrix)
    made.save(tmp_path / "v")
    again = BiLstmTagger.load(tmp_path / "v")
    assert again.tag([["x", "y"]]) == [[0, 1]] and np.array_equal(again.model.source.kept, matrix)


def texts(count: int, seed: int) -> tuple[list[str], list[int]]:
    """1 where `x` stands before `y`, 0 where after: the same words either way."""
    chance = np.random.default_rng(seed)
    found, labels = [], []
    for _ in range(count):
        filler = [str(w) for w in chance.choice(["u", "v", "w"], 6)]
        first, second = sorted(chance.choice(6, 2, replace=False))
        label = int(chance.integers(2))
        filler[first], filler[second] = ("x", "y") if label else ("y", "x")
        found.append(" ".join(filler))
        labels.append(label)
    return found, labels


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_a_classifier_learns_the_order_of_words(pool: str, tmp_path: Path) -> None:
    settings_ = BiLstmSettings(cells=12, word_width=8, dropout=0.0, lr=1e-2, epochs=10, pool=pool)
    made = BiLstmClassifier(settings_).fit(*texts(300, 0), 2, *texts(60, 1))
    held_out, labels = texts(80, 2)
    found = made.probabilities(held_out)
    assert found.shape == (80, 2) and np.allclose(found.sum(1), 1, atol=1e-5)
    assert (found.argmax(1) == labels).mean() > 0.95
    assert np.allclose(found[:5], [made.probabilities([text])[0] for text in held_out[:5]], atol=1e-5)
    made.save(tmp_path / "c")
    again = BiLstmClassifier.load(tmp_path / "c")
    assert np.array_equal(again.probabilities(held_out), found) and again.settings.pool == pool


def test_a_text_without_words_has_an_answer_too() -> None:
    tiny = BiLstmSettings(cells=3, word_width=3, epochs=1)
    made = BiLstmClassifier(tiny).fit(["a b", "", " \n"], [0, 1, 1], 2, ["", "c\nd"], [1, 0])
    assert made.probabilities(["", "a\n\nb"]).shape == (2, 2) and made.probabilities([]).shape == (0, 2)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.booleans())
@torch.no_grad()
def test_packed_texts_are_read_as_each_by_itself(lengths: list[int], backwards: bool) -> None:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 4)
    batch = pack([[0] * size for size in lengths])
    x = torch.randn(batch.tokens, 3)
    found = batch.split(read_in_order(lstm, x, ReadingOrder.of(batch, backwards)))
    for mine, given_rows in zip(found, batch.split(x)):
        alone = lstm(given_rows.flip(0))[0].flip(0) if backwards else lstm(given_rows)[0]
        torch.testing.assert_close(mine, alone, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "wrong, told",
    [
        (lambda: BiLstmTagger().fit([["a"]], [], 2), "1 training sentences but 0 lists"),
        (lambda: BiLstmTagger().fit([["a", "b"]], [[0]], 2), "training sentence 1 has 2 words but 1 tags"),
        (lambda: BiLstmTagger().fit([["a"]], [[0]], 2, [["a"]], [[]]), "dev sentence 1 has 1 words but 0 tags"),
        (lambda: BiLstmTagger().fit([["a"]], [[2]], 2), r"Text 1 has a label outside 0 to 1: \[2\]"),
        (lambda: BiLstmTagger().fit([[]], [[]], 2), "nothing to learn from"),
        (lambda: BiLstmClassifier().fit(["a"], [0, 1], 2), "1 training texts but 2 labels"),
        (lambda: BiLstmTagger().tag([["a"]]), "has not been trained yet"),
        (lambda: BiLstmTagger().save("x"), "nothing to save"),
        (
            lambda: BiLstmTagger(features=lambda s: []).fit([["a"]], [[0]], 1),
            "cover 0 sentences, but 1 were",
        ),
        (lambda: BiLstmTagger(features=lambda s: [np.zeros((2, 3, 4))]).fit([["a"]], [[0]], 1), r"shape \(2, 3, 4\)"),
        (lambda: BiLstmSettings(pool="men"), "pool is 'men'. Did you mean 'mean'"),
        (lambda: BiLstmSettings(cells=0), "cells is 0"),
    ],
)
def test_mistakes_are_reported(wrong, told: str) -> None:
    with pytest.raises(UserError, match=told):
        wrong()
