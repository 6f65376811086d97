"""Text in, answer out: transformers, with the written folder's own tokenizer, says what bertkit says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf

from bertkit.checkpoint.families import FAMILIES
from bertkit.checkpoint.folder import Folder, read_folder, write_folder
from bertkit.data.batch import pack
from bertkit.model.heads import HEADS
from tests.support import folders

CASES = [  # WordPiece tells segments apart, whether the model does or not
    (family, architecture.name, kind)
    for family, table in FAMILIES.items()
    for architecture in table.architectures.values()
    for kind in ("wordpiece", *(["bytes"] if family in folders.SPECIALS else []))
]
TEXT, SECOND = "the old house in paris", "a cat sat on the mat"
ANSWERS = ("logits", "prediction_logits", "start_logits", "last_hidden_state")  # where a class puts its first answer


def rewritten(place: Path, family: str, name: str) -> Path:
    """A folder of transformers, read and written by bertkit."""
    folders.write(place / "theirs", family, name)
    write_folder(place / "ours", read_folder(place / "theirs"))
    return place / "ours"


def ours(folder: Folder, *texts: str) -> torch.Tensor:
    """The first head's answer, or the token vectors of a bare encoder: (outputs,) or (tokens, outputs)."""
    model, row = folder.model.eval(), folder.tokenizer.encode(*texts)
    encoded = model.encoder(pack([row.ids], [row.segments]))
    kind = next((kind for kind in HEADS if kind in model.heads), "")
    if not kind:
        return encoded.tokens
    said = model.ask(kind, encoded)
    return said[0] if HEADS[kind].looks_at == "pooler" else said


def theirs(path: Path, name: str) -> Callable[..., torch.Tensor]:
    """The same by AutoTokenizer and the class, as anyone asks it."""
    tokenizer, model = hf.AutoTokenizer.from_pretrained(path), folders.reopened(path, name)

    def answer(*texts: str) -> torch.Tensor:
        given = tokenizer(*texts, return_tensors="pt")
        if name.endswith("MultipleChoice"):
            given = {key: value[None] for key, value in given.items()}
        said = model(**given)
        return next(said[key] for key in ANSWERS if key in said)[0]

    return answer


@pytest.mark.parametrize("family, name, kind", CASES)
@torch.no_grad()
def test_a_text_and_a_pair_get_the_same_answers_in_transformers(family, name, kind, tmp_path, monkeypatch):
    if kind == "wordpiece":
        monkeypatch.setattr(folders, "SPECIALS", {})
    path = rewritten(tmp_path, family, name)
    folder, ask = read_folder(path), theirs(path, name)
    for texts in ((TEXT,), (TEXT, SECOND)):
        mine, other = ours(folder, *texts), ask(*texts)
        if name.endswith("QuestionAnswering"):
            mine = mine[:, 0]
        torch.testing.assert_close(mine.reshape(other.shape), other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("said", [{"pad_token_id": None}, {"drop": ("pad_token_id",)}], ids=["null", "left out"])
@torch.no_grad()
def test_a_gpt_without_padding_answers_at_its_last_token_whichever_that_is(said, tmp_path: Path) -> None:
    folders.write(tmp_path / "theirs", "gpt2", "GPT2ForSequenceClassification")
    folders.byte_level([]).save(str(tmp_path / "theirs/tokenizer.json"))
    folders.change(tmp_path / "theirs", "tokenizer_config.json", drop=("unk_token",))
    folders.change(tmp_path / "theirs", **said)
    folder = read_folder(tmp_path / "theirs")
    assert folder.tokenizer.encode("the cat!").ids[-1] == 0 and folder.tokenizer.pad_id is None
    write_folder(tmp_path / "ours", folder)
    assert json.loads((tmp_path / "ours/config.json").read_text("utf-8"))["pad_token_id"] is None
    mine = ours(read_folder(tmp_path / "ours"), "the cat!")
    for place in ("theirs", "ours"):
        other = theirs(tmp_path / place, "GPT2ForSequenceClassification")("the cat!")
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)
