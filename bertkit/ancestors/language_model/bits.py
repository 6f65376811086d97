"""How surprised a model is by texts: one arithmetic for every language model, so that they can be compared.

A text is scored from its first piece on: the mark of the beginning ([CLS], <s>) is given, every piece of the text and
the mark of its end are guessed. Pieces differ from tokenizer to tokenizer, bytes do not: only bits per byte compare
models of different tokenizers, and only where neither has met unknown pieces, which cost next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bertkit.errors import UserError
from bertkit.text.tokenizer import Tokenizer


def framed(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The pieces of each text between the marks of its beginning and its end."""
    first, last = tokenizer.cls_id, tokenizer.sep_id
    if first is None or last is None:
        raise UserError("This tokenizer has no [CLS] and [SEP] (or <s> and </s>); learn one with bertkit tokenizer.")
    return [[first, *pieces, last] for pieces in tokenizer.pieces_batch(texts)]


def surprise(
    texts: Sequence[str], likelihoods: Sequence[float], rows: Sequence[Sequence[int]], unknown: int | None
) -> dict[str, float]:
    """Perplexity and bits per byte over all texts together.

    likelihoods: natural-log likelihood of each text. rows: the ids that were read for it, of which all but the first
    were guessed. unknown: the id of the unknown piece. Returns perplexity (per guessed piece), bits_per_byte (of the
    raw text in UTF-8), pieces (guessed), unknown (pieces of the text that are), bytes.
    """
    pieces = sum(max(0, len(row) - 1) for row in rows)
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if not size or not pieces:
        raise UserError("There is no text to measure: every text is empty.")
    nats = -sum(likelihoods)
    return {
        "perplexity": math.exp(min(700.0, nats / pieces)),
        "bits_per_byte": nats / math.log(2) / size,
        "pieces": pieces,
        "unknown": sum(row.count(unknown) for row in rows) if unknown is not None else 0,
        "bytes": size,
    }
