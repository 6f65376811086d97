"""Model folders written by transformers itself, small and random, with a tokenizer that fits."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import bertkit
from bertkit.inference.predictor import Predictor
from tests.support.families import CONFIGS, random_model

WORDS = (
    "the a of in is paris france capital city london england bank river money house tree green red old new "
    "small big cat dog sat on mat ran fast slow ##s ##ing ##ed ##er un ##known . , ! ? "
    "中 国 北 京 b e r t k i n o ##n ##o cats"
)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
PIECES = PIECES[:60]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def wordpiece() -> Tokenizer:
    """BERT's own kind: 60 pieces, lower case."""
    tokenizer = Tokenizer(models.WordPiece({p: n for n, p in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(PIECES[:5])
    return tokenizer


def byte_level(specials: list[str]) -> Tokenizer:
    """RoBERTa's and GPT's kind: every byte a piece, a few merges, the specials first."""
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ġ", "c"), ("a", "t"), ("Ġc", "at"), ("i", "n"), ("Ġ", "in")]
    pieces = [*specials, *BYTES, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE({p: n for n, p in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if "<mask>" in specials:
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    tokenizer.add_special_tokens(specials)
    return tokenizer


ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SPECIALS = dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec-text", "mpnet"), ROBERTA) | {
    "gpt2": ["<|endoftext|>"]
}


def tokenizer_for(family: str) -> tuple[Tokenizer, dict[str, str]]:
    """A tokenizer of the family's usual kind, and the names of its special tokens."""
    if family not in SPECIALS:
        return wordpiece(), {f"{role.strip('[]').lower()}_token": role for role in PIECES[:5]}
    names = SPECIALS[family]
    roles = {"unk_token": names[0]} if family == "gpt2" else dict(
        zip(("cls_token", "pad_token", "sep_token", "unk_token", "mask_token"), names)
    )  # fmt: skip
    return byte_level(names), roles


def write(folder: Path, family: str, architecture: str, *, labels: list[str] | None = None, max_tokens: int = 40):
    """transformers' model of this class saved into `folder` by transformers, and the model itself."""
    tokenizer, roles = tokenizer_for(family)
    usual = CONFIGS[family]
    vocabulary = tokenizer.get_vocab_size()
    CONFIGS[family] = usual.__class__.from_dict(usual.to_dict() | {"vocab_size": vocabulary})
    try:
        model = random_model(family, architecture, labels=len(labels or "abc"))
    finally:
        CONFIGS[family] = usual
    if labels:
        model.config.id2label = dict(enumerate(labels))
        model.config.label2id = {label: n for n, label in enumerate(labels)}
    model.save_pretrained(folder)
    if max_tokens:
        tokenizer.save(str(folder / "tokenizer.json"))
        about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_tokens, **roles}
        (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return model


def change(folder: Path, name: str = "config.json", drop: tuple[str, ...] = (), **values) -> None:
    """Alter keys of a JSON file."""
    path = folder / name
    raw = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in raw.items() if key not in drop}))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """What a folder's safetensors file holds."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def reopened(folder: Path, architecture: str, **settings) -> torch.nn.Module:
    """The folder as transformers opens it."""
    return getattr(hf, architecture).from_pretrained(folder, attn_implementation="eager", **settings).eval()


def bert_classifier(folder: Path) -> tuple[Predictor, hf.BertForSequenceClassification]:
    """A small BERT with two labels and large random weights, in bertkit (fp32) and in transformers."""
    torch.manual_seed(3)
    tokenizer = bertkit.load("en").tokenizer
    config = hf.BertConfig(
        vocab_size=tokenizer.size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64, initializer_range=0.3, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1},
    )  # fmt: skip
    model = hf.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    tokenizer.save(folder, 64)
    return Predictor.load(folder, precision="fp32"), model
