"""Several labels per text: cells as people write them, and a threshold for every label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

import bertkit
from bertkit.errors import UserError
from bertkit.metrics.calibration import label_thresholds
from bertkit.tasks import make
from bertkit.tasks.base import Reading
from tests.support import toy


def labels(folder: Path, name: str, content: str, **reading: Any) -> list[Any]:
    (folder / name).write_text(content, "utf-8")
    task = make("classify", options={"multi_label": True})
    return [row.label for row in task.read(folder / name, Reading(**reading))]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("text;label\na;b\n", None),
        ('text,label\na,"pos,phone"\nb,pos\nc,\n', "','"),
        ("text,label\na,pos;phone\nb,pos\nc,\n", "';'"),
        ("text,label\na,pos | phone\nb,pos\nc,\n", "'|'"),
        ("text,label\na,pos；phone\nb,pos\nc,\n", "'；'"),
        ("text,label\na,pos，phone\nb,pos\nc,\n", "'，'"),
        ("text,label\na,pos、phone\nb,pos\nc,\n", "'、'"),
        ('text,label\na,"[""pos"", ""phone""]"\nb,"[""pos""]"\nc,[]\n', "lists"),
        ("text,label\na,\"['pos', 'phone']\"\nb,['pos']\nc,[]\n", "lists"),
    ],
)
def test_labels_in_one_cell_are_told_apart_as_people_write_them(tmp_path, notes, content, told) -> None:
    if told is None:
        assert labels(tmp_path, "a.csv", content) == [("b",)]
        return
    assert labels(tmp_path, "a.csv", content) == [("pos", "phone"), ("pos",), ()]
    assert sum("label" in note and told in note for note in notes) == 1


def test_lists_of_json_and_a_separator_of_ones_own(tmp_path: Path) -> None:
    assert labels(tmp_path, "a.jsonl", '{"text": "a", "label": ["x, y", "z"]}\n') == [("x, y", "z")]
    rows = "text,label\na,x;y/z\n"
    assert labels(tmp_path, "b.csv", rows, label_separator="/") == [("x;y", "z")]
    (tmp_path / "c.csv").write_text(rows, "utf-8")
    with pytest.raises(UserError, match="Pass --multi-label too"):
        make("classify").read(tmp_path / "c.csv", Reading(label_separator="/"))


def test_a_label_of_the_model_with_a_comma_in_it_is_one_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\na,"food, drink"\nb,x\n', "utf-8")
    task = make("classify", labels=("food, drink", "x"), options={"multi_label": True})
    assert [row.label for row in task.read(tmp_path / "a.csv", Reading())] == [("food, drink",), ("x",)]


def test_no_other_threshold_of_a_label_has_a_higher_f1() -> None:
    rng = np.random.default_rng(0)
    gold = rng.random((300, 3)) < (0.1, 0.5, 0.8)
    scores = np.clip(gold * 0.2 + rng.random((300, 3)) * 0.6, 0, 1)
    for n, threshold in enumerate(label_thresholds(scores, gold)):
        own = f1_score(gold[:, n], scores[:, n] >= threshold)
        assert own == pytest.approx(
            max(f1_score(gold[:, n], scores[:, n] >= t) for t in np.linspace(0, 1, 501)), abs=0.01
        )


def test_rare_labels_share_a_threshold_and_few_rows_keep_one_half() -> None:
    gold = np.zeros((100, 2), bool)
    gold[:40, 0] = gold[:3, 1] = True
    scores = np.where(gold, 0.3, 0.1)
    scores[3:9, 1] = 0.9  # a threshold of its own would follow three rows
    shared = label_thresholds(scores, gold)
    assert shared[0] == shared[1] == pytest.approx(0.2)
    assert label_thresholds(scores[:4], gold[:4]) == [0.5, 0.5]


def test_thresholds_are_kept_used_shown_and_exported(tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = toy.Runs(tmp_path_factory.mktemp("many"))
    files = toy.files(runs.folder, "multi-label", 60)
    small = toy.SMALL | {"steps": 3}  # hardly trained: no score is near one half
    run = runs.tune("classify", "few", multi_label=True, **files, **small)
    chosen = run.result["thresholds"]
    folder = runs.folder / "few"
    assert set(chosen) == {"ham", "spam"} and chosen != {"ham": 0.5, "spam": 0.5}
    assert json.loads((folder / "bertkit.json").read_text("utf-8"))["calibration"]["thresholds"] == chosen
    assert json.loads((folder / "config.json").read_text("utf-8"))["thresholds"] == chosen
    assert "threshold" in (folder / "report.html").read_text("utf-8")
    rows = toy.many_labels(12, 5)
    for answer in run.predict([row["text"] for row in rows]):
        assert answer["labels"] == [name for name, score in answer["scores"].items() if score >= chosen[name]]
    assert run.evaluate(files["dev"])["micro_f1"] == pytest.approx(run.result["metrics"]["micro_f1"])
    bertkit.export(model=str(folder), format="hf", out=runs.folder / "hf")
    texts = [row["text"] for row in rows]
    exported = bertkit.load(runs.folder / "hf", precision="fp32").predict(texts)
    assert [a["labels"] for a in exported] == [a["labels"] for a in run.predict(texts)]
