"""One small file per task; `TASKS` lists them where the command line reads their names without torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError, suggest
from bertkit.settings.finetune import TASKS

if TYPE_CHECKING:
    from bertkit.tasks.base import Task


def task_class(name: str) -> type[Task]:
    """The class of a task by its name; an unknown name is refused with a suggestion."""
    if name not in TASKS:
        raise UserError(f"There is no task '{name}'. {suggest(name, list(TASKS))}")
    module, kind = TASKS[name]
    task: type[Task] = getattr(import_module(module), kind)
    return task


def task_classes() -> dict[str, type[Task]]:
    """Name → class of every task."""
    return {name: task_class(name) for name in TASKS}


def make(name: str, **values: Any) -> Task:
    """A task by name."""
    return task_class(name)(**values)


__all__ = ["TASKS", "make", "task_class", "task_classes"]
