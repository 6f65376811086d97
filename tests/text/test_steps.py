"""The steps that are shown lead to the pieces that the tokenizer makes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

import bertkit
from bertkit.errors import UserError
from bertkit.text.steps import steps
from bertkit.text.tokenizer import Tokenizer

EN = bertkit.load("en").tokenizer


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    return EN


def bpe() -> Tokenizer:
    vocabulary = ["<unk>", "Ġ", *"lowerstnid", "lo", "low", "er", "lower", "st", "est", "Ġlow"]
    merges = [("l", "o"), ("lo", "w"), ("e", "r"), ("low", "er"), ("s", "t"), ("e", "st"), ("Ġ", "low")]
    backend = Backend(models.BPE({piece: n for n, piece in enumerate(vocabulary)}, merges, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return Tokenizer(backend, {"unk_token": "<unk>"})


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -3.0), ("▁the", -2.0), ("t", -5.0), ("h", -5.0), ("e", -5.0), ("re", -4.0),
              ("▁there", -6.5), ("s", -4.5), ("he", -4.0)]  # fmt: skip
    backend = Backend(models.Unigram(pieces, 0, False))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return Tokenizer(backend, {"unk_token": "<unk>"})


def pieces_of(shown: dict) -> list[str]:
    return [shown["tokens"][n]["token"] for word in shown["words"] for n in word["tokens"]]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from("abcdefgh éÜ.,'-0189中文😀[MASK]"), min_size=1, max_size=40).filter(str.strip))
def test_the_steps_of_wordpiece_lead_to_the_pieces_of_any_text(text: str) -> None:
    shown = steps(EN, text)
    ordinary = [token for token in shown["tokens"] if not token["special"]]
    assert pieces_of(shown) == [token["token"] for token in ordinary]
    for word in shown["words"]:
        if word["steps"]:
            taken = [step["piece"] for step in word["steps"]]
            made = [shown["tokens"][n]["token"] for n in word["tokens"]]
            assert made == (["[UNK]"] if None in taken else taken)


def test_wordpiece_tries_the_longest_piece_first(wordpiece: Tokenizer) -> None:
    (word,) = steps(wordpiece, "unaffable")["words"]
    first = word["steps"][0]
    assert first["tried"][:2] == ["unaffable", "unaffabl"] and first["tried"][-1] == first["piece"] == "un"
    assert word["steps"][1]["rest"] == "affable"


def test_an_unknown_word_and_an_added_token_are_told_apart(wordpiece: Tokenizer) -> None:
    shown = steps(wordpiece, "a 😀 [MASK]")
    assert [token["unknown"] for token in shown["tokens"]] == [False, False, True, False, False]
    assert shown["words"][1]["steps"][-1]["piece"] is None and shown["words"][2]["steps"] == []


@pytest.mark.parametrize("text", ["lower", "lowest lower", "slowed", "low x"])
def test_the_merges_of_bpe_come_in_the_order_they_were_learned(text: str) -> None:
    shown = steps(bpe(), text)
    assert pieces_of(shown) == [token["token"] for token in shown["tokens"]]
    assert all(word["steps"] for word in shown["words"])
    first = shown["words"][0]["steps"]
    assert first[0]["parts"] == list(text.split()[0])
    assert all(len(a["parts"]) == len(b["parts"]) + 1 for a, b in pairwise(first))


@pytest.mark.parametrize("text", ["the", "there", "theres", "heres the", "tzt"])
def test_the_best_path_of_unigram_is_the_tokenizer_s(text: str) -> None:
    shown = steps(unigram(), text)
    assert pieces_of(shown) == [token["token"] for token in shown["tokens"]]
    assert all(word["steps"] for word in shown["words"])


def test_a_text_without_steps_is_refused(wordpiece: Tokenizer) -> None:
    with pytest.raises(UserError, match="empty"):
        steps(wordpiece, " ")
    with pytest.raises(UserError, match="at most 400"):
        steps(wordpiece, "a" * 401)
