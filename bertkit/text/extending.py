"""Whole words added to a vocabulary, for texts of a domain the vocabulary has not seen."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tokenizers

from bertkit.errors import UserError
from bertkit.notify import note

if TYPE_CHECKING:
    from bertkit.text.tokenizer import Tokenizer


def extended(tokenizer: Tokenizer, new_tokens: Sequence[str]) -> Tokenizer:
    """A tokenizer for which each of these words is one piece; old ids keep their meaning.

    The words go into the vocabulary itself, under the tokenizer's own rules (lower-cased where it lower-cases).
    Byte-level BPE also needs the steps that lead to a word, so it may grow by more than the words.
    """
    shape = copy.deepcopy(tokenizer.shape)
    wanted = [_one_word(tokenizer, token) for token in dict.fromkeys(new_tokens)]
    new = [
        word
        for word in dict.fromkeys(wanted)
        if len(tokenizer.pieces_batch([word])[0]) != 1 or _unknown(tokenizer, word)
    ]
    if len(new) < len(new_tokens):
        note(f"{len(new_tokens) - len(new)} of {len(new_tokens)} new tokens were in the vocabulary or given twice.")
    next_id = tokenizer.size
    for word in sorted(new, key=len):  # a word that holds another is weighed against it
        next_id = GROW[tokenizer.kind](tokenizer, shape["model"], word, next_id)
    grown = type(tokenizer)(tokenizers.Tokenizer.from_str(json.dumps(shape)), tokenizer.config)
    split = [word for word, pieces in zip(new, grown.pieces_batch(new)) if len(pieces) != 1]
    if split:
        raise UserError(f"These new tokens cannot be one piece each: {', '.join(split[:10])}. Leave them out.")
    return grown


def _one_word(tokenizer: Tokenizer, token: str) -> str:
    """The token as the rules leave it. A byte-level word gets the space that stands before it in a text."""
    backend = tokenizer.backend
    word = token.strip()
    if backend.normalizer is not None:
        word = backend.normalizer.normalize_str(word).strip()
    if tokenizer.kind == "bpe":
        word = " " + word
    parts = [part for part, _ in backend.pre_tokenizer.pre_tokenize_str(word)] if backend.pre_tokenizer else [word]
    if len(parts) != 1 or not word.strip():
        shown = ", ".join(parts) or "nothing"
        raise UserError(
            f"New token '{token}' is not one word: the tokenizer's rules see {shown}. "
            "Give single words without spaces or punctuation."
        )
    return word


def _unknown(tokenizer: Tokenizer, word: str) -> bool:
    return tokenizer.unk_id is not None and tokenizer.unk_id in tokenizer.pieces_batch([word])[0]


def _grow_wordpiece(tokenizer: Tokenizer, model: dict[str, Any], word: str, next_id: int) -> int:
    model["vocab"][word] = next_id
    return next_id + 1


def _grow_bpe(tokenizer: Tokenizer, model: dict[str, Any], word: str, next_id: int) -> int:
    # New merges come last, so a text first falls into its old pieces and these are then joined from the left.
    backend = tokenizers.Tokenizer.from_str(json.dumps(tokenizer.shape | {"model": model}))
    pieces = backend.encode(word, add_special_tokens=False).tokens
    left = pieces[0]
    for right in pieces[1:]:
        model["merges"].append([left, right])
        left += right
        if left not in model["vocab"]:
            model["vocab"][left] = next_id
            next_id += 1
    return next_id


def _grow_unigram(tokenizer: Tokenizer, model: dict[str, Any], word: str, next_id: int) -> int:
    # One more than the best way to write it so far is enough to be preferred, and changes least for other words.
    model["vocab"].append(["▁" + word, _best_score(dict(model["vocab"]), "▁" + word) + 1])
    return next_id + 1


def _best_score(scores: dict[str, float], word: str) -> float:
    """The score of the best way to write a word in pieces, the words added before it included."""
    unknown = min(scores.values()) - 10
    best = [0.0]
    for end in range(1, len(word) + 1):
        best.append(max(best[start] + scores.get(word[start:end], -math.inf) for start in range(end)))
        best[end] = max(best[end], best[end - 1] + unknown)
    return best[-1]


GROW: dict[str, Callable[[Tokenizer, dict[str, Any], str, int], int]] = {
    "wordpiece": _grow_wordpiece,
    "bpe": _grow_bpe,
    "unigram": _grow_unigram,
}
