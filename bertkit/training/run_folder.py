"""A run's folder, clock and signals: what pretraining and fine-tuning share around the loop."""

from __future__ import annotations

import signal
import time
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from torch import Tensor

from bertkit.config import current_names, read_toml, to_plain, to_toml
from bertkit.errors import Stopped, UserError
from bertkit.files.atomic import atomic_write, calls, explained, make_folder, sync_folder
from bertkit.files.lock import RunLock
from bertkit.notify import note
from bertkit.training.checkpoints import discard_all, newest_generation, save_generation
from bertkit.training.distributed import World
from bertkit.training.loop import Training
from bertkit.training.metrics_log import MetricsLog

# What may differ when a finished run is opened again: it changes no number, or is checked by its content.
FREE_AFTERWARDS = {
    "resume", "overwrite", "allow_changed_settings", "out", "lang", "eval_every", "save_minutes", "save_every",
    "log_every", "threads", "device", "tensorboard", "shard", "train", "data",
}  # fmt: skip
# What may differ when an unfinished run is resumed: also what moves its end or is looked at after it.
FREE = FREE_AFTERWARDS | {"steps", "tokens", "minutes", "epochs", "patience", "test"}


class Signals:
    """SIGINT, SIGTERM, SIGUSR1 and SIGHUP ask for a stop after the current step while a run folder is open.

    A second one stops at once. A terminal that closes sends SIGHUP; under nohup it stays ignored.
    """

    NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")

    def __init__(self) -> None:
        self.asked = 0

    def __enter__(self) -> Self:
        self.before = {}
        for name in self.NAMES:
            number = getattr(signal, name, None)
            if number is not None and not (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                try:
                    self.before[number] = signal.signal(number, self._hear)
                except ValueError:  # not the main thread: signals are the caller's business
                    break
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise Stopped(number)
        self.asked = number
        note(f"{signal.Signals(number).name}: saving after this step; once more stops at once.")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


class RunFolder:
    """The folder of one run: `metrics.jsonl`, `timing.jsonl`, `run.toml` and `checkpoints/`; locked while it is open.

    metrics.jsonl holds only what the same run gives again to the last bit; what depends on the
    machine's mood (seconds, memory) is in timing.jsonl.
    """

    def __init__(self, path: Path, world: World, *, resume: bool, overwrite: bool = False) -> None:
        self.path, self.world, self.resume, self.overwrite = path, world, resume, overwrite
        self.checkpoints = path / "checkpoints"
        self.seconds = 0.0  # spent in earlier sittings

    def __enter__(self) -> Self:
        self.started = self.last_save = time.monotonic()
        if self.world.is_main:
            with explained(f"{self.path} cannot be written to"):
                make_folder(self.checkpoints)
            self.lock = RunLock(self.path)
            self.lock.__enter__()
            self.metrics = MetricsLog(self.path / "metrics.jsonl")
            self.timing = MetricsLog(self.path / "timing.jsonl")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.world.is_main:
            self.metrics.close()
            self.timing.close()
            self.lock.__exit__(kind, error, at)

    def elapsed(self) -> float:
        """Seconds of training over all sittings of a run's folder."""
        return self.seconds + time.monotonic() - self.started

    def begin(self, training: Training, settings: Any, about: Mapping[str, Any]) -> dict[str, Any]:
        """Open a run's folder: start at step one, or at its newest intact checkpoint. Returns the caller's values.

        `self.generation` is the checkpoint the run goes on from, if any.
        """
        if self.overwrite and not self.resume:
            self._start_over()
        newest = self.generation = newest_generation(self.checkpoints)
        self.world.check_same({"checkpoint": newest.step if newest else None, **about})
        if newest is not None and not self.resume:
            raise UserError(
                f"{self.path} holds a run saved at step {newest.step}. "
                "Continue it with --resume, or choose another --out."
            )
        replaces = self.overwrite or (self.resume and self._was_replacing(settings))
        if newest is None and not replaces and (self.path / "config.json").is_file():
            other = ", or replace it with --overwrite" if hasattr(settings, "overwrite") else ""
            raise UserError(f"{self.path} holds a finished model. Choose another --out{other}.")
        if newest is None:
            if self.resume and self.world.is_main:
                note(f"{self.path} holds no checkpoint yet: starting from the first step.")
            if self.world.is_main:
                self.metrics.truncate(0)
                self.timing.truncate(0)
                begun = to_plain(settings) | ({"overwrite": True} if replaces else {})  # for another --resume
                atomic_write(self.path / "run.toml", to_toml(begun))
            return {}
        for key, value in about.items():
            if key in newest.about and newest.about[key] != value:
                raise UserError(
                    f"{self.path}: not the same {key} as when the run was saved. Continue with the same, "
                    "or start a new run in another --out."
                )
        self._same(settings)
        training.load(newest.tensors, newest.values["training"])
        self.seconds = float(newest.values["seconds"])
        if self.world.is_main:
            self.metrics.truncate(int(newest.values["metrics"]))
            note(f"Resuming {self.path} after step {training.done} of {training.steps}.")
        return dict(newest.values["own"])

    def _start_over(self) -> None:
        """Remove the old result before a new run replaces a folder's: it marks a finished run."""
        if self.world.is_main and (result := self.path / "result.json").is_file():
            with explained(f"{self.path} cannot be written to"):
                calls.unlink(result)
                sync_folder(self.path)
        self.forget()

    def _was_replacing(self, settings: Any) -> bool:
        """Whether a folder's run was started with --overwrite and has no result yet: the model there is the old one."""
        path = self.path / "run.toml"
        if not hasattr(settings, "overwrite") or not path.is_file() or (self.path / "result.json").exists():
            return False
        return read_toml(path).get("overwrite") is True

    def _same(self, settings: Any) -> None:
        """Refuse to resume a run with settings other than those it was started with, unless that is allowed."""
        path, changed = self.path / "run.toml", changed_settings(self.path, settings, FREE)
        if changed and not getattr(settings, "allow_changed_settings", True):
            raise UserError(
                f"{self.path}: the run was started with different settings: {', '.join(changed)}. "
                "Resume with the same settings, or pass --allow-changed-settings to continue with the new ones."
            )
        if self.world.is_main:
            if changed:
                note(f"From here on, settings differ from those the run was started with: {', '.join(changed)}.")
            atomic_write(path, to_toml(to_plain(settings)))

    def forget(self) -> None:
        """Leave no checkpoint in a run's folder: the run is finished, or starts over."""
        if self.world.is_main:
            discard_all(self.checkpoints)
        self.world.wait()

    def save(
        self,
        training: Training,
        about: Mapping[str, Any],
        own: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Save a generation in a run's folder with the caller's values and tensors (rank 0; the others wait)."""
        files = {**training.tensors(), **(tensors or {})}
        if self.world.is_main:
            values = {
                "training": training.state(), "seconds": self.elapsed(), "metrics": self.metrics.position(),
                "own": dict(own or {}),
            }  # fmt: skip
            save_generation(self.checkpoints, training.done, files, values, about=about)
        self.world.wait()
        self.last_save = time.monotonic()


class _NoLog:
    """A log nobody keeps."""

    def write(self, row: dict[str, Any]) -> None:
        """Forget the row: a run in memory has no folder."""


class MemoryFolder:
    """The folder of a run that is too short to save: it has a clock, and no files."""

    path = Path()
    generation = None

    def __init__(self) -> None:
        self.started = self.last_save = time.monotonic()
        self.metrics = self.timing = _NoLog()

    def elapsed(self) -> float:
        """Seconds since the folder of a run in memory was made."""
        return time.monotonic() - self.started

    def begin(self, training: Training, settings: Any, about: Mapping[str, Any]) -> dict[str, Any]:
        """The folder of a run in memory always begins at the first step."""
        return {}

    def save(
        self,
        training: Training,
        about: Mapping[str, Any],
        own: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        """The folder of a run in memory saves nothing."""


def changed_settings(folder: Path, settings: Any, free: Collection[str]) -> list[str]:
    """The settings that differ from those of the folder's run.toml ("lr = 0.001 (was 0.003)"), except the free ones."""
    path = folder / "run.toml"
    before = _flat(current_names(type(settings), read_toml(path))) if path.is_file() else {}
    after = _flat(tomllib.loads(to_toml(to_plain(settings))))
    both = sorted((before.keys() & after.keys()) - set(free))  # a setting that came with a later version is no change
    return [f"{key} = {after[key]!r} (was {before[key]!r})" for key in both if before[key] != after[key]]


def _flat(table: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """A run's settings with sections as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{at}{key}.") if isinstance(value, dict) else {at + key: value}
    return flat
