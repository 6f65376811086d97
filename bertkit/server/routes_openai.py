"""OpenAI's routes for embeddings, so that its clients only need a different address."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from bertkit.server.errors import ApiError
from bertkit.server.routes_tei import prompted, shaped, stacked
from bertkit.server.schemas import OpenAIBody
from bertkit.server.service import reply, service_of

router = APIRouter(prefix="/v1")
STARTED = int(time.time())


def _encoded(vector: np.ndarray) -> str:
    """A vector for OpenAI's client: float32, little-endian, in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


FORMATS: dict[str, Callable[[np.ndarray], Any]] = {"float": np.ndarray.tolist, "base64": _encoded}


@router.post("/embeddings")
async def embeddings(body: OpenAIBody, request: Request) -> Response:
    """One vector of length 1 per text."""
    service = service_of(request)
    model = service.model(request, body.model, "embed")
    inputs = body.listed()
    if "" in inputs:
        raise ApiError("invalid", "An input is an empty string.", param="input")
    inputs = prompted(model, inputs, body)
    asked = await service.ask(request, model, "embed", inputs, service.how(), most=service.limits.openai_items)
    vectors = shaped(stacked(asked), body.dimensions, True)
    tokens = sum(answer.tokens for answer in asked.answers)
    content = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": n, "embedding": FORMATS[body.encoding_format](vector)}
            for n, vector in enumerate(vectors)
        ],
        "model": model.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return reply(request, content, asked)


@router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    """Every model, with what it can do."""
    return {"object": "list", "data": [_about(request, name) for name in service_of(request).registry]}


@router.get("/models/{name:path}")
async def model(name: str, request: Request) -> dict[str, Any]:
    """One model."""
    service_of(request).registry.pick(name, "tokenize")
    return _about(request, name)


def _about(request: Request, name: str) -> dict[str, Any]:
    """A served model as OpenAI's `/v1/models` describes it."""
    served = service_of(request).registry[name]
    return {
        "id": name, "object": "model", "created": STARTED, "owned_by": "bertkit",
        "task": served.task or None, "abilities": list(served.abilities), "labels": list(served.labels),
        "pairs": served.pairs,
    }  # fmt: skip
