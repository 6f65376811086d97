"""What the server promises, measured on a server in a process of its own.

    python benchmarks/server_promises.py [NAME …] [--model en] [--count 10000] [--seconds 60] [--minutes 5]
        [--factor 10] [--connections 4000] [--precision auto] [--rival] [--quick] [--json]

NAME: malformed, overload, soak, same_answers, graceful_stop, slow_clients (default: all but soak). Each is a function
of this file, with its counts as parameters, that returns a dictionary of figures. `--rival` measures `malformed` and
`overload` on the usual few lines of FastAPI and pydantic around the same model, too.

Clients run in this process, so that what they cost is not counted: `per_cpu_second` counts by the processor time of the
server alone. On a machine that others use, compare figures of one run only.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import re
import resource
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from _served import ROUTES, Connection, bare_server, post, quantile, served, some_request, some_text, start_probe

# ---- Whatever is sent, the server goes on, and says what was wrong.


VALUES: list[Any] = [
    None, True, -1, 10**30, 1e300, "", "\0", "\ud800", "a" * 5000, [], {}, [[]], [None], {"a": {}}, [1, "a"], "\u202e",
]  # fmt: skip
KEYS = (
    "inputs", "texts", "query", "input", "model", "question", "context", "truncate", "dimensions", "top", "parameters",
    "encoding_format", "sentences", "source_sentence", "\ud800",
)  # fmt: skip
NOT_JSON = (b'{"inputs": NaN}', b'{"inputs": [1e999]}', b"9" * 5000, b"NaN", b"[" * 90_000, b'{"inputs":' * 5000)
PATHS = ("/no", "/models/x/embed", "/%00", "/../etc", "/models/en/x", "/a?b=%ff", "/models/" + "x" * 3000)
TYPES = ("text/plain", "", "application/xml", "multipart/form-data")
HEADERS = {  # what is replaced in a request → by what
    b"POST": (b"GET", b"PUT", b"DELETE", b"BREW"),
    b"host: 127.0.0.1": (b"host: evil.example", b"x: y", b"host: a\r\nhost: b"),
    b"content-length: ": (
        b"transfer-encoding: chunked\r\ncontent-length: ", b"content-length: -",
        b"content-length: 3\r\ncontent-length: ", b"transfer-encoding: x\r\ny: ",
    ),
    b"\r\n": (b"\r\nno colon\r\n", b"\r\n\0: a\r\n", b"\r\n x\r\n", b"\n\n"),
}  # fmt: skip


def bad_request(chance: random.Random) -> tuple[str, bytes]:
    """A route and the bytes of a request with something wrong in it."""
    path = chance.choice(ROUTES)
    good = json.dumps(some_request(chance)[1]).encode()
    broken = bytearray(good)
    for _ in range(chance.randrange(1, 6)):
        broken[chance.randrange(len(broken))] = chance.randrange(256)
    odd = {chance.choice(KEYS): chance.choice(VALUES) for _ in range(chance.randrange(4))}
    replaced = chance.choice(list(HEADERS))
    return path, chance.choice((
        post(path, odd), post(path, odd), post(path, bytes(broken)), post(path, good[: chance.randrange(len(good))]),
        post(path, chance.choice(NOT_JSON)), post(path, chance.randbytes(chance.randrange(300))),
        post(path, good, chance.choice(TYPES)), post(chance.choice(PATHS), good),
        post(path, good).replace(replaced, chance.choice(HEADERS[replaced]), 1),
        post(path, good).replace(replaced, chance.choice(HEADERS[replaced]), 1),
        post(path, {"inputs": "a " * chance.choice((60_000, 1_100_000))}),
        post(path, {"inputs": ["a"] * 3000, "input": ["a"] * 3000, "model": "en"}),
        chance.randbytes(200) + b"\r\n\r\n",
    ))  # fmt: skip


def is_in_shape(path: str, body: bytes) -> bool:
    """Whether an error is JSON in the documented shape of its routes."""
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        return set(answer["error"]) == {"message", "type", "param", "code"}
    return isinstance(answer, dict) and set(answer) == {"error", "error_type"}


def malformed(count: int = 10_000, seed: int = 0, model: str = "en", *, rival: bool = False) -> dict[str, Any]:
    """Malformed requests: exits, statuses of 500 and above, errors in another shape, requests without a response."""
    with served(model, rival=rival) as server:
        chance = random.Random(seed)
        statuses: Counter[int] = Counter()
        wrong: Counter[str] = Counter()

        async def one(path: str, data: bytes) -> None:
            connection = Connection(server.port)
            try:
                status, _, body = await asyncio.wait_for(connection.send(data), 40)
            except TimeoutError:
                status, body = 0, b""
            connection.close()
            statuses[status] += 1
            if status >= 400 and not is_in_shape(path, body):
                wrong["shape"] += 1

        async def every() -> None:
            for begin in range(0, count, 32):
                batch = [bad_request(chance) for _ in range(min(32, count - begin))]
                # Every part of a request arrives, so none has to wait for the time limit of a body.
                await asyncio.gather(*(one(path, data) for path, data in batch))

        asyncio.run(every())
        lives = server.lives()
        good = asyncio.run(Connection(server.port).send(post("/embed", {"inputs": "a house"})))[0] if lives else 0
    return {
        "requests": count, "exits": int(not lives), "status_5xx": sum(n for code, n in statuses.items() if code >= 500),
        "no_response": statuses[0], "other_shape": wrong["shape"], "answered_afterwards": good == 200,
        "statuses": {str(code): number for code, number in sorted(statuses.items())},
    }  # fmt: skip


# ---- More than it can compute: the same work per second of processor time, and quick refusals.


async def closed_loop(port: int, clients: int, seconds: float, texts: Sequence[str]) -> Counter[int]:
    """Clients that each wait for a response before the next request."""
    statuses: Counter[int] = Counter()
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        connection = Connection(port)
        while time.monotonic() < end:
            number += 1
            status, _, _ = await connection.send(post("/embed", {"inputs": texts[number % len(texts)]}))
            statuses[status] += 1
        connection.close()

    await asyncio.gather(*(client(7 * number) for number in range(clients)))
    return statuses


def overload(
    seconds: float = 60, factor: float = 10, connections: int = 4000, model: str = "en", *, rival: bool = False
) -> dict[str, Any]:
    """Requests at `factor` times the server's peak, over this many connections that are open before and stay so.

    `per_cpu_second` is the answered requests by the server's processor time, `of_peak` its share of what 64 clients in
    turn get. `refusal_ms` is the median time to a 429 as clients in a process of their own see it (`flood_refusal_ms`:
    as those that flood do, who wait for each other; `bare_refusal_ms`: to a server beside it that only refuses),
    `p99_ms` the time to an answer. `memory_growth` compares the end with the first sixth of the flood,
    `memory_growth_from_peak` with the 64 clients before it.
    """
    _allow_files(connections + 200)
    chance = random.Random(0)
    texts = [some_text(chance, 2.5, 60) for _ in range(200)]
    with served(model, rival=rival) as server:
        asyncio.run(closed_loop(server.port, 64, min(10, seconds / 3), texts))  # warm-up

        def at_its_peak() -> tuple[float, float]:
            """Answers a second, and by second of the server's processor time."""
            before, began = server.cpu(), time.monotonic()
            done = asyncio.run(closed_loop(server.port, 64, min(20, seconds / 3), texts))[200]
            return done / (time.monotonic() - began), done / max(0.01, server.cpu() - before)

        peaks = [at_its_peak()]
        peak = peaks[0][0]
        memory = server.memory()
        times: dict[int, list[float]] = {}
        patient = Counter[str]()
        requests = [post("/embed", {"inputs": text}) for text in texts]
        settled: list[float] = []  # megabytes after the first sixth
        usage: dict[str, float] = {}
        seen: list[tuple[int, float]] = []  # by the probe: status and milliseconds
        bare: list[float] = []  # milliseconds of a server that does nothing but refuse

        async def flood() -> None:
            free = collections.deque(Connection(server.port) for _ in range(connections))
            tasks: set[asyncio.Task[None]] = set()

            async def one(connection: Connection, number: int) -> None:
                sent = time.monotonic()
                status, headers, _ = await connection.send(requests[number % len(requests)])
                times.setdefault(status, []).append(1000 * (time.monotonic() - sent))
                patient["with_retry_after"] += status in (429, 503) and "retry-after" in headers
                free.append(connection)

            for connection in free:
                await connection.open()
            probe, bare_probe = start_probe(server.port, seconds), start_probe(bare_port, seconds)
            usage["before"], start, number = server.cpu(), time.monotonic(), 0
            while (now := time.monotonic()) < start + seconds:
                due = int((now - start) * factor * peak)
                while number < due and free:
                    task = asyncio.create_task(one(free.popleft(), number))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    number += 1
                patient["not_sent"] += max(0, due - number)
                number = max(number, due)
                if not settled and now > start + seconds / 6:
                    settled.append(server.memory())
                await asyncio.sleep(0.002)
            await asyncio.wait(tasks or [asyncio.create_task(asyncio.sleep(0))], timeout=60)
            usage["used"], usage["spent"] = server.cpu() - usage["before"], time.monotonic() - start
            seen.extend(json.loads(probe.communicate()[0]))
            bare.extend(spent for _, spent in json.loads(bare_probe.communicate()[0]))
            for connection in free:
                connection.close()

        with bare_server() as bare_port:
            asyncio.run(flood())
        used, spent = usage["used"], usage["spent"]
        by_cpu = len(times.get(200, ())) / max(0.01, used)
        end = server.memory()
        lives = server.lives()
        if lives:
            peaks.append(at_its_peak())  # others may use more or less of the machine by now
    peak_by_cpu = statistics.mean(by_cpu_second for _, by_cpu_second in peaks)
    refused = times.get(429, []) + times.get(503, [])
    probed = [spent for status, spent in seen if status == 429]
    accepted = [spent for status, spent in seen if status == 200]
    return {
        "connections": connections, "factor": factor, "peak_per_second": [round(rate, 1) for rate, _ in peaks],
        "answered_per_second": round(len(times.get(200, ())) / spent, 1),
        "peak_per_cpu_second": [round(rate, 1) for _, rate in peaks], "per_cpu_second": round(by_cpu, 1),
        "of_peak": round(by_cpu / max(0.01, peak_by_cpu), 3), "refused": len(refused),
        "late": len(times.get(503, ())), "refused_with_retry_after": patient["with_retry_after"],
        "refusal_ms": quantile(probed, 0.5), "bare_refusal_ms": quantile(bare, 0.5),
        "bare_refusal_p99_ms": quantile(bare, 0.99), "refusal_p99_ms": quantile(probed, 0.99),
        "refusals_probed": len(probed), "accepted_probed": len(accepted), "accepted_p50_ms": quantile(accepted, 0.5),
        "accepted_p99_ms": quantile(accepted, 0.99), "flood_refusal_ms": quantile(refused, 0.5),
        "p50_ms": quantile(times.get(200, []), 0.5),
        "p99_ms": quantile(times.get(200, []), 0.99), "no_response": len(times.get(0, ())),
        "other_statuses": {str(code): len(found) for code, found in times.items() if code not in (0, 200, 429, 503)},
        "not_sent": patient["not_sent"], "memory_growth": round(end / settled[0] - 1, 3),
        "memory_growth_from_peak": round(end / memory - 1, 3), "memory_mb": round(end), "lives": lives,
        "server_seconds": round(used, 1), "seconds": round(spent, 1),
    }  # fmt: skip


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


# ---- Hours of mixed requests: memory and files do not grow.


def soak(minutes: float = 60, load: float = 0.8, model: str = "en", precision: str = "auto") -> dict[str, Any]:
    """Mixed requests at this share of the peak: megabytes an hour (of the second half), and open files."""
    with served(model, "--precision", precision) as server:
        chance = random.Random(0)
        samples: list[tuple[float, float, int]] = []
        statuses: Counter[int] = Counter()

        async def client(connection: Connection, end: float) -> None:
            while time.monotonic() < end:
                began = time.monotonic()
                path, body = some_request(chance)
                status, _, _ = await connection.send(post(path, body))
                statuses[status] += 1
                await asyncio.sleep((time.monotonic() - began) * (1 / load - 1))

        async def watch(start: float, end: float) -> None:
            while time.monotonic() < end:
                samples.append(((time.monotonic() - start) / 3600, server.memory(), server.files()))
                if len(samples) % 10 == 1:
                    hour, memory, files = samples[-1]
                    words = f"{60 * hour:.1f} min: {memory:.1f} MB, {files} files, {statuses[200]:,} answers"
                    print(words, file=sys.stderr, flush=True)
                await asyncio.sleep(max(0.2, minutes * 60 / 400))

        async def every() -> None:
            start = time.monotonic()
            end = start + 60 * minutes
            connections = [Connection(server.port) for _ in range(2)]
            await asyncio.gather(watch(start, end), *(client(connection, end) for connection in connections))

        asyncio.run(every())
    half = samples[len(samples) // 2 :]
    hours, memory = [hour for hour, _, _ in half], [size for _, size, _ in half]
    slope = statistics.linear_regression(hours, memory).slope if len(half) > 2 else 0.0
    sent = statuses.total()
    return {
        "minutes": minutes, "requests": sent, "other_statuses": sent - statuses[200], "memory_mb": {
            "start": round(samples[0][1]), "quarter": round(samples[len(samples) // 4][1]),
            "half": round(half[0][1]), "end": round(half[-1][1]), "most": round(max(size for _, size, _ in samples)),
        },
        "mb_per_hour": round(slope, 1), "mb_per_1000_requests": round(slope * minutes / 60 / max(1, sent) * 1000, 2),
        "files": {"half": half[0][2], "end": half[-1][2]},
    }  # fmt: skip


# ---- The same answer alone and among others.


def difference(answer: Any, other: Any) -> float:
    """The largest difference of two numbers in the same place; infinite if anything else differs."""
    if isinstance(answer, float) or isinstance(other, float):
        return abs(answer - other)
    if isinstance(answer, dict) and isinstance(other, dict) and answer.keys() == other.keys():
        return max((difference(answer[key], other[key]) for key in answer), default=0.0)
    if isinstance(answer, list) and isinstance(other, list) and len(answer) == len(other):
        return max((difference(*pair) for pair in zip(answer, other)), default=0.0)
    return 0.0 if answer == other else float("inf")


def same_answers(
    count: int = 10_000, seed: int = 0, clients: int = 64, model: str = "en", precision: str = "auto"
) -> dict[str, Any]:
    """Mixed requests one by one, and by many clients at once: the largest difference, and how many differ."""
    chance = random.Random(seed)
    requests = [post(*some_request(chance)) for _ in range(count)]

    with served(model, "--precision", precision) as server:

        async def ask(order: Sequence[int], workers: int) -> dict[int, Any]:
            answers: dict[int, Any] = {}
            waiting = iter(order)

            async def client() -> None:
                connection = Connection(server.port)
                for number in waiting:
                    status, _, body = await connection.send(requests[number])
                    while (
                        status == 429
                    ):  # a slow machine may not have room for all clients: as a client would, try again
                        await asyncio.sleep(1)
                        status, _, body = await connection.send(requests[number])
                    answers[number] = json.loads(body) if status == 200 else f"status {status}"
                connection.close()

            await asyncio.gather(*(client() for _ in range(workers)))
            return answers

        alone = asyncio.run(ask(range(count), 1))
        order = list(range(count))
        chance.shuffle(order)
        together = asyncio.run(ask(order, clients))
    apart = [difference(alone[number], together[number]) for number in range(count)]
    largest = max((gap for gap in apart if gap < float("inf")), default=0.0)
    return {
        "requests": count, "clients": clients, "precision": precision, "largest_difference": largest,
        "differ": sum(gap > 0 for gap in apart), "other_answers": sum(gap == float("inf") for gap in apart),
        "refused": sum(isinstance(answer, str) for answer in (*alone.values(), *together.values())),
    }  # fmt: skip


# ---- A signal to stop loses nothing that was accepted.


def graceful_stop(clients: int = 64, model: str = "en", signals: int = 1) -> dict[str, Any]:
    """SIGTERM under load: statuses that clients got, seconds to the exit, and its code."""
    with served(model) as server:
        statuses: Counter[str] = Counter()
        chance = random.Random(0)
        texts = [some_text(chance, 3.5) for _ in range(32)]

        async def client(stop: asyncio.Event) -> None:
            connection = Connection(server.port)
            while True:
                began_before = not stop.is_set()
                status, _, _ = await connection.send(post("/embed", {"inputs": texts}))
                statuses[f"{status or 'closed'} {'before' if began_before else 'after'}"] += 1
                if stop.is_set():
                    return

        async def every() -> tuple[float, int]:
            stop = asyncio.Event()
            tasks = [asyncio.create_task(client(stop)) for _ in range(clients)]
            await asyncio.sleep(3)
            began = time.monotonic()
            for number in range(signals):
                server.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.3 * (number + 1 < signals))
            stop.set()
            await asyncio.sleep(0.3)
            health = (await Connection(server.port).send(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"))[0]
            await asyncio.gather(*tasks)
            while server.lives() and time.monotonic() < began + 60:
                await asyncio.sleep(0.05)
            return time.monotonic() - began, health

        seconds, health = asyncio.run(every())
        return {
            "signals": signals, "statuses": dict(sorted(statuses.items())), "health_while_stopping": health,
            "seconds_to_exit": round(seconds, 1), "exit_code": server.process.poll(),
            "status_500": sum(number for status, number in statuses.items() if status.startswith("500")),
        }  # fmt: skip


# ---- Clients that are slow, or leave.


def slow_clients(slow: int = 500, gone: int = 1000, seconds: float = 20, model: str = "en") -> dict[str, Any]:
    """The latency of one client alone, and next to slow connections and clients that leave without their answer."""
    _allow_files(slow + gone + 200)
    with served(model) as server:
        chance = random.Random(0)
        texts = [some_text(chance, 2.5, 60) for _ in range(100)]

        async def latencies(length: float) -> list[float]:
            connection, times, end = Connection(server.port), [], time.monotonic() + length
            while time.monotonic() < end:
                began = time.monotonic()
                status, _, _ = await connection.send(post("/embed", {"inputs": chance.choice(texts)}))
                assert status == 200, status
                times.append(1000 * (time.monotonic() - began))
                await asyncio.sleep(0.01)
            connection.close()
            return times

        async def dribble(length: float) -> None:
            """A connection that sends its header, or its body, a byte at a time."""
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                end = time.monotonic() + length
                data = post("/embed", {"inputs": "a" * 200})
                at = chance.choice((1, len(data) - 150))
                writer.write(data[:at])
                while time.monotonic() < end and at < len(data):
                    await asyncio.sleep(1)
                    writer.write(data[at : at + 1])
                    at += 1
                writer.close()
            except OSError:
                pass

        async def leave(after: float) -> None:
            await asyncio.sleep(after)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(post("/embed", {"inputs": [some_text(chance) for _ in range(4)]}))
                await asyncio.sleep(0.01)
                writer.close()
            except OSError:
                pass

        async def together() -> list[float]:
            others = [asyncio.create_task(dribble(seconds)) for _ in range(slow)]
            others += [asyncio.create_task(leave(chance.uniform(0, seconds))) for _ in range(gone)]
            await asyncio.sleep(0.5)
            times = await latencies(seconds)
            await asyncio.gather(*others)
            return times

        asyncio.run(latencies(2))
        alone = asyncio.run(latencies(seconds))
        among = asyncio.run(together())
        time.sleep(1)
        queue = re.search(r"queue_size (\d+)", asyncio.run(_metrics(server.port)))
    return {
        "slow": slow, "gone": gone, "alone_ms": {"p50": quantile(alone, 0.5), "p99": quantile(alone, 0.99)},
        "among_ms": {"p50": quantile(among, 0.5), "p99": quantile(among, 0.99)},
        "left_in_queue": int(queue[1]) if queue else None,
    }  # fmt: skip


# ---- One row of benchmarks/promises.py for each.

GROWTH, OF_PEAK, REFUSAL_MS, BOUND_MS, MB_PER_HOUR = 0.05, 0.95, 20, 30_000, 2


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
        figures = graceful_stop(**more)
        bad, count = figures["status_500"] + (figures["exit_code"] != 0), sum(figures["statuses"].values())
    elif name == "slow_clients":
        figures = slow_clients(seconds=count, **more)
        bad, count = int(figures["left_in_queue"] != 0), figures["slow"] + figures["gone"]
    else:
        figures = soak(count, **more)
        bad, count = int(figures["mb_per_hour"] > MB_PER_HOUR) + figures["other_statuses"], figures["requests"]
    return {"tried": count, "bad": bad, "figures": json.dumps(figures)}


async def _metrics(port: int) -> str:
    return (await Connection(port).send(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"))[2].decode()


def main() -> None:
    names = ("malformed", "overload", "same_answers", "graceful_stop", "slow_clients", "soak")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all but soak)")
    parser.add_argument("--model", default="en", help="a name or a folder with a head for masked words")
    parser.add_argument("--precision", default="auto", help="of same_answers and soak")
    parser.add_argument("--count", type=int, default=10_000, help="requests of malformed and same_answers")
    parser.add_argument("--seconds", type=float, default=60, help="of overload and slow_clients")
    parser.add_argument("--minutes", type=float, default=60, help="of soak")
    parser.add_argument("--factor", type=float, default=10, help="of overload: times the peak")
    parser.add_argument("--connections", type=int, default=4000, help="of overload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rival", action="store_true", help="also measure a plain FastAPI server")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--quick", action="store_true", help="500 requests, 10 seconds, 1,000 connections")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.count, chosen.seconds, chosen.connections = 500, 10.0, 1000
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
        "graceful_stop": lambda: [graceful_stop(model=model), graceful_stop(model=model, signals=2)],
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
