"""One small file a task."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError, suggest

if TYPE_CHECKING:
    from bertkit.tasks.base import Task

TASKS = {  # name → (module, class)
    "classify": ("classify", "Classify"),
    "pair": ("classify", "Pair"),
    "regress": ("regress", "Regress"),
    "tag": ("tag", "Tag"),
    "answer": ("answer", "Answer"),
    "choose": ("choose", "Choose"),
    "embed": ("embed", "Embed"),
}


def make(name: str, **values: Any) -> Task:
    """A task by name."""
    if name not in TASKS:
        raise UserError(f"There is no task '{name}'. {suggest(name, list(TASKS))}")
    module, kind = TASKS[name]
    return getattr(import_module(f"bertkit.tasks.{module}"), kind)(**values)
