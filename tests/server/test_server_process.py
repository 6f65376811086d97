"""The server as a process: many clients at once, overload, and a signal to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertkit import notify
from bertkit.commands import serve
from bertkit.errors import UserError
from bertkit.server import app as server_process
from bertkit.server.errors import Limits
from bertkit.server.models import names_of
from bertkit.server.service import InferenceService
from tests.support import toy
from tests.support.command_line import CommandLine
from tests.support.running_server import Running, ask


@pytest.fixture
def running(registry) -> Iterator[Any]:
    made: list[Running] = []

    def start(**limits: Any) -> Running:
        made.append(Running(InferenceService(registry, Limits(**limits), threads=1)))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def held(service: InferenceService) -> threading.Event:
    """Stop the computing thread at its next batch until the event is set."""
    go, compute = threading.Event(), service.queue.compute

    def slow(key: Any, inputs: list[Any]) -> Any:
        assert go.wait(240)
        return compute(key, inputs)

    service.queue.compute = slow
    return go


def until(what: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_freed_memory_is_returned_to_the_system_once_a_minute(running, monkeypatch) -> None:
    trimmed: list[float] = []
    monkeypatch.setattr("bertkit.server.service.machine.trim_memory", lambda: trimmed.append(time.monotonic()))
    server = running()
    body = {"inputs": "a house"}
    assert ask(server.port, "/embed", body)[0] == 200 and not trimmed
    server.service._trimmed -= 61
    assert [ask(server.port, "/embed", body)[0] for _ in range(3)] == [200, 200, 200]
    assert len(trimmed) == 1


def test_many_clients_at_once_get_the_numbers_of_the_predictor(running, registry) -> None:
    server = running()
    go = held(server.service)
    texts = [row["text"] for row in toy.messages(120)]
    wanted = registry["words"].predictor.embed(texts)
    labels = registry["labels"].predictor.predict(texts)

    def one(number: int) -> tuple[Any, Any]:
        body = {"inputs": texts[number]}
        return server.ask("/embed", body | {"normalize": False})[1][0], server.ask("/predict", body)[1]

    with ThreadPoolExecutor(24) as pool:
        found = pool.map(one, range(len(texts)))
        until(lambda: len(server.service.queue) + server.service.queue._running >= 20, 20)  # the first may be several
        go.set()
        for (vector, said), want, label in zip(found, wanted, labels):
            np.testing.assert_allclose(vector, want, atol=2e-6)
            assert {x["label"]: pytest.approx(x["score"], abs=2e-6) for x in said} == label["scores"]
    sizes = server.service.metrics.histograms["batch_next_size"]
    assert sum(sizes.counts) < 2 * len(texts)  # some were computed together


def test_overload_is_429_at_once_with_the_time_to_come_back(running) -> None:
    server = running(waiting=4)
    go = held(server.service)
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(server.ask, "/embed", {"inputs": "a"})
        until(lambda: server.service.queue._running)
        waiting = [pool.submit(server.ask, "/embed", {"inputs": ["a", "b"]}) for _ in range(4)]
        until(lambda: len(server.service.queue) == 4)
        for body in ({"inputs": "a"}, {"inputs": ["a"] * 20}):
            status, said, headers = server.ask("/embed", body)
            assert status == 429 and said["error_type"] == "Overloaded" and int(headers["retry-after"]) >= 1
        status, said, headers = server.ask("/v1/embeddings", {"input": "a", "model": "words"})
        assert status == 429 and said["error"]["type"] == "rate_limit_error" and "retry-after" in headers
        assert server.ask("/health")[0] == 200  # the event loop is free
        go.set()
        assert {one.result()[0] for one in (first, *waiting)} == {200}


def test_a_request_that_waits_too_long_is_503_and_leaves_the_queue(running) -> None:
    server = running(seconds=0.2)
    go = held(server.service)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(server.ask, "/embed", {"inputs": "a"}) for _ in range(2)]
        for one in both:
            status, said, headers = one.result()
            assert status == 503 and said["error_type"] == "Overloaded" and "retry-after" in headers
    assert len(server.service.queue) == 0
    go.set()
    until(lambda: server.service.queue.idle)
    assert server.ask("/embed", {"inputs": "a"})[0] == 200


def test_work_of_a_client_that_went_away_is_dropped(running) -> None:
    server = running()
    go = held(server.service)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.ask, "/embed", {"inputs": "a"})
        until(lambda: server.service.queue._running)
        connection = HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/embed", '{"inputs": "b"}', {"content-type": "application/json"})
        until(lambda: len(server.service.queue) == 1)
        connection.close()
        until(lambda: len(server.service.queue) == 0)
        go.set()
        assert first.result()[0] == 200


def closed_within(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1000) == b""
    except TimeoutError:
        return False


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nhost: loc"])
@pytest.mark.parametrize("before", [False, True])
def test_a_client_that_sends_no_whole_header_is_let_go(running, monkeypatch, sent: bytes, before: bool) -> None:
    monkeypatch.setattr(server_process, "KEEP_ALIVE", 1.0)
    server = running()
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        if before:  # the same on a connection that has served
            silent.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            silent.settimeout(20)
            assert b" 200 " in silent.recv(1000)
        silent.sendall(sent)
        assert not closed_within(silent, 0.4)
        assert closed_within(silent, 20)


def test_a_request_that_takes_longer_than_connections_are_kept_is_answered(running, monkeypatch) -> None:
    monkeypatch.setattr(server_process, "KEEP_ALIVE", 0.3)
    server = running()
    go = held(server.service)
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        body = b'{"inputs": "a"}'
        slow.sendall(b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
        slow.sendall(b"content-length: %d\r\n\r\n" % len(body) + body[:5])
        assert not closed_within(slow, 0.8)  # its body has not come
        slow.sendall(body[5:])
        assert not closed_within(slow, 0.8)  # it is being computed
        go.set()
        slow.settimeout(20)
        assert b" 200 " in slow.recv(1000).split(b"\r\n")[0]


def test_a_client_that_never_finishes_its_request_is_let_go(running) -> None:
    server = running(body_seconds=0.2)
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        slow.settimeout(5)
        assert b" 408 " in slow.recv(1000).split(b"\r\n")[0]


def test_a_refused_upload_still_gets_its_answer(running) -> None:
    server = running(body=10_000)
    for size in (20_000, 70_000):
        status, said, _ = server.ask("/embed", {"inputs": "a" * size})
        assert status == 413 and "10000 bytes" in said["error"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.make_model(tmp_path_factory.mktemp("served") / "mine")


def start(*words: Any) -> tuple[subprocess.Popen[str], int]:
    """`bertkit serve`, when it answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bertkit", "serve", *map(str, words), "--port", "0", "--threads", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            port = int(found[1])
            end = time.monotonic() + 240
            while time.monotonic() < end:
                try:
                    if ask(port, "/health")[0] == 200:
                        return process, port
                except OSError:
                    time.sleep(0.05)
    raise AssertionError(f"the server did not start: {process.wait(120)}")


@pytest.mark.slow
def test_a_signal_to_stop_loses_no_accepted_request(model: Path) -> None:
    process, port = start(model, "--json")
    text = " ".join(toy.FILLER)

    def one(_: int) -> int | str:
        try:
            return ask(port, "/embed", {"inputs": [text] * 32})[0]
        except (ConnectionRefusedError, ConnectionResetError):
            return "refused"

    try:
        with ThreadPoolExecutor(16) as pool:
            found = [pool.submit(one, n) for n in range(64)]
            until(lambda: sum(future.done() for future in found) >= 8, 60)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            said = [future.result() for future in found]
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert time.monotonic() - began < 20
    assert set(said) <= {200, 503, "refused"} and said.count(200) >= 8
    # Every request the server took was answered: what it counted is what the clients got.
    assert json.loads(out)["answered"] == said.count(200)
    assert "Traceback" not in err


def test_while_stopping_health_says_so_and_new_work_is_refused(running) -> None:
    server = running(stop_seconds=5)
    go = held(server.service)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.ask, "/embed", {"inputs": "a"})
        until(lambda: server.service.queue._running)
        server.server.handle_exit(signal.SIGTERM, None)
        status, said, headers = server.ask("/health")
        assert status == 503 and said == {"error": "unhealthy", "error_type": "Unhealthy"} and "retry-after" in headers
        assert server.ask("/embed", {"inputs": "b"})[0] == 503
        go.set()
        assert first.result()[0] == 200
    server.thread.join(5)
    assert not server.thread.is_alive()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def test_a_taken_port_is_reported_in_one_line(run: CommandLine, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = run("serve", model, "--port", taken.getsockname()[1])
    assert said.code == 2 and "--port" in said.mistake


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_the_address_is_reported_only_when_it_can_be_connected_to(
    end: signal.Signals, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def note(message: str) -> None:
        if found := re.match(r"http://127\.0\.0\.1:(\d+)", message):
            socket.create_connection(("127.0.0.1", int(found[1])), timeout=60).close()
            told.append(found[0])
            signal.raise_signal(end)  # the server listens to signals by now

    monkeypatch.setattr(notify, "note", note)
    result = serve.run(serve.Settings(models=(str(model),), port=0, threads=1))
    assert told == [result["address"]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--port", "70000"], "--port is 70000"),
        (["--host", "no such host"], "--host is"),
        (["--max-items", "0", "--port", "0"], "--max-items is 0; it must be at least 1"),
        (["--api-key-file", "none.txt"], "none.txt"),
    ],
)
def test_mistakes_in_options_are_reported_in_one_line(run: CommandLine, model: Path, words, told: str) -> None:
    said = run("serve", model, *words)
    assert said.code == 2 and told in said.mistake and "Traceback" not in said.err


def test_a_missing_extra_is_reported_with_what_to_install(run: CommandLine, monkeypatch, model: Path) -> None:
    for name in [name for name in sys.modules if name.startswith("bertkit.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    said = run("serve", model)
    assert said.code == 2 and "pip install 'bertkit[serve]'" in said.mistake


def test_models_are_named_by_themselves_or_by_the_user(tmp_path: Path) -> None:
    (tmp_path / "runs" / "spam").mkdir(parents=True)
    (tmp_path / "a=b").mkdir()
    spam = str(tmp_path / "runs" / "spam")
    assert names_of(["en", spam, f"other={spam}", "org/name", str(tmp_path / "a=b")]) == {
        "en": "en", "spam": spam, "other": spam, "org/name": "org/name", "a=b": str(tmp_path / "a=b"),
    }  # fmt: skip
    with pytest.raises(UserError, match="Two models would be called 'en'"):
        names_of(["en", "en"])
    with pytest.raises(UserError, match="is not a model"):
        names_of(["=en"])
