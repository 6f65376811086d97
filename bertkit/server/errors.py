"""The server's errors: one table of reasons, one JSON shape per family of routes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from bertkit.errors import UserError

OPENAI = "/v1/"  # routes that begin so answer in OpenAI's shape, all others in TEI's


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
    "late": Reason(503, "Overloaded", 503, "server_error"),
    "stopping": Reason(503, "Unhealthy", 503, "server_error"),
}
STATUSES = {400: "syntax", 404: "path", 405: "method"}  # what the framework itself refuses


class ApiError(Exception):
    """A request that is refused or fails. retry: seconds after which it may succeed."""

    def __init__(self, why: str, message: str, *, retry: int | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.why, self.message, self.retry, self.param = why, message, retry, param


def response(refused: ApiError, path: str) -> JSONResponse:
    """The error response in the shape of its route's family."""
    reason = REASONS[refused.why]
    # It may name a key that the client made up: of any length, and of characters that are none.
    message, param = (one and one[:500].encode("utf-8", "replace").decode() for one in (refused.message, refused.param))
    headers = {} if refused.retry is None else {"retry-after": str(refused.retry)}
    if refused.why == "key":
        headers["www-authenticate"] = "Bearer"
    if path.startswith(OPENAI):
        about = {"message": message, "type": reason.openai, "param": param, "code": reason.code}
        return JSONResponse({"error": about}, reason.openai_status, headers)
    return JSONResponse({"error": message, "error_type": reason.tei}, reason.status, headers)


def install(app: FastAPI) -> None:
    """Make the app return every error in its family's shape."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        found = error if isinstance(error, ApiError) else _told(error)
        request.app.state.service.metrics.failed(REASONS[found.why].tei)
        return response(found, request.scope["path"])

    for kind in (ApiError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, refused)


def _told(error: Exception) -> ApiError:
    """The framework's errors in our words. The input is never repeated: it may be large, private, or not JSON."""
    if isinstance(error, RequestValidationError):
        problems = error.errors()
        if problems[0]["type"] == "json_invalid":
            return ApiError("syntax", f"The body is not JSON: {problems[0]['ctx']['error']}.")
        param = str(next(iter(problems[0]["loc"][1:]), "")) or None
        return ApiError("invalid", _problems(problems), param=param)
    if isinstance(error, HTTPException):
        why = STATUSES.get(error.status_code, "invalid")
        words = {
            "path": "There is no such route.",
            "method": "This route does not support this method: see /openapi.json.",
        }
        return ApiError(why, words.get(why, "The request cannot be read: it is nested too deeply, or not JSON."))
    return ApiError("fault", "Internal server error. See the server's log.")


def _problems(problems: Any) -> str:
    """The first three problems; those of one field as alternatives."""
    found: dict[str, list[str]] = {}
    for one in problems:
        place = ".".join(str(part) for part in one["loc"][1:2]) or "body"
        found.setdefault(place, []).append(one["msg"].removeprefix("Value error, "))
    return "; ".join(f"{place}: {', or '.join(dict.fromkeys(said))}" for place, said in [*found.items()][:3]) + "."


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
    waiting_characters: int = 1_000_000  # of all requests in the queue
    together: int = 65_536  # characters computed together: some eight batches of the encoder
    seconds: float = 30.0  # from a request's arrival to its answer
    body_seconds: float = 10.0  # for a client to send its request
    stop_seconds: float = 20.0  # for accepted requests after a signal to stop
    guesses: int = 2_000  # masks times guesses of one request

    def __post_init__(self) -> None:
        for one in fields(self):
            if getattr(self, one.name) <= 0:
                raise UserError(f"The limit '{one.name}' is {getattr(self, one.name)}; it must be more than 0.")
