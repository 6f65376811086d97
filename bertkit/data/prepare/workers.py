"""Chunks of documents through several processes, results in order.

Each worker is a fresh Python that reads documents from its standard input and writes arrays to its standard output:
no fork of a process with threads, no pickles, and it exits when its parent process is gone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TypeVar

from bertkit.data.prepare.pieces import Arrays, PieceEncoder, arrays_of
from bertkit.errors import UserError
from bertkit.text.tokenizer import Tokenizer

Chunk = TypeVar("Chunk")
ROOT = Path(__file__).resolve().parents[3]


def in_order(
    chunks: Iterable[Chunk],
    documents_of: Callable[[Chunk], Sequence[str]],
    tokenizer: Path,
    segmenting: bool,
    workers: int,
) -> Generator[tuple[Chunk, Arrays], None, None]:
    """Prepare chunks of documents in worker processes, results in order.

    With one worker, the work is done in this process.
    """
    if workers <= 1:
        encoder = PieceEncoder(Tokenizer.load(tokenizer), segmenting)
        for chunk in chunks:
            yield chunk, arrays_of(documents_of(chunk), encoder)
        return
    idle: SimpleQueue[_Worker] = SimpleQueue()
    started: list[_Worker] = []
    waiting: deque[tuple[Chunk, Future[Arrays]]] = deque()

    def work(documents: Sequence[str]) -> Arrays:
        worker = idle.get()
        try:
            return worker.arrays_of(documents)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(workers)
    try:
        for _ in range(workers):
            started.append(_Worker(tokenizer, segmenting))
            idle.put(started[-1])
        for chunk in chunks:
            waiting.append((chunk, pool.submit(work, documents_of(chunk))))
            # One waiting chunk per worker besides the one it is working on: none is idle, and memory stays bounded.
            if len(waiting) >= 2 * workers:
                finished, future = waiting.popleft()
                yield finished, future.result()
        while waiting:
            finished, future = waiting.popleft()
            yield finished, future.result()
    finally:
        for _, future in waiting:
            future.cancel()
        for worker in started:
            worker.stop()
        pool.shutdown()


class _Worker:
    """A worker process and the pipes to it."""

    def __init__(self, tokenizer: Path, segmenting: bool) -> None:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__ if __name__ != "__main__" else "bertkit.data.prepare.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"},
        )
        assert self.process.stdin and self.process.stdout
        self.to, self.back = self.process.stdin, self.process.stdout
        with suppress(BrokenPipeError):  # reported at the first chunk
            _send(self.to, json.dumps({"tokenizer": str(tokenizer), "segmenting": segmenting}).encode())

    def arrays_of(self, documents: Sequence[str]) -> Arrays:
        """A worker process of `prepare`: the arrays of some documents."""
        answer = None
        with suppress(BrokenPipeError):
            _send(self.to, "".join(document + "\0" for document in documents).encode())
            answer = _receive(self.back)
        if answer is None:
            raise UserError(
                f"A worker process ended early (code {self.process.wait()}). Did it run out of memory? "
                "Run the same command again with --workers 1: it continues where this one stopped."
            )
        return Arrays.from_bytes(answer)

    def stop(self) -> None:
        """End a worker process of `prepare`, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.to, self.back):
            with suppress(BrokenPipeError):
                pipe.close()


def _send(pipe: IO[bytes], message: bytes) -> None:
    """Send a message to a worker process: its length, then its bytes."""
    pipe.write(len(message).to_bytes(8, "little"))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """A message from a worker process; None if it ended."""
    size = pipe.read(8)
    message = pipe.read(int.from_bytes(size, "little")) if len(size) == 8 else b""
    return message if len(size) == 8 and len(message) == int.from_bytes(size, "little") else None


def serve(incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """A worker of `prepare`: answer each message of documents with their arrays, until there is no more."""
    # Ctrl-C reaches every process of the terminal; the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup = json.loads(_receive(incoming) or b"{}")
    encoder = PieceEncoder(Tokenizer.load(setup["tokenizer"]), setup["segmenting"])
    while (message := _receive(incoming)) is not None:
        _send(outgoing, arrays_of(message.decode().split("\0")[:-1], encoder).to_bytes())


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
