"""Turns a request into a job and its result into a response: checked, queued, awaited."""

from __future__ import annotations

import asyncio
import time
import traceback
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from bertkit import machine
from bertkit.errors import UserError
from bertkit.notify import note
from bertkit.server.errors import ApiError, Limits
from bertkit.server.models import ModelRegistry, ServedModel
from bertkit.server.operations import OPERATIONS, Answer, ReadingOptions
from bertkit.server.queue import Computed, Job, Queue

# What a request is for → how it is computed; what a task can be asked for is computed by "predict".
OPERATION = {"embed": "embed", "similarity": "embed", "fill": "fill", "tokenize": "tokenize", "show": "show"}
TRIM_SECONDS = 60  # how often freed memory is returned to the system; at once would slow down every batch
TRUNCATE = {True: "truncate", False: "error"}  # TEI's word for what to do with long texts → ours


@dataclass(frozen=True)
class ServiceResult:
    """The result of a job."""

    model: ServedModel
    answers: list[Answer]
    done: Computed
    characters: int


class Turns:
    """Lets a few waiting tasks continue in each round of the event loop.

    A batch answers hundreds of requests at the same moment. If all of them were written in one round, and the next
    hundreds parsed in another, a request that only has to be refused would wait for seconds.
    """

    EACH = 2  # tasks per round

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = 0  # in this round

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self) -> None:
        """A request waits for its turn at the service, in the order of arrival."""
        loop = asyncio.get_running_loop()
        if self._taken == 0:
            loop.call_soon(self._next, loop)
        if self._taken >= self.EACH or self._waiting:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._taken += 1

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next waiting requests take their turn."""
        self._taken = 0
        while self._waiting and self._taken < self.EACH:
            turn = self._waiting.popleft()
            if not turn.done():  # the task was cancelled
                turn.set_result(None)
                self._taken += 1
        if self._taken:
            loop.call_soon(self._next, loop)


class InferenceService:
    """What all routes share: the models, the queue, the limits and the metrics."""

    def __init__(
        self, registry: ModelRegistry, limits: Limits = Limits(), *, on_long: str = "", threads: int = 0,  # noqa: B008
        prefix: str = "te",
    ) -> None:  # fmt: skip
        self.registry, self.limits, self.on_long = registry, limits, on_long
        self.metrics = Metrics(prefix)
        self.queue = Queue(self._compute, limits, lambda: machine.set_threads(threads))
        self.requests = 0  # under way: from the end of their body to the end of their answer
        self.bytes = 0  # of bodies under way
        self.turns = Turns()
        self.stopped = asyncio.Event()  # nobody is to wait for an answer any longer
        self._trimmed = time.monotonic()

    def refusal(self) -> ApiError | None:
        """Why the service can accept no further request now; None if it can. Cheap: asked before a body is read."""
        if self.queue.closing:
            return ApiError("stopping", "The server is stopping.", retry=5)
        if self.is_full:
            return ApiError("busy", "The server is busy: its queue is full.", retry=self.queue.patience())
        return None

    @property
    def is_full(self) -> bool:
        """Whether a further request would be refused because too many are under way."""
        limits, queue = self.limits, self.queue
        full = self.requests >= limits.waiting + queue.running or self.bytes > limits.waiting_bytes
        return full or queue.long or len(self.turns) > limits.waiting_turns

    def abandon(self) -> None:
        """The service refuses what is still waiting, in the event loop's thread: the server exits now."""
        self.queue.abandon()
        self.stopped.set()

    def _compute(self, key: tuple[str, str, ReadingOptions], inputs: list[Any]) -> Computed:
        """The service computes a batch, in the queue's thread."""
        name, operation, how = key
        done = OPERATIONS[operation](self.registry[name].predictor, inputs, how)
        self.metrics.batch(len(inputs), sum(answer.tokens for answer in done.answers))
        now = time.monotonic()
        if now - self._trimmed > TRIM_SECONDS:
            machine.trim_memory()
            self._trimmed = now
        return done

    def model(self, request: Request, name: str | None, ability: str) -> ServedModel:
        """The service's model for a request: by its path, its body, or the operation."""
        return self.registry.pick(request.state.model or name, ability)

    def how(self, truncate: bool | None = None, direction: str = "Right", **more: Any) -> ReadingOptions:
        """TEI's options for long texts in the service's terms. By default, long texts are read in windows."""
        on_long = self.on_long if truncate is None else TRUNCATE[truncate]
        return ReadingOptions(on_long=on_long, from_start=direction.lower() == "left", **more)

    async def ask(
        self, request: Request, model: ServedModel, ability: str, inputs: Sequence[Any],
        how: ReadingOptions = ReadingOptions(), beside: int = 0, most: int = 0,  # noqa: B008
    ) -> ServiceResult:  # fmt: skip
        """The service queues inputs, and waits for their answers as long as the client does.

        beside: inputs not counted as items. most: items the route allows (default: the general limit).
        """
        operation = OPERATION.get(ability, "predict")
        self.metrics.arrived(operation, len(inputs))
        size = self._checked(inputs, beside, most or self.limits.items)
        job = Job((model.name, operation, how), inputs, size)
        self.queue.submit(job)
        try:
            done = await self._await(request, job)
        except UserError as mistake:
            raise ApiError("invalid", str(mistake), param="input") from None
        except (ApiError, asyncio.CancelledError):
            raise
        except Exception as fault:
            # Where it happened, without the message, which may hold the user's text.
            where = "".join(traceback.format_tb(fault.__traceback__)[-4:])
            note(f"{ability} with {model.name} failed: {type(fault).__name__}\n{where}")
            raise ApiError("fault", f"The model could not compute this ({type(fault).__name__}).") from None
        seconds = {
            "duration": time.perf_counter() - request.state.began, "queue_duration": done.waited,
            "tokenization_duration": done.tokenizing, "inference_duration": done.inferring,
        }  # fmt: skip
        self.metrics.answered(operation, [answer.tokens for answer in done.answers], seconds)
        return ServiceResult(model, done.answers, done, size)

    def _checked(self, inputs: Sequence[Any], beside: int, most: int) -> int:
        """The inference service checks a request against its limits. Returns the number of characters."""
        items = len(inputs) - beside
        if items < 1 or [] in inputs:
            raise ApiError("empty", "`inputs` cannot be empty.", param="input")
        self.check_items(items, most)
        size = _characters(list(inputs))
        self.check_size(size)
        return size

    def check_items(self, items: int, most: int) -> None:
        """Refuse a request with more texts than a route allows."""
        if items > most:
            raise ApiError("invalid", f"batch size {items} > maximum allowed batch size {most}.", param="input")

    def check_size(self, size: int) -> None:
        """Refuse a request with more characters than are allowed."""
        if size > self.limits.characters:
            raise ApiError(
                "large",
                f"The texts have {size} characters; the limit per request is {self.limits.characters}. Send several "
                "requests.",
                param="input",
            )

    async def _await(self, request: Request, job: Job) -> Computed:
        """Wait for a job's result until the client leaves, time runs out or the server stops."""
        waiting = asyncio.wrap_future(job.future)
        gone = asyncio.ensure_future(_disconnected(request))
        any_of: set[asyncio.Future[Any]] = {waiting, gone, asyncio.ensure_future(self.stopped.wait())}
        try:
            left = self.limits.seconds - (time.perf_counter() - request.state.began)
            await asyncio.wait(any_of, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done() and not waiting.cancelled():
                await self.turns.take()
                return waiting.result()
            if gone.done():
                raise ApiError("slow", "The client disconnected.")
            if self.stopped.is_set():
                raise ApiError("stopping", "The server is stopping.", retry=5)
            raise ApiError(
                "late", f"There was no answer within {self.limits.seconds:g} s.", retry=self.queue.patience()
            )
        finally:
            for pending in any_of:
                pending.cancel()
            self.queue.withdraw(job)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def service_of(request: Request) -> InferenceService:
    """The service behind the app that a request was sent to."""
    service: InferenceService = request.app.state.service
    return service


def _characters(value: Any) -> int:
    """The characters of all nested texts of a request, for the service's limits; an id counts as a short word."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_characters(item) for item in value.values())
    return sum(_characters(item) for item in value) if isinstance(value, (list, tuple)) else 4


def reply(request: Request, body: Any, asked: ServiceResult) -> Response:
    """The service's response with its headers: time taken, tokens seen, tokens truncated."""
    total = time.perf_counter() - request.state.began
    tokens = [answer.tokens for answer in asked.answers]
    cut = [answer.cut for answer in asked.answers]
    times = {
        "compute-time": total, "total-time": total, "tokenization-time": asked.done.tokenizing,
        "queue-time": asked.done.waited, "inference-time": asked.done.inferring,
    }  # fmt: skip
    headers = {f"x-{name}": f"{1000 * spent:.0f}" for name, spent in times.items()} | {
        "x-compute-type": asked.model.predictor.device,
        "x-compute-characters": str(asked.characters),
        "x-compute-tokens": str(sum(tokens)),
        "x-input-tokens": str(sum(tokens) + sum(cut)),
        "x-truncated-inputs": str(sum(answer > 0 for answer in cut)),
        "x-unknown-tokens": str(sum(answer.unknown for answer in asked.answers)),
    }
    if request.query_params.get("details", "").lower() in ("true", "1"):
        body = {"results": body, "truncated": [answer > 0 for answer in cut], "tokens": tokens, "cut": cut}
    return Response(to_json(body), media_type="application/json", headers=headers)


# ---- Counters and histograms under TEI's names, in Prometheus' text format.

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
FAMILY = {"embed": "embed", "predict": "predict"}  # operations that TEI counts by themselves


@dataclass
class Histogram:
    """A histogram: how often a value fell into each bucket."""

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def add(self, value: float) -> None:
        """Add one value to a histogram of the service's metrics."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        """The histogram in Prometheus' format, with cumulative buckets."""
        buckets, sofar = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts or [0] * (len(self.bounds) + 1)):
            sofar += count
            buckets.append(f'{name}_bucket{{le="{bound}"}} {sofar}')
        return [f"# TYPE {name} histogram", *buckets, f"{name}_sum {self.total:.6f}", f"{name}_count {sofar}"]


class Metrics:
    """What the server counts."""

    def __init__(self, prefix: str = "te") -> None:
        self.prefix = prefix
        self.counters: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.histograms = {
            f"{family}_{what}": Histogram()
            for family in ("request", *FAMILY.values())
            for what in ("duration", "tokenization_duration", "queue_duration", "inference_duration")
        } | {name: Histogram(COUNTS) for name in ("request_input_length", "batch_next_size", "batch_next_tokens")}

    def arrived(self, operation: str, items: int) -> None:
        """Count a request with this many inputs in the service's metrics."""
        self._count("request_count", items)
        if operation in FAMILY:
            self.counters[f"{FAMILY[operation]}_count"][""] += items

    def answered(self, operation: str, tokens: list[int], seconds: dict[str, float]) -> None:
        """Count a successful response in the service's metrics. seconds: by stage."""
        self._count("request_success", len(tokens))
        families = ["request"]
        if operation in FAMILY:
            families.append(FAMILY[operation])
            self.counters[f"{FAMILY[operation]}_success"][""] += len(tokens)
        for family in families:
            for what, spent in seconds.items():
                self.histograms[f"{family}_{what}"].add(spent)
        for count in tokens:
            self.histograms["request_input_length"].add(count)

    def failed(self, kind: str) -> None:
        """The service's metrics count a failed request."""
        self.counters["request_failure"][f'{{err="{kind.lower()}"}}'] += 1

    def batch(self, items: int, tokens: int) -> None:
        """The service's metrics count a batch."""
        self.histograms["batch_next_size"].add(items)
        self.histograms["batch_next_tokens"].add(tokens)

    def text(self, waiting: int) -> str:
        """All of the service's metrics as Prometheus text."""
        lines = []
        for name, values in sorted(self.counters.items()):
            lines.append(f"# TYPE {self.prefix}_{name} counter")
            lines += [f"{self.prefix}_{name}{labels} {value}" for labels, value in sorted(values.items())]
        lines += [f"# TYPE {self.prefix}_queue_size gauge", f"{self.prefix}_queue_size {waiting}"]
        for name, histogram in self.histograms.items():
            lines += histogram.lines(f"{self.prefix}_{name}")
        return "\n".join(lines) + "\n"

    def _count(self, name: str, items: int) -> None:
        method = "single" if items == 1 else "batch"
        self.counters[name][f'{{method="{method}"}}'] += 1
