"""The inner loop of GloVe, compiled: several threads run it on the same matrices without locks (Hogwild)."""

from __future__ import annotations

from typing import Any

import numpy as np

from bertkit.ancestors.vectors.compiled import LINE, fetch, kernel

AHEAD = 2  # pairs between calling a row in and using it


@kernel
def learn(
    words: Any, others: Any, logs: Any, weights: Any,
    left: Any, right: Any, left_squares: Any, right_squares: Any, dim: Any, rate: Any,
) -> Any:  # fmt: skip
    """Fit left · right + both biases to the logarithm of every pair's count, by AdaGrad. Returns the summed loss.

    As in the authors' program, the squares that slow a number down are of its moves, so the rate is part of them.
    """
    loss, width = 0.0, left.shape[1]
    for n in range(len(words)):
        if n + AHEAD < len(words):
            for k in range(0, width, LINE):
                fetch(left, np.int64(words[n + AHEAD]) * width + k)
                fetch(right, np.int64(others[n + AHEAD]) * width + k)
                fetch(left_squares, np.int64(words[n + AHEAD]) * width + k)
                fetch(right_squares, np.int64(others[n + AHEAD]) * width + k)
        word, other = left[words[n]], right[others[n]]
        word_squares, other_squares = left_squares[words[n]], right_squares[others[n]]
        product = np.float32(0)
        for k in range(dim):
            product += word[k] * other[k]
        difference = product + word[dim] + other[dim] - logs[n]
        loss += 0.5 * weights[n] * difference * difference
        pull = weights[n] * difference * rate
        for k in range(dim):
            word_move, other_move = pull * other[k], pull * word[k]
            word[k] -= word_move / np.sqrt(word_squares[k])
            other[k] -= other_move / np.sqrt(other_squares[k])
            word_squares[k] += word_move * word_move
            other_squares[k] += other_move * other_move
        word[dim] -= pull / np.sqrt(word_squares[dim])
        other[dim] -= pull / np.sqrt(other_squares[dim])
        word_squares[dim] += pull * pull
        other_squares[dim] += pull * pull
    return loss
