"""ELMo: what each part of it may see, and that it comes back from disk as it was."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.ancestors.elmo.model import CharacterWords, Elmo, cutoffs
from bertkit.ancestors.elmo.train import WordFeed, stretches
from bertkit.ancestors.elmo.words import BORDER, LONGEST_WORD, PADDING, UNKNOWN, Lexicon, Numbered, read_text
from bertkit.ancestors.lstm.network import ScalarMix
from bertkit.errors import DamagedFile, UserError
from bertkit.files.manifest import accept
from bertkit.settings.ancestors import ElmoNumbers

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
SMALL = ElmoNumbers(width=16, cells=12, character_width=5, filters=((1, 4), (2, 6), (4, 7)))
WORDS = ("ab", "ba", "c", "cab", "aa")
LEXICON = Lexicon("abc", WORDS)
words = st.text("abcxy", max_size=9)


def untrained(seed: int = 3) -> Elmo:
    """Weights large enough that everything that is seen shows."""
    made = Elmo(LEXICON, SMALL, seed)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.mul_(3)
    return made


UNTRAINED = untrained()


@pytest.fixture
def elmo() -> Elmo:
    return UNTRAINED


@settings(deadline=None, max_examples=30)
@given(st.lists(words, min_size=1, max_size=6, unique=True), st.integers(0, 20))
@torch.no_grad()
def test_padding_never_changes_a_words_vector(given_words: list[str], more: int) -> None:
    layer = CharacterWords(LEXICON.letters, SMALL)
    text = LEXICON.number([given_words])
    together = text.batch([(1, len(text.words) - 1)])
    padded = torch.nn.functional.pad(together.extra["letters"], (0, more), value=PADDING)
    found = layer(padded)[together.ids]
    for place, word in enumerate(given_words):
        alone = LEXICON.number([[word]]).batch([(1, 2)]).extra["letters"]
        torch.testing.assert_close(found[place], layer(alone)[0], atol=1e-6, rtol=1e-5)


def test_letters_in_another_order_are_another_word(elmo: Elmo) -> None:
    first, second = elmo.layers([["ab"], ["ba"]])
    assert np.abs(first[0] - second[0]).max() > 1e-3


def moved(elmo: Elmo, sentence: list[str], place: int, word: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How far each word's vectors move when one word is another: alone, ahead, back; (words,) each."""
    changed = [*sentence[:place], word, *sentence[place + 1 :]]
    before, after = elmo.layers([sentence, changed])
    far, half = np.abs(before - after), elmo.width // 2
    return far[0].max(-1), far[1:, :, :half].max((0, 2)), far[1:, :, half:].max((0, 2))


@settings(deadline=None, max_examples=25)
@given(st.lists(words, min_size=2, max_size=8), words, st.data())
def test_each_direction_has_read_its_own_side_only(sentence: list[str], word: str, data) -> None:
    place = data.draw(st.integers(0, len(sentence) - 1))
    alone, ahead, back = moved(UNTRAINED, sentence, place, word)
    assert np.delete(alone, place).max() < 1e-4
    assert ahead[:place].max(initial=0) < 1e-4 and back[place + 1 :].max(initial=0) < 1e-4


def test_each_direction_has_read_all_of_its_own_side(elmo: Elmo) -> None:
    alone, ahead, back = moved(elmo, ["ab", "c", "ba"], 1, "bacab")
    assert alone[1] > 0.01 and ahead[1:].min() > 1e-3 and back[:2].min() > 1e-3


@torch.no_grad()
def test_guesses_of_a_word_sum_to_one_because_no_direction_sees_it(elmo: Elmo) -> None:
    # Were a direction to see the word it guesses, or one beyond, the same context would give differing chances.
    left, right = ["ab", "c"], ["cab", "ba"]
    outside = "zz"  # stands for every word that cannot be guessed
    ahead_total = back_total = 0.0
    for word in (*WORDS, outside):
        text = LEXICON.number([[*left, word], [word, *right]])
        spans = text.sentences()
        ahead, _ = elmo.model.log_probabilities(text.batch(spans[:1]))
        _, back = elmo.model.log_probabilities(text.batch(spans[1:]))
        ahead_total += math.exp(ahead[2])  # pairs: border-ab, ab-c, c-word, word-border
        back_total += math.exp(back[1])  # border-word, word-cab, …
    text = LEXICON.number([left, right])
    ahead_total += math.exp(elmo.model.log_probabilities(text.batch(text.sentences()[:1]))[0][2])
    back_total += math.exp(elmo.model.log_probabilities(text.batch(text.sentences()[1:]))[1][0])
    assert ahead_total == pytest.approx(1, abs=1e-4) and back_total == pytest.approx(1, abs=1e-4)


def test_a_sentence_has_the_same_layers_alone_and_among_others(elmo: Elmo) -> None:
    sentences = [["ab"], [], ["c", "cab", "xyz", "ab"], ["", "ba"]] * 3
    for sentence, together in zip(sentences, elmo.layers(sentences)):
        (alone,) = elmo.layers([sentence])
        assert together.shape == (3, len(sentence), 16) and together.dtype == np.float32
        np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
        assert np.array_equal(together[0, :, :8], together[0, :, 8:])


def test_both_directions_are_torchs_own_lstms_over_the_words(elmo: Elmo) -> None:
    (found,) = elmo.layers([["ab", "c", "ba"]])
    text = LEXICON.number([["ab", "c", "ba"]])
    batch = text.batch(text.sentences())
    with torch.no_grad():
        x = elmo.model.words(batch.extra["letters"])[batch.ids]
        for direction, part in ((elmo.model.ahead, slice(8)), (elmo.model.back, slice(8, None))):
            turned = x if direction is elmo.model.ahead else x.flip(0)
            first, _ = direction.layers[0](turned)
            second = direction.layers[1](first)[0] + first
            for layer, wanted in ((1, first), (2, second)):
                wanted = wanted if direction is elmo.model.ahead else wanted.flip(0)
                np.testing.assert_allclose(found[layer][:, part], wanted[1:-1], rtol=1e-4, atol=1e-4)


def test_a_score_is_the_sum_over_lines_and_an_empty_text_is_certain(elmo: Elmo) -> None:
    first, second, both, nothing = elmo.score(["ab c", "ba ab", "ab c\n\nba ab", " \n"])
    assert both == pytest.approx(first + second, abs=1e-4) and first < 0 and nothing == 0


def test_a_long_word_is_reported(elmo: Elmo, notes) -> None:
    long = "ab" * LONGEST_WORD
    one, other = elmo.layers([[long], [long + "c"]])
    assert "2 different words are longer than 50 characters" in notes[0]
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_a_text_in_place_of_a_list_of_words_is_refused(elmo: Elmo) -> None:
    with pytest.raises(UserError, match="Sentence 2 must be a list of words, not the text 'ab c'"):
        elmo.layers([["ab"], "ab c"])


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=6))
def test_the_shares_of_a_mix_are_positive_and_sum_to_one(weights: list[float]) -> None:
    mix = ScalarMix(len(weights))
    mix.weights.data = torch.tensor(weights)
    mix.scale.data = torch.tensor(2.5)
    shares = mix.shares()
    assert (shares >= 0).all() and shares.sum().item() == pytest.approx(1, abs=1e-5)
    x = torch.arange(2 * len(weights) * 3, dtype=torch.float32).view(2, len(weights), 3)
    wanted = 2.5 * sum(share * x[:, n] for n, share in enumerate(shares))
    torch.testing.assert_close(mix(x), wanted, rtol=1e-4, atol=1e-4)


def test_a_mix_begins_as_the_mean() -> None:
    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(ScalarMix(3)(x), x.mean(1))


@given(st.lists(st.integers(2, 40), min_size=1, max_size=20), st.integers(2, 12))
def test_every_word_follows_its_neighbour_in_exactly_one_stretch(sizes: list[int], length: int) -> None:
    ends = np.cumsum([0, *sizes])
    rows = stretches(ends[:-1], ends[1:], length)
    pairs = Counter((n, n + 1) for first, last in rows.tolist() for n in range(first, last - 1))
    wanted = {(n, n + 1) for a, b in itertools.pairwise(ends.tolist()) for n in range(a, b - 1)}
    assert set(pairs) == wanted and set(pairs.values()) == {1} and (rows[:, 1] - rows[:, 0]).max() <= length


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(12, 60), st.integers(0, 5))
def test_an_epoch_has_every_row_once_and_no_empty_batch(sizes: list[int], batch_words: int, seed: int) -> None:
    text = LEXICON.number([["ab"] * size for size in sizes])
    rows = np.array(text.sentences())
    feed = WordFeed(text, rows, batch_words=batch_words, seed=seed)
    for epoch in range(2):
        lengths = []
        for number in range(feed.batches):
            (batch,) = feed.step(epoch * feed.batches + number)
            assert batch.texts
            lengths += batch.lengths
        assert sorted(lengths) == sorted(size + 2 for size in sizes)
    again = WordFeed(text, rows, batch_words=batch_words, seed=seed)
    last = 2 * feed.batches - 1  # asked for by itself
    assert torch.equal(again.step(last)[0].ids, feed.step(last)[0].ids)


def test_words_are_numbered_by_frequency_and_rare_ones_are_unknown(notes) -> None:
    lexicon, text = read_text(["b b b a a q\nb a"], vocabulary=10, units="words", cased=True)
    assert lexicon.words == ("b", "a") and lexicon.characters == "ba"
    assert text.targets[text.words].tolist() == [
        BORDER, 2, 2, 2, 3, 3, UNKNOWN, BORDER, BORDER, 2, 3, BORDER
    ]  # fmt: skip
    assert "8 words in 2 sentences, 3 different; the 2 that can be guessed are 87.5% of the text." in notes


def test_chinese_is_read_by_characters_or_by_words(notes) -> None:
    line = "我们喜欢北京。我们喜欢北京。"
    by_character, _ = read_text([line], vocabulary=50, units="words", cased=True)
    by_word, _ = read_text([line], vocabulary=50, units="jieba", cased=True)
    assert "北" in by_character.words and "北京" in by_word.words
    assert Elmo(by_word, SMALL).layers(by_word.cut(line))[0].shape == (3, len(by_word.cut(line)[0]), 16)


def test_an_uncased_lexicon_reads_capitals_as_small_letters() -> None:
    made = Elmo(replace(LEXICON, cased=False), SMALL)
    upper, lower = made.layers([["AB", "C"], ["ab", "c"]])
    assert np.array_equal(upper, lower)


@pytest.mark.parametrize("guesses", [4, 100, 2000, 2001, 2002, 10_000, 10_002, 50_000])
def test_any_number_of_words_can_be_guessed(guesses: int) -> None:
    found = cutoffs(guesses)
    assert found == sorted(set(found)) and found[0] > 0 and found[-1] < guesses
    torch.nn.AdaptiveLogSoftmaxWithLoss(16, guesses, found, div_value=1.0)


def test_saved_and_opened_it_says_the_same(elmo: Elmo, tmp_path: Path) -> None:
    elmo.save(tmp_path / "e")
    again = Elmo.load(tmp_path / "e")
    sentences = [["ab", "xx"], ["cab"]]
    for one, other in zip(elmo.layers(sentences), again.layers(sentences)):
        assert np.array_equal(one, other)
    assert elmo.score(["ab c"]) == again.score(["ab c"]) and again.lexicon == LEXICON and again.numbers == SMALL


def test_what_cannot_be_opened_is_reported(elmo: Elmo, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no ELMo: .*bertkit\.json is missing"):
        Elmo.load(tmp_path)
    elmo.save(tmp_path / "e")
    described = json.loads((tmp_path / "e/bertkit.json").read_text())
    (tmp_path / "e/bertkit.json").write_text(json.dumps(described | {"ancestor": "other"}))
    accept(tmp_path / "e")
    with pytest.raises(UserError, match=r"holds no ELMo but another kind of model: .* 'other'"):
        Elmo.load(tmp_path / "e")
    described["lexicon"]["words"].append("more")
    (tmp_path / "e/bertkit.json").write_text(json.dumps(described))
    with pytest.raises(DamagedFile, match="damaged"):
        Elmo.load(tmp_path / "e")


@pytest.mark.parametrize("wrong", [{"width": 15}, {"cells": 8, "width": 16}, {"filters": ()}, {"filters": ((1,),)}])
def test_wrong_numbers_are_reported(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        ElmoNumbers(**wrong)


def test_nothing_numbered_is_nothing() -> None:
    assert len(LEXICON.number([])) == 0 and isinstance(LEXICON.number([]), Numbered)
    assert UNTRAINED.layers([]) == []


def test_the_next_and_the_previous_word_have_the_probabilities_of_the_language_model(elmo: Elmo) -> None:
    text = elmo.lexicon.number([["ab", "c", "ba"]])
    with torch.no_grad():
        ahead, back = elmo.model.eval().log_probabilities(text.batch([(0, 5)]))
    after = {guess["word"]: guess["score"] for guess in elmo.suggest("ab c", top=9)}
    assert after["ba"] == pytest.approx(float(ahead[2].exp()), rel=1e-4)
    before = {guess["word"]: guess["score"] for guess in elmo.suggest_before("c ba", top=9)}
    assert before["ab"] == pytest.approx(float(back[1].exp()), rel=1e-4)
    assert list(after.values()) == sorted(after.values(), reverse=True) and set(after) == set(WORDS)
    assert elmo.suggest("", top=2) != elmo.suggest("ab", top=2)


def test_texts_are_embedded_by_any_layers_and_their_mix(elmo: Elmo) -> None:
    (layers,) = elmo.layers([["ab", "c", "ba"]])
    np.testing.assert_allclose(elmo.embed("ab c ba")[0], layers.mean((0, 1)), atol=1e-6)
    np.testing.assert_allclose(elmo.embed("ab c ba", "all", "none")[0], np.concatenate(list(layers), -1), atol=1e-6)
    np.testing.assert_allclose(elmo.embed("ab c ba", "last", "max")[0], layers[-1].max(0), atol=1e-6)
    ends = np.concatenate([layers[0], layers[-1]], -1).mean(0)
    np.testing.assert_allclose(elmo.embed("ab c ba", [0, -1], "mean")[0], ends, atol=1e-6)
    (answer,) = elmo.embed_tokens([" ab\n\nc ba"])
    assert answer["tokens"] == ["ab", "c", "ba"] and answer["offsets"] == [[1, 3], [5, 6], [7, 9]]
    assert not elmo.embed("").any()
    for wrong in ("sum-all", "7"):
        with pytest.raises(UserError, match="layers is"):
            elmo.embed("ab", wrong)
