"""`bertkit serve`: models over HTTP, with a page to try them. `bertkit show`: that page, for the one who sits here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.commands import SharedCommand
from bertkit.config import Common, InferenceOptions, option


@dataclass(frozen=True, kw_only=True)
class Settings(InferenceOptions):
    """Options of `bertkit serve`."""

    models: tuple[str, ...] = option(help="Embedded names, folders, hub names, or NAME=MODEL.", argument=True)
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 lets other machines in.")
    port: int = option(8080, "Port to listen on; 0 takes a free one.", at_least=0, at_most=65535)
    on_long: str = option(
        "", "How to treat long texts when a request does not say (default: read in windows, as in training).",
        choices=("", "window", "truncate", "error"),
    )  # fmt: skip
    api_key_file: Path | None = option(None, "A file with the API key that clients must send; or set BERTKIT_API_KEY.")
    allow_hosts: tuple[str, ...] = option(
        (), "Values of the Host header to accept (default: the local names on 127.0.0.1, otherwise all)."
    )
    max_openai_items: int = option(2048, "Maximum texts per request to /v1/embeddings.", at_least=1)
    max_items: int = option(32, "Maximum texts per request.", at_least=1)
    max_characters: int = option(100_000, "Maximum characters per request, over all its texts.", at_least=1)
    max_body: int = option(2_000_000, "Maximum bytes per request.", at_least=1)
    max_waiting: int = option(512, "Maximum requests in the queue; further ones get status 429.", at_least=1)
    timeout: float = option(30.0, "Seconds to answer a request before it gets status 503.", at_least=0.001)
    metrics_prefix: str = option("te", "Prefix of the names in /metrics; te is TEI's.")


def run(settings: Settings) -> dict[str, Any]:
    """Serve models over HTTP: the routes of TEI and OpenAI, /fill, /tag and /answer, and a page at /."""
    from bertkit.notify import note

    return _serve(settings, lambda address: note(f"{address}: open it in a browser to try it; press Ctrl-C to stop."))


def _serve(settings: Settings, opened: Callable[[str], None]) -> dict[str, Any]:
    """Load the models and serve them until interrupted; `opened` is called with the address."""
    from bertkit import machine
    from bertkit.errors import UserError
    from bertkit.notify import note

    try:
        from bertkit.server.app import address_of, bind, make_app
        from bertkit.server.app import run as serve
        from bertkit.server.errors import Limits
        from bertkit.server.middleware import LOCAL, hosts_of
        from bertkit.server.models import load
        from bertkit.server.service import InferenceService
    except ModuleNotFoundError as missing:
        raise UserError(
            f"The server needs {missing.name}, which is not installed. Run: pip install 'bertkit[serve]'."
        ) from None
    key = _key(settings)
    limits = Limits(
        body=settings.max_body, items=settings.max_items, openai_items=settings.max_openai_items,
        characters=settings.max_characters, waiting=settings.max_waiting,
        waiting_characters=10 * settings.max_characters, seconds=settings.timeout,
    )  # fmt: skip
    machine.limit_onednn_cache()
    machine.limit_arenas(1 + machine.set_threads(settings.threads))
    with bind(settings.host, settings.port) as bound:  # before the models are read: a port in use is reported at once
        registry = load(settings.models, settings.precision, settings.device, settings.engine)
        service = InferenceService(
            registry, limits, on_long=settings.on_long, threads=settings.threads, prefix=settings.metrics_prefix
        )  # fmt: skip
        for served in registry.values():
            note(f"{served.name}: {', '.join(served.abilities)} ({served.predictor.computed_by})")
        address = address_of(bound)
        if settings.host not in LOCAL and not key:
            note("Other machines may be able to connect and no key is required: set BERTKIT_API_KEY.")
        began = time.monotonic()
        app = make_app(service, hosts=hosts_of(settings.host, settings.allow_hosts), key=key)
        serve(app, service, bound, lambda: opened(address))
    requests = service.metrics.counters["request_success"]
    return {"address": address, "answered": sum(requests.values()), "seconds": round(time.monotonic() - began, 1)}


def _key(settings: Settings) -> str:
    """The API key of `serve`, from the file or the environment; empty if there is none."""
    from bertkit.errors import UserError

    if settings.api_key_file is None:
        return os.environ.get("BERTKIT_API_KEY", "").strip()
    try:
        key = settings.api_key_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as reason:
        raise UserError(f"{settings.api_key_file}: the key cannot be read ({reason}).") from None
    if not key:
        raise UserError(f"{settings.api_key_file}: the file is empty. Write the key on one line.")
    return key


def lines(result: dict[str, Any]) -> list[str]:
    """The output of the command `serve`: a summary, when the server has stopped."""
    return [f"{result['address']}: {result['answered']:,} requests answered in {result['seconds']:,} s"]


# ---- `bertkit show`: the same server on a free port of this machine, and a browser that opens its page.

VIEWS = ("pieces", "input", "masking", "next", "attention", "layers", "meaning", "learning", "lineage", "answers")


@dataclass(frozen=True, kw_only=True)
class ShowSettings(Common):
    """Options of `bertkit show`."""

    models: tuple[str, ...] = option(
        ("en", "zh", "classic"), "Embedded names, folders, hub names, or NAME=MODEL.", argument=True
    )
    view: str = option("pieces", "The view to open.", choices=VIEWS)
    text: str = option("", "The text to show (default: an example).")
    text_b: str = option("", "The second text of a pair.")
    port: int = option(0, "Port to listen on; 0 takes a free one.", at_least=0, at_most=65535)
    browser: bool = option(True, "Open the page in the browser; otherwise only print its address.")


def _show(settings: ShowSettings) -> dict[str, Any]:
    """See how BERT works, in the browser: pieces, vectors, masked words and attention of your own text.

    Everything runs on this machine, and nothing leaves it. Give the models to show: the embedded ones, or yours.
    """
    import webbrowser
    from urllib.parse import urlencode

    from bertkit.notify import note

    models = settings.models
    first = models[0].partition("=")[0] if "=" in models[0] else Path(models[0]).name if "/" in models[0] else models[0]
    given = {"model": first, "text": settings.text, "b": settings.text_b}
    query = urlencode({name: value for name, value in given.items() if value})

    def opened(address: str) -> None:
        asked = settings.text or settings.text_b or settings.view != ShowSettings.view or models != ShowSettings.models
        url = f"{address}/#/{settings.view}?{query}" if asked else f"{address}/"
        note(f"{url}\nPress Ctrl-C to stop.")
        if settings.browser:
            webbrowser.open(url)

    served = Settings(
        models=models, port=settings.port, precision=settings.precision, device=settings.device,
        threads=settings.threads, seed=settings.seed,
    )  # fmt: skip
    return _serve(served, opened)


show = SharedCommand(ShowSettings, _show, lines)
