"""A real server in a thread of the test's own process, and a client of nothing but the standard library."""

from __future__ import annotations

import json
import threading
import time
from http.client import HTTPConnection
from typing import Any

from bertkit.server.app import Server, bind, make_app, server_of
from bertkit.server.service import InferenceService


class Running:
    """A real server in a thread of this process."""

    def __init__(self, service: InferenceService) -> None:
        self.service = service
        self.socket = bind("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.server: Server = server_of(make_app(service), service)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],))
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def ask(self, path: str, body: Any = None, port: int = 0) -> tuple[int, Any, dict[str, str]]:
        return ask(port or self.port, path, body)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.service.queue.join(5)


def ask(port: int, path: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        content = None if body is None else json.dumps(body)
        connection.request("POST" if body is not None else "GET", path, content, {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        return answer.status, json.loads(said) if said[:1] in (b"[", b"{") else said, dict(answer.getheaders())
    finally:
        connection.close()
