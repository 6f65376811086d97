"""The inner loops of word2vec, compiled: several threads run them on the same matrices without locks (Hogwild).

A step has a hidden vector and some targets: rows of the output matrix, each to be told apart as right (label 1) or
wrong (0) by the sigmoid of its product with the hidden vector. Negative sampling and hierarchical softmax differ in
which targets they pick; skip-gram and CBOW in what the hidden vector is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.ancestors.vectors.compiled import LINE, STRIDE, fetch, kernel, scramble

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
SURE = np.float32(30)  # beyond it the sigmoid is 0 or 1 in float32, and exp would run over


class Text(NamedTuple):
    """words: the numbers of all words; ends: sentence s is words[ends[s]:ends[s + 1]]; longest: words of the longest.

    keep: for every word of the vocabulary, in how many of 2**32 cases an occurrence is used.
    """

    words: Integers
    ends: NDArray[np.int64]
    longest: int
    keep: NDArray[np.uint64]


class Targets(NamedTuple):
    """negatives: wrong targets a step, drawn by the alias method (thresholds, others); 0: hierarchical softmax,
    where the path of word w from the root is nodes[starts[w]:starts[w + 1]], with the turns taken there in codes.
    most: targets of the longest step.
    """

    negatives: int
    thresholds: NDArray[np.uint64]
    others: Integers
    starts: NDArray[np.int64]
    nodes: Integers
    codes: NDArray[np.uint8]
    most: int


def drawn(negatives: int, thresholds: NDArray[np.uint64], others: Integers) -> Targets:
    """Negative sampling: the word itself, and so many drawn ones."""
    path = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint8)
    return Targets(negatives, thresholds, others, path[0], path[1], path[2], negatives + 1)


def along_paths(starts: NDArray[np.int64], nodes: Integers, codes: NDArray[np.uint8]) -> Targets:
    """Hierarchical softmax: the inner nodes above the word."""
    nobody = np.empty(0, np.uint64), np.empty(0, np.int32)
    return Targets(0, nobody[0], nobody[1], starts, nodes, codes, int(np.diff(starts).max()))


@kernel
def draw(bits: Any, thresholds: Any, others: Any) -> Any:
    """A word by the alias method: the upper half of the bits chooses a place, the lower half one of its two words."""
    place = np.int64(((bits >> np.uint64(32)) * np.uint64(len(thresholds))) >> np.uint64(32))
    return place if (bits & np.uint64(0xFFFFFFFF)) < thresholds[place] else np.int64(others[place])


@kernel
def subsample(text: Any, sentence: Any, kept: Any, state: Any) -> Any:
    """Copy the words of a sentence that chance keeps. Returns how many, and the new state."""
    count = 0
    for place in range(text.ends[sentence], text.ends[sentence + 1]):
        word = text.words[place]
        state += STRIDE
        if (scramble(state) >> np.uint64(32)) < text.keep[word]:
            kept[count] = word
            count += 1
    return count, state


@kernel
def around(middle: Any, length: Any, window: Any, state: Any) -> Any:
    """Where the window around a word begins and ends; its reach is drawn anew from 1 to `window` for each word."""
    state += STRIDE
    reach = 1 + np.int64(scramble(state) % np.uint64(window))
    return max(0, middle - reach), min(length, middle + reach + 1), state


@kernel
def pick(word: Any, choice: Any, outputs: Any, targets: Any, labels: Any, first: Any, state: Any) -> Any:
    """Write the targets of one step from `first` on, and call their rows in. Returns how many, and the new state."""
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
    hidden: Any, error: Any, outputs: Any, targets: Any, labels: Any, first: Any, count: Any, rate: Any, pulls: Any
) -> None:
    """Move the target rows down the gradient of the step's loss, and leave the hidden vector's own move in `error`.

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
        pulls[t] = product
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
    """Every word within the window, alone, predicts the word in the middle."""
    most = choice.most
    kept, counts = np.empty(text.longest, np.int32), np.empty(2 * window, np.int64)
    targets, labels = np.empty(2 * window * most, np.int64), np.empty(2 * window * most, np.float32)
    error, pulls = np.empty(inputs.shape[1], np.float32), np.empty(most, np.float32)
    for sentence in range(sentences[0], sentences[1]):
        length, state = subsample(text, sentence, kept, state)
        for middle in range(length):
            begin, end, state = around(middle, length, window, state)
            # A path is the same for all words around; wrong targets are drawn anew for each, all before the
            # first step, so that their rows arrive meanwhile.
            for context in range(end - begin - 1 if choice.negatives else 1):
                counts[context], state = pick(kept[middle], choice, outputs, targets, labels, context * most, state)
            context = 0
            for place in range(begin, end):
                if place != middle:
                    hidden = inputs[kept[place]]
                    step(hidden, error, outputs, targets, labels, context * most, counts[context], rate, pulls)
                    for k in range(len(error)):
                        hidden[k] += error[k]
                    context += 1 if choice.negatives else 0


@kernel
def cbow(text: Any, sentences: Any, choice: Any, inputs: Any, outputs: Any, window: Any, rate: Any, state: Any) -> None:
    """The mean of the words within the window predicts the word in the middle.

    Each of the words moves by the whole error of their mean, as in the original program.
    """
    kept = np.empty(text.longest, np.int32)
    targets, labels = np.empty(choice.most, np.int64), np.empty(choice.most, np.float32)
    hidden, error = np.empty(inputs.shape[1], np.float32), np.empty(inputs.shape[1], np.float32)
    pulls = np.empty(choice.most, np.float32)
    for sentence in range(sentences[0], sentences[1]):
        length, state = subsample(text, sentence, kept, state)
        for middle in range(length):
            begin, end, state = around(middle, length, window, state)
            if end - begin < 2:
                continue
            count, state = pick(kept[middle], choice, outputs, targets, labels, 0, state)
            for k in range(len(hidden)):
                hidden[k] = 0
            for place in range(begin, end):
                if place != middle:
                    row = inputs[kept[place]]
                    for k in range(len(hidden)):
                        hidden[k] += row[k]
            share = np.float32(1) / np.float32(end - begin - 1)
            for k in range(len(hidden)):
                hidden[k] *= share
            step(hidden, error, outputs, targets, labels, 0, count, rate, pulls)
            for place in range(begin, end):
                if place != middle:
                    row = inputs[kept[place]]
                    for k in range(len(hidden)):
                        row[k] += error[k]


KERNELS = {"skip-gram": skip_gram, "cbow": cbow}
