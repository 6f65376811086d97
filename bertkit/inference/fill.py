"""Filling masks: the likeliest pieces for each mask of a text, one by one or all together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.windows import Row
from bertkit.errors import UserError, suggest
from bertkit.inference import Guesses
from bertkit.metrics.calibration import softmax
from bertkit.model.engine import Wanted
from bertkit.text.checks import refuse_bad_rows
from bertkit.text.encoding import Encoding
from bertkit.text.words import closed_up

if TYPE_CHECKING:
    from bertkit.inference.predictor import Predictor


def fill(predictor: Predictor, text: str, top: int, joint: str) -> list[Any]:
    """Predictions for every mask of a text, as `Predictor.fill` describes them."""
    if not isinstance(text, str):
        raise UserError(f"fill takes one text, not {type(text).__name__}. Call it once for each text.")
    if top < 1:
        raise UserError(f"{top} guesses requested; ask for at least 1.")
    encodings = encode_masked(predictor, [text])
    if not joint:
        return Guesses(guesses(predictor, encodings, top)[0])
    if joint not in JOINT:
        raise UserError(f"joint is {joint!r}. {suggest(joint, list(JOINT))}")
    return fill_jointly(predictor, encodings[0], top, joint)


def encode_masked(predictor: Predictor, texts: Sequence[str]) -> list[Encoding]:
    """Encode texts with masks; a text without masks or beyond the model's limit is refused."""
    predictor.needs("mlm", "predict masked words")
    refuse_bad_rows(texts, "Text")
    if predictor.config.causal:
        raise UserError(
            "This model reads from left to right, so it cannot fill a mask from both sides. "
            "Use `bertkit suggest` for the next words."
        )
    mask = predictor.tokenizer.mask_id
    if mask is None:
        raise UserError("This tokenizer has no mask token, so there is nothing to fill.")
    token, limit = predictor.tokenizer.id_to_token(mask) or "[MASK]", predictor.config.max_tokens
    encodings = predictor.tokenizer.encode_batch([t if token in t else t.replace("[MASK]", token) for t in texts])
    for number, encoding in enumerate(encodings, 1):
        subject = f"Text {number}" if len(encodings) > 1 else "The text"
        if mask not in encoding.ids:
            raise UserError(f"{subject} has no {token}. Put {token} where a word should be predicted.")
        if len(encoding) > limit:
            raise UserError(f"{subject} has {len(encoding)} tokens; this model's limit is {limit}. Shorten it.")
    return encodings


def guesses(predictor: Predictor, encodings: Sequence[Encoding], top: int = 5) -> list[list[list[dict[str, Any]]]]:
    """The best predictions for every mask of every text."""
    mask = predictor.tokenizer.mask_id
    assert mask is not None  # otherwise there would be no encodings with masks

    size = predictor.tokenizer.size  # further rows are padding of the table
    rows = [Row(masked.ids, masked.segments, (0, len(masked))) for masked in encodings]
    places = [[(place, 1) for place, piece in enumerate(row.ids) if piece == mask] for row in rows]

    def best(numbers: list[int], logits: list[np.ndarray]) -> list[tuple[list[list[float]], list[list[int]]]]:
        return [_best(softmax(part)[:, :size], min(top, size)) for part in logits]

    predictions = predictor.engine.run(rows, Wanted("mlm", places), best, steady=predictor.steady)
    filled = []
    for encoding, spots, (scores, pieces) in zip(encodings, places, predictions):
        filled.append(
            [
                [_guess(predictor, encoding.ids, place, piece, score) for score, piece in zip(values, ids)]
                for (place, _), values, ids in zip(spots, scores, pieces)
            ]
        )
    return filled


def _guess(predictor: Predictor, ids: list[int], place: int, piece: int, score: float) -> dict[str, Any]:
    filled = [*ids[:place], piece, *ids[place + 1 :]]
    return {"token": spelled(predictor, piece), "score": score, "id": piece, "text": shown(predictor, filled)}


def spelled(predictor: Predictor, piece: int) -> str:
    """A guessed piece as users see it."""
    return (predictor.tokenizer.id_to_token(piece) or "").lstrip("Ġ▁")


def shown(predictor: Predictor, ids: Sequence[int]) -> str:
    """A text from its ids, in which a mask that is not filled yet stays visible."""
    hidden = predictor.tokenizer.special_ids - {predictor.tokenizer.mask_id}
    return closed_up(predictor.tokenizer.decode([n for n in ids if n not in hidden], keep_special=True))


def _best(scores: np.ndarray, top: int) -> tuple[list[list[float]], list[list[int]]]:
    """The best guesses for a mask: the highest scores of each row and their columns, best first."""
    columns = np.argpartition(-scores, top - 1, axis=-1)[:, :top]
    values = np.take_along_axis(scores, columns, -1)
    order = np.argsort(-values, axis=-1, kind="stable")
    return (np.take_along_axis(values, order, -1).tolist(), np.take_along_axis(columns, order, -1).tolist())


# ---- Several masks at once.
#
# A masked model gives the distribution of each mask while the others are still masked; the product of these knows
# nothing of how the words go together. Filling the masks one after the other, each seeing those before it, makes it
# a chain: p(x₁, x₂ | text) = p(x₁ | text) · p(x₂ | text, x₁).

JOINT = ("independent", "left-to-right", "beam")
BEAM = 10  # partial fillings that are kept at least


def fill_jointly(predictor: Predictor, encoding: Encoding, top: int, how: str) -> list[dict[str, Any]]:
    """The best fillings of all masks of a text: {tokens, ids, score, scores, text}, best first.

    how: "independent" multiplies the masks' own probabilities; "left-to-right" fills one mask after the other with the
    likeliest piece (the alternatives differ in the first mask); "beam" does so while keeping the best partial
    fillings. score: the joint probability; scores: the probability of each piece when it was chosen.
    """
    mask = predictor.tokenizer.mask_id
    places = [place for place, piece in enumerate(encoding.ids) if piece == mask]
    width = max(top, BEAM)
    partial: list[tuple[list[int], list[float]]] = [(encoding.ids, [])]  # ids so far, log-probability of each piece
    alone = _logs_at(predictor, [encoding.ids], encoding.segments, places)[0] if how == "independent" else None
    for step, place in enumerate(places):
        if alone is None:
            logs = _logs_at(predictor, [ids for ids, _ in partial], encoding.segments, [place])[:, 0]
        else:
            logs = np.broadcast_to(alone[step], (len(partial), alone.shape[-1]))
        branches = 1 if how == "left-to-right" and step else width
        pieces_by_value = np.argsort(-logs, axis=-1, kind="stable")[:, : min(branches, logs.shape[1])]
        best_values = np.take_along_axis(logs, pieces_by_value, -1)
        longer = [
            ([*ids[:place], piece, *ids[place + 1 :]], [*chain, value])
            for (ids, chain), values, pieces in zip(partial, best_values.tolist(), pieces_by_value.tolist())
            for value, piece in zip(values, pieces)
            if value > -math.inf
        ]
        partial = sorted(longer, key=lambda filling: -sum(filling[1]))[:width]
    return [
        {
            "tokens": [spelled(predictor, ids[place]) for place in places],
            "ids": [ids[place] for place in places],
            "score": math.exp(sum(chain)),
            "scores": [math.exp(value) for value in chain],
            "text": shown(predictor, ids),
        }
        for ids, chain in partial[:top]
    ]


def _logs_at(predictor: Predictor, texts: list[list[int]], segments: list[int], places: list[int]) -> np.ndarray:
    """Log-probabilities of every piece at masks that are filled together: (texts, places, pieces)."""
    special = sorted(predictor.tokenizer.special_ids)

    def logs(numbers: list[int], logits: list[np.ndarray]) -> list[np.ndarray]:
        tables = [np.log(softmax(part.astype(np.float64)))[:, : predictor.tokenizer.size] for part in logits]
        for table in tables:
            table[:, special] = -math.inf
        return tables

    rows = [Row(ids, segments, (0, len(ids))) for ids in texts]
    wanted = Wanted("mlm", [[(place, 1) for place in places]] * len(rows))
    return np.stack(predictor.engine.run(rows, wanted, logs))
