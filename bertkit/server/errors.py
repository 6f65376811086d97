"""The server's errors: one table of reasons, one JSON shape per family of routes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from bertkit.errors import UserError
from bertkit.notify import translated

OPENAI = "/v1/"  # routes that begin so answer in OpenAI's shape, all others in TEI's
PREFIX = "/models/"  # /models/NAME/embed asks NAME


@dataclass(frozen=True)
class Reason:
    """The status and the name of a reason in both families."""

    status: int
    tei: str
    openai_status: int
    openai: str = "invalid_request_error"
    code: str | None = None


REASONS = {
    "empty": Reason(400, "Empty", 400),
    "invalid": Reason(422, "Validation", 400),
    "syntax": Reason(400, "Validation", 400),
    "protocol": Reason(400, "Validation", 400),
    "header": Reason(431, "Validation", 431),
    "host": Reason(400, "Validation", 400),
    "key": Reason(401, "Validation", 401, code="invalid_api_key"),
    "model": Reason(404, "Validation", 404, code="model_not_found"),
    "path": Reason(404, "Validation", 404),
    "method": Reason(405, "Validation", 405),
    "slow": Reason(408, "Validation", 408),
    "large": Reason(413, "Validation", 413),
    "type": Reason(415, "Validation", 415),
    "ability": Reason(424, "Backend", 400, code="model_not_supported"),
    "busy": Reason(429, "Overloaded", 429, "rate_limit_error", "rate_limit_exceeded"),
    "fault": Reason(500, "Backend", 500, "server_error"),
    "guessing": Reason(429, "Overloaded", 429, "rate_limit_error", "rate_limit_exceeded"),
    "late": Reason(503, "Overloaded", 503, "server_error"),
    "stopping": Reason(503, "Unhealthy", 503, "server_error"),
}
STATUSES = {400: "syntax", 404: "path", 405: "method"}  # what the framework itself refuses


class ApiError(Exception):
    """A request that is refused or fails. retry: seconds after which it may succeed."""

    def __init__(self, why: str, message: str, *, retry: int | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.why, self.message, self.retry, self.param = why, message, retry, param


def is_openai(path: str) -> bool:
    """Whether errors of a path have OpenAI's shape. path: a route's, perhaps after a model's name."""
    return path.startswith(OPENAI) or (path.startswith(PREFIX) and OPENAI in path)


def response(refused: ApiError, path: str, language: str = "en") -> JSONResponse:
    """The error response in the shape of its route's family. language: of the message."""
    reason = REASONS[refused.why]
    # It may name a key that the client made up: of any length, and of characters that are none.
    message, param = (
        text and text[:500].encode("utf-8", "replace").decode() for text in (refused.message, refused.param)
    )
    message = translated(message or "", language)
    headers = {} if refused.retry is None else {"retry-after": str(refused.retry)}
    if refused.why == "key":
        headers["www-authenticate"] = "Bearer"
    if is_openai(path):
        about = {"message": message, "type": reason.openai, "param": param, "code": reason.code}
        return JSONResponse({"error": about}, reason.openai_status, headers)
    return JSONResponse({"error": message, "error_type": reason.tei}, reason.status, headers)


def language_of(headers: Headers) -> str:
    """The language of messages: Chinese for a client that prefers it (the page in Chinese does), else English."""
    return "zh" if headers.get("accept-language", "").strip().lower().startswith("zh") else "en"


def install(app: FastAPI) -> None:
    """Make the app return every error in its family's shape, and list them in /openapi.json."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        problem = error if isinstance(error, ApiError) else _as_api_error(error)
        request.app.state.service.metrics.failed(REASONS[problem.why].tei)
        answer = response(problem, request.scope["path"], language_of(request.headers))
        answer.headers.update(getattr(error, "headers", None) or {})
        if problem.why == "method" and (methods := request.app.openapi()["paths"].get(request.scope["path"])):
            answer.headers["allow"] = ", ".join(sorted(method.upper() for method in methods))  # of all its routes
        return answer

    for kind in (ApiError, UserError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, refused)
    app.openapi = lambda: _with_errors(app)  # type: ignore[method-assign]


# ---- What /openapi.json says about errors and keys.

_TEXT = {"type": "string"}
_MAYBE = {"anyOf": [_TEXT, {"type": "null"}]}
_OPENAI_ERROR = {
    "type": "object", "required": ["message", "type", "param", "code"],
    "properties": {"message": _TEXT, "type": _TEXT, "param": _MAYBE, "code": _MAYBE},
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "Error": {
        "type": "object", "required": ["error", "error_type"],
        "properties": {"error": _TEXT, "error_type": {"enum": sorted({reason.tei for reason in REASONS.values()})}},
    },
    "OpenAIError": {"type": "object", "required": ["error"], "properties": {"error": _OPENAI_ERROR}},
}  # fmt: skip
WITH_BODY = frozenset({"empty", "invalid", "syntax", "large", "type", "ability", "busy"})  # reasons of POST alone
ELSEWHERE = frozenset({"path", "method"})  # reasons of no route


def _with_errors(app: FastAPI) -> dict[str, Any]:
    """The schema of the app, with every status that a route can answer."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        parts = schema.setdefault("components", {})
        parts.setdefault("schemas", {}).update(SHAPES)
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, methods in schema["paths"].items():
            for method, operation in methods.items():
                operation["security"] = [{}, {"key": []}]
                operation["responses"] = _errors_of(path, method) | {
                    status: answer for status, answer in operation["responses"].items() if status.startswith("2")
                }
        for unused in ("HTTPValidationError", "ValidationError"):
            parts["schemas"].pop(unused, None)
        _fill_in(parts["schemas"], app.state.service.registry.bounds())
        app.openapi_schema = schema
    return app.openapi_schema


def _fill_in(schema: Any, bounds: dict[str, dict[str, Any]]) -> None:
    """Add to the documented errors what depends on the models that are served, by title."""
    if isinstance(schema, dict):
        schema.update(bounds.get(str(schema.get("title")), {}))
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _fill_in(part, bounds)


def _errors_of(path: str, method: str) -> dict[str, Any]:
    """The errors of a route, for the server's OpenAPI description."""
    openai = path.startswith(OPENAI)
    left_out = ELSEWHERE if method == "post" else ELSEWHERE | WITH_BODY
    reasons = [reason for why, reason in REASONS.items() if why not in left_out]
    shape = {"$ref": "#/components/schemas/" + ("OpenAIError" if openai else "Error")}
    return {
        str(status): {"description": HTTPStatus(status).phrase, "content": {"application/json": {"schema": shape}}}
        for status in sorted({reason.openai_status if openai else reason.status for reason in reasons})
    }


def _as_api_error(error: Exception) -> ApiError:
    """The framework's errors in our words. The input is never repeated: it may be large, private, or not JSON."""
    if isinstance(error, RequestValidationError):
        problems = error.errors()
        if problems[0]["type"] == "json_invalid":
            return ApiError("syntax", f"The body is not JSON: {problems[0]['ctx']['error']}.")
        param = str(next(iter(problems[0]["loc"][1:]), "")) or None
        return ApiError("invalid", _problems(problems), param=param)
    if isinstance(error, UserError):
        return ApiError("invalid", str(error))
    if isinstance(error, HTTPException):
        why = STATUSES.get(error.status_code, "invalid")
        if why == "path":
            return ApiError(why, "There is no such route.")
        if why == "method":
            return ApiError(why, "This route does not support this method: see /openapi.json.")
        return ApiError(why, "The request cannot be read: it is nested too deeply, or not JSON.")
    return ApiError("fault", "Internal server error. See the server's log.")


def _problems(problems: Any) -> str:
    """The first three problems of an invalid request; those of one field as alternatives."""
    by_field: dict[str, list[str]] = {}
    for problem in problems:
        place = ".".join(str(part) for part in problem["loc"][1:2]) or "body"
        by_field.setdefault(place, []).append(problem["msg"].removeprefix("Value error, "))
    first = [*by_field.items()][:3]
    return "; ".join(f"{place}: {', or '.join(dict.fromkeys(messages))}" for place, messages in first) + "."


# ---- Every bound of the server in one place.


@dataclass(frozen=True)
class Limits:
    """Limits on requests and on the queue. Texts are measured in characters, because a text's tokens are
    known only after the work that has to be bounded."""

    body: int = 2_000_000  # bytes of one request
    items: int = 32  # texts of one request, as TEI has it
    openai_items: int = 2_048  # texts of one request to /v1/embeddings, as OpenAI has it
    characters: int = 100_000  # of all texts of one request
    waiting: int = 512  # requests in the queue
    waiting_seconds: float = 10.0  # that a request may be expected to wait in the queue
    waiting_turns: int = 64  # requests that the event loop has yet to parse, or to answer
    waiting_characters: int = 1_000_000  # of all requests in the queue
    waiting_bytes: int = 64_000_000  # of the bodies of all requests under way
    connections: int = 1_024  # open at once
    wrong_keys: int = 10  # of one client in a minute
    together: int = 16_384  # characters computed together: some two batches of the encoder
    seconds: float = 30.0  # from a request's arrival to its answer
    body_seconds: float = 10.0  # for a client to send its request
    stop_seconds: float = 20.0  # for accepted requests after a signal to stop
    guesses: int = 2_000  # masks times guesses of one request

    def __post_init__(self) -> None:
        for limit in fields(self):
            if getattr(self, limit.name) <= 0:
                raise UserError(f"The limit '{limit.name}' is {getattr(self, limit.name)}; it must be more than 0.")
