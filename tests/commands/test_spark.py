"""The recipe of docs/many-machines.md, run by Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import bertkit

PAGE = Path(__file__).parents[2] / "docs/many-machines.md"


@pytest.mark.slow
def test_the_spark_recipe_gives_every_row_its_answer(tmp_path, monkeypatch):
    pytest.importorskip("pyspark", reason="needs pyspark (300 MB, and Java): not among bertkit's packages")
    pytest.importorskip("pandas", reason="needs pandas")
    if shutil.which("java") is None:
        pytest.skip("Spark runs on Java, and there is no `java` on this machine's PATH")
    recipe = next(part for part in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S) if "Spark" in part)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "PYSPARK_PYTHON", "python3")  # the recipe names its own
    texts = [f"tea number {n}" for n in range(40)]
    rows = [{"id": n, "text": text} for n, text in enumerate(texts)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    given = {"__name__": "recipe"}
    exec(compile(recipe, str(PAGE), "exec"), given)
    try:
        written = given["spark"].read.parquet("out").collect()
    finally:
        given["spark"].stop()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert sorted(row["id"] for row in written) == list(range(40))
    expected = np.asarray(bertkit.load("en").embed(texts))
    for row in written:
        assert np.array(row["vector"]) == pytest.approx(expected[row["id"]], abs=2e-2)
