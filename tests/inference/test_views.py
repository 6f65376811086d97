"""What the page shows of a model is what transformers computes, and what the formulas say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

import bertkit
from bertkit.errors import UserError
from bertkit.inference import explain, importance
from bertkit.inference.predictor import Predictor
from bertkit.text.tokenizer import Tokenizer
from tests.support.folders import bert_classifier

TEXT, SECOND = "The cat sat on the old mat.", "It was tired."
FAMILIES = {
    "bert": (hf.BertConfig, hf.BertForPreTraining, {}),
    "deberta": (hf.DebertaV2Config, hf.DebertaV2ForMaskedLM, {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False, "legacy": False,
    }),
}  # fmt: skip


def made(family: str, folder: Path) -> Predictor:
    torch.manual_seed(7)
    config_class, model_class, more = FAMILIES[family]
    tokenizer = Tokenizer.load(Path(bertkit.load("en").source or ""))
    config = config_class(
        vocab_size=tokenizer.size, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64, initializer_range=0.3, **more,
    )  # fmt: skip
    model_class(config).eval().save_pretrained(folder)
    tokenizer.save(folder, 64)
    return Predictor.load(folder, precision="fp32")


@pytest.fixture(scope="module")
def classic(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return made("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def english() -> Predictor:
    return bertkit.load("en", precision="fp32")


def theirs(predictor: Predictor, *texts: str):
    model = hf.AutoModel.from_pretrained(predictor.source, dtype=torch.float32, attn_implementation="eager").eval()
    inputs = hf.AutoTokenizer.from_pretrained(predictor.source)(*texts, return_tensors="pt")
    with torch.no_grad():
        return model, model(**inputs, output_attentions=True, output_hidden_states=True), inputs


@pytest.mark.parametrize("name", ["en", "classic"])
def test_attention_rollout_and_layers_are_those_of_transformers(name, english, classic) -> None:
    predictor = {"en": english, "classic": classic}[name]
    _, outputs, _ = theirs(predictor, TEXT)
    maps = torch.stack(outputs.attentions)[:, 0].numpy()
    shown = explain.attention(predictor, TEXT)
    assert np.abs(shown["attention"] - maps).max() < 1e-4
    flow = np.eye(maps.shape[-1])
    for layer, got in zip(maps.mean(1), shown["rollout"], strict=True):
        step = layer + np.eye(len(layer))
        flow = step / step.sum(-1, keepdims=True) @ flow
        assert np.abs(flow - got).max() < 1e-4
    hidden = torch.stack(outputs.hidden_states)[:, 0].numpy()
    assert np.abs(explain.layer_vectors(predictor, TEXT) - hidden).max() < 1e-3


def test_the_habit_of_looking_at_the_same_piece_is_measured_elsewhere_only(english) -> None:
    shown = explain.attention(english, TEXT)
    first, second = (n for n, token in enumerate(shown["tokens"]) if token["token"] == "the")
    one = shown["attention"][2, 1]
    habit = next(h for h in shown["heads"] if (h["layer"], h["head"]) == (3, 2))
    assert habit["same"] == pytest.approx((one[first, second] + one[second, first]) / 2, abs=1e-6)
    assert explain.attention(english, "Cats sleep")["heads"][0]["same"] is None


@pytest.mark.parametrize("family", ["en", "bert", "deberta"])
def test_one_head_in_numbers_adds_up_to_its_attention(family, english, tmp_path) -> None:
    predictor = english if family == "en" else made(family, tmp_path)
    shown = explain.head_numbers(predictor, TEXT, layer=2, head=3)
    scores = shown["query"] @ shown["key"].T
    assert np.abs(scores - shown["scores"]).max() < 1e-4
    total = shown["scores"] * shown["scale"] + (0 if shown["added"] is None else shown["added"])
    weights = torch.from_numpy(total).softmax(-1).numpy()
    assert np.abs(weights - explain.attention(predictor, TEXT)["attention"][1, 2]).max() < 1e-4
    assert np.abs(weights @ shown["value"] - shown["output"]).max() < 1e-4
    with pytest.raises(UserError, match="no head 9"):
        explain.head_numbers(predictor, TEXT, layer=1, head=9)


def test_the_input_is_the_sum_of_three_vectors(classic) -> None:
    model, outputs, inputs = theirs(classic, TEXT, SECOND)
    shown = explain.input_vectors(classic, TEXT, SECOND)
    tables = model.embeddings
    size = inputs["input_ids"].shape[1]
    expected = {
        "token": tables.word_embeddings(inputs["input_ids"]),
        "segment": tables.token_type_embeddings(inputs["token_type_ids"]),
        "position": tables.position_embeddings(torch.arange(size))[None],
    }  # fmt: skip
    for name, part in expected.items():
        assert np.abs(shown["parts"][name] - part[0].detach().numpy()).max() < 1e-6, name
    assert np.abs(sum(shown["parts"].values()) - shown["sum"]).max() < 1e-5
    assert np.abs(shown["input"] - outputs.hidden_states[0][0].numpy()).max() < 1e-4
    padded = explain.input_vectors(classic, TEXT, SECOND, padding=2)
    assert [token["token"] for token in padded["tokens"][-2:]] == ["[PAD]"] * 2
    assert np.array_equal(padded["input"][:size], shown["input"])


def test_a_model_without_added_positions_says_so(english) -> None:
    shown = explain.input_vectors(english, TEXT)
    assert list(shown["parts"]) == ["token"] and shown["rotary"]


def test_a_masked_row_is_guessed_as_fill_guesses_it(english) -> None:
    text = "She opened the door and walked into the dark room."
    shown = explain.masked_row(english, text, places=[4])
    assert shown["after"][4]["token"] == "[MASK]" and shown["tokens"][4]["token"] == "door"
    (guesses,) = english.fill(text.replace("door", "[MASK]"))
    (masked,) = shown["masked"]
    assert [g["id"] for g in masked["guesses"]] == [g["id"] for g in guesses]
    assert masked["guesses"][0]["probability"] == pytest.approx(guesses[0]["score"], abs=1e-5)
    ranked = [g["id"] for g in english.fill(text.replace("door", "[MASK]"), top=200)[0]]
    assert masked["rank"] == ranked.index(shown["tokens"][4]["id"]) + 1


def test_masks_are_pretraining_s_own(english) -> None:
    text = " ".join(["unaffable people like untranslatable words and other things"] * 6)
    fates = {"mask": 0, "random": 0, "kept": 0}
    for seed in range(20):
        shown = explain.masked_row(english, text, unit="word", rate=0.3, seed=seed)
        words = [token["word"] for token in shown["tokens"]]
        places = {one["place"] for one in shown["masked"]}
        for place in places:  # a word is masked whole
            assert {n for n, word in enumerate(words) if word == words[place]} <= places
        for one in shown["masked"]:
            fates[one["fate"]] += 1
            same = shown["after"][one["place"]]["id"] == shown["tokens"][one["place"]]["id"]
            assert same == (one["fate"] == "kept")
    assert fates["mask"] / sum(fates.values()) == pytest.approx(0.8, abs=0.07)
    with pytest.raises(UserError, match="cannot be masked"):
        explain.masked_row(english, "Cats sleep", places=[0])


def test_a_word_has_a_vector_in_every_layer_and_six_features(english) -> None:
    shown = explain.token_layers(english, TEXT, 2)
    depth, width = english.config.depth, english.config.width
    assert shown["vectors"].shape == (depth + 1, width) and shown["similar"][:, 2] == pytest.approx(1, abs=1e-5)
    for name, feature in shown["choices"].items():
        embedded = english.embed([TEXT], layers=name, pool="none")[0][2]
        assert np.abs(embedded - feature).max() < 1e-3, name


def test_a_map_has_the_principal_components(english) -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    texts = [
        "We sat on the bank of the river.",
        "The bank lent us money.",
        "A bank account.",
        "Embankments are not it.",
    ]
    shown = explain.vector_map(english, texts, "bank")
    assert [item["text"] for item in shown["items"]] == [0, 1, 2]
    pca = decomposition.PCA(2).fit(shown["vectors"][-1])
    assert np.abs(np.abs(pca.transform(shown["vectors"][-1])) - np.abs(shown["points"][-1])).max() < 1e-4
    assert shown["explained"][-1] == pytest.approx(pca.explained_variance_ratio_, abs=1e-5)
    with pytest.raises(UserError, match="at least three"):
        explain.vector_map(english, texts, "river")


def test_integrated_gradients_are_those_of_plain_autograd(tmp_path) -> None:
    predictor, model = bert_classifier(tmp_path)
    tokenizer = predictor.tokenizer
    shown = importance.importance(predictor, TEXT)
    ids = torch.tensor([[token["id"] for token in shown["tokens"]]])
    special = torch.tensor([token["special"] for token in shown["tokens"]])
    start_ids = torch.where(special, ids, tokenizer.mask_id)
    table = model.bert.embeddings.word_embeddings
    start, end = table(start_ids).detach(), table(ids).detach()
    label = ["no", "yes"].index(shown["target"])
    total = torch.zeros_like(end)
    for step in range(importance.STEPS):
        point = (start + (step + 0.5) / importance.STEPS * (end - start)).requires_grad_(True)
        model(inputs_embeds=point).logits.softmax(-1)[0, label].backward()
        total += point.grad / importance.STEPS
    expected = ((end - start) * total).sum(-1)[0].detach().numpy()
    assert np.abs(shown["importance"] - expected).max() < 1e-4
    assert shown["importance"].sum() == pytest.approx(shown["probability"] - shown["baseline"], abs=0.02)


@pytest.mark.parametrize("by", ["mask", "remove"])
def test_what_a_token_is_worth_is_what_is_lost_without_it(by, english) -> None:
    shown = importance.importance(english, "The [MASK] is shining today.", by=by)
    place = next(n for n, token in enumerate(shown["tokens"]) if token["token"] == "today")
    without = "The [MASK] is shining [MASK]." if by == "mask" else "The [MASK] is shining."
    guesses = {g["token"]: g["score"] for g in english.fill(without, top=1000)[0]}
    assert shown["importance"][place] == pytest.approx(shown["probability"] - guesses[shown["target"]], abs=1e-4)


def test_a_model_with_nothing_to_explain_says_what_to_do(english) -> None:
    with pytest.raises(UserError, match=r"Put \[MASK\] into the text"):
        importance.importance(english, TEXT)
