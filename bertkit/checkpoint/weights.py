"""Weight files in: safetensors, sharded safetensors, and (with a warning) pytorch_model.bin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.errors import DamagedFile, UserError
from bertkit.files.guarded import open_regular, read_json
from bertkit.machine import torch
from bertkit.notify import note

if TYPE_CHECKING:
    from torch import Tensor

WRAPPERS = ("module.", "_orig_mod.", "_forward_module.")  # left by DDP, torch.compile and DeepSpeed
INSIDE = "model."  # left by Lightning and the like; but some families' own names begin so
INT8, SCALE = "model.int8.safetensors", ".scale"  # whole numbers, and beside each matrix the scales of its rows
NEVER_STORED = ("position_ids", "token_type_ids", "rotary_emb.inv_freq")  # buffers of older transformers


def read_weights(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """Every tensor in a model folder's weight file(s), under cleaned names, and the file they came from."""
    single, index, pickled = (
        folder / name for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    )
    if single.is_file():
        return clean(_safetensors(single)), single
    if index.is_file():
        return clean(_sharded(index)), index
    if (folder / INT8).is_file():
        return clean(_unscaled(_safetensors(folder / INT8), folder / INT8)), folder / INT8
    if pickled.is_file():
        return clean(_pickled(pickled)), pickled
    there = ", ".join(sorted(p.name for p in folder.iterdir())) or "nothing"
    raise UserError(
        f"{folder}: this folder contains no model.safetensors or pytorch_model.bin (it contains: {there}). Copy the "
        "weights into it too; or, if it was exported, its onnx folder."
    )


def has_weights(folder: Path) -> bool:
    """Whether a folder has a weight file that torch can read."""
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", INT8)
    return not folder.is_dir() or any((folder / name).is_file() for name in names)


def clean(raw: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names in a weight file without wrappers' prefixes, norms spelled weight and bias, buffers dropped."""
    raw = unwrapped(raw, WRAPPERS * 2)
    renamed = {
        key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for key, tensor in raw.items()
    }
    return {key: tensor for key, tensor in renamed.items() if not key.endswith(NEVER_STORED)}


def unwrapped(tensors: dict[str, Tensor], prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """The tensors of a weight file without the prefix that a training wrapper put before every name."""
    for prefix in prefixes:
        if tensors and all(key.startswith(prefix) for key in tensors):
            note(f"Every tensor's name begins with '{prefix}', left by a training wrapper; the prefix was stripped.")
            tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return tensors


def _safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a model.safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    open_regular(path).close()
    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as reason:
        raise DamagedFile(
            f"{path} is not a complete safetensors file ({reason}; {path.stat().st_size:,} bytes). "
            "Copy or download it again."
        ) from None


def _unscaled(raw: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Int8 matrices of a weight file converted to the floats they represent."""
    from bertkit.model.inference import from_int8

    for name in [name for name, tensor in raw.items() if tensor.dtype == torch.int8]:
        scale = raw.pop(name + SCALE, None)
        if scale is None or scale.shape != (len(raw[name]), 1):
            raise DamagedFile(f"{path}: {name} does not have one scale per row. Copy the file again.")
        raw[name] = from_int8(raw[name], scale)
    return raw


def _sharded(index: Path) -> dict[str, Tensor]:
    """The tensors of several safetensors files, by their index."""
    try:
        files = sorted(set(read_json(index)["weight_map"].values()))
    except (KeyError, TypeError, AttributeError):
        raise DamagedFile(f"{index}: not a safetensors index. Copy or download it again.") from None
    tensors: dict[str, Tensor] = {}
    for name in files:
        # A name from the file must stay inside the folder.
        if not isinstance(name, str) or Path(name).name != name:
            raise UserError(f"{index}: names the file {name!r}, which is not a plain file name, so it was not opened.")
        if not (index.parent / name).is_file():
            raise DamagedFile(f"{index}: names {name}, which is not in the folder. Copy or download it again.")
        tensors |= _safetensors(index.parent / name)
    return tensors


def _pickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a pytorch_model.bin, without running any code in it."""
    note(
        f"{path.name} is a pickle file: bertkit reads tensors from it and refuses anything else. "
        "Convert it once with `bertkit convert` and use model.safetensors from then on."
    )
    try:
        raw = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as reason:
        words = (str(reason) or type(reason).__name__).splitlines()[0][:200]
        raise DamagedFile(
            f"{path} holds more than tensors, or is incomplete; nothing in it was executed ({words}). "
            "Use a safetensors version of the model."
        ) from None
    if isinstance(raw, dict) and isinstance(raw.get("state_dict"), dict):
        raw = raw["state_dict"]
    if not isinstance(raw, dict) or not all(isinstance(k, str) and isinstance(t, torch.Tensor) for k, t in raw.items()):
        raise DamagedFile(
            f"{path}: not a state_dict. Save the model's state_dict, or use a safetensors version of the model."
        )
    return raw
