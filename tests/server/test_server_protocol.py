"""Connections: what is not HTTP, what two readers would read differently, and more than the server can take."""

from __future__ import annotations

import asyncio
import json
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from bertkit.server import protocol
from bertkit.server.errors import Limits
from bertkit.server.middleware import WrongKeys
from bertkit.server.protocol import PacedSelector, path_of_whole
from bertkit.server.service import InferenceService, Turns
from tests.support.running_server import Running

BODY = b'{"inputs": "a"}'
POST = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def running(registry) -> Iterator[Callable[..., Running]]:
    servers: list[Running] = []

    def start(**limits: Any) -> Running:
        servers.append(Running(InferenceService(registry, Limits(**limits), threads=1)))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def held(service: InferenceService) -> threading.Event:
    """Make the service compute nothing before the event is set."""
    go, compute = threading.Event(), service.queue.compute

    def wait(key: Any, inputs: list[Any]) -> Any:
        go.wait(30)
        return compute(key, inputs)

    service.queue.compute = wait
    return go


class Client:
    """A socket that sends bytes and reads one response after another."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.unread = b""

    def send(self, data: bytes) -> Client:
        self.socket.sendall(data)
        return self

    def read(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next response."""
        while b"\r\n\r\n" not in self.unread:
            self._more()
        head, _, self.unread = self.unread.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self.unread) < length:
            self._more()
        body, self.unread = self.unread[:length], self.unread[length:]
        return int(first.split()[1]), headers, body

    def _more(self) -> None:
        data = self.socket.recv(65536)
        assert data, "the connection was closed before a response"
        self.unread += data

    def is_closed(self) -> bool:
        """Whether the server closes the connection without sending anything else."""
        try:
            return self.socket.recv(1000) == b""
        except ConnectionResetError:
            return True


@pytest.fixture
def connect(running) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def made(server: Running) -> Client:
        clients.append(Client(server.port))
        return clients[-1]

    yield made
    for client in clients:
        client.socket.close()


def check_refused(client: Client, status: int, words: str) -> None:
    found, headers, body = client.read()
    answer = json.loads(body)
    assert found == status and headers["content-type"] == "application/json" and headers["connection"] == "close"
    assert set(answer) == {"error", "error_type"} and answer["error_type"] == "Validation" and words in answer["error"]
    assert client.is_closed()


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (b"what?\r\n\r\n", 400, "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n", 400, "HTTP"),
        (b"GET /health HTTP/1.1\r\nhost localhost\r\n\r\n", 400, "HTTP"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "HTTP"),  # no host
        (b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000, 431, "HTTP"),
        (b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400, "HTTP"),
        (
            b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 6\r\n"
            b"transfer-encoding: chunked\r\n\r\n0\r\n\r\nX",
            400,
            "Transfer-Encoding with Content-Length",
        ),
        (
            b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\nzz\r\nnot a chunk\r\n",
            400,
            "HTTP",
        ),
    ],
)
def test_what_is_not_http_is_refused_in_json_and_the_connection_closed(running, connect, sent, status, words) -> None:
    check_refused(connect(running()).send(sent), status, words)


def test_an_answer_under_way_is_sent_even_if_garbage_follows_its_request(running, connect) -> None:
    server = running()
    client = connect(server).send(POST % (b"/embed", len(BODY), BODY) + b"garbage\r\n\r\n")
    assert client.read()[0] == 200


def test_requests_sent_one_after_another_without_waiting_are_answered_in_order(running, connect) -> None:
    client = connect(running()).send(POST % (b"/embed", len(BODY), BODY) + HEALTH)
    assert client.read()[0] == 200
    status, _, body = client.read()
    assert status == 200 and body == b""


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (POST % (b"/embed", len(BODY), BODY), "/embed"),
        (b"POST /v1/embeddings HTTP/1.1\r\nConnection: keep-alive\r\nContent-Length:2\r\n\r\n{}", "/v1/embeddings"),
        (POST % (b"/embed", len(BODY) + 1, BODY), None),  # not all of it
        (POST % (b"/embed", len(BODY), BODY) + b"GET", None),  # and more
        (b"POST /embed HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n{}", None),
        (b"POST /embed HTTP/1.1\r\ncontent-length: 2\r\nTransfer-Encoding : chunked\r\n\r\n{}", None),
        (b"POST /embed HTTP/1.1\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}", None),
        (b"POST /embed HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}", None),
        (HEALTH, None),
        (b"", None),
    ],
)
def test_only_exactly_one_plain_post_request_is_refused_without_parsing(data: bytes, path: str | None) -> None:
    assert path_of_whole(data) == path


def test_a_full_server_refuses_on_a_connection_that_stays_usable(running, connect) -> None:
    server = running(waiting=1)
    go = held(server.service)
    with ThreadPoolExecutor(2) as pool:
        accepted = [pool.submit(server.ask, "/embed", {"inputs": "a"})]
        until(lambda: server.service.queue.running)
        accepted.append(pool.submit(server.ask, "/embed", {"inputs": "a"}))
        until(lambda: len(server.service.queue) == 1)
        client = connect(server)
        for path, kind in ((b"/embed", str), (b"/v1/embeddings", dict), (b"/models/words/v1/embeddings", dict)):
            for cut in (0, 20):  # in one piece, and in two
                sent = POST % (path, len(BODY), BODY)
                client.send(sent[:cut])
                time.sleep(0.05 if cut else 0)
                status, headers, body = client.send(sent[cut:]).read()
                assert status == 429 and int(headers["retry-after"]) >= 1, (path, cut)
                assert isinstance(json.loads(body)["error"], kind), (path, cut)
        assert client.send(HEALTH).read()[0] == 200
        go.set()
        assert {answer.result()[0] for answer in accepted} == {200}
        assert client.send(POST % (b"/embed", len(BODY), BODY)).read()[0] == 200


def test_a_full_server_looks_at_its_connections_together_and_not_at_each_at_once(monkeypatch) -> None:
    now, full = 100.0, True
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    monkeypatch.setattr(protocol, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    selector = PacedSelector(lambda: full)
    pairs = [socket.socketpair() for _ in range(3)]
    for reader, writer in pairs:
        selector.register(reader, selectors.EVENT_READ)
        writer.send(b"a")
    assert len(selector.select(0)) == 3 and slept == []  # the first look
    assert selector.select(0) == []  # the event loop has other work: no look at all
    assert len(selector.select(None)) == 3 and slept == pytest.approx([protocol.PACE])
    now += protocol.PACE / 2
    assert len(selector.select(5)) == 3 and sum(slept) == pytest.approx(1.5 * protocol.PACE)
    assert len(selector.select(protocol.PACE / 4)) == 3 and slept[-1] == pytest.approx(
        protocol.PACE / 4
    )  # a timer is due
    full = False
    assert len(selector.select(0)) == 3 and len(slept) == 3  # as quick as any, once there is room
    selector.close()
    for pair in pairs:
        for one in pair:
            one.close()


def test_a_server_that_is_full_does_not_wait_for_the_body(running, connect) -> None:
    server = running(waiting=1)
    server.service.requests = 10
    status, headers, _ = connect(server).send(POST % (b"/embed", 2_000_000, b"{")).read()
    assert status == 429 and "retry-after" in headers


def test_bodies_under_way_are_bounded_together(running, connect) -> None:
    server = running(waiting_bytes=1000)
    slow = connect(server).send(POST % (b"/embed", 5000, b"{" * 2000))
    until(lambda: server.service.bytes == 2000)
    assert server.ask("/embed", {"inputs": "a"})[0] == 429
    slow.socket.close()
    until(lambda: server.service.bytes == 0)
    assert server.ask("/embed", {"inputs": "a"})[0] == 200


def test_more_connections_than_allowed_are_refused_in_words_and_stay_usable(running, connect) -> None:
    server = running(connections=2)
    go = held(server.service)
    sent = POST % (b"/embed", len(BODY), BODY)
    busy = [connect(server).send(sent) for _ in range(2)]
    until(lambda: server.service.requests == 2)
    third = connect(server)
    for path, kind in ((b"/v1/embeddings", dict), (b"/embed", str)):
        status, headers, body = third.send(POST % (path, len(BODY), BODY)).read()
        assert status == 429 and headers["connection"] == "keep-alive" and "retry-after" in headers
        assert isinstance(json.loads(body)["error"], kind)
    go.set()
    assert [client.read()[0] for client in busy] == [200, 200]
    assert third.send(sent).read()[0] == 200
    until(lambda: server.service.requests == 0)


def test_a_request_whose_end_is_not_seen_is_refused_and_its_connection_closed(running, connect) -> None:
    server = running(connections=1)
    go = held(server.service)
    busy = connect(server).send(POST % (b"/embed", len(BODY), BODY))
    until(lambda: server.service.requests == 1)
    second = connect(server).send(POST % (b"/embed", 1000, b"{"))
    status, headers, _ = second.read()
    assert status == 429 and headers["connection"] == "close" and second.is_closed()
    go.set()
    assert busy.read()[0] == 200


def test_a_connection_between_two_requests_gives_its_place_away_and_stays_open(running, connect) -> None:
    server = running(connections=2)
    kept = [connect(server) for _ in range(5)]
    for _ in range(2):
        assert [client.send(HEALTH).read()[0] for client in kept] == [200] * 5
    assert server.server.door.connections == 2


def test_a_connection_that_never_ends_its_header_makes_room_for_a_new_one(running, connect, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "GRACE", 0.0)
    server = running(connections=1)
    slow = connect(server).send(HEALTH[:20])
    until(lambda: server.server.door.waiting)
    assert connect(server).send(HEALTH).read()[0] == 200
    assert slow.is_closed()


def test_of_too_many_silent_connections_the_oldest_is_closed(running, connect, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "GRACE", 0.0)
    server = running(connections=1)
    silent = [connect(server) for _ in range(1 + protocol.SPARES)]
    until(lambda: len(server.server.door.placeless) == 1 + protocol.SPARES)
    assert connect(server).send(HEALTH).read()[0] == 200
    assert silent[0].is_closed()
    assert silent[1].send(HEALTH).read()[0] == 200


def test_requests_that_arrive_at_the_same_moment_are_counted_before_they_are_parsed(running, connect) -> None:
    server = running(waiting=2)
    go = held(server.service)
    clients = [connect(server) for _ in range(8)]
    for client in clients:
        client.send(POST % (b"/embed", len(BODY), BODY))
    failures = server.service.metrics.counters["request_failure"]
    until(lambda: failures['{err="overloaded"}'] + server.service.requests == 8)
    assert 2 <= server.service.requests <= 2 + server.service.queue.running  # two wait; others are being computed
    go.set()
    statuses = [client.read()[0] for client in clients]
    assert statuses.count(429) == failures['{err="overloaded"}'] and set(statuses) == {200, 429}
    until(lambda: server.service.requests == 0)


def test_a_client_that_leaves_gives_its_place_in_the_queue_back(running, connect) -> None:
    server = running()
    go = held(server.service)
    leaving = connect(server).send(POST % (b"/embed", len(BODY), BODY))
    until(lambda: server.service.requests == 1)
    leaving.socket.close()
    until(lambda: server.service.requests == 0)
    go.set()


def test_few_tasks_continue_in_each_round_of_the_event_loop() -> None:
    order: list[str] = []

    async def task(turns: Turns, name: str) -> None:
        await turns.take()
        order.append(name)

    async def all_of_them() -> None:
        turns = Turns()
        tasks = [asyncio.create_task(task(turns, f"task {number}")) for number in range(3 * Turns.EACH)]
        tasks[Turns.EACH].cancel()  # one that waits for its turn
        for _ in range(50):
            await asyncio.sleep(0)
            order.append("round")

    asyncio.run(all_of_them())
    assert [name for name in order if name != "round"] == [
        f"task {number}" for number in range(3 * Turns.EACH) if number != Turns.EACH
    ]
    rounds = " ".join(order).split("round")
    assert max(names.count("task") for names in rounds) == Turns.EACH


def test_the_time_to_answer_is_counted_from_the_first_byte(running, connect) -> None:
    server = running(seconds=1.5)
    go = held(server.service)
    sent = POST % (b"/embed", len(BODY), BODY)
    client = connect(server).send(sent[:-1])
    time.sleep(1.2)  # of the second and a half, this much is spent on the body
    ended = time.monotonic()
    status, _, _ = client.send(sent[-1:]).read()
    assert status == 503 and time.monotonic() - ended < 0.6
    go.set()


def test_a_second_signal_answers_what_waits_with_503(running) -> None:
    server = running(stop_seconds=20)
    go = held(server.service)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(server.ask, "/embed", {"inputs": "a"}) for _ in range(8)]
        until(lambda: server.service.requests == 8)
        server.server.handle_exit(signal.SIGTERM, None)
        server.server.handle_exit(signal.SIGTERM, None)
        assert {answer.result()[0] for answer in answers} == {503}
        assert {answer.result()[1]["error_type"] for answer in answers} == {"Unhealthy"}
    go.set()
    server.thread.join(10)
    assert not server.thread.is_alive()


def test_wrong_keys_are_slowed_by_client_and_forgotten_with_time() -> None:
    now = 100.0
    guesses = WrongKeys(3, lambda: now)
    for _ in range(3):
        assert guesses.wait("a") == 0
        guesses.add("a")
    assert guesses.wait("a") == 20 and guesses.wait("b") == 0
    now += 20
    assert guesses.wait("a") == 0
    guesses.add("a")
    assert guesses.wait("a") == 20
    now += 60
    assert guesses.wait("a") == 0
    for number in range(WrongKeys.REMEMBERED + 10):
        guesses.add(str(number))
    assert len(guesses.until) == WrongKeys.REMEMBERED
