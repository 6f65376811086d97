"""`bertkit fill`: guesses for every masked word. `bertkit suggest`: the next words, by a model that reads ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bertkit.commands import SharedCommand
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
    from bertkit.runs.finetune.start import report_unknown

    machine.set_up(settings.threads)
    predictor = Predictor.load(settings.model, settings.precision, settings.device)
    return {
        "text": settings.text,
        "precision": predictor.precision,
        "masks": predictor.fill(settings.text, settings.top),
        "unknown_share": report_unknown(predictor, settings.model),
    }


def lines(result: dict[str, Any]) -> list[str]:
    """One block per mask."""
    shown = []
    for number, guesses in enumerate(result["masks"], 1):
        if len(result["masks"]) > 1:
            shown.append(f"mask {number}")
        shown += [f"{guess['score']:7.3f}  {guess['token']:16}  {guess['text']}" for guess in guesses]
    return shown


# ---- bertkit suggest


@dataclass(frozen=True, kw_only=True)
class SuggestSettings(Common):
    """What `suggest` needs."""

    model: str = option(
        help="A GPT, or a folder of `bertkit learn ngram|piece-ngram|nnlm|rnn|lstm|gru`.", argument=True
    )
    text: str = option(help="The beginning.", argument=True)
    top: int = option(5, "How many next words.", at_least=1)


def run_suggest(settings: SuggestSettings) -> dict[str, Any]:
    """The likeliest next words (or pieces of words)."""
    from bertkit import machine
    from bertkit.ancestors.language_model import gpt
    from bertkit.errors import UserError
    from bertkit.inference.predictor import Predictor
    from bertkit.loading import Suggests, open_model

    machine.set_up(settings.threads)
    model = open_model(settings.model, settings.precision, settings.device)
    if isinstance(model, Predictor) and model.config.causal:
        guesses = gpt.suggest(model, settings.text, settings.top)
    elif isinstance(model, Suggests):
        guesses = model.suggest(settings.text, settings.top)
    else:
        hint = "Use `bertkit fill`" if isinstance(model, Predictor) else "Use a GPT"
        raise UserError(f"{settings.model} does not guess from left to right. {hint}, or `bertkit learn lstm`.")
    named = [{"token": guess.get("token", guess.get("word")), **guess} for guess in guesses]
    return {"text": settings.text, "found": named}


def suggest_lines(result: dict[str, Any]) -> list[str]:
    """One guess per line."""
    return [f"{guess['score']:7.3f}  {guess['token']}" for guess in result["found"]]


suggest = SharedCommand(SuggestSettings, run_suggest, suggest_lines)
