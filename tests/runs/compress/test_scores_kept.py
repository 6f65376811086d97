"""A changed model does not boast with the original's scores; it keeps what it needs to answer, and its own scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bertkit.checkpoint.folder import read_folder, write_folder
from bertkit.commands import convert
from bertkit.commands.compress import prune, quantize
from bertkit.config import build
from bertkit.inference.predictor import Predictor
from bertkit.settings.compress import PruneSettings, QuantizeSettings
from tests.support import toy

ABOUT = {
    "task": "classify", "labels": ["ham", "spam"], "windows": {"limit": 64, "on_long": "window", "overlap": 8},
    "options": {"temperature": 2.5, "abstain": 0.8, "class_weights": {"ham": 2.0}},
    "calibration": {"temperature": 2.5, "abstain": 0.8}, "metrics": {"accuracy": 0.98765}, "scored_on": "test",
    "facts": {"base": "en", "accuracy": "0.9877 [0.9001, 0.9999]"},
}  # fmt: skip
COMMON = {"threads": 1, "precision": "fp32"}


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    toy.make_model(tmp_path / "start")
    torch.manual_seed(1)
    folder = read_folder(tmp_path / "start", heads={"text": 2}, labels=("ham", "spam"))
    folder.model.untrained = ()
    folder.about = ABOUT
    write_folder(tmp_path / "tuned", folder)
    return tmp_path / "tuned"


def smaller(tuned: Path, out: Path, **how) -> None:
    verb, kind = (prune, PruneSettings) if "inner" in how else (quantize, QuantizeSettings)
    verb.run(build(kind, {"model": str(tuned), "out": out} | COMMON | how))


def mixed(tuned: Path, out: Path) -> None:
    convert.run(convert.Settings(source=str(tuned), target=out, mix=str(tuned)))


def said(out: Path) -> tuple[dict, str]:
    return json.loads((out / "bertkit.json").read_text("utf-8")), (out / "README.md").read_text("utf-8")


CHANGES = {  # how → whether the outputs are so far from the original's that what was fitted to them goes too
    "pruned": (lambda tuned, out: smaller(tuned, out, inner=0.5), True),
    "mixed": (mixed, True),
    "int8": (lambda tuned, out: smaller(tuned, out, to="int8"), False),
    "bf16": (lambda tuned, out: smaller(tuned, out, to="bf16"), False),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_model_has_no_score_of_the_originals(how: str, tuned: Path, tmp_path: Path) -> None:
    change, far = CHANGES[how]
    change(tuned, tmp_path / "out")
    about, card = said(tmp_path / "out")
    assert not {"metrics", "scored_on"} & set(about) and "accuracy" not in about["facts"]
    assert "0.98" not in card and "0.9001" not in card and "do not apply to it and are left out" in card
    assert ("calibration" in about) == (not far)
    fitted = {} if far else {"temperature": 2.5, "abstain": 0.8}
    assert about["options"] == {"class_weights": {"ham": 2.0}} | fitted
    assert ("uncalibrated" in card) == far and ("of the original are kept" in card) == (not far)
    assert (about["labels"], about["windows"], about["facts"]["base"]) == (ABOUT["labels"], ABOUT["windows"], "en")
    assert Predictor.load(tmp_path / "out", "fp32").predict(["the prize"])[0]["label"] in ("ham", "spam")


@pytest.mark.parametrize("how", [{"inner": 0.5}, {"to": "int8"}], ids=["pruned", "int8"])
def test_scores_that_were_measured_are_its_own(how: dict, tuned: Path, tmp_path: Path) -> None:
    rows = toy.write(tmp_path / "dev.csv", toy.messages(20, seed=1))
    smaller(tuned, tmp_path / "out", eval=rows, **how)
    about, card = said(tmp_path / "out")
    own = Predictor.load(tmp_path / "out", "fp32").evaluate(rows)
    assert about["metrics"] == pytest.approx(own) and about["scored_on"] == "dev.csv"
    assert "Measured on 20 rows of dev.csv" in card and f"| accuracy | {own['accuracy']:.4f} |" in card


def test_a_plain_copy_keeps_all_that_is_said(tuned: Path, tmp_path: Path) -> None:
    convert.run(convert.Settings(source=str(tuned), target=tmp_path / "out"))
    assert said(tmp_path / "out")[0] == ABOUT


def test_a_copy_in_half_precision_says_that_its_scores_were_measured_before(tuned: Path, tmp_path: Path) -> None:
    convert.run(convert.Settings(source=str(tuned), target=tmp_path / "out", dtype="bf16"))
    about, card = said(tmp_path / "out")
    assert about | {"notes": []} == ABOUT | {"notes": []} and len(about["notes"]) == 1
    assert "rounded to bf16; the scores on this card were measured before" in card and "0.9877" in card
