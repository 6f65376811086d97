"""What the pretraining heads say: how likely a text is, which choice continues it, whether one text follows another.

A text (and a minimal pair) is scored by pseudo-log-likelihood for masked models, by log-likelihood for causal ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bertkit import metrics
from bertkit.data.readers import read_minimal_pairs
from bertkit.data.windows import Row, Windows, encode_rows
from bertkit.errors import UserError
from bertkit.metrics.calibration import softmax
from bertkit.model.engine import Wanted
from bertkit.notify import note, track
from bertkit.text.words import without_spaces

if TYPE_CHECKING:
    from bertkit.inference.predictor import Predictor


def score(
    predictor: Predictor, texts: Sequence[str], words: bool = False, starts: Sequence[int] | None = None
) -> list[float]:
    """Natural-log likelihood of each text, summed over its pieces.

    starts: a character of each text; only the pieces that end after it are counted, given all that comes before.
    """
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
            if starts is not None:
                # A causal model predicts the piece after a place, a masked one the piece at it.
                ends = [encoding.offsets[place + predictor.config.causal][1] for place in positions]
                counted = [n for n, end in enumerate(ends) if end > starts[number]]
                positions, answers = [positions[n] for n in counted], [answers[n] for n in counted]
            if not positions:
                continue  # a causal model cannot predict a text's only piece
            owners.append(number)
            inputs.append(ids)
            places.append(positions)
            targets.append(answers)
    totals = [0.0] * len(texts)

    def likelihoods(numbers: list[int], logits: list[np.ndarray]) -> list[float]:
        return [_log_likelihood(part, targets[n]) for n, part in zip(numbers, logits)]

    rows = [Row(ids, None, (0, len(ids))) for ids in inputs]
    wanted = Wanted("mlm", [[(place, 1) for place in positions] for positions in places])
    for owner, value in zip(owners, predictor.engine.run(rows, wanted, likelihoods)):
        totals[owner] += value
    return totals


def _log_likelihood(logits: np.ndarray, ids: Sequence[int]) -> float:
    """A text's score: the summed log-probability of ids. logits: (ids, vocabulary)."""
    highest = logits.max(-1)
    log_sum = highest + np.log(np.exp(logits - highest[:, None]).sum(-1))
    return float((logits[np.arange(len(ids)), ids] - log_sum).sum(dtype=np.float64))


SENTENCES_AT_ONCE = 64  # sentences per call: each becomes as many rows as it has pieces


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
    parts = track(
        [fit[n : n + SENTENCES_AT_ONCE] for n in range(0, len(fit), SENTENCES_AT_ONCE)],
        "scoring",
        -(-len(fit) // SENTENCES_AT_ONCE),
    )
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
    """A copy of the text per piece, with that piece masked (and optionally the rest of its word), to be scored."""
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


def choose(predictor: Predictor, text: str, choices: Sequence[str]) -> dict[str, Any]:
    """The likeliest continuation of a text, without any training: {choice, scores, likelihoods}.

    likelihoods: the mean log-probability of each choice's pieces after the text, as GPT's paper compares answers
    (from the left, or from both sides by a masked model). scores: their softmax.
    """
    predictor.needs("mlm", "score texts")
    if len(choices) < 2:
        raise UserError(f"There are {len(choices)} choices; at least two are needed.")
    between = "" if without_spaces([text, *choices]) or not text or text[-1].isspace() else " "
    texts = [f"{text}{between}{choice}" for choice in choices]
    starts = [len(text)] * len(choices)
    encodings = predictor.tokenizer.encode_batch(texts)
    sizes = [sum(end > len(text) for _, end in encoding.offsets) for encoding in encodings]
    totals = score(predictor, texts, starts=starts)
    likelihoods = [total / max(1, size) for total, size in zip(totals, sizes)]
    weights = [math.exp(value - max(likelihoods)) for value in likelihoods]
    return {"choice": max(range(len(choices)), key=likelihoods.__getitem__), "likelihoods": likelihoods,
            "scores": [weight / sum(weights) for weight in weights]}  # fmt: skip


# ---- Does one text follow another?

PAIRS = {"next_sentence": "next", "order": "order"}  # head → what its probability is called


def follows(predictor: Predictor, a: Sequence[str], b: Sequence[str]) -> list[dict[str, float]]:
    """Whether the second text of each pair follows: {"next": probability}, or ALBERT's sentence order: {"order": …}."""
    head = next((head for head in PAIRS if head in predictor.engine.heads), None)
    if head is None:
        has = ", ".join(predictor.engine.heads) or "none"
        raise UserError(
            f"This model cannot tell whether one text follows another: it has no next-sentence head (it has: {has}). "
            "The embedded model classic has one, BERT's original checkpoints (google-bert/bert-base-uncased) and "
            "models of `bertkit pretrain --preset bert-…` do too; RoBERTa, DistilBERT, ELECTRA, ModernBERT, en and zh "
            "were trained without."
        )
    predictor.needs(head, "tell whether one text follows another")
    encoded_pairs = encode_rows(predictor.tokenizer, a, b, Windows(predictor.config.max_tokens, "truncate"))
    if cut := sum(pair.cut for pair in encoded_pairs):
        note(f"{cut} tokens were truncated from pairs longer than {predictor.config.max_tokens} tokens.")

    logits = predictor.engine.run([pair.rows[0] for pair in encoded_pairs], Wanted(head))
    answers = [float(softmax(pair)[0]) for pair in logits]
    return [{PAIRS[head]: chance} for chance in answers]


PAIRS_AT_ONCE = 500  # pairs scored together
RESAMPLES = 2000


class TextScorer(Protocol):
    """Anything that says how likely a text is: masked, causal and n-gram language models."""

    def score(self, texts: list[str]) -> list[float]:
        """What scores texts: how likely each is; higher is likelier."""


def score_minimal_pairs(scorer: TextScorer, path: str | Path, most: int = 0, encoding: str = "utf-8") -> dict[str, Any]:
    """The share of minimal pairs whose good sentence is likelier: over all, and by group (BLiMP reports their mean)."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for pair in read_minimal_pairs(path, encoding=encoding):
        counts = groups.setdefault(str(pair.group), [])
        if not most or len(counts) < most:
            counts.append((pair.good, pair.bad))
    pairs = [(group, *texts) for group, counts in groups.items() for texts in counts]
    good: list[float] = []
    bad: list[float] = []
    for start in track(range(0, len(pairs), PAIRS_AT_ONCE), "scoring pairs", -(-len(pairs) // PAIRS_AT_ONCE)):
        part = pairs[start : start + PAIRS_AT_ONCE]
        scores = scorer.score([text for _, one, two in part for text in (one, two)])
        good += scores[0::2]
        bad += scores[1::2]
    scores_all = metrics.minimal_pairs(good, bad)
    by_group: dict[str, list[bool]] = {}
    for (group, _, _), g, b in zip(pairs, good, bad):
        by_group.setdefault(group, []).append(g > b)
    shares = {group: sum(wins) / len(wins) for group, wins in sorted(by_group.items())}
    return {
        "metrics": {"mean_of_groups": sum(shares.values()) / max(1, len(shares)), **scores_all},
        "intervals": {
            "mean_of_groups": _interval([(sum(wins), len(wins)) for wins in by_group.values()]),
            "accuracy": list(metrics.bootstrap(metrics.minimal_pairs, good, bad)["accuracy"]),
        },
        "groups": shares, "rows": len(pairs), "rows_cut": 0,
    }  # fmt: skip


def _interval(groups: list[tuple[int, int]]) -> list[float]:
    """The 95 % interval of minimal pairs' mean over groups, pairs resampled within each. groups: (won, pairs)."""
    chance = np.random.default_rng(0)
    drawn = [chance.binomial(pairs, won / pairs, RESAMPLES) / pairs for won, pairs in groups]
    return [float(edge) for edge in np.percentile(np.mean(drawn, axis=0), (2.5, 97.5))]
