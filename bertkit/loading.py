"""Any folder of ours as something that answers: an encoder, a contender that `compare` saved, or an ancestor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, runtime_checkable

from bertkit.ancestors import ANCESTORS
from bertkit.checkpoint.locate import embedded
from bertkit.data.readers.frames import is_frame
from bertkit.errors import UserError
from bertkit.files.guarded import read_json
from bertkit.files.manifest import read_whole
from bertkit.inference import Answers
from bertkit.inference.predictor import Predictor
from bertkit.tasks.base import Reading, Task

if TYPE_CHECKING:
    from bertkit.ancestors import AncestorModel
    from bertkit.runs.compare.contenders import Numbers, Tags, Texts

    Opened: TypeAlias = "Predictor | ContenderPredictor | AncestorModel"


PROBE = ("a b", "c d")


@runtime_checkable
class CanSuggest(Protocol):
    """What `load` may return: a model that guesses from left to right."""

    def suggest(self, text: str, top: int = 5, /) -> list[dict[str, Any]]:
        """What a loaded model may do: the likeliest next words or pieces, best first."""


@runtime_checkable
class CanScore(Protocol):
    """What `load` may return: a model that says how likely texts are."""

    def score(self, texts: Any, /) -> list[float]:
        """What a loaded model may do: log-likelihoods."""


@runtime_checkable
class CanMeasure(Protocol):
    """What `load` may return: a language model with a perplexity."""

    def perplexity(self, texts: Any, /) -> dict[str, float]:
        """What a loaded model may do: how surprised it is, over all texts."""


class ContenderPredictor:
    """What `load` returns for a saved contender: it predicts and is evaluated like a Predictor."""

    precision, device, computed_by = "fp32", "cpu", "fp32 on cpu"

    def __init__(self, contender: Texts | Numbers | Tags) -> None:
        self.contender = contender

    def __repr__(self) -> str:
        """What it is, its task and its labels."""
        labels = f", labels {', '.join(self.task.labels[:6])}" if self.task.labels else ""
        return f"<bertkit model: {self.contender.name}, {self.task.name}{labels}>"

    @property
    def task(self) -> Task:
        """The task a loaded contender learnt."""
        return self.contender.task

    def predict(self, inputs: Any, on_long: str = "", **columns: str) -> list[dict[str, Any]]:
        """A loaded contender's predictions for texts, pairs or word lists, in order; texts are read whole."""
        if is_frame(inputs):
            return Answers(
                self.predict_examples(self.task.from_frame(inputs, Reading(**columns)), on_long, file="input")
            )
        single = isinstance(inputs, (str, dict))
        return Answers(self.predict_examples(self.task.from_inputs([inputs] if single else list(inputs)), on_long))

    def predict_examples(self, examples: Sequence[Any], on_long: str = "", file: str = "") -> list[dict[str, Any]]:
        """A loaded contender's predictions for a reader's examples. Any text has one, so none is ever named."""
        return self.contender.predict(examples)

    def evaluate(self, rows: Any, **columns: str) -> dict[str, float]:
        """Every metric of a loaded contender on labelled rows: a file, a DataFrame, a Dataset, or a list of dicts."""
        return self.task.evaluate(rows, Reading(**columns), self.predict_examples)

    def embed(self, *_: Any, **__: Any) -> NoReturn:
        """What an encoder can and a loaded contender cannot: vectors."""
        self._refuse("embed")

    def fill(self, *_: Any, **__: Any) -> NoReturn:
        """What an encoder can and a loaded contender cannot: masked words."""
        self._refuse("fill")

    def score(self, *_: Any, **__: Any) -> NoReturn:
        """What an encoder can and a loaded contender cannot: likelihoods."""
        self._refuse("score")

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(f"{self.contender.name} cannot {what}: it is not an encoder. Use a model such as 'en'.")


def open_model(
    name: str | Path, precision: str = "auto", device: str = "auto", verify: bool = True, engine: str = "auto"
) -> Opened:
    """Load the model of a folder, an embedded or a hub name: what its bertkit.json says it is, else an encoder.

    An n-gram model may be an ARPA file, by its name: x.arpa, x.arpa.gz. verify: compare the SHA-256 of every file with
    the folder's manifest; otherwise only the sizes are compared.
    """
    folder = Path(name)
    if folder.is_file() and ".arpa" in folder.suffixes:
        from bertkit.ancestors.ngram.arpa import read_arpa

        return read_arpa(folder)
    if not folder.is_dir() or folder.as_posix() in embedded():
        return Predictor.load(name, precision, device, verify, engine)
    return read_whole(
        folder, lambda: _open_folder(folder, precision, device, verify, engine), verify=verify, what="model"
    )


def _open_folder(folder: Path, precision: str, device: str, verify: bool, engine: str) -> Opened:
    """Open a folder by what its bertkit.json says it holds."""
    file = folder / "bertkit.json"
    about = read_json(file) if file.is_file() else {}
    if key := about.get("contender"):
        from bertkit.runs.compare.contenders import saved

        if row := saved(str(key)):
            contender = ContenderPredictor(row.open(folder, about, precision))
            # Its files may each be sound and yet not fit together, which shows only when it answers.
            contender.predict([PROBE if contender.task.reads_pairs else PROBE[0]])
            return contender
        raise _unknown(file, key)
    if kind := about.get("ancestor"):
        for ancestor in ANCESTORS:
            if ancestor.stored == kind:
                return ancestor.open(folder)
        raise _unknown(file, kind)
    return Predictor.load(folder, precision, device, verify, engine)


def _unknown(file: Path, kind: Any) -> UserError:
    return UserError(f"{file}: '{kind}' is a model of a kind this version does not know.")
