"""What happens to whoever opens a hostile or damaged folder: 1,000 folders made to do harm, 1,200 with one fault.

Each case is a folder of one of the kinds that bertkit opens (model, tagger, embedder, index, token store, contender,
ancestor, run, tokenizer), changed in one way, and a command that reads it, run in a forked child. Hostile folders must
end with exit code 0 or 2 and one message: nothing of theirs executed, no traceback, within 10 s of computing (60 s of
waiting) and 1 GB, no escape sequence on the terminal. A flipped byte or a truncated file must be found and named.

    python benchmarks/hostile.py [--count 1000] [--flips 1000] [--truncations 200] [--seed 0] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _forked import finish
from _hostile_cases import Case, flips, healthy, hostile_folders

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[name] = "1"  # a forked child has none of its parent's threads
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}

CPU_SECONDS, WALL_SECONDS, MOST_BYTES = 10, 60, 1 << 30
ESCAPES = tuple("\x1b\x07\x9b\u202e\u2066")
# What no command on a folder does: run a program, call somebody, unpickle.
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect",
             "socket.getaddrinfo", "pickle.find_class", "os.symlink", "webbrowser.open")  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a command: its exit code (negative: the signal), its output, and what it took."""

    code: int
    text: str
    seconds: float
    bytes: int
    events: tuple[str, ...]

    def faults(self) -> list[str]:
        """What must not happen."""
        return [
            *(["executed"] if self.events else []),
            *(["traceback"] if "Traceback (most" in self.text or self.code not in (0, 2, -9, -24) else []),
            *(["over 10 s"] if self.seconds > CPU_SECONDS or self.code in (-9, -24) else []),
            *(["over 1 GB"] if self.bytes > MOST_BYTES else []),
            *(["escape sequence"] if any(mark in self.text for mark in ESCAPES) else []),
        ]


# ---- Running


def run(case: Case, command: list[str], root: Path, reseal: bool) -> Outcome:
    """Change a copy of the healthy folder and run the command on it in a child. reseal: as an attacker would."""
    folder = root / "cases" / "folder"
    shutil.rmtree(root / "cases", ignore_errors=True)
    shutil.copytree(root / "healthy" / case.kind, folder, symlinks=True)
    case.change(folder)
    if reseal:
        _reseal(folder)
    (root / "cases" / "out").mkdir(exist_ok=True)
    log, watched = root / "cases" / "log", root / "cases" / "events"
    began = time.monotonic()
    child = os.fork()
    if not child:
        _in_child([str(folder) if word == "FOLDER" else word for word in command], log, watched)
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > WALL_SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    events = watched.read_text("utf-8", "replace").splitlines() if watched.exists() else []
    victim = root / "cases" / "victim" / "mine"
    if (folder / "RAN").exists() or (victim.parent.exists() and not (victim.exists() and victim.read_text() == "mine")):
        events.append("the folder's code ran, or a file outside it was changed")
    seconds = usage.ru_utime + usage.ru_stime
    text = log.read_bytes().decode("utf-8", "surrogateescape")
    return Outcome(os.waitstatus_to_exitcode(status), text, seconds, usage.ru_maxrss * 1024, tuple(events))


def _reseal(folder: Path) -> None:
    """New manifests for what is there now; where that fails, none."""
    from bertkit.files import manifest

    for path in sorted(folder.rglob(manifest.MANIFEST)):
        if path.is_file() and "checkpoints" not in path.parts and not (folder / ".swap-model").exists():
            entries = {}
            for name in manifest.read_manifest(path.parent) or {} if _reads(path.parent) else ():
                if (path.parent / name).is_file():
                    entries[name] = manifest.facts_of(path.parent / name)
            path.write_bytes(manifest.of_files(entries))


def _reads(folder: Path) -> bool:
    from bertkit.errors import UserError
    from bertkit.files import manifest

    try:
        manifest.read_manifest(folder)
    except UserError:
        return False
    return True


def _in_child(arguments: list[str], log: Path, watched: Path) -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS + 2, CPU_SECONDS + 4))
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (3 << 30), now + (3 << 30)))  # the machine has other work
        events = os.open(watched, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def hook(event: str, details: tuple[Any, ...]) -> None:
            if event in FORBIDDEN:
                os.write(events, f"{event} {details!r:.200}\n".encode("utf-8", "replace"))

        sys.addaudithook(hook)
        sys.argv = ["bertkit", *arguments]
        from bertkit.cli import main

        main()

    finish(work, log)


def _warm(commands: dict[str, list[str]], root: Path) -> None:
    """Every healthy folder answers; imports are done here once for all children."""
    import importlib

    from bertkit.commands import COMMANDS

    for verb in {words[0] for words in commands.values()} & set(COMMANDS):
        importlib.import_module("bertkit.commands." + {"suggest": "fill", "neighbours": "neighbours"}.get(verb, verb))
    for module in ("bertkit.loading", "bertkit.runs.compare.contenders", "bertkit.retrieval.index", "huggingface_hub",
                   "bertkit.ancestors.hmm", "bertkit.ancestors.vectors.vectors", "bertkit.data.inspect",
                   "safetensors.torch", "scipy.sparse", "bertkit.data.prepare.run"):  # fmt: skip
        importlib.import_module(module)
    for kind, command in commands.items():
        outcome = run(Case("healthy", kind, lambda folder: None), command, root, reseal=False)
        if outcome.code:
            raise SystemExit(f"The healthy {kind} does not answer to {command}:\n{outcome.text}")


def measure(count: int, flip_count: int, truncations: int, seed: int, log: Any = sys.stderr) -> dict[str, Any]:
    """Every case, with counts and the names of those that went wrong."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as place:
        root = Path(place)
        (root / "healthy").mkdir()
        commands = healthy(root / "healthy")
        _warm(commands, root)
        faults: Counter[str] = Counter()
        codes: Counter[int] = Counter()
        bad: list[dict[str, Any]] = []
        for case in hostile_folders(count, seed, root / "healthy"):
            outcome = run(case, commands[case.kind], root, reseal=True)
            codes[outcome.code] += 1
            faults.update(outcome.faults())
            if outcome.faults():
                bad.append({"kind": case.kind, "case": case.name, "faults": outcome.faults(), "code": outcome.code,
                            "events": list(outcome.events), "seconds": round(outcome.seconds, 1),
                            "mb": outcome.bytes >> 20, "text": outcome.text[-1500:]})  # fmt: skip
                print(json.dumps(bad[-1], ensure_ascii=True), file=log, flush=True)
        outcomes: Counter[tuple[str, bool]] = Counter()
        for case in flips(flip_count, truncations, seed, root / "healthy"):
            outcome = run(case, commands[case.kind], root, reseal=False)
            is_found = outcome.code == 2 and Path(case.file).name in outcome.text and not outcome.faults()
            # A damaged generation is passed over for the one before it, and named.
            outcomes[case.name.split()[0], is_found] += 1
            if not is_found:
                bad.append({"kind": case.kind, "case": case.name, "code": outcome.code, "text": outcome.text[-600:]})
                print(json.dumps(bad[-1], ensure_ascii=True), file=log, flush=True)
    names = ("executed", "traceback", "over 10 s", "over 1 GB", "escape sequence")
    return {
        "hostile": {"folders": count, **{name: faults[name] for name in names},
                    "exit codes": {str(code): n for code, n in sorted(codes.items())}},
        "flipped bytes": {"cases": flip_count, "found and named": outcomes["flip", True]},
        "truncations": {"cases": truncations, "found and named": outcomes["truncate", True]},
        "kinds": len(commands), "bad": bad,
    }  # fmt: skip


def main() -> None:
    """Print the figures; exit code 1 if any is not what it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--truncations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="100 hostile folders, 100 flips and 40 truncations")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.count, chosen.flips, chosen.truncations = 100, 100, 40
    figures = measure(chosen.count, chosen.flips, chosen.truncations, chosen.seed)
    if chosen.json:
        from bertkit import machine

        rows = [
            {"case": f"{case}: {name}", "contestant": "bertkit", "value": value, "unit": "cases", "ratio": None}
            for case, row in figures.items() if isinstance(row, dict)
            for name, value in row.items() if isinstance(value, int)
        ]  # fmt: skip
        print(json.dumps({"machine": machine.describe(1), "rows": rows, **figures}, ensure_ascii=False))
    else:
        for name, row in figures.items():
            print(f"{name}: {row if name != 'bad' else len(row)}")
    sys.exit(1 if figures["bad"] else 0)


if __name__ == "__main__":
    sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
    main()
