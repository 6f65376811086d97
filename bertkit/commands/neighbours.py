"""`bertkit neighbours`: the words nearest to a word, or the one that completes an analogy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit neighbours`."""

    model: str = option(help="Word vectors: a folder made by `bertkit learn word2vec|glove`, or a file.", argument=True)
    words: tuple[str, ...] = option(help="One word; or three for an analogy: a is to b as c is to what?", argument=True)
    top: int = option(10, "Number of words to show.", at_least=1)


def run(settings: Settings) -> dict[str, Any]:
    """Find the nearest words by cosine, or complete an analogy of three words."""
    from bertkit.ancestors.vectors.vectors import open_vectors
    from bertkit.errors import UserError

    if len(settings.words) not in (1, 3):
        raise UserError(f"Pass one word, or three for an analogy; got {len(settings.words)}.")
    vectors = open_vectors(settings.model)
    ask: Callable[..., list[tuple[str, float]]] = vectors.neighbours if len(settings.words) == 1 else vectors.analogy
    nearest = ask(*settings.words, top=settings.top)
    return {"words": list(settings.words), "found": [{"word": word, "cosine": cosine} for word, cosine in nearest]}


def lines(result: dict[str, Any]) -> list[str]:
    """One word per line."""
    return [f"{row['cosine']:7.3f}  {row['word']}" for row in result["found"]]
