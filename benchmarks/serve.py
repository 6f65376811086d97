"""Vectors over HTTP: bertkit's server and the usual few lines of FastAPI, on the same weights.

    python benchmarks/serve.py [--table|--quick|--smoke] [--json] [--threads 2] [--only NAME,NAME]

Every contestant is a process with a server; clients in this process send one text a request over kept connections,
alone or many at once, and the contestants take turns. The baseline is what a first script does: an endpoint that calls
sentence-transformers' `encode`; `onnxruntime-…` and `openvino-…` are the same endpoint around those engines, and
`bertkit-onnx` and its like serve what `bertkit export` wrote. `bertkit-one-by-one` computes every request by itself,
which shows what computing together is worth. `per_cpu_second` counts requests by the processor time of the server
alone: on a machine that others use, a server with more threads is given more of it. `difference` is the largest of any
number against the baseline's, vectors of length one; `cosine` and `tier` are as in embed.py.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import _workers as workers
import numpy as np
from _contestants import CONTESTANTS as EMBEDDERS
from _harness import (
    PAUSE,
    Row,
    machine,
    neat,
    row,
    skipped,
    take_turns,
    tell,
    texts_of,
    with_ratios,
)
from _models import CONVERSIONS, EXPORTED, learn_vocabulary, make
from embed import centred_cosine, tier

from bertkit.text.tokenizer import Tokenizer

BASELINE = "sentence-transformers"
LIBRARIES = ("fastapi", "uvicorn", "sentence-transformers", "transformers", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Case:
    """So many clients at once, each sending for so many seconds a turn; one client is timed by request."""

    model: str
    clients: int
    seconds: float
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.model}, {self.clients} client{'s' * (self.clients > 1)}"


FORMS = {
    "smoke": [Case("tiny", 1, 0.2, 1), Case("tiny", 4, 0.2, 1)],
    "quick": [Case("minilm", 1, 2, 2), Case("minilm", 16, 4, 2)],
    "table": [Case("minilm", 1, 2, 3), Case("minilm", 32, 4, 2)],
    "full": [Case("minilm", clients, 5, 4) for clients in (1, 4, 16, 64)],
}
TEXTS = {"smoke": 20, "quick": 200, "table": 200, "full": 500}


def start(app: Any) -> int:
    """Serve an app on a free port from a thread of this process."""
    import uvicorn

    from bertkit.server.app import bind

    bound = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    threading.Thread(target=server.run, args=([bound],), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return int(bound.getsockname()[1])


def bertkit(folder: Path, threads: int, precision: str = "auto", engine: str = "torch", **limits: Any) -> int:
    from bertkit import machine as own
    from bertkit.server.app import make_app
    from bertkit.server.errors import Limits
    from bertkit.server.models import load
    from bertkit.server.service import InferenceService

    own.set_threads(threads)
    model = folder if engine == "torch" else folder / EXPORTED
    registry = load([str(model)], precision, engine=engine)
    return start(make_app(InferenceService(registry, Limits(**limits), threads=threads)))


def usual(folder: Path, threads: int, library: str = BASELINE) -> int:
    """What a first script does. The endpoint is a plain function, which FastAPI runs in a pool of threads."""
    from fastapi import Body, FastAPI

    vectors_of = EMBEDDERS[library].open(folder, threads)
    lock = threading.Lock()  # not every library may be called twice at once
    app = FastAPI()

    @app.post("/embed")
    def embed(inputs: str = Body(embed=True)) -> list[list[float]]:
        with lock:
            vectors = np.asarray(vectors_of([inputs]))
        embedded: list[list[float]] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).tolist()
        return embedded

    return start(app)


PEERS = ("onnxruntime-fp32", "onnxruntime-int8", "openvino-fp32")
CONTESTANTS: dict[str, Callable[..., int]] = {
    BASELINE: usual,
    "bertkit": bertkit,
    "bertkit-fp32": partial(bertkit, precision="fp32"),
    "bertkit-one-by-one": partial(bertkit, together=1),
    "bertkit-onnx": partial(bertkit, engine="onnx", precision="fp32"),
    "bertkit-onnx-int8": partial(bertkit, engine="onnx", precision="int8"),
    "bertkit-openvino": partial(bertkit, engine="openvino", precision="fp32"),
    **{name: partial(usual, library=name) for name in PEERS},
}


def convert(name: str, folder: Path, done: set[Any]) -> None:
    """Make the files that a contestant opens, once; a library that is not installed is a failure of its own."""
    embedder = EMBEDDERS.get(name)
    if embedder is None:
        return
    if reason := embedder.lacks():
        raise workers.Failed(reason)
    for step in CONVERSIONS.get(embedder.conversion, ()):
        if step not in done:
            workers.apart(step, folder)
            done.add(step)


def port_of(port: int) -> int:
    return port


def cpu_of(port: int) -> float:
    """Seconds that all threads of the server's process have computed."""
    return time.process_time()


class Client:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=60)

    def __call__(self, text: str) -> Any:
        body = json.dumps({"inputs": text})
        self.connection.request("POST", "/embed", body, {"content-type": "application/json"})
        answer = self.connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {said[:100]!r}")
        return json.loads(said)


def send(port: int, texts: Sequence[str], seconds: float, first: int) -> list[float]:
    """Seconds of each request that one client sends in its time, one after another."""
    client, times, end = Client(port), [], time.perf_counter() + seconds
    number = first
    while not times or time.perf_counter() < end:
        began = time.perf_counter()
        client(texts[number % len(texts)])
        times.append(time.perf_counter() - began)
        number += 1
    client.connection.close()
    return times


def turn(worker: workers.Worker, port: int, case: Case, texts: Sequence[str]) -> tuple[float, float, list[float]]:
    """Requests a second of all clients, and a CPU-second of the server; the milliseconds of each request."""
    cpu, began = worker.ask(cpu_of), time.perf_counter()
    with ThreadPoolExecutor(case.clients) as pool:
        each = pool.map(lambda n: send(port, texts, case.seconds, 7 * n), range(case.clients))
        times = [1000 * one for client in each for one in client]
    seconds = time.perf_counter() - began
    return len(times) / seconds, len(times) / max(1e-9, worker.ask(cpu_of) - cpu), times


def measure(
    case: Case, there: dict[str, workers.Worker], absent: dict[str, str], texts: list[str], rounds: int, pause: float
) -> list[Row]:
    ports = {name: worker.ask(port_of) for name, worker in there.items()}
    vectors = {name: np.array([Client(port)(text)[0] for text in texts[:16]]) for name, port in ports.items()}

    def drop(name: str, reason: Exception) -> None:
        absent[name] = workers.told(reason)

    turns = {name: partial(turn, there[name], port, case, texts) for name, port in ports.items()}
    found = take_turns(turns, rounds or case.rounds, drop, pause)
    rows = []
    for name, results in found.items():
        times = np.concatenate([times for _, _, times in results])
        more: Row = {
            "p50_ms": neat(float(np.median(times))),
            "p99_ms": neat(float(np.quantile(times, 0.99))),
            "per_cpu_second": neat(float(np.median([by_cpu for _, by_cpu, _ in results]))),
        }
        if BASELINE in vectors and name != BASELINE:
            more["difference"] = neat(float(np.abs(vectors[name] - vectors[BASELINE]).max()))
            more["cosine"] = centred_cosine(vectors[name], vectors[BASELINE])
            more["tier"] = tier(more["cosine"]["mean"])
        if case.clients == 1:
            rows.append(row(case.name, name, times.tolist(), "ms", **more))
        else:
            rows.append(row(case.name, name, [speed for speed, _, _ in results], "requests/s", **more))
    return rows + [skipped(case.name, name, reason) for name, reason in absent.items()]


def run(form: str, names: Sequence[str], threads: int, rounds: int) -> dict[str, Any]:
    began = time.perf_counter()
    document: dict[str, Any] = {"machine": workers.apart(machine, threads, LIBRARIES), "form": form}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        for model in dict.fromkeys(case.model for case in FORMS[form]):
            folder = Path(temporary) / model
            folder.mkdir()
            small = (1000, 600) if form == "smoke" else ()
            words = workers.apart(learn_vocabulary, folder, *small)
            workers.apart(make, folder, model)
            texts = texts_of("short", TEXTS[form], Tokenizer.load(folder), words)
            there: dict[str, workers.Worker] = {}
            absent: dict[str, str] = {}
            converted: set[Any] = set()
            for name in names:
                try:
                    convert(name, folder, converted)
                    there[name] = workers.Worker(CONTESTANTS[name], folder, threads)
                except workers.Failed as reason:
                    absent[name] = str(reason)
            tell(f"{time.perf_counter() - began:4.0f} s  {model}: {len(there)} contestants are ready")
            for case in (case for case in FORMS[form] if case.model == model):
                rows += measure(case, there, absent, texts, rounds, 0 if form == "smoke" else PAUSE)
                tell(f"{time.perf_counter() - began:4.0f} s  {case.name}: done")
            for worker in there.values():
                worker.close()
    return document | {"rows": with_ratios(rows, BASELINE), "seconds": round(time.perf_counter() - began)}


def main() -> None:
    workers.compete("serve", __doc__ or "", list(CONTESTANTS), BASELINE, run)


if __name__ == "__main__":
    main()
