"""Do the promises of docs/reliability.md hold? Kills, faults, signals, readers, damage and servers, counted.

    python benchmarks/promises.py [--quick|--smoke] [--only kill-pretrain,resume] [--json] [--seed 0]

Every check uses tiny models of its own, works in a temporary folder, and runs commands in forked children, so that one
that is killed loses nothing of this process. `bad` must be 0. The counts of --quick are a twentieth. Checks of a server
(`server-…`) serve the embedded `en`; the number of `server-overload` is seconds, that of `server-soak` minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import _promises_kill as kill
import _promises_other as other
import server_promises as server


@dataclass(frozen=True)
class Promise:
    """One row of the table: what is promised, and how often it is tried."""

    text: str
    count: int
    check: Callable[..., dict[str, object]]


def damage(folder: Path, count: int, chance: random.Random) -> dict[str, object]:
    """Flipped bytes, a fifth as many truncations, and as many hostile folders, in a process of their own."""
    script = Path(__file__).with_name("hostile.py")
    counts = ["--count", str(count), "--flips", str(count), "--truncations", str(max(1, count // 5))]
    command = [sys.executable, str(script), *counts, "--seed", str(chance.randrange(1000)), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"tried": 2 * count + max(1, count // 5), "bad": int(ended.returncode != 0), "result": ended.stdout.strip()}


def of_server(name: str, **more: object) -> Callable[..., dict[str, object]]:
    """A check of a server: what was tried, how many answers or targets were missed, and the figures."""

    def check(folder: Path, count: int, chance: random.Random) -> dict[str, object]:
        return server.as_row(name, count, **more)

    return check


PROMISES = {
    "kill-pretrain": Promise("A pretraining run killed at any moment resumes and ends byte-equal.", 50, kill.pretrain),
    "kill-finetune": Promise("A fine-tuning run killed at any moment resumes and ends byte-equal.", 50, kill.finetune),
    "kill-model": Promise("A model folder whose replacement is killed is the old or the new one.", 50, kill.model),
    "kill-index": Promise("An index whose writing is killed is absent or whole.", 25, kill.index),
    "kill-store": Promise("A token store whose preparation is killed resumes and ends byte-equal.", 25, kill.store),
    "resume": Promise("A run stopped at any step resumes bit-exactly.", 60, other.resume),
    "faults": Promise("EIO, ENOSPC or a crash at any system call of a save: old or new, never mixed.", 0, other.faults),
    "disk-full": Promise("A full disk stops the run with a message; freed, it resumes byte-equal.", 3, other.disk_full),
    "signals": Promise("SIGTERM, SIGINT and SIGUSR1 save within the step and exit with 128 + n.", 12, other.signals),
    "readers": Promise("A model folder read while it is replaced is the old or the new one.", 300, other.readers),
    "second-writer": Promise("A second trainer of the same folder is refused.", 5, other.second_writer),
    "ranks": Promise("Of two processes one is killed: restarted, they end bit-equal.", 20, other.ranks),
    "damage": Promise("Damage is found and named; hostile folders do no harm.", 1000, damage),
    "server-malformed": Promise(
        "Malformed requests: no exit, no 5xx, the documented shape.", 10_000, of_server("malformed")
    ),
    "server-overload": Promise("Ten times the load: as many answers per CPU-second.", 300, of_server("overload")),
    "server-same": Promise("The same answers alone and under load.", 10_000, of_server("same_answers")),
    "server-stop": Promise("SIGTERM loses nothing that was accepted.", 1, of_server("graceful_stop")),
    "server-slow": Promise("Slow clients and those that leave delay nobody.", 30, of_server("slow_clients")),
    "server-soak": Promise("An hour of mixed requests: memory and files stay.", 60, of_server("soak")),
    "fastapi": Promise(
        "For comparison: malformed requests to a plain FastAPI server.", 10_000, of_server("malformed", rival=True)
    ),
    "trainer": Promise("For comparison: transformers' Trainer killed at any moment.", 20, other.trainer),
}


def main() -> None:
    """Run the checks and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", dest="share", action="store_const", const=0.05, default=1.0)
    parser.add_argument("--smoke", dest="share", action="store_const", const=0.001)
    parser.add_argument("--only", default="", help="checks, separated by commas: " + ", ".join(PROMISES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name] or list(PROMISES)
    if unknown := set(names) - set(PROMISES):
        raise SystemExit(f"No check {', '.join(sorted(unknown))}. There are: {', '.join(PROMISES)}.")
    rows = []
    for name in names:
        promise = PROMISES[name]
        count = max(2, round(promise.count * options.share))
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="promises-") as folder:
            result = promise.check(Path(folder), count, random.Random(f"{options.seed} {name}"))
        row = {"check": name, "promise": promise.text, **result, "seconds": round(time.monotonic() - started)}
        rows.append(row)
        if not options.json:
            extra = {
                key: value for key, value in row.items() if key not in ("check", "promise", "tried", "bad", "seconds")
            }
            details = "; ".join(f"{key} {value}" for key, value in extra.items())
            print(
                f"| {name} | {promise.text} | {row['tried']:,} | {row['bad']} | {details} | {row['seconds']} s |",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    sys.exit(any(row["bad"] for row in rows if row["check"] not in ("trainer", "fastapi")))


if __name__ == "__main__":
    main()
