"""What language models answer: `bertkit fill` guesses masked words, `suggest` the next words.

`next` says whether one text follows another, `score` how likely a text is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bertkit.commands import SharedCommand
from bertkit.config import Common, InferenceOptions, option
from bertkit.notify import padded


@dataclass(frozen=True, kw_only=True)
class Settings(InferenceOptions):
    """What `fill` needs."""

    model: str = option(help="Embedded name, folder, or hub name.", argument=True)
    text: str = option(help="A text with [MASK] where a word is to be guessed.", argument=True)
    top: int = option(5, "Number of guesses per mask.", at_least=1)
    joint: str = option(
        "", "Guess several masks together: by the product of their own probabilities, one after the other, or by beam "
        "search (default: each mask separately).", choices=("", "independent", "left-to-right", "beam"),
    )  # fmt: skip


def run(settings: Settings) -> dict[str, Any]:
    """Guess the masked words of a text."""
    from bertkit import machine
    from bertkit.checkpoint.vocabulary_fit import report_unknown
    from bertkit.inference.predictor import Predictor

    machine.set_threads(settings.threads)
    predictor = Predictor.load(settings.model, settings.precision, settings.device, engine=settings.engine)
    guesses = predictor.fill(settings.text, settings.top, settings.joint)
    return {
        "text": settings.text,
        "precision": predictor.precision,
        "engine": predictor.engine.name,
        **({"joint": settings.joint, "fillings": guesses} if settings.joint else {"masks": guesses}),
        "unknown_share": report_unknown(predictor, settings.model),
    }


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `fill`: one block per mask; guessed together, one line per filling."""
    if "joint" in result:
        return [
            f"{each['score']:9.5f}  {padded(' '.join(each['tokens']), 20)}  {each['text']}"
            for each in result["fillings"]
        ]
    printed = []
    for number, guesses in enumerate(result["masks"], 1):
        if len(result["masks"]) > 1:
            printed.append(f"mask {number}")
        printed += [f"{guess['score']:7.3f}  {padded(guess['token'], 16)}  {guess['text']}" for guess in guesses]
    return printed


# ---- bertkit suggest


@dataclass(frozen=True, kw_only=True)
class SuggestSettings(Common):
    """What `suggest` needs."""

    model: str = option(
        help="A GPT, or a folder of `bertkit learn ngram|piece-ngram|nnlm|rnn|lstm|gru|elmo`.", argument=True
    )
    text: str = option(help="The beginning of the text.", argument=True)
    top: int = option(5, "Number of next words.", at_least=1)


def run_suggest(settings: SuggestSettings) -> dict[str, Any]:
    """The likeliest next words (or pieces of words); an ELMo also gives the words before."""
    from bertkit import machine
    from bertkit.ancestors.elmo.model import Elmo
    from bertkit.ancestors.language_model import gpt
    from bertkit.errors import UserError
    from bertkit.inference.predictor import Predictor
    from bertkit.loading import CanSuggest, open_model

    machine.set_up(settings.threads)
    model = open_model(settings.model, settings.precision, settings.device)
    if isinstance(model, Predictor) and model.config.causal:
        guesses = gpt.suggest(model, settings.text, settings.top)
    elif isinstance(model, CanSuggest):
        guesses = model.suggest(settings.text, settings.top)
    else:
        hint = "Use `bertkit fill`" if isinstance(model, Predictor) else "Use a GPT"
        raise UserError(f"{settings.model} does not guess from left to right. {hint}, or `bertkit learn lstm`.")
    result = {"text": settings.text, "found": _named(guesses)}
    if isinstance(model, Elmo):
        result["before"] = _named(model.suggest_before(settings.text, settings.top))
    return result


def _named(guesses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The guesses of `suggest`, each under "token", whether it is a word or a piece."""
    return [{"token": guess.get("token", guess.get("word")), **guess} for guess in guesses]


def suggest_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `suggest`: one guess per line; for an ELMo first the next words, then those before."""
    rows = {name: [f"{guess['score']:7.3f}  {guess['token']}" for guess in result.get(name, ())]
            for name in ("found", "before")}  # fmt: skip
    return ["after", *rows["found"], "before", *rows["before"]] if rows["before"] else rows["found"]


suggest = SharedCommand(SuggestSettings, run_suggest, suggest_lines)


# ---- bertkit next


@dataclass(frozen=True, kw_only=True)
class NextSettings(Common):
    """What `next` needs."""

    model: str = option(help="A model with a next-sentence or sentence-order head.", argument=True)
    a: str = option(help="The first text.", argument=True)
    b: str = option(help="The text that may follow it.", argument=True)


def run_next(settings: NextSettings) -> dict[str, Any]:
    """Whether B follows A, by the next-sentence head (for ALBERT: whether A comes before B)."""
    from bertkit import machine
    from bertkit.inference.predictor import Predictor

    machine.set_up(settings.threads)
    predictor = Predictor.load(settings.model, settings.precision, settings.device)
    return {"a": settings.a, "b": settings.b, **predictor.follows(settings.a, settings.b)}


def next_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `next`: the probability, and what it is of."""
    if "next" in result:
        return [f"{result['next']:7.3f}  B follows A"]
    return [f"{result['order']:7.3f}  A comes before B (if they are neighbours)"]


next = SharedCommand(NextSettings, run_next, next_lines)


# ---- bertkit score


@dataclass(frozen=True, kw_only=True)
class ScoreSettings(Common):
    """What `score` needs."""

    model: str = option(
        help="A masked model, a GPT, or a language model of `bertkit learn` (ngram, lstm, elmo …).", argument=True
    )
    texts: tuple[str, ...] = option(help="One or more texts.", argument=True)
    after: str = option("", "A text or question that each of the texts continues: choose the likeliest of them.")


def run_score(settings: ScoreSettings) -> dict[str, Any]:
    """How likely each text is: its log-probability, from both sides (masked models) or from the left (all others)."""
    import math

    from bertkit import machine
    from bertkit.errors import UserError
    from bertkit.inference.predictor import Predictor
    from bertkit.loading import CanScore, open_model

    machine.set_up(settings.threads)
    model = open_model(settings.model, settings.precision, settings.device)
    if not isinstance(model, CanScore):
        raise UserError(f"{settings.model} does not say how likely a text is. Use a language model, e.g. 'en'.")
    texts = list(settings.texts)
    if settings.after:
        if not isinstance(model, Predictor):
            raise UserError(f"--after needs a GPT or a masked model; {settings.model} is neither.")
        chosen = model.choose(settings.after, texts)
        pairs = zip(texts, chosen["likelihoods"], chosen["scores"])
        choices = [{"text": text, "score": value, "share": share} for text, value, share in pairs]
        return {"model": settings.model, "after": settings.after, "choice": chosen["choice"], "texts": choices}
    rows: list[dict[str, Any]] = [{"text": text, "score": value} for text, value in zip(texts, model.score(texts))]
    masked = isinstance(model, Predictor) and not model.config.causal
    if isinstance(model, Predictor):
        for row, encoding in zip(rows, model.tokenizer.encode_batch(texts)):
            row["pieces"] = encoding.special.count(False) if masked else len(encoding) - 1
            row["perplexity"] = math.exp(min(700.0, -row["score"] / max(1, row["pieces"])))
    return {"model": settings.model, "from": "both sides" if masked else "the left", "texts": rows}


def score_lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `score`: one text per line, the likeliest first."""
    rows = sorted(result["texts"], key=lambda row: -row["score"])
    if "after" in result:
        return [f"{row['share']:7.3f}  {row['score']:8.3f} per piece  {row['text']}" for row in rows]
    each = [f"{row['score']:10.2f}  {row['text']}" for row in rows]
    return [f"log-probability, each piece predicted from {result['from']}", *each]


score = SharedCommand(ScoreSettings, run_score, score_lines)
