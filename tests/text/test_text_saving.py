"""What we write, transformers opens with the same ids; what we add is one piece."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import UserError
from bertkit.text.tokenizer import Tokenizer
from tests.support.written_lines import ENGLISH, written_lines

CLASSES = {"wordpiece": "BertTokenizer", "bpe": "RobertaTokenizer", "unigram": "AlbertTokenizer"}


def theirs(folder, model_type="bert"):
    from transformers import AutoTokenizer

    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "albert"])
def test_transformers_opens_the_folder_with_the_same_ids_whatever_the_model(tokenizer, tmp_path, model_type):
    tokenizer.save(tmp_path, 77)
    judge = theirs(tmp_path, model_type)
    lines = [*written_lines(500, seed=31), "the <mask> x", "a <mask>b <unk> [MASK]", " lead", "``a'' 1999, \x7f"]
    assert type(judge).__name__ == CLASSES[tokenizer.kind]
    assert judge(lines)["input_ids"] == tokenizer.ids_batch(lines)
    both, ours = judge(lines, lines[::-1]), tokenizer.encode_batch(lines, lines[::-1])
    assert both["input_ids"] == [one.ids for one in ours]
    if "token_type_ids" in both:
        assert both["token_type_ids"] == [one.segments for one in ours]
    else:
        assert not any(any(one.segments) for one in ours)
    assert judge.model_max_length == 77
    for role in ("unk", "cls", "sep", "pad", "mask"):
        assert getattr(judge, f"{role}_token_id") == getattr(tokenizer, f"{role}_id")


def test_our_own_folder_opens_as_it_was(tokenizer, tmp_path):
    tokenizer.save(tmp_path, 77)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint() == tokenizer.fingerprint()
    assert (again.roles, again.special_ids, again.max_tokens) == (tokenizer.roles, tokenizer.special_ids, 77)


def test_the_classic_files_alone_give_the_same_ids(learnt, tmp_path):
    for kind in ("wordpiece", "cased", "bpe"):
        folder = tmp_path / kind
        learnt[kind].save(folder, 77)
        (folder / "tokenizer.json").unlink()
        lines = written_lines(500, seed=32)
        assert Tokenizer.load(folder).ids_batch(lines) == learnt[kind].ids_batch(lines)


def test_rules_no_class_of_transformers_knows_are_saved_whole(learnt, tmp_path):
    from tokenizers import normalizers

    backend = type(learnt["wordpiece"].backend).from_str(learnt["wordpiece"].backend.to_str())
    backend.normalizer = normalizers.Sequence([normalizers.Replace("river", "mill"), backend.normalizer])
    odd = Tokenizer(backend)
    odd.save(tmp_path, 77)
    judge = theirs(tmp_path)
    assert judge("the river")["input_ids"] == odd.encode("the river").ids == odd.encode("the mill").ids
    assert judge("a", "b").keys() >= {"input_ids", "token_type_ids"}


def test_saving_needs_a_real_length(tokenizer, tmp_path):
    with pytest.raises(UserError, match="actual limit"):
        tokenizer.save(tmp_path, 0)


def test_fingerprints_tell_tokenizers_apart(learnt):
    assert len({one.fingerprint() for one in learnt.values()}) == len(learnt)


NEW = ["Immunoglobulin", "thrombocytopenia", "qubit", "Zyxwv", "qubits"]


def test_new_tokens_are_one_piece_each_and_old_ids_stay(tokenizer, tmp_path):
    grown = tokenizer.extended(NEW)
    for token in NEW:
        assert len(grown.pieces_batch([f"the {token}"])[0]) == 1 + len(grown.pieces_batch(["the"])[0])
    for number in range(tokenizer.size):
        assert grown.id_to_token(number) == tokenizer.id_to_token(number)
    if tokenizer.kind != "bpe":
        assert grown.size == tokenizer.size + len(NEW)
    assert tokenizer.extended(NEW).fingerprint() == grown.fingerprint()
    lines = [" ".join(ENGLISH[i : i + 9]) for i in range(len(ENGLISH))]
    assert grown.ids_batch(lines) == tokenizer.ids_batch(lines)
    grown.save(tmp_path, 77)
    assert theirs(tmp_path)(f"a {' '.join(NEW)}")["input_ids"] == grown.encode(f"a {' '.join(NEW)}").ids


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=12), min_size=1, max_size=5))
def test_any_plain_words_can_be_added(learnt, words):
    for kind in ("wordpiece", "bpe", "unigram"):
        grown = learnt[kind].extended(words)
        assert all(len(ids) == 1 for ids in grown.pieces_batch([" " + word for word in words]))


@pytest.mark.parametrize("order", [1, -1])
def test_a_new_word_that_holds_another_new_word_stays_whole(learnt, order):
    nested = ["qubit", "qubits", "qubitsqubits", "Zyxwv", "Zyxwvqubit"][::order]
    for kind in ("wordpiece", "bpe", "unigram"):
        grown = learnt[kind].extended(nested)
        assert all(len(ids) == 1 for ids in grown.pieces_batch([" " + word for word in nested])), kind
    scores = dict(grown.shape["model"]["vocab"])
    for word, inner in (("▁qubits", "▁qubit"), ("▁qubitsqubits", "▁qubits")):
        rest = grown.backend.model.tokenize(word.removeprefix(inner))
        assert scores[word] > scores[inner] + sum(scores[piece.value] for piece in rest) + 0.5  # no tie


def test_known_tokens_are_skipped_and_reported(learnt, notes):
    assert learnt["wordpiece"].extended(["the", "The", "qubit", "qubit"]).size == learnt["wordpiece"].size + 1
    assert "3 of 4" in notes[0]


@pytest.mark.parametrize("bad", ["two words", "semi;colon", "", "  "])
def test_a_new_token_that_is_no_single_word_is_refused(learnt, bad):
    with pytest.raises(UserError, match="not one word"):
        learnt["wordpiece"].extended(["fine", bad])
