"""How likely a text is: the same numbers as a plain loop over transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from tests.support import folders

TEXTS = ["the cat sat on the mat .", "unknowns in the river", "paris", "the dog ran fast , the cat sat", ""]
MASKED = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM", "modernbert": "ModernBertForMaskedLM"}


@torch.no_grad()
def one_at_a_time(theirs, ids: list[int], special: list[bool], words: list[int] | None, mask: int) -> float:
    total = 0.0
    for place, piece in enumerate(ids):
        if special[place]:
            continue
        hidden = list(ids)
        for later in range(place, len(ids)):
            same = words is not None and words[later] == words[place] and not special[later]
            if later == place or same:
                hidden[later] = mask
        total += theirs(torch.tensor([hidden])).logits[0, place].log_softmax(-1)[piece].item()
    return total


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("family", MASKED)
def test_a_score_is_the_sum_of_guessing_each_piece_from_all_others(family: str, words: bool, tmp_path: Path) -> None:
    theirs = folders.write(tmp_path, family, MASKED[family])
    ours = Predictor.load(tmp_path, "fp32")
    expected = []
    for text in TEXTS:
        e = ours.tokenizer.encode(text)
        expected.append(one_at_a_time(theirs, e.ids, e.special, e.words if words else None, ours.tokenizer.mask_id))
    assert ours.score(TEXTS, words=words) == pytest.approx(expected, abs=2e-4)
    assert ours.score(TEXTS[0], words=words) == pytest.approx(expected[:1], abs=2e-4)


def test_hiding_the_rest_of_a_word_matters_where_words_have_pieces(tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertForMaskedLM")
    ours = Predictor.load(tmp_path, "fp32")
    assert len(ours.tokenizer.encode("unknowns")) == 5
    assert ours.score("unknowns") != pytest.approx(ours.score("unknowns", words=True), abs=1e-4)
    assert ours.score("the cat") == pytest.approx(ours.score("the cat", words=True), abs=1e-5)


@torch.no_grad()
def test_a_causal_score_is_transformers_loss_times_its_tokens(tmp_path: Path) -> None:
    theirs = folders.write(tmp_path, "gpt2", "GPT2LMHeadModel")
    ours = Predictor.load(tmp_path, "fp32")
    texts = ["the cat in", "a", "the cat in the cat", "北京"]
    expected = []
    for text in texts:
        ids = torch.tensor([ours.tokenizer.encode(text).ids])
        loss = theirs(ids, labels=ids).loss if ids.shape[1] > 1 else torch.zeros(())
        expected.append(-loss.item() * (ids.shape[1] - 1))
    assert ours.score(texts) == pytest.approx(expected, abs=1e-4)


def test_texts_without_a_piece_to_guess_score_zero(tmp_path: Path) -> None:
    folders.write(tmp_path / "a", "gpt2", "GPT2LMHeadModel")
    folders.write(tmp_path / "b", "bert", "BertForMaskedLM")
    for folder in ("a", "b"):
        ours = Predictor.load(tmp_path / folder, "fp32")
        assert ours.score([]) == []
        assert ours.score([""]) == [0.0]
        assert ours.score(["", "the cat"])[0] == 0.0


def test_a_text_longer_than_the_model_sees_cannot_be_scored(tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertForMaskedLM")
    with pytest.raises(UserError, match="Text 2 has 52 tokens; this model scores at most 40"):
        Predictor.load(tmp_path, "fp32").score(["the", "the " * 50])


# ---- several masks at once


@torch.no_grad()
def test_beam_search_finds_the_best_pair_of_pieces_of_all_pairs(tmp_path: Path) -> None:
    theirs = folders.write(tmp_path, "bert", "BertForMaskedLM")
    ours = Predictor.load(tmp_path, "fp32")
    text = "the [MASK] sat on [MASK] ."
    ids = ours.tokenizer.encode(text).ids
    first, second = (place for place, piece in enumerate(ids) if piece == ours.tokenizer.mask_id)
    ordinary = sorted(set(range(ours.tokenizer.size)) - ours.tokenizer.special_ids)
    alone = theirs(torch.tensor([ids])).logits[0].softmax(-1)
    rows = torch.tensor([[*ids[:first], piece, *ids[first + 1 :]] for piece in ordinary])
    after = theirs(rows).logits[:, second].softmax(-1)[:, ordinary]
    chained = alone[first, ordinary][:, None] * after
    free = alone[first, ordinary][:, None] * alone[second, ordinary]
    for how, table in (("beam", chained), ("independent", free)):
        best = table.flatten().topk(5)
        wanted = [[ordinary[n // len(ordinary)], ordinary[n % len(ordinary)]] for n in best.indices.tolist()]
        fillings = ours.fill(text, top=len(ordinary), joint=how)[:5]
        assert [filling["ids"] for filling in fillings] == wanted
        assert [filling["score"] for filling in fillings] == pytest.approx(best.values.tolist(), rel=1e-4)
    greedy = ours.fill(text, top=len(ordinary), joint="left-to-right")
    assert len(greedy) == len(ordinary)  # one for each piece of the first mask, the second chosen greedily
    expected = {ordinary[n]: ordinary[int(row.argmax())] for n, row in enumerate(after)}
    assert {filling["ids"][0]: filling["ids"][1] for filling in greedy} == expected


def test_a_mask_that_is_not_filled_yet_stays_in_the_shown_text(tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertForMaskedLM")
    ours = Predictor.load(tmp_path, "fp32")
    first, second = ours.fill("the [MASK] sat on [MASK] .", top=1)
    assert first[0]["text"] == f"the {first[0]['token']} sat on [MASK]."
    assert second[0]["text"] == f"the [MASK] sat on {second[0]['token']}."
    assert "[MASK]" not in ours.fill("the [MASK] sat on [MASK] .", top=1, joint="beam")[0]["text"]
    with pytest.raises(UserError, match="joint is 'bean'"):
        ours.fill("the [MASK]", joint="bean")


# ---- does one text follow another?


@pytest.mark.parametrize(
    "family, name, key",
    [("bert", "BertForNextSentencePrediction", "next"), ("bert", "BertForPreTraining", "next"),
     ("albert", "AlbertForPreTraining", "order")],
)  # fmt: skip
@torch.no_grad()
def test_following_is_what_transformers_head_says(family: str, name: str, key: str, tmp_path: Path) -> None:
    theirs = folders.write(tmp_path, family, name)
    ours = Predictor.load(tmp_path, "fp32")
    a, b = ["the cat sat on the mat .", "paris"], ["the dog ran fast", "the river , the bank ."]
    expected = []
    for pair in zip(a, b):
        e = ours.tokenizer.encode(*pair)
        out = theirs(torch.tensor([e.ids]), token_type_ids=torch.tensor([e.segments]))
        logits = next(out[field] for field in ("seq_relationship_logits", "sop_logits", "logits") if field in out)
        expected.append(logits.softmax(-1)[0, 0].item())
    assert [answer[key] for answer in ours.follows(a, b)] == pytest.approx(expected, abs=1e-5)
    assert ours.follows(a[0], b[0]) == {key: pytest.approx(expected[0], abs=1e-5)}


def test_a_model_without_a_pair_head_says_which_models_have_one(tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertForMaskedLM")
    with pytest.raises(UserError, match=r"no next-sentence head .it has: mlm.*google-bert/bert-base-uncased"):
        Predictor.load(tmp_path, "fp32").follows("the cat", "the dog")


# ---- choosing among answers


@pytest.mark.parametrize("family, name", [("gpt2", "GPT2LMHeadModel"), ("bert", "BertForMaskedLM")])
@torch.no_grad()
def test_the_choice_is_the_continuation_with_the_likeliest_pieces(family: str, name: str, tmp_path: Path) -> None:
    theirs = folders.write(tmp_path, family, name)
    ours = Predictor.load(tmp_path, "fp32")
    text, choices = "the cat", ["in the cat", "sat on the mat ."]
    expected = []
    for choice in choices:
        encoding = ours.tokenizer.encode(f"{text} {choice}")
        places = [n for n, (_, end) in enumerate(encoding.offsets) if end > len(text)]
        logs = []
        for place in places:
            ids = list(encoding.ids)
            if family == "bert":
                ids[place] = ours.tokenizer.mask_id
            logits = theirs(torch.tensor([ids])).logits[0, place - (family == "gpt2")]
            logs.append(logits.log_softmax(-1)[encoding.ids[place]].item())
        expected.append(sum(logs) / len(logs))
    answer = ours.choose(text, choices)
    assert answer["likelihoods"] == pytest.approx(expected, abs=1e-4)
    assert answer["choice"] == max((0, 1), key=expected.__getitem__)
    assert sum(answer["scores"]) == pytest.approx(1)
