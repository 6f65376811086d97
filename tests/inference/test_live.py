"""Models that learn in front of the reader learn indeed, and stop in time."""

from __future__ import annotations

import pytest

import bertkit
from bertkit.errors import UserError
from bertkit.inference.live import finetune_live, pretrain_live

TEXT = "\n".join(["the cat drinks milk and sleeps", "the dog drinks water and runs", "the cat likes the old mat"] * 4)


def test_a_tiny_bert_learns_what_is_drunk_in_a_text() -> None:
    first, *events, last = pretrain_live(TEXT, "the cat drinks [MASK] and sleeps", steps=120, seconds=40, every=40)
    assert first["start"]["rows"] == 12 and last == {"end": "steps"}
    assert [event["step"] for event in events] == [0, 40, 80, 120]
    assert events[-1]["loss"] < 0.6 * events[1]["loss"]
    assert {guess["token"] for guess in events[-1]["guesses"][:2]} == {"milk", "water"}


def test_a_few_rows_are_learnt_and_a_new_text_is_labelled() -> None:
    rows = [("I loved this film", "good"), ("great food", "good"), ("a wonderful day", "good"),
            ("I hated this film", "bad"), ("awful food", "bad"), ("a terrible day", "bad")]  # fmt: skip
    first, *events, last = finetune_live(bertkit.load("en"), rows, "the food was great", steps=12, every=6)
    assert first["start"]["labels"] == ["bad", "good"] and last == {"end": "steps"}
    assert events[-1]["right"] == 1 and sum(events[-1]["probe"].values()) == pytest.approx(1, abs=1e-5)
    assert events[-1]["loss"] < events[1]["loss"]


def test_time_ends_what_steps_do_not() -> None:
    *_, last = pretrain_live(TEXT, "the [MASK]", steps=600, seconds=0.01)
    assert last == {"end": "seconds"}


@pytest.mark.parametrize(
    ("text", "gap", "steps", "said"),
    [
        ("short", "a [MASK]", 10, "40 to 20000"),
        (TEXT, "no gap", 10, "needs a .MASK."),
        (TEXT, "[MASK]", 9999, "at most"),
    ],
)
def test_what_cannot_be_learnt_is_refused(text: str, gap: str, steps: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        next(pretrain_live(text, gap, steps=steps))
    with pytest.raises(UserError, match="2 to 20 labels"):
        next(finetune_live(bertkit.load("en"), [("a", "x")] * 5, ""))
