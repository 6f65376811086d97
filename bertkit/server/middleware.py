"""Runs before every route: who may ask, how large a request may be, and which model its path names."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.server.errors import PREFIX, REASONS, ApiError, language_of, response
from bertkit.server.service import InferenceService

OPEN = ("/", "/health", "/ping", "/metrics")  # need no key when they are looked at: as in TEI
PAGE = "/page/"  # files of the page at /, which hold nothing of a model: no key either
LOCAL = ("127.0.0.1", "localhost", "[::1]", "::1")
ALWAYS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}
LINGER = 8  # times the largest body are read and thrown away, so that the client gets to see the refusal


class WrongKeys:
    """Counts the wrong keys of each client: after so many, it may try one more every minute / most."""

    REMEMBERED = 10_000  # addresses; the oldest are forgotten first

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.clock = most, clock
        self.until: dict[str, float] = {}  # client → when all its wrong keys will be forgotten

    def wait(self, client: str) -> int:
        """Seconds until a client that sent wrong keys may try again; 0: now."""
        return math.ceil(max(0.0, self.until.get(client, 0.0) - self.clock() - 60 * (1 - 1 / self.most)))

    def add(self, client: str) -> None:
        """Count a wrong key of a client."""
        now = self.clock()
        self.until[client] = max(now, self.until.pop(client, now)) + 60 / self.most
        if len(self.until) > self.REMEMBERED:
            del self.until[next(iter(self.until))]


class GuardMiddleware:
    """An ASGI layer. hosts: allowed values of the Host header; empty: all."""

    def __init__(self, app: ASGIApp, service: InferenceService, hosts: Collection[str] = (), key: str = "") -> None:
        self.app, self.service, self.hosts, self.key = app, service, frozenset(hosts), key.encode()
        self.limits = service.limits
        self.guesses = WrongKeys(service.limits.wrong_keys)
        self.prefixes = {PREFIX + name + "/": name for name in sorted(service.registry, key=len, reverse=True)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on with its body already read."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = self._directed(scope)
        headers = Headers(scope=scope)
        started = False

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                added = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    added.setdefault(name, value)
            await send(message)

        async def refuse(why: ApiError) -> None:
            self.service.metrics.failed(REASONS[why.why].tei)
            await response(why, scope["path"], language_of(headers))(scope, receive, with_headers)

        try:
            self._check_host(headers)
            self._check_key(scope, headers)
            self._check_model(scope)
            await self._answer(scope, headers, receive, with_headers)
        except ApiError as refusal:
            await refuse(refusal)
        except asyncio.CancelledError:  # the server's time to stop is over
            if not started:
                await refuse(ApiError("stopping", "The server is stopping.", retry=5))

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """The middleware reads the body if there is room for it, and passes the request on."""
        # A request that arrived in one piece is counted already; those without a body are answered at once.
        counted = scope["method"] == "POST" and not scope["state"].get("admitted")
        self._check_room(counted)
        parts: list[bytes] = []
        try:
            await self._read_body(receive, headers, parts)
            body = b"".join(parts)
            # Asked of every body: a page of another site can send anything but this without asking first.
            if body and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise ApiError("type", "Expected request with `Content-Type: application/json`.")
            if headers.get("content-encoding", "identity").strip().lower() != "identity":
                raise ApiError("type", "The server reads no compressed bodies: send it without `Content-Encoding`.")
            self._check_room(counted)
            self.service.requests += counted
            try:
                await self.service.turns.take()
                await self.app(scope, _replayed(body, receive), send)
            finally:
                self.service.requests -= counted
        finally:
            self.service.bytes -= sum(map(len, parts))

    def _check_room(self, counted: bool) -> None:
        if counted and (refusal := self.service.refusal()) is not None:
            raise refusal

    def _directed(self, scope: Scope) -> Scope:
        """The middleware's scope of the route itself, with the model named by the path."""
        path, model = scope["path"], None
        asks_model = scope["method"] == "POST" and path.startswith(PREFIX)
        for prefix, name in self.prefixes.items():
            if path.startswith(prefix) or (asks_model and path == prefix[:-1]):
                path, model = "/" + path[len(prefix) :], name
                break
        state = dict(scope.get("state", {}))
        now = asyncio.get_running_loop().time()
        state |= {"model": model, "began": time.perf_counter() - (now - state.get("arrived", now))}
        return {**scope, "path": path, "raw_path": quote(path).encode(), "state": state}

    def _check_host(self, headers: Headers) -> None:
        """Check the Host header: a page of another site that poses as this one sends its own name."""
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.hosts and name.lower() not in self.hosts:
            raise ApiError("host", "The Host header does not name this server. Allow the name with --allow-hosts.")

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        """Refuse a request without the server's key, and slow down who guesses keys."""
        is_open = scope["path"] in OPEN or scope["path"].startswith(PAGE)
        if not self.key or (is_open and scope["method"] in ("GET", "HEAD")):
            return
        address = str((scope.get("client") or ("",))[0])
        kind, _, given = headers.get("authorization", "").partition(" ")
        if given and (
            seconds := self.guesses.wait(address)
        ):  # whether or not this key is right: else it could be guessed
            raise ApiError("guessing", "Too many wrong keys came from this address.", retry=seconds)
        fits = hmac.compare_digest(given.strip().encode("latin-1"), self.key)
        if kind.lower() != "bearer" or not fits:
            if given:
                self.guesses.add(address)
            raise ApiError("key", "The key is missing or wrong. Send the header `Authorization: Bearer KEY`.")

    def _check_model(self, scope: Scope) -> None:
        """Refuse a path that asks a model which is not served."""
        asked = scope["path"].removeprefix(PREFIX)
        name = asked.partition("/")[0]
        if name and scope["path"].startswith(PREFIX) and asked not in self.service.registry:
            raise self.service.registry.unknown(name)

    async def _read_body(self, receive: Receive, headers: Headers, parts: list[bytes]) -> None:
        """The middleware collects the whole body in `parts`, if it is small enough and arrives in time."""
        large = ApiError("large", f"The body is larger than {self.limits.body} bytes. Send less per request.")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > LINGER * self.limits.body:
            raise large
        size = 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                more = True
                while more and size <= LINGER * self.limits.body:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError("slow", "The client disconnected.")
                    part = message.get("body", b"")
                    size += len(part)
                    if size <= self.limits.body:
                        parts.append(part)
                        self.service.bytes += len(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise ApiError("slow", f"The request was not sent within {self.limits.body_seconds:g} s.") from None
        if size > self.limits.body:
            raise large


def hosts_of(host: str, allowed: Collection[str]) -> tuple[str, ...]:
    """Values of the Host header that the middleware allows: this machine's names, or any if others may connect."""
    if allowed:
        return tuple(name.lower() for name in allowed)
    return (*LOCAL, host.lower()) if host in LOCAL or host.startswith("127.") else ()


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Past the middleware: return the body once, then the server's own messages (a disconnect)."""
    waiting: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
