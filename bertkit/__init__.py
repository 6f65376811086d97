"""bertkit: all of BERT, on the machine you have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.inference.predictor import Predictor
    from bertkit.loading import Opened

__version__ = "0.1.0"


def load(name: str, precision: str = "auto", device: str = "auto", verify: bool = True, engine: str = "auto") -> Opened:
    """Open a model: an embedded name (`en`, `zh`), a folder, or a hub name `org/name`.

    Folders written by `compare` or `learn` open too, with the methods of their kind. verify: compare the SHA-256 of
    every file with the folder's manifest; False compares only sizes. engine: torch, onnx or openvino; auto is torch,
    or onnx where torch is not installed or the folder has an ONNX file alone.
    """
    from bertkit.loading import open_model

    return open_model(name, precision, device, verify, engine)


def finetune(task: str, **settings: Any) -> Predictor:
    """Fine-tune on labelled rows: `bertkit.finetune("classify", train="train.csv", model="en", out="runs/a")`.

    train, dev, test: files, or tables in memory: a pandas or polars DataFrame, a `datasets.Dataset`, a list of dicts.
    Takes the options of the command line. Returns the fine-tuned model; `.result` holds the scores and more.
    """
    from pathlib import Path

    from bertkit.commands.finetune import run
    from bertkit.config import build
    from bertkit.data.readers.frames import in_memory
    from bertkit.inference.predictor import Predictor
    from bertkit.settings.finetune import FinetuneSettings

    tables = {
        role: rows
        for role, rows in settings.items()
        if role in ("train", "dev", "test") and not isinstance(rows, (str, Path, type(None)))
    }
    with in_memory(tables) as paths:
        result = run(build(FinetuneSettings, {"task": task, **settings, **paths}, "bertkit.finetune"))
    predictor = Predictor.load(result["out"], settings.get("precision", "auto"), settings.get("device", "auto"))
    predictor.result = result
    return predictor


_COMMANDS = ("tokenizer", "prepare", "pretrain", "compare", "learn", "seq2seq", "convert", "doctor", "inspect",
          "meaning", "features", "index", "search", "ask", "distill", "quantize", "prune", "export")  # fmt: skip


def __getattr__(name: str) -> Any:
    """Further commands as functions of their options, imported on first use: `bertkit.prepare(texts=…, out=…)`."""
    if name not in _COMMANDS:
        raise AttributeError(f"module 'bertkit' has no attribute '{name}'")
    from bertkit.commands import find
    from bertkit.config import build, current_names

    verb = find(name)

    def call(**settings: Any) -> Any:
        settings = current_names(verb.Settings, settings)
        table = verb.resolve(settings) if hasattr(verb, "resolve") else settings
        result = verb.run(build(verb.Settings, table, f"bertkit.{name}"))
        if not isinstance(result, dict) or "page" not in result:
            return result
        from pathlib import Path

        from bertkit.inference import Report

        return Report(result, lambda: Path(result["page"]).read_text("utf-8"))

    call.__doc__ = verb.run.__doc__
    return call
