"""Exports a model for other programs: one ONNX file, or a folder with transformers' files only."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.checkpoint.folder import ANSWERING, Folder, read_onnx, write_folder
from bertkit.data.readers import read_rows
from bertkit.data.windows import Row, Windows, encode_rows
from bertkit.errors import UserError
from bertkit.files.atomic import write_new
from bertkit.inference.predictor import Predictor
from bertkit.model.engine import FILES, Wanted
from bertkit.notify import note
from bertkit.runs.compress import measure
from bertkit.runs.compress.onnx import (
    CALIBRATIONS,
    MOST_CALIBRATED,
    Padded,
    quantize_onnx,
    quantize_static,
    runtime,
    write_onnx,
)
from bertkit.settings.compress import ExportSettings
from bertkit.tasks.base import Reading

MAX_DIFFERENCE = 1e-3  # relative to the largest output; float32 sums in another order differ by some 1e-6
DYNAMIC = "int8, without --calibrate"
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
        note(NO_CRF["onnx" if settings.format == "onnx" else "hf"])
    if exact.model.crf is not None and settings.format == "hf":
        exact.model.crf = exact.engine.crf = None
    rows = measure.rows_to_score(settings, exact)
    temperature = 1.0
    if measure.has_task(exact):
        temperature = exact.task.fold_temperature(exact.model)
        exact.folder.about = exact.folder.about | {"options": exact.task.options} if exact.folder.about else {}
        _report_left_behind(exact.task.options, "hf" if settings.format == "hf" else "onnx")
    parts = {"onnx": _onnx, "hf": _hf, "web": _web}[settings.format](settings, exact, rows)
    return {
        "out": str(settings.out), "format": settings.format, "model": settings.model,
        "temperature_folded_in": temperature, **parts,
    }  # fmt: skip


def _report_left_behind(options: dict[str, Any], format: str) -> None:
    """Report what an export leaves behind: what the task does with the outputs that other programs will not."""
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
        note(
            "The threshold of every label is in config.json under 'thresholds'; "
            "other programs use 0.5 unless you set them."
        )


def _onnx(s: ExportSettings, exact: Predictor, rows: list[Any] | None) -> dict[str, Any]:
    """Export the ONNX files of a folder, open each as a user will, and compare it with the model."""
    runtime()
    with tempfile.TemporaryDirectory() as spare:
        files = _OnnxFiles(s, exact, Path(spare))
        write_new(s.out, files.fill)
        opened = files.opened()
        compared = files.compared(opened, rows)
    first, *others = opened
    off = files.differences
    return {"file": FILES[first], "inputs": list(files.padded.inputs), "outputs": list(files.padded.names),
            "max_difference": off[first], "compared": compared[first], "calibrations": files.calibrations,
            "others": {weights: {"file": FILES.get(weights, ""), "max_difference": off[weights],
                                 "compared": compared[weights]} for weights in others}}  # fmt: skip


class _OnnxFiles:
    """The ONNX files of an export by their weights, and how far each is off.

    dynamic: with --calibrate, the folder that holds the other kind of int8 file, to be compared with; else None.
    """

    def __init__(self, settings: ExportSettings, exact: Predictor, spare: Path) -> None:
        self.settings, self.exact, self.folder = settings, exact, _torch_folder(exact)
        self.kind = _head_to_export(exact, self.folder)
        self.padded = Padded(exact.model, self.kind, exact.pooling)
        self.wanted = (settings.weights,) if settings.weights else ("fp32", "int8")
        self.examples = _to_calibrate(settings, exact)
        self.dynamic = spare / "dynamic" if self.examples is not None and "int8" in self.wanted else None
        self.differences: dict[str, float] = {}
        self.calibrations: dict[str, float] = {}

    def fill(self, path: Path) -> None:
        """Write an export's files into an empty folder; refuse an fp32 file whose outputs are not the model's."""
        write_folder(path, self.folder, weights="onnx")
        (path / "model.safetensors").unlink()
        (path / "onnx").mkdir()
        write_onnx(path / FILES["fp32"], self.padded)
        if "int8" in self.wanted:
            quantize_onnx(path / FILES["fp32"], path / FILES["int8"])
            if self.dynamic is not None and self.examples is not None:
                shutil.copytree(path, self.dynamic)
                self.calibrations = _calibrate(path, self.exact, self.kind, rows_of(self.exact, self.examples))
        if "fp32" not in self.wanted:
            (path / FILES["fp32"]).unlink()
        for weights in self.wanted:
            opened = Predictor(read_onnx(path, precision=weights, verify=False))
            self.differences[weights] = furthest(self.exact, opened, self.kind)
        if not self.differences.get("fp32", 0.0) <= MAX_DIFFERENCE:
            raise UserError(
                f"The ONNX file's outputs differ from the model's by up to {self.differences['fp32']:.2g} of the "
                "largest output; at most "
                f"{MAX_DIFFERENCE:g} is allowed. Nothing was written; try another torch or onnxruntime version."
            )

    def opened(self) -> dict[str, Predictor]:
        """An export's files as a user opens them, by their weights; the one to compare with is last."""
        s = self.settings
        predictors = {weights: Predictor.load(s.out, weights, "cpu", engine="onnx") for weights in self.wanted}
        if self.dynamic is not None:
            predictors[DYNAMIC] = Predictor(read_onnx(self.dynamic, precision="int8", verify=False))
            self.differences[DYNAMIC] = furthest(self.exact, predictors[DYNAMIC], self.kind)
        return predictors

    def compared(self, opened: dict[str, Predictor], rows: list[Any] | None) -> dict[str, dict[str, Any]]:
        """An export's files beside the model as it was: scores, answers, size and speed, by their weights."""
        s, exact = self.settings, self.exact
        before = Predictor.load(s.model, s.precision, "cpu", engine="torch")
        has_words = self.kind == "token" and measure.has_task(exact)
        joined = exact.task.options.get("word", "first") if has_words else "first"
        if joined == "max" or (joined == "mean" and exact.config.token_transform):
            note(
                f"bertkit needs torch for the {joined} of a word's pieces: the files are compared by each first piece."
            )
            for side in (before, *opened.values()):
                side.task.options["word"] = "first"
        files = {weights: s.out / FILES[weights] for weights in self.wanted}
        if self.dynamic is not None:
            files[DYNAMIC] = self.dynamic / FILES["int8"]
        return {
            weights: measure.side_by_side(s, before, model, rows, files[weights]) for weights, model in opened.items()
        }


def _head_to_export(exact: Predictor, folder: Folder) -> str:
    """The head whose outputs an ONNX export gives; "" for vectors, after a note on what they leave out."""
    kind = next((head for head in ANSWERING if head in exact.model.heads), "")
    if kind and (kind != "mlm" or folder.pooling is None):
        exact.needs(kind, "be exported")
        return kind
    if exact.pooling.refused:
        exact.pooling.check()
    if not exact.pooling.include_prompt:
        note("The ONNX file's sentence_embedding counts every token: this model leaves those of its prompts out.")
    return ""


def _to_calibrate(s: ExportSettings, exact: Predictor) -> list[Any] | None:
    """The rows of `export --calibrate`, read before anything is written; None without the option."""
    if s.calibrate is None:
        return None
    if measure.has_task(exact):
        reading = Reading(s.text, s.text_b, s.label, s.encoding, s.label_separator)
        examples = exact.task.read(s.calibrate, exact.task.reading_of(s.calibrate, reading), labelled=False)
    else:
        examples = [row.text for row in read_rows(s.calibrate, text=s.text, labelled=False, encoding=s.encoding)]
    if not examples:
        raise UserError(f"{s.calibrate} has no rows. Pass a file with some dozens of texts as the model will get.")
    return examples


def _calibrate(path: Path, exact: Predictor, kind: str, rows: list[Row]) -> dict[str, float]:
    """Replace the exported int8 file by a static one: of both ways to choose ranges, the one that is off by less.

    Returns how far either is off, on rows that the ranges were not taken from where there are enough.
    """
    held_out = rows[MOST_CALIBRATED:][:40] or rows[:40]
    fp32 = read_onnx(path, precision="fp32", verify=False).engine
    feeds = [fp32.feed([row]) for row in rows[:MOST_CALIBRATED] if row.ids]
    off: dict[str, float] = {}
    candidates = {calibration: path / f"onnx/{n}.onnx" for n, calibration in enumerate(CALIBRATIONS)}
    for calibration, file in candidates.items():
        quantize_static(path / FILES["fp32"], file, feeds, calibration)
        file.replace(path / FILES["int8"])
        opened = Predictor(read_onnx(path, precision="int8", verify=False))
        off[calibration] = _mean_difference(exact, opened, kind, held_out)
        (path / FILES["int8"]).replace(file)
    best = min(off, key=off.__getitem__)
    for calibration, file in candidates.items():
        if calibration == best:
            file.replace(path / FILES["int8"])
        else:
            file.unlink()
    return dict(sorted(off.items(), key=lambda entry: entry[1]))


def _mean_difference(first: Predictor, second: Predictor, kind: str, rows: list[Row]) -> float:
    """Mean difference of an int8 export's outputs on some rows, relative to the mean output."""
    a, b = (np.concatenate([x.reshape(-1) for x in side.engine.run(rows, Wanted(kind))]) for side in (first, second))
    return float(np.abs(a - b).mean() / max(1e-9, np.abs(a).mean()))


def _torch_folder(predictor: Predictor) -> Folder:
    """What an export writes again: only weights that torch has read can be."""
    assert isinstance(predictor.folder, Folder)
    return predictor.folder


def _web(s: ExportSettings, exact: Predictor, rows: list[Any] | None) -> dict[str, Any]:
    """The ONNX export with a page around it that a browser opens from a disk."""
    library = find_library(s.node)
    with tempfile.TemporaryDirectory() as place:
        parts = _onnx(replace(s, format="onnx", weights=s.weights or "fp32", out=Path(place) / "onnx"), exact, rows)
        about = _about_page(exact, parts["outputs"])
        size: list[int] = []
        write_new(s.out, lambda path: size.append(write_web(path, Path(place) / "onnx", library, about)))
    return parts | {"file": "index.html", "bytes": size[0], "task": about["task"]}


def _about_page(exact: Predictor, outputs: list[str]) -> dict[str, Any]:
    """What the exported page must know of the model; see web.html. outputs: of the ONNX file."""
    name, options = "fill" if "logits" in outputs else "embed", {}
    if measure.has_task(exact):
        name, options = exact.task.name, exact.task.options
    if name not in TASKS:
        raise UserError(
            f"There is no web page for {name}, but for {', '.join(TASKS)}. Use `bertkit serve`, or --format onnx."
        )
    tokenizer = exact.tokenizer
    mask = "" if tokenizer.mask_id is None else tokenizer.id_to_token(tokenizer.mask_id)
    return {
        "name": exact.folder.name or "bertkit", "task": name, "labels": list(exact.folder.labels),
        "multiLabel": bool(options.get("multi_label")), "mean": options.get("mean", 0.0), "mask": mask,
        "maskId": tokenizer.mask_id, "limit": exact.windows().limit if measure.has_task(exact) else exact.vector_limit,
        "prompt": exact.pooling.prompt(), "language": language_of(tokenizer.backend.get_vocab()),
    }  # fmt: skip


def _usual(s: ExportSettings, exact: Predictor) -> Predictor:
    """What an export is compared with: the model as bertkit would run it here."""
    before = Predictor.load(s.model, s.precision, "cpu", engine="torch")
    before.model.crf, before.engine.crf = exact.model.crf, exact.engine.crf
    return before


def rows_of(model: Predictor, examples: list[Any]) -> list[Row]:
    """What an export is compared on: rows of the encoder for examples of the model's task, or for texts."""
    if measure.has_task(model):
        items = model.task.encode(examples, model.tokenizer, model.windows())
        return [row for item in items for row in item.rows]
    texts = encode_rows(model.tokenizer, examples, None, Windows(model.vector_limit, "window"))
    return [row for text in texts for row in text.rows if row.ids]


def furthest(first: Predictor, second: Predictor, kind: str) -> float:
    """How far an export is off: the largest difference of outputs on sample rows, relative to the largest output."""
    rows = rows_of(first, measure.sample_rows(first)[:40])
    a, b = (
        np.concatenate([array.reshape(-1) for array in side.engine.run(rows, Wanted(kind))]) for side in (first, second)
    )
    return float(np.abs(a - b).max() / max(1e-9, np.abs(a).max()))


def _hf(s: ExportSettings, exact: Predictor, rows: list[Any] | None) -> dict[str, Any]:
    """Export a folder with transformers' files only, in fp32, bf16 or fp16."""
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
    """The README.md of an exported folder."""
    name = folder.architecture.name
    return (
        f"---\nlibrary_name: transformers\n---\n# {name}\n\n```python\nfrom transformers import AutoTokenizer, {name}\n"
        f'tokenizer = AutoTokenizer.from_pretrained("this folder")\nmodel = {name}.from_pretrained("this folder")\n'
        "```\n"
    )


# ---- A model as a page: the ONNX file with transformers.js and onnxruntime-web, which a browser runs offline.

PAGE = Path(__file__).with_name("web.html")
# What the page needs of two packages of npm, by the name it has in the page.
LIBRARY = {
    "transformers.js": "@huggingface/transformers/dist/transformers.web.min.js",
    "onnxruntime.js": "onnxruntime-web/dist/ort.wasm.bundle.min.mjs",
    "onnxruntime.wasm": "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm",
}
MODEL = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
TASKS = ("classify", "pair", "regress", "tag", "answer", "fill", "embed")  # that the page has a form for
LARGEST = 300_000_000  # bytes: browsers refuse scripts of half a gigabyte, and base64 adds a third
INSTALL = "npm install @huggingface/transformers --ignore-scripts"  # those scripts fetch what node needs, not browsers


def find_library(given: Path | None) -> Path:
    """The node_modules folder with both packages of the exported page: the given one, this folder's, or npm's."""
    places = [given / "node_modules", given] if given else [Path("node_modules"), *_global()]
    for place in places:
        if all((place / file).is_file() for file in LIBRARY.values()):
            return place
    raise UserError(
        f"The page needs transformers.js and onnxruntime-web, which are not in {', '.join(map(str, places))}. Run "
        f"`{INSTALL}` in a folder, and pass that folder with --node."
    )


def _global() -> list[Path]:
    npm = shutil.which("npm")
    if npm is None:
        return []
    done = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, check=False, timeout=60)
    return [Path(done.stdout.strip())] if done.returncode == 0 and done.stdout.strip() else []


def write_web(out: Path, exported: Path, library: Path, about: dict[str, Any]) -> int:
    """Write the exported page: index.html and the two scripts it reads; returns their size in bytes."""
    weights = next(path for name in ("onnx/model.onnx", "onnx/model_quantized.onnx", "model.onnx")
                   if (path := exported / name).is_file())  # fmt: skip
    if weights.stat().st_size > LARGEST:
        raise UserError(
            f"The model has {weights.stat().st_size / 1e6:.0f} MB, more than browsers take in a page "
            f"({LARGEST / 1e6:.0f} MB). Export it with --weights int8, or make it smaller with `bertkit distill`."
        )
    files = {name: exported / name for name in MODEL if (exported / name).is_file()} | {"onnx/model.onnx": weights}
    out.mkdir(parents=True, exist_ok=True)
    _write_script(out / "library.js", {name: library / file for name, file in LIBRARY.items()}, None)
    _write_script(out / "model.js", files, about)
    shutil.copyfile(PAGE, out / "index.html")
    return sum(path.stat().st_size for path in out.iterdir())


def _write_script(path: Path, files: dict[str, Path], about: dict[str, Any] | None) -> None:
    """Files of an exported page as a script in base64: from a disk it may not fetch files, but run scripts."""
    with path.open("w", encoding="ascii") as script:
        script.write("globalThis.BERTKIT ??= { files: {} };\n")
        for name, file in files.items():
            encoded = base64.b64encode(file.read_bytes()).decode("ascii")
            script.write(f'BERTKIT.files[{json.dumps(name)}] = "{encoded}";\n')
        if about is not None:
            script.write(f"BERTKIT.about = {json.dumps(about)};\n")


def language_of(vocabulary: Iterable[str]) -> str:
    """The language in which an exported page begins and gives examples: zh where most pieces are Chinese."""
    pieces = list(vocabulary)
    chinese = sum(any("\u4e00" <= character <= "\u9fff" for character in piece) for piece in pieces)
    return "zh" if 2 * chinese > len(pieces) else "en"
