"""Routes that neither TEI nor OpenAI has: masked words, tags, answers and choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from bertkit.server.routes_tei import service_of
from bertkit.server.schemas import AnswerBody, ChooseBody, FillBody, OwnBody, TagBody
from bertkit.server.service import Asked, reply

router = APIRouter()


async def _asked(request: Request, body: OwnBody, ability: str, inputs: Sequence[Any]) -> Asked:
    service = service_of(request)
    model = service.model(request, body.model, ability)
    return await service.ask(request, model, ability, inputs, service.how(body.truncate, body.truncation_direction))


@router.post("/fill")
async def fill(body: FillBody, request: Request) -> Response:
    """The best predictions for every mask: [[{token, score, id, text}]]; for several texts, a list of these."""
    service = service_of(request)
    model = service.model(request, body.model, "fill")
    single = isinstance(body.inputs, str)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    asked = await service.ask(request, model, "fill", texts, service.how(top=body.top, guesses=service.limits.guesses))
    found = [answer.value for answer in asked.answers]
    return reply(request, found[0] if single else found, asked)


@router.post("/tag")
async def tag(body: TagBody, request: Request) -> Response:
    """Words, their tags, and the entities they make."""
    return await _tagged(body, request, lambda said: said)


@router.post("/ner")
async def ner(body: TagBody, request: Request) -> Response:
    """Only the entities, in the format of transformers' pipeline."""
    return await _tagged(body, request, lambda said: [_entity(one) for one in said["entities"]])


async def _tagged(body: TagBody, request: Request, shown: Callable[[dict[str, Any]], Any]) -> Response:
    single = isinstance(body.inputs, str)
    texts: list[Any] = [body.inputs] if isinstance(body.inputs, str) else list(body.inputs)
    asked = await _asked(request, body, "tag", texts)
    found = [shown(answer.value.said) for answer in asked.answers]
    return reply(request, found[0] if single else found, asked)


def _entity(found: dict[str, Any]) -> dict[str, Any]:
    names = {"label": "entity_group", "text": "word"}
    return {names.get(key, key): value for key, value in found.items()}


@router.post("/answer")
@router.post("/qa")
async def answer(body: AnswerBody, request: Request) -> Response:
    """The answer extracted from a context: {answer, start, end, score, tokens, cut}."""
    asked = await _asked(request, body, "answer", body.listed())
    found = [answer.value.said for answer in asked.answers]
    return reply(request, found[0] if body.single else found, asked)


@router.post("/choose")
async def choose(body: ChooseBody, request: Request) -> Response:
    """The index of the predicted choice, and the score of each."""
    rows = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    asked = await _asked(request, body, "choose", [one.model_dump() for one in rows])
    found = [answer.value.said for answer in asked.answers]
    return reply(request, found if isinstance(body.inputs, list) else found[0], asked)
