"""transformers.js for tests: installed once with npm into a cache of its own, where npm is to be had."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "@huggingface/transformers@4.3.1"

RUN = """
import { pathToFileURL } from "node:url";
import { existsSync, readFileSync } from "node:fs";
const [library, folder, task] = process.argv.slice(2);
const { pipeline, env } = await import(pathToFileURL(library).href);
env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = "";
const { texts, options, dtype } = JSON.parse(readFileSync(0, "utf-8"));
const subfolder = existsSync(folder + "/onnx") ? "onnx" : "";  // exports used to have their file beside config.json
const pipe = await pipeline(task, folder, { dtype, subfolder });
const answers = [];
for (const text of texts) {
  const answer = await pipe(text, options);
  answers.push(answer.tolist ? answer.tolist() : answer);
}
process.stdout.write("\\n" + JSON.stringify(answers));
"""


@functools.cache
def installed() -> Path:
    """The folder of node_modules. Skips where node, npm or the package are not to be had."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: it runs transformers.js")
    place = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bertkit-tests" / "transformers.js"
    library = place / "node_modules/@huggingface/transformers/package.json"
    wanted = PACKAGE.rpartition("@")[2]
    if not library.is_file() or json.loads(library.read_text("utf-8"))["version"] != wanted:
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"private": true}', "utf-8")
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", PACKAGE]
        try:
            subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=600)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as problem:
            pytest.skip(f"npm could not install {PACKAGE}: {type(problem).__name__}")
    return place / "node_modules"


def run(folder: Path, task: str, texts: list[str], dtype: str = "fp32", **options: Any) -> list[Any]:
    """The answers of a transformers.js pipeline for an exported folder, text by text."""
    library = installed() / "@huggingface/transformers/dist/transformers.node.mjs"
    given = json.dumps({"texts": texts, "options": options, "dtype": dtype})
    script = folder.parent / "run.mjs"
    script.write_text(RUN, "utf-8")
    command = ["node", str(script), str(library), str(folder), task]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[Any] = json.loads(done.stdout.rpartition("\n")[2])
    return answers
