"""How likely a text is: pseudo-log-likelihood for masked models, log-likelihood for causal ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from bertkit.data.batch import pack, run_batched
from bertkit.errors import UserError
from bertkit.notify import note, track

if TYPE_CHECKING:
    from bertkit.inference.predictor import Predictor


def score(predictor: Predictor, texts: Sequence[str], words: bool = False) -> list[float]:
    """Natural-log likelihood of each text, summed over its pieces."""
    limit = predictor.config.max_tokens
    encodings = predictor.tokenizer.encode_batch(texts)
    for number, encoding in enumerate(encodings):
        if len(encoding) > limit:
            raise UserError(f"Text {number + 1} has {len(encoding)} tokens; this model scores at most {limit}.")
    runs = [_causal_run, _masked_runs][not predictor.config.causal]
    owners: list[int] = []
    inputs: list[list[int]] = []
    places: list[list[int]] = []
    targets: list[list[int]] = []
    for number, encoding in enumerate(encodings):
        for ids, positions, answers in runs(encoding.ids, encoding.special, encoding.words, predictor, words):
            if not positions:
                continue  # a causal model cannot predict a text's only piece
            owners.append(number)
            inputs.append(ids)
            places.append(positions)
            targets.append(answers)
    totals = [0.0] * len(texts)
    values: list[list[float]] = [[]] * len(inputs)

    def compute(numbers: list[int]) -> None:
        batch = pack([inputs[n] for n in numbers]).to(predictor.device)
        starts = {caller: int(batch.starts[packed]) for packed, caller in enumerate(batch.order)}
        indices = [starts[i] + place for i, n in enumerate(numbers) for place in places[n]]
        expected = torch.tensor([t for n in numbers for t in targets[n]], device=predictor.device)
        encoded = predictor.model.encoder(batch)
        logits = predictor.model.ask("mlm", encoded, torch.tensor(indices, device=predictor.device)).float()
        scores = (logits.gather(1, expected[:, None])[:, 0] - logits.logsumexp(-1)).tolist()
        offset = 0
        for n in numbers:
            values[n] = scores[offset : offset + len(places[n])]
            offset += len(places[n])

    run_batched([len(ids) for ids in inputs], compute, predictor.device)
    for owner, row in zip(owners, values):
        totals[owner] += sum(row)
    return totals


AT_ONCE = 64  # sentences per call: each becomes as many rows as it has pieces


def pseudo_perplexity(predictor: Predictor, texts: Sequence[str]) -> dict[str, float]:
    """Pseudo-perplexity: how hard it is to predict a masked piece from all others (Salazar et al., 2020).

    Texts beyond the model's limit are left out and reported. Pieces differ between tokenizers: compare
    pseudo_bits_per_byte.
    """
    predictor.needs("mlm", "predict masked words")
    sizes = [len(encoding) for encoding in predictor.tokenizer.encode_batch(texts)]
    fit = [text for text, size in zip(texts, sizes) if text.strip() and size <= predictor.config.max_tokens]
    if too_long := sum(size > predictor.config.max_tokens for size in sizes):
        note(f"{too_long} texts longer than {predictor.config.max_tokens} tokens are left out.")
    if not fit:
        raise UserError("There is no text to score.")
    parts = track([fit[n : n + AT_ONCE] for n in range(0, len(fit), AT_ONCE)], "scoring", -(-len(fit) // AT_ONCE))
    nats = -sum(sum(score(predictor, part)) for part in parts)
    pieces = sum(encoding.special.count(False) for encoding in predictor.tokenizer.encode_batch(fit))
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in fit)
    return {
        "pseudo_perplexity": math.exp(min(700.0, nats / pieces)),
        "pseudo_bits_per_byte": nats / math.log(2) / size,
        "pieces": pieces,
        "bytes": size,
    }


Run = tuple[list[int], list[int], list[int]]  # ids, places to predict, their ids


def _masked_runs(
    ids: list[int], special: list[bool], word_of: list[int], predictor: Predictor, words: bool
) -> list[Run]:
    """One copy of the text per piece, with that piece masked (and optionally the rest of its word)."""
    mask = predictor.tokenizer.mask_id
    if mask is None:
        raise UserError("This tokenizer has no mask token, so texts cannot be scored.")
    runs = []
    for place, piece in enumerate(ids):
        if special[place]:
            continue
        hidden = list(ids)
        hidden[place] = mask
        later = place + 1
        while words and later < len(ids) and not special[later] and word_of[later] == word_of[place]:
            hidden[later] = mask
            later += 1
        runs.append((hidden, [place], [piece]))
    return runs


def _causal_run(
    ids: list[int], special: list[bool], word_of: list[int], predictor: Predictor, words: bool
) -> list[Run]:
    """Score the text in one pass: every piece from the pieces before it."""
    return [(ids, list(range(len(ids) - 1)), ids[1:])]
