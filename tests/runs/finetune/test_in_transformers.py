"""A fine-tuned folder gives the same scores in transformers' pipelines as in bertkit."""

from __future__ import annotations

import json
import shutil

import pytest
import transformers as hf

import bertkit
from bertkit.files.manifest import accept
from tests.support import toy

TEXT = "the winner of the prize with anna in new london"


INPUTS = {"classify": TEXT, "pair": ("the old market in winter", "a train to paris")}


@pytest.fixture(scope="module")
def over_confident(runs) -> dict:
    """Models of rows of which a quarter has the wrong label: they learn them by heart, and calibration has to help."""
    made = {}
    for task, make, names in (("classify", toy.messages, ("ham", "spam")), ("pair", toy.pairs, ("same", "different"))):
        wrong = dict(zip(names, names[::-1]))
        files = {}
        for role, rows in (("train", make(60, 0)), ("dev", make(80, 1))):
            rows = [row | {"label": wrong[row["label"]]} if n % 4 == 3 else row for n, row in enumerate(rows)]
            files[role] = toy.write(runs.folder / f"unsure-{task}-{role}.csv", rows)
        made[task] = runs.tune(task, f"unsure-{task}", **files, steps=150)
        assert made[task].result["calibration"]["temperature"] > 1.2, "else the test shows nothing"
    return made


def scores_there(folder, text, **pair) -> dict[str, float]:
    pipeline = hf.pipeline("text-classification", model=str(folder), top_k=None)
    return {row["label"]: row["score"] for row in pipeline({"text": text, **pair})}


def scores_here(folder, given) -> dict[str, float]:
    return bertkit.load(str(folder), precision="fp32").predict([given])[0]["scores"]


@pytest.mark.parametrize("task", ["classify", "pair"])
def test_a_fine_tuned_folder_gives_the_same_scores_in_transformers(task, over_confident, runs):
    out = runs.folder / f"unsure-{task}"
    given = INPUTS[task]
    there = scores_there(out, given) if task == "classify" else scores_there(out, given[0], text_pair=given[1])
    assert there == pytest.approx(scores_here(out, given), abs=1e-5)
    assert "temperature" not in over_confident[task].task.options, "it is in the weights"


def test_a_tagger_gives_the_same_tags_and_scores_in_transformers(runs):
    runs("tag")
    out = runs.folder / "run-tag"
    said = bertkit.load(str(out), precision="fp32").predict([TEXT])[0]
    pipeline = hf.pipeline("token-classification", model=str(out), aggregation_strategy="first")
    theirs = {(row["entity_group"], row["start"], row["end"]): row["score"] for row in pipeline(TEXT)}
    ours = {(row["label"], row["start"], row["end"]): row["score"] for row in said["entities"]}
    assert theirs.keys() == ours.keys() and len(ours) == 2
    assert list(theirs.values()) == pytest.approx(list(ours.values()), abs=1e-3), "arithmetic and geometric mean"


def test_a_folder_with_its_temperature_beside_the_weights_still_answers_with_it(over_confident, runs, tmp_path):
    old = shutil.copytree(runs.folder / "unsure-pair", tmp_path / "old")
    about = json.loads((old / "bertkit.json").read_text("utf-8"))
    about["options"]["temperature"] = 4.0
    (old / "bertkit.json").write_text(json.dumps(about), "utf-8")
    accept(old)
    new, cooler = (scores_here(folder, INPUTS["pair"])["same"] for folder in (runs.folder / "unsure-pair", old))
    odds = new / (1 - new)
    assert cooler == pytest.approx(odds**0.25 / (1 + odds**0.25), abs=1e-5)
