"""Texts of any length packed into one run of tokens: no padding reaches a linear layer.

Texts are sorted by length. Runs of equal (or nearly equal) length form groups, and only
attention, which must see one text at a time, works group by group: a group of equal lengths is
a plain view of the run, a group of unequal lengths is padded for the attention product alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from bertkit.machine import single_thread_pool, torch

if TYPE_CHECKING:
    from torch import Tensor

# A group is split when more than this fraction of it would be padding. Padding costs attention
# products only, and each further group costs some 30 microseconds per layer.
MOST_PADDING = 0.15
# oneDNN caches a matrix kernel for each shape; a new token count in every step would add kernels without end
# (35 MB per step were measured). Training therefore fills its runs up to a multiple of this.
ROUND = 64


@dataclass(frozen=True)
class Group:
    """Neighbouring texts of a batch that attend together: tokens [start, stop) of the run."""

    start: int
    stop: int
    texts: int
    length: int  # the longest of them, rounded up where they differ
    lengths: Tensor | None = None  # (texts,) when they differ
    gather: Tensor | None = None  # (texts * length,) token of each padded place, counted from start
    scatter: Tensor | None = None  # (stop - start,) padded place of each run token


@dataclass
class Batch:
    """Packed texts. ids, segments, positions: (tokens,), text after text in packed order."""

    ids: Tensor
    segments: Tensor
    positions: Tensor
    lengths: tuple[int, ...]  # packed order
    order: tuple[int, ...]  # order[i]: the caller's index of packed text i
    groups: tuple[Group, ...]
    starts: Tensor  # (texts,) first token of each text, packed order
    filler: int = 0  # tokens at the end of the run that belong to no text
    extra: dict[str, Tensor] = field(default_factory=dict)  # targets and other tensors of tasks and objectives
    causal: bool = False  # every token sees only those before it, whatever the model
    steady: bool = False  # a text's numbers are the same in any batch (see `pack`)

    @property
    def tokens(self) -> int:
        """Number of tokens in the batch, without filling."""
        return int(self.ids.shape[0]) - self.filler

    @property
    def texts(self) -> int:
        """Number of texts in the batch."""
        return len(self.lengths)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        if str(device) == "cpu":
            return self
        groups = tuple(
            replace(
                g, **{k: v.to(device) for k in ("lengths", "gather", "scatter") if (v := getattr(g, k)) is not None}
            )
            for g in self.groups
        )
        moved = {k: getattr(self, k).to(device) for k in ("ids", "segments", "positions", "starts")}
        return replace(self, **moved, groups=groups, extra={k: v.to(device) for k, v in self.extra.items()})

    def split(self, rows: Tensor) -> list[Tensor]:
        """One row per token (tokens, …) → one tensor per text, in the caller's order."""
        parts: list[Tensor] = list(torch.split(rows[: self.tokens], list(self.lengths)))
        answer: list[Tensor] = [rows] * len(parts)
        for packed, caller in enumerate(self.order):
            answer[caller] = parts[packed]
        return answer

    def restore(self, rows: Tensor) -> Tensor:
        """One row per text in packed order (texts, …) → the caller's order."""
        answer = torch.empty_like(rows)
        answer[torch.tensor(self.order, device=rows.device)] = rows
        return answer


Row = Sequence[int] | np.ndarray


def rounded(length: int) -> int:
    """A length rounded up by at most an eighth, or to a multiple of 8 if that is more: batches share shapes."""
    step = max(8, 1 << max(0, (length - 1).bit_length() - 4))
    return -(-length // step) * step


def pack(
    ids: Sequence[Row], segments: Sequence[Row] | None = None, *, multiple: int = 1, steady: bool = False
) -> Batch:
    """Pack texts given as piece ids into one batch. Without `segments`, every token is in segment 0.

    `multiple`: fill the run up to a multiple of this many tokens.
    `steady`: for a server. The shape in which a text attends depends on its own length alone, so that its numbers are
    the same in any batch; and the run is filled up to one of a few lengths, so that kernels are made for a few shapes.
    It costs a tenth to a fifth of the speed.
    """
    lengths = np.fromiter((len(row) for row in ids), dtype=np.int64, count=len(ids))
    order = np.argsort(-lengths, kind="stable")
    lengths = lengths[order]
    run = np.concatenate([np.asarray(ids[i], dtype=np.int64) for i in order]) if len(ids) else np.zeros(0, np.int64)
    if segments is None or not len(ids):
        sides = np.zeros_like(run)
    else:
        sides = np.concatenate([np.asarray(segments[i], dtype=np.int64) for i in order])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(len(run)) - np.repeat(starts[:-1], lengths)
    filler = rounded(len(run)) - len(run) if steady else -len(run) % multiple
    run, sides, positions = (np.pad(part, (0, filler)) for part in (run, sides, positions))
    return Batch(
        ids=torch.from_numpy(run),
        segments=torch.from_numpy(sides),
        positions=torch.from_numpy(positions),
        lengths=tuple(lengths.tolist()),
        order=tuple(order.tolist()),
        groups=_steady_groups(lengths, starts) if steady else _groups(lengths, starts),
        filler=filler,
        steady=steady,
        starts=torch.from_numpy(starts[:-1].copy()),
    )


def _groups(lengths: np.ndarray, starts: np.ndarray) -> tuple[Group, ...]:
    """Group neighbouring texts of a batch so that padding stays under MOST_PADDING."""
    groups = []
    first = 0
    while first < len(lengths):
        longest = int(lengths[first])
        last = first + 1
        real = longest
        while last < len(lengths) and lengths[last] <= longest:
            padded = longest * (last + 1 - first)
            if real + lengths[last] < (1 - MOST_PADDING) * padded:
                break
            real += int(lengths[last])
            last += 1
        groups.append(_group(lengths[first:last], int(starts[first])))
        first = last
    return tuple(groups)


def _steady_groups(lengths: np.ndarray, starts: np.ndarray) -> tuple[Group, ...]:
    """Group texts of a batch whose rounded lengths are equal."""
    shapes = np.array([rounded(int(length)) for length in lengths])
    bounds = [0, *(np.flatnonzero(np.diff(shapes)) + 1).tolist(), len(lengths)]
    return tuple(
        _padded(lengths[first:last], int(starts[first]), int(shapes[first]))
        for first, last in pairwise(bounds)
        if first < last
    )


def _group(lengths: np.ndarray, start: int) -> Group:
    """A group of a batch: neighbouring texts, padded for attention only if their lengths differ."""
    longest, total = int(lengths.max()), int(lengths.sum())
    if total == longest * len(lengths):
        return Group(start, start + total, len(lengths), longest)
    return _padded(lengths, start, -(-longest // 8) * 8)  # fewer different shapes, at the cost of a little padding


def _padded(lengths: np.ndarray, start: int, longest: int) -> Group:
    """A batch's group of texts, padded to a length, with the places of its tokens in the rectangle."""
    total = int(lengths.sum())
    column = np.arange(longest)
    real = column[None, :] < lengths[:, None]
    first = np.cumsum(lengths) - lengths
    # Padded places read the text's last token: any real token will do, since nothing attends to it.
    gather = first[:, None] + np.minimum(column[None, :], lengths[:, None] - 1)
    return Group(
        start,
        start + total,
        len(lengths),
        longest,
        lengths=torch.from_numpy(lengths.copy()),
        gather=torch.from_numpy(gather.reshape(-1)),
        scatter=torch.from_numpy(np.flatnonzero(real)),
    )


# ---- Batches by length and tokens: the order in which many texts are computed fastest.

TOKENS = 2048  # per batch: large enough for full matrix speed, small enough to distribute evenly over the cores


def batches_by_tokens(lengths: Sequence[int], tokens: int = TOKENS) -> list[list[int]]:
    """Indices of texts, longest first, in batches of about `tokens` tokens (at least one text).

    The largest batch comes first, so that running out of memory shows at once.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    if not len(order):
        return []
    total = max(1, int(sizes.sum()))
    # Equal shares: a last batch of a few tokens would cost as much overhead as a full one.
    share = total / max(1, round(total / tokens))
    bounds = np.floor((np.cumsum(sizes[order]) - sizes[order]) / share).astype(np.int64)
    cuts = np.flatnonzero(np.diff(bounds)) + 1
    return [part.tolist() for part in np.split(order, cuts)]


# ---- Many texts through one model: batches by length and tokens, distributed over the cores.
#
# On a CPU every core computes batches of its own: threads that share one small matrix product spend much of their
# time waiting for each other.

WORTH_SHARING = 1024  # with fewer tokens, several threads are not faster


def run_batched(sizes: Sequence[int], compute: Callable[[list[int]], None], device: str = "cpu") -> None:
    """Call `compute` with batches (lists of indices of texts) until all are done, on all cores.

    sizes: tokens of each.
    """
    alone = not device.startswith("cpu") or sum(sizes) < WORTH_SHARING

    def without_gradients(numbers: list[int]) -> None:
        with torch.inference_mode():  # the mode is per thread
            compute(numbers)

    share_batches(sizes, without_gradients, 1 if alone else torch.get_num_threads(), single_thread_pool)


def share_batches(
    sizes: Sequence[int],
    compute: Callable[[list[int]], None],
    threads: int,
    pool_of: Callable[[int], AbstractContextManager[Executor]],
) -> None:
    """Call `compute` with batches of texts by their tokens, each thread with batches of its own."""
    if len(sizes) == 1:  # the usual call of those who wait for an answer
        compute([0])
        return
    parts = batches_by_tokens(sizes, max(WORTH_SHARING // 2, min(TOKENS, sum(sizes) // threads)))
    if threads == 1 or len(parts) == 1:
        for numbers in parts:
            compute(numbers)
        return
    with pool_of(threads) as pool:
        list(pool.map(compute, parts))
