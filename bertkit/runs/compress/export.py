"""Exports a model for other programs: one ONNX file, or a folder with transformers' files only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.checkpoint.folder import ANSWERING, Folder, read_onnx, write_folder
from bertkit.data.windows import Row
from bertkit.errors import UserError
from bertkit.files.atomic import write_new
from bertkit.inference.predictor import Predictor
from bertkit.model.engine import FILES, Wanted
from bertkit.notify import note
from bertkit.runs.compress import measure
from bertkit.runs.compress.onnx import Padded, quantize_onnx, runtime, write_onnx
from bertkit.settings.compress import ExportSettings

MAX_DIFFERENCE = 1e-3  # relative to the largest output; float32 sums in another order differ by some 1e-6
NO_CRF = {
    "hf": "The CRF is not exported: the exported model tags each word independently.",
    "onnx": "bertkit uses the CRF of the exported folder; other programs read the file's tags of each word alone.",
}
WORDS = {  # how others tag a word of several pieces
    "hf": "transformers uses the first piece of each word",
    "onnx": "The file gives outputs for every piece and leaves it to the caller how to combine them into words",
}


def export(settings: ExportSettings) -> dict[str, Any]:
    """Export a model (ONNX or transformers' files), compare it with the original, and report what it lacks."""
    exact = Predictor.load(settings.model, "fp32", "cpu", engine="torch")
    if exact.model.crf is not None:
        note(NO_CRF[settings.format])
    if exact.model.crf is not None and settings.format == "hf":
        exact.model.crf = exact.engine.crf = None
    rows = measure.rows_to_score(settings, exact)
    temperature = 1.0
    if measure.has_task(exact):
        temperature = exact.task.fold_temperature(exact.model)
        exact.folder.about = exact.folder.about | {"options": exact.task.options} if exact.folder.about else {}
        _tell_left_behind(exact.task.options, settings.format)
    parts = {"onnx": _onnx, "hf": _hf}[settings.format](settings, exact, rows)
    return {
        "out": str(settings.out), "format": settings.format, "model": settings.model,
        "temperature_folded_in": temperature, **parts,
    }  # fmt: skip


def _tell_left_behind(options: dict[str, Any], format: str) -> None:
    """Report what the task does with the head's outputs that other programs will not."""
    word = options.get("word", "first")
    if word != "first":
        note(f"{WORDS[format]}; this model was trained with the {word} over all pieces of a word.")
    if mean := options.get("mean", 0.0):
        note(f"The outputs are centred: add {mean:g} to each (this family's head has no bias).")
    if (least := options.get("abstain")) is not None:
        note(
            f"Abstention is not exported: bertkit marks answers with a score below {least:.3g}, other programs do not."
        )
    if (threshold := options.get("threshold")) is not None:
        note(f"The answer threshold of {threshold:.3g} chosen for this model is not exported.")
    if options.get("thresholds"):
        note("The threshold of every label is in config.json under 'thresholds'; other programs use 0.5 unless told.")


def _onnx(s: ExportSettings, exact: Predictor, rows: list[Any] | None) -> dict[str, Any]:
    runtime()
    folder = _torch_folder(exact)
    kind = next((head for head in ANSWERING if head in exact.model.heads), "")
    if kind and (kind != "mlm" or folder.pooling is None):
        exact.needs(kind, "be exported")
    else:
        kind = ""
    if exact.pooling.refused and not kind:
        exact.pooling.check()
    if not kind and not exact.pooling.include_prompt:
        note("The ONNX file's sentence_embedding counts every token: this model leaves those of its prompts out.")
    padded = Padded(exact.model, kind, exact.pooling)
    wanted = ("fp32", "int8") if not s.weights else (s.weights,)
    differences: dict[str, float] = {}

    def fill(path: Path) -> None:
        write_folder(path, folder, weights="onnx")
        (path / "model.safetensors").unlink()
        (path / "onnx").mkdir()
        write_onnx(path / FILES["fp32"], padded)
        if "int8" in wanted:
            quantize_onnx(path / FILES["fp32"], path / FILES["int8"])
        if "fp32" not in wanted:
            (path / FILES["fp32"]).unlink()
        for weights in wanted:
            opened = Predictor(read_onnx(path, precision=weights, verify=False))
            differences[weights] = furthest(exact, opened, kind)
        if not differences.get("fp32", 0.0) <= MAX_DIFFERENCE:
            raise UserError(
                f"The ONNX file's outputs differ from the model's by up to {differences['fp32']:.2g} of the largest "
                "output; at most "
                f"{MAX_DIFFERENCE:g} is allowed. Nothing was written; try another torch or onnxruntime version."
            )

    write_new(s.out, fill)
    before = Predictor.load(s.model, s.precision, "cpu", engine="torch")
    after = {weights: Predictor.load(s.out, weights, "cpu", engine="onnx") for weights in wanted}
    compared = {
        weights: measure.side_by_side(s, before, opened, rows, s.out / FILES[weights])
        for weights, opened in after.items()
    }
    first, *others = wanted
    return {"file": FILES[first], "inputs": list(padded.inputs), "outputs": list(padded.names),
            "max_difference": differences[first], "compared": compared[first],
            "others": {weights: {"file": FILES[weights], "max_difference": differences[weights],
                                 "compared": compared[weights]} for weights in others}}  # fmt: skip


def _torch_folder(predictor: Predictor) -> Folder:
    """What is written again: only weights that torch has read can be."""
    assert isinstance(predictor.folder, Folder)
    return predictor.folder


def _usual(s: ExportSettings, exact: Predictor) -> Predictor:
    """The model as bertkit would run it here."""
    before = Predictor.load(s.model, s.precision, "cpu", engine="torch")
    before.model.crf, before.engine.crf = exact.model.crf, exact.engine.crf
    return before


def furthest(first: Predictor, second: Predictor, kind: str) -> float:
    """How far an export is off: the largest difference of outputs on sample rows, relative to the largest output."""
    if measure.has_task(first):
        items = first.task.encode(measure.sample_rows(first)[:40], first.tokenizer, first.windows())
        rows = [row for item in items for row in item.rows]
    else:
        texts = measure.sample_rows(first)[:40]
        rows = [Row(ids, None, (0, len(ids))) for ids in first.tokenizer.ids_batch(texts) if ids]
    a, b = (
        np.concatenate([array.reshape(-1) for array in side.engine.run(rows, Wanted(kind))]) for side in (first, second)
    )
    return float(np.abs(a - b).max() / max(1e-9, np.abs(a).max()))


def _hf(s: ExportSettings, exact: Predictor, rows: list[Any] | None) -> dict[str, Any]:
    before = _usual(s, exact)
    folder = _torch_folder(exact)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[s.weights or "fp32"]

    def fill(path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / "README.md").write_text(_card(folder), "utf-8")
        write_folder(path, folder, dtype=dtype)
        (path / "bertkit.json").unlink()

    write_new(s.out, fill)
    after = Predictor.load(s.out, s.precision, "cpu")
    if measure.has_task(exact):
        after.task = exact.task  # bertkit.json is not exported; the task is known here
    return {"class": folder.architecture.name, "compared": measure.side_by_side(s, before, after, rows)}


def _card(folder: Folder) -> str:
    name = folder.architecture.name
    return (
        f"---\nlibrary_name: transformers\n---\n# {name}\n\n```python\nfrom transformers import AutoTokenizer, {name}\n"
        f'tokenizer = AutoTokenizer.from_pretrained("this folder")\nmodel = {name}.from_pretrained("this folder")\n'
        "```\n"
    )


def lines(result: dict[str, Any]) -> list[str]:
    """What `bertkit export` prints: the comparison, and what opens it."""
    rows = measure.lines(result["compared"])
    if result["format"] == "onnx":
        rows += [
            f"{'largest difference':24}{'':12}{result['max_difference']:12.1e}   of the largest output, compared with "
            "fp32",
            f"{result['out']}/{result['file']}: {', '.join(result['inputs'])} → {', '.join(result['outputs'])}; "
            "any batch size and length, rows padded at the end.",
        ]
        for weights, other in result["others"].items():
            rows += ["", f"{weights}: {other['file']}", *measure.lines(other["compared"])]
        rows.append(f"{result['out']}: opens in bertkit.load (with or without torch), optimum and transformers.js.")
    else:
        rows.append(f"{result['out']}: {result['class']}; opens in transformers and bertkit.load.")
    return rows
