"""Checkpoints: whole folders, one a generation, that open after any crash.

A generation is made in a staging folder, synced file by file, sealed with a manifest that holds the SHA-256
and size of every file, and only then renamed to `step-00001234`. A reader accepts a generation whose manifest
verifies, and otherwise goes back to the one before. Which is the latest is computed, never stored. Room is
needed for `keep` + 1 generations, because an old one goes only after the new one is safe.
"""

from __future__ import annotations

import json
import os
import re
import stat
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from bertkit import machine
from bertkit.errors import DamagedFile, UserError
from bertkit.files import atomic
from bertkit.files import tensors as tensor_file
from bertkit.files.guarded import LARGEST
from bertkit.files.manifest import FORMAT, MANIFEST, blocks, digest_of, sealed, unsealed
from bertkit.notify import note

# ---- Opening checkpoints: only what verifies is used, and what does not is named.
#
# A generation is a folder `step-00001234` with a manifest that holds the SHA-256 and size of every other file, and a
# seal over itself.

STATE = "state.json"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Without O_NONBLOCK a pipe under a file's name would wait for ever.
_TO_READ = os.O_RDONLY | os.O_NONBLOCK
_GENERATION = re.compile(r"step-(\d{8,})(?:\.(\d+))?")


@dataclass(frozen=True)
class Generation:
    """A training checkpoint whose every byte was verified. Its files stay open, so rotation cannot take them away."""

    path: Path
    step: int
    values: dict[str, Any]
    about: dict[str, Any]
    versions: dict[str, str]
    _handles: dict[str, int] = field(repr=False)

    def __post_init__(self) -> None:
        weakref.finalize(self, _close, self._handles)

    def stems(self) -> list[str]:
        """The names of a checkpoint's tensor files, which `tensors` knows."""
        return sorted(Path(name).stem for name in self._handles if name.endswith(".safetensors"))

    def tensors(self, stem: str) -> dict[str, Tensor]:
        """A checkpoint's tensors that were saved under `stem`, on the CPU."""
        name = f"{stem}.safetensors"
        if name not in self._handles:
            raise UserError(f"{self.path} holds no {name}. There is: {', '.join(self.stems()) or 'none'}.")
        return tensor_file.read(self._handles[name], str(self.path / name))


class _Unsound(Exception):
    """A generation that must not be used; the text names the file and the reason."""


class _Vanished(Exception):
    """A generation that was rotated away while it was read."""


# Parameters as they are called now, and as checkpoints of the first versions call them.
RENAMED = ((".heads.mlm.", ".heads.words."), (".embeddings.tokens.", ".embeddings.words."), (".pooler.", ".summary."))


def under_current_names(tensors: Mapping[str, Tensor], known: Collection[str]) -> dict[str, Tensor]:
    """Tensors of an older checkpoint under the names that the parameters have now.

    A name may stand after a prefix and a colon.
    """
    renamed = {}
    for full, tensor in tensors.items():
        prefix, colon, name = full.rpartition(":")
        if name not in known:
            for now, before in RENAMED:
                name = f".{name}".replace(before, now)[1:]
        renamed[f"{prefix}{colon}{name}"] = tensor
    return renamed


def list_generations(folder: Path) -> list[Path]:
    """The checkpoints (generations) in `folder` by name, oldest first; nothing is verified."""
    folders = [path for path in folder.iterdir() if _GENERATION.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(folders, key=age)


def newest_generation(folder: Path) -> Generation | None:
    """The newest checkpoint (generation) that verifies, or None. Damaged ones are reported and passed over."""
    while True:
        damage: list[str] = []
        try:
            for path in reversed(list_generations(folder)):
                try:
                    generation = _open(path)
                except _Unsound as error:
                    damage.append(str(error))
                    continue
                for reason in damage:
                    note(f"{reason} The checkpoint before it, {path.name}, is used instead.")
                return generation
        except _Vanished:
            continue  # A trainer saved meanwhile: what it saved is newer still.
        if not damage:
            return None
        raise DamagedFile(
            f"{' '.join(damage)} No checkpoint in {folder} is sound. "
            "Take the folder from a backup, or remove it and train from the beginning."
        )


def age(path: Path) -> tuple[int, int]:
    """(step, revision) of a checkpoint (generation), from its name; both grow with time."""
    match = _GENERATION.fullmatch(path.name)
    assert match, path
    return int(match[1]), int(match[2] or 0)


def damage_in(folder: Path) -> list[str]:
    """What is wrong with each damaged checkpoint (generation) in `folder`."""
    damage = []
    for path in list_generations(folder):
        try:
            _open(path)
        except _Unsound as error:
            damage.append(str(error))
        except _Vanished:
            continue  # rotated out meanwhile
    return damage


def is_sound(path: Path) -> bool:
    """Whether a checkpoint (generation) verifies."""
    try:
        _open(path)
    except (_Unsound, _Vanished):
        return False
    return True


def _open(path: Path) -> Generation:
    """Open every file of a checkpoint (generation) and verify it against the manifest."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if not os.path.lexists(path):
            raise _Vanished from None
        raise _Unsound(f"{path} cannot be read ({error.strerror}).") from error
    handles: dict[str, int] = {}
    try:
        with _reading(path / MANIFEST):
            handles[MANIFEST] = os.open(MANIFEST, _TO_READ, dir_fd=folder)
            manifest = _manifest(path, _small(path / MANIFEST, handles[MANIFEST]))
        for name, facts in manifest["files"].items():
            with _reading(path / name):
                handles[name] = os.open(name, _TO_READ, dir_fd=folder)
                _verify(path / name, handles[name], facts)
        values = json.loads(_small(path / STATE, handles[STATE]))
        return Generation(path, manifest["step"], values, manifest["about"], manifest["versions"], handles)
    except (_Unsound, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _close(handles)
        if _was_moved(path, folder):
            raise _Vanished from None
        # Sealed, and yet not built as ours are: made by hand.
        raise (
            error if isinstance(error, _Unsound) else _Unsound(f"{path / MANIFEST} was not written by bertkit.")
        ) from error
    finally:
        os.close(folder)


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Errors while reading a checkpoint's file as damage."""
    try:
        yield
    except FileNotFoundError:
        raise _Unsound(f"{file} is missing.") from None
    except OSError as error:
        raise _Unsound(f"{file} cannot be read ({error.strerror}).") from error


def _small(file: Path, handle: int) -> bytes:
    """The bytes of a checkpoint's open file, if it is a regular one of a size that such files have."""
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > LARGEST:
        raise _Unsound(f"{file} is not a regular file of at most {LARGEST:,} bytes.")
    return b"".join(blocks(handle))


def _manifest(path: Path, raw: bytes) -> dict[str, Any]:
    """What the manifest of the checkpoint (generation) at `path` says, if its seal fits."""
    try:
        manifest = unsealed(raw)
    except ValueError:
        raise _Unsound(f"{path / MANIFEST} is damaged: its checksum does not match its content.") from None
    if manifest["format"] != FORMAT:
        raise _Unsound(f"{path / MANIFEST} has format {manifest['format']}, and this version reads {FORMAT}.")
    if manifest["step"] != age(path)[0]:
        raise _Unsound(f"{path / MANIFEST} belongs to step {manifest['step']}: the folder was renamed or swapped.")
    if not all(PLAIN_NAME.fullmatch(name) for name in manifest["files"]):
        raise _Unsound(f"{path / MANIFEST} names files outside its folder: {sorted(manifest['files'])}.")
    return manifest


def _verify(file: Path, handle: int, facts: dict[str, Any]) -> None:
    """Check size and SHA-256 of a checkpoint's file."""
    size = os.fstat(handle).st_size
    if size != facts["bytes"]:
        raise _Unsound(f"{file} is damaged: {size:,} bytes instead of {facts['bytes']:,}.")
    if digest_of(handle) != facts["sha256"]:
        raise _Unsound(f"{file} is damaged: its SHA-256 is not the one in the manifest.")


def _was_moved(path: Path, folder: int) -> bool:
    try:
        return not os.path.samestat(path.stat(), os.fstat(folder))
    except FileNotFoundError:
        return True


def _close(handles: dict[str, int]) -> None:
    while handles:
        os.close(handles.popitem()[1])


# ---- Checkpoints: whole folders, one a generation, that open after any crash.


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
    """Save one checkpoint (generation) and rotate the old ones out. Returns its folder.

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
    """Refuse to save a checkpoint that could not be read again."""
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
    """Where this checkpoint (generation) goes, and whether a sound one with the same content is there already."""
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
    """Discard checkpoints older than the newest `keep` sound ones; a damaged one counts for nothing."""
    sound = 0
    for path in reversed(list_generations(folder)):
        if sound < keep:
            sound += is_sound(path)
        elif age(path)[0] not in also_keep:
            try:
                discard(path)
            except OSError as error:
                note(f"{path}: the old checkpoint could not be removed ({error.strerror}); the next save tries again.")


def discard(path: Path) -> None:
    """Remove a checkpoint (generation): after a crash at any moment it is whole, or not there."""
    # Synced before it is emptied: else a power cut could leave it under its name, half removed.
    discarded = path.with_name(f".old-{os.getpid()}-{path.name}")
    atomic.calls.rename(path, discarded)
    atomic.sync_folder(path.parent)
    atomic.remove(discarded)


def discard_all(folder: Path) -> None:
    """Remove every checkpoint (generation) of a folder, the newest last, and what interrupted saves left."""
    with atomic.explained(f"{folder} could not be written"):
        atomic.sweep(folder, r"[\w.-]+")
        for path in list_generations(folder):
            discard(path)


def _json(values: Mapping[str, Any], where: str) -> bytes:
    """JSON in a checkpoint, our own file, so NaN and Infinity are written as Python reads them back."""
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
