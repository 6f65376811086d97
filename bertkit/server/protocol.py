"""One HTTP connection: strict about what it reads, quick to refuse when the server is full, closed when it is silent.

A refusal has to cost less than an answer, or refusing would be what overloads the server. A whole request that arrives
while the server is full is therefore answered from its bytes, without parsing its header and body, and together with
others that have arrived by then: waking up for each one would cost more than the refusals themselves.
"""

from __future__ import annotations

import asyncio
import re
import resource
import selectors
import time
from collections.abc import Callable
from functools import lru_cache
from itertools import takewhile
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertkit.server.errors import OPENAI, REASONS, ApiError, is_openai, response
from bertkit.server.service import InferenceService

GRACE = 1.0  # seconds a connection may be silent, or slow with its header, before it can be closed for another
PACE = 0.005  # seconds between two looks at the connections of a full server
SPARE = 128  # file descriptors for everything but connections
CACHED = 1_000  # bytes of a header, at most, that is remembered
SPARES = 3  # times the limit: connections that are only kept open, because they have no request under way
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*(?=\r\n|$)", re.IGNORECASE)
# Requests with these are left to the parser: they are framed in another way, or wait for an answer in between.
OTHER_FRAMING = re.compile(
    rb"\r\n(?:(?:transfer-encoding|expect|upgrade)[ \t]*:|connection[ \t]*:(?![ \t]*keep-alive[ \t]*(?:\r\n|$)))",
    re.IGNORECASE,
)


def path_of_whole(data: bytes) -> str | None:
    """The path of a POST request, if the data is exactly one such HTTP request; None otherwise."""
    if not data.startswith(b"POST /"):
        return None
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        return None
    path, length = plain_head(head) if len(head) <= CACHED else plain_head.__wrapped__(head)
    return path if length == len(body) else None


@lru_cache(1024)
def plain_head(head: bytes) -> tuple[str | None, int]:
    """Path and length of a POST request framed by its Content-Length; cached, because clients repeat themselves."""
    lengths = LENGTH.findall(head)
    target, _, version = head.partition(b"\r\n")[0][5:].partition(b" ")
    if len(lengths) != 1 or version != b"HTTP/1.1" or OTHER_FRAMING.search(head):
        return None, -1
    return target.decode("latin-1"), int(lengths[0])


@lru_cache(256)
def written(why: str, message: str, retry: int | None, *, openai: bool, close: bool) -> bytes:
    """A refusal as the bytes of a whole HTTP response; cached, because a full server repeats itself."""
    answer = response(ApiError(why, message, retry=retry), OPENAI if openai else "")
    answer.headers["connection"] = "close" if close else "keep-alive"
    lines = [b"HTTP/1.1 %d Refused" % answer.status_code, *(b"%s: %s" % header for header in answer.raw_headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(answer.body)


class Door:
    """What all connections of a server share.

    A connection has a place (a `Connection`, with a parser and its buffers) while it has a request under way, and until
    another one needs the place. Without a place it is `Placeless`: it stays open, and costs next to nothing.
    """

    def __init__(self, service: InferenceService) -> None:
        self.service, self.limits, self.refusal = service, service.limits, service.refusal
        self.most = self.limits.connections
        self.connections = 0  # that have a place
        self.waiting: dict[Connection, float] = {}  # those without a whole header → since when, longest first
        self.placeless: dict[Placeless, float] = {}  # → since when they have been silent, longest first

    def open(self) -> None:
        """Allow as many open files as the connections need, as far as the system does."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = (1 + SPARES) * self.limits.connections + SPARE
        if soft != resource.RLIM_INFINITY and soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        files = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft)
        self.most = max(1, min(self.limits.connections, (files - SPARE) // 2))

    def protocol(self, **more: Any) -> asyncio.Protocol:
        """What reads a new HTTP connection."""
        return Placeless(self, more)

    def has_place(self, now: float) -> bool:
        """Whether another HTTP request can be read; the connection silent longest may give up its place."""
        if self.connections < self.most:
            return True
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        if oldest.conn.trailing_data[0]:  # it has begun a request, perhaps never to end it
            if now - self.waiting[oldest] < GRACE:
                return False
            oldest.leave()
        else:
            oldest.step_back()
        return True

    def close_silent(self, now: float, seconds: float) -> None:
        """Close connections whose next request has not arrived, with its whole header, within this time."""
        both: tuple[dict[Any, float], ...] = (self.waiting, self.placeless)
        for silent in both:
            late = takewhile(lambda one: now - one[1] > seconds, silent.items())  # the longest is the first
            for connection, _ in list(late):
                connection.leave()

    def refused(self, refusal: ApiError, path: str, *, close: bool) -> bytes:
        """Count a connection's refusal. path: as it was sent, perhaps with a model's prefix."""
        self.service.metrics.failed(REASONS[refusal.why].tei)
        return written(refusal.why, refusal.message, refusal.retry, openai=is_openai(path), close=close)


class PacedSelector(selectors.DefaultSelector):
    """Tells the event loop which connections can be read; of a full server, at most once every PACE seconds.

    A wake-up takes the interpreter's lock from the thread that computes. While the server is full, every answer waits
    for much longer than PACE in any case, so that many refusals can share one.
    """

    def __init__(self, is_full: Callable[[], bool]) -> None:
        super().__init__()
        self.is_full, self.looked = is_full, 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What can be read or written. timeout: as of any selector; 0 if the event loop has something else to do."""
        left = self.looked + PACE - time.monotonic()
        if left > 0 and self.is_full():
            if timeout is not None and timeout <= 0:
                return []
            time.sleep(left if timeout is None else min(left, timeout))
            timeout = None if timeout is None else max(0.0, timeout - left)
        ready = super().select(timeout)
        self.looked = time.monotonic()
        return ready


class Placeless(asyncio.Protocol):
    """A connection without a request under way. more: what uvicorn gives to a connection."""

    __slots__ = ("door", "more", "transport")

    def __init__(self, door: Door, more: dict[str, Any]) -> None:
        self.door, self.more = door, more

    def connection_made(self, transport: Any) -> None:
        """A connection without a place waits for a request. If there are too many, the one silent longest is closed."""
        self.transport = transport
        self.more["server_state"].connections.add(self)
        now, silent = asyncio.get_running_loop().time(), self.door.placeless
        silent[self] = now
        if self.door.connections + len(silent) > (1 + SPARES) * self.door.most:
            oldest, since = next(iter(silent.items()))
            (oldest if now - since >= GRACE else self).leave()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection without a place."""
        self._forget()

    def data_received(self, data: bytes) -> None:
        """Take a place for the connection's request, or refuse it in the shape of its path, as far as it shows."""
        if self.transport.is_closing():
            return
        now = asyncio.get_running_loop().time()
        refusal, path = self.door.refusal(), path_of_whole(data)
        if (refusal is None or path is None) and self.door.has_place(now):
            self._forget()
            connection = Connection(self.door, **self.more)
            self.transport.set_protocol(connection)
            connection.connection_made(self.transport)
            connection.data_received(data)
            return
        refusal = refusal or ApiError("busy", "The server is busy: it has too many connections.", retry=1)
        requested = data[:200].partition(b" ")[2].partition(b" ")[0].decode("latin-1") if path is None else path
        self.transport.write(self.door.refused(refusal, requested, close=path is None))
        if path is None:  # what else belongs to this request is unknown
            self.transport.close()
        else:
            del self.door.placeless[self]
            self.door.placeless[self] = now

    def leave(self) -> None:
        """Close a connection without a place, without waiting for a client that does not read."""
        self._forget()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    shutdown = leave  # uvicorn's word for it

    def pause_writing(self) -> None:
        """The connection's client sends requests, but does not read the refusals: read no more of them."""
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The connection's client reads again."""
        self.transport.resume_reading()

    def _forget(self) -> None:
        self.door.placeless.pop(self, None)
        self.more["server_state"].connections.discard(self)


class StrictConnection(h11.Connection):
    """h11's parser, refusing requests that a proxy may read differently."""

    problem = ""  # what was wrong with the last request
    status = 400

    def next_event(self) -> Any:
        """The HTTP connection's next event; raises where two readers may see a request's end in two places."""
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
        self.door, self.more = door, more
        self.conn = StrictConnection(h11.SERVER, self.conn._max_incomplete_event_size)
        # Its own: it carries the time at which a request arrived, and whether the request is counted already.
        self.app_state = dict(self.app_state, admitted=False)

    @property
    def is_idle(self) -> bool:
        """Whether no request of this HTTP connection is being read or answered, as far as its header has arrived."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """An HTTP connection waits for its first request."""
        super().connection_made(transport)
        self.door.connections += 1
        self.door.waiting[self] = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget an HTTP connection."""
        self.door.connections -= 1
        self.door.waiting.pop(self, None)
        self._dismiss()
        super().connection_lost(exc)

    def step_back(self) -> None:
        """An HTTP connection gives up its place, between two requests, and stays open."""
        transport, resting = self.transport, Placeless(self.door, self.more)
        self.door.connections -= 1
        self.door.waiting.pop(self)
        self.connections.discard(self)
        transport.set_protocol(resting)
        resting.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """An HTTP connection reads a request; it is refused at once if the server is full."""
        if self.transport.is_closing():
            return
        if self.is_idle:
            refusal = self.door.refusal()
            path = None if self.conn.trailing_data[0] else path_of_whole(data)
            if path is not None:
                if refusal is not None:
                    self._refuse(refusal, path, close=False)
                    return
                self._admit()
            self.app_state["arrived"] = self.loop.time()
        super().data_received(data)
        self._mark()

    def on_response_complete(self) -> None:
        """An HTTP connection waits for the next request; uvicorn's own timer is not needed."""
        self._dismiss()
        self.app_state["arrived"] = self.loop.time()  # of a request that was sent before this answer
        super().on_response_complete()
        self._unset_keepalive_if_required()
        self.door.waiting.pop(self, None)
        self._mark()

    def _mark(self) -> None:
        """Note whether this HTTP connection waits for a request; one already sending it keeps its start time."""
        if not self.is_idle:
            self.door.waiting.pop(self, None)
        elif not self.transport.is_closing():
            self.door.waiting.setdefault(self, self.loop.time())

    def _admit(self) -> None:
        """Count an HTTP request before it is parsed: others that arrive at the same moment are refused cheaply."""
        self.app_state["admitted"] = True
        self.door.service.requests += 1

    def _dismiss(self) -> None:
        self.door.service.requests -= self.app_state["admitted"]
        self.app_state["admitted"] = False

    def _refuse(self, refusal: ApiError, path: str, *, close: bool) -> None:
        """Refuse a request on this connection, and close it if asked."""
        self._dismiss()
        self.transport.write(self.door.refused(refusal, path, close=close))
        self.door.waiting.pop(self, None)
        if close:
            self.transport.close()
        else:
            self.door.waiting[self] = self.loop.time()

    def leave(self) -> None:
        """Close an HTTP connection, without waiting for a client that does not read."""
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
