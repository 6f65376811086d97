"""Every sample file of docs/tasks is read, learned from and answered, as its page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bertkit.commands import predict
from bertkit.runs.finetune.split import held_out
from bertkit.settings.finetune import TASKS, FinetuneSettings
from bertkit.tasks import make
from tests.support import toy

PAGES = Path(__file__).resolve().parents[2] / "docs" / "tasks"
SAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "classify.csv": ("classify", {}),
    "multi-label.csv": ("classify", {"multi_label": True}),
    "pair.csv": ("pair", {}),
    "claims.csv": ("pair", {}),
    "relations.csv": ("classify", {}),
    "roles.conll": ("tag", {}),
    "regress.csv": ("regress", {}),
    "tag.conll": ("tag", {}),
    "tag-spans.jsonl": ("tag", {}),
    "answer.jsonl": ("answer", {}),
    "choose.jsonl": ("choose", {}),
    "embed.csv": ("embed", {}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> toy.Runs:
    return toy.Runs(tmp_path_factory.mktemp("samples"))


def test_every_task_has_a_page_and_every_sample_is_on_one() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*TASKS, "README"}
    pages = [page.read_text("utf-8") for page in PAGES.glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"\(samples/([^)]+)\)", page)}
    assert shown == set(SAMPLES) == {path.name for path in (PAGES / "samples").iterdir()}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_command_of_a_page_finds_rows_to_hold_out(name: str) -> None:
    task = make(SAMPLES[name][0], options=dict(SAMPLES[name][1]))
    rows = task.read(PAGES / "samples" / name, predict._reading(predict.Settings(model="", file="")))
    kept, out = held_out(rows, FinetuneSettings.held_out, 0, task)
    assert out and len(kept) + len(out) == len(rows)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_learned_from_and_answered(runs: toy.Runs, name: str) -> None:
    task, settings = SAMPLES[name]
    file = PAGES / "samples" / name
    run = runs.tune(task, name, train=file, held_out=0.25, **toy.SMALL | {"steps": 2, "batch": 4} | settings)
    out = runs.folder / f"{name}.csv"
    if task == "embed":
        return
    found = predict.run(predict.Settings(model=str(runs.folder / name), file=str(file), out=out, precision="fp32"))
    rows = run.task.read(file, predict._reading(predict.Settings(model="", file="")))
    assert found["rows"] == len(rows) and out.read_text("utf-8").count("\n") > len(rows)
