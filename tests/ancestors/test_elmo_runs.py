"""ELMo learns from text, and its run resumes, ends and refuses as every run does."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertkit.ancestors.elmo.model import Elmo
from bertkit.ancestors.elmo.train import train
from bertkit.errors import Stopped, UserError
from bertkit.settings.ancestors import ElmoNumbers, ElmoSettings
from bertkit.settings.training import LoopSettings

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
SMALL = ElmoNumbers(width=16, cells=12, character_width=5, filters=((1, 4), (2, 6), (4, 7)))


def language(path: Path, sentences: int = 400) -> Path:
    """Every sentence is a walk in a ring of six words: the next word follows from the last, and from no count."""
    chance = np.random.default_rng(0)
    ring = ["one", "two", "three", "four", "five", "six"]
    lines = []
    for _ in range(sentences):
        at, way = int(chance.integers(6)), int(chance.choice([1, 5]))
        lines.append(" ".join(ring[(at + way * n) % 6] for n in range(int(chance.integers(4, 9)))))
    path.write_text("\n".join(lines) + "\n")
    return path


def plan(folder: Path, **more) -> ElmoSettings:
    return ElmoSettings(
        texts=(language(folder / "ring.txt"),), batch_words=256, length=8, held_out=0.1, threads=1, device="cpu",
        model=replace(SMALL, cells=24), loop=LoopSettings(lr=2e-2), **{"out": folder / "run", "steps": 150, **more},
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("elmo")
    return folder, train(plan(folder))


def test_a_synthetic_language_is_learnt_better_than_by_counting_words(trained) -> None:
    folder, result = trained
    text = (folder / "ring.txt").read_text()
    counts = Counter(text.split()) + Counter({"\n": text.count("\n")})
    total = sum(counts.values())
    unigram = math.exp(-sum(n / total * math.log(n / total) for n in counts.values()))
    assert result["perplexity"] < unigram / 2 and result["held_out_back"] < math.log(unigram) - 0.7
    elmo = Elmo.load(folder / "run")
    good, bad = elmo.score(["one two three four five", "one three four two five"])
    assert good > bad + 2


def test_the_run_leaves_a_folder_that_opens(trained) -> None:
    folder, result = trained
    described = json.loads((folder / "run/bertkit.json").read_text())
    assert described["ancestor"] == "elmo" and described["numbers"]["width"] == 16
    assert described["result"]["steps"] == 150 and set(described["lexicon"]["words"]) == {
        "one", "two", "three", "four", "five", "six"
    }  # fmt: skip
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert rows[0]["step"] == 1 and {"loss", "ahead_loss", "back_loss"} <= set(rows[0])
    assert sum("eval" in row for row in rows) == 10
    assert Elmo.load(folder / "run").parameters == result["parameters"]


def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path: Path, monkeypatch) -> None:
    train(plan(tmp_path, steps=24, out=tmp_path / "whole"))
    from bertkit.training import run_folder

    class Soon(run_folder.Signals):
        """Asks for a stop as a signal would, after some steps."""

        seen = 0

        @property
        def asked(self) -> int:
            self.seen += 1
            return 15 if self.seen > 11 else 0

        @asked.setter
        def asked(self, value: int) -> None:
            pass

    with monkeypatch.context() as patch:
        patch.setattr("bertkit.ancestors.elmo.train.Signals", Soon)
        with pytest.raises(Stopped, match=r"of 24 in .*--resume"):
            train(plan(tmp_path, steps=24, out=tmp_path / "halves"))
    assert len(list((tmp_path / "halves/checkpoints").iterdir())) == 1
    with pytest.raises(UserError, match="--resume"):
        train(plan(tmp_path, steps=24, out=tmp_path / "halves"))
    train(plan(tmp_path, steps=24, out=tmp_path / "halves", resume=True))
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "halves" / name).read_bytes(), name


def test_another_text_is_not_resumed(tmp_path: Path) -> None:
    train(plan(tmp_path, steps=2))
    other = replace(plan(tmp_path, steps=4, resume=True), vocabulary=3)
    with pytest.raises(UserError, match="not the same lexicon"):
        train(other)


def test_a_time_budget_ends_by_itself(tmp_path: Path) -> None:
    result = train(plan(tmp_path, steps=0, minutes=0.02))
    assert result["steps"] > 3 and (tmp_path / "run/model.safetensors").is_file()


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"steps": 0}, "No training budget"), ({"length": 1}, "length is 1"), ({"precision": "bf16"}, "fp32 only"),
        ({"held_out": 1.0}, "held_out is 1.0"), ({"vocabulary": 1}, "at least two are needed"),
    ],
)  # fmt: skip
def test_wrong_settings_are_reported(wrong: dict, told: str, tmp_path: Path) -> None:
    given_settings = {"texts": (language(tmp_path / "t.txt"),), "out": tmp_path / "r", "steps": 1, **wrong}
    with pytest.raises(UserError, match=told):
        train(ElmoSettings(**given_settings))
