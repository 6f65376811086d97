"""One sentence as BERT's ancestors read it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bertkit.ancestors.language_model import gpt
from bertkit.ancestors.lineage import ancestor_live, ancestor_shown, hmm_tagger, lineage, ngram_model
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor

TEXT = "The old man went to London."


@pytest.mark.parametrize(("language", "text"), [("en", TEXT), ("zh", "老人去了北京。")])
def test_every_row_is_what_its_model_says(language: str, text: str) -> None:
    read = lineage(text, language)
    assert [row["word"] for row in read["ngram"]] == [*read["words"], "</s>"]
    model = ngram_model(language)
    total = sum(np.log(row["probability"]) for row in read["ngram"])
    ids = [model.ids.get(word, 0) for word in ["<s>", "<s>", *read["words"], "</s>"]]
    log10 = model.log10_of(np.asarray(ids))[2:]
    assert total == pytest.approx(float(log10.sum()) * np.log(10), rel=1e-4)
    words = [row["word"] for row in read["hmm"]]
    assert [row["tag"] for row in read["hmm"]] == hmm_tagger(language).tag([words])[0]
    assert all(0.9 < sum(row["shares"].values()) <= 1.0001 for row in read["hmm"])


def test_frequent_words_have_short_codes_and_rare_ones_are_drawn_more_than_they_occur() -> None:
    read = lineage(TEXT, "en", "london") if lineage(TEXT)["word"] is None else lineage(TEXT)
    rare = read["word"]
    assert len(rare["code"]) > len(read["most"][0]["code"]) and len(rare["code"]) == len(rare["nodes"])
    assert rare["noise"] > rare["share"] and read["most"][0]["noise"] < read["most"][0]["share"]
    codes = [one["code"] for one in read["most"]]
    assert not any(a != b and b.startswith(a) for a in codes for b in codes)


def test_an_empty_or_endless_text_is_refused() -> None:
    for text, said in ((" ", "empty"), ("word " * 80, "at most 60")):
        with pytest.raises(UserError, match=said):
            lineage(text)


PASSAGE = "\n".join(f"the {who} drinks {what} and sleeps" for who, what in (("cat", "milk"), ("dog", "water")) * 6)


def live(kind: str, steps: int = 2) -> tuple[dict[str, Any], Any]:
    """What a model learnt in a few steps shows last, and the model."""
    events = list(ancestor_live(kind, "the cat drinks milk", passage=PASSAGE, steps=steps, every=1))
    assert "start" in events[0] and events[-1]["end"] == "steps"
    return events[-2]["shown"], events[-1]["model"]


def test_ancestors_count_the_words_of_the_user_s_own_text() -> None:
    read = lineage("the cat drinks milk", passage=PASSAGE)
    assert all(row["seen"] for row in read["ngram"]) and read["vocabulary"] == 8
    assert read["word"]["count"] == 6 and read["most"][0]["word"] in ("the", "drinks", "and", "sleeps")


def test_elmo_guesses_every_word_from_both_sides_without_seeing_it() -> None:
    shown, model = live("elmo")
    ahead, back = model._each([["the", "cat", "drinks", "milk"]], lambda batch: [model.model.log_probabilities(batch)])[
        0
    ]
    forward = [row["forward"]["probability"] for row in shown["words"]]
    assert np.allclose(np.log(forward), ahead[:4].detach().numpy(), atol=1e-5)
    assert np.allclose(
        np.log([row["backward"]["probability"] for row in shown["words"]]), back[1:].detach().numpy(), atol=1e-5
    )
    assert shown["words"] == ancestor_shown(model, "the cat drinks milk")["words"]


def test_gpt_continues_with_its_likeliest_piece() -> None:
    shown, folder = live("gpt")
    predictor = Predictor(folder, "fp32")
    again = ancestor_shown(predictor, "the cat drinks milk")
    assert again["text"] == shown["text"] and len(shown["steps"]) == 10
    first = gpt.suggest(predictor, "the cat drinks milk", top=1)[0]
    assert first["score"] == pytest.approx(shown["steps"][0]["guesses"][0]["score"], abs=1e-5)


def test_the_transformer_s_cross_attention_is_what_its_decoder_mixes() -> None:
    shown, model = live("transformer")
    assert shown["source"][:4] == ["the", "cat", "drinks", "milk"] and shown["target"][0] == "[CLS]"
    assert np.allclose(shown["maps"].sum(-1), 1, atol=1e-5)
    cross = model.model.decoder.layers[0].cross
    seen: list[Any] = []
    hook = cross.register_forward_hook(lambda layer, given, mixed: seen.append((given, mixed)))
    again = model.cross_attention("the cat drinks milk")
    hook.remove()
    (_, memory, pairs, _), mixed = seen[-1]
    values = cross.keys(memory, pairs.extra["seen"])[1][0].detach().numpy()
    joined = (again["maps"][0] @ values).transpose(1, 0, 2).reshape(len(again["maps"][0][0]), -1)
    expected = cross.out(torch.from_numpy(joined)).detach().numpy()
    assert np.allclose(mixed.detach().numpy()[: len(expected)], expected, atol=1e-5)


def test_the_transformer_learns_the_user_s_pairs_and_an_unknown_kind_is_named() -> None:
    pairs = "\n".join(f"{word}\t{word} {word}" for word in ("cat", "dog", "cow", "hen")) + "\n"
    (*_, last) = ancestor_live("transformer", "cat", passage=pairs, steps=1)
    assert last["model"].tokenizer.size < 60
    with pytest.raises(UserError, match="Choose from: elmo"):
        next(ancestor_live("lstm", "cat"))
