"""Whatever is sent, the server keeps running, and says what was wrong."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

from _served import ROUTES, Connection, post, served, some_request

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
