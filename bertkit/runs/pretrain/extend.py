"""A model and a store with new words: frequent words of the text that the old vocabulary cuts to pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.checkpoint.folder import Folder
from bertkit.data.store import Store
from bertkit.errors import UserError
from bertkit.model.heads import Model
from bertkit.runs.pretrain.extend_store import rewrite, spelled, words_of
from bertkit.settings.pretrain import PretrainSettings
from bertkit.notify import note
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.distributed import World

LEAST = 5  # times a word must occur
MULTIPLE = 64  # rows of the word table: a multiple multiplies faster


def extended(
    store: Store, source: Folder, settings: PretrainSettings, world: World | None = None
) -> tuple[Store, Folder]:
    """The text and the model with `settings.add_tokens` new words.

    The store is rewritten once, into `store` in the run's folder. Each new word starts as the mean of its old pieces.
    """
    store.check(source.tokenizer)
    world = world or World()
    folder = settings.out / "store"
    text = store.facts["files"]["tokens.bin"]["sha256"]
    about = {"text": text, "tokenizer": store.fingerprint, "asked": settings.add_tokens}
    if world.speaks and not folder.exists():
        words = useful_words(store, settings.add_tokens)
        tokenizer = source.tokenizer.extended(words)
        rewrite(store, tokenizer, folder, about | {"words": len(words)})
    world.wait()
    grown = Store.open(folder)
    if {key: grown.facts.get("extended", {}).get(key) for key in about} != about:
        raise UserError(
            f"{folder} was made from another text, model or --add-tokens than it is now. "
            "Give the same ones again, or choose another --out."
        )
    if world.speaks:
        note(
            f"{grown.facts['extended']['words']:,} words became pieces of their own: {grown.tokens:,} tokens instead "
            f"of {store.tokens:,} ({1 - grown.tokens / store.tokens:.1%} fewer)."
        )
    model = with_rows(source.model, source.tokenizer, grown.tokenizer)
    return grown, replace(source, model=model, tokenizer=grown.tokenizer)


def useful_words(store: Store, most: int) -> list[str]:
    """Words of letters alone that save most tokens as pieces of their own: count × (pieces - 1), best first."""
    tokenizer = store.tokenizer
    found = words_of(store)
    found = found[found.counts >= LEAST]
    found = found[np.argsort(-found.counts * (found.sizes - 1), kind="stable")]
    chosen: dict[str, None] = {}
    # A few at a time: most of the rare ones need never be spelled out.
    for start in range(0, len(found.hashes), 4 * most):
        part = slice(start, start + 4 * most)
        pieces = [store.ids[a : a + n].tolist() for a, n in zip(found.first[part], found.sizes[part])]
        for text in spelled(tokenizer, pieces):
            if text is not None and _can_be_one_piece(tokenizer, text):
                chosen[text.strip()] = None
                if len(chosen) == most:
                    return list(chosen)
    if not chosen:
        raise UserError(
            f"No word of {store.folder} occurs {LEAST} times and has more than one piece: there is nothing to add. "
            "Leave --add-tokens out."
        )
    note(f"Only {len(chosen):,} of {most:,} new words: no more occur {LEAST} times and have more than one piece.")
    return list(chosen)


def _can_be_one_piece(tokenizer: Tokenizer, text: str) -> bool:
    """Whether it is letters that the tokenizer's rules leave together (they take Chinese apart into characters)."""
    backend = tokenizer.backend
    # A byte-level piece holds the space before its word; what has none is the first word of a text.
    if not text.strip().isalpha() or (tokenizer.kind == "bpe" and not text.startswith(" ")):
        return False
    text = backend.normalizer.normalize_str(text) if backend.normalizer is not None else text
    return backend.pre_tokenizer is None or len(backend.pre_tokenizer.pre_tokenize_str(text)) == 1


@torch.no_grad()
def with_rows(model: Model, old: Tokenizer, new: Tokenizer) -> Model:
    """The model with a row for every new piece: the mean of its old pieces' rows. Changes the model; returns it."""
    rows = max(model.config.vocabulary, -(-new.size // MULTIPLE) * MULTIPLE)
    added = [str(new.id_to_token(number)) for number in range(old.size, new.size)]
    pieces = [[piece.id for piece in old.backend.model.tokenize(token)] for token in added]

    def grown(table: Tensor, empty: Tensor) -> nn.Parameter:
        """table: (vocabulary, …). empty: what a row without a piece holds."""
        out = torch.cat([table, empty.expand(rows, *table.shape[1:])[len(table) :]]).clone()
        for row, parts in enumerate(pieces, old.size):
            out[row] = table[parts].mean(0)
        return nn.Parameter(out)

    words = model.encoder.embeddings.words
    words.weight = grown(words.weight, torch.zeros(words.weight.shape[1]))
    words.num_embeddings = rows
    if "words" in model.heads:
        head = model.head("words")
        if head.bias is not None:
            head.bias = grown(head.bias, head.bias.min())  # such a row should not be guessed
        if head.decoder is not None:
            head.decoder = grown(head.decoder, torch.zeros(head.decoder.shape[1]))
    model.config = model.encoder.config = replace(model.config, vocabulary=rows)
    return model
