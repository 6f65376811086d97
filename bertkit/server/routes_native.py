"""Routes that neither TEI nor OpenAI has: masked words, tags, answers and choices, and Hugging Face's pipelines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from bertkit.server.errors import ApiError
from bertkit.server.models import ServedModel
from bertkit.server.routes_tei import embed, labels_of, predict, similarity
from bertkit.server.schemas import (
    AnswerBody,
    AnswerParameters,
    ChooseBody,
    EmbedBody,
    FillBody,
    FillParameters,
    OwnBody,
    PipelineBody,
    PredictBody,
    SimilarityBody,
    Table,
    TableParameters,
    TagBody,
    TextParameters,
    TokenParameters,
    ZeroShotParameters,
    parsed,
)
from bertkit.server.service import ServiceResult, reply, service_of

router = APIRouter()


async def _asked(request: Request, body: OwnBody, ability: str, inputs: Sequence[Any]) -> ServiceResult:
    """Ask the service for an operation on behalf of a route."""
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
    guesses = [answer.value for answer in asked.answers]
    return reply(request, guesses[0] if single else guesses, asked)


@router.post("/tag")
async def tag(body: TagBody, request: Request) -> Response:
    """Words, their tags, and the entities they make."""
    return await _tagged(body, request, lambda prediction: prediction)


@router.post("/ner")
async def ner(body: TagBody, request: Request) -> Response:
    """Only the entities, in the format of transformers' pipeline."""
    return await _tagged(body, request, _entities)


async def _tagged(body: TagBody, request: Request, shape: Callable[[dict[str, Any]], Any]) -> Response:
    """Tags of a request's texts, in the shape of a route."""
    single = isinstance(body.inputs, str)
    texts: list[Any] = [body.inputs] if isinstance(body.inputs, str) else list(body.inputs)
    asked = await _asked(request, body, "tag", texts)
    tagged = [shape(answer.value.said) for answer in asked.answers]
    return reply(request, tagged[0] if single else tagged, asked)


def _entities(prediction: dict[str, Any]) -> list[dict[str, Any]]:
    names = {"label": "entity_group", "text": "word"}
    return [{names.get(key, key): value for key, value in entity.items()} for entity in prediction["entities"]]


@router.post("/answer")
@router.post("/qa")
async def answer(body: AnswerBody, request: Request) -> Response:
    """The answer extracted from a context: {answer, start, end, score, tokens, cut}."""
    asked = await _asked(request, body, "answer", body.listed())
    answers = [answer.value.said for answer in asked.answers]
    return reply(request, answers[0] if body.single else answers, asked)


@router.post("/choose")
async def choose(body: ChooseBody, request: Request) -> Response:
    """The index of the predicted choice, and the score of each."""
    rows = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    asked = await _asked(request, body, "choose", [row.model_dump() for row in rows])
    choices = [answer.value.said for answer in asked.answers]
    return reply(request, choices if isinstance(body.inputs, list) else choices[0], asked)


# ---- Hugging Face's pipelines: its clients send every task to one address, as {inputs, parameters}.


def _plain(body: PipelineBody, **more: Any) -> dict[str, Any]:
    """The body of the native route that answers a pipeline."""
    return {"inputs": body.inputs, "model": body.model} | more


async def _feature_extraction(body: PipelineBody, request: Request, model: ServedModel) -> Response:
    own = {key: value for key, value in (body.model_extra or {}).items() if key in EmbedBody.model_fields}
    return await embed(parsed(EmbedBody, _plain(body, **own)), request)


async def _sentence_similarity(body: PipelineBody, request: Request, model: ServedModel) -> Response:
    return await similarity(parsed(SimilarityBody, _plain(body, parameters=body.parameters)), request)


async def _fill_mask(body: PipelineBody, request: Request, model: ServedModel) -> Response:
    """The pipeline fill-mask: for one mask, its guesses; for several, a list of these."""
    chosen = _parameters(FillParameters, body)
    given = parsed(FillBody, _plain(body, top=chosen.top_k or 5))
    service = service_of(request)
    texts = [given.inputs] if isinstance(given.inputs, str) else given.inputs
    how = service.how(top=given.top, guesses=service.limits.guesses)
    asked = await service.ask(request, model, "fill", texts, how)
    texts_guesses = [[[_guess(guess) for guess in mask] for mask in answer.value] for answer in asked.answers]
    guesses = [masks[0] if len(masks) == 1 else masks for masks in texts_guesses]
    return reply(request, guesses[0] if isinstance(given.inputs, str) else guesses, asked)


def _guess(guess: dict[str, Any]) -> dict[str, Any]:
    return {
        "score": guess["score"], "token": guess["id"], "token_str": guess["token"], "sequence": guess["text"],
    }  # fmt: skip


async def _text_classification(body: PipelineBody, request: Request, model: ServedModel) -> Response:
    """The pipeline text-classification: labels as a list in a list; without parameters, TEI's response."""
    if body.parameters is None:
        own = {key: value for key, value in (body.model_extra or {}).items() if key in PredictBody.model_fields}
        return await predict(parsed(PredictBody, _plain(body, **own)), request)
    chosen = _parameters(TextParameters, body)
    raw = chosen.function_to_apply == "none"
    usual = "sigmoid" if model.predictor.task.options.get("multi_label") else "softmax"
    if chosen.function_to_apply not in (None, "none", usual):
        raise ApiError("invalid", f"function_to_apply must be {usual} or none for the model '{model.name}'.")
    listed = isinstance(body.inputs, list)
    inputs = [[text] for text in body.inputs] if listed else body.inputs
    given = parsed(PredictBody, _plain(body) | {"inputs": inputs})
    asked = await service_of(request).ask(request, model, "predict", given.listed(), service_of(request).how())
    return reply(request, [labels_of(model, answer.value, raw)[: chosen.top_k] for answer in asked.answers], asked)


async def _token_classification(body: PipelineBody, request: Request, model: ServedModel) -> Response:
    chosen = _parameters(TokenParameters, body)
    hidden = set(chosen.ignore_labels or ())

    def shown(prediction: dict[str, Any]) -> list[dict[str, Any]]:
        return [entity for entity in _entities(prediction) if entity["entity_group"] not in hidden]

    return await _tagged(parsed(TagBody, _plain(body)), request, shown)


async def _question_answering(body: PipelineBody, request: Request, model: ServedModel) -> Response:
    _parameters(AnswerParameters, body)
    return await answer(parsed(AnswerBody, _plain(body)), request)


async def _table_answering(body: PipelineBody, request: Request, model: ServedModel) -> Response:
    """The pipeline table-question-answering: cells in which the answer lies; rows are read as `column: cell` pairs."""
    _parameters(TableParameters, body)
    given = parsed(Table, body.inputs if isinstance(body.inputs, dict) else {})
    rows = len(next(iter(given.table.values())))
    service_of(request).check_size(  # before it is written: a long column name would be repeated in every row
        sum((len(name) + 4) * rows + sum(map(len, cells)) for name, cells in given.table.items())
    )
    context, places = "", []  # (start, end, row, column) of every cell
    for row in range(rows):
        for column, (name, cells) in enumerate(given.table.items()):
            context += f"{name}: "
            places.append((len(context), len(context) + len(cells[row]), row, column))
            context += cells[row] + ("; " if column + 1 < len(given.table) else ".\n")
    asked = await _asked(request, OwnBody(model=body.model), "answer", [{"question": given.query, "context": context}])
    prediction = asked.answers[0].value.said
    hits = [place for place in places if place[0] < prediction["end"] and prediction["start"] < place[1]]
    cells = [context[start:end] for start, end, _, _ in hits]
    answer_of_table = {
        "answer": ", ".join(cells), "coordinates": [[row, column] for _, _, row, column in hits], "cells": cells,
        "aggregator": "NONE",
    }  # fmt: skip
    return reply(request, answer_of_table, asked)


async def _zero_shot(body: PipelineBody, request: Request, model: ServedModel) -> Response:
    """The pipeline zero-shot-classification: how likely a model of entailment finds that each label follows."""
    chosen = _parameters(ZeroShotParameters, body)
    names = [label.lower() for label in model.labels]
    if model.pairs is False or not {"entailment", "contradiction"} <= set(names):
        raise ApiError(
            "ability",
            f"The model '{model.name}' cannot classify without examples. Serve one fine-tuned on entailment, with "
            "labels 'entailment' and 'contradiction'.",
            param="model",
        )
    if not isinstance(body.inputs, str):
        raise ApiError("invalid", "inputs must be a text.", param="inputs")
    template = chosen.hypothesis_template or "This example is {}."
    if "{}" not in template:
        raise ApiError("invalid", "hypothesis_template must contain {} in the place of the label.")
    # Before they are written: the text, the template and, in each of its places, the label are repeated.
    service, labels, places = service_of(request), chosen.candidate_labels, template.count("{}")
    service.check_items(len(labels), service.limits.items)
    service.check_size(len(labels) * (len(body.inputs) + len(template)) + places * sum(map(len, labels)))
    pairs = [[body.inputs, template.replace("{}", label)] for label in labels]
    given = parsed(PredictBody, _plain(body) | {"inputs": pairs})
    asked = await service.ask(request, model, "predict", given.listed(), service.how())
    logits = np.stack([answer.value.raw for answer in asked.answers]).astype(np.float64)
    follows, contradicts = logits[:, names.index("entailment")], logits[:, names.index("contradiction")]
    against = contradicts if chosen.multi_label else np.log(np.exp(follows - follows.max()).sum()) + follows.max()
    odds = follows - against
    scores = 1 / (1 + np.exp(-odds)) if chosen.multi_label else np.exp(odds)
    ranked = sorted(zip(labels, scores.tolist()), key=lambda pair: -pair[1])
    return reply(request, [{"label": label, "score": score} for label, score in ranked], asked)


Pipeline = Callable[[PipelineBody, Request, ServedModel], Awaitable[Response]]
PIPELINES: dict[str, tuple[str, Pipeline]] = {  # task → what the model must support, and how it is answered
    "feature-extraction": ("embed", _feature_extraction),
    "sentence-similarity": ("similarity", _sentence_similarity),
    "fill-mask": ("fill", _fill_mask),
    "text-classification": ("predict", _text_classification),
    "token-classification": ("tag", _token_classification),
    "question-answering": ("answer", _question_answering),
    "table-question-answering": ("answer", _table_answering),
    "zero-shot-classification": ("predict", _zero_shot),
}
# What only one task's inputs or parameters have.
TELLING = {
    "source_sentence": "sentence-similarity", "question": "question-answering", "table": "table-question-answering",
    "candidate_labels": "zero-shot-classification",
}  # fmt: skip
Parameters = TypeVar("Parameters", bound=BaseModel)


def _parameters(kind: type[Parameters], body: PipelineBody) -> Parameters:
    set_values = {name: value for name, value in (body.parameters or {}).items() if value is not None}
    return parsed(kind, set_values)


def _task_of(body: PipelineBody, model: ServedModel) -> str:
    """The pipeline a request is for: as its body shows, else the one the model was made for."""
    keys = {*(body.inputs if isinstance(body.inputs, dict) else ()), *(body.parameters or ())}
    for key, task in TELLING.items():
        if key in keys:
            return task
    wanted = [task for task, (ability, _) in PIPELINES.items() if ability in model.abilities]
    own = ("text-classification", "token-classification", "question-answering")
    # A model of masked words also gives vectors: a request for these has its options beside the inputs.
    both = ("fill-mask",) if body.parameters is not None else ()
    return next((task for task in (*own, *both) if task in wanted), "feature-extraction")


@router.post("/")
async def by_task(body: PipelineBody, request: Request) -> Response:
    """What the model was made for, in the shape of Hugging Face's pipelines (TEI's without `parameters`)."""
    model = service_of(request).model(request, body.model, "tokenize")
    return await pipeline(_task_of(body, model), body, request)


@router.post("/pipeline/{task}")
async def pipeline(task: str, body: PipelineBody, request: Request) -> Response:
    """One of Hugging Face's pipelines."""
    if task not in PIPELINES:
        raise ApiError("path", f"There is no pipeline {task[:80]!r}. Choose from: {', '.join(PIPELINES)}.")
    ability, answered = PIPELINES[task]
    model = service_of(request).model(request, body.model, ability)
    return await answered(body.model_copy(update={"model": model.name}), request, model)
