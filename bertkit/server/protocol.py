"""One HTTP connection: strict about what it reads, quick to refuse when the server is full, closed when it is silent.

A refusal has to cost less than an answer, or refusing would be what overloads the server. A whole request that arrives
while the server is full is therefore answered from its bytes, without parsing its header and body.
"""

from __future__ import annotations

import asyncio
import re
import resource
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertkit.server.errors import OPENAI, REASONS, ApiError, Limits, response
from bertkit.server.service import Metrics

GRACE = 1.0  # seconds in which a new connection's first request may arrive before it can be closed for another
SPARE = 128  # file descriptors for everything but connections
SURPLUS = 3  # times the limit: connections beyond it that are answered with 429 before they are closed
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*(?=\r\n|$)", re.IGNORECASE)
# Requests with these are left to the parser: they are framed in another way, or wait for an answer in between.
OTHER_FRAMING = re.compile(
    rb"\r\n(?:(?:transfer-encoding|expect|upgrade)[ \t]*:|connection[ \t]*:(?![ \t]*keep-alive[ \t]*(?:\r\n|$)))",
    re.IGNORECASE,
)


def path_of_whole(data: bytes) -> str | None:
    """The path of a POST request, if the data is exactly one such request; None otherwise."""
    if not data.startswith(b"POST /"):
        return None
    head, blank, body = data.partition(b"\r\n\r\n")
    lengths = LENGTH.findall(head)
    if not blank or len(lengths) != 1 or int(lengths[0]) != len(body) or OTHER_FRAMING.search(head):
        return None
    target, _, version = head.partition(b"\r\n")[0][5:].partition(b" ")
    return target.decode("latin-1") if version == b"HTTP/1.1" else None


def written(refusal: ApiError, path: str, *, close: bool) -> bytes:
    """A refusal as the bytes of a whole HTTP response. path: as it was sent, perhaps with a model's prefix."""
    answer = response(refusal, OPENAI if path.startswith("/models/") and OPENAI in path else path)
    answer.headers["connection"] = "close" if close else "keep-alive"
    lines = [b"HTTP/1.1 %d Refused" % answer.status_code, *(b"%s: %s" % header for header in answer.raw_headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(answer.body)


class Door:
    """What all connections of a server share. refusal: why no request can be accepted now, if so."""

    def __init__(self, limits: Limits, refusal: Callable[[], ApiError | None], metrics: Metrics) -> None:
        self.limits, self.refusal, self.metrics = limits, refusal, metrics
        self.most = limits.connections
        self.connections = 0  # that are served
        self.waiting: dict[Connection, float] = {}  # those without a request → since when, longest first
        self.surplus: dict[Refusal, float] = {}  # those that are refused → since when

    def open(self) -> None:
        """Allow as many files as connections need, as far as the system does."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = (1 + SURPLUS) * self.limits.connections + SPARE
        if soft != resource.RLIM_INFINITY and soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        files = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft)
        self.most = max(1, min(self.limits.connections, (files - SPARE) // 2))

    def protocol(self, **more: Any) -> asyncio.Protocol:
        """What reads a new connection. If there are too many, the one that was silent longest makes room for it."""
        if self.connections >= self.most:
            oldest, now = next(iter(self.waiting), None), asyncio.get_running_loop().time()
            if oldest is None or now - self.waiting[oldest] < GRACE:
                return Refusal(self, now)
            oldest.leave()
        self.connections += 1
        return Connection(self, **more)

    def close_silent(self, now: float, seconds: float) -> None:
        """Close connections whose next request has not arrived, with its whole header, within this time."""
        for connection in [connection for connection, since in self.waiting.items() if now - since > seconds]:
            connection.leave()
        for refused in [refused for refused, since in self.surplus.items() if now - since > GRACE]:
            refused.data_received(b"")


class Refusal(asyncio.Protocol):
    """A connection beyond the limit: whatever it sends is answered with 429. It holds next to no memory."""

    __slots__ = ("began", "door", "transport")

    def __init__(self, door: Door, began: float) -> None:
        self.door, self.began = door, began

    def connection_made(self, transport: Any) -> None:
        """Wait for the first bytes, since a response before them would be read by nobody."""
        self.transport = transport
        self.door.surplus[self] = self.began
        if len(self.door.surplus) > SURPLUS * self.door.most:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.door.surplus.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Refuse the request in the shape of its path, as far as that can be seen."""
        if self.transport.is_closing():
            return
        busy = ApiError("busy", "The server is busy: it has too many connections.", retry=1)
        path = data[:200].partition(b" ")[2].partition(b" ")[0].decode("latin-1")
        self.door.metrics.failed(REASONS[busy.why].tei)
        self.transport.write(written(busy, path, close=True))
        self.transport.close()


class StrictConnection(h11.Connection):
    """h11's parser, refusing requests that a proxy may read differently."""

    problem = ""  # what was wrong with the last request
    status = 400

    def next_event(self) -> Any:
        """The next event; raises for a request whose end two readers may see in two places."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                names = {name for name, _ in event.headers}
                if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                    raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length, or in HTTP/1.0")
        except h11.RemoteProtocolError as reason:
            self.problem, self.status = str(reason), reason.error_status_hint
            raise
        return event


class Connection(H11Protocol):
    """uvicorn's connection with a strict parser, cheap refusals and errors in JSON."""

    def __init__(self, door: Door, **more: Any) -> None:
        super().__init__(**more)
        self.door = door
        self.conn = StrictConnection(h11.SERVER, self.conn._max_incomplete_event_size)
        self.app_state = dict(self.app_state)  # its own: it carries the time at which a request arrived

    @property
    def is_idle(self) -> bool:
        """Whether no request is being read or answered, as far as its header has arrived."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self.door.waiting[self] = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.door.connections -= 1
        self.door.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a request; refuse it at once if the server is full."""
        if self.transport.is_closing():
            return
        if self.is_idle:
            refusal = self.door.refusal()
            path = None if refusal is None or self.conn.trailing_data[0] else path_of_whole(data)
            if refusal is not None and path is not None:
                self._refuse(refusal, path, close=False)
                return
            self.app_state["arrived"] = self.loop.time()
        super().data_received(data)
        self._mark()

    def on_response_complete(self) -> None:
        """Wait for the next request; uvicorn's own timer is not needed."""
        self.app_state["arrived"] = self.loop.time()  # of a request that was sent before this answer
        super().on_response_complete()
        self._unset_keepalive_if_required()
        self.door.waiting.pop(self, None)
        self._mark()

    def _mark(self) -> None:
        """Note whether this connection waits for a request; one that is already sending it keeps its start time."""
        if not self.is_idle:
            self.door.waiting.pop(self, None)
        elif not self.transport.is_closing():
            self.door.waiting.setdefault(self, self.loop.time())

    def _refuse(self, refusal: ApiError, path: str, *, close: bool) -> None:
        self.door.metrics.failed(REASONS[refusal.why].tei)
        self.transport.write(written(refusal, path, close=close))
        self.door.waiting.pop(self, None)
        if close:
            self.transport.close()
        else:
            self.door.waiting[self] = self.loop.time()

    def leave(self) -> None:
        """Close the connection, without waiting for a client that does not read."""
        self.door.waiting.pop(self, None)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP in the documented shape, and close the connection."""
        cycle = self.cycle
        if not self.is_idle and (cycle.response_started or not cycle.more_body):
            return  # the request before it is still being answered; h11 closes the connection after that
        conn: Any = self.conn
        why = "header" if conn.status == 431 else "protocol"
        words = f"This is not a valid HTTP/1.1 request: {conn.problem}."
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        path = self.scope["path"] if self.scope and not self.is_idle else ""
        self._refuse(ApiError(why, words), path, close=True)
