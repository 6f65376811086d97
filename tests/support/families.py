"""Small random models of transformers, one a family and class: what ours is judged by."""

from __future__ import annotations

import torch
import transformers as hf

from bertkit.checkpoint.families import FAMILIES
from bertkit.checkpoint.translate import config_from, tensors_from
from bertkit.model.heads import HEADS, Model

SMALL = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}

CONFIGS = {
    "bert": hf.BertConfig(**SMALL, max_position_embeddings=40),
    "roberta": hf.RobertaConfig(**SMALL, max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5),
    "albert": hf.AlbertConfig(**SMALL, max_position_embeddings=40, embedding_size=16, num_hidden_groups=2),
    "electra": hf.ElectraConfig(**SMALL, max_position_embeddings=40, embedding_size=16),
    "distilbert": hf.DistilBertConfig(
        vocab_size=60, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=40
    ),
    "modernbert": hf.ModernBertConfig(
        **SMALL, max_position_embeddings=64, local_attention=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2,
    ),
    "xlm-roberta": hf.XLMRobertaConfig(**SMALL, max_position_embeddings=42, type_vocab_size=1),
    "camembert": hf.CamembertConfig(**SMALL, max_position_embeddings=42, type_vocab_size=1),
    "data2vec-text": hf.Data2VecTextConfig(**SMALL, max_position_embeddings=42, type_vocab_size=1),
    "ernie": hf.ErnieConfig(**SMALL, max_position_embeddings=40, use_task_id=True, task_type_vocab_size=3),
    "megatron-bert": hf.MegatronBertConfig(**SMALL, max_position_embeddings=40),
    "mpnet": hf.MPNetConfig(**SMALL, max_position_embeddings=42),
    "roformer": hf.RoFormerConfig(**SMALL, max_position_embeddings=40, embedding_size=16),
    "nomic_bert": hf.NomicBertConfig(**SMALL, max_position_embeddings=40),
    "eurobert": hf.EuroBertConfig(
        **SMALL, max_position_embeddings=40, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        mask_token_id=3,
    ),
    "deberta-v2": hf.DebertaV2Config(
        **SMALL, max_position_embeddings=40, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
        share_att_key=True, norm_rel_ebd="layer_norm", position_biased_input=False,
    ),
    "gpt2": hf.GPT2Config(vocab_size=60, n_embd=32, n_layer=3, n_head=4, n_positions=40, n_inner=48, pad_token_id=0),
}  # fmt: skip


def random_model(family: str, architecture: str, labels: int = 3) -> torch.nn.Module:
    """The class with weights far enough from their start that every part matters."""
    torch.manual_seed(0)
    config = CONFIGS[family].__class__.from_dict(CONFIGS[family].to_dict())
    if architecture.endswith(("SequenceClassification", "TokenClassification")):
        config.num_labels = labels
    config._attn_implementation = "eager"
    model = getattr(hf, architecture)(config).eval()
    with torch.no_grad():
        for weight in (w for w in model.parameters() if w.requires_grad):
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def padded(ids: list[list[int]], pad: int) -> dict[str, torch.Tensor]:
    width = max(len(row) for row in ids)
    return {
        "input_ids": torch.tensor([row + [pad] * (width - len(row)) for row in ids]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids]),
    }


def load(theirs, family: str, heads: tuple[str, ...], name: str) -> Model:
    raw = theirs.config.to_dict()
    config = config_from(raw, "config.json")
    architecture = FAMILIES[family].architectures[frozenset(heads)]
    counts = {kind: HEADS[kind].outputs or 3 for kind in heads}
    ours = Model(config, counts, pooler=architecture.pooler is not None).eval()
    state, missing, _ = tensors_from(theirs.state_dict(), ours, FAMILIES[family], architecture, name)
    assert not missing
    ours.load_state_dict(state)
    return ours
