"""Between Hugging Face's config and tensors and ours, by the table of families."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from bertkit.checkpoint.families import FAMILIES, Architecture, Family
from bertkit.errors import UserError, suggest
from bertkit.machine import torch
from bertkit.settings.model import Config

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.model.heads import Model

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
    """The family that a config.json names, with which it is translated."""
    kind = raw.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    nearest = _nearest(raw)
    hint = f" Its config.json is most like {nearest}'s, but only by its keys." if nearest else ""
    raise UserError(
        f"{where}: model_type is {kind!r}, which bertkit does not implement. It implements {', '.join(FAMILIES)}."
        f"{hint} Use a model of one of these."
    )


def _nearest(raw: dict[str, Any]) -> str:
    """The family whose keys an unknown config.json shares most of: keys describe the parts of a model, names do not."""

    def likeness(family: Family) -> float:
        keys = {*family.numbers.values(), *family.fold(Config(vocabulary=1))}
        return len(keys & set(raw)) / len(keys)

    if raw.get("is_encoder_decoder"):
        return ""
    best = max(FAMILIES.values(), key=likeness)
    return best.model_type if likeness(best) > 0.6 else ""


def config_from(raw: dict[str, Any], where: str) -> Config:
    """Translate a config.json of transformers to our Config. `where` names the file in messages."""
    family = family_of(raw, where)
    older = family.older_keys
    raw = {older[key]: value for key, value in raw.items() if key in older} | raw
    for key, only in (REFUSED | family.refused).items():
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
        if spellings := _spellings(family, ours):
            if not isinstance(value, str) or value not in spellings:
                raise UserError(f"{where}: {theirs} is {value!r}. {suggest(str(value), list(spellings))}")
            value = spellings[value]
        numbers[ours] = value
    numbers |= family.derive(raw, where)
    wanted = {name: field.type for name, field in Config.__dataclass_fields__.items()}
    for name, value in numbers.items():
        if wanted[name] == "int" and (isinstance(value, bool) or not isinstance(value, int)):
            theirs = family.numbers.get(name, name)
            raise UserError(f"{where}: {theirs} is {value!r}; it must be a whole number.")
    if "max_tokens" not in numbers:
        numbers["max_tokens"] = numbers["positions"] - numbers.get("first_position", 0)
    try:
        return Config(**numbers)
    except UserError as mistake:
        # The reader has config.json before them, so the message speaks in its keys.
        keys = {"max_tokens": family.numbers.get("positions", "max_tokens")} | family.numbers
        spoken = re.sub(r"\w+", lambda word: keys.get(word[0], word[0]), str(mistake))
        raise UserError(f"{where}: {spoken}") from None


def _spellings(family: Family, ours: str) -> dict[str, str]:
    return family.spellings.get(ours) or SPELLINGS.get(ours, {})


def config_to(config: Config, family: Family, architecture: str, keep: dict[str, Any] | None = None) -> dict[str, Any]:
    """Translate our Config to transformers' config.json, on top of what a loaded config.json said (`keep`)."""
    raw: dict[str, Any] = dict(family.written) | dict(keep or {})
    for key in ("auto_map", "_name_or_path", "torch_dtype", "id2label", "label2id", *family.older_keys):
        raw.pop(key, None)
    raw |= {"architectures": [architecture], "model_type": family.model_type, "dtype": "float32"}
    for ours, theirs in family.numbers.items():
        value = getattr(config, ours)
        if spellings := _spellings(family, ours):
            value = next((spelling for spelling, meaning in spellings.items() if meaning == value), value)
        raw[theirs] = value
    raw |= family.fold(config)
    # transformers' ids for bos/eos/cls/sep may default to its own vocabulary's; any id inside ours will do.
    return raw | {key: keep[key] if keep and key in keep else config.padding for key in family.own_ids}


def check_expressible(config: Config, family: Family) -> None:
    """Refuse numbers that the family's config.json cannot express: opened again, it would be a different model."""
    read = config_from(config_to(config, family, ""), "config.json")
    # Two come back otherwise and do no harm: a table has places to spare; one global layer is the first of any n.
    names = [f.name for f in fields(config) if f.name not in ("max_tokens", "global_every")]
    lost = [name for name in names if getattr(config, name) != getattr(read, name)]
    if lost:
        listed = ", ".join(f"{name} = {getattr(config, name)!r} (it has {getattr(read, name)!r})" for name in lost)
        raise UserError(
            f"A folder of the family {family.model_type} cannot express {listed}, and would be opened as a different "
            "model. "
            "Leave that out, or use a preset whose family supports it."
        )


def architecture_for(family: Family, heads: frozenset[str]) -> Architecture:
    """The transformers class that holds exactly these heads, to translate a model to."""
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
    """The translation of tensor names: ours → transformers' (or three to be joined), for every tensor of the model."""
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
    """Whether a family's checkpoints store this weight as (in, out)."""
    return ours.endswith(tuple(f"{module}.weight" for module in family.transposed))


def _rotated(ours: str, tensor: Tensor, family: Family, config: Config, *, back: bool = False) -> Tensor:
    """Queries and keys whose neighbours rotate together, in our order: a head's even rows, then its odd ones.

    The scores are the same, as every query and key is reordered alike. tensor: (3 · width, …). `back`: to their order.
    """
    if f".{ours.rpartition('.')[0]}.".endswith(tuple(f".{module}." for module in family.interleaved)):
        turning, rest = tensor[: 2 * config.width], tensor[2 * config.width :]
        pairs = (2, config.head_width // 2) if back else (config.head_width // 2, 2)
        by_head = turning.reshape(2 * config.heads, *pairs, *turning.shape[1:])
        return torch.cat((by_head.transpose(1, 2).reshape(turning.shape), rest))
    return tensor


def _sizes(config: Config, parts: int) -> list[int]:
    """Rows of each tensor of a checkpoint that we keep as one: query, key and value, or the two of a gated layer."""
    return [config.width, config.key_width, config.key_width] if parts == 3 else [config.inner, config.inner]


def tensors_to(model: Model, family: Family, architecture: Architecture) -> dict[str, Tensor]:
    """Translate the model's tensors to transformers' names, without an untrained pooler's."""
    base = "" if not model.heads else family.base
    state, config = model.state_dict(), model.config
    out: dict[str, Tensor] = {}
    for ours, theirs in names(model, family, architecture, base).items():
        if ours.split(".")[0] in model.untrained:
            continue  # random numbers, which a reader would take for the model's
        tensor = state[ours].t() if _turned(ours, family) else state[ours]
        tensor = _rotated(ours, tensor, family, config, back=True)
        parts = (tensor,) if len(theirs) == 1 else tensor.split(_sizes(config, len(theirs)))
        out |= {name: part.detach().cpu().contiguous().clone() for name, part in zip(theirs, parts)}
    if "heads.mlm.decoder" in state and family.untied_bias:
        out[family.untied_bias] = out[str(family.rows["heads.mlm.bias"])].clone()
    return out | {name.format(base=base): table(config) for name, table in family.computed.items()}


def todays(raw: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Older names of tensors translated to those transformers uses today; `{a,b}` splits a tensor into equal parts."""
    if not family.older_tensors:
        return raw
    renamed: dict[str, Tensor] = {}
    for name, tensor in raw.items():
        for pattern, today in family.older_tensors:
            name = re.sub(pattern, today, name)
        start, _, rest = name.partition("{")
        parts, _, end = rest.partition("}")
        if parts:
            ends = [f"{start}{part}{end}" for part in parts.split(",")]
            renamed |= dict(zip(ends, tensor.chunk(len(ends))))
        else:
            renamed[name] = tensor
    return renamed


def tensors_from(
    raw: dict[str, Tensor], model: Model, family: Family, architecture: Architecture, where: str
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Translate transformers' tensors to ours.

    Returns (state, our missing tensors, their tensors that were left over).
    """
    raw = todays(raw, family)
    with_base = any(key.startswith(family.base) for key in raw)
    base = family.base if with_base else ""
    if not model.config.tied and family.untied_bias in raw:
        raw = raw | {str(family.rows["heads.mlm.bias"]): raw[family.untied_bias]}
    state: dict[str, Tensor] = {}
    missing: list[str] = []
    used: set[str] = set()
    shapes = {k: v.shape for k, v in model.state_dict().items()}
    table = names(model, family, architecture, base)
    for ours in shapes:
        theirs = table.get(ours)
        if theirs is None or not all(name in raw for name in theirs):
            weights = [name.removesuffix("bias") + "weight" for name in theirs or ()]
            if family.zero_biases and ours.endswith("bias") and any(name in raw for name in weights):
                state[ours] = torch.zeros(shapes[ours])
            else:
                missing.append(ours)
            continue
        tensor = raw[theirs[0]] if len(theirs) == 1 else torch.cat([raw[name] for name in theirs])
        tensor = tensor.t() if _turned(ours, family) else tensor
        if tensor.shape != shapes[ours]:
            sizes = [shapes[ours][0]] if len(theirs) == 1 else _sizes(model.config, len(theirs))
            raise UserError(
                f"{where}: {theirs[0]} has shape {list(raw[theirs[0]].shape)}, but config.json expects "
                f"{[sizes[0], *shapes[ours][1:]]}. The two files do not belong together."
            )
        state[ours] = _rotated(ours, tensor, family, model.config).float()
        used.update(theirs)
    for name, make in family.computed.items():
        stored = raw.get(name.format(base=base))
        if stored is not None and not torch.allclose(stored.float(), make(model.config), atol=1e-2):
            raise UserError(
                f"{where}: {name.format(base=base)} is not the table of sines and cosines that follows from "
                "config.json. bertkit computes it and cannot use another one."
            )
        used.add(name.format(base=base))
    return state, missing, [key for key in raw if key not in used]
