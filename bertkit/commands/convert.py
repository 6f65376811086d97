"""`bertkit convert`: convert any checkpoint to a folder that bertkit and transformers open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit convert`."""

    source: str = option(
        help="A Google TensorFlow checkpoint, a folder, its weights file, or a hub name.", argument=True
    )
    target: Path = option(help="The folder to write.", argument=True)
    exact_google: bool = option(False, "Keep Google's tanh GELU instead of the erf GELU that transformers uses.")
    part: str = option(
        "", "Which half of Google's ELECTRA to convert (default: the discriminator).",
        choices=("", "discriminator", "generator"),
    )  # fmt: skip
    mix: str = option("", "A second model of the same shape and tokenizer: the weights of both are averaged.")
    share: float = option(0.5, "With --mix: the weight of the second model.", at_least=0, at_most=1)
    simplify: bool = option(False, "Let the tokenizer read traditional and full-width Chinese forms as simplified.")
    dtype: str = option("fp32", "Precision of the written weights.", choices=("fp32", "bf16", "fp16"))


def run(settings: Settings) -> dict[str, Any]:
    """Read a checkpoint of any kind and write a folder that bertkit and transformers open."""
    import torch

    from bertkit.checkpoint.folder import check_whole, read_folder, write_folder
    from bertkit.checkpoint.locate import locate
    from bertkit.errors import UserError
    from bertkit.files.atomic import check_new_folder
    from bertkit.files.atomic import write_folder as write_safely
    from bertkit.text.chinese_forms import simplified

    if settings.target.suffix in (".bin", ".safetensors"):
        raise UserError(f"{settings.target} names a file, but convert writes a folder. Leave out the last part.")
    check_new_folder(settings.target)
    folder = read_folder(locate(settings.source), google={"exact": settings.exact_google, "part": settings.part})
    check_whole(folder)
    if settings.simplify:
        folder.tokenizer = simplified(folder.tokenizer)
    mixed = _mix(folder, settings) if settings.mix else 0
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[settings.dtype]
    if settings.dtype != "fp32":
        remark = f"The weights were rounded to {settings.dtype}; the scores on this card were measured before rounding."
        folder.about = folder.about | {"notes": [*folder.about.get("notes", []), remark]}
    write_safely(settings.target, lambda path: write_folder(path, folder, dtype=dtype))
    parameters = sum(p.numel() for p in folder.model.parameters())
    return {
        "folder": str(settings.target), "family": folder.family, "class": folder.architecture.name,
        "heads": list(folder.model.heads), "parameters": parameters, "dtype": settings.dtype, "mixed": mixed,
    }  # fmt: skip


def _mix(folder: Any, settings: Settings) -> int:
    """`convert --mix`: average every weight that both models have. Returns how many parameters changed."""
    import torch

    from bertkit.checkpoint.card import changed
    from bertkit.checkpoint.folder import read_folder
    from bertkit.checkpoint.locate import locate
    from bertkit.errors import UserError
    from bertkit.notify import note

    second = read_folder(locate(settings.mix))
    if any(folder.tokenizer.id_to_token(n) != second.tokenizer.id_to_token(n) for n in range(folder.tokenizer.size)):
        raise UserError(
            f"{settings.mix} has a different vocabulary from {settings.source}. Mix models that share a tokenizer."
        )
    new = tuple("pooler." if part == "pooler" else f"heads.{part}." for part in second.model.untrained)
    second_weights = {name: tensor for name, tensor in second.model.named_parameters() if not name.startswith(new)}
    weights = dict(folder.model.named_parameters())
    shared = [name for name in weights if name in second_weights and weights[name].shape == second_weights[name].shape]
    if different := [name for name in weights if name.startswith("encoder.") and name not in shared]:
        raise UserError(
            f"{settings.mix} has a different shape from {settings.source}: {different[0]} differs. Mix models of the "
            "same shape."
        )
    with torch.no_grad():
        for name in shared:
            weights[name].lerp_(second_weights[name].to(weights[name].dtype), settings.share)
    changed_count = sum(weights[name].numel() for name in shared)
    remark = f"The weights are {1 - settings.share:g} of {settings.source} and {settings.share:g} of {settings.mix}."
    folder.about = changed(folder.about, remark, {"mixed from": f"{settings.source}, {settings.mix}"}, refitted=True)
    note(
        f"{len(shared)} of {len(weights)} tensors are {1 - settings.share:g} of {settings.source} and "
        f"{settings.share:g} of {settings.mix}; the others are taken from {settings.source}."
    )
    return changed_count


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `convert`: the folder, its class and its size, as one line."""
    return [
        f"{result['folder']}: {result['class']}, {result['parameters']:,} parameters in {result['dtype']}. "
        "bertkit.load and transformers open it."
    ]
