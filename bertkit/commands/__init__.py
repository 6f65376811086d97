"""One file per command: a `Settings` class, a `run(settings)` function, and `lines(result)` for the terminal.

Modules here import nothing heavy at the top, so that `--help` is fast.

Most files are one command. A file may hold several that belong together: see SHARED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

COMMANDS = {  # the order of `bertkit --help`
    "demo": "Fine-tune and predict on sample data, in a minute or two.",
    "doctor": "Check this machine, and see what is in a data file.",
    "tokenizer": "Train a tokenizer on text.",
    "prepare": "Turn running text into a token store.",
    "pretrain": "Pretrain an encoder on a token store.",
    "finetune": "Fine-tune a model on labelled rows.",
    "evaluate": "Score a model on labelled rows, with confidence intervals.",
    "predict": "Predict the rows of a file.",
    "compare": "Compare models on your rows, from the most frequent label to BERT: is it worth it?",
    "fill": "Predict the masked words of a text.",
    "score": "Say how likely texts are.",
    "next": "Say whether one text follows another.",
    "embed": "Turn texts into vectors.",
    "features": "Compare the six choices of layers as features of your labelled texts or tags.",
    "inspect": "Show tokens, attention heads and token importance as a page, or the masked rows of a store.",
    "meaning": "Compare the vectors of one word in several texts, by model and layer.",
    "show": "See how BERT works on your own text, in the browser.",
    "index": "Make your documents searchable.",
    "search": "Find the passages of an index that match a question.",
    "ask": "Extract an answer from your documents.",
    "serve": "Serve models over HTTP, with a page to try them.",
    "seq2seq": "Train an encoder–decoder Transformer on pairs of texts.",
    "rewrite": "Rewrite texts with a trained encoder–decoder Transformer.",
    "learn": "Train one of BERT's ancestors: n-gram, HMM, word2vec, GloVe, LSTM, ELMo …",
    "neighbours": "Find the words nearest to a word, or complete an analogy.",
    "suggest": "Suggest the next words (left-to-right models).",
    "distill": "Distill a fine-tuned model into a smaller one.",
    "quantize": "Store weights in fewer bits: int8, bf16 or fp16.",
    "prune": "Remove whole layers or neurons from a model.",
    "export": "Export a model for other programs: ONNX, or a plain transformers folder.",
    "convert": "Convert a checkpoint to a folder that bertkit and transformers open.",
    "completion": "Print a completion script for your shell.",
}

SHARED = {  # command → the file it is in, under its own name
    "rewrite": "predict",
    "suggest": "fill",
    "neighbours": "meaning",
    "next": "fill",
    "score": "fill",
    "features": "embed",
    "ask": "search",
    "show": "serve",
    "seq2seq": "learn",
    "distill": "compress",
    "quantize": "compress",
    "prune": "compress",
    "export": "compress",
}


@dataclass(frozen=True)
class SharedCommand:
    """A command that has no file of its own, with a command file's three names."""

    Settings: type
    run: Callable[[Any], Any]
    lines: Callable[[Any], list[str]]
    resolve: Callable[[dict[str, Any]], dict[str, Any]] = lambda table: table  # settings of earlier versions


def find(name: str) -> ModuleType | SharedCommand:
    """What a command of the table consists of: its `Settings`, `run` and `lines`."""
    module = import_module(f"bertkit.commands.{SHARED.get(name, name)}")
    command: ModuleType | SharedCommand = getattr(module, name) if name in SHARED else module
    return command
