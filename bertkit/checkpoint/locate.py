"""From the name of a model to its folder: embedded, on disk, or on the hub."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from bertkit.errors import UserError, suggest
from bertkit.files.manifest import facts_of
from bertkit.notify import note

EMBEDDED = Path(__file__).parent.parent / "models"
STARTING = ("en", "zh")  # embedded models that fine-tuning may choose; `classic` is there to be looked at
# What is fetched from the hub: never code, never pickles where safetensors exist.
WANTED = ("*.json", "*.txt", "*.model", "model*.safetensors", "crf.safetensors")
PICKLED = ("pytorch_model.bin",)
WEIGHTS = ("model.safetensors", *PICKLED)
DECIDING = ("config.json", "*.safetensors", "pytorch_model*.bin", "*.onnx*", "onnx/*.onnx*", "*.index", "*.data-*")


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


def content_of_model(name: str | Path) -> str:
    """A digest of a located model's weights and settings, for a run that depends on them."""
    model = locate(name)
    found = [model.glob(each) for each in DECIDING] if model.is_dir() else [model.parent.glob(model.name + "*")]
    digests = [facts_of(path)["sha256"] for path in sorted({path for files in found for path in files})]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


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
