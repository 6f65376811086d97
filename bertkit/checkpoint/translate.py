"""Between Hugging Face's config and tensors and ours, by the tables of families.py."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from bertkit.checkpoint.families import FAMILIES, Architecture, Family
from bertkit.errors import UserError, suggest
from bertkit.model.heads import Model
from bertkit.settings.model import Config

# their spelling → ours; the first spelling of a value is the one written
ACTIVATION = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
    "silu": "silu",
    "swish": "silu",
}
POOLING = {"cls": "first", "mean": "mean", "last": "last"}
SPELLINGS = {"activation": ACTIVATION, "summary_activation": ACTIVATION, "summary": POOLING}
REFUSED = {  # keys whose unusual values change what the model computes, and the only value we implement
    "position_embedding_type": "absolute",
    "sinusoidal_pos_embds": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "inner_group_num": 1,
    "sparse_prediction": False,
}


def family_of(raw: dict[str, Any], where: str) -> Family:
    """The family a config.json names."""
    kind = raw.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    hint = suggest(str(kind), list(FAMILIES))
    raise UserError(f"{where}: model_type is {kind!r}, which bertkit does not know. {hint}")


def config_from(raw: dict[str, Any], where: str) -> Config:
    """config.json → Config. `where` names the file in messages."""
    family = family_of(raw, where)
    raw = _plain_rotary(raw, where)
    for key, only in REFUSED.items():
        if raw.get(key, only) not in (only, None):
            raise UserError(f"{where}: {key} is {raw[key]!r}; bertkit implements only {only!r}.")
    numbers: dict[str, Any] = dict(family.fixed)
    for ours, theirs in family.numbers.items():
        value = raw.get(theirs, family.defaults.get(theirs))
        if value is None and ours == "head_dropout":
            value = numbers.get("dropout", raw.get("hidden_dropout_prob", 0.1))
        if value is None and ours == "padding":
            value = 0
        if value is None and ours == "inner":
            value = 4 * numbers["width"]  # GPT-2's n_inner
        if value is None:
            raise UserError(f"{where}: '{theirs}' is missing. Use the config.json that came with the weights.")
        if ours in SPELLINGS:
            if not isinstance(value, str) or value not in SPELLINGS[ours]:
                raise UserError(f"{where}: {theirs} is {value!r}. {suggest(str(value), list(SPELLINGS[ours]))}")
            value = SPELLINGS[ours][value]
        numbers[ours] = value
    wanted = {name: field.type for name, field in Config.__dataclass_fields__.items()}
    for name, value in numbers.items():
        if wanted[name] == "int" and (isinstance(value, bool) or not isinstance(value, int)):
            theirs = family.numbers.get(name, name)
            raise UserError(f"{where}: {theirs} is {value!r}; it must be a whole number.")
    if numbers.get("first_position"):
        numbers["first_position"] = numbers["padding"] + 1  # where RoBERTa starts to count, whatever the padding is
    if "max_tokens" not in numbers:
        numbers["max_tokens"] = numbers["positions"] - numbers.get("first_position", 0)
    try:
        return Config(**numbers)
    except UserError as mistake:
        # The reader has config.json before them, so the message speaks in its keys.
        keys = {"max_tokens": family.numbers.get("positions", "max_tokens")} | family.numbers
        spoken = re.sub(r"\w+", lambda word: keys.get(word[0], word[0]), str(mistake))
        raise UserError(f"{where}: {spoken}") from None


def _plain_rotary(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """transformers 5 writes layer_types and rope_parameters; bring them back to the three numbers they hold."""
    raw = dict(raw)
    ropes = raw.get("rope_parameters")
    if isinstance(ropes, dict):
        for kind, key in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
            rope = ropes.get(kind) or {}
            if not isinstance(rope, dict):
                raise UserError(f"{where}: rope_parameters.{kind} is {rope!r}; it must be an object.")
            if rope.get("rope_type", "default") != "default":
                raise UserError(f"{where}: rope_type {rope['rope_type']!r} is not implemented, only 'default'.")
            if "rope_theta" in rope:
                raw[key] = rope["rope_theta"]
    kinds = raw.get("layer_types")
    if isinstance(kinds, list) and kinds:
        full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
        every = full[1] if len(full) > 1 else max(len(kinds), 1)
        if full != list(range(0, len(kinds), every)):
            raise UserError(f"{where}: layer_types is not one global layer in every n, starting with the first.")
        raw["global_attn_every_n_layers"] = every
    return raw


def config_to(config: Config, family: Family, architecture: str, keep: dict[str, Any] | None = None) -> dict[str, Any]:
    """Config → config.json, on top of what a loaded config.json said (`keep`)."""
    raw: dict[str, Any] = dict(family.written) | dict(keep or {})
    for key in ("auto_map", "_name_or_path", "torch_dtype", "id2label", "label2id"):
        raw.pop(key, None)
    raw |= {"architectures": [architecture], "model_type": family.model_type, "dtype": "float32"}
    for ours, theirs in family.numbers.items():
        value = getattr(config, ours)
        if ours in SPELLINGS:
            value = next(spelling for spelling, meaning in SPELLINGS[ours].items() if meaning == value)
        raw[theirs] = value
    if family.model_type == "modernbert":
        raw["layer_types"] = [
            "full_attention" if config.is_global(i) else "sliding_attention" for i in range(config.depth)
        ]
        raw["rope_parameters"] = {
            "full_attention": {"rope_type": "default", "rope_theta": config.rotary_base},
            "sliding_attention": {"rope_type": "default", "rope_theta": config.local_rotary_base},
        }
        # transformers' ids for bos/eos/cls/sep default to its own vocabulary's; any id inside ours will do.
        raw |= {k: keep[k] if keep and k in keep else config.padding for k in _MODERN_IDS}
    return raw


def check_expressible(config: Config, family: Family) -> None:
    """Refuse numbers that the family's config.json cannot express: opened again, it would be a different model."""
    read = config_from(config_to(config, family, ""), "config.json")
    # Two come back otherwise and do no harm: a table has places to spare; one global layer is the first of any n.
    names = [f.name for f in fields(config) if f.name not in ("max_tokens", "global_every")]
    lost = [name for name in names if getattr(config, name) != getattr(read, name)]
    if lost:
        said = ", ".join(f"{name} = {getattr(config, name)!r} (it has {getattr(read, name)!r})" for name in lost)
        raise UserError(
            f"A folder of the family {family.model_type} cannot express {said}, and would be opened as a different "
            "model. "
            "Leave that out, or use a preset whose family supports it."
        )


_MODERN_IDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


def architecture_for(family: Family, heads: frozenset[str]) -> Architecture:
    """The transformers class that holds exactly these heads."""
    if heads in family.architectures:
        return family.architectures[heads]
    raise UserError(
        f"transformers has no {family.model_type} class with the heads {', '.join(sorted(heads))}; "
        f"it has: {'; '.join(a.name for a in family.architectures.values())}. Use a model or preset of another family."
    )


def heads_of(family: Family, architecture: str | None) -> frozenset[str] | None:
    """The heads of a transformers class, or None for an unknown class."""
    return next((heads for heads, a in family.architectures.items() if a.name == architecture), None)


def names(model: Model, family: Family, architecture: Architecture, base: str) -> dict[str, tuple[str, ...]]:
    """Our tensor → their tensor (or three to be joined), for every tensor of the model."""
    rows = dict(family.rows)
    if architecture.pooler:
        rows["pooler.dense"] = architecture.pooler
    table: dict[str, tuple[str, ...]] = {}
    for ours in model.state_dict():
        generic = re.sub(r"^encoder\.layers\.(\d+)\.", "encoder.layers.{n}.", ours)
        number = re.match(r"^encoder\.layers\.(\d+)\.", ours)
        module, _, leaf = generic.rpartition(".")
        theirs, ending = (rows[generic], "") if generic in rows else (rows.get(module), f".{leaf}")
        if theirs is None:
            continue  # the family has no place for it: a pooler no class of this family stores
        n = number.group(1) if number else ""
        parts = (theirs,) if isinstance(theirs, str) else theirs
        table[ours] = tuple(part.format(base=base, n=n) + ending for part in parts)
    return table


def _turned(ours: str, family: Family) -> bool:
    """Whether the family stores this weight as (in, out)."""
    return ours.endswith(tuple(f"{module}.weight" for module in family.transposed))


def tensors_to(model: Model, family: Family, architecture: Architecture) -> dict[str, Tensor]:
    """The model's tensors under transformers' names, without an untrained pooler's."""
    base = "" if not model.heads else family.base
    state = model.state_dict()
    out: dict[str, Tensor] = {}
    for ours, theirs in names(model, family, architecture, base).items():
        if ours.split(".")[0] in model.untrained:
            continue  # random numbers, which a reader would take for the model's
        tensor = state[ours].t() if _turned(ours, family) else state[ours]
        parts = (tensor,) if len(theirs) == 1 else tensor.chunk(3)
        out |= {name: part.detach().cpu().contiguous().clone() for name, part in zip(theirs, parts)}
    if "heads.mlm.decoder" in state and family.untied_bias:
        out[family.untied_bias] = out[str(family.rows["heads.mlm.bias"])].clone()
    return out


def tensors_from(
    raw: dict[str, Tensor], model: Model, family: Family, architecture: Architecture, where: str
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Their tensors → ours. Returns (state, our missing tensors, their tensors that were left over)."""
    with_base = any(key.startswith(family.base) for key in raw)
    if not model.config.tied and family.untied_bias in raw:
        raw = raw | {str(family.rows["heads.mlm.bias"]): raw[family.untied_bias]}
    state: dict[str, Tensor] = {}
    missing: list[str] = []
    used: set[str] = set()
    shapes = {k: v.shape for k, v in model.state_dict().items()}
    table = names(model, family, architecture, family.base if with_base else "")
    for ours in shapes:
        theirs = table.get(ours)
        if theirs is None or not all(name in raw for name in theirs):
            missing.append(ours)
            continue
        tensor = raw[theirs[0]] if len(theirs) == 1 else torch.cat([raw[name] for name in theirs])
        tensor = tensor.t() if _turned(ours, family) else tensor
        if tensor.shape != shapes[ours]:
            raise UserError(
                f"{where}: {theirs[0]} has shape {list(raw[theirs[0]].shape)}, but config.json expects "
                f"{[shapes[ours][0] // len(theirs), *shapes[ours][1:]]}. The two files do not belong together."
            )
        state[ours] = tensor.float()
        used.update(theirs)
    return state, missing, [key for key in raw if key not in used]
