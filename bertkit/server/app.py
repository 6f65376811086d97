"""The web application: routes, errors, middleware and page."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from bertkit import __version__
from bertkit.errors import UserError
from bertkit.server import errors, routes_native, routes_openai, routes_show, routes_tei
from bertkit.server.middleware import GuardMiddleware
from bertkit.server.protocol import Door, PacedSelector
from bertkit.server.service import InferenceService


def make_app(service: InferenceService, *, hosts: Collection[str] = (), key: str = "") -> FastAPI:
    """An ASGI application for a service's models. key: the API key clients must send; empty: none."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.queue.close()

    # No pages of documentation: they would load scripts from elsewhere. /openapi.json tells the same.
    app = FastAPI(title="bertkit", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    for routes in (routes_show, routes_tei, routes_openai, routes_native):
        app.include_router(routes.router)
    errors.install(app)
    app.add_middleware(GuardMiddleware, service=service, hosts=hosts, key=key)
    return app


# ---- The server as a process: its socket, its start, and its end.

KEEP_ALIVE = 30  # seconds an idle connection stays open
BACKLOG = 4096  # connections that the system holds until they are accepted
ACCEPTED = 16  # connections in one round of the event loop
FAREWELL = 5  # seconds for the last answers to be sent, once they are computed


def bind(host: str, port: int) -> socket.socket:
    """A bound socket for the server that does not listen yet; port 0: any free port."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port is {port}; it must be from 0 (any free port) to 65535.")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as reason:
        raise UserError(f"--host is {host!r}, which is not an address of this machine ({reason}).") from None
    made = socket.socket(family, kind, proto)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
    except OSError as reason:
        made.close()
        raise UserError(f"{host}:{port} cannot be used ({reason.strerror}). Choose another with --port.") from None
    return made


def address_of(bound: socket.socket) -> str:
    """The server's address, http://… of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """A server that stops in two steps. First signal: refuse new work, say so in /health, answer the rest; second: end.

    ready: called once, when connections are accepted.
    """

    def __init__(
        self, config: uvicorn.Config, service: InferenceService, door: Door, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self.service, self.door, self.ready = service, door, ready
        self.until = 0.0

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal arrives, in an event loop that does not wake up for every request it refuses."""
        selector = PacedSelector(lambda: self.service.is_full)
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            runner.run(self.serve(sockets))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT, and when the terminal is closed (SIGHUP), unless nohup made that be ignored."""
        hangup = getattr(signal, "SIGHUP", None)
        is_main = threading.current_thread() is threading.main_thread()
        ours = hangup if hangup and is_main and signal.getsignal(hangup) is not signal.SIG_IGN else None
        before = signal.signal(ours, self.handle_exit) if ours else None
        try:
            with super().capture_signals():
                yield
        finally:
            if ours:
                signal.signal(ours, before)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """The server starts listening, and calls `ready`."""
        self.door.open()
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # asyncio has one number for what may wait and what it accepts at once
        if self.started:
            self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The server handles a signal."""
        now = time.monotonic()
        self.until = now if self.until else now + self.service.limits.stop_seconds
        self.service.queue.closing = True  # no lock here: the thread that a signal interrupts may hold it

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second, the server checks whether to exit."""
        self.door.close_silent(asyncio.get_running_loop().time(), self.config.timeout_keep_alive)
        done = await super().on_tick(counter)
        if self.until and time.monotonic() >= self.until:
            self.service.abandon()  # what still waits is answered with 503
            return True
        return done or bool(self.until and self.service.queue.idle)


def server_of(app: FastAPI, service: InferenceService, ready: Callable[[], None] = lambda: None) -> Server:
    """A server of the app that has not started."""
    door = Door(service)
    config = uvicorn.Config(
        app, http=cast(Any, door.protocol), lifespan="on", log_level="error", access_log=False, server_header=False,
        ws="none", backlog=ACCEPTED, timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=FAREWELL,
    )  # fmt: skip
    return Server(config, service, door, ready)


def run(
    app: FastAPI, service: InferenceService, bound: socket.socket, ready: Callable[[], None] = lambda: None
) -> None:
    """Run the server until a signal arrives."""
    gc.collect()
    gc.freeze()  # models and modules live as long as the server: to look at them in a collection takes 0.2 s
    gc.set_threshold(20_000, 20, 50)  # a request makes hundreds of objects, and nearly all end without a collection
    server_of(app, service, ready).run([bound])
    service.queue.join(1)  # it is idle, or its time is up
