"""Which layers a feature is made from: BERT's six choices, or any list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bertkit.errors import UserError
from bertkit.machine import torch

if TYPE_CHECKING:
    from torch import Tensor

# The six of the paper's table 7: name → (which layers, counted from the end or all, how they are joined).
CHOICES: dict[str, tuple[Callable[[int], Sequence[int]], str]] = {
    "embeddings": (lambda depth: [0], "concat"),
    "last": (lambda depth: [depth], "concat"),
    "second-to-last": (lambda depth: [depth - 1], "concat"),
    "sum-last-4": (lambda depth: range(max(1, depth - 3), depth + 1), "sum"),
    "concat-last-4": (lambda depth: range(max(1, depth - 3), depth + 1), "concat"),
    "sum-all": (lambda depth: range(1, depth + 1), "sum"),
}


@dataclass(frozen=True)
class LayerChoice:
    """A choice of layers for features. numbers: 0 is the embeddings, 1 the first layer … depth the last.

    join: sum or concat.
    """

    numbers: tuple[int, ...]
    join: str

    @property
    def only_last(self) -> bool:
        """Whether the layer choice needs only the last layer (set by `choose`, which knows the depth)."""
        return self.numbers == (-1,)

    def pick(self, layers: Sequence[Tensor]) -> Tensor:
        """The chosen layers' vectors: (tokens, width) of each layer → (tokens, width or width × layers)."""
        chosen = [layers[n] for n in self.numbers]
        if self.join == "concat":
            return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=-1)
        return torch.stack([layer.float() for layer in chosen]).sum(0)

    def join_arrays(self, chosen: Sequence[np.ndarray]) -> np.ndarray:
        """The chosen layers joined, given them alone as arrays: (…, width) each."""
        if self.join == "concat":
            return chosen[0] if len(chosen) == 1 else np.concatenate(chosen, axis=-1)
        return np.sum(chosen, axis=0)

    def width(self, width: int) -> int:
        """The width of the feature that the chosen layers make."""
        return width * len(self.numbers) if self.join == "concat" else width


def choose(choice: str | Sequence[int], depth: int) -> LayerChoice:
    """A choice of layers for features: one of six names, or layer numbers ("-1,-2", "0,6,12"), joined end to end."""
    if isinstance(choice, str) and choice in CHOICES:
        numbers, join = CHOICES[choice]
        picked = tuple(numbers(depth))
        return LayerChoice((-1,) if picked == (depth,) else picked, join)
    try:
        numbers_given = [int(n) for n in choice.split(",")] if isinstance(choice, str) else [int(n) for n in choice]
    except (ValueError, TypeError):
        numbers_given = []
    if not numbers_given:
        raise UserError(
            f"layers is {choice!r}; it must be one of {', '.join(CHOICES)}, or layer numbers such as -1,-2."
        )
    for n in numbers_given:
        if not -depth - 1 <= n <= depth:
            raise UserError(f"There is no layer {n}: this model has layers 0 (embeddings) to {depth}.")
    picked = tuple(n + depth + 1 if n < 0 else n for n in numbers_given)
    return LayerChoice((-1,) if picked == (depth,) else picked, "concat")
