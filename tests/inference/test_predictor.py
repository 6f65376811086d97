"""A loaded model answers: vectors, guesses, and what is reported on the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bertkit
from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.text.words import closed_up
from tests.support import folders

WORDS = ["the", "cat", "dog", "sat", "on", "mat", "ran", "fast", "red", "house", "tree", "river", "bank", ".", ",", "!"]
NAMES = {
    "bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM", "albert": "AlbertForMaskedLM",
    "electra": "ElectraForMaskedLM", "distilbert": "DistilBertForMaskedLM", "modernbert": "ModernBertForMaskedLM",
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, tuple[Predictor, torch.nn.Module]] = {}

    def get(family: str) -> tuple[Predictor, torch.nn.Module]:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            theirs = folders.write(folder, family, NAMES[family])
            made[family] = Predictor.load(folder, "fp32"), theirs
        return made[family]

    return get


def text_of(words: int, seed: int = 0) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


POOLS = {
    "mean": lambda x: x.mean(0), "cls": lambda x: x[0], "max": lambda x: x.max(0), "none": lambda x: x,
}  # fmt: skip


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("pool", POOLS)
@torch.no_grad()
def test_pooled_vectors_agree_with_transformers_and_numpy(family: str, pool: str, models) -> None:
    ours, theirs = models(family)
    texts = ["the cat", "", "the dog sat on the mat", "paris !", "the dog ran on the mat", "a", "the red dog sat"]
    vectors = ours.embed(texts, pool=pool)
    base = getattr(theirs, theirs.base_model_prefix)
    for text, mine in zip(texts, vectors, strict=True):
        tokens = base(torch.tensor([ours.tokenizer.encode(text).ids])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(mine, POOLS[pool](tokens), atol=1e-5)
        assert mine.dtype == np.float32


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(0, 90), min_size=1, max_size=6), pool=st.sampled_from(sorted(POOLS)))
def test_a_text_embeds_the_same_alone_and_among_others_even_in_windows(lengths, pool: str, models) -> None:
    ours, _ = models("bert")
    texts = [text_of(n, seed) for seed, n in enumerate(lengths)]
    together = ours.embed(texts, pool=pool)
    for text, mine in zip(texts, together):
        np.testing.assert_allclose(mine, ours.embed([text], pool=pool)[0], atol=1e-5)


def test_a_long_text_in_windows_gives_every_token_once(models) -> None:
    ours, _ = models("bert")
    text = text_of(150)
    encoding = ours.tokenizer.encode(text)
    (tokens,) = ours.embed([text], pool="none")
    # Every piece of the text is owned by one window; [CLS] and [SEP], which each window has, by none.
    assert len(encoding) > 3 * 40
    assert len(tokens) == len(encoding) - 2
    starts = ours.embed([" ".join(text.split()[:38])], pool="none")[0]
    np.testing.assert_allclose(tokens[:20], starts[1:21], atol=1e-5)
    assert ours.embed([text]).shape == ours.embed([text], pool="max").shape == (1, 32)


def test_what_is_cut_is_counted_and_reported(models, notes) -> None:
    ours, theirs = models("bert")
    texts = [text_of(60), "the cat", text_of(45, 1)]
    cut = sum(max(0, len(ours.tokenizer.encode(text)) - 40) for text in texts)
    vectors = ours.embed(texts, on_long="truncate")
    assert notes == [f"{cut} tokens were truncated from texts longer than 40 tokens."]
    ids = ours.tokenizer.encode(texts[0]).ids
    with torch.no_grad():
        expected = theirs.bert(torch.tensor([[*ids[:39], ids[-1]]])).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(vectors[0], expected, atol=1e-5)
    notes.clear()
    ours.embed(texts, on_long="window")
    assert notes == []


def test_a_long_text_may_be_refused_with_its_number(models) -> None:
    ours, _ = models("bert")
    with pytest.raises(UserError, match=r"2 has 62 tokens.*40"):
        ours.embed(["the cat", text_of(60)], on_long="error")


def test_normalised_vectors_have_length_one_and_nothing_embeds_to_nothing(models) -> None:
    ours, _ = models("bert")
    vectors = ours.embed(["the cat", "paris"], normalize=True)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors[0] * np.linalg.norm(ours.embed("the cat")), ours.embed("the cat")[0], atol=1e-5)
    assert ours.embed([]).shape == (0, 32) and ours.embed([], pool="none") == []
    assert ours.embed("one text").shape == (1, 32)


@pytest.mark.parametrize("pool", ["mean", "none"])
def test_batches_shared_out_over_cores_come_back_in_order(pool: str, models) -> None:
    ours, _ = models("bert")
    texts = [text_of(n % 37, n) for n in range(300)]
    alone = ours.embed(texts, pool=pool)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        shared = ours.embed(texts, pool=pool)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_text_without_any_token_is_the_zero_vector(tmp_path: Path) -> None:
    folders.write(tmp_path, "gpt2", "GPT2LMHeadModel")  # a tokenizer without special tokens
    ours = Predictor.load(tmp_path, "fp32")
    for texts in (["", "the cat"], [""], ["", "the cat " * 60]):
        for pool in ("mean", "max", "cls"):
            vectors = ours.embed(texts, pool=pool)
            assert vectors.shape == (len(texts), 32) and not vectors[0].any()
            assert all(vector.any() for vector in vectors[1:])
        assert ours.embed(texts, pool="none")[0].shape == (0, 32)


@pytest.mark.parametrize(
    "options, told",
    [
        ({"pool": "maen"}, "pool is 'maen'. Did you mean 'mean'"),
        ({"on_long": "cut"}, "on_long is 'cut'"),
        ({"layers": "lats"}, "layers is 'lats'"),
        ({"layers": [9]}, "no layer 9"),
    ],
)
def test_wrong_choices_are_reported(options: dict, told: str, models) -> None:
    with pytest.raises(UserError, match=told):
        models("bert")[0].embed(["a"], **options)


@pytest.mark.parametrize("text", ["a\ud800b", "a\x00b"])
def test_texts_that_are_none_are_refused_with_their_place(text: str, models) -> None:
    ours, _ = models("bert")
    with pytest.raises(UserError, match=r"Row .* at position 1"):
        ours.embed(["fine", text])
    with pytest.raises(UserError):
        ours.fill(text + " [MASK]")


@pytest.mark.parametrize("family", NAMES)
@torch.no_grad()
def test_guesses_for_every_mask_agree_with_transformers(family: str, models) -> None:
    ours, theirs = models(family)
    mask = "<mask>" if family == "roberta" else "[MASK]"
    text = f"the {mask} sat on the {mask} ."
    found = ours.fill(text, top=7)
    ids = ours.tokenizer.encode(text).ids
    places = [n for n, piece in enumerate(ids) if piece == ours.tokenizer.mask_id]
    scores = theirs(torch.tensor([ids])).logits[0].softmax(-1)
    assert len(found) == len(places) == 2
    for guesses, place in zip(found, places):
        best = scores[place].topk(7)
        assert [guess["id"] for guess in guesses] == best.indices.tolist()
        np.testing.assert_allclose([guess["score"] for guess in guesses], best.values, atol=1e-5)
        for guess in guesses:
            filled = [*ids[:place], guess["id"], *ids[place + 1 :]]
            shown = guess["text"]  # the other mask stays to be seen
            assert shown.count(mask) == 1
            without = shown.replace(mask if family == "roberta" else f" {mask}", "")
            assert without == closed_up(ours.tokenizer.decode(filled))
            assert ours.tokenizer.id_to_token(guess["id"]).lstrip("Ġ▁") == guess["token"]


def test_the_usual_mask_is_understood_where_the_tokenizer_spells_it_otherwise(models) -> None:
    ours, _ = models("roberta")
    assert ours.fill("the [MASK]") == ours.fill("the <mask>")


def test_more_guesses_than_pieces_are_all_pieces_and_sum_to_one(models) -> None:
    ours, _ = models("bert")
    (guesses,) = ours.fill("the [MASK]", top=1000)
    assert len({guess["id"] for guess in guesses}) == 60
    assert sum(guess["score"] for guess in guesses) == pytest.approx(1, abs=1e-4)


def test_a_text_without_a_mask_or_too_long_is_refused(models) -> None:
    ours, _ = models("bert")
    with pytest.raises(UserError, match=r"The text has no \[MASK\]. Put \[MASK\]"):
        ours.fill("the cat")
    with pytest.raises(UserError, match="62 tokens; this model's limit is 40"):
        ours.fill(text_of(59) + " [MASK]")
    with pytest.raises(UserError, match="no <mask>"):
        models("roberta")[0].fill("the cat")


@pytest.mark.parametrize("top", [0, -1])
def test_less_than_one_guess_is_refused(top: int, models) -> None:
    with pytest.raises(UserError, match=f"{top} guesses requested; ask for at least 1"):
        models("bert")[0].fill("the [MASK]", top=top)


def test_a_list_of_texts_to_fill_is_refused_with_what_to_do(models) -> None:
    with pytest.raises(UserError, match=r"fill takes one text, not list\. Call it once for each text\."):
        models("bert")[0].fill(["the [MASK]"])


def test_load_is_the_predictor_and_the_precision_is_known(tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertForMaskedLM")
    exact, rough = bertkit.load(str(tmp_path), precision="fp32"), bertkit.load(str(tmp_path), precision="bf16")
    assert isinstance(exact, Predictor) and (exact.precision, rough.precision) == ("fp32", "bf16")
    assert exact.device == "cpu"
    texts = [text_of(n, n) for n in range(1, 30)]
    a, b = exact.embed(texts), rough.embed(texts)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert b.dtype == np.float32 and cosine.min() >= 0.999
    assert rough.fill("the [MASK]")[0][0]["score"] > 0


@pytest.mark.parametrize(("labels", "told"), [(None, 1), (["LABEL_0", "no"], 0), (["yes", "no"], 0)])
def test_labels_that_are_only_numbers_are_reported(labels: list[str] | None, told: int, tmp_path: Path, notes) -> None:
    folders.write(tmp_path, "bert", "BertForSequenceClassification", labels=labels)
    answer = Predictor.load(tmp_path, "fp32").predict(["the cat"])[0]
    assert answer["label"] in (labels or ["LABEL_0", "LABEL_1", "LABEL_2"])
    assert sum("has no label names" in one and "id2label" in one for one in notes) == told
