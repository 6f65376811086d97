"""A server that runs for hours, answers the same alone and in company, and stops without losing a request."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from _served import WORDS, Connection, post, served, some_request, some_text

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


# ---- The largest requests that are allowed, all at once.


def largest(count: int = 500, clients: int = 64, model: str = "en") -> dict[str, Any]:
    """Requests of 100,000 characters (in one text, in 32, in 2,048), as large as they may be, by many clients."""
    chance = random.Random(0)

    def words(characters: int) -> str:
        return " ".join(chance.choice(WORDS) for _ in range(characters // 3))[:characters]

    bodies = [("/embed", {"inputs": [words(3_125) for _ in range(32)]}), ("/embed", {"inputs": words(100_000)}),
              ("/v1/embeddings", {"model": model, "input": [words(48) for _ in range(2_048)]})]  # fmt: skip
    requests = [post(path, body) for path, body in bodies]
    with served(model) as server:
        statuses: Counter[int] = Counter()
        start, most = server.memory(), 0.0
        waiting = iter(range(count))

        async def client() -> None:
            connection = Connection(server.port)
            for number in waiting:
                status, _, _ = await connection.send(requests[number % len(requests)])
                while status == 429:  # as a client would, wait, and try again
                    statuses[status] += 1
                    await asyncio.sleep(1)
                    status, _, _ = await connection.send(requests[number % len(requests)])
                statuses[status] += 1
            connection.close()

        async def every() -> None:
            nonlocal most
            tasks = [asyncio.create_task(client()) for _ in range(clients)]
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks, timeout=0.1)
                most = max(most, server.memory())

        asyncio.run(every())
        lives = server.lives()
    return {
        "requests": count, "clients": clients, "statuses": {str(key): n for key, n in sorted(statuses.items())},
        "other_statuses": statuses.total() - statuses[200] - statuses[429] - statuses[503], "exits": int(not lives),
        "start_mb": round(start), "most_mb": round(most),
    }  # fmt: skip


# ---- A signal to stop loses nothing that was accepted.


def graceful_stop(times: int = 1, clients: int = 64, model: str = "en", signals: int = 1) -> dict[str, Any]:
    """SIGTERM under load, so many times: statuses that clients got, the longest time to the exit, and its codes.

    `lost` counts requests that were sent before the signal and got no response.
    """
    statuses: Counter[str] = Counter()
    chance = random.Random(0)
    texts = [some_text(chance, 3.5) for _ in range(32)]

    def stopped() -> tuple[float, int, int | None]:
        """Seconds to the exit, the status of /health meanwhile, and the exit code."""
        with served(model) as server:

            async def client(stop: asyncio.Event) -> None:
                connection = Connection(server.port)
                while True:
                    began_before = not stop.is_set()
                    status, _, _ = await connection.send(post("/embed", {"inputs": texts}))
                    statuses[f"{status or 'closed'} {'before' if began_before else 'after'}"] += 1
                    if stop.is_set():
                        return
                    if status == 429:
                        await asyncio.sleep(0.1)

            async def every() -> tuple[float, int]:
                stop = asyncio.Event()
                tasks = [asyncio.create_task(client(stop)) for _ in range(clients)]
                await asyncio.sleep(3)
                began = time.monotonic()
                stop.set()  # first: what is sent while the signal is on its way may meet a closed port
                for number in range(signals):
                    server.process.send_signal(signal.SIGTERM)
                    await asyncio.sleep(0.3 * (number + 1 < signals))
                await asyncio.sleep(0.3)
                health = (await Connection(server.port).send(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"))[0]
                await asyncio.gather(*tasks)
                while server.lives() and time.monotonic() < began + 60:
                    await asyncio.sleep(0.05)
                return time.monotonic() - began, health

            seconds, health = asyncio.run(every())
            return seconds, health, server.process.poll()

    stops = [stopped() for _ in range(times)]
    return {
        "stops": times, "signals": signals, "requests": statuses.total(), "statuses": dict(sorted(statuses.items())),
        "lost": statuses["closed before"], "health_while_stopping": sorted({health for _, health, _ in stops}),
        "seconds_to_exit": round(max(seconds for seconds, _, _ in stops), 1),
        "other_exits": sum(code != 0 for _, _, code in stops),
        "status_500": sum(number for status, number in statuses.items() if status.startswith("500")),
    }  # fmt: skip
