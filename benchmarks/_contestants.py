"""Who embeds: each contestant opens a folder and gives a function from texts to mean-pooled vectors.

All of them get raw texts and `threads` threads. Those without a batching of their own get batches of 32 texts sorted by
length, and the bare `tokenizers` library, which is faster than transformers' wrapper around it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from _models import EXPORTED

BATCH = 32
Embed = Callable[[Sequence[str]], np.ndarray]


def bertkit(folder: Path, threads: int, precision: str = "auto", engine: str = "torch") -> Embed:
    """The model in PyTorch, or what `bertkit export` made of it in another engine."""
    import bertkit
    from bertkit import machine

    machine.set_threads(threads)
    model = bertkit.load(str(folder if engine == "torch" else folder / EXPORTED), precision=precision, engine=engine)
    if engine == "torch":
        _torch_threads(threads)
    return model.embed


def transformers_fp32(folder: Path, threads: int) -> Embed:
    """What a first script does: batches of 32 in the order given, padded to the longest."""
    embed = _transformers(folder, threads, "float32")

    def naive(texts: Sequence[str]) -> np.ndarray:
        return np.concatenate([embed(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)])

    return naive


def transformers_bf16_sorted(folder: Path, threads: int) -> Embed:
    """What an experienced user does: weights in bf16, texts sorted by length."""
    embed = _transformers(folder, threads, "bfloat16")
    return lambda texts: _in_sorted_batches(texts, [len(text) for text in texts], embed)


def sentence_transformers(folder: Path, threads: int) -> Embed:
    from sentence_transformers import SentenceTransformer

    _torch_threads(threads)
    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(list(texts), show_progress_bar=False)


def onnxruntime_fp32(folder: Path, threads: int, file: str = "model.onnx") -> Embed:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    settings.log_severity_level = 3
    path = str(folder / "onnx" / file)
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return _of_padded(folder, lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0])


def onnxruntime_int8(folder: Path, threads: int) -> Embed:
    return onnxruntime_fp32(folder, threads, "model-int8.onnx")


def openvino(folder: Path, threads: int, precision: str = "f32") -> Embed:
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",  # one stream with all threads
    }
    compiled = openvino.compile_model(str(folder / "onnx/model.onnx"), "CPU", settings)
    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if precision not in used:  # it calls the same precision float, f32 or fp32
        raise RuntimeError(f"OpenVINO computes in {used} on this processor, not in {precision}")
    request = compiled.create_infer_request()
    return _of_padded(folder, lambda ids, mask: request.infer({"ids": ids, "mask": mask})[0].copy())


def ctranslate2_int8(folder: Path, threads: int) -> Embed:
    import ctranslate2

    encoder = ctranslate2.Encoder(
        str(folder / "ctranslate2"), compute_type="int8", inter_threads=1, intra_threads=threads
    )
    tokenizer = _tokenizer(folder)

    def embed(encodings: Sequence[Any]) -> np.ndarray:
        tokens = np.asarray(encoder.forward_batch([encoding.ids for encoding in encodings]).last_hidden_state)
        return np.stack([row[: len(encoding.ids)].mean(0) for row, encoding in zip(tokens, encodings)])

    def whole(texts: Sequence[str]) -> np.ndarray:
        encodings = tokenizer.encode_batch_fast(list(texts))
        return _in_sorted_batches(encodings, [len(encoding.ids) for encoding in encodings], embed)

    return whole


def model2vec(folder: Path, threads: int) -> Embed:
    """A vector per piece (here the encoder's word vectors), averaged: another model, the far end of speed."""
    from model2vec import StaticModel
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    words = next(array for name, array in tensors.items() if name.endswith("word_embeddings.weight"))
    static = StaticModel(words, _tokenizer(folder), normalize=False)
    return lambda texts: static.encode(list(texts), use_multiprocessing=False)


@dataclass(frozen=True)
class Contestant:
    """How to open it, the libraries it needs, and the conversion of the folder it reads."""

    open: Callable[[Path, int], Embed]
    needs: tuple[str, ...] = ()
    conversion: str = ""

    def lacks(self) -> str:
        """Why it cannot take part, or nothing."""
        absent = [name for name in self.needs if find_spec(name) is None]
        return f"{', '.join(absent)} not installed (pip install 'bertkit[bench]')" if absent else ""


BASELINE = "transformers-fp32"
ONNX = ("onnxruntime", "onnx", "onnxscript")
CONTESTANTS = {  # those that matter most first: a short run may not reach all of them
    "bertkit": Contestant(bertkit),
    BASELINE: Contestant(transformers_fp32, ("transformers",)),
    "bertkit-int8": Contestant(partial(bertkit, precision="int8")),
    "bertkit-onnx": Contestant(partial(bertkit, engine="onnx", precision="fp32"), ONNX, "bertkit"),
    "bertkit-onnx-int8": Contestant(partial(bertkit, engine="onnx", precision="int8"), ONNX, "bertkit"),
    "bertkit-openvino": Contestant(
        partial(bertkit, engine="openvino", precision="fp32"), ("openvino", *ONNX), "bertkit"
    ),
    "onnxruntime-fp32": Contestant(onnxruntime_fp32, ONNX, "onnx"),
    "onnxruntime-int8": Contestant(onnxruntime_int8, ONNX, "onnx-int8"),
    "openvino-fp32": Contestant(openvino, ("openvino", *ONNX[1:]), "onnx"),
    "openvino-bf16": Contestant(partial(openvino, precision="bf16"), ("openvino", *ONNX[1:]), "onnx"),
    "sentence-transformers": Contestant(sentence_transformers, ("sentence_transformers",)),
    "ctranslate2-int8": Contestant(ctranslate2_int8, ("ctranslate2", "transformers"), "ctranslate2"),
    "model2vec": Contestant(model2vec, ("model2vec",)),
    "transformers-bf16-sorted": Contestant(transformers_bf16_sorted, ("transformers",)),
    "bertkit-fp32": Contestant(partial(bertkit, precision="fp32")),
}
LIBRARIES = ("transformers", "sentence-transformers", "onnxruntime", "openvino", "ctranslate2", "model2vec")


def _transformers(folder: Path, threads: int, dtype: str) -> Embed:
    import torch
    from transformers import AutoModel, AutoTokenizer

    _torch_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def embed(texts: Sequence[str]) -> np.ndarray:
        batch = tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            tokens = model(**batch).last_hidden_state
        share = batch["attention_mask"].unsqueeze(-1).to(tokens.dtype)
        return ((tokens * share).sum(1).float() / share.sum(1).float()).numpy()

    return embed


def _of_padded(folder: Path, run: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Embed:
    """Sorted batches of padded ids and their masks for an exported model."""
    tokenizer = _tokenizer(folder)

    def embed(encodings: Sequence[Any]) -> np.ndarray:
        lengths = np.array([len(encoding.ids) for encoding in encodings])
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        ids = np.zeros_like(mask)
        ids[mask.astype(bool)] = np.concatenate([encoding.ids for encoding in encodings])
        return run(ids, mask)

    def whole(texts: Sequence[str]) -> np.ndarray:
        encodings = tokenizer.encode_batch_fast(list(texts))
        return _in_sorted_batches(encodings, [len(encoding.ids) for encoding in encodings], embed)

    return whole


def _in_sorted_batches(items: Sequence[Any], sizes: Sequence[int], embed: Callable[[Any], np.ndarray]) -> np.ndarray:
    """Vectors in the order of the items, computed longest first."""
    order = np.argsort(-np.asarray(sizes), kind="stable")
    parts = [embed([items[place] for place in order[start : start + BATCH]]) for start in range(0, len(order), BATCH)]
    vectors = np.concatenate(parts)
    back = np.empty_like(vectors)
    back[order] = vectors
    return back


def _tokenizer(folder: Path) -> Any:
    import tokenizers

    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def _torch_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore")
