"""Model folders: in from transformers, out again, and nothing lost on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer

from bertkit.checkpoint.families import FAMILIES
from bertkit.checkpoint.folder import read_folder, write_folder
from bertkit.checkpoint.translate import config_from, todays
from bertkit.commands import convert
from bertkit.data.batch import pack
from bertkit.errors import DamagedFile, UserError
from bertkit.inference.predictor import Predictor
from tests.support import folders
from tests.support.families import CONFIGS

CASES = [(family, a.name) for family, table in FAMILIES.items() for a in table.architectures.values()]
LABELS = ["ham", "spam", "謎 'quoted' \\ label"]


@pytest.mark.parametrize("family, name", CASES)
def test_a_folder_goes_in_and_out_of_both_libraries_unchanged(family: str, name: str, tmp_path: Path) -> None:
    theirs = folders.write(tmp_path / "theirs", family, name)
    first = read_folder(tmp_path / "theirs")
    assert first.architecture.name == name and not first.model.untrained
    write_folder(tmp_path / "ours", first)
    again = folders.reopened(tmp_path / "ours", name)
    again.save_pretrained(tmp_path / "back")
    stored, ours, back = (  # transformers saves Nomic-BERT under older names, unless it was opened under today's
        todays(folders.tensors_of(tmp_path / place), FAMILIES[family]) for place in ("theirs", "ours", "back")
    )
    assert set(stored) == set(back) == set(ours)
    assert all(torch.equal(stored[key], back[key]) for key in stored)
    assert {k: v for k, v in theirs.state_dict().items() if not torch.equal(v, again.state_dict()[k])} == {}
    folders.tokenizer_for(family)[0].save(str(tmp_path / "back/tokenizer.json"))
    second = read_folder(tmp_path / "back")
    assert second.model.config == first.model.config
    assert all(torch.equal(a, b) for a, b in zip(first.model.state_dict().values(), second.model.state_dict().values()))


@pytest.mark.parametrize("family, name", [("roberta", "RobertaModel"), ("mpnet", "MPNetModel")])
@torch.no_grad()
def test_a_tokenizer_that_pads_with_another_piece_moves_no_position(family, name, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(folders, "SPECIALS", {})  # a tokenizer whose padding is piece 0; the model's is 1
    theirs = folders.write(tmp_path / "a", family, name)
    write_folder(tmp_path / "b", read_folder(tmp_path / "a"))
    row = torch.tensor([[2, 9, 8, 3]])
    expected = theirs(row).last_hidden_state
    torch.testing.assert_close(folders.reopened(tmp_path / "b", name)(row).last_hidden_state, expected)
    ours = read_folder(tmp_path / "b").model.eval()
    torch.testing.assert_close(ours.encoder(pack(row.tolist())).tokens, expected[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gpt2"])
@torch.no_grad()
def test_labels_stay_words_and_answers_stay_the_same(family: str, tmp_path: Path) -> None:
    name = next(n for f, n in CASES if f == family and n.endswith("ForSequenceClassification"))
    theirs = folders.write(tmp_path / "a", family, name, labels=LABELS)
    folder = read_folder(tmp_path / "a")
    assert folder.labels == tuple(LABELS)
    write_folder(tmp_path / "b", folder)
    raw = json.loads((tmp_path / "b/config.json").read_text("utf-8"))
    assert raw["id2label"] == {str(n): label for n, label in enumerate(LABELS)}
    config = AutoConfig.from_pretrained(tmp_path / "b")
    assert config.id2label == dict(enumerate(LABELS)) and config.label2id == {n: i for i, n in enumerate(LABELS)}
    ids = [[2, 9, 8, 3], [2, 7, 3]]
    mine = folder.model.eval()
    encoded = mine.encoder(pack(ids))
    answers = encoded.batch.restore(mine.ask("text", encoded))
    for row, answer in zip(ids, answers):
        torch.testing.assert_close(theirs(torch.tensor([row])).logits[0], answer, atol=1e-5, rtol=0)


def test_the_tokenizer_of_a_written_folder_gives_the_same_ids_in_transformers(tmp_path: Path) -> None:
    for family, text in (("bert", "The capital of France, unknowns!"), ("roberta", "the cat in the hat é 北")):
        folders.write(tmp_path / family, family, next(n for f, n in CASES if f == family and "MaskedLM" in n))
        folder = read_folder(tmp_path / family)
        write_folder(tmp_path / f"{family}-out", folder)
        theirs = AutoTokenizer.from_pretrained(tmp_path / f"{family}-out")
        assert theirs(text)["input_ids"] == folder.tokenizer.encode(text).ids
        assert theirs.model_max_length == folder.model.config.max_tokens == 40


def test_a_modern_config_names_the_tokenizers_own_special_pieces(tmp_path: Path) -> None:
    folders.write(tmp_path / "a", "modernbert", "ModernBertForMaskedLM")
    folder = read_folder(tmp_path / "a")
    write_folder(tmp_path / "b", folder)
    config = AutoConfig.from_pretrained(tmp_path / "b")
    ours = folder.tokenizer
    assert (config.pad_token_id, config.cls_token_id, config.sep_token_id) == (ours.pad_id, ours.cls_id, ours.sep_id)
    assert len({ours.pad_id, ours.cls_id, ours.sep_id}) == 3


def test_what_is_not_ours_in_the_config_is_kept_and_code_is_not(tmp_path: Path, notes) -> None:
    folders.write(tmp_path / "a", "bert", "BertModel")
    folders.change(
        tmp_path / "a", my_own_note="kept", auto_map={"AutoModel": "evil.Model"}, trust_remote_code=True,
    )  # fmt: skip
    write_folder(tmp_path / "b", read_folder(tmp_path / "a"))
    raw = json.loads((tmp_path / "b/config.json").read_text())
    assert raw["my_own_note"] == "kept" and not {"auto_map", "trust_remote_code"} & set(raw)
    told = [note for note in notes if "bertkit never does" in note]
    assert len(told) == 2 and all("config.json" in note for note in told)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_folders_say_so_and_open(dtype: torch.dtype, tmp_path: Path) -> None:
    folders.write(tmp_path / "a", "bert", "BertForMaskedLM")
    folder = read_folder(tmp_path / "a")
    write_folder(tmp_path / "b", folder, dtype=dtype)
    assert {t.dtype for t in folders.tensors_of(tmp_path / "b").values()} == {dtype}
    assert json.loads((tmp_path / "b/config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    for before, after in zip(folder.model.parameters(), read_folder(tmp_path / "b").model.parameters()):
        assert torch.equal(before.to(dtype).float(), after)


def test_a_new_head_is_named_in_one_sentence_and_refuses_to_answer(tmp_path: Path, notes) -> None:
    folders.write(tmp_path, "bert", "BertModel")
    folder = read_folder(tmp_path, heads={"text": 3}, labels=("a", "b", "c"))
    assert notes == ["text is new and untrained: 2 of 57 tensors; fine-tune before predicting."]
    assert folder.model.untrained == ("text",) and folder.labels == ("a", "b", "c")
    folders.change(tmp_path, architectures=["BertForMaskedLM"])
    with pytest.raises(UserError, match=r"cannot predict masked words yet: its mlm head is untrained. Fine-tune"):
        Predictor.load(tmp_path, "fp32").fill("the [MASK]")
    with pytest.raises(UserError, match="mlm head is untrained"):
        Predictor.load(tmp_path, "fp32").score("the cat")


def test_an_untrained_summary_makes_the_heads_above_it_untrained_too(tmp_path: Path, notes) -> None:
    folders.write(tmp_path, "bert", "BertForMaskedLM")  # this class has no pooler
    folder = read_folder(tmp_path, heads={"text": 2})
    assert folder.model.untrained == ("pooler", "text")
    assert notes == ["pooler and text are new and untrained: 4 of 57 tensors; fine-tune before predicting."]


def without(folder: Path, part: str) -> Path:
    """The folder with the tensors of this part gone from its file."""
    save_file({k: v for k, v in folders.tensors_of(folder).items() if part not in k}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "family, name, part",
    [
        ("bert", "BertForSequenceClassification", "classifier"),
        ("bert", "BertForSequenceClassification", "pooler"),
        ("roberta", "RobertaForTokenClassification", "classifier"),
        ("modernbert", "ModernBertForMaskedLM", "head.dense"),
    ],
)
def test_a_head_that_the_file_does_not_hold_is_not_written_as_if_it_were_trained(family, name, part, tmp_path) -> None:
    folders.write(tmp_path / "a", family, name)
    without(tmp_path / "a", part)
    bare = name.split("For")[0] + "Model"
    words = rf'^a: its weights have no trained (text|token|mlm) head.*"architectures": \["{bare}"\]'
    with pytest.raises(UserError, match=words):
        convert.run(convert.Settings(source=str(tmp_path / "a"), target=tmp_path / "b"))
    with pytest.raises(UserError, match=words):
        write_folder(tmp_path / "b", read_folder(tmp_path / "a"))
    assert not (tmp_path / "b").exists()


@torch.no_grad()
def test_a_pooler_that_no_file_gave_is_left_out_and_stays_known_as_new(tmp_path: Path) -> None:
    folders.write(tmp_path / "a", "bert", "BertModel")
    without(tmp_path / "a", "pooler")
    write_folder(tmp_path / "b", read_folder(tmp_path / "a"))
    assert set(folders.tensors_of(tmp_path / "b")) == set(folders.tensors_of(tmp_path / "a"))
    assert read_folder(tmp_path / "b").model.untrained == ("pooler",)


def test_a_model_without_the_head_says_which_it_has(tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertForTokenClassification")
    with pytest.raises(UserError, match=r"no mlm head \(it has: token\)"):
        Predictor.load(tmp_path, "fp32").fill("the [MASK]")


@pytest.mark.parametrize("family, name", [c for c in CASES if c[1].endswith("Model")])
def test_missing_encoder_tensors_are_refused_by_name(family: str, name: str, tmp_path: Path) -> None:
    folders.write(tmp_path, family, name)
    tensors = folders.tensors_of(tmp_path)
    lost = sorted(key for key in tensors if "bias" not in key and ("layer" in key or ".h." in f".{key}"))[0]
    save_file({k: v for k, v in tensors.items() if k != lost}, tmp_path / "model.safetensors")
    with pytest.raises(DamagedFile, match=r"model\.safetensors: 1 of \d+ encoder tensors are missing \(first: encoder"):
        read_folder(tmp_path)


def test_weights_of_another_family_are_refused(tmp_path: Path) -> None:
    folders.write(tmp_path / "a", "bert", "BertForMaskedLM")
    folders.write(tmp_path / "b", "distilbert", "DistilBertForMaskedLM")
    (tmp_path / "b/model.safetensors").replace(tmp_path / "a/model.safetensors")
    with pytest.raises(DamagedFile, match="encoder tensors are missing"):
        read_folder(tmp_path / "a")


def test_a_tied_decoder_may_be_stored_if_it_is_a_copy(tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertForMaskedLM")
    tensors = folders.tensors_of(tmp_path)
    words = tensors["bert.embeddings.word_embeddings.weight"]
    save_file(tensors | {"cls.predictions.decoder.weight": words.clone()}, tmp_path / "model.safetensors")
    assert read_folder(tmp_path).model.head("mlm").decoder is None
    save_file(tensors | {"cls.predictions.decoder.weight": words + 1}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r'two different tables\. Set "tie_word_embeddings": false'):
        read_folder(tmp_path)
    folders.change(tmp_path, tie_word_embeddings=False)
    head = read_folder(tmp_path).model.head("mlm")
    assert head.decoder is not None and torch.equal(head.decoder, words + 1)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_an_untied_word_head_answers_as_transformers_does(family: str, tmp_path: Path, monkeypatch) -> None:
    name = next(n for f, n in CASES if f == family and n.endswith(("ForMaskedLM", "LMHeadModel")))
    usual = CONFIGS[family]
    monkeypatch.setitem(CONFIGS, family, usual.__class__.from_dict(usual.to_dict() | {"tie_word_embeddings": False}))
    theirs = folders.write(tmp_path / "a", family, name)
    model = read_folder(tmp_path / "a").model.eval()
    assert not model.config.tied and not model.untrained
    row = [2, 9, 11, 3]
    mine = model.ask("mlm", model.encoder(pack([row])))
    torch.testing.assert_close(mine, theirs(torch.tensor([row])).logits[0], atol=1e-5, rtol=0)
    write_folder(tmp_path / "b", read_folder(tmp_path / "a"))
    again = folders.reopened(tmp_path / "b", name)
    torch.testing.assert_close(again(torch.tensor([row])).logits[0], mine, atol=1e-5, rtol=0)


def test_an_unknown_class_is_read_by_its_tensors_and_reported(tmp_path: Path, notes) -> None:
    folders.write(tmp_path, "bert", "BertForMaskedLM")
    folders.change(tmp_path, architectures=["MyOwnBert"])
    assert list(read_folder(tmp_path).model.heads) == ["mlm"]
    assert any("'MyOwnBert', which bertkit does not know; reading it as bert with mlm head" in note for note in notes)


@pytest.mark.parametrize("architectures", [None, [], "BertModel", ["BertModel", 3], {"a": 1}, 7, [None], [["x"]]])
def test_a_strange_architectures_entry_is_read_or_refused_but_never_a_crash(architectures, tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertModel")
    folders.change(tmp_path, architectures=architectures)
    try:
        assert read_folder(tmp_path).model.config.width == 32
    except UserError as mistake:
        assert "config.json" in str(mistake)


def test_a_tokenizer_with_more_pieces_than_vectors_is_refused(tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertModel")
    folders.byte_level(["[UNK]"]).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="265 pieces but the model only 60 word vectors"):
        read_folder(tmp_path)


WRONG = {  # key → wrong value, what must be said beside file and key
    "hidden_size": [0, -5, 33, "32", None, 32.0, True, 10**12, 64],
    "num_hidden_layers": [0, "four", 10**9, 5, [4]],
    "num_attention_heads": [0, 5, 10**9, {}],
    "intermediate_size": [0, 10**12, 49, "48"],
    "vocab_size": [-1, 10**12, 61, "60"],
    "max_position_embeddings": [0, -3, 10**12, 41, "forty"],
    "type_vocab_size": [-1, 3, 10**12],
    "hidden_act": ["swosh", 3, ["gelu"]],
    "layer_norm_eps": [0, -1e-12, "1e-12"],
    "hidden_dropout_prob": [1.5, -0.1, "0.1"],
    "attention_probs_dropout_prob": [1, []],
    "pad_token_id": [-1, "0"],
    "position_embedding_type": ["relative_key"],
    "is_decoder": [True],
    "model_type": ["brt", None, 5, ["bert"]],
    "tie_word_embeddings": ["no", 3],
    "id2label": [{"a": "x"}],
}


@pytest.mark.parametrize("key, value", [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_number_in_the_config_is_reported_with_file_and_key(key: str, value, tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertModel")
    folders.change(tmp_path, **{key: value})
    with pytest.raises(UserError) as told:
        read_folder(tmp_path)
    words = str(told.value)
    assert "config.json" in words
    # A number that could be is found out by the weights, which then say whose shapes differ.
    assert key in words or "do not belong together" in words or "than config.json describes" in words, words


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.floats() | st.text(max_size=5) | st.just(10**15),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["full_attention", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_at_any_key_is_a_config_or_a_mistake_in_words(family: str, data) -> None:
    raw = CONFIGS[family].to_dict()
    keys = sorted({*FAMILIES[family].numbers.values(), *raw, "rope_parameters", "layer_types"})
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
        raw[key] = data.draw(values)
    try:
        config_from(raw, "config.json")
    except UserError as mistake:
        assert str(mistake).startswith("config.json: ")


def test_layers_the_config_does_not_speak_of_are_reported(tmp_path: Path, notes) -> None:
    folders.write(tmp_path, "bert", "BertModel")
    folders.change(tmp_path, num_hidden_layers=3)
    assert read_folder(tmp_path).model.config.depth == 3
    (told,) = notes
    assert "16 tensors belong to layers" in told and "encoder.layer.3." in told and "left out" in told


@pytest.mark.parametrize(
    "raw, told",
    [
        (b"", "line 1: not JSON"),
        (b'{"model_type": "bert",\n "hidden_size": }', "line 2: not JSON"),
        (b"[1, 2]", "holds a list, not an object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"[" * 100_000, "config.json"),
        (b'{"model_type": "bert"}', "'vocab_size' is missing"),
        (b'{"hidden_size": 32}', "model_type is None"),
    ],
)
def test_a_config_that_is_none_is_reported(raw: bytes, told: str, tmp_path: Path) -> None:
    folders.write(tmp_path, "bert", "BertModel")
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(UserError, match=told):
        read_folder(tmp_path)


def test_a_folder_without_config_or_weights_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"contains no config\.json\. Is it a model folder"):
        read_folder(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        read_folder(tmp_path / "nowhere")
    folders.write(tmp_path, "bert", "BertModel")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no model.safetensors or pytorch_model.bin \(it contains: config.json"):
        read_folder(tmp_path)


def test_a_model_card_is_written_once_and_never_over_the_users_own(tmp_path: Path) -> None:
    folders.write(tmp_path / "a", "bert", "BertForSequenceClassification", labels=["x", "y", "z"])
    folder = read_folder(tmp_path / "a")
    write_folder(tmp_path / "b", folder)
    card = (tmp_path / "b/README.md").read_text("utf-8")
    assert "BertForSequenceClassification" in card and "x, y, z" in card
    (tmp_path / "c").mkdir()
    (tmp_path / "c/README.md").write_text("mine")
    write_folder(tmp_path / "c", folder)
    assert (tmp_path / "c/README.md").read_text() == "mine"
