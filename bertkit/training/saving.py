"""Checkpoints: whole folders, one a generation, that open after any crash.

A generation is made in a staging folder, synced file by file, sealed with a manifest that holds the SHA-256
and size of every file, and only then renamed to `step-00001234`. A reader accepts a generation whose manifest
verifies, and otherwise goes back to the one before. Which is the latest is computed, never stored. Room is
needed for `keep` + 1 generations, because an old one goes only after the new one is safe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bertkit import machine
from bertkit.errors import UserError
from bertkit.files import atomic
from bertkit.files import tensors as tensor_file
from bertkit.files.atomic import atomic_write, mend_folder, write_folder
from bertkit.notify import note
from bertkit.training.checkpoints import (
    FORMAT,
    MANIFEST,
    PLAIN_NAME,
    STATE,
    Generation,
    age,
    is_sound,
    list_generations,
    newest_generation,
    sealed,
)

__all__ = [
    "Generation", "atomic_write", "list_generations", "mend_folder", "newest_generation", "save_generation",
    "write_folder",
]  # fmt: skip


def save_generation(
    folder: Path,
    step: int,
    tensors: Mapping[str, tensor_file.Tensors],
    values: Mapping[str, Any],
    *,
    keep: int = 2,
    also_keep: Collection[int] = (),
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Save one generation and rotate the old ones out. Returns its folder.

    tensors: file stem to named tensors. values: state that JSON can hold (tuples come back as lists).
    about: facts for the manifest, such as hashes of settings and data. keep: how many sound generations stay,
    at least 2; also_keep: steps that are never rotated out. Saving a step again does nothing when the content
    is the same; otherwise the new one is put beside the old as `step-00001234.1`, so neither is ever missing.
    One process saves at a time (RunLock).
    """
    _check_request(folder, step, tensors, keep)
    state, facts = dict(values), dict(about or {})
    state_text = _json(state, "values")
    _json(facts, "about")
    sizes = [len(state_text), *(tensor_file.size(group) for group in tensors.values())]
    needed = sum(size + -size % 4096 for size in sizes) + 16384  # whole blocks; manifest and folder
    with atomic.explained(
        f"{folder}: step {step} could not be saved",
        lambda: (
            f"It needs {needed:,} bytes and {atomic.calls.free_bytes(folder):,} are free. "
            "The checkpoints before it are untouched."
        ),
    ):
        atomic.make_folder(folder)
        atomic.sweep(folder, r"[\w.-]+")
        atomic.require_space(folder, needed)
        with atomic.staged(folder, str(step)) as staging:
            written = {STATE: atomic.write_file(staging / STATE, [state_text])}
            for stem, group in tensors.items():
                name = f"{stem}.safetensors"
                written[name] = tensor_file.write(staging / name, group)
            files = {name: {"sha256": digest, "bytes": size} for name, (digest, size) in written.items()}
            manifest = {"format": FORMAT, "step": step, "files": files, "versions": machine.versions(), "about": facts}
            atomic.write_file(staging / MANIFEST, [sealed(manifest)])
            atomic.sync_folder(staging)
            path, is_there = _place(folder, step, manifest)
            if not is_there:
                atomic.calls.rename(staging, path)
                atomic.sync_folder(folder)
    _rotate(folder, keep, also_keep)
    return path


def _check_request(folder: Path, step: int, tensors: Mapping[str, Any], keep: int) -> None:
    if keep < 2:
        raise UserError(
            f"keep is {keep}, but at least 2 checkpoints must stay: one may turn out damaged. Use 2 or more."
        )
    if step < 0:
        raise ValueError(f"step {step} is negative")
    for stem in tensors:
        if not PLAIN_NAME.fullmatch(stem):
            raise ValueError(f"'{stem}' is not a plain file stem")
    later = [path for path in list_generations(folder) if age(path)[0] > step and is_sound(path)]
    if later:
        raise UserError(
            f"{folder} already holds {later[-1].name}, and step {step} is before it. "
            "Resume from it (--resume), choose another folder, or remove it first."
        )


def _place(folder: Path, step: int, manifest: dict[str, Any]) -> tuple[Path, bool]:
    """Where this generation goes, and whether a sound one with the same content is there already."""
    same_step = [path for path in list_generations(folder) if age(path)[0] == step]
    if not same_step:
        return folder / f"step-{step:08d}", False
    newest = same_step[-1]
    if is_sound(newest):
        there = json.loads((newest / MANIFEST).read_bytes())
        if all(sealed(there[key]) == sealed(manifest[key]) for key in ("files", "about")):
            return newest, True
    return folder / f"step-{step:08d}.{age(newest)[1] + 1}", False


def _rotate(folder: Path, keep: int, also_keep: Collection[int]) -> None:
    """Discard what is older than the newest `keep` sound generations; a damaged one counts for nothing."""
    sound = 0
    for path in reversed(list_generations(folder)):
        if sound < keep:
            sound += is_sound(path)
        elif age(path)[0] not in also_keep:
            try:
                # Synced before it is emptied: else a power cut could leave it under its name, half removed.
                discarded = folder / f".old-{os.getpid()}-{path.name}"
                atomic.calls.rename(path, discarded)
                atomic.sync_folder(folder)
                atomic.remove(discarded)
            except OSError as error:
                note(f"{path}: the old checkpoint could not be removed ({error.strerror}); the next save tries again.")


def _json(values: Mapping[str, Any], where: str) -> bytes:
    """Our own file, so NaN and Infinity are written as Python reads them back."""
    _check_keys(values, where)
    return json.dumps(values).encode()


def _check_keys(values: object, where: str) -> None:
    # JSON would turn the key 1 into "1" without a word, and the state would not come back as it was.
    if isinstance(values, Mapping):
        for key, value in values.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: the key {key!r} is not a string, and JSON would make it one")
            _check_keys(value, f"{where}.{key}")
    elif isinstance(values, list | tuple):
        for value in values:
            _check_keys(value, where)
