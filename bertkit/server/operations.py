"""The operations of a model: each encodes its inputs, then computes their answers.

Inputs of several requests come in one list; one answer per input is returned, in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from bertkit.data.windows import Row, Rows, Windows
from bertkit.errors import UserError
from bertkit.inference import fill
from bertkit.inference.predictor import Predictor
from bertkit.server.queue import Computed
from bertkit.tasks.base import Item, Task
from bertkit.tasks.batches import outputs_of
from bertkit.text.steps import steps


@dataclass(frozen=True)
class ReadingOptions:
    """The settings that requests must share to be computed together."""

    on_long: str = ""  # window, truncate or error; as in training unless said
    from_start: bool = False  # what is cut of a long text is its beginning
    specials: bool = True  # of tokenize: special tokens are shown
    top: int = 5  # of fill: guesses a mask
    guesses: int = 2_000  # of fill: masks times guesses of one text


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; tokens: how many tokens of the input were seen; cut: how many were not; unknown: of those seen."""

    value: Any
    tokens: int
    cut: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Operation:
    """encode: predictor, inputs, how → encoded; compute: predictor, encoded, how → one Answer per input."""

    encode: Callable[[Predictor, list[Any], ReadingOptions], Sequence[Any]]
    compute: Callable[[Predictor, Any, ReadingOptions], list[Answer]]

    def __call__(self, predictor: Predictor, inputs: list[Any], how: ReadingOptions) -> Computed:
        """Run both steps, with timing."""
        began = time.perf_counter()
        encoded = self.encode(predictor, inputs, how)
        middle = time.perf_counter()
        answers = self.compute(predictor, encoded, how)
        return Computed(answers, middle - began, time.perf_counter() - middle)


def encode_texts(predictor: Predictor, inputs: list[Any], how: ReadingOptions) -> list[Rows]:
    """A served operation's rows of texts, or of (prompt, text); numbers are a text that is already encoded."""
    windows = Windows(predictor.vector_limit, how.on_long or "window", from_start=how.from_start)
    texts = [given if isinstance(given, tuple) else ("", given) for given in inputs if not isinstance(given, list)]
    rows = iter(predictor.encode_texts([text for _, text in texts], [prompt for prompt, _ in texts], windows))
    return [_given(predictor, given, windows) if isinstance(given, list) else next(rows) for given in inputs]


def _given(predictor: Predictor, ids: list[int], windows: Windows) -> Rows:
    """The ids that a request gives in place of a text, checked, as one row."""
    size = min(predictor.tokenizer.size, predictor.config.vocabulary)
    if wrong := next((number for number in ids if not 0 <= number < size), None):
        raise UserError(
            f"The id {wrong} is not in this model's vocabulary of {size} pieces. Send texts, or ids of this vocabulary."
        )
    if len(ids) > windows.limit and windows.on_long != "truncate":
        raise UserError(
            f"An input has {len(ids)} ids; the model's limit is {windows.limit}. Send a text, which is read in "
            "windows, or set truncate."
        )
    row = ids[-windows.limit :] if windows.from_start else ids[: windows.limit]
    return Rows([Row(row, None, (0, len(row)))], len(row), len(ids) - len(row))


def vectors(predictor: Predictor, encoded: list[Rows], how: ReadingOptions) -> list[Answer]:
    """The operation behind /embed: one vector per text, float32 (width,), with the model's own pooling."""
    computed = predictor.vectors(encoded)
    unknown = [_unknown(predictor, text.rows) for text in encoded]
    return [Answer(_finite(v), text.tokens, text.cut, n) for v, text, n in zip(computed, encoded, unknown, strict=True)]


@dataclass(frozen=True, slots=True)
class LabelScores:
    """A text's scores: the head's raw outputs, and the task's prediction."""

    raw: np.ndarray
    said: dict[str, Any]


def encode_examples(predictor: Predictor, inputs: list[Any], how: ReadingOptions) -> list[tuple[Task, Item]]:
    """A served operation's inputs as the model's task reads them; two texts of a pair are a tuple."""
    windows = replace(predictor.windows(how.on_long), from_start=how.from_start)
    encoded = []
    for task, same in _by_task(predictor, inputs):
        encoded += [(task, item) for item in task.encode(task.from_inputs(same), predictor.tokenizer, windows)]
    return encoded


def _by_task(predictor: Predictor, inputs: list[Any]) -> list[tuple[Task, list[Any]]]:
    """The operation of a served folder not made by bertkit, which does not say if it reads one text or two: either."""
    task = predictor.task
    paired = task.for_pairs()
    if "task" in predictor.folder.about or paired is None:
        return [(task, inputs)]
    parts: list[tuple[Task, list[Any]]] = []
    for given in inputs:
        reader = paired if isinstance(given, tuple) else task
        if not parts or parts[-1][0] is not reader:
            parts.append((reader, []))
        parts[-1][1].append(given)
    return parts


def predictions(predictor: Predictor, encoded: list[tuple[Task, Item]], how: ReadingOptions) -> list[Answer]:
    """The operation behind /predict: the task's prediction for every input."""
    task = predictor.task
    if task.head:
        predictor.needs(task.head, "predict")
    outputs = outputs_of(predictor.engine, task, [item for _, item in encoded], steady=True)
    return [
        Answer(
            LabelScores(_finite(output), own.decode(item, output)),
            item.tokens,
            item.cut,
            _unknown(predictor, item.rows),
        )
        for (own, item), output in zip(encoded, outputs, strict=True)
    ]


def encode_masked(predictor: Predictor, inputs: list[Any], how: ReadingOptions) -> list[Any]:
    """The operation behind /fill: encode texts with masks."""
    encodings = fill.encode_masked(predictor, inputs)
    for encoding in encodings:
        masks = encoding.ids.count(predictor.tokenizer.mask_id or 0)
        if masks * how.top > how.guesses:
            raise UserError(
                f"{masks} masks with {how.top} predictions each are more than {how.guesses}. Ask for fewer."
            )
    return encodings


def guesses(predictor: Predictor, encoded: list[Any], how: ReadingOptions) -> list[Answer]:
    """The operation behind /fill: the best predictions for every mask of a text."""
    return [
        Answer(value, len(text), unknown=_unknown(predictor, [text]))
        for value, text in zip(fill.guesses(predictor, encoded, how.top), encoded, strict=True)
    ]


def encode_whole(predictor: Predictor, inputs: list[Any], how: ReadingOptions) -> list[Any]:
    """The operation behind /tokenize: texts with their encodings, however long."""
    return list(zip(inputs, predictor.tokenizer.encode_batch(inputs), strict=True))


def pieces(predictor: Predictor, encoded: list[Any], how: ReadingOptions) -> list[Answer]:
    """The operation behind /tokenize: the tokens of a text as in TEI; `text` is the user's own characters."""
    answers = []
    for text, one in encoded:
        shown = [
            {
                "id": number, "text": predictor.tokenizer.id_to_token(number) if special else text[start:stop],
                "special": special, "start": None if special else start, "stop": None if special else stop,
            }
            for number, special, (start, stop) in zip(one.ids, one.special, one.offsets)
            if how.specials or not special
        ]  # fmt: skip
        answers.append(Answer(shown, len(shown), unknown=_unknown(predictor, [one])))
    return answers


MOST_NUMBERS = 1_500_000  # of an answer of a view: some 10 MB


def _inside(module: str, name: str) -> Callable[..., dict[str, Any]]:
    """An operation that looks inside a model: its module needs torch, so it is imported at the first call."""
    return lambda first, **given: getattr(import_module(f"bertkit.{module}"), name)(first, **given)


VIEWS: dict[str, Callable[..., dict[str, Any]]] = {  # what the page shows → the function that computes it
    "pieces": lambda predictor, text: steps(predictor.tokenizer, text),
    "input": _inside("inference.explain", "input_vectors"),
    "masking": _inside("inference.explain", "masked_row"),
    "attention": _inside("inference.explain", "attention"),
    "head": _inside("inference.explain", "head_numbers"),
    "word": _inside("inference.explain", "token_layers"),
    "map": lambda predictor, **given: {
        name: value
        for name, value in _inside("inference.explain", "vector_map")(predictor, **given).items()
        if name != "vectors"
    },
    "importance": _inside("inference.importance", "importance"),
    "next": lambda predictor, text, text_b: predictor.follows(text, text_b),
    "pairs": _inside("inference.explain", "sentence_pairs"),
    "lineage": lambda predictor, text, **given: _inside("ancestors.lineage", "lineage")(text, **given),
    "meaning": lambda predictor, word, others, **given: _inside("ancestors.meaning", "meaning")(
        word, models={predictor.folder.name: predictor, **others}, **given
    ),
    "ancestor": lambda predictor, ancestor, **given: _inside("ancestors.lineage", "ancestor_shown")(ancestor, **given),
}


def as_given(predictor: Predictor, inputs: list[Any], how: ReadingOptions) -> list[Any]:
    """The inputs of the operation `views`, which encodes them itself."""
    return inputs


def views(predictor: Predictor, inputs: list[Any], how: ReadingOptions) -> list[Answer]:
    """The operation behind what the page shows. inputs: {view, and the arguments of its function}."""
    answers = []
    for given in inputs:
        arguments = {name: value for name, value in given.items() if name != "view"}
        view = VIEWS[given["view"]](predictor, **arguments)
        numbers = sum(value.size for value in view.values() if isinstance(value, np.ndarray))
        if numbers > MOST_NUMBERS:
            raise UserError(f"The text is too long to be shown: it makes {numbers:,} numbers. Shorten it.")
        answers.append(Answer(plain(view), len(view.get("tokens", ()))))
    return answers


def plain(value: Any) -> Any:
    """An operation's arrays as lists with five digits; what is hidden from a token (minus infinity) as null."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        rounded = np.round(_finite(value.astype(np.float64)), 5)
        if rounded.size and rounded.min() < -1e30:
            hidden = rounded.astype(object)
            hidden[rounded < -1e30] = None
            return hidden.tolist()
        return rounded.tolist()
    return [plain(part) for part in value] if isinstance(value, list) else value


def _unknown(predictor: Predictor, rows: Sequence[Any]) -> int:
    """The unknown pieces an operation saw in a text's rows (or encodings)."""
    unknown = predictor.tokenizer.unk_id
    return 0 if unknown is None else sum(row.ids.count(unknown) for row in rows)


def _finite(numbers: np.ndarray) -> np.ndarray:
    if not np.isfinite(numbers).all():
        raise ArithmeticError("the model returned NaN or infinity")
    return numbers


OPERATIONS = {
    "embed": Operation(encode_texts, vectors),
    "predict": Operation(encode_examples, predictions),
    "fill": Operation(encode_masked, guesses),
    "tokenize": Operation(encode_whole, pieces),
    "show": Operation(as_given, views),
}
