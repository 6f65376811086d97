"""Routes of the page: how a model reads a text. Each is a function of Python's API, and its answer the same numbers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from bertkit.errors import UserError
from bertkit.inference.predictor import Predictor
from bertkit.server.errors import ApiError
from bertkit.server.middleware import PAGE
from bertkit.server.models import ServedModel, kind_of_ancestor
from bertkit.server.operations import plain
from bertkit.server.schemas import Text
from bertkit.server.service import InferenceService, reply, service_of
from bertkit.settings.model import is_trained
from bertkit.settings.training import LIVE_CHARACTERS, LIVE_ROWS, LIVE_SECONDS, LIVE_STEPS

router = APIRouter()
FOLDER = Path(__file__).with_name("page")
TYPES = {
    ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json",
    ".svg": "image/svg+xml",
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


@router.get("/", response_class=HTMLResponse)
async def start() -> Response:
    """The page. Only its own scripts run, and they may contact only this server."""
    return HTMLResponse((FOLDER / "index.html").read_bytes(), headers={"content-security-policy": POLICY})


@router.get(PAGE + "{name:path}", include_in_schema=False)
async def part(name: str) -> Response:
    """A file of the page."""
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.suffix in TYPES}
    if name not in files:
        raise ApiError("path", "There is no such route.")
    kind = TYPES[files[name].suffix]
    return Response(files[name].read_bytes(), media_type=kind, headers={"content-security-policy": POLICY})


class ShowBody(BaseModel):
    """A text for a view; an unknown key is an error."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str | None = None
    text: Text


class PairBody(ShowBody):
    """A text, or a pair of texts."""

    text_b: Text | None = None


class InputBody(PairBody):
    """/show/input. padding: [PAD] tokens to append."""

    padding: int = Field(0, ge=0, le=64)


class MaskingBody(ShowBody):
    """/show/masking. places: tokens to mask, instead of random ones."""

    unit: Literal["token", "word", "span"] = "token"
    rate: float = Field(0.15, gt=0, le=1)
    seed: int = Field(1, ge=0)
    places: list[int] | None = Field(None, max_length=64)
    top: int = Field(5, ge=1, le=100)
    joint: Literal["", "independent", "left-to-right", "beam"] = ""


class HeadBody(PairBody):
    """/show/head; layer and head count from 1."""

    layer: int = Field(1, ge=1)
    head: int = Field(1, ge=1)


class WordBody(ShowBody):
    """/show/word. place: the token's number."""

    place: int = Field(1, ge=0)


class ImportanceBody(PairBody):
    """/show/importance. label: default the predicted one."""

    by: Literal["gradients", "mask", "remove"] = "gradients"
    label: str = ""


class FollowsBody(ShowBody):
    """/show/next: does text_b follow text?"""

    text_b: Text


class MeaningBody(BaseModel):
    """/show/meaning: a word, and the texts it stands in."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str | None = None
    word: Text
    texts: Annotated[list[Text], Field(min_length=2, max_length=32)]
    senses: Annotated[list[Text], Field(max_length=32)] = []
    others: list[str] = Field(default_factory=list, max_length=8)


class LineageBody(ShowBody):
    """/show/lineage. passage: what the ancestors learn from, else the samples of the language; word: whose Huffman code
    to show."""

    language: Literal["en", "zh"] = "en"
    word: Text = ""
    passage: Annotated[Text, Field(max_length=LIVE_CHARACTERS)] = ""


class AncestorBody(ShowBody):
    """/show/ancestor. name: an ancestor that was opened, or trained on this page."""

    name: str
    word: Text = ""


class Budget(BaseModel):
    """How long a model learns; an unknown key is an error."""

    model_config = ConfigDict(strict=True, extra="forbid")
    steps: int = Field(100, ge=1, le=LIVE_STEPS)
    seconds: float = Field(20.0, gt=0, le=LIVE_SECONDS)


class LearnBody(Budget):
    """/show/learn: a text to learn from, and a text with [MASK] to fill meanwhile."""

    text: Annotated[Text, Field(max_length=LIVE_CHARACTERS)]
    gap: Annotated[Text, Field(max_length=400)]


class AncestorLearnBody(Budget):
    """/show/ancestor/learn: what learns, from which text, and the sentence to show meanwhile."""

    kind: Literal["word2vec", "elmo", "gpt", "transformer"]
    text: Annotated[Text, Field(max_length=2_000)]
    word: Text = ""
    language: Literal["en", "zh"] = "en"
    passage: Annotated[Text, Field(max_length=LIVE_CHARACTERS)] = ""


class PairsBody(ShowBody):
    """/show/pairs: a text whose sentences are paired."""

    seed: int = Field(0, ge=0)


class TuneBody(Budget):
    """/show/tune: rows of [text, label], and a new text to label meanwhile."""

    model: str | None = None
    rows: Annotated[
        list[Annotated[list[Annotated[Text, Field(max_length=2_000)]], Field(min_length=2, max_length=2)]],
        Field(max_length=LIVE_ROWS),
    ]
    probe: Annotated[Text, Field(max_length=2_000)] = ""


class MapBody(BaseModel):
    """/show/map: texts, or every occurrence of a word in them."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str | None = None
    texts: Annotated[list[Text], Field(min_length=1, max_length=200)]
    word: Text = ""


@router.get("/show/models")
async def models(request: Request) -> Response:
    """What the page has to know about each model."""
    described = [_described(model) for model in service_of(request).registry.values()]
    return Response(to_json(described), media_type="application/json")


@lru_cache(64)  # it looks at the whole vocabulary
def _described(model: ServedModel) -> dict[str, Any]:
    """A served model as the page describes it: its sizes, and which views it has."""
    engine, config, tokenizer = model.predictor.engine, model.predictor.config, model.predictor.tokenizer
    trained = {name for name in engine.heads if is_trained(name, engine.untrained)}
    masks = "mlm" in trained and tokenizer.mask_id is not None and not config.causal
    can = {
        "masks": masks, "next_sentence": "next_sentence" in trained, "order": "order" in trained,
        "three_vectors": _has_three_vectors(model.predictor),
    }  # fmt: skip
    chinese = sum("\u4e00" <= piece[-1:] <= "\u9fff" for piece in tokenizer.backend.get_vocab())
    return {
        "id": model.name, "task": model.task, "abilities": list(model.abilities), "labels": list(model.labels),
        "pairs": model.pairs, "language": "zh" if 5 * chinese > tokenizer.size else "en", "layers": config.depth,
        "heads": config.heads, "width": config.width, "tokenizer": tokenizer.kind, "vocabulary": tokenizer.size,
        "can": can,
    }  # fmt: skip


def _has_three_vectors(predictor: Predictor) -> bool:
    """Whether the page can show a token's vector as a sum of three: an engine other than torch does not give them."""
    if predictor.engine.name != "torch":
        return False
    embeddings = predictor.model.encoder.embeddings
    return embeddings.positions is not None and embeddings.segments is not None


async def _shown(request: Request, view: str, body: ShowBody | MapBody | MeaningBody, **more: Any) -> Response:
    """Ask the service for a view of the page."""
    service = service_of(request)
    model = service.model(request, body.model, "tokenize")
    asked = await service.ask(request, model, "show", [{"view": view, **body.model_dump(exclude={"model"}), **more}])
    return reply(request, asked.answers[0].value, asked)


@router.post("/show/pieces")
async def pieces(body: ShowBody, request: Request) -> Response:
    """How each word of a text becomes pieces, step by step (bertkit.text.steps.steps)."""
    return await _shown(request, "pieces", body)


@router.post("/show/input")
async def input_vectors(body: InputBody, request: Request) -> Response:
    """The vectors that are added up for each token (bertkit.inference.explain.input_vectors)."""
    return await _shown(request, "input", body)


@router.post("/show/masking")
async def masking(body: MaskingBody, request: Request) -> Response:
    """A row as pretraining masks it, and the model's guesses (bertkit.inference.explain.masked_row)."""
    return await _shown(request, "masking", body)


@router.post("/show/next")
async def follows(body: FollowsBody, request: Request) -> Response:
    """Whether one text follows another, by the model's next-sentence or sentence-order head (Predictor.follows)."""
    return await _shown(request, "next", body)


@router.post("/show/meaning")
async def meaning(body: MeaningBody, request: Request) -> Response:
    """How alike a word's vectors are in several texts, by layer (bertkit.ancestors.meaning.meaning)."""
    opened = {name: _ancestor(request, name) for name in body.others}
    others = {name: model for name, model in opened.items() if kind_of_ancestor(model) != "transformer"}
    return await _shown(request, "meaning", body, others=others)


@router.post("/show/lineage")
async def lineage(body: LineageBody, request: Request) -> Response:
    """A sentence as n-grams, word2vec's tree and an HMM read it (bertkit.ancestors.lineage.lineage)."""
    return await _shown(request, "lineage", body)


@router.get("/show/ancestors")
async def ancestors(request: Request) -> Response:
    """The ancestors that were opened, or trained on this page: name, kind, and the language of those trained here."""
    registry = service_of(request).registry
    described = [
        {"name": name, "kind": kind_of_ancestor(model), "language": registry.learnt.get(name)}
        for name, model in registry.ancestors.items()
    ]
    return Response(to_json(described), media_type="application/json")


@router.post("/show/ancestor")
async def ancestor(body: AncestorBody, request: Request) -> Response:
    """What word2vec, ELMo, a GPT or the Transformer makes of a sentence (bertkit.ancestors.lineage.ancestor_shown)."""
    computed = _ancestor(request, body.name)
    body_text = ShowBody(model=body.model, text=body.text)
    return await _shown(request, "ancestor", body_text, word=body.word, ancestor=computed)


def _ancestor(request: Request, name: str) -> Any:
    """An ancestor that was opened, or trained on this page."""
    opened = service_of(request).registry.ancestors
    if name not in opened:
        raise ApiError("model", f"There is no ancestor {name[:80]!r} here. Train it, or open its folder.")
    return opened[name]


@router.post("/show/pairs")
async def pairs(body: PairsBody, request: Request) -> Response:
    """Neighbouring and other sentences of a text, with the head's answers (inference.explain.sentence_pairs)."""
    return await _shown(request, "pairs", body)


@router.post("/show/attention")
async def attention(body: PairBody, request: Request) -> Response:
    """Where every head looks, and what flows through the layers (bertkit.inference.explain.attention)."""
    return await _shown(request, "attention", body)


@router.post("/show/head")
async def head(body: HeadBody, request: Request) -> Response:
    """One head in numbers (bertkit.inference.explain.head_numbers)."""
    return await _shown(request, "head", body)


@router.post("/show/word")
async def word(body: WordBody, request: Request) -> Response:
    """One token through the layers (bertkit.inference.explain.token_layers)."""
    return await _shown(request, "word", body)


@router.post("/show/map")
async def vector_map(body: MapBody, request: Request) -> Response:
    """Texts, or a word's occurrences, as points of a plane in every layer (bertkit.inference.explain.vector_map)."""
    return await _shown(request, "map", body)


@router.post("/show/importance")
async def importance(body: ImportanceBody, request: Request) -> Response:
    """Which tokens speak for a label or a guess, and which against (bertkit.inference.importance.importance)."""
    return await _shown(request, "importance", body)


# ---- Models that learn while one looks on: one at a time, in a thread of their own, as server-sent events.

_learning = threading.Lock()
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


@router.post("/show/learn", response_class=StreamingResponse, responses=_STREAM)
async def learn(body: LearnBody, request: Request) -> Response:
    """A tiny BERT learns from a text, from nothing (bertkit.inference.live.pretrain_live), as server-sent events."""
    from bertkit.inference.live import pretrain_live

    events = pretrain_live(body.text, body.gap, steps=body.steps, seconds=body.seconds)
    return await _streamed(service_of(request), events)


@router.post("/show/ancestor/learn", response_class=StreamingResponse, responses=_STREAM)
async def ancestor_learn(body: AncestorLearnBody, request: Request) -> Response:
    """An ancestor learns from a text (bertkit.ancestors.lineage.ancestor_live), as server-sent events.

    The finished one is kept under its kind until the next, for /show/ancestor and /show/meaning.
    """
    from bertkit.ancestors.lineage import ancestor_live
    from bertkit.checkpoint.folder import Folder

    service = service_of(request)

    def events() -> Iterator[dict[str, Any]]:
        for event in ancestor_live(**body.model_dump()):
            if (model := event.pop("model", None)) is not None:
                service.registry.ancestors[body.kind] = Predictor(model) if isinstance(model, Folder) else model
                service.registry.learnt[body.kind] = body.language
            yield plain(event)

    return await _streamed(service, events())


@router.post("/show/tune", response_class=StreamingResponse, responses=_STREAM)
async def tune(body: TuneBody, request: Request) -> Response:
    """A model learns the labels of a few rows (bertkit.inference.live.finetune_live), as server-sent events."""
    service = service_of(request)
    model = service.model(request, body.model, "tokenize")
    rows = [(row[0], row[1]) for row in body.rows]
    from bertkit.inference.live import finetune_live

    events = finetune_live(model.predictor, rows, body.probe, steps=body.steps, seconds=body.seconds)
    return await _streamed(service, events)


async def _streamed(service: InferenceService, events: Iterator[dict[str, Any]]) -> Response:
    """The events of a generator in its own thread, for the page; it ends when the client leaves or the server stops."""
    for _ in range(30):  # one that was just left needs a moment to end
        if _learning.acquire(blocking=False):
            break
        await asyncio.sleep(0.1)
    else:
        raise ApiError("busy", "Another model is learning here. Wait until it is done.", retry=30)
    loop, arrived, stopped = asyncio.get_running_loop(), asyncio.Queue[Any](), threading.Event()

    def work() -> None:
        last: Exception | None = None
        try:
            for event in events:
                if stopped.is_set() or service.queue.closing:
                    break
                loop.call_soon_threadsafe(arrived.put_nowait, event)
        except Exception as problem:
            last = problem
        finally:
            _learning.release()
            loop.call_soon_threadsafe(arrived.put_nowait, last)

    threading.Thread(target=work, name="bertkit-learning", daemon=True).start()
    first = await arrived.get()
    if isinstance(first, UserError):
        raise ApiError("invalid", str(first))
    if first is None or isinstance(first, Exception):
        raise ApiError("fault", f"The model could not learn ({type(first).__name__}).")

    async def sent() -> AsyncIterator[bytes]:
        event = first
        while isinstance(event, dict):
            yield b"data: " + to_json(event) + b"\n\n"
            event = await arrived.get()

    return Events(sent(), stopped)


class Events(StreamingResponse):
    """Server-sent events for the page. stopped: set at the end, also where the client left before the first one."""

    def __init__(self, events: AsyncIterator[bytes], stopped: threading.Event) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.stopped = stopped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until there are no more, or nobody is there."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.stopped.set()
