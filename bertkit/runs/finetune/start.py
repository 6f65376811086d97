"""Which embedded model to start from, where none was named: the one whose vocabulary reads the texts best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertkit.checkpoint.locate import EMBEDDED, embedded
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.notify import note
from bertkit.tasks.base import Item, Task
from bertkit.text.tokenizer import Tokenizer

AUTO = "auto"
LOOKED_AT = 200  # rows
NO_LIMIT = Windows(1 << 30)


def starting_model(name: str, task: Task, examples: Sequence[Any]) -> str:
    """The name as it is; for "auto" the embedded model that knows most of the first rows, in the fewest pieces."""
    if name != AUTO:
        return name
    if not embedded():
        raise UserError("There is no embedded model to start from. Name one: a folder or a hub name.")
    some = examples[:LOOKED_AT]
    return min(embedded(), key=lambda one: (*_cost(one, task, some), one != "en"))


def tell_unknown(tokenizer: Tokenizer, items: Sequence[Item], model: str) -> None:
    """Say it where a model's vocabulary does not know the text."""
    unknown, pieces = _count(tokenizer, items[:LOOKED_AT])
    if unknown > 0.05 * pieces:
        note(
            f"{unknown / pieces:.0%} of the pieces of the first rows are unknown to {model}'s vocabulary. "
            f"Choose a model of the texts' language (embedded: {', '.join(embedded())})."
        )


def _cost(name: str, task: Task, examples: Sequence[Any]) -> tuple[int, int]:
    tokenizer = Tokenizer.load(EMBEDDED / name)
    return _count(tokenizer, task.encode(examples, tokenizer, NO_LIMIT))


def _count(tokenizer: Tokenizer, items: Sequence[Item]) -> tuple[int, int]:
    """Unknown pieces, and all pieces."""
    rows = [row.ids for item in items for row in item.rows]
    unknown = 0 if tokenizer.unk_id is None else sum(ids.count(tokenizer.unk_id) for ids in rows)
    return unknown, sum(map(len, rows))
