"""Folders of every family open, whatever their settings and the age of their names; others are refused in words."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from bertkit.checkpoint.families import FAMILIES
from bertkit.checkpoint.folder import read_folder
from bertkit.checkpoint.translate import config_from, config_to, family_of, tensors_from
from bertkit.data.batch import pack
from bertkit.errors import UserError
from bertkit.model.heads import Model
from tests.support import folders
from tests.support.families import CONFIGS, load, padded, random_model

LENGTHS = (37, 5, 12, 1)
VARIANTS = [  # settings that the small models of the parity tests do not have
    ("ernie", {"use_task_id": False}),
    ("roformer", {"embedding_size": 32, "hidden_act": "relu"}),
    ("eurobert", {"num_key_value_heads": 4}),
    ("eurobert", {"num_key_value_heads": 1, "classifier_pooling": "bos"}),
    ("eurobert", {"classifier_pooling": "mean", "tie_word_embeddings": True}),
    ("deberta-v2", {"share_att_key": False, "norm_rel_ebd": "none", "type_vocab_size": 2}),
    ("deberta-v2", {"position_buckets": -1, "max_relative_positions": 10, "position_biased_input": True}),
    ("deberta-v2", {"position_buckets": 4, "max_relative_positions": 64, "max_position_embeddings": 64}),
    ("deberta-v2", {"relative_attention": False, "pos_att_type": [], "position_biased_input": True}),
]


@pytest.mark.parametrize("family, settings", VARIANTS)
@torch.no_grad()
def test_every_setting_of_a_family_agrees_with_transformers(family, settings, monkeypatch):
    usual = CONFIGS[family]
    monkeypatch.setitem(CONFIGS, family, usual.__class__.from_dict(usual.to_dict() | settings))
    name = FAMILIES[family].architectures[frozenset({"text"})].name
    theirs = random_model(family, name)
    ours = load(theirs, family, ("text",), name)
    chance = random.Random(0)
    ids = [[chance.randrange(5, 60) for _ in range(n)] for n in LENGTHS]
    batch = pack(ids)
    answer = batch.restore(ours.ask("text", ours.encoder(batch)))
    torch.testing.assert_close(answer, theirs(**padded(ids, 0)).logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_distances_beyond_the_last_bucket_agree_with_transformers(monkeypatch):
    for family, settings in (("mpnet", {"max_position_embeddings": 302}), ("deberta-v2", {})):
        usual = CONFIGS[family]
        long = {"max_position_embeddings": 302, "position_buckets": 16} | settings
        monkeypatch.setitem(CONFIGS, family, usual.__class__.from_dict(usual.to_dict() | long))
        name = FAMILIES[family].architectures[frozenset()].name
        theirs = random_model(family, name)
        ours = load(theirs, family, (), name)
        ids = [[5 + n % 50 for n in range(300)], [7 + n % 31 for n in range(170)]]
        batch = pack(ids)
        for mine, other, row in zip(
            batch.split(ours.encoder(batch).tokens), theirs(**padded(ids, 1)).last_hidden_state, ids, strict=True
        ):
            torch.testing.assert_close(mine, other[: len(row)], atol=1e-5, rtol=0)


def test_nomics_first_checkpoints_open_with_the_names_of_their_own_code():
    theirs = random_model("nomic_bert", "NomicBertModel")
    ours = load(theirs, "nomic_bert", (), "NomicBertModel")
    raw = {"model_type": "nomic_bert", "n_embd": 32, "n_layer": 4, "n_head": 4, "n_inner": 48, "n_positions": 80,
           "max_trained_positions": 40,
           "activation_function": "swiglu", "vocab_size": 60, "type_vocab_size": 2, "layer_norm_epsilon": 1e-12,
           "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "prenorm": False, "qkv_proj_bias": False,
           "attn_pdrop": 0.0, "resid_pdrop": 0.0}  # fmt: skip
    config = config_from(raw, "config.json")
    assert config == ours.config
    written = config_to(config, FAMILIES["nomic_bert"], "NomicBertModel", raw)
    assert config_from(written, "config.json") == config and "n_embd" not in written
    older = {}
    for name, tensor in theirs.state_dict().items():
        for today, then in (
            ("layers.", "encoder.layers."), ("embeddings.LayerNorm", "emb_ln"), ("self_attn.o_proj", "attn.out_proj"),
            ("up_proj", "fc11"), ("gate_proj", "fc12"), ("down_proj", "fc2"), ("post_attention_layernorm", "norm1"),
            ("post_mlp_layernorm", "norm2"), ("self_attn.q_proj", "attn.Wqkv"),
        ):  # fmt: skip
            name = name.replace(today, then)
        older[name] = tensor
    for name in [name for name in older if "Wqkv" in name]:
        keys, values = (name.replace("attn.Wqkv", f"self_attn.{part}_proj") for part in "kv")
        older[name] = torch.cat((older[name], older.pop(keys), older.pop(values)))
    model = Model(config, {}, pooler=False)
    family = FAMILIES["nomic_bert"]
    state, missing, left = tensors_from(older, model, family, family.architectures[frozenset()], "model.safetensors")
    assert (missing, left) == ([], [])
    assert all(torch.equal(state[name], tensor) for name, tensor in ours.state_dict().items())


def test_debertas_mlm_head_opens_under_both_of_its_names():
    theirs = random_model("deberta-v2", "DebertaV2ForMaskedLM")
    ours = load(theirs, "deberta-v2", ("mlm",), "DebertaV2ForMaskedLM")
    renamed = {
        name.replace("cls.predictions.transform.", "lm_predictions.lm_head.").replace(
            "cls.predictions.bias", "lm_predictions.lm_head.bias"
        ): tensor
        for name, tensor in theirs.state_dict().items()
        if "decoder" not in name
    }
    family = FAMILIES["deberta-v2"]
    state, missing, _ = tensors_from(renamed, ours, family, family.architectures[frozenset({"mlm"})], "file")
    assert not missing
    assert all(torch.equal(state[name], tensor) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize(
    "family, settings, told",
    [
        ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size is 3; bertkit implements only 0"),
        ("deberta-v2", {"pos_att_type": ["c2p"]}, "pos_att_type"),
        ("roformer", {"rotary_value": True}, "rotary_value is True"),
        ("eurobert", {"mlp_bias": True}, "mlp_bias is True"),
        ("eurobert", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0}}, "rope_type 'yarn'"),
        ("nomic_bert", {"head_dim": 4}, "head_dim is 4"),
        ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64"),
    ],
)
def test_settings_that_are_not_implemented_are_refused_by_name(family, settings, told):
    with pytest.raises(UserError, match=r"^config\.json: .*") as mistake:
        config_from(CONFIGS[family].to_dict() | settings, "config.json")
    assert told in str(mistake.value)


def test_a_table_of_sines_that_is_not_roformers_is_refused():
    theirs = random_model("roformer", "RoFormerModel")
    with torch.no_grad():
        theirs.encoder.embed_positions.weight.add_(1)
    with pytest.raises(UserError, match="not the table of sines and cosines"):
        load(theirs, "roformer", (), "model.safetensors")


@pytest.mark.parametrize("unknown, like", [("luke", "bert"), ("llama", "eurobert"), ("opt-like-gpt", "gpt2")])
def test_an_unknown_family_is_reported_which_are_known_and_which_has_its_parts(unknown, like):
    raw = {key: value for key, value in CONFIGS[like].to_dict().items() if value is not None} | {"model_type": unknown}
    with pytest.raises(UserError) as mistake:
        family_of(raw, "config.json")
    assert all(name in str(mistake.value) for name in FAMILIES)
    assert f"most like {like}'s" in str(mistake.value)


def test_a_model_of_another_kind_is_not_likened_to_any():
    with pytest.raises(UserError) as mistake:
        family_of({"model_type": "t5", "d_model": 64, "d_kv": 8, "is_encoder_decoder": True}, "config.json")
    assert "most like" not in str(mistake.value)


def test_camembert_opens_and_is_not_taken_for_albert(tmp_path: Path):
    folders.write(tmp_path, "camembert", "CamembertForMaskedLM")
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "camembert"
    assert read_folder(tmp_path).family == "camembert"
