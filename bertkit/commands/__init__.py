"""One file a command: a `Settings` class, a `run(settings)` function, and `lines(result)` for humans.

Modules here import nothing heavy at the top, so that `--help` is quick.

Most files are one command. A file may hold further ones that do the same for other models: see SHARED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

COMMANDS = {  # the order of `bertkit --help`
    "demo": "The main job on sample data, in a minute or two.",
    "doctor": "What this machine can do, and what is in a data file.",
    "tokenizer": "Learn a vocabulary from text.",
    "prepare": "Turn running text into a token store.",
    "pretrain": "Pretrain an encoder on a token store.",
    "finetune": "Fine-tune a model on labelled rows.",
    "evaluate": "Score a model on labelled rows, with intervals.",
    "predict": "Answer the rows of a file.",
    "compare": "The ladder from the most frequent label to BERT on your rows: is it worth it?",
    "fill": "Guess the masked words of a text.",
    "embed": "Turn texts into vectors.",
    "inspect": "Tokens, attention heads and what matters in a text, as a page.",
    "index": "Make own documents searchable.",
    "search": "The passages of an index nearest to a question.",
    "ask": "An answer cut out of own documents.",
    "serve": "Models over HTTP, with a page to try them.",
    "seq2seq": "Train the Transformer on pairs of texts.",
    "rewrite": "Turn texts into others with a trained Transformer.",
    "learn": "Teach one of BERT's ancestors: n-gram, word2vec, GloVe, LSTM, ELMo …",
    "neighbours": "The words nearest to a word, or the fourth of an analogy.",
    "suggest": "How a left-to-right model would go on.",
    "distill": "Let a fine-tuned model teach a smaller one.",
    "quantize": "Weights in fewer bits: int8, bf16 or fp16.",
    "prune": "Take whole layers or neurons out of a model.",
    "export": "Write a model for other programs: ONNX, or a plain transformers folder.",
    "convert": "Bring a checkpoint into a folder that bertkit and transformers open.",
    "completion": "Print a completion script for your shell.",
}

SHARED = {
    "rewrite": "predict",
    "suggest": "fill",
    "seq2seq": "learn",
}  # command → the file it is in, under its own name


@dataclass(frozen=True)
class SharedCommand:
    """A command that has no file of its own, with a command file's three names."""

    Settings: type
    run: Callable[[Any], Any]
    lines: Callable[[Any], list[str]]


def find(name: str) -> ModuleType | SharedCommand:
    """What a command consists of: its `Settings`, `run` and `lines`."""
    module = import_module(f"bertkit.commands.{SHARED.get(name, name)}")
    command: ModuleType | SharedCommand = getattr(module, name) if name in SHARED else module
    return command
