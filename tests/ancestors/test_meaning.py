"""One word in several texts: the vectors are transformers' own, and static models cannot tell senses apart."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from bertkit import samples
from bertkit.ancestors.elmo.model import Elmo
from bertkit.ancestors.elmo.words import Lexicon
from bertkit.ancestors.meaning import cosines, find, meaning, sense_auc, word_vectors
from bertkit.ancestors.vectors.vectors import WordVectors
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.settings.ancestors import ElmoNumbers
from tests.support import folders

TEXTS = ["the money in the bank .", "the river bank is green", "The BANK !"]


def test_a_word_is_found_whole_in_english_and_anywhere_in_chinese():
    assert find("bank", "Banking at the Bank.") == (15, 19)
    assert find("长", "桌子的长度") == (3, 4)
    with pytest.raises(UserError, match="Text 2 does not contain the word 'bank'"):
        find("bank", "banks", 2)
    with pytest.raises(UserError, match="empty"):
        find(" ", "a b")


@pytest.mark.parametrize("family, name, kind", [("bert", "BertModel", "bert"), ("gpt2", "GPT2Model", "gpt")])
@torch.no_grad()
def test_vectors_by_layer_are_transformers_hidden_states_of_the_words_pieces(family, name, kind, tmp_path: Path):
    theirs = folders.write(tmp_path, family, name)
    ours = Predictor.load(tmp_path, "fp32")
    said, units, vectors = word_vectors(ours, TEXTS, [find("bank", text) for text in TEXTS])
    assert said == kind
    for number, text in enumerate(TEXTS):
        encoding = ours.tokenizer.encode(text)
        start, end = find("bank", text)
        at = [n for n, (a, b) in enumerate(encoding.offsets) if a < end and b > start and not encoding.special[n]]
        assert units[number] == [ours.tokenizer.id_to_token(encoding.ids[n]) for n in at]
        hidden = theirs(torch.tensor([encoding.ids]), output_hidden_states=True).hidden_states
        expected = np.stack([layer[0, at].mean(0).numpy() for layer in hidden])
        np.testing.assert_allclose(vectors[:, number], expected, atol=1e-5)


def test_a_static_model_gives_one_vector_and_elmo_one_per_text():
    static = WordVectors(["bank", "river"], np.eye(2, dtype=np.float32))
    lexicon = Lexicon("abcdefghijklmnopqrstuvwxyz", ("bank", "the"), cased=False)
    elmo = Elmo(lexicon, ElmoNumbers(width=16, cells=16, depth=2, filters=((1, 4), (2, 4)), character_width=4))
    result = meaning("bank", TEXTS, {"w2v": static, "elmo": elmo})
    first, second = result["models"]
    assert (first["kind"], second["kind"]) == ("static", "elmo")
    assert np.allclose(first["layers"][0]["cosines"], 1) and len(first["layers"]) == 1
    assert len(second["layers"]) == 3
    assert np.allclose(second["layers"][0]["cosines"], 1)  # characters alone
    assert not np.allclose(second["layers"][2]["cosines"], 1, atol=1e-4)
    assert second["units"] == [["bank"], ["bank"], ["BANK"]]
    assert result["spans"][1] == [10, 14]
    (unknown,) = meaning("green", ["the green", "green"], {"w2v": static})["models"]
    assert unknown["layers"] == []


def test_a_chinese_character_inside_a_word_takes_the_word_that_elmo_reads():
    pytest.importorskip("rjieba")
    elmo = Elmo(Lexicon("长度孩子", ("长度", "孩子"), units="jieba"), ElmoNumbers(width=16, cells=16, depth=1))
    (row,) = meaning("长", ["桌子的长度是两米", "这条河很长"], {"elmo": elmo})["models"]
    assert row["units"] == [["长度"], ["很长"]]


def test_the_auc_of_senses_is_sklearns():
    chance = np.random.default_rng(0)
    vectors, senses = chance.normal(size=(7, 5)).astype(np.float32), ["a", "b", "a", "b", "b", "a", "c"]
    first, second = np.triu_indices(7, 1)
    same = [senses[a] == senses[b] for a, b in zip(first, second)]
    assert sense_auc(vectors, senses) == pytest.approx(roc_auc_score(same, cosines(vectors)[first, second]))
    assert sense_auc(np.ones((4, 3), np.float32), ["a", "a", "b", "b"]) == 0.5
    with pytest.raises(UserError, match="Two uses"):
        sense_auc(vectors, list("abcdefg"))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_embedded_model_tells_senses_apart_and_its_embeddings_do_not(lang: str):
    with samples.path(lang, "senses.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    model = Predictor.load(lang, "fp32")
    aucs = []
    for word in dict.fromkeys(row["word"] for row in rows):
        uses = [row for row in rows if row["word"] == word]
        texts = [row["text"] for row in uses]
        _, _, vectors = word_vectors(model, texts, [find(word, text) for text in texts])
        aucs.append([sense_auc(layer, [row["sense"] for row in uses]) for layer in vectors])
    by_layer = np.mean(aucs, axis=0)
    assert len(aucs) == 20
    assert by_layer[0] == 0.5
    assert by_layer[-1] > 0.65


def test_senses_give_the_means_and_the_auc_of_every_layer() -> None:
    words = sorted({word for text in TEXTS for word in text.lower().strip(".").split()})
    static = WordVectors(words, np.random.default_rng(0).normal(size=(len(words), 8)).astype(np.float32))
    senses = ["money" if number % 2 else "river" for number, _ in enumerate(TEXTS)]
    for row in meaning("bank", TEXTS, {"w2v": static}, senses)["models"]:
        for layer in row["layers"]:
            pairs = [(a, b) for a in range(len(TEXTS)) for b in range(a)]
            same = np.mean([layer["cosines"][a][b] for a, b in pairs if senses[a] == senses[b]])
            assert layer["same"] == pytest.approx(same, abs=1e-5) and 0 <= layer["auc"] <= 1
    with pytest.raises(UserError, match="one sense per text"):
        meaning("bank", TEXTS, {"w2v": static}, senses[:1])
