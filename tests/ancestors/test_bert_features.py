"""BERT's six features of words: the vectors of first pieces, whatever the windows, and a tagger on each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertkit.ancestors.bert_features import WordFeatures, joined, looked_up, six_features, word_layers
from bertkit.data.examples import TaggedSentence
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.model.layer_choice import CHOICES
from tests.support import folders

SENTENCES = [
    ["the", "cats", "sat", "unknown", "."],  # `unknown` has several pieces
    ["paris"],
    ["\u200b", "dog", "ran"],  # a word of nothing but an invisible character has no piece
    [],
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("six")
    theirs = folders.write(folder, "bert", "BertModel")
    return Predictor.load(folder, "fp32", "cpu"), theirs


@torch.no_grad()
def states(theirs, ids: list[int]) -> np.ndarray:
    """transformers' (layers, tokens, width), each vector with mean zero and variance one."""
    found = torch.cat(theirs(torch.tensor([ids]), output_hidden_states=True).hidden_states)
    return torch.nn.functional.layer_norm(found, found.shape[-1:]).numpy()


def test_a_word_has_the_vectors_of_its_first_piece_in_every_layer(both) -> None:
    ours, theirs = both
    for words, found in zip(SENTENCES, word_layers(ours, SENTENCES)):
        encoding = ours.tokenizer.encode_words(words)
        wanted = states(theirs, encoding.ids)
        assert found.shape == (5, len(words), 32) and found.dtype == np.float16
        for number in range(len(words)):
            if number in encoding.words:
                np.testing.assert_allclose(found[:, number], wanted[:, encoding.words.index(number)], atol=5e-3)
            else:
                assert words[number] == "\u200b" and not found[:, number].any()


def test_a_long_sentence_is_read_in_windows_and_loses_no_word(both) -> None:
    ours, theirs = both
    words = [("the", "cat", "unknown", "ran")[n % 4] for n in range(120)]
    (found,) = word_layers(ours, [words])
    long, plan = ours.tokenizer.encode_words(words), ours.windows("window")
    assert len(long) > 3 * plan.limit and found.shape == (5, 120, 32)
    firsts = {word: long.words.index(word) for word in range(120)}
    at, seen = 0, set()  # at: how many pieces of words were owned by windows before
    for window in ours.tokenizer.windows_of(long, limit=plan.limit, overlap=min(plan.overlap, plan.limit // 4)):
        wanted = states(theirs, window.encoding.ids)
        for place in range(*window.core):
            if window.encoding.special[place]:
                continue
            word = window.encoding.words[place]
            if firsts[word] == at + 1:  # the long text begins with [CLS]
                seen.add(word)
                np.testing.assert_allclose(found[:, word], wanted[:, place], atol=5e-3)
            at += 1
    assert seen == set(range(120))


@pytest.mark.parametrize("choice", CHOICES)
def test_each_choice_has_its_layers(choice: str, both) -> None:
    ours, _ = both
    every = word_layers(ours, SENTENCES[:2])
    found = joined(every, choice, 4)
    shapes = {"sum-last-4": (4, 32), "sum-all": (4, 32), "concat-last-4": (1, 128)}
    assert (found[0].shape[0], found[0].shape[2]) == shapes.get(choice, (1, 32))
    layer = {"embeddings": 0, "second-to-last": 3}.get(choice, 4)
    assert np.array_equal(found[0][-1][:, -32:], every[0][layer])
    for one, other in zip(WordFeatures(ours, choice)(SENTENCES[:2]), found):
        np.testing.assert_allclose(one, other, atol=5e-3)


def test_features_kept_once_are_found_again() -> None:
    arrays = [np.full((1, 2, 3), n) for n in range(2)]
    find = looked_up([["a", "b"], ["b", "a"]], arrays)
    assert find([["b", "a"], ["a", "b"]]) == [arrays[1], arrays[0]]


def test_the_table_has_a_row_a_choice_with_its_mean_and_spread_over_seeds(both, notes) -> None:
    ours, _ = both
    chance = np.random.default_rng(0)
    animals, places = ["cat", "dog", "cats"], ["paris", "london", "france"]
    tagged = []
    for n in range(90):
        words = tuple(str(w) for w in chance.choice([*animals, *places, "the", "old"], 5))
        names = {**dict.fromkeys(animals, "B-ANIMAL"), **dict.fromkeys(places, "B-PLACE")}
        tagged.append(TaggedSentence(words, tuple(names.get(w, "O") for w in words), n))
    rows = six_features(ours, tagged[:70], tagged[70:], seeds=2, epochs=30, width=32, choices=("embeddings", "sum-all"))
    assert [row["choice"] for row in rows] == ["embeddings", "sum-all"]
    for row in rows:
        assert row["metric"] == "f1" and len(row["scores"]) == 2 and row["mean"] > 0.8
        assert row["mean"] == pytest.approx(np.mean(row["scores"])) and row["spread"] == pytest.approx(
            np.std(row["scores"])
        )
    assert any("Features of 450 words" in note for note in notes)


def test_sentences_without_tags_are_refused(both) -> None:
    with pytest.raises(UserError, match="line 7: this sentence has no tags"):
        six_features(both[0], [TaggedSentence(("a",), None, 7)], [])
