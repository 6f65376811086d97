"""The web application: routes, errors, guard and page put together."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from bertkit import __version__
from bertkit.server import errors, routes_native, routes_openai, routes_tei
from bertkit.server.middleware import Guard
from bertkit.server.service import Desk

PAGE = Path(__file__).with_name("page.html")


def make_app(desk: Desk, *, hosts: Collection[str] = (), key: str = "") -> FastAPI:
    """An ASGI application that answers with a desk's models. key: what clients must know; none where empty."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        desk.queue.close()

    # No pages of documentation: they would load scripts from elsewhere. /openapi.json tells the same.
    app = FastAPI(title="bertkit", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.desk = desk
    page = PAGE.read_text("utf-8")
    policy = {"content-security-policy": _policy(page)}

    @app.get("/", include_in_schema=False)
    async def start() -> HTMLResponse:
        return HTMLResponse(page, headers=policy)

    for routes in (routes_tei, routes_openai, routes_native):
        app.include_router(routes.router)
    errors.install(app)
    app.add_middleware(Guard, desk=desk, hosts=hosts, key=key)
    return app


def _policy(page: str) -> str:
    """Only what the page holds itself may run, and it may speak to this server alone."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in found]
        return " ".join(f"'sha256-{one}'" for one in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
