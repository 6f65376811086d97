"""A server under more load than it can take, and with slow clients beside the others."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import re
import resource
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from _served import Connection, bare_server, post, quantile, served, some_text, start_probe

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


async def _metrics(port: int) -> str:
    return (await Connection(port).send(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"))[2].decode()
