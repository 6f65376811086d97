"""`bertkit fill`: guesses for every masked word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What `fill` needs."""

    model: str = option(help="Embedded name, folder, or hub name.", argument=True)
    text: str = option(help="A text with [MASK] where a word is to be guessed.", argument=True)
    top: int = option(5, "How many guesses a mask.", at_least=1)


def run(settings: Settings) -> dict[str, Any]:
    """Guess the masked words of a text."""
    from bertkit import machine
    from bertkit.inference.predictor import Predictor

    machine.set_up(settings.threads)
    predictor = Predictor.load(settings.model, settings.precision, settings.device)
    return {
        "text": settings.text,
        "precision": predictor.precision,
        "masks": predictor.fill(settings.text, settings.top),
    }


def lines(result: dict[str, Any]) -> list[str]:
    """A block a mask."""
    shown = []
    for number, guesses in enumerate(result["masks"], 1):
        if len(result["masks"]) > 1:
            shown.append(f"mask {number}")
        shown += [f"{guess['score']:7.3f}  {guess['token']:16}  {guess['text']}" for guess in guesses]
    return shown
