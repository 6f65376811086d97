"""Sentence vectors of a better model, cached in the run folder so that they are computed once."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from bertkit.files.atomic import atomic_write
from bertkit.inference.predictor import AT_ONCE, Predictor
from bertkit.notify import note, track
from bertkit.tasks.embed import Teacher


def teacher(name: str, keep: Path, precision: str = "auto", device: str = "auto") -> Teacher:
    """A function from texts to the named model's vectors, cached in the folder `keep`."""
    return partial(_vectors, name, keep, precision, device)


def _vectors(name: str, keep: Path, precision: str, device: str, texts: list[str]) -> np.ndarray:
    digest = hashlib.sha256("\0".join((name, precision, *texts)).encode("utf-8", "surrogatepass")).hexdigest()
    path = keep / f"{digest[:16]}.safetensors"
    try:
        return load(path.read_bytes())["vectors"].float().numpy()
    except (OSError, SafetensorError):
        pass  # not computed yet, or the file is incomplete
    model = Predictor.load(name, precision, device)
    note(f"Computing the vectors of {len(texts):,} texts with {name}.")
    parts = [texts[n : n + AT_ONCE] for n in range(0, len(texts), AT_ONCE)]
    vectors = np.concatenate([np.asarray(model.embed(part)) for part in track(parts, "asking the teacher", len(parts))])
    vectors = (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)).astype(np.float16)
    keep.mkdir(parents=True, exist_ok=True)
    atomic_write(path, save({"vectors": torch.from_numpy(vectors)}))
    return vectors.astype(np.float32)
