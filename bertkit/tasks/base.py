"""What a task is: how one kind of example is read, encoded, answered and scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from bertkit.data.batch import ROUND, Batch, pack
from bertkit.data.examples import TextRow
from bertkit.data.readers.frames import in_memory
from bertkit.data.readers.rows import ROW_KINDS, columns_of
from bertkit.data.windows import Row, Rows, Windows, encode_rows
from bertkit.errors import DamagedFile, UserError, suggest
from bertkit.files.open import kind_of
from bertkit.machine import torch
from bertkit.metrics import Scores
from bertkit.model.engine import Engine, Wanted
from bertkit.model.pooling import Pooling
from bertkit.notify import note
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertkit.model.encoder import Encoded
    from bertkit.model.heads import Model
    from bertkit.settings.finetune import FinetuneSettings

Prediction = dict[str, Any]
Labelled = bool | Literal["maybe"]  # every row has its answer, none is read, or some have one


NOT_A_LABEL = ("nan", "null", "n/a")  # what tables write where nothing is known


@dataclass(frozen=True)
class Reading:
    """Which columns of a file a task reads, and how."""

    text: str = "text"
    text_b: str = "text_b"
    label: str = "label"
    encoding: str = "utf-8"
    label_separator: str = ""


COLUMNS = ("text", "text_b", "label")  # of a reading: those that have names of the user's own


@dataclass(slots=True)
class Item:
    """An example of a task, ready for the encoder."""

    example: Any
    rows: list[Row]
    tokens: int
    cut: int

    @classmethod
    def of(cls, example: Any, rows: Rows) -> Item:
        """A task's item from an example and its rows."""
        return cls(example, rows.rows, rows.tokens, rows.cut)


@dataclass
class Task:
    """The base of all tasks. labels: the user's own names, in a fixed order."""

    labels: tuple[str, ...] = ()
    merge: str = "max"  # how the windows of a long text agree: max | mean
    options: dict[str, Any] = field(default_factory=dict)
    pooling: Pooling | None = None  # of a loaded folder that makes vectors: how it makes them

    name: ClassVar[str] = ""
    head: ClassVar[str] = "text"
    output_names: ClassVar[tuple[str, ...]] = ()  # what config.json calls the head's numbers where they are no labels
    labelled_by_name: ClassVar[bool] = False  # whether labels are names that must be learnt from the data
    example_type: ClassVar[type] = TextRow  # what `read` gives
    accepted_settings: ClassVar[tuple[str, ...]] = ()  # of fine-tuning's: those that only some tasks understand
    stored_settings: ClassVar[tuple[str, ...]] = ()  # of these: those that `options` holds under the same name
    scores_choices: ClassVar[bool] = False  # whether `scores` are of the example's own `choices`, not of labels
    answers_vary: ClassVar[bool] = False  # whether the same answer to every row means that nothing was learnt
    makes_vectors: ClassVar[bool] = False  # whether the folder says how texts become vectors
    abilities: ClassVar[tuple[str, ...]] = ("predict",)  # what a server can ask a model of this task for
    served_as: ClassVar[str] = ""  # TEI's word for such a model: classifier or reranker
    sample: ClassVar[str] = "messages_dev.csv"  # a sample file that it reads
    not_distilled: ClassVar[str] = "Fine-tune a smaller model instead."  # what to do where `answer_kind` is empty

    def read(self, path: str | Path, reading: Reading, labelled: Labelled = True) -> list[Any]:
        """Every task: read every example of a file."""
        raise NotImplementedError

    def stream(self, path: str | Path, reading: Reading) -> Iterator[Any]:
        """Every task: examples without answers, one at a time, for prediction over files of any size."""
        yield from self.read(path, reading, labelled=False)

    def reads_table(self, path: str | Path, reading: Reading) -> bool:
        """Every task: whether a file's rows have columns, which `predict` keeps beside its answers."""
        return kind_of(path) in ROW_KINDS

    def keep_columns(self, reading: Reading) -> None:
        """Every task: remember the columns that training reads, where they do not have the usual names."""
        self.options.pop("columns", None)
        if named := {role: name for role in COLUMNS if (name := getattr(reading, role)) != getattr(Reading, role)}:
            self.options["columns"] = named

    def reading_of(self, path: str | Path, given: Reading, roles: Sequence[str] = COLUMNS) -> Reading:
        """Every task: how to read a file where no column is named: as in training, if it has the columns; reported."""
        own = {role: name for role, name in self.options.get("columns", {}).items() if role in roles}
        is_named = any(getattr(given, role) != getattr(Reading, role) for role in COLUMNS)
        if not own or is_named or str(path) == "-" or kind_of(path) not in (*ROW_KINDS, "rows"):
            return given
        there = columns_of(path, tuple(own.values()), given.encoding)
        found = {role: name for role, name in own.items() if name in there}
        if found:
            shown = ", ".join(f"{role} from column {name!r}" for role, name in found.items())
            note(f"{path}: reading {shown}, as in training.")
        return replace(given, **found)

    def from_inputs(self, inputs: Sequence[Any], first: int = 1) -> list[Any]:
        """Every task: what a user hands to `predict` in Python (texts, pairs, dicts) as examples without answers.

        first: the number, or line, of the first of them.
        """
        raise NotImplementedError

    def from_frame(self, table: Any, reading: Reading) -> list[Any]:
        """A table in memory that a user hands to `predict` in Python, as examples without answers."""
        with in_memory({"input": table}, digest=False) as paths:
            return list(self.stream(paths["input"], self.reading_of(paths["input"], reading, ("text", "text_b"))))

    def evaluate(self, rows: Any, reading: Reading, predict: Callable[[list[Any]], list[Any]]) -> dict[str, float]:
        """Every task's metrics of `predict` on labelled rows: a file, or a table in memory."""
        if not isinstance(rows, (str, Path)):
            with in_memory({"rows": rows}, digest=False) as paths:
                return self.evaluate(paths["rows"], reading, predict)
        examples = self.read(rows, self.reading_of(rows, reading))
        self.check(examples, str(rows))
        return dict(self.score(examples, predict(examples)))

    def encode_pairs(
        self, tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, windows: Windows
    ) -> list[Rows]:
        """Texts, or two side by side; two without an order (option `symmetric`) both ways, which `merge` averages."""
        encoded = encode_rows(tokenizer, texts, pairs, windows)
        if pairs is None or not self.options.get("symmetric"):
            return encoded
        turned = encode_rows(tokenizer, pairs, texts, windows)
        return [Rows([*rows.rows, *other.rows], rows.tokens, rows.cut) for rows, other in zip(encoded, turned)]

    def fit_labels(self, examples: Sequence[Any]) -> None:
        """Every task: take what must be known of all examples: label names, the scale of numbers."""

    def finalize(self, model: Model) -> None:
        """Every task, after training: bring into the weights what other tools would not know of."""

    def fold_temperature(self, model: Model) -> float:
        """Divide the head by the calibration temperature: a plain softmax then gives calibrated probabilities.

        Returns the temperature, which `options` no longer hold.
        """
        temperature = float(self.options.pop("temperature", 1.0))
        out = model.head(self.head).out if temperature != 1.0 else None
        if out is not None:
            with torch.no_grad():
                for parameter in out.parameters():
                    parameter.div_(temperature)
        return temperature

    def outputs(self) -> int:
        """Every task: how many numbers the head gives a text or token."""
        return max(1, len(self.labels))

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, windows: Windows) -> list[Item]:
        """Every task: examples as rows of ids."""
        raise NotImplementedError

    def collate(self, items: Sequence[Item], training: bool, steady: bool = False) -> Batch:
        """Every task: items as one packed batch; in training with their answers in `extra`. steady: see `pack`."""
        rows = [row for item in items for row in item.rows]
        segments = [row.segments or [0] * len(row.ids) for row in rows]
        batch = pack([row.ids for row in rows], segments, multiple=ROUND, steady=steady)
        batch.extra["owner"] = torch.tensor([n for n, item in enumerate(items) for _ in item.rows])
        if training:
            batch.extra |= self.targets(items)
        return batch

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Every task: the answers of items, for training."""
        raise NotImplementedError

    def logits(self, model: Model, encoded: Encoded, items: int) -> Tensor:
        """Every task: what the head says, float32 and with gradients, a row for what `count` counts."""
        raise NotImplementedError

    def loss(self, model: Model, encoded: Encoded) -> Tensor:
        """Every task: the loss, summed over what `count` counts."""
        raise NotImplementedError

    def count(self, batch: Batch) -> int:
        """Every task: what the loss is divided by."""
        return len(batch.extra["target"])

    def weights(self, device: torch.device | str = "cpu") -> Tensor | None:
        """Any task with labels: what a mistake about each costs, from options class_weights: (labels,), or None."""
        given = self.options.get("class_weights")
        return torch.tensor([float(given.get(name, 1.0)) for name in self.labels], device=device) if given else None

    def wanted(self, items: Sequence[Item]) -> Wanted:
        """What a task needs an engine to compute for the rows of items."""
        return Wanted(self.head)

    def answers(self, engine: Engine, outputs: Sequence[np.ndarray], items: Sequence[Item]) -> list[np.ndarray]:
        """Every task: each item's numbers, from what an engine gave for each row of `items` (see `wanted`)."""
        return list(self.merged_rows(outputs, items))

    def decode(self, item: Item, output: np.ndarray) -> Prediction:
        """Every task: an item's numbers as a prediction with the user's own labels."""
        raise NotImplementedError

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> Scores:
        """Every task: how good predictions are; the first key is the headline."""
        metric, gold, predicted, extra = self.metric_inputs(examples, predictions)
        return metric(gold, predicted, **extra)

    def check(self, examples: Sequence[Any], where: str) -> None:
        """Every task: refuse answers it does not know before any work is done; `where` names their file."""

    def metric_inputs(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> tuple[Any, list, list, dict]:
        """Every task: the metric, what is right, what was said, and the metric's settings."""
        raise NotImplementedError

    # ---- What is asked of one example and its prediction: here for a `TextRow`, whose label is a name, several names
    # ---- or a number. A task of other examples says it of its own.

    def key(self, example: Any) -> tuple[Any, ...]:
        """Every task: what makes two examples the same text: twins stay on one side of a split."""
        return (example.text, example.text_b)

    def answer_of(self, example: Any) -> Any:
        """Every task: the right answer as the file has it; None where it is not known."""
        return example.label

    def labels_of(self, example: Any) -> tuple[str, ...]:
        """Every task: the label names of an example; none where labels are no names."""
        answer = self.answer_of(example)
        return answer if isinstance(answer, tuple) else (answer,) if isinstance(answer, str) else ()

    def stratum(self, example: Any) -> str:
        """Every task: what a split keeps in equal shares: the label, where it is a name."""
        answer = self.answer_of(example)
        return str(answer) if isinstance(answer, (str, tuple, int)) else ""

    def digest_of(self, example: Any) -> list[Any]:
        """Every task: the answer as the digest of training rows has it, beside `labels_of`; checkpoints hold it."""
        return [self.answer_of(example), None]

    def answer_in(self, prediction: Prediction) -> Any:
        """Every task: the answer alone, out of a prediction."""
        return prediction["label"]

    def answers_in(self, prediction: Prediction) -> list[Any]:
        """Every task: what two models may agree in, one by one: the answer, or one for each word."""
        return [self.answer_in(prediction)]

    def with_answer(self, example: Any, prediction: Prediction) -> Any:
        """Every task: the example with a prediction as its answer."""
        return replace(example, label=self.answer_in(prediction))

    def shown(self, example: Any) -> dict[str, Any]:
        """Every task: the example in a report's list: its text and line."""
        second = {"text_b": example.text_b} if example.text_b else {}
        return {"text": example.text, "line": example.line, **second}

    def cells(self, example: Any) -> dict[str, Any]:
        """Every task: the columns that `predict` writes beside an answer if the file is not a table."""
        return {name: value for name, value in self.shown(example).items() if name != "line"}

    def mistake(self, example: Any, prediction: Prediction) -> dict[str, Any] | None:
        """Every task: `shown` with gold, predicted and score (the higher, the worse) where a prediction is wrong."""
        return None

    def suspicion(self, example: Any, prediction: Prediction) -> dict[str, Any] | None:
        """Every task: a row whose own label a model that never saw it does not believe; score: its likelihood."""
        return None

    # ---- What is asked of the task as a whole.

    @classmethod
    def guessed(cls, head: str, labels: tuple[str, ...], config: Mapping[str, Any]) -> dict[str, Any] | None:
        """The options of this task if a folder that bertkit did not make is of it, by its head and its config.json."""
        return None

    @classmethod
    def options_of(cls, settings: FinetuneSettings) -> dict[str, Any]:
        """Every task: the options that the settings of a fine-tuning ask for."""
        stored = {name: getattr(settings, name) for name in cls.stored_settings}
        return {name: value for name, value in stored.items() if value != getattr(type(settings), name)}

    @property
    def baseline(self) -> str:
        """Every task: what `BASELINES` calls the cheap model that it is compared with, where there is one."""
        return self.name

    @property
    def problem_type(self) -> str:
        """Every task: what config.json calls it; by it, transformers' pipelines know whether scores add up to one."""
        return ""

    @property
    def calibrates(self) -> bool:
        """Every task: whether `answers` are logits of labels that exclude each other, to be calibrated."""
        return False

    @property
    def has_thresholds(self) -> bool:
        """Every task: whether there are thresholds to be chosen on held-out rows."""
        return False

    def choose_thresholds(self, items: Sequence[Item], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Every task: choose thresholds that suit labelled items, used from then on. Returns the result's parts."""
        return {}

    def by_label(self, gold: list[Any], predicted: list[Any]) -> dict[str, Any]:
        """Every task: the report's `per_class` and `confusion`, where there are labels."""
        return {}

    @property
    def answer_kind(self) -> str:
        """Every task: the losses a student learns by (`KINDS` of objectives); empty: not distilled."""
        return ""

    def as_logits(self, output: np.ndarray) -> np.ndarray:
        """Every task: a teacher's `answers` of one item as the student's `logits` have them."""
        return output

    def lessons(self, batch: Batch, taught: Sequence[np.ndarray], known: Sequence[bool]) -> dict[str, Tensor]:
        """Every task: what a teacher says of each item, and whether its answer is known, a row for each of `logits`."""
        return {"taught": torch.from_numpy(np.stack(taught)), "known": torch.tensor(known)}

    @property
    def reads_pairs(self) -> bool:
        """Every task: whether an input is two texts."""
        return False

    def for_pairs(self) -> Task | None:
        """Every task: the same for two texts, where a folder bertkit did not make may read one or two."""
        return None

    def label_scores(self, output: np.ndarray, prediction: Prediction, raw: bool) -> dict[str, float]:
        """Every task: label → score as TEI's /predict tells them; raw: as the head gives them."""
        return {str(self.answer_in(prediction)): float(prediction.get("score", 1.0))}

    def merged(self, rows: Tensor, owner: Tensor, items: int, merge: str = "") -> Tensor:
        """Every task: a row of numbers an item from one a window, by `merge` or its own way: (rows, n) → (items, n)."""
        if len(rows) == items:
            return rows
        index = owner[:, None].expand(-1, rows.shape[1])
        empty = rows.new_zeros(items, rows.shape[1])
        how = {"max": "amax", "mean": "mean"}[merge or self.merge]
        return empty.scatter_reduce(0, index, rows, how, include_self=False)

    def merged_rows(self, outputs: Sequence[np.ndarray], items: Sequence[Item], merge: str = "") -> np.ndarray:
        """Every task: the same as `merged`, for rows that an engine gave: (items, n)."""
        rows = np.stack(outputs) if len(outputs) else np.zeros((0, self.outputs()), np.float32)
        if len(rows) == len(items):
            return rows
        starts = np.cumsum([0, *(len(item.rows) for item in items)])[:-1]
        if (merge or self.merge) == "max":
            return np.maximum.reduceat(rows, starts)
        counts = np.array([[len(item.rows)] for item in items], rows.dtype)
        return np.add.reduceat(rows, starts) / counts

    def check_label(self, label: Any, where: str) -> int:
        """Any task with labels: the number of a label name, or an error that says what to do."""
        try:
            return self.labels.index(label)
        except ValueError:
            known = ", ".join(self.labels[:20])
            raise UserError(
                f"{where}: label {label!r} is not one of {known}. {suggest(str(label), list(self.labels))} "
                "Correct the row, or train with that label, too: a model knows only those it was trained with "
                "(finetune --labels)."
            ) from None


def text_row(given: Any, number: int, paired: bool) -> TextRow:
    """A text, a pair of texts or a dict with them, as a user hands it to `predict`, as an example."""
    if isinstance(given, TextRow):
        return given
    if isinstance(given, dict) and all(isinstance(given.get(name), str) for name in ("text", "text_b")[: 1 + paired]):
        return TextRow(given["text"], given.get("text_b"), given.get("label"), number)
    if paired and isinstance(given, (list, tuple)) and len(given) == 2:
        return TextRow(str(given[0]), str(given[1]), line=number)
    if isinstance(given, str) and not paired:
        return TextRow(given, line=number)
    wanted = "a pair of texts, or a dict with 'text' and 'text_b'" if paired else "a text, or a dict with 'text'"
    raise UserError(f"Input {number} is {given!r}; it must be {wanted}.")


def learnt_labels(found: Sequence[str], given: tuple[str, ...], what: str) -> tuple[str, ...]:
    """A task's label names in a stable order: as given, else sorted (numbers by value)."""
    names = set(found)
    if empty := [f"{name!r} ({found.count(name):,} times)" for name in sorted(names) if name.lower() in NOT_A_LABEL]:
        note(f"{what}: {', '.join(empty)} counts as a label like any other. If it means that none is known, drop it.")
    if given:
        if missing := names - set(given):
            raise UserError(f"{what}: the labels {', '.join(sorted(missing))} are in the data but not in --labels.")
        return given
    if len(names) < 2:
        only = next(iter(names), "none")
        raise UserError(
            f"{what}: there is only one label ({only!r}), so there is nothing to learn. "
            "Add rows with another label, or name the right column with --label."
        )
    try:
        values = {name: float(name) for name in names}
    except ValueError:
        values = {}
    # "nan" is no place in an order, and "1" and "1.0" are one: names decide where values cannot.
    by_value = bool(values) and all(math.isfinite(value) for value in values.values())
    return tuple(sorted(names, key=lambda name: (values[name] if by_value else 0.0, name)))


# ---- What a folder's bertkit.json says of its task, checked: anyone may have edited it.

FIX = "Copy the folder again, or correct the file."
KINDS: dict[str, tuple[type, str]] = {  # key → what its value must be
    "task": (str, "the name of a task"),
    "labels": (list, "a list of names"),
    "options": (dict, "a table"),
    "windows": (dict, "a table"),
    "merge": (str, "max or mean"),
}


def validated(about: dict[str, Any], where: str) -> dict[str, Any]:
    """What bertkit.json says of a task, if every value is of its kind. where: names the file."""
    for key, (kind, wanted) in KINDS.items():
        if key in about and not isinstance(about[key], kind):
            raise DamagedFile(f"{where}: '{key}' is {about[key]!r:.60}; it must be {wanted}. {FIX}")
    for label in about.get("labels", []):
        if not isinstance(label, str):
            raise DamagedFile(f"{where}: 'labels' holds {label!r:.60}, which is not a name. {FIX}")
    for key in {"limit", "overlap"} & set(about.get("windows", {})):
        if not isinstance(about["windows"][key], int):
            raise DamagedFile(
                f"{where}: '{key}' of 'windows' is {about['windows'][key]!r:.60}, which is not a whole number. {FIX}"
            )
    return about


def check_labels(labels: Sequence[str], outputs: int, where: str) -> None:
    """Refuse labels of a task that are not as many as the head gives numbers."""
    if len(labels) != outputs:
        raise DamagedFile(f"{where}: there are {len(labels)} labels, and the weights give {outputs} numbers. {FIX}")
