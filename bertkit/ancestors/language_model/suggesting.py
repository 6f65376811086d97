"""From the chances of every piece to a few suggestions of what may come next."""

from __future__ import annotations

from typing import Any

import numpy as np

from bertkit.ancestors.language_model.bits import framed
from bertkit.text.tokenizer import Tokenizer


def ordinary(tokenizer: Tokenizer, chances: np.ndarray, kept: int = -1) -> np.ndarray:
    """The chances with nothing for ids that stand for no text: special ones but `kept`, and rows that pad a table."""
    allowed = np.arange(len(chances)) < tokenizer.size
    allowed[sorted(tokenizer.special_ids - {kept})] = False
    return np.where(allowed, chances, 0.0)


def suggestions(tokenizer: Tokenizer, text: str, chances: np.ndarray, top: int) -> list[dict[str, Any]]:
    """The likeliest next pieces, best first: {token, score (its probability), text (continued with it)}."""
    given = framed(tokenizer, [text])[0][:-1]
    chances = ordinary(tokenizer, chances)
    return [
        {
            "token": (tokenizer.id_to_token(int(piece)) or "").lstrip("Ġ▁"),
            "score": float(chances[piece]),
            "text": tokenizer.decode([*given, int(piece)]),
        }
        for piece in np.argsort(-chances, kind="stable")[: max(0, top)]
        if chances[piece] > 0
    ]
