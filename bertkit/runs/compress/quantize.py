"""Stores weights in fewer bits: int8 for bertkit only, or bf16 and fp16 for everyone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit import machine
from bertkit.checkpoint.card import changed
from bertkit.checkpoint.families import FAMILIES
from bertkit.checkpoint.folder import Folder, read_folder, write_folder
from bertkit.checkpoint.locate import locate
from bertkit.checkpoint.translate import tensors_to
from bertkit.checkpoint.weights import INT8, SCALE
from bertkit.files import tensors as tensor_file
from bertkit.files.atomic import write_new
from bertkit.files.guarded import write_json
from bertkit.inference.predictor import Predictor
from bertkit.model.inference import to_int8
from bertkit.notify import note
from bertkit.runs.compress import measure
from bertkit.settings.compress import QuantizeSettings

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
OPENED_BY = {
    "int8": "opens in bertkit.load, not in transformers (`bertkit convert` writes floats again)",
    "bf16": "opens in bertkit.load and transformers",
    "fp16": "opens in bertkit.load and transformers",
}


def quantize(settings: QuantizeSettings) -> dict[str, Any]:
    """Quantize a model: write the smaller folder and compare it with the model."""
    before = Predictor.load(settings.model, settings.precision, "cpu")
    rows = measure.rows_to_score(settings, before)
    folder = read_folder(locate(settings.model))
    change = f"The weights are those of {settings.model}, rounded to {settings.to}."
    folder.about = changed(folder.about, change, {"rounded from": settings.model}, refitted=False)
    if settings.to == "int8":
        write_new(settings.out, lambda path: write_int8(path, folder))
        if not machine.has_fast_int8():
            note("This CPU has no int8 instructions: the model is smaller on disk, but not faster.")
    else:
        write_new(settings.out, lambda path: write_folder(path, folder, dtype=HALVES[settings.to]))
    after = Predictor.load(settings.out, settings.precision, "cpu")
    comparison = measure.side_by_side(settings, before, after, rows)
    measure.keep_scores(settings, comparison)
    return {"out": str(settings.out), "to": settings.to, "opened_by": OPENED_BY[settings.to], "compared": comparison}


def write_int8(path: Path, folder: Folder) -> None:
    """A model folder with its matrices in int8. Its weights file has a different name: transformers looks for
    model.safetensors, does not find it, and says so, instead of reading integers as weights.
    """
    write_folder(path, folder, weights="int8")
    write_json(path / "bertkit.json", folder.about | {"weights": "int8"})
    tensors: dict[str, Tensor] = {}
    for name, tensor in tensors_to(folder.model, FAMILIES[folder.family], folder.architecture).items():
        if tensor.dim() == 2 and min(tensor.shape) > 2:  # a head of two labels is small, and needs its precision
            tensors[name], tensors[name + SCALE] = to_int8(tensor)
        else:
            tensors[name] = tensor
    tensor_file.write(path / INT8, tensors)
    (path / "model.safetensors").unlink()
