"""Many texts through one model: batches by length and tokens, shared out over the cores.

On a CPU every core computes batches of its own: threads that share one small matrix product
spend much of their time waiting for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from bertkit.data.budget import TOKENS, budgeted
from bertkit.machine import one_core_each

WORTH_SHARING = 1024  # tokens from which on it pays


def share_out(sizes: Sequence[int], compute: Callable[[list[int]], None], device: str = "cpu") -> None:
    """Call `compute` with lists of indices until every index was in one. sizes: tokens of each."""
    total = sum(sizes)
    alone = not device.startswith("cpu") or total < WORTH_SHARING
    threads = 1 if alone else torch.get_num_threads()
    parts = budgeted(sizes, max(WORTH_SHARING // 2, min(TOKENS, total // threads)))

    def without_gradients(numbers: list[int]) -> None:
        with torch.inference_mode():  # each thread has to say so for itself
            compute(numbers)

    if threads == 1 or len(parts) == 1:
        for numbers in parts:
            without_gradients(numbers)
        return
    with one_core_each(threads) as pool:
        list(pool.map(without_gradients, parts))
