"""Pairs of texts: read, turned into ids, packed for the encoder and the decoder, and fed to the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertkit.data.batch import ROUND, Batch, batches_by_tokens, pack
from bertkit.data.examples import TextRow
from bertkit.data.readers import columns_of, kind_of, read_rows
from bertkit.errors import UserError
from bertkit.notify import note
from bertkit.text.tokenizer import Tokenizer

USUAL = (("text", "text_b"), ("source", "target"))  # taken by themselves where no column is named


class TextPair(NamedTuple):
    """A pair of texts for the Transformer as ids.

    source: with its end; given: what the decoder reads; wanted: what it must say, as long.
    """

    source: list[int]
    given: list[int]
    wanted: list[int]


def read_pairs(path: Path, text: str, text_b: str, encoding: str = "utf-8") -> list[TextRow]:
    """Pairs for the Transformer: every row's source (`text`) and target (`text_b`); two columns need no header."""
    first, second = _columns(path, text, text_b, encoding)
    rows = list(read_rows(path, text=first, text_b=second, labelled=False, encoding=encoding))
    for row in rows:
        for name, value in (("source", row.text), ("target", row.text_b or "")):
            if not value.strip():
                raise UserError(f"{path}, line {row.line}: the {name} is empty. Write it, or remove the line.")
    return rows


def read_sources(path: Path, text: str, encoding: str = "utf-8") -> Iterator[str]:
    """Texts for the Transformer to rewrite.

    Every row's source, one at a time; a table without a header has it in the first column, a .txt in each line.
    """
    columns = columns_of(path, ("source", "1"), encoding) if text == "text" and kind_of(path) != "txt" else []
    usual = "source" if "source" in columns and "text" not in columns else "1" if columns[:1] == ["1"] else text
    return (row.text for row in read_rows(path, text=usual, labelled=False, encoding=encoding))


def _columns(path: Path, text: str, text_b: str, encoding: str) -> tuple[str, str]:
    """Which columns of a file hold source and target texts."""
    if (text, text_b) != USUAL[0]:
        return text, text_b
    columns = columns_of(path, ("source", "1", "2"), encoding)
    named = [pair for pair in USUAL if set(pair) <= set(columns)]
    if named or columns[:1] != ["1"]:
        return named[0] if named else USUAL[0]
    if len(columns) != 2:
        raise UserError(
            f"{path}: the first line has {len(columns)} column{'s' * (len(columns) > 1)} and no header; a source and a "
            "target are needed. Separate them by a tab (.tsv), or name the columns: --text 1 --text-b 2."
        )
    return "1", "2"


def encode_pairs(
    rows: Sequence[TextRow], tokenizer: Tokenizer, limit: int, on_long: str, where: str
) -> tuple[list[TextPair], dict[str, int]]:
    """Pairs for the Transformer as ids, and what became of long ones: {"pairs", "long", "tokens_cut"}, with a note.

    limit: tokens of a source and of a target, the end included. A target that is cut has no end, so that no model
    learns to stop there.
    """
    begin, end = ends(tokenizer)
    sources = tokenizer.pieces_batch([row.text for row in rows])
    targets = tokenizer.pieces_batch([row.text_b or "" for row in rows])
    pairs, long, cut = [], 0, 0
    for row, source, target in zip(rows, sources, targets):
        over = max(0, len(source) + 1 - limit) + max(0, len(target) + 1 - limit)
        long += over > 0
        if over and on_long == "error":
            raise UserError(
                f"{where}, line {row.line}: {len(source) + 1} and {len(target) + 1} tokens; the model reads at most "
                f"{limit} per side. Shorten it, raise --set model.max_tokens, or choose --on-long drop or truncate."
            )
        if over and on_long == "drop":
            continue
        cut += over
        tokens_of_target = [begin, *target, end]
        pairs.append(TextPair([*source[: limit - 1], end], tokens_of_target[:-1][:limit], tokens_of_target[1:][:limit]))
    if long:
        consequence = "are left out" if on_long == "drop" else f"are truncated, by {cut:,} tokens"
        note(f"{where}: {long:,} of {len(rows):,} pairs have more than {limit} tokens per side and {consequence}.")
    if not pairs:
        raise UserError(f"{where}: no pair is short enough. Raise --set model.max_tokens, or use --on-long truncate.")
    return pairs, {"pairs": len(pairs), "long": long, "tokens_cut": cut}


def ends(tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids that begin and end a text of the Transformer."""
    if tokenizer.cls_id is None or tokenizer.sep_id is None:
        raise UserError("The tokenizer has no tokens for the beginning and the end of a text. Choose another.")
    return tokenizer.cls_id, tokenizer.sep_id


@dataclass
class Pairs(Batch):
    """A batch of the Transformer: packed sources with their packed targets. `tokens` counts the sources'.

    extra: asking (texts, longest target), the target token at each place; seen (texts, longest source), the source
    token at each place; seen_lengths (texts,); back (target tokens,), the place of each; wanted (target tokens and
    filler,), -1 to pass over. Attention to the source alone is padded.
    """

    target: Batch = field(kw_only=True)

    def to(self, device: torch.device | str) -> Pairs:
        """The same batch of the Transformer's pairs on another device."""
        moved = super().to(device)
        assert isinstance(moved, Pairs)
        return replace(moved, target=self.target.to(device))


def collate(pairs: Sequence[TextPair], multiple: int = ROUND) -> Pairs:
    """Pairs of texts as one batch of the Transformer, runs filled up to a multiple of tokens."""
    source = pack([pair.source for pair in pairs], multiple=multiple)
    target = pack([pair.given for pair in pairs], multiple=multiple)
    seen, seen_lengths = places(source)
    asking, asking_lengths = places(target)
    # Texts stand in the caller's order where they meet; the packed run of targets has its own.
    order = torch.tensor(target.order)
    starts = order * asking.shape[1]
    back = torch.cat([torch.arange(int(n)) + int(s) for s, n in zip(starts, asking_lengths[order])])
    wanted = np.full(len(target.ids), -1, np.int64)
    wanted[: target.tokens] = np.concatenate([pairs[n].wanted for n in target.order])
    extra = {
        "seen": seen, "seen_lengths": seen_lengths, "asking": asking, "back": back, "wanted": torch.from_numpy(wanted),
    }  # fmt: skip
    return Pairs(**vars(source) | {"extra": extra}, target=target)


def places(batch: Batch) -> tuple[Tensor, Tensor]:
    """Places of each text's tokens in the run, and lengths: what the Transformer's attention to sources needs.

    (texts, longest), past a text's end its last token; in the caller's order.
    """
    starts, lengths = batch.restore(batch.starts), batch.restore(torch.tensor(batch.lengths))
    column = torch.arange(max(batch.lengths))
    return starts[:, None] + torch.minimum(column[None, :], lengths[:, None] - 1), lengths


class PairFeed:
    """The Transformer's feed: every pair once per pass, in a random order: a pure function of (seed, step, rank)."""

    def __init__(
        self, pairs: Sequence[TextPair], *, batch: int, seed: int, micro_tokens: int, rank: int = 0, ranks: int = 1
    ) -> None:
        self.pairs, self.seed, self.micro_tokens = pairs, seed, micro_tokens
        self.batch = min(batch, len(pairs))
        if self.batch < ranks:
            raise UserError(f"A step has {self.batch} pairs for {ranks} processes. Start fewer, or give more pairs.")
        self.steps_per_pass = len(pairs) // self.batch
        self.rank, self.ranks = rank, ranks
        self._order: tuple[int, np.ndarray] = (-1, np.zeros(0, int))

    def numbers(self, step: int) -> np.ndarray:
        """The Transformer's pairs of this step. A pass ends with the last whole batch; the rest waits for the next."""
        epoch, place = divmod(step, self.steps_per_pass)
        if self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng((self.seed, 5, epoch)).permutation(len(self.pairs)))
        return self._order[1][place * self.batch : (place + 1) * self.batch]

    def step(self, step: int) -> list[Batch]:
        """This rank's share of the Transformer's pairs, cut into parts that fit."""
        pairs = [self.pairs[n] for n in self.numbers(step)[self.rank :: self.ranks]]
        return list(batches(pairs, self.micro_tokens))


def batches(pairs: Sequence[TextPair], tokens: int) -> Iterator[Pairs]:
    """Pairs of texts in batches of about so many tokens of both sides, longest first."""
    for part in batches_by_tokens([len(pair.source) + len(pair.given) for pair in pairs], tokens):
        yield collate([pairs[n] for n in part])
