"""Exports a model for other programs: one ONNX file, or a folder with transformers' files only."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.checkpoint.folder import Folder, write_folder
from bertkit.data.windows import Row
from bertkit.errors import UserError
from bertkit.files.atomic import write_new
from bertkit.inference.predictor import Predictor
from bertkit.model.encoder import Encoded
from bertkit.model.heads import HEADS
from bertkit.notify import note
from bertkit.runs.compress import measure
from bertkit.runs.compress.onnx import OnnxModel, Padded, quantize_onnx, runtime, write_onnx
from bertkit.settings.compress import ExportSettings
from bertkit.tasks import task_classes

FILE = "model.onnx"
MAX_DIFFERENCE = 1e-3  # relative to the largest output; float32 sums in another order differ by some 1e-6
WORDS = {  # how others tag a word of several pieces
    "hf": "transformers uses the first piece of each word",
    "onnx": "The file gives outputs for every piece and leaves it to the caller how to combine them into words",
}


def export(settings: ExportSettings) -> dict[str, Any]:
    """Export a model (ONNX or transformers' files), compare it with the original, and report what it lacks."""
    exact = Predictor.load(settings.model, "fp32", "cpu")
    if exact.model.crf is not None:
        note("The CRF is not exported: the exported model tags each word independently.")
        exact.model.crf = None
    rows = measure.rows_to_score(settings, exact)
    temperature = 1.0
    if measure.has_task(exact):
        temperature = exact.task.fold_temperature(exact.model)
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
    answering = {task.head for task in task_classes().values()}
    kind = next((head for head in exact.model.heads if head in answering), "")
    if kind:
        exact.needs(kind, "be exported")
    if exact.pooling.refused and not kind:
        exact.pooling.check()
    if not kind and not exact.pooling.include_prompt:
        note("The ONNX file's sentence_embedding counts every token: this model leaves those of its prompts out.")
    padded = Padded(exact.model, kind, exact.pooling)
    after = copy(exact)
    differences: list[float] = []
    inputs: list[str] = []

    def fill(path: Path) -> None:
        _files(path, exact.folder)
        write_onnx(path / FILE, padded)
        if s.weights == "int8":
            quantize_onnx(path / FILE)
        opened = OnnxModel(path / FILE, exact.model, kind)
        after.model = opened  # type: ignore[assignment]
        inputs.extend(opened.inputs)
        differences.append(furthest(exact, after, kind))
        if s.weights == "fp32" and not differences[0] <= MAX_DIFFERENCE:
            raise UserError(
                f"The ONNX file's outputs differ from the model's by up to {differences[0]:.2g} of the largest output; "
                "at most "
                f"{MAX_DIFFERENCE:g} is allowed. Nothing was written; try another torch or onnxruntime version."
            )

    write_new(s.out, fill)
    after.precision = f"onnx {s.weights}"
    before = _usual(s, exact)
    return {"file": FILE, "inputs": inputs, "outputs": list(padded.names), "max_difference": differences[0],
            "compared": measure.side_by_side(s, before, after, rows)}  # fmt: skip


def _usual(s: ExportSettings, exact: Predictor) -> Predictor:
    """The model as bertkit would run it here."""
    before = Predictor.load(s.model, s.precision, "cpu")
    before.model.crf = exact.model.crf
    return before


def furthest(first: Predictor, second: Predictor, kind: str) -> float:
    """How far an export is off: the largest difference of outputs on sample rows, relative to the largest output."""
    if measure.has_task(first):
        items = first.task.encode(measure.sample_rows(first)[:40], first.tokenizer, first.windows())
        rows = [row for item in items for row in item.rows]
    else:
        texts = measure.sample_rows(first)[:40]
        rows = [Row(ids, None, (0, len(ids))) for ids in first.tokenizer.ids_batch(texts) if ids]

    def numbers(model: Predictor) -> np.ndarray:
        def use(encoded: Encoded) -> list[np.ndarray]:
            outputs = model.model.ask(kind, encoded) if kind else encoded.tokens
            by_text = kind and HEADS[kind].looks_at == "pooler"
            parts = list(encoded.batch.restore(outputs)) if by_text else encoded.batch.split(outputs)
            return [part.numpy().reshape(-1) for part in parts]

        return np.concatenate(model.run(rows, use))

    a, b = numbers(first), numbers(second)
    return float(np.abs(a - b).max() / max(1e-9, np.abs(a).max()))


def _files(path: Path, folder: Folder) -> None:
    """Copy all files except the weights and bertkit's own: tokenizer, config, labels."""
    write_folder(path, folder, weights="onnx")
    for name in ("model.safetensors", "bertkit.json"):
        (path / name).unlink()


def _hf(s: ExportSettings, exact: Predictor, rows: list[Any] | None) -> dict[str, Any]:
    before = _usual(s, exact)
    folder = exact.folder
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[s.weights]

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
            "any batch size and length, rows padded at the end. Opens in onnxruntime, not in bertkit.load.",
        ]
    else:
        rows.append(f"{result['out']}: {result['class']}; opens in transformers and bertkit.load.")
    return rows
