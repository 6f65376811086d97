"""`bertkit suggest`: how a left-to-right model would go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What `suggest` needs."""

    model: str = option(help="A folder of `bertkit learn ngram|piece-ngram|nnlm|rnn|lstm|gru`.", argument=True)
    text: str = option(help="The beginning.", argument=True)
    top: int = option(5, "How many next words.", at_least=1)


def run(settings: Settings) -> dict[str, Any]:
    """The likeliest next words (or pieces of words)."""
    from bertkit import machine
    from bertkit.errors import UserError
    from bertkit.loading import open_model

    machine.set_up(settings.threads)
    model = open_model(settings.model, settings.precision, settings.device)
    if not hasattr(model, "suggest"):
        raise UserError(
            f"{settings.model} does not guess from left to right. Use `bertkit fill`, or `bertkit learn lstm`."
        )
    found = model.suggest(settings.text, settings.top)
    return {"text": settings.text, "found": [{"token": one.get("token", one.get("word")), **one} for one in found]}


def lines(result: dict[str, Any]) -> list[str]:
    """A guess a line."""
    return [f"{one['score']:7.3f}  {one['token']}" for one in result["found"]]
