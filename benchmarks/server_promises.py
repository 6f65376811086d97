"""What the server promises, measured on a server in a process of its own.

    python benchmarks/server_promises.py [NAME …] [--model en] [--count 10000] [--seconds 60] [--minutes 60]
        [--factor 10] [--connections 4000] [--stops 10] [--precision auto] [--rival] [--quick] [--json]

NAME: malformed, overload, largest, same_answers, graceful_stop, slow_clients, soak (default: all but soak). Each is a
function of the _server_*.py files beside this one, with its counts as parameters, that returns a dictionary of figures.
`--rival` measures `malformed` and `overload` on the usual few lines of FastAPI and pydantic around the same model, too.

Clients run in this process, so that what they cost is not counted: `per_cpu_second` counts by the processor time of the
server alone. On a machine that others use, compare figures of one run only.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from _server_malformed import malformed
from _server_overload import overload, slow_clients
from _server_soak import graceful_stop, largest, same_answers, soak

# ---- One row of benchmarks/promises.py for each.

GROWTH, OF_PEAK, REFUSAL_MS, BOUND_MS, MB_PER_HOUR, MOST_MB = 0.05, 0.95, 20, 30_000, 2, 1_000


def as_row(name: str, count: int, **more: Any) -> dict[str, Any]:
    """What was tried, how many answers or targets were missed, and the figures. count: requests, seconds or minutes."""
    if name == "malformed":
        figures = malformed(count, **more)
        bad = sum(int(figures[key]) for key in ("exits", "status_5xx", "no_response", "other_shape"))
    elif name == "overload":
        figures = overload(count, **more)
        missed = {
            "throughput": figures["of_peak"] < OF_PEAK, "refusals": figures["refusal_ms"] >= REFUSAL_MS,
            "latency": figures["p99_ms"] > BOUND_MS, "memory": figures["memory_growth"] >= GROWTH,
        }  # fmt: skip
        figures["missed"] = [target for target, is_missed in missed.items() if is_missed]
        bad, count = len(figures["missed"]), figures["refused"]
    elif name == "same_answers":
        figures = same_answers(count, **more)
        bad = figures["other_answers"] + (figures["largest_difference"] > 1e-6)
    elif name == "graceful_stop":
        figures = graceful_stop(count, **more)
        bad, count = figures["lost"] + figures["status_500"] + figures["other_exits"], figures["requests"]
    elif name == "largest":
        figures = largest(count, **more)
        bad, count = figures["exits"] + figures["other_statuses"] + (figures["most_mb"] > MOST_MB), figures["requests"]
    elif name == "slow_clients":
        figures = slow_clients(seconds=count, **more)
        bad, count = int(figures["left_in_queue"] != 0), figures["slow"] + figures["gone"]
    else:
        figures = soak(count, **more)
        bad, count = int(figures["mb_per_hour"] > MB_PER_HOUR) + figures["other_statuses"], figures["requests"]
    return {"tried": count, "bad": bad, "figures": json.dumps(figures)}


def main() -> None:
    names = ("malformed", "overload", "largest", "same_answers", "graceful_stop", "slow_clients", "soak")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all but soak)")
    parser.add_argument("--model", default="en", help="a name or a folder with a head for masked words")
    parser.add_argument("--precision", default="auto", help="of same_answers and soak")
    parser.add_argument(
        "--count", type=int, default=10_000, help="requests of malformed and same_answers; a twentieth of largest"
    )
    parser.add_argument("--seconds", type=float, default=60, help="of overload and slow_clients")
    parser.add_argument("--minutes", type=float, default=60, help="of soak")
    parser.add_argument("--factor", type=float, default=10, help="of overload: times the peak")
    parser.add_argument("--connections", type=int, default=4000, help="of overload")
    parser.add_argument("--stops", type=int, default=10, help="of graceful_stop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rival", action="store_true", help="also measure a plain FastAPI server")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--quick", action="store_true", help="500 requests, 10 seconds, 1,000 connections")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.count, chosen.seconds, chosen.connections, chosen.stops = 500, 10.0, 1000, 1
    if unknown := set(chosen.names) - set(names):
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}. Choose from: {', '.join(names)}.")
    count, seed, model = chosen.count, chosen.seed, chosen.model
    flood = {"seconds": chosen.seconds, "factor": chosen.factor, "connections": chosen.connections, "model": model}
    runs = {
        "malformed": lambda: malformed(count, seed, model),
        "malformed rival": lambda: malformed(count, seed, model, rival=True),
        "overload": lambda: overload(**flood),
        "overload rival": lambda: overload(**flood, rival=True),
        "same_answers": lambda: same_answers(count, seed, model=model, precision=chosen.precision),
        "largest": lambda: largest(count // 20, model=model),
        "graceful_stop": lambda: [graceful_stop(chosen.stops, model=model), graceful_stop(1, model=model, signals=2)],
        "slow_clients": lambda: slow_clients(seconds=chosen.seconds, model=model),
        "soak": lambda: soak(chosen.minutes, model=model, precision=chosen.precision),
    }
    results = {}
    for name, measure in runs.items():
        first, _, rival = name.partition(" ")
        if first in (chosen.names or names[:-1]) and (not rival or chosen.rival):
            results[name] = measure()
            if not chosen.json:
                print(name, json.dumps(results[name], indent=1), flush=True)
    if chosen.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
