"""What users see stays as it is while the code below it moves: help, metrics, pages and the server's description."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertkit
from bertkit import config
from bertkit.ancestors.language_model.train import learn
from bertkit.commands import COMMANDS
from bertkit.commands import pretrain as pretrain_command
from bertkit.report.comparison import comparison_report
from bertkit.report.explain import explain_report
from bertkit.report.finetuning import finetuning_report
from bertkit.report.pretraining import pretraining_report
from bertkit.runs.pretrain.run import pretrain
from bertkit.settings.ancestors import LearnSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.training import LoopSettings
from bertkit.training.metrics_log import read_metrics
from tests.support import synthetic, toy
from tests.support.made_up_results import comparison_result, finetuning_result, pretraining_run
from tests.support.snapshots import same_rows, same_text

HELP = """
import contextlib, io, json, sys
from bertkit import cli
shown = {}
for words in json.loads(sys.argv[1]):
    sys.argv = ["bertkit", *words, "--help"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        cli.main()
    shown[" ".join(words)] = out.getvalue()
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    words = json.dumps([[], *([verb] for verb in COMMANDS)])
    plain = os.environ | {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", HELP, words], env=plain, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("verb", ["", *COMMANDS])
def test_the_help_of_every_command_is_as_it_was(verb: str, helps: dict[str, str]) -> None:
    same_text(f"help-{verb or 'bertkit'}.txt", helps[verb])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_store(tmp_path_factory.mktemp("store")).folder


def test_a_short_pretraining_run_has_the_losses_it_had(store: Path, tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "preset": "bert-tiny", "data": store, "out": tmp_path / "run", "steps": 6, "batch_tokens": 256,
        "lengths": [[0.5, 32], [0.5, 48]], "eval_tokens": 512, "held_out": 0.05, "log_every": 1, "eval_every": 3,
        "threads": 1, "micro_tokens": 128, "precision": "fp32",
        "model": {"width": 32, "depth": 2, "heads": 2, "inner": 48, "max_tokens": 64, "positions": 66},
    }  # fmt: skip
    table = config.merged(config.preset("bert-tiny"), small)
    pretrain(config.build(PretrainSettings, pretrain_command.resolve(table)))
    same_rows("metrics-pretrain.jsonl", read_metrics(tmp_path / "run" / "metrics.jsonl"))


def test_a_short_fine_tuning_run_has_the_scores_it_had(tmp_path: Path) -> None:
    files = toy.files(tmp_path, "classify", train=64)
    model = toy.make_model(tmp_path / "model")
    bertkit.finetune(
        "classify", model=str(model), out=tmp_path / "run", **files, **toy.SMALL | {"steps": 12, "evals": 2}
    )
    same_rows("metrics-finetune.jsonl", read_metrics(tmp_path / "run" / "metrics.jsonl"))


def test_a_short_run_of_a_language_model_has_the_losses_it_had(store: Path, tmp_path: Path) -> None:
    learn(
        LearnSettings(
            kind="lstm", data=store, out=tmp_path / "run", width=32, layers=1, steps=6, batch_tokens=256, length=48,
            threads=1, micro_tokens=128, eval_tokens=1024, log_every=1, eval_every=3, held_out=0.1, precision="fp32",
            loop=LoopSettings(lr=1e-2, warmup=0.05),
        )
    )  # fmt: skip
    same_rows("metrics-learn.jsonl", read_metrics(tmp_path / "run" / "metrics.jsonl"))


def looked_at() -> dict[str, Any]:
    """What `inspect` finds out about a text, made up."""
    words = ["[CLS]", "the", "cat", "sat", "<b>", "[SEP]"]
    rng = np.random.default_rng(5)
    maps = rng.random((2, 2, len(words), len(words)))
    tokens = [
        {
            "token": word, "start": 4 * n, "end": 4 * n + 3, "side": 0, "special": word.startswith("["),
            "importance": round(0.1 * n - 0.2, 4), "looked_at": round(1 / (n + 2), 4),
        }
        for n, word in enumerate(words)
    ]  # fmt: skip
    heads = [
        {"layer": n + 1, "head": m + 1, "itself": 0.1, "before": 0.2, "after": 0.3, "special": 0.25, "spread": 3.5}
        for n in range(2)
        for m in range(2)
    ]
    return {
        "text": "the cat sat <b>", "text_b": None, "tokens": tokens, "heads": heads,
        "attention": (maps / maps.sum(-1, keepdims=True)).astype(np.float32),
        "said": {"label": "animal", "score": 0.75, "baseline": 0.25},
    }  # fmt: skip


PAGES = {
    "pretraining": lambda lang: pretraining_report(*pretraining_run(), lang=lang),
    "finetuning": lambda lang: finetuning_report(finetuning_result(), lang=lang),
    "comparison": lambda lang: comparison_report(comparison_result(), lang=lang),
    "inspect": lambda lang: explain_report(looked_at(), model="en", lang=lang),
}


def unpacked(picture: re.Match[str]) -> str:
    """A picture's pixels as a digest: how well they are squeezed is the zlib's of this machine."""
    data = base64.b64decode(picture[1])
    start = data.index(b"IDAT") + 4
    size = int.from_bytes(data[start - 8 : start - 4], "big")
    pixels = zlib.decompress(data[start : start + size])
    return f"pixels {hashlib.sha256(pixels).hexdigest()[:16]}"


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", list(PAGES))
def test_a_page_of_the_same_result_is_as_it_was(name: str, lang: str) -> None:
    html = re.sub(r"data:image/png;base64,([A-Za-z0-9+/=]+)", unpacked, PAGES[name](lang))
    html = re.sub(r"(<style>).*?(</style>)", r"\1\2", html, flags=re.DOTALL)  # report.css is a file of its own
    same_text(f"report-{name}-{lang}.txt", html)


def test_the_server_describes_its_routes_as_it_did() -> None:
    pytest.importorskip("fastapi", reason="the server's extra is not installed")
    from bertkit.server.app import make_app
    from bertkit.server.service import InferenceService
    from tests.support import small_models

    service = InferenceService(small_models.registry("words"), threads=1)
    described = make_app(service).openapi()
    service.queue.close()
    same_text("openapi.json", json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
