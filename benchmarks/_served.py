"""A server in a process of its own, and the plain clients that send to it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WORDS = [
    "the", "of", "and", "house", "river", "letter", "king", "garden", "old", "small", "green", "walked", "under",
    "people", "water", "time", "world", "government", "music", "report", "because", "never", "market", "answer",
]  # fmt: skip
ROUTES = ("/embed", "/predict", "/rerank", "/similarity", "/tokenize", "/fill", "/tag", "/ner", "/answer", "/qa",
          "/choose", "/", "/models/en", "/pipeline/fill-mask", "/v1/embeddings")  # fmt: skip
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
USUAL = """
import sys, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
import bertkit
model = bertkit.load("MODEL")
app = FastAPI()
class Body(BaseModel):
    inputs: str | list[str]
@app.post("/embed")
def embed(body: Body) -> list[list[float]]:
    return model.embed(body.inputs, normalize=True).tolist()
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
"""


# ---- A server in a process of its own.


class Served:
    """A running server: its port, and what its process uses."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def cpu(self) -> float:
        """Seconds its threads have computed."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> float:
        """Resident megabytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE / 1e6

    def files(self) -> int:
        """Open file descriptors."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def lives(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def served(model: str = "en", *options: str, rival: bool = False) -> Iterator[Served]:
    """`bertkit serve`, or the usual few lines around the same model, once it accepts connections."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        if rival:
            script = Path(folder) / "usual.py"
            script.write_text(USUAL.replace("MODEL", model))
            command = [sys.executable, str(script), str(port)]
        else:
            command = [sys.executable, "-m", "bertkit", "serve", model, "--port", str(port), *options]
        with (Path(folder) / "log").open("w") as log:
            # In a session of its own: Linux shares a busy machine by session, and the clients would take from its part.
            process = subprocess.Popen(command, stdout=log, stderr=log, text=True, start_new_session=True)
        try:
            end = time.monotonic() + 120
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > end:
                        raise RuntimeError((Path(folder) / "log").read_text()[-2000:]) from None
                    time.sleep(0.1)
            yield Served(process, port)
        finally:
            process.kill()
            process.wait()


# ---- Clients: a request and its response over a kept connection, and nothing else.


class Connection(asyncio.Protocol):
    """One kept connection, opened when it is needed. Without streams: what a client costs is taken from the server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.transport: asyncio.Transport | None = None

    async def send(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the response; (0, {}, b"") if the connection was closed without one."""
        try:
            await self.open()
            assert self.transport is not None
            self.transport.write(data)
            return await self.answer
        except OSError:
            self.close()
            return 0, {}, b""

    async def open(self) -> None:
        """Connect, unless it is connected."""
        loop = asyncio.get_running_loop()
        self.unread = bytearray()
        self.answer: asyncio.Future[tuple[int, dict[str, str], bytes]] = loop.create_future()
        if self.transport is None:
            self.transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self.port)

    def data_received(self, data: bytes) -> None:
        """Answer, once the response is whole."""
        self.unread += data
        head, blank, body = bytes(self.unread).partition(b"\r\n\r\n")
        if not blank or self.answer.done():
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(body) >= int(headers.get("content-length", 0)):
            if headers.get("connection") == "close":
                self.close()
            self.answer.set_result((int(first.split()[1]), headers, body))

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed it, perhaps without an answer."""
        self.transport = None
        if not self.answer.done():
            self.answer.set_result((0, {}, b""))

    def close(self) -> None:
        """Close it; the next request opens a new one."""
        if self.transport is not None:
            self.transport.close()
            self.transport = None


PROBE = """
import json, os, socket, sys, threading, time
port, seconds, request, times = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].encode(), []
try:
    os.nice(-10)  # it measures the server, not its own turn on a busy machine; it computes next to nothing
except OSError:
    pass
time.sleep(seconds / 6)  # until the queue is full
end = time.monotonic() + 5 * seconds / 6
def client():
    line = socket.create_connection(("127.0.0.1", port), 60)
    while time.monotonic() < end:
        began, answer = time.monotonic(), b""
        line.sendall(request)
        while b"\\r\\n\\r\\n" not in answer or b"]" not in answer and b"}" not in answer[-3:]:
            part = line.recv(65536)
            if not part:
                line = socket.create_connection(("127.0.0.1", port), 60)
                break
            answer += part
        times.append([int(answer[9:12] or 0), 1000 * (time.monotonic() - began)])
        time.sleep(0.2)
threads = [threading.Thread(target=client) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(times))
"""


BARE = """
import asyncio, sys
class Bare(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(b"HTTP/1.1 429 Refused\\r\\ncontent-length: 2\\r\\n\\r\\n{}")
async def serve():
    await (await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", int(sys.argv[1]))).serve_forever()
asyncio.run(serve())
"""


@contextmanager
def bare_server() -> Iterator[int]:
    """The port of a server that does nothing but refuse: as quick as this machine lets any server in Python be."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", BARE, str(port)])
    try:
        time.sleep(2)
        yield port
    finally:
        process.kill()
        process.wait()


def start_probe(port: int, seconds: float) -> subprocess.Popen[str]:
    """Eight clients in a process of their own, five requests a second each: prints [[status, milliseconds], …]."""
    request = post("/embed", {"inputs": "a house"}).decode()
    return subprocess.Popen(
        [sys.executable, "-c", PROBE, str(port), str(seconds), request], stdout=subprocess.PIPE, text=True
    )


def post(path: str, body: bytes | Any, kind: str = "application/json") -> bytes:
    """A request as bytes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def some_text(chance: random.Random, mean: float = 2.8, longest: int = 500) -> str:
    """Random words, of a length whose logarithm is normal."""
    return " ".join(chance.choice(WORDS) for _ in range(min(longest, int(chance.lognormvariate(mean, 0.8)) + 1)))


def some_request(chance: random.Random) -> tuple[str, Any]:
    """A valid request to a model of masked words: route and body."""
    texts = [some_text(chance) for _ in range(chance.choice((1, 1, 1, 2, 5, 16)))]
    return chance.choice((
        ("/embed", {"inputs": texts}),
        ("/fill", {"inputs": "the [MASK] of " + some_text(chance, longest=100)}),
        ("/similarity", {"inputs": {"source_sentence": texts[0], "sentences": texts}}),
        ("/v1/embeddings", {"model": "en", "input": texts}),
    ))  # fmt: skip


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else 0.0
