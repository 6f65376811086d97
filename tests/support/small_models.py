"""Tiny models with random heads for every task: what they say is arbitrary, that it is said alike everywhere is not."""

from __future__ import annotations

from typing import Any

import torch

from bertkit import samples
from bertkit.checkpoint.folder import Folder
from bertkit.inference.predictor import Predictor
from bertkit.model.heads import Model
from bertkit.server.models import ModelRegistry, ServedModel
from bertkit.settings.model import Config
from bertkit.text.vocabulary import VocabularySettings, learn
from tests.support import toy

LIMIT = 64  # tokens a model sees
LONG = " ".join(toy.FILLER * 4)  # more than that
TAGS = ("B-LOC", "B-PER", "I-LOC", "O")
KINDS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {  # name → heads, bertkit.json
    "words": ({"mlm": 0}, {}),
    "labels": ({"text": 3}, {"task": "classify", "labels": ["bad", "good", "so-so"]}),
    "many": ({"text": 2}, {"task": "classify", "labels": ["a", "b"], "options": {"multi_label": True}}),
    "pairs": ({"text": 2}, {"task": "pair", "labels": ["different", "same"]}),
    "entails": ({"text": 3}, {"task": "pair", "labels": ["contradiction", "entailment", "neutral"]}),
    "numbers": ({"text": 1}, {"task": "regress", "options": {"paired": True, "mean": 3.0, "spread": 2.0}}),
    "foreign": ({"text": 1}, {}),  # a cross-encoder as others save it: nothing says what it reads
    "tags": ({"token": len(TAGS)}, {"task": "tag", "labels": list(TAGS)}),
    "answers": ({"span": 2}, {"task": "answer", "options": {"impossible": False}}),
    "choices": ({"choice": 1}, {"task": "choose"}),
}


def tokenizer() -> Any:
    texts = samples.path("en", "messages_train.csv").read_text("utf-8").splitlines()
    return learn([*texts, *[toy.WORDS] * 20], VocabularySettings(size=1200))


def folder(name: str, tokenizer: Any, seed: int = 0) -> Folder:
    heads, about = KINDS[name]
    torch.manual_seed(seed)
    numbers = {"width": 32, "depth": 2, "heads": 2, "inner": 64, "init_std": 0.2, "max_tokens": LIMIT}
    model = Model(Config(vocabulary=tokenizer.size, **numbers), heads)
    about = about | ({"windows": {"limit": LIMIT, "overlap": 8}} if about else {})
    labels = tuple(about.get("labels", ("LABEL_0",) if name == "foreign" else ()))
    return Folder(model, tokenizer, "bert", labels=labels, about=about, name=name)


def registry(*names: str) -> ModelRegistry:
    """Models by name, all with one vocabulary."""
    made = tokenizer()
    served = names or tuple(KINDS)
    return ModelRegistry([ServedModel(name, Predictor(folder(name, made, n), "fp32")) for n, name in enumerate(served)])
