"""The inner loops of word2vec and GloVe, compiled: threads run them on the same matrices without locks (Hogwild)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import UserError

# ---- numba as the word-vector kernels use it: compiled once, kept on disk, free of the interpreter's lock.

try:
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic
except ImportError as problem:
    raise UserError("Training word vectors needs the package numba. Run: pip install 'bertkit[vectors]'") from problem

STRIDE = np.uint64(0x9E3779B97F4A7C15)
LINE = 16  # float32 numbers in a cache line; rows of matrices are padded to whole lines


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel of word2vec or GloVe at the first call.

    Bounds are not checked: the caller vouches for every number.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder on this machine can hold the cache
        return njit(**options)(function)


@kernel
def scramble(state: Any) -> Any:
    """64 random bits out of a counter that grows by STRIDE (splitmix64); the compiled kernels draw with it."""
    bits = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _fetch(context: Any, matrix: Any, place: Any) -> Any:
    """Ask for the cache line of the number at `place` in a matrix before a compiled kernel needs it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        what = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, what, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(data, [arguments[1]]), pointer)
        for_writing, keep_close, data_cache = number(1), number(3), number(1)
        builder.call(prefetch, [address, for_writing, keep_close, data_cache])
        return context.get_dummy_value()

    return types.void(matrix, place), generate


fetch: Any = intrinsic(_fetch)


# ---- The inner loops of word2vec, compiled: several threads run them on the same matrices without locks (Hogwild).
#
# A step has a hidden vector and some targets: rows of the output matrix, each to be told apart as right (label 1) or
# wrong (0) by the sigmoid of its product with the hidden vector. Negative sampling and hierarchical softmax differ in
# which targets they pick; skip-gram and CBOW in what the hidden vector is.

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
SURE = np.float32(30)  # beyond it the sigmoid is 0 or 1 in float32, and exp would run over


class Text(NamedTuple):
    """The text as the compiled kernels read it.

    words: all numbers; ends: sentence s is words[ends[s]:ends[s + 1]]; longest: in words.

    keep: for every word of the vocabulary, in how many of 2**32 cases an occurrence is used.
    """

    words: Integers
    ends: NDArray[np.int64]
    longest: int
    keep: NDArray[np.uint64]


class Targets(NamedTuple):
    """The compiled kernels' targets, drawn (negative sampling) or on a path (hierarchical softmax).

    negatives: wrong targets per step, drawn by the alias method (thresholds, others); 0: hierarchical softmax, where
    the path of word w from the root is nodes[starts[w]:starts[w + 1]], with the turns taken there in codes. most:
    targets of the longest step. shifts: what is taken off each word's score (noise-contrastive estimation), or empty.
    """

    negatives: int
    thresholds: NDArray[np.uint64]
    others: Integers
    starts: NDArray[np.int64]
    nodes: Integers
    codes: NDArray[np.uint8]
    most: int
    shifts: Floats


NO_SHIFTS = np.empty(0, np.float32)


def drawn(negatives: int, thresholds: NDArray[np.uint64], others: Integers, shifts: Floats = NO_SHIFTS) -> Targets:
    """Targets for the kernels by negative sampling: the word itself, and so many drawn ones. shifts: see Targets."""
    path = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint8)
    return Targets(negatives, thresholds, others, path[0], path[1], path[2], negatives + 1, shifts)


def along_paths(starts: NDArray[np.int64], nodes: Integers, codes: NDArray[np.uint8]) -> Targets:
    """Targets for the kernels by hierarchical softmax: the inner nodes above the word."""
    nobody = np.empty(0, np.uint64), np.empty(0, np.int32)
    return Targets(0, nobody[0], nobody[1], starts, nodes, codes, int(np.diff(starts).max()), NO_SHIFTS)


@kernel
def draw(bits: Any, thresholds: Any, others: Any) -> Any:
    """Kernel: a word by the alias method.

    The upper half of the bits chooses a place, the lower half one of its two words.
    """
    place = np.int64(((bits >> np.uint64(32)) * np.uint64(len(thresholds))) >> np.uint64(32))
    return place if (bits & np.uint64(0xFFFFFFFF)) < thresholds[place] else np.int64(others[place])


@kernel
def subsample(text: Any, sentence: Any, sampled: Any, state: Any) -> Any:
    """Kernel: copy the words of a sentence that chance keeps. Returns how many, and the new state."""
    count = 0
    for place in range(text.ends[sentence], text.ends[sentence + 1]):
        word = text.words[place]
        state += STRIDE
        if (scramble(state) >> np.uint64(32)) < text.keep[word]:
            sampled[count] = word
            count += 1
    return count, state


@kernel
def around(middle: Any, length: Any, window: Any, state: Any) -> Any:
    """Kernel: where the window around a word begins and ends; its reach is drawn from 1 to `window` for each word."""
    state += STRIDE
    reach = 1 + np.int64(scramble(state) % np.uint64(window))
    return max(0, middle - reach), min(length, middle + reach + 1), state


@kernel
def pick(word: Any, choice: Any, outputs: Any, targets: Any, labels: Any, first: Any, state: Any) -> Any:
    """Kernel: write the targets of one step from `first` on, and call their rows in.

    Returns how many, and the new state.
    """
    count = 0
    if choice.negatives:
        targets[first], labels[first] = word, 1
        count = 1
        for _ in range(choice.negatives):
            state += STRIDE
            other = draw(scramble(state), choice.thresholds, choice.others)
            if other != word:
                targets[first + count], labels[first + count] = other, 0
                count += 1
    else:
        for place in range(choice.starts[word], choice.starts[word + 1]):
            targets[first + count], labels[first + count] = choice.nodes[place], 1 - choice.codes[place]
            count += 1
    width = outputs.shape[1]
    for place in range(first, first + count):
        for k in range(0, width, LINE):
            fetch(outputs, targets[place] * width + k)
    return count, state


@kernel
def step(
    hidden: Any, error: Any, outputs: Any, targets: Any, labels: Any, first: Any, count: Any, rate: Any, pulls: Any,
    shifts: Any,
) -> None:  # fmt: skip
    """Kernel: move the target rows down the gradient of the step's loss.

    The hidden vector's own move is left in `error`.

    All products are taken before any row moves: they overlap in the processor, and a row drawn twice is moved
    twice by the gradient at one point.
    """
    for k in range(len(hidden)):
        error[k] = 0
    for t in range(count):
        row = outputs[targets[first + t]]
        product = np.float32(0)
        for k in range(len(hidden)):
            product += row[k] * hidden[k]
        pulls[t] = product - shifts[targets[first + t]] if len(shifts) else product
    for t in range(count):
        product = min(max(pulls[t], -SURE), SURE)
        pulls[t] = (labels[first + t] - np.float32(1) / (np.float32(1) + math.exp(-product))) * rate
    for t in range(count):
        row = outputs[targets[first + t]]
        pull = pulls[t]
        for k in range(len(hidden)):
            value = row[k]
            error[k] += pull * value
            row[k] = value + pull * hidden[k]


@kernel
def skip_gram(
    text: Any, sentences: Any, choice: Any, inputs: Any, outputs: Any, window: Any, rate: Any, state: Any
) -> None:
    """Kernel of word2vec: every word within the window, alone, predicts the word in the middle."""
    most = choice.most
    sampled, counts = np.empty(text.longest, np.int32), np.empty(2 * window, np.int64)
    targets, labels = np.empty(2 * window * most, np.int64), np.empty(2 * window * most, np.float32)
    error, pulls = np.empty(inputs.shape[1], np.float32), np.empty(most, np.float32)
    for sentence in range(sentences[0], sentences[1]):
        length, state = subsample(text, sentence, sampled, state)
        for middle in range(length):
            begin, end, state = around(middle, length, window, state)
            # A path is the same for all words around; wrong targets are drawn again for each, all before the
            # first step, so that their rows arrive meanwhile.
            for context in range(end - begin - 1 if choice.negatives else 1):
                counts[context], state = pick(sampled[middle], choice, outputs, targets, labels, context * most, state)
            context = 0
            for place in range(begin, end):
                if place != middle:
                    hidden = inputs[sampled[place]]
                    step(hidden, error, outputs, targets, labels, context * most, counts[context], rate, pulls,
                         choice.shifts)  # fmt: skip
                    for k in range(len(error)):
                        hidden[k] += error[k]
                    context += 1 if choice.negatives else 0


@kernel
def cbow(text: Any, sentences: Any, choice: Any, inputs: Any, outputs: Any, window: Any, rate: Any, state: Any) -> None:
    """Kernel of word2vec: the mean of the words within the window predicts the word in the middle.

    Each of the words moves by the whole error of their mean, as in the original program.
    """
    sampled = np.empty(text.longest, np.int32)
    targets, labels = np.empty(choice.most, np.int64), np.empty(choice.most, np.float32)
    hidden, error = np.empty(inputs.shape[1], np.float32), np.empty(inputs.shape[1], np.float32)
    pulls = np.empty(choice.most, np.float32)
    for sentence in range(sentences[0], sentences[1]):
        length, state = subsample(text, sentence, sampled, state)
        for middle in range(length):
            begin, end, state = around(middle, length, window, state)
            if end - begin < 2:
                continue
            count, state = pick(sampled[middle], choice, outputs, targets, labels, 0, state)
            for k in range(len(hidden)):
                hidden[k] = 0
            for place in range(begin, end):
                if place != middle:
                    row = inputs[sampled[place]]
                    for k in range(len(hidden)):
                        hidden[k] += row[k]
            share = np.float32(1) / np.float32(end - begin - 1)
            for k in range(len(hidden)):
                hidden[k] *= share
            step(hidden, error, outputs, targets, labels, 0, count, rate, pulls, choice.shifts)
            for place in range(begin, end):
                if place != middle:
                    row = inputs[sampled[place]]
                    for k in range(len(hidden)):
                        row[k] += error[k]


KERNELS = {"skip-gram": skip_gram, "cbow": cbow}


# ---- The inner loop of GloVe, compiled: several threads run it on the same matrices without locks (Hogwild).

AHEAD = 2  # pairs between calling a row in and using it


@kernel
def learn(
    words: Any, others: Any, logs: Any, weights: Any,
    left: Any, right: Any, left_squares: Any, right_squares: Any, dim: Any, rate: Any,
) -> Any:  # fmt: skip
    """Kernel of GloVe: fit left · right + both biases to the logarithm of every pair's count, by AdaGrad.

    Returns the summed loss.

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
