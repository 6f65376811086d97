"""A model before and after, side by side."""

from __future__ import annotations

from types import ModuleType

import pytest

from bertkit.commands.compress import export, prune, quantize
from bertkit.config import build
from bertkit.errors import UserError
from tests.support import toy


@pytest.mark.parametrize(
    ("verb", "more"),
    [(quantize, {}), (quantize, {"to": "bf16"}), (prune, {"layers": 1}), (export, {"format": "hf"}), (export, {})],
)
def test_a_wrong_file_to_score_is_reported_before_anything_is_written(verb: ModuleType, more, runs, tmp_path) -> None:
    runs("classify")
    wrong = toy.write(tmp_path / "wrong.jsonl", [{"text": "the prize", "label": "neither"}])
    for file in (wrong, tmp_path / "absent.csv"):
        values = {"model": str(runs.folder / "run-classify"), "out": tmp_path / "out", "threads": 1, "eval": file}
        with pytest.raises(UserError, match=file.name):
            verb.run(build(verb.Settings, values | more))
        assert not (tmp_path / "out").exists()
