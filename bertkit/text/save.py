"""Saves a tokenizer so that transformers.AutoTokenizer opens it and gives the same ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError
from bertkit.text.sentencepiece import CONTROLS

if TYPE_CHECKING:
    from bertkit.text.tokenizer import Tokenizer

# transformers' own classes rebuild the rules from these settings and ignore those of tokenizer.json, so a class is
# named only when the rules are exactly what it would rebuild; otherwise the plain class reads all of tokenizer.json.
PLAIN_CLASS = "PreTrainedTokenizerFast"
QUOTES = [{"type": "Replace", "pattern": {"String": mark}, "content": '"'} for mark in ("``", "''")]
DELETE_CONTROLS = {"type": "Replace", "pattern": {"Regex": f"[{CONTROLS}]"}, "content": ""}
ACCENTS = [{"type": "NFKD"}, {"type": "StripAccents"}]
MODEL_RULES = [
    "unk_token", "unk_id", "continuing_subword_prefix", "max_input_chars_per_word", "end_of_word_suffix",
    "dropout", "fuse_unk", "byte_fallback", "ignore_merges",
]  # fmt: skip


def save(tokenizer: Tokenizer, folder: Path, max_tokens: int, segments: int) -> None:
    """Save a tokenizer: tokenizer.json, tokenizer_config.json, special_tokens_map.json and its classic vocabulary."""
    if max_tokens < 1:
        raise UserError(f"max_tokens is {max_tokens}; it must be the model's actual limit, such as 512.")
    folder.mkdir(parents=True, exist_ok=True)
    model = tokenizer.shape["model"]
    _write(folder / "tokenizer.json", tokenizer.backend.to_str(pretty=True))
    _write_json(folder / "tokenizer_config.json", config_for_transformers(tokenizer, max_tokens, segments))
    _write_json(folder / "special_tokens_map.json", {f"{role}_token": name for role, name in tokenizer.roles.items()})
    if tokenizer.kind == "wordpiece":
        pieces = [tokenizer.id_to_token(number) or f"[unused-{number}]" for number in range(tokenizer.size)]
        _write(folder / "vocab.txt", "".join(piece + "\n" for piece in pieces))
    elif tokenizer.kind == "bpe":
        _write(folder / "vocab.json", json.dumps(model["vocab"], ensure_ascii=False))
        merges = "".join(" ".join(merge) + "\n" for merge in model["merges"])
        _write(folder / "merges.txt", "#version: 0.2\n" + merges)


def config_for_transformers(tokenizer: Tokenizer, max_tokens: int, segments: int) -> dict[str, Any]:
    """The tokenizer_config.json of a saved tokenizer. segments: how many the model has."""
    name, settings = _class_and_settings(tokenizer.shape)
    specials = {token.content: token for token in tokenizer.backend.get_added_tokens_decoder().values()}
    roles: dict[str, Any] = {f"{role}_token": token for role, token in tokenizer.roles.items()}
    if name == "RobertaTokenizer":
        roles |= {"bos_token": tokenizer.roles["cls"], "eos_token": tokenizer.roles["sep"]}
    for role, token in roles.items():
        if token in specials and specials[token].lstrip:
            keys = ("content", "lstrip", "rstrip", "single_word", "normalized", "special")
            roles[role] = {"__type": "AddedToken"} | {key: getattr(specials[token], key) for key in keys}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    # A model without segments must get none: GPT-2 would treat them as words, and RoBERTa has no second one.
    if segments < 2 or 1 not in tokenizer.encode("a", "b").segments:
        inputs.remove("token_type_ids")
    return {
        "backend": "tokenizers",
        "tokenizer_class": name,
        "model_max_length": max_tokens,
        "model_input_names": inputs,
        **settings,
        **roles,
    }


def _class_and_settings(shape: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The class in transformers for a saved tokenizer's rules, and its settings; the generic class if none fits."""
    plain: tuple[str, dict[str, Any]] = (PLAIN_CLASS, {})
    entry = CLASSES.get(shape["model"]["type"])
    # Only the plain class rebuilds an added token with its own rules.
    extra = [token for token in shape["added_tokens"] if not token["special"] or token["normalized"]]
    if entry is None or extra:
        return plain
    name, rules, settings_of = entry
    try:
        settings = settings_of(shape)
        actual = shape | {"model": {key: shape["model"].get(key) for key in MODEL_RULES}}
        fits = all(actual[part] == expected for part, expected in rules(shape, settings).items())
    except (KeyError, TypeError, IndexError):
        return plain
    return (name, settings) if fits else plain


def _bert_settings(shape: dict[str, Any]) -> dict[str, Any]:
    """The settings of transformers' BertTokenizer for this tokenizer."""
    rules = shape["normalizer"]
    return {
        "do_lower_case": rules["lowercase"],
        "strip_accents": rules["strip_accents"],
        "tokenize_chinese_chars": rules["handle_chinese_chars"],
    }


def _bert_rules(shape: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The rules that transformers' BertTokenizer builds from its settings."""
    return {
        "model": _model(unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings["tokenize_chinese_chars"],
            "strip_accents": settings["strip_accents"],
            "lowercase": settings["do_lower_case"],
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template(shape, "[CLS]", "[SEP]"),
    }


def _roberta_settings(shape: dict[str, Any]) -> dict[str, Any]:
    rules = shape["post_processor"]
    return {"add_prefix_space": rules["add_prefix_space"], "trim_offsets": rules["trim_offsets"]}


def _roberta_rules(shape: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The rules that transformers' RobertaTokenizer builds from its settings."""
    ids = {token["content"]: token["id"] for token in shape["added_tokens"]}
    prefix = settings["add_prefix_space"]
    flags = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {
        "model": _model(continuing_subword_prefix="", end_of_word_suffix="", **flags),
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True},
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": ["</s>", ids["</s>"]],
            "cls": ["<s>", ids["<s>"]],
            **settings,
        },
    }


def _albert_settings(shape: dict[str, Any]) -> dict[str, Any]:
    steps = [step["type"] for step in shape["normalizer"]["normalizers"]]
    return {"do_lower_case": "Lowercase" in steps, "keep_accents": "StripAccents" not in steps}


def _albert_rules(shape: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The rules that transformers' AlbertTokenizer builds from its settings."""
    steps = shape["normalizer"]["normalizers"]
    expected = [*QUOTES, *([] if settings["keep_accents"] else ACCENTS)]
    expected += [{"type": "Lowercase"}] if settings["do_lower_case"] else []
    # Deleting control characters first changes no id, so the class may leave it out.
    expected += [step for step in steps if step == DELETE_CONTROLS or step["type"] == "Precompiled"]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return {
        "model": _model(unk_id=1, byte_fallback=False),
        "normalizer": {"type": "Sequence", "normalizers": expected},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": _template(shape, "[CLS]", "[SEP]"),
    }


def _model(**rules: Any) -> dict[str, Any]:
    return dict.fromkeys(MODEL_RULES) | rules


def _template(shape: dict[str, Any], cls: str, sep: str) -> dict[str, Any]:
    """The post-processor that puts special tokens around one or two texts."""

    def special(name: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def text(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    ids = {token["content"]: token["id"] for token in shape["added_tokens"]}
    single = [special(cls, 0), text("A", 0), special(sep, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), special(sep, 1)],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (cls, sep)},
    }


CLASSES: dict[str, tuple[str, Any, Any]] = {
    "WordPiece": ("BertTokenizer", _bert_rules, _bert_settings),
    "BPE": ("RobertaTokenizer", _roberta_rules, _roberta_settings),
    "Unigram": ("AlbertTokenizer", _albert_rules, _albert_settings),
}


def _write(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8", newline="\n")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    _write(path, json.dumps(content, ensure_ascii=False, indent=2) + "\n")
