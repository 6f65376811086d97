"""GPT beside its ancestors: texts of any length, scored and measured in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from bertkit.ancestors.language_model.model import suggestions
from bertkit.ancestors.language_model.networks import perplexity_of
from bertkit.data.batch import pack, run_batched
from bertkit.errors import UserError
from bertkit.model.heads import Model
from bertkit.settings.model import Config
from bertkit.text.tokenizer import Tokenizer


class Causal(Protocol):
    """What a causal encoder such as GPT must have to act as a language model; bertkit.load(…) returns one."""

    config: Config
    tokenizer: Tokenizer

    @property
    def model(self) -> Model:
        """The GPT itself."""

    @property
    def device(self) -> str:
        """Where the GPT computes."""


def score(predictor: Causal, texts: Sequence[str]) -> list[float]:
    """GPT's natural-log likelihood of each text, as bertkit.inference.scoring gives it; long texts are read in windows.

    A window begins with the text's first piece and then half a window of pieces that were guessed before.
    """
    _refuse_others(predictor)
    return _scores(predictor, predictor.tokenizer.ids_batch(texts))


def perplexity(predictor: Causal, texts: Sequence[str]) -> dict[str, float]:
    """GPT's perplexity: see base.perplexity_of. Without a mark before the text, its first piece is not predicted."""
    _refuse_others(predictor)
    rows = predictor.tokenizer.ids_batch(texts)
    return perplexity_of(texts, _scores(predictor, rows), rows, predictor.tokenizer.unk_id)


def suggest(predictor: Causal, text: str, top: int = 5) -> list[dict[str, Any]]:
    """GPT's likeliest next pieces, best first; of a text too long for the model, its first piece and end are read."""
    _refuse_others(predictor)
    ids = predictor.tokenizer.ids_batch([text])[0]
    if ids and ids[-1] == predictor.tokenizer.sep_id:  # it would end the text
        ids = ids[:-1]
    if not ids:
        raise UserError(
            "There is nothing to continue: this tokenizer has no token for the beginning of a text. Give some words."
        )
    limit = predictor.config.max_tokens
    context = ids if len(ids) <= limit else [ids[0], *ids[1 - limit :]]
    with torch.inference_mode():
        batch = pack([context]).to(predictor.device)
        last = torch.tensor([len(context) - 1], device=predictor.device)
        logits = predictor.model.ask("mlm", predictor.model.encoder(batch), last)[0]
    return suggestions(predictor.tokenizer, ids, logits.double().softmax(-1).cpu().numpy(), top)


def _refuse_others(predictor: Causal) -> None:
    if not predictor.config.causal or "mlm" not in predictor.model.heads:
        raise UserError("This model does not guess from left to right, so it has no perplexity. Use a GPT model.")


def windows(ids: list[int], limit: int) -> list[tuple[list[int], int]]:
    """A text for GPT in runs of at most `limit` ids: (run, how many of its last ids are guessed there)."""
    runs = [(ids[:limit], min(len(ids), limit) - 1)] if len(ids) > 1 else []
    start = limit
    while start < len(ids):
        stop = min(len(ids), start + limit // 2)
        runs.append(([ids[0], *ids[stop - limit + 1 : stop]], stop - start))
        start = stop
    return runs


def _scores(predictor: Causal, rows: Sequence[list[int]]) -> list[float]:
    """Log-likelihoods of rows of ids, read by the causal encoder in windows."""
    limit = predictor.config.max_tokens
    runs = [(number, *run) for number, ids in enumerate(rows) for run in windows(ids, limit)]
    scores = [0.0] * len(runs)

    def compute(numbers: list[int]) -> None:
        batch = pack([runs[n][1] for n in numbers]).to(predictor.device)
        first = {caller: int(batch.starts[packed]) for packed, caller in enumerate(batch.order)}
        places, expected = [], []
        for i, n in enumerate(numbers):
            _, ids, guessed = runs[n]
            places += [first[i] + place for place in range(len(ids) - 1 - guessed, len(ids) - 1)]
            expected += ids[-guessed:]
        indices, targets = (torch.tensor(values, device=predictor.device) for values in (places, expected))
        logits = predictor.model.ask("mlm", predictor.model.encoder(batch), indices).float()
        logs = logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)
        for n, part in zip(numbers, logs.split([runs[n][2] for n in numbers])):
            scores[n] = float(part.double().sum())

    run_batched([len(ids) for _, ids, _ in runs], compute, predictor.device)
    totals = [0.0] * len(rows)
    for (number, _, _), value in zip(runs, scores):
        totals[number] += value
    return totals
