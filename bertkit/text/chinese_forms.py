"""Reads traditional Chinese characters as simplified, and full-width letters and digits as plain ones.

A vocabulary learned from simplified text has no piece for 國, １ or ①, and would read them as unknown. The table
chinese_forms.bin (made by docs/make_chinese_forms.py) maps each to a form that such a vocabulary knows, character by
character, inside the tokenizer: offsets still point into the user's own text, and other tools that open tokenizer.json
read the same. Which simplified character is meant may depend on the word (乾 is 干 or 乾); the more common one is used.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import normalizers

from bertkit.errors import UserError
from bertkit.text.tokenizer import Tokenizer

TABLE = Path(__file__).with_suffix(".bin")


@cache
def simplifying() -> normalizers.Normalizer:
    """The normalizer that replaces every traditional or full-width Chinese form by its simplified one."""
    return normalizers.Precompiled(TABLE.read_bytes())


def simplify(text: str) -> str:
    """A Chinese text in simplified forms."""
    return str(simplifying().normalize_str(text))


def simplifies(backend: tokenizers.Tokenizer) -> bool:
    """Whether this tokenizer reads traditional and full-width forms."""
    return backend.normalizer is not None and backend.normalizer.normalize_str("國１").split() in (["国1"], ["国", "1"])


def simplified(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with the same pieces that also reads traditional and full-width forms."""
    if tokenizer.kind != "wordpiece":
        raise UserError(f"Only wordpiece tokenizers can simplify Chinese text, not {tokenizer.kind}.")
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    add_simplifying(backend)
    return Tokenizer(backend, tokenizer.config)


def add_simplifying(backend: tokenizers.Tokenizer) -> None:
    """Let this tokenizer read traditional and full-width forms as simplified ones, before its other rules."""
    if simplifies(backend):
        return
    existing = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([simplifying(), *existing])
