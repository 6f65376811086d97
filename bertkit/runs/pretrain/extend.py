"""Extends a model and a store with frequent words that the old vocabulary splits into pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.checkpoint.folder import Folder
from bertkit.data.prepare.pieces import Arrays, PieceEncoder
from bertkit.data.prepare.write_store import StoreWriter
from bertkit.data.store import Store
from bertkit.errors import UserError
from bertkit.model.heads import Model
from bertkit.notify import note, track
from bertkit.settings.model import rows_for
from bertkit.settings.pretrain import PretrainSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.distributed import World

# ---- The words of a store counted, and the store rewritten for a tokenizer that has more pieces.
#
# A word is identified by a 64-bit hash of its pieces, so that millions of words are counted by sorting numbers, chunk
# by chunk, in bounded memory.

CHUNK = 1 << 20  # tokens per chunk
MOST_WORDS = 4_000_000  # different words in memory at once, each some 30 bytes
PLACES = 64  # positions with their own factor in the hash; longer words also differ by their length


@dataclass(frozen=True)
class SplitWords:
    """Different words of a store that the vocabulary to extend splits. hashes: sorted.

    first: where one of them occurs in its ids. sizes: in pieces.
    """

    hashes: np.ndarray
    counts: np.ndarray
    first: np.ndarray
    sizes: np.ndarray

    def __getitem__(self, picked: np.ndarray) -> SplitWords:
        return SplitWords(self.hashes[picked], self.counts[picked], self.first[picked], self.sizes[picked])


class _Hash:
    """Hashes the pieces of each word to one number."""

    def __init__(self, pieces: int) -> None:
        chance = np.random.default_rng(0)
        self.piece = chance.integers(0, 1 << 64, pieces, np.uint64)
        self.place = chance.integers(0, 1 << 63, PLACES, np.uint64) * np.uint64(2) + np.uint64(1)

    def __call__(self, ids: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """ids: (tokens,). begins: (words,) the first is 0. Returns (words,) uint64; overflow is intended."""
        sizes = np.diff(begins, append=len(ids))
        places = np.arange(len(ids)) - np.repeat(begins, sizes)
        sums = np.add.reduceat(self.piece[ids] * self.place[places % PLACES], begins)
        return sums ^ (sizes.astype(np.uint64) * self.place[-1])


def chunks(store: Store, first: int = 0) -> Iterator[tuple[int, int]]:
    """A store in chunks, for extending its vocabulary.

    Sentences [first, last) of about CHUNK tokens, from `first` on.
    """
    starts = store.sentence_starts
    while first < store.sentences:
        last = int(np.searchsorted(starts, int(starts[first]) + CHUNK, side="right")) - 1
        last = min(max(last, first + 1), store.sentences)
        yield first, last
        first = last


def words_of(store: Store) -> SplitWords:
    """Every word of two pieces or more, to extend a vocabulary by. Beyond MOST_WORDS, the rarest are dropped."""
    hashed = _Hash(store.facts["pieces"])
    words = SplitWords(*(np.zeros(0, kind) for kind in (np.uint64, np.int64, np.int64, np.int64)))
    for a, b in track(list(chunks(store)), "counting words"):
        start, stop = int(store.sentence_starts[a]), int(store.sentence_starts[b])
        ids, begins = np.asarray(store.ids[start:stop]), np.flatnonzero(store.word_starts[start:stop])
        hashes, first_index, counts = np.unique(hashed(ids, begins), return_index=True, return_counts=True)
        new = SplitWords(hashes, counts, start + begins[first_index], np.diff(begins, append=len(ids))[first_index])
        words = _joined(words, new[new.sizes > 1])
        while len(words.hashes) > MOST_WORDS:
            words = words[words.counts > np.quantile(words.counts, 0.5)]
    return words


def _joined(old: SplitWords, new: SplitWords) -> SplitWords:
    hashes, at, inverse = np.unique(np.concatenate([old.hashes, new.hashes]), return_index=True, return_inverse=True)
    counts = np.bincount(inverse, np.concatenate([old.counts, new.counts]), len(hashes)).astype(np.int64)
    first, sizes = np.concatenate([old.first, new.first]), np.concatenate([old.sizes, new.sizes])
    return SplitWords(hashes, counts, first[at], sizes[at])


def spelled(tokenizer: Tokenizer, words: Sequence[Sequence[int]]) -> list[str | None]:
    """The text of each word given as pieces, to extend a vocabulary by; None if it would not give the same pieces."""
    texts = tokenizer.backend.decode_batch([list(pieces) for pieces in words], skip_special_tokens=False)
    again = tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)
    return [text if raw.ids == list(pieces) else None for text, raw, pieces in zip(texts, again, words)]


class _Changes:
    """Maps old words to their new pieces, computed when a word first appears."""

    def __init__(self, old: Tokenizer, new: Tokenizer) -> None:
        self.old, self.new = old, new
        self.known = np.zeros(0, np.uint64)
        self.pieces: dict[int, list[int]] = {}

    def learn(self, hashes: np.ndarray, words: list[list[int]]) -> None:
        """Words that an extended vocabulary changes. hashes: sorted, of these words, none of them known."""
        texts = spelled(self.old, words)
        spelled_words = [(int(h), text, pieces) for h, text, pieces in zip(hashes, texts, words) if text is not None]
        encoded = self.new.backend.encode_batch_fast([text for _, text, _ in spelled_words], add_special_tokens=False)
        self.pieces |= {h: raw.ids for (h, _, pieces), raw in zip(spelled_words, encoded) if raw.ids != pieces}
        self.known = np.union1d(self.known if len(self.known) < MOST_WORDS else self.known[:0], hashes)


def rewrite(store: Store, tokenizer: Tokenizer, out: Path, about: dict[str, Any]) -> Store:
    """Rewrite a store for an extended tokenizer, as a new store; if interrupted, it continues where it stopped."""
    job = hashlib.sha256(f"{store.fingerprint} {store.facts['files']} {tokenizer.fingerprint()}".encode()).hexdigest()
    dtype = PieceEncoder.dtype_for(tokenizer)
    changes, hashed = _Changes(store.tokenizer, tokenizer), _Hash(store.facts["pieces"])
    with StoreWriter(out, job) as writer:
        with writer.explained("could not store the tokenizer"):
            tokenizer.save(writer.folder / "tokenizer", store.max_tokens)
        for a, b in track(list(chunks(store, writer.progress.document)), "rewriting the store"):
            writer.add(_rewritten(store, a, b, changes, hashed, dtype), b"", 0, b, {})
        writer.write_journal()
        tokens = writer.progress.tokens
        facts = {key: value for key, value in store.facts.items() if key != "files"}
        grown = {
            "dtype": dtype, "tokens": tokens, "fingerprint": tokenizer.fingerprint(), "pieces": tokenizer.size,
            "extended": about,
        }  # fmt: skip
        writer.finish(facts | grown, f"{store.folder} with {about['words']:,} new pieces: {tokens:,} tokens\n")
    return Store.open(out)


def _rewritten(store: Store, a: int, b: int, changes: _Changes, hashed: _Hash, dtype: str) -> Arrays:
    """Sentences [a, b) of the store in an extended vocabulary: every changed word is replaced."""
    start, stop = int(store.sentence_starts[a]), int(store.sentence_starts[b])
    ids, flags = np.asarray(store.ids[start:stop]).astype(np.int64), np.asarray(store.word_starts[start:stop])
    begins = np.flatnonzero(flags)
    sizes = np.diff(begins, append=len(ids))
    hashes, first_index, inverse = np.unique(hashed(ids, begins), return_index=True, return_inverse=True)
    fresh = np.flatnonzero((sizes[first_index] > 1) & ~np.isin(hashes, changes.known))
    changes.learn(hashes[fresh], [ids[begins[i] : begins[i] + sizes[i]].tolist() for i in first_index[fresh]])
    # Changed words are read from a pool appended to the ids, all others from their old positions.
    pool: list[int] = []
    pooled, length = np.full(len(hashes), -1), sizes[first_index]
    for word in np.flatnonzero(np.isin(hashes, np.fromiter(changes.pieces, np.uint64, len(changes.pieces)))):
        pieces = changes.pieces[int(hashes[word])]
        pooled[word], length[word] = len(ids) + len(pool), len(pieces)
        pool += pieces
    places = np.where(pooled[inverse] >= 0, pooled[inverse], begins)
    lengths = length[inverse]
    ends = np.cumsum(lengths)
    source = np.repeat(places - (ends - lengths), lengths) + np.arange(ends[-1])
    first = np.zeros(ends[-1], np.uint8)
    first[ends - lengths] = 1
    bounds = np.append(begins, len(ids))
    sentences = np.append(0, ends)[np.searchsorted(bounds, np.asarray(store.sentence_starts[a : b + 1]) - start)]
    low, high = np.searchsorted(store.document_starts, [a, b], side="right")
    return Arrays(
        np.concatenate([ids, np.asarray(pool, np.int64)])[source].astype(dtype), first, np.diff(sentences),
        np.diff(store.document_starts[low:high], prepend=a),
    )  # fmt: skip


# ---- A model and a store with new words: frequent words of the text that the old vocabulary splits.

LEAST = 5  # minimum number of occurrences of a new word


def extended(
    store: Store, source: Folder, settings: PretrainSettings, world: World | None = None
) -> tuple[Store, Folder]:
    """A store and a model extended with `settings.add_tokens` new words.

    The store is rewritten once, into `store` in the run's folder. Each new word starts as the mean of its old pieces.
    """
    store.check(source.tokenizer)
    world = world or World()
    folder = settings.out / "store"
    text = store.facts["files"]["tokens.bin"]["sha256"]
    about = {"text": text, "tokenizer": store.fingerprint, "asked": settings.add_tokens}
    if world.is_main and not folder.exists():
        words = useful_words(store, settings.add_tokens)
        tokenizer = source.tokenizer.extended(words)
        rewrite(store, tokenizer, folder, about | {"words": len(words)})
    world.wait()
    grown = Store.open(folder)
    if {key: grown.facts.get("extended", {}).get(key) for key in about} != about:
        raise UserError(
            f"{folder} was made from a different text, model or --add-tokens. "
            "Use the same ones again, or choose another --out."
        )
    if world.is_main:
        note(
            f"{grown.facts['extended']['words']:,} words were added to the vocabulary: {grown.tokens:,} tokens instead "
            f"of {store.tokens:,} ({1 - grown.tokens / store.tokens:.1%} fewer)."
        )
    model = with_rows(source.model, source.tokenizer, grown.tokenizer)
    return grown, replace(source, model=model, tokenizer=grown.tokenizer)


def useful_words(store: Store, most: int) -> list[str]:
    """Words of letters worth extending a vocabulary with, best first. They save most tokens: count × (pieces - 1)."""
    tokenizer = store.tokenizer
    candidates = words_of(store)
    candidates = candidates[candidates.counts >= LEAST]
    candidates = candidates[np.argsort(-candidates.counts * (candidates.sizes - 1), kind="stable")]
    chosen: dict[str, None] = {}
    # A few at a time: most of the rare ones are never needed.
    for start in range(0, len(candidates.hashes), 4 * most):
        part = slice(start, start + 4 * most)
        pieces = [store.ids[a : a + n].tolist() for a, n in zip(candidates.first[part], candidates.sizes[part])]
        for text in spelled(tokenizer, pieces):
            if text is not None and _can_be_one_piece(tokenizer, text):
                chosen[text.strip()] = None
                if len(chosen) == most:
                    return list(chosen)
    if not chosen:
        raise UserError(
            f"No word of {store.folder} occurs {LEAST} times and has more than one piece, so there is nothing to add. "
            "Leave --add-tokens out."
        )
    note(f"Added {len(chosen):,} of {most:,} new words: no others occur {LEAST} times and have more than one piece.")
    return list(chosen)


def _can_be_one_piece(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a word can extend a vocabulary: letters that the rules keep together (they split Chinese)."""
    backend = tokenizer.backend
    # A byte-level piece includes the space before its word; one without it is the first word of a text.
    if not text.strip().isalpha() or (tokenizer.kind == "bpe" and not text.startswith(" ")):
        return False
    text = backend.normalizer.normalize_str(text) if backend.normalizer is not None else text
    return backend.pre_tokenizer is None or len(backend.pre_tokenizer.pre_tokenize_str(text)) == 1


@torch.no_grad()
def with_rows(model: Model, old: Tokenizer, new: Tokenizer) -> Model:
    """Extend a model with a row for every new piece: the mean of its old pieces' rows.

    Changes the model; returns it.
    """
    rows = max(model.config.vocabulary, rows_for(new.size))
    added = [str(new.id_to_token(number)) for number in range(old.size, new.size)]
    pieces = [[piece.id for piece in old.backend.model.tokenize(token)] for token in added]

    def grown(table: Tensor, empty: Tensor) -> nn.Parameter:
        """table: (vocabulary, …). empty: what a row without a piece holds."""
        out = torch.cat([table, empty.expand(rows, *table.shape[1:])[len(table) :]]).clone()
        for row, parts in enumerate(pieces, old.size):
            out[row] = table[parts].mean(0)
        return nn.Parameter(out)

    words = model.encoder.embeddings.tokens
    words.weight = grown(words.weight, torch.zeros(words.weight.shape[1]))
    words.num_embeddings = rows
    if "mlm" in model.heads:
        head = model.head("mlm")
        if head.bias is not None:
            head.bias = grown(head.bias, head.bias.min())  # such a row should not be predicted
        if head.decoder is not None:
            head.decoder = grown(head.decoder, torch.zeros(head.decoder.shape[1]))
    model.config = model.encoder.config = replace(model.config, vocabulary=rows)
    return model
