"""Pretraining steps: transformers' BertForPreTraining loop against bertkit, interleaved in one run.

Masked words and next sentences, 15 % hidden, dropout 0.1, AdamW, clipping at 1, vocabulary 30,522. `transformers` is
the loop as one writes it (float32, sdpa attention); `transformers bf16` runs it under autocast. Both get full rows that
are ready in memory; bertkit makes its examples while it trains, and only tokens of texts are counted.

MFU: the operations a step needs, a second, over the fastest matrix product measured between the turns of the same run
(a linear layer 4096×768×3072, bf16 or float32). Needed are
6 × (tokens × 12 × depth × width² + depth × 2 × width × sum of squared lengths
     + hidden places × (width² + width × vocabulary) + texts × width²).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import _workers as workers
from _harness import (
    Row,
    machine,
    neat,
    only_the_document,
    options,
    publish,
    row,
    skipped,
    take_turns,
    tell,
    wanted,
    with_ratios,
)
from _pretraining import BASELINE, CONTESTANTS, Case, Turn, make_store, open_peak, take

MINI = {"size": "mini", "depth": 4, "width": 256, "heads": 4}
SMALL = {"size": "small", "depth": 4, "width": 512, "heads": 8}
BASE = {"size": "base", "depth": 12, "width": 768, "heads": 12}
SHORT, LONG = {"length": 128, "batch": 32}, {"length": 512, "batch": 8}
FORMS = {
    "full": [
        Case(**MINI, **SHORT, rounds=7, steps=3), Case(**SMALL, **SHORT, rounds=5, steps=2),
        Case(**BASE, **SHORT, rounds=4), Case(**MINI, **LONG, rounds=7, steps=2), Case(**SMALL, **LONG, rounds=5),
        Case(**BASE, **LONG, rounds=3),
    ],
    "quick": [Case(**MINI, **SHORT, rounds=3), Case(**SMALL, **SHORT, rounds=3)],
    "smoke": [Case("nano", 2, 64, 2, length=32, batch=4, rounds=1, vocabulary=800)],
}  # fmt: skip
BF16 = "transformers bf16"
ENOUGH = {"full": 3600.0, "quick": 60.0, "smoke": 60.0}  # seconds a case: after them, each has at least one turn


def measure(case: Case, names: list[str], folder: Path, threads: int, rounds: int, enough: float) -> list[Row]:
    """One row a contestant; the matrix peak takes its turn between them."""
    until = time.perf_counter() + enough
    played: set[str] = set()
    absent: dict[str, str] = {}
    there: dict[str, workers.Worker] = {}

    def drop(name: str, reason: Exception) -> None:
        absent[name] = workers.told(reason)
        tell(f"  {name} is out: {absent[name]}")
        if name in there:
            there.pop(name).close()

    for name in names:
        opener, arguments = CONTESTANTS[name]
        try:
            there[name] = workers.Worker(opener, case, folder, threads, *arguments)
        except workers.Failed as reason:
            drop(name, reason)
    there["peak"] = workers.Worker(open_peak, case, folder, threads)

    def play(name: str) -> Any:
        if name in played and time.perf_counter() > until:
            return None
        played.add(name)
        return there[name].ask(take, case.steps)

    take_turns({name: partial(there[name].ask, take, 1) for name in list(there)}, 1, drop)  # the first step is slow
    results = take_turns({name: partial(play, name) for name in there}, rounds, drop)
    for worker in there.values():
        worker.close()
    peak = max(results.pop("peak", [0.0]))
    rows = [_row(case, name, seen, peak) for name, seen in results.items()]
    return rows + [skipped(case.name, name, reason) for name, reason in absent.items() if name != "peak"]


def _row(case: Case, name: str, turns: list[Turn], peak: float) -> Row:
    speeds = [turn.tokens / turn.seconds for turn in turns]
    share = statistics.median(turn.flops / turn.seconds for turn in turns) / peak if peak else 0.0
    steps = case.steps * len(turns)
    return row(case.name, name, speeds, "tokens/s", mfu=neat(share), peak_gflops=neat(peak / 1e9), steps=steps)


def with_bf16_ratios(rows: list[Row]) -> list[Row]:
    """Rows with `ratio_to_bf16`: how many times as fast as transformers under autocast."""
    base = {each["case"]: each["value"] for each in rows if each["contestant"] == BF16 and "value" in each}
    return [
        each | {"ratio_to_bf16": neat(each["value"] / base[each["case"]])}
        if "value" in each and each["case"] in base
        else each
        for each in rows
    ]


def main() -> None:
    asked = options(__doc__ or "")
    usual = [name for name in CONTESTANTS if name != "bertkit fp32"] if asked.form == "quick" else list(CONTESTANTS)
    names = wanted(list(CONTESTANTS), asked.only, BASELINE) if asked.only else usual
    began = time.perf_counter()
    with only_the_document() as out:
        workers.use("torch", "numpy", "transformers.models.bert.modeling_bert", "tokenizers")
        about: dict[str, Any] = workers.apart(machine, asked.threads, ("transformers",))
        rows: list[Row] = []
        with tempfile.TemporaryDirectory() as temporary:
            folders: dict[int, Path] = {}
            for case in (case for case in FORMS[asked.form] if case.name.startswith(asked.case)):
                if case.vocabulary not in folders:
                    folders[case.vocabulary] = folder = Path(temporary) / str(case.vocabulary)
                    folder.mkdir()
                    workers.apart(make_store, folder, case.vocabulary, 20 if asked.form == "smoke" else 200)
                rounds = asked.rounds or case.rounds
                rows += measure(case, names, folders[case.vocabulary], asked.threads, rounds, ENOUGH[asked.form])
                tell(f"{time.perf_counter() - began:4.0f} s  {case.name}: done")
        document = {
            "machine": about, "form": asked.form, "rows": with_bf16_ratios(with_ratios(rows, BASELINE)),
            "seconds": round(time.perf_counter() - began),
        }  # fmt: skip
        recorded = {} if asked.form != "smoke" else {"results": None}
        publish("pretrain", document, as_json=asked.json, out=out, **recorded)


if __name__ == "__main__":
    main()
