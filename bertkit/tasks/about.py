"""What a folder's bertkit.json says of its task, checked: anyone may have edited it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertkit.errors import DamagedFile
from bertkit.model.heads import Model

FIX = "Copy the folder again, or correct the file."
KINDS: dict[str, tuple[type, str]] = {  # key → what its value must be
    "task": (str, "the name of a task"),
    "labels": (list, "a list of names"),
    "options": (dict, "a table"),
    "windows": (dict, "a table"),
    "merge": (str, "max or mean"),
}


def checked(about: dict[str, Any], where: str) -> dict[str, Any]:
    """The same, if every value is of its kind. where: names the file."""
    for key, (kind, wanted) in KINDS.items():
        if key in about and not isinstance(about[key], kind):
            raise DamagedFile(f"{where}: '{key}' is {about[key]!r:.60}; it must be {wanted}. {FIX}")
    for label in about.get("labels", []):
        if not isinstance(label, str):
            raise DamagedFile(f"{where}: 'labels' holds {label!r:.60}, which is no name. {FIX}")
    for key in {"limit", "overlap"} & set(about.get("windows", {})):
        if not isinstance(about["windows"][key], int):
            raise DamagedFile(f"{where}: '{key}' of 'windows' is {about['windows'][key]!r:.60}, no whole number. {FIX}")
    return about


def check_labels(labels: Sequence[str], outputs: int, where: str) -> None:
    """Refuse labels that are not as many as the head gives numbers."""
    if len(labels) != outputs:
        raise DamagedFile(f"{where}: there are {len(labels)} labels, and the weights give {outputs} numbers. {FIX}")


def outputs_of_heads(model: Model) -> dict[str, int]:
    """Head → how many numbers it gives; without the words'."""
    maps = {kind: model.head(kind).out for kind in model.heads}
    return {kind: out.weight.shape[0] for kind, out in maps.items() if out is not None}
