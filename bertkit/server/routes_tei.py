"""The routes of Hugging Face's text-embeddings-inference: its requests, responses and headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from bertkit.errors import UserError
from bertkit.server.errors import ApiError
from bertkit.server.models import ServedModel
from bertkit.server.operations import LabelScores
from bertkit.server.schemas import EmbedBody, PredictBody, Prompted, RerankBody, SimilarityBody, TokenizeBody
from bertkit.server.service import ServiceResult, reply, service_of

router = APIRouter()


class Label(TypedDict):
    """A label and its score."""

    score: float
    label: str


class Ranked(TypedDict):
    """A text's index in the request, and its score."""

    index: int
    score: float
    text: NotRequired[str]


class Piece(TypedDict):
    """A token; start and stop are characters of the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def shaped(vectors: np.ndarray, dimensions: int | None, normalize: bool) -> np.ndarray:
    """The vectors of TEI's /embed, cut to `dimensions` and scaled to length 1 if requested: (n, width)."""
    if dimensions is not None and dimensions > vectors.shape[1]:
        raise ApiError(
            "invalid", f"dimensions is {dimensions}; this model's vectors have {vectors.shape[1]}.", param="dimensions"
        )
    vectors = vectors[:, :dimensions]
    if not normalize:
        return vectors
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def stacked(asked: ServiceResult) -> np.ndarray:
    """The vectors of a job as TEI's /embed needs them: (n, width)."""
    return np.stack([answer.value for answer in asked.answers])


def prompted(model: ServedModel, inputs: Sequence[Any], body: Prompted | None = None) -> list[Any]:
    """Inputs of TEI's /embed as (prompt, text), with the body's prompt, else the model's default; ids stay.

    An embedding model's default prompt goes before texts alone: ids are taken as they are sent.
    """
    name, text = (body.prompt_name, body.prompt) if body else (None, None)
    try:
        prompt = model.predictor.pooling.prompt(name, text)
    except UserError as mistake:
        raise ApiError("invalid", str(mistake), param="prompt_name") from None
    if (name or text) and any(isinstance(given, list) for given in inputs):
        raise ApiError("invalid", "A prompt can be put before texts, not before ids. Send texts.", param="prompt_name")
    return [(prompt, given) if prompt and isinstance(given, str) else given for given in inputs]


def _sides(model: ServedModel, query: str, texts: Sequence[str]) -> list[Any]:
    """A query and its texts for TEI's /rerank and /similarity, each with the model's prompt for its side, if any."""
    pooling = model.predictor.pooling
    query_prompt, text_prompt = pooling.prompt_for("query"), pooling.prompt_for("document")
    return [(query_prompt, query), *((text_prompt, text) for text in texts)]


@router.post("/embed", response_model=list[list[float]])
async def embed(body: EmbedBody, request: Request) -> Response:
    """One vector per text."""
    service = service_of(request)
    model = service.model(request, body.model, "embed")
    how = service.how(body.truncate, body.truncation_direction)
    asked = await service.ask(request, model, "embed", prompted(model, body.listed(), body), how)
    return reply(request, shaped(stacked(asked), body.dimensions, body.normalize).tolist(), asked)


@router.post("/predict", response_model=list[Label] | list[list[Label]])
async def predict(body: PredictBody, request: Request) -> Response:
    """Labels with their scores, best first. A regression model returns one 'label' whose score is the value."""
    service = service_of(request)
    model = service.model(request, body.model, "predict")
    inputs = body.listed()
    for text in inputs:
        if model.pairs is not None and model.pairs != isinstance(text, tuple):
            wanted = "pairs of texts: [a, b], or [[a, b], …]" if model.pairs else "single texts: a, or [[a], [b], …]"
            raise ApiError("invalid", f"The model '{model.name}' reads {wanted}.")
    how = service.how(body.truncate, body.truncation_direction)
    asked = await service.ask(request, model, "predict", inputs, how)
    labels = [labels_of(model, answer.value, body.raw_scores) for answer in asked.answers]
    return reply(request, labels[0] if body.single else labels, asked)


def labels_of(model: ServedModel, scores: LabelScores, raw: bool) -> list[Label]:
    """The labels of TEI's /predict with their scores, best first."""
    numbers = model.predictor.task.label_scores(scores.raw, scores.said, raw)
    return [Label(score=numbers[name], label=name) for name in sorted(numbers, key=lambda name: -numbers[name])]


@router.post("/rerank", response_model=list[Ranked])
async def rerank(body: RerankBody, request: Request) -> Response:
    """Rank texts by how well they match a query: as a cross-encoder, or by cosine with an embedding model."""
    service = service_of(request)
    model = service.model(request, body.model, "rerank")
    how = service.how(body.truncate, body.truncation_direction)
    squashed = False
    if "predict" in model.abilities:
        named = model.predictor.task.labelled_by_name
        if named and body.label not in model.labels:
            known = ", ".join(model.labels)
            raise ApiError("invalid", f"No label to rank by: send one as `label`: {known}.")
        asked = await service.ask(request, model, "predict", [(body.query, text) for text in body.texts], how)
        scores = [_relevance(answer.value, body, model) for answer in asked.answers]
        squashed = not named and not body.raw_scores
    else:
        asked = await service.ask(request, model, "embed", _sides(model, body.query, body.texts), how, beside=1)
        scores = _cosines(asked)
    order = sorted(range(len(scores)), key=lambda n: -scores[n])
    if squashed:
        scores = (1 / (1 + np.exp(-np.clip(scores, -60, 60)))).tolist()  # after sorting: large numbers all become 1
    ranked: list[dict[str, Any]] = [{"index": n, "score": scores[n]} for n in order]
    if body.return_text:
        ranked = [row | {"text": body.texts[row["index"]]} for row in ranked]
    return reply(request, ranked, asked)


def _relevance(scores: LabelScores, body: RerankBody, model: ServedModel) -> float:
    """The score that TEI's /rerank sorts by: that of the label asked for; without label names, the one number."""
    numbers = model.predictor.task.label_scores(scores.raw, scores.said, body.raw_scores)
    return float(numbers[body.label] if body.label in numbers else next(iter(numbers.values())))


def _cosines(asked: ServiceResult) -> list[float]:
    """Cosines of the first vector with each of the others, for TEI's /rerank and /similarity."""
    vectors = shaped(stacked(asked), None, True)
    return (vectors[1:] @ vectors[0]).tolist()


@router.post("/similarity", response_model=list[float])
async def similarity(body: SimilarityBody, request: Request) -> Response:
    """How similar a text is to others, as cosines."""
    service = service_of(request)
    model = service.model(request, body.model, "similarity")
    chosen = body.parameters
    how = service.how(chosen.truncate, chosen.truncation_direction) if chosen else service.how()
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    asked = await service.ask(request, model, "similarity", prompted(model, texts, chosen), how, beside=1)
    return reply(request, _cosines(asked), asked)


@router.post("/tokenize", response_model=list[list[Piece]])
async def tokenize(body: TokenizeBody, request: Request) -> Response:
    """The tokens of each text."""
    service = service_of(request)
    model = service.model(request, body.model, "tokenize")
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    if body.prompt_name is not None or body.prompt is not None:  # the model's default is for vectors alone
        texts = ["".join(pair) for pair in prompted(model, texts, body)]
    asked = await service.ask(request, model, "tokenize", texts, service.how(specials=body.add_special_tokens))
    return reply(request, [answer.value for answer in asked.answers], asked)


@router.get("/info")
async def info(request: Request, model: str | None = None) -> dict[str, Any]:
    """The model and the server's limits; with several models, the one named by path or `?model=`, else the first."""
    service = service_of(request)
    served = service.model(request, model, "tokenize")
    return served.info(service.limits, service.on_long) | {"models": list(service.registry)}


@router.get("/health", response_class=Response)
@router.get("/ping", include_in_schema=False)
async def health(request: Request) -> Response:
    """200 with an empty body while requests are accepted."""
    if not service_of(request).queue.alive:
        raise ApiError("stopping", "unhealthy", retry=5)
    return Response()


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> PlainTextResponse:
    """Counts and times for Prometheus, as TEI's /metrics."""
    service = service_of(request)
    return PlainTextResponse(service.metrics.text(len(service.queue)), media_type="text/plain; version=0.0.4")
