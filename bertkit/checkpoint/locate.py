"""From the name of a model to its folder: embedded, on disk, or on the hub.

Also which embedded model to start from, and what to do where a vocabulary does not know the texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.windows import Windows
from bertkit.errors import UserError, suggest
from bertkit.notify import note
from bertkit.text.chinese_forms import simplified, simplifies
from bertkit.text.coverage import report
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertkit.tasks.base import Task

EMBEDDED = Path(__file__).parent.parent / "models"
STARTING = ("en", "zh")  # embedded models that fine-tuning may choose; `classic` is there to be looked at
# What is fetched from the hub: never code, never pickles where safetensors exist.
WANTED = ("*.json", "*.txt", "*.model", "model*.safetensors", "crf.safetensors")
PICKLED = ("pytorch_model.bin",)
WEIGHTS = ("model.safetensors", *PICKLED)


def embedded() -> list[str]:
    """Names under which the models inside the package are located."""
    return sorted(p.parent.name for p in EMBEDDED.glob("*/config.json"))


def locate(name: str | Path, *, named_by: Path | str | None = None) -> Path:
    """The folder (or Google checkpoint prefix) of an embedded name, a path, or a hub name `org/name`.

    named_by: the file that names the model, where it was not the user: a file never makes bertkit use the network.
    """
    path = Path(name)
    if str(name) in embedded():
        return EMBEDDED / str(name)
    if path.is_file() and path.name in WEIGHTS:  # the folder is meant: config and tokenizer stand beside the weights
        if path.name in PICKLED and (path.parent / WEIGHTS[0]).is_file():
            note(f"{path.parent} also has {WEIGHTS[0]}, which is read instead.")
        return path.parent
    if path.exists() or Path(f"{path}.index").is_file():
        return path
    if path.parent.name and path.parent.is_dir() and not path.is_absolute():  # a folder of the user's is meant
        there = sorted(entry.name for entry in path.parent.iterdir() if entry.is_dir()) or ["nothing"]
        raise UserError(f"{path.parent} contains no '{path.name}'. {suggest(path.name, there)}")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)) and not str(name).startswith((".", "/")):
        return _download(str(name), named_by)
    there = embedded() or ["none yet"]
    raise UserError(
        f"There is no model '{name}': not a folder here, not an embedded model ({', '.join(there)}), "
        "and not a hub name. Pass a folder written by bertkit or transformers, or a name such as "
        f"google-bert/bert-base-uncased. {suggest(str(name), there) if embedded() else ''}".rstrip()
    )


def facts_of_model(name: str | Path) -> list[tuple[str, int, int]]:
    """Name, size and time of every file of a located model: other facts mean that its answers may be others."""
    model = locate(name)
    files = sorted(model.rglob("*") if model.is_dir() else model.parent.glob(model.name + "*"))
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()]


def _download(name: str, named_by: Path | str | None) -> Path:
    """Download a model from the hub, or use the copy that was downloaded before."""
    import logging

    from huggingface_hub import list_repo_files, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # one message at the end says it all
    if named_by is None:
        note(f"Looking for '{name}' on the hub.")
    try:
        try:
            return Path(snapshot_download(name, allow_patterns=list(WANTED + PICKLED), local_files_only=True))
        except LocalEntryNotFoundError:
            if named_by is not None:
                raise UserError(
                    f"{named_by} names the model '{name}', which is not on this machine; models named in files "
                    f"are not downloaded. To download it, pass --model {name}"
                ) from None
            files = list_repo_files(name)
        safe = any(re.fullmatch(r"model.*\.safetensors", f) for f in files)
        return Path(snapshot_download(name, allow_patterns=list(WANTED if safe else WANTED + PICKLED)))
    except UserError:
        raise
    except Exception as reason:  # the hub's own, and those of whichever HTTP library it uses
        words = (str(reason) or "no reason given").splitlines()[0][:160]
        raise UserError(
            f"'{name}' is not a local folder and could not be downloaded from the hub ({type(reason).__name__}: "
            f"{words}). "
            "Check the name and the network connection, or copy the folder to this machine and pass its path."
        ) from None


# ---- The embedded model that knows the texts best.

AUTO = "auto"
LOOKED_AT = 200  # rows
NO_LIMIT = Windows(1 << 30)
REPORTED = 0.01  # a larger share of unknown pieces is reported
NAMED = 8  # unknown characters


def starting_model(name: str, task: Task, examples: Sequence[Any]) -> str:
    """Locate the starting model: the name as it is; for "auto" the embedded one that knows most of the first rows."""
    if name != AUTO:
        return name
    if not embedded():
        raise UserError("There is no embedded model to start from. Name one: a folder or a hub name.")
    some = examples[:LOOKED_AT]
    candidates = [name for name in STARTING if name in embedded()]
    return min(candidates, key=lambda candidate: (*_cost(candidate, task, some), candidate != "en"))


def _cost(name: str, task: Task, examples: Sequence[Any]) -> tuple[int, int]:
    """How badly an embedded model fits rows, for "auto": the number of unknown pieces, and of all pieces."""
    tokenizer = Tokenizer.load(EMBEDDED / name)
    task.encode(examples, tokenizer, NO_LIMIT)
    return tokenizer.unknown.unknown, tokenizer.unknown.pieces


def report_unknown(model: Any, name: str) -> float:
    """The share of unknown pieces in all texts that a model (or a tokenizer) has read so far.

    If it is more than REPORTED, a note names the characters and the fix. name: of the model, as the user knows it.
    A model without a tokenizer (a baseline) knows every text.
    """
    tokenizer = getattr(model, "tokenizer", model)
    if not isinstance(tokenizer, Tokenizer):
        return 0.0
    share = tokenizer.unknown.share
    if share > REPORTED:
        examples = list(tokenizer.unknown.examples)
        characters = " ".join(char for char, _ in report(tokenizer, examples, top=NAMED).unknown_characters)
        which = f" ({characters})" if characters else ""
        note(f"{share:.1%} of the pieces are unknown to {name}'s vocabulary{which}. {_fix(tokenizer, name, examples)}")
    return share


def _fix(tokenizer: Tokenizer, name: str, examples: Sequence[str]) -> str:
    """The first remedy (another model) that leaves at most half of the pieces unknown."""
    now = report(tokenizer, examples).unknown_rate
    can_simplify = tokenizer.kind == "wordpiece" and not simplifies(tokenizer.backend)
    if can_simplify and report(simplified(tokenizer), examples).unknown_rate <= now / 2:
        return (
            "Let it read traditional and full-width forms as simplified ones: "
            f"`bertkit convert {name} NEW --simplify`, and use NEW."
        )
    others = {other: Tokenizer.load(EMBEDDED / other) for other in STARTING}
    rates = {
        other: report(theirs, examples).unknown_rate
        for other, theirs in others.items()
        if other != name and theirs.fingerprint() != tokenizer.fingerprint()
    }
    best = min(rates, key=rates.__getitem__, default="")
    if best and rates[best] <= now / 2:
        return f"The embedded model {best} knows more of them: use {best}."
    return (
        "Use a model whose vocabulary has them, or continue its pretraining on your text: "
        f"`bertkit pretrain --init {name} --add-tokens N`."
    )
