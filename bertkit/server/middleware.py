"""Runs before every route: who may ask, how large a request may be, and which model its path names."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Collection
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.server.errors import REASONS, ApiError, response
from bertkit.server.service import InferenceService

OPEN = ("/", "/health", "/ping", "/metrics")  # need no key when they are looked at: as in TEI
PREFIX = "/models/"  # /models/NAME/embed asks NAME
LOCAL = ("127.0.0.1", "localhost", "[::1]", "::1")
ALWAYS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}
LINGER = 8  # times the largest body are read and thrown away, so that the client gets to see the refusal


class GuardMiddleware:
    """An ASGI layer. hosts: allowed values of the Host header; empty: all."""

    def __init__(self, app: ASGIApp, service: InferenceService, hosts: Collection[str] = (), key: str = "") -> None:
        self.app, self.service, self.hosts, self.key = app, service, frozenset(hosts), key.encode()
        self.limits = service.limits
        self.prefixes = {PREFIX + name + "/": name for name in sorted(service.registry, key=len, reverse=True)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on with its body already read."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = self._directed(scope)
        headers = Headers(scope=scope)

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    added.setdefault(name, value)
            await send(message)

        try:
            self._check_host(headers)
            self._check_key(scope, headers)
            body = await self._body(receive, headers)
            # Asked of every body: a page of another site can send anything but this without asking first.
            if body and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise ApiError("type", "Expected request with `Content-Type: application/json`.")
        except ApiError as refused:
            self.service.metrics.failed(REASONS[refused.why].tei)
            await response(refused, scope["path"])(scope, receive, told)
            return
        await self.app(scope, _replayed(body, receive), told)

    def _directed(self, scope: Scope) -> Scope:
        """The scope of the route itself, with the model named by the path."""
        path, model = scope["path"], None
        for prefix, name in self.prefixes.items():
            if path.startswith(prefix):
                path, model = "/" + path[len(prefix) :], name
                break
        state = {**scope.get("state", {}), "model": model, "began": time.perf_counter()}
        return {**scope, "path": path, "raw_path": quote(path).encode(), "state": state}

    def _check_host(self, headers: Headers) -> None:
        """Check the Host header: a page of another site that poses as this one sends its own name."""
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.hosts and name.lower() not in self.hosts:
            raise ApiError("host", "The Host header does not name this server. Allow the name with --allow-hosts.")

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        if not self.key or (scope["path"] in OPEN and scope["method"] in ("GET", "HEAD")):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        fits = hmac.compare_digest(given.strip().encode("latin-1"), self.key)
        if kind.lower() != "bearer" or not fits:
            raise ApiError("key", "The key is missing or wrong. Send the header `Authorization: Bearer KEY`.")

    async def _body(self, receive: Receive, headers: Headers) -> bytes:
        """The whole body, if it is small enough and arrives in time."""
        large = ApiError("large", f"The body is larger than {self.limits.body} bytes. Send less per request.")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > LINGER * self.limits.body:
            raise large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                more = True
                while more and size <= LINGER * self.limits.body:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError("slow", "The client disconnected.")
                    size += len(message.get("body", b""))
                    if size <= self.limits.body:
                        parts.append(message.get("body", b""))
                    more = message.get("more_body", False)
        except TimeoutError:
            words = f"The request was not sent within {self.limits.body_seconds:g} s."
            raise ApiError("slow", words) from None
        if size > self.limits.body:
            raise large
        return b"".join(parts)


def hosts_of(host: str, allowed: Collection[str]) -> tuple[str, ...]:
    """Values of the Host header to allow: this machine's local names, or any if others may connect."""
    if allowed:
        return tuple(one.lower() for one in allowed)
    return (*LOCAL, host.lower()) if host in LOCAL or host.startswith("127.") else ()


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return the body once, then the server's own messages (a disconnect)."""
    waiting: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
