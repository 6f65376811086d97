"""Do the promises of docs/reliability.md hold? Kills, faults, signals, readers, damage and servers, counted.

    python benchmarks/promises.py [--quick|--smoke] [--only kill-pretrain,resume] [--json] [--seed 0]

Every check uses tiny models of its own, works in a temporary folder, and runs commands in forked children, so that one
that is killed loses nothing of this process. `bad` must be 0. The counts of --quick are a twentieth. Checks of a server
(`server-…`) serve the embedded `en`; the number of `server-overload` and `server-slow` is seconds, that of
`server-soak` minutes, and that of `server-stop` stops.
"""

from __future__ import annotations

import argparse
import json
import random
import re
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
    """One row of the table: what is promised, under which number of docs/reliability.md, and how often it is tried."""

    number: str
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


def tests(*paths: str) -> Callable[..., dict[str, object]]:
    """A check that is tests of the suite, whatever the count."""

    def check(folder: Path, count: int, chance: random.Random) -> dict[str, object]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *paths]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
        numbers = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", ended.stdout)}
        bad = numbers.get("failed", 0) + numbers.get("error", 0)
        return {"tried": sum(numbers.values()), "bad": bad or ended.returncode, "tests": ", ".join(paths)}

    return check


PROMISES = {
    "kill-pretrain": Promise(
        "R1", "A pretraining run killed at any moment resumes and ends byte-equal.", 50, kill.pretrain
    ),
    "kill-finetune": Promise(
        "R1", "A fine-tuning run killed at any moment resumes and ends byte-equal.", 50, kill.finetune
    ),
    "kill-model": Promise(
        "R1", "A model folder whose replacement is killed is the old or the new one.", 50, kill.model
    ),
    "kill-index": Promise("R1", "An index whose writing is killed is absent or whole.", 25, kill.index),
    "kill-store": Promise(
        "R1", "A token store whose preparation is killed resumes and ends byte-equal.", 25, kill.store
    ),
    "resume": Promise("R2", "A run stopped at any step resumes bit-exactly.", 60, other.resume),
    "faults": Promise(
        "R3, R4", "EIO, ENOSPC or a crash at any system call of a save: old or new, never mixed.", 0, other.faults
    ),
    "disk-full": Promise(
        "R5", "A full disk stops the run with a message; freed, it resumes byte-equal.", 3, other.disk_full
    ),
    "damage": Promise("R6, C1", "Damage is found and named; hostile folders do no harm.", 1000, damage),
    "signals": Promise(
        "R7", "SIGTERM, SIGINT and SIGUSR1 save within the step and exit with 128 + n.", 12, other.signals
    ),
    "readers": Promise(
        "R8", "A model folder read while it is replaced is the old or the new one.", 1000, other.readers
    ),
    "second-writer": Promise("R8", "A second trainer of the same folder is refused.", 5, other.second_writer),
    "ranks": Promise("R9", "Of two processes one is killed: restarted, they end bit-equal.", 20, other.ranks),
    "not-a-number": Promise(
        "R10", "A loss that is not a number stops the run, is named, and is never saved.", 20, other.not_a_number
    ),
    "older": Promise(
        "R11", "Folders that older versions wrote open.", 0, tests("tests/checkpoint/test_older_versions.py")
    ),
    "memory": Promise("R12", "Memory does not grow with the rows of a file.", 1_000_000, other.flat_memory),
    "server-malformed": Promise(
        "S1", "Malformed requests: no exit, no 5xx, the documented shape.", 10_000, of_server("malformed")
    ),
    "server-overload": Promise("S2", "Ten times the load: as many answers per CPU-second.", 300, of_server("overload")),
    "server-largest": Promise("S3", "The largest requests at once: memory is bounded.", 500, of_server("largest")),
    "server-same": Promise("S4", "The same answers alone and under load.", 10_000, of_server("same_answers")),
    "server-stop": Promise("S5", "SIGTERM under load loses nothing that was accepted.", 10, of_server("graceful_stop")),
    "server-slow": Promise("S6", "Slow clients and those that leave delay nobody.", 30, of_server("slow_clients")),
    "server-soak": Promise("S7", "An hour of mixed requests: memory and files stay.", 60, of_server("soak")),
}
COMPARED = {  # others under the same harness: what goes wrong there is no failure of ours
    "trainer": Promise("R1", "transformers' Trainer killed at any moment and resumed.", 20, other.trainer),
    "fastapi": Promise(
        "S1", "Malformed requests to a plain FastAPI server.", 10_000, of_server("malformed", rival=True)
    ),
    "fastapi-overload": Promise(
        "S2", "Ten times the load for a plain FastAPI server.", 60, of_server("overload", connections=1000, rival=True)
    ),
}


def main() -> None:
    """Run the checks and print one row each."""
    checks = PROMISES | COMPARED
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", dest="share", action="store_const", const=0.05, default=1.0)
    parser.add_argument("--smoke", dest="share", action="store_const", const=0.001)
    parser.add_argument("--only", default="", help="checks, separated by commas: " + ", ".join(checks))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name] or list(checks)
    if unknown := set(names) - set(checks):
        raise SystemExit(f"No check {', '.join(sorted(unknown))}. There are: {', '.join(checks)}.")
    rows = []
    for name in names:
        promise = checks[name]
        count = max(2, round(promise.count * options.share))
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="promises-") as folder:
            result = promise.check(Path(folder), count, random.Random(f"{options.seed} {name}"))
        row = {
            "check": name,
            "number": promise.number,
            "promise": promise.text,
            **result,
            "seconds": round(time.monotonic() - started),
        }
        rows.append(row)
        if not options.json:
            extra = {
                key: value
                for key, value in row.items()
                if key not in ("check", "number", "promise", "tried", "bad", "seconds")
            }
            details = "; ".join(f"{key} {value}" for key, value in extra.items())
            cells = (
                promise.number,
                name,
                promise.text,
                f"{row['tried']:,}",
                row["bad"],
                details,
                f"{row['seconds']} s",
            )
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    sys.exit(any(row["bad"] for row in rows if row["check"] in PROMISES))


if __name__ == "__main__":
    main()
