"""Training over two hosts: two network namespaces with their own addresses, and torchrun on each.

`kills`: a tiny BERT is pretrained over both, once undisturbed and then with processes killed (-9) at random moments: a
worker, torchrun itself, or everything on a host. torchrun restarts workers; a torchrun that ended is started again, as
SLURM and Kubernetes do. Both hosts have a working folder and a copy of the token store of their own; the run folder is
shared. The final weights and metrics must be equal to the last bit.

`speed`: steps of BERT with the exchange of gradients and without, in turns within the same two processes (one thread
each), for several shapes of the cable. efficiency: tokens per second with the exchange over those without it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _harness import RESULTS, tell
from _namespaces import ADDRESSES, CABLE, Hosts, missing, two_hosts

ROOT = Path(__file__).resolve().parents[1]
FILES = ("model.safetensors", "metrics.jsonl")
RESTARTS = 10  # that each torchrun may make
VICTIMS = ("worker", "torchrun", "host")


def torchrun(host: int, *words: object, restarts: int = 0) -> list[str]:
    """The command that starts one process on this host, which meets the other host at the first one's address."""
    return [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29500", "--rdzv-id", "two-hosts",
        "--local-addr", ADDRESSES[host],
        # torchrun compares host names to learn whether it is the meeting point, and both hosts have this machine's.
        "--rdzv-conf", f"is_host={int(host == 0)},keep_alive_interval=2",
        "--max-restarts", str(restarts), *map(str, words),
    ]  # fmt: skip


def environment() -> dict[str, str]:
    """One thread each, gloo on the cable, and this checkout's bertkit."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": CABLE,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }


@dataclass
class Supervised:
    """A torchrun on each host that is started again when it ends with an error."""

    hosts: Hosts
    work: Path
    words: list[str]
    out: Path
    victims: tuple[str, ...] = VICTIMS
    ended: int = 0  # times that a torchrun ended with an error
    killed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agents = [self._start(host) for host in (0, 1)]

    def _start(self, host: int) -> subprocess.Popen[bytes]:
        own = self.work / f"host{host}"
        command = torchrun(
            host,
            "-m",
            "bertkit",
            *self.words,
            "--data",
            own / "store",
            "--out",
            self.out,
            "--resume",
            restarts=RESTARTS,
        )
        with (self.work / f"{self.out.name}-host{host}.log").open("ab") as log:
            return self.hosts.start(host, command, log, cwd=own, env=environment())

    def done(self) -> bool:
        """Whether a host has finished; torchruns that failed are started again."""
        codes = [agent.poll() for agent in self.agents]
        if 0 in codes:
            return True
        for host, code in enumerate(codes):
            if code is not None:
                self.ended += 1
                self.agents[host] = self._start(host)
        return False

    def kill(self, dice: random.Random) -> None:
        """Kill one process, or all of a host."""
        host, victim = dice.randrange(2), dice.choice(self.victims)
        agent = self.agents[host].pid
        targets = {"host": [], "torchrun": [agent], "worker": [p for p in self.hosts.processes(host) if p != agent]}[
            victim
        ]
        if victim == "host":
            self.hosts.kill(host)
        elif not targets:
            return  # no worker is there yet
        else:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(targets), signal.SIGKILL)
        self.killed.append(f"{victim} {host}")

    def close(self) -> None:
        """The other torchrun may still wait at its exit."""
        for host, agent in enumerate(self.agents):
            with suppress(subprocess.TimeoutExpired):
                agent.wait(15)
            self.hosts.kill(host)
            agent.wait()


def watched(run: Supervised, kills: int, dice: random.Random, limit: float) -> float:
    """Wait for a run, killing at random moments. Returns its seconds; a run beyond the limit is an error.

    Two of three kills come a moment after a new checkpoint, the others at any moment of starting up.
    """
    start = last = time.monotonic()
    seen, early, patience = _newest(run.out), dice.random() < 1 / 3, dice.random()
    while not run.done():
        time.sleep(0.05)
        now = time.monotonic()
        progress = _newest(run.out) != seen
        if len(run.killed) < kills and (progress or (early and now - last > 30 * patience)):
            time.sleep(0.3 * patience if progress else 0)
            run.kill(dice)
            last, seen, early, patience = now, _newest(run.out), dice.random() < 1 / 3, dice.random()
        if now - start > limit:
            raise TimeoutError(f"no end after {limit:.0f} s; killed: {', '.join(run.killed)}")
    return time.monotonic() - start


def _newest(out: Path) -> str:
    return max((path.name for path in out.glob("checkpoints/step-*")), default="")


def kills(work: Path, count: int, steps: int, seed: int, victims: tuple[str, ...]) -> dict[str, Any]:
    """A run left alone and runs with `count` kills in all: equal to the last bit?"""
    from _promises_kill import digests, pretraining

    dice = random.Random(seed)
    words = [str(word) for word in pretraining(work, steps)]
    at = words.index("--data")
    store, words = Path(words[at + 1]), [*words[:at], *words[at + 2 :], "--batch-tokens", "2048"]
    for host in (0, 1):
        shutil.copytree(store, work / f"host{host}" / "store")
    counts: dict[str, Any] = {"kills": 0, "runs": 0, "different": 0, "torchruns started again": 0, "workers failed": 0}
    with two_hosts() as hosts:
        alone = Supervised(hosts, work, words, work / "alone")
        longest = watched(alone, 0, dice, 600)
        alone.close()
        expected = digests(work / "alone", FILES)
        tell(f"undisturbed: {longest:.0f} s")
        while counts["kills"] < count:
            run = Supervised(hosts, work, words, work / f"run{counts['runs']}", victims)
            seconds = watched(run, count - counts["kills"], dice, 600 + 180 * count)
            run.close()
            equal = digests(run.out, FILES) == expected
            logs = "".join(log.read_text("utf-8", "replace") for log in work.glob(f"{run.out.name}-host*.log"))
            counts["runs"] += 1
            counts["kills"] += len(run.killed)
            counts["different"] += not equal
            counts["torchruns started again"] += run.ended
            counts["workers failed"] += logs.count("failed (exitcode")
            tell(f"{seconds:.0f} s, killed: {', '.join(run.killed)}; {'equal' if equal else 'DIFFERENT'}")
    return counts | {"seconds undisturbed": round(longest, 1)}


SIZES = {
    "mini": {"depth": 4, "width": 256, "heads": 4, "tokens": 2048, "rounds": 3},
    "small": {"depth": 4, "width": 512, "heads": 8, "tokens": 2048, "rounds": 2},
    "base": {"depth": 12, "width": 768, "heads": 12, "tokens": 1024, "rounds": 2},
}  # tokens: of each process in a step
MODES = ["alone", "after", "during", "bf16"]
RATES = [100, 1000, 10_000]  # Mbit/s
Shapes = list[tuple[float, dict[str, dict[str, Any]]]]
FORMS: dict[str, Shapes] = {
    "full": [
        (0.0, {"mini": {"mbit": RATES, "stepped": [100, 1000]}, "base": {"mbit": RATES, "stepped": [1000]}}),
        (0.1, {"mini": {"mbit": [1000], "stepped": []}, "base": {"mbit": [1000], "stepped": []}}),
        (1.0, {"mini": {"mbit": [1000], "stepped": []}, "base": {"mbit": [1000], "stepped": []}}),
        (0.0, {"small": {"mbit": RATES, "stepped": [1000]}}),
    ],
    "quick": [(0.0, {"mini": {"mbit": [1000], "stepped": [1000]}})],
}  # by latency in ms; stepped: the rates at which whole steps are taken, not only exchanges


def speed(work: Path, shapes: Shapes) -> list[dict[str, Any]]:
    """Steps and exchanges of every size, for every shape of the cable."""
    from _pretraining import make_store
    from _promises_kill import fork, wait

    vocabulary = 30522
    assert wait(fork(lambda: make_store(work, vocabulary, 100), work / "log")) == 0, (work / "log").read_text()
    rows: list[dict[str, Any]] = []
    for ms, chosen in shapes:
        cases = [
            SIZES[name] | {"name": name, "store": str(work / "store"), "vocabulary": vocabulary, "modes": MODES} | more
            for name, more in chosen.items()
        ]
        out = work / f"speed-{ms}.json"
        words = (ROOT / "benchmarks/_exchange.py", json.dumps({"cases": cases, "ms": ms, "out": str(out)}))
        with two_hosts(ms) as hosts:
            running = [hosts.start(host, torchrun(host, *words), None, env=environment()) for host in (0, 1)]
            if any(process.wait() for process in running):
                raise SystemExit("A host failed; its messages are above.")
        rows += [row | _efficiency(row) for row in json.loads(out.read_text("utf-8"))]
    return rows


def _efficiency(row: dict[str, Any]) -> dict[str, float]:
    """Tokens per second with the exchange over those without it.

    Own cores: by the processor time of a step, and the time spent waiting for the exchange on top.
    """
    if "alone" not in row:
        return {}
    alone, results = row["alone"], {}
    for mode in [mode for mode in MODES[1:] if mode in row]:
        step, cpu = row[mode], alone["cpu"] / alone["tokens"] * row[mode]["tokens"]
        results[f"efficiency {mode}"] = step["tokens"] / step["seconds"] * alone["seconds"] / alone["tokens"]
        results[f"efficiency {mode}, own cores"] = cpu / (cpu + step["waited"])
    return results


def lines(document: dict[str, Any]) -> list[str]:
    """The document for a person."""
    printed = [f"{name}: {value}" for name, value in document.get("kills", {}).items()]
    for row in document.get("speed", []):
        cable = f"{row['mbit'] / 1000:g} Gbit/s" + (f", {row['ms']:g} ms" if row["ms"] else "")
        alone = f"{row['exchange']['fp32']:.2f} s (bf16 {row['exchange']['bf16']:.2f} s)"
        printed.append(f"{row['case']:6} {cable:18} exchange by itself {alone}")
        if "alone" in row:
            printed.append(f"       {row['alone']['tokens']:.0f} tokens, {row['alone']['cpu']:.2f} s of processor time")
        for mode in [mode for mode in MODES[1:] if mode in row]:
            by_clock, own = row[f"efficiency {mode}"], row[f"efficiency {mode}, own cores"]
            printed.append(
                f"       {mode:7} waits {row[mode]['waited']:.2f} s; efficiency {by_clock:.2f}, own cores {own:.2f}"
            )
    return printed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="kills in all (default 10; 0: none)")
    parser.add_argument("--steps", type=int, default=60, help="of the run that is killed")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--victim", choices=VICTIMS, help="what is killed (default: any of them)")
    parser.add_argument("--only", choices=("kills", "speed"), help="one of the two parts")
    parser.add_argument("--size", choices=SIZES, help="speed of one size at 1 Gbit/s alone")
    parser.add_argument("--quick", action="store_true", help="one size and shape, two kills")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of lines")
    asked = parser.parse_args()
    if reason := missing():
        raise SystemExit(f"Two hosts on one machine need root and iproute2: {reason}.")
    document: dict[str, Any] = {"load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if asked.only != "speed" and asked.kills:
            count = min(2, asked.kills) if asked.quick else asked.kills
            victims = (asked.victim,) if asked.victim else VICTIMS
            document["kills"] = kills(work, count, asked.steps, asked.seed, victims)
        if asked.only != "kills":
            alone = [(0.0, {asked.size: {"mbit": [1000], "stepped": [1000]}})]
            document["speed"] = speed(work, alone if asked.size else FORMS["quick" if asked.quick else "full"])
    if not asked.quick:
        dated = {"date": datetime.now(UTC).isoformat(timespec="seconds")} | document
        with (RESULTS / "two_hosts.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(dated) + "\n")
    print(json.dumps(document) if asked.json else "\n".join(lines(document)))


if __name__ == "__main__":
    main()
