"""How well a vocabulary fits the texts: which embedded model to start from, and a note on unknown pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertkit.checkpoint.locate import STARTING, embedded, locate
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.notify import note
from bertkit.text.chinese_forms import simplified, simplifies
from bertkit.text.coverage import report
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertkit.tasks.base import Task

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
    tokenizer = Tokenizer.load(locate(name))
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
        note(
            f"{share:.1%} of the pieces are unknown to {name}'s vocabulary{which}. {_remedy(tokenizer, name, examples)}"
        )
    return share


def _remedy(tokenizer: Tokenizer, name: str, examples: Sequence[str]) -> str:
    """What to advise where a model's vocabulary lacks pieces: simplified forms, another model, or pretraining."""
    now = report(tokenizer, examples).unknown_rate
    can_simplify = tokenizer.kind == "wordpiece" and not simplifies(tokenizer.backend)
    if can_simplify and report(simplified(tokenizer), examples).unknown_rate <= now / 2:
        return (
            "Let it read traditional and full-width forms as simplified ones: "
            f"`bertkit convert {name} NEW --simplify`, and use NEW."
        )
    others = {other: Tokenizer.load(locate(other)) for other in STARTING}
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
