"""The queue between the event loop and the model: bounded, and processed by one thread.

Waiting jobs with the same key are computed together. No job waits for others: while one batch is computed,
the next one accumulates.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from bertkit.server.errors import ApiError, Limits


@dataclass(frozen=True)
class Computed:
    """Answers to inputs, in order, and the seconds they took."""

    answers: list[Any]
    tokenizing: float = 0.0
    inferring: float = 0.0
    waited: float = 0.0


@dataclass(eq=False)
class Job:
    """The inputs of one request. key: what must be equal for jobs to be computed together; size: in characters."""

    key: Hashable
    inputs: Sequence[Any]
    size: int
    future: Future[Computed] = field(default_factory=Future)
    began: float = field(default_factory=time.perf_counter)


class Queue:
    """Queues jobs for `compute(key, inputs)`, which runs in its own thread after `prepare()`."""

    def __init__(
        self,
        compute: Callable[[Any, list[Any]], Computed],
        limits: Limits = Limits(),  # noqa: B008
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self.compute, self.limits, self.prepare = compute, limits, prepare
        self.closing = False
        self._waiting: list[Job] = []
        self._size = 0  # characters that wait
        self._running = 0
        self._was_empty = True  # before the last batch
        self._speed = 50_000.0  # characters a second: a guess until the first batch is done
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="bertkit-compute", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting or being computed in the queue."""
        with self._changed:
            return not self._waiting and not self._running

    @property
    def running(self) -> int:
        """How many of the queue's jobs are being computed."""
        return self._running

    @property
    def long(self) -> bool:
        """Whether a further job would wait too long in the queue, at the speed of the last batches."""
        return self._size > self._speed * self.limits.waiting_seconds

    @property
    def alive(self) -> bool:
        """Whether the queue accepts and computes jobs."""
        return self._thread.is_alive() and not self.closing

    def submit(self, job: Job) -> None:
        """The queue accepts a job, or refuses it at once: one rule for small and large requests."""
        with self._changed:
            if self.closing:
                raise ApiError("stopping", "The server is stopping.", retry=5)
            full = len(self._waiting) >= self.limits.waiting
            large = self._size + job.size > self.limits.waiting_characters
            # A request that keeps to its own limits is never refused by an empty queue.
            if full or (self._waiting and (self.long or large)):
                raise ApiError("busy", "The server is busy: its queue is full.", retry=self.patience())
            self._waiting.append(job)
            self._size += job.size
            self._changed.notify()

    def withdraw(self, job: Job) -> None:
        """Drop a queued job that nobody waits for any more, if it is not being computed yet."""
        job.future.cancel()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._size -= job.size

    def patience(self) -> int:
        """Approximate seconds until the queue's waiting jobs are done."""
        return max(1, min(60, math.ceil(self._size / self._speed)))

    def abandon(self) -> None:
        """The queue accepts no more jobs, and drops those that wait."""
        with self._changed:
            self.closing = True
            for job in self._waiting:
                job.future.cancel()
            self._waiting, self._size = [], 0
            self._changed.notify()

    def close(self) -> None:
        """The queue accepts no more jobs; accepted ones are still computed."""
        with self._changed:
            self.closing = True
            self._changed.notify()

    def join(self, seconds: float | None = None) -> None:
        """Close the queue, and wait for its thread to end."""
        self.close()
        self._thread.join(seconds)

    def _next(self) -> list[Job]:
        """The queue's oldest job and all that can be computed with it; none if it is closed and empty."""
        with self._changed:
            self._running = 0
            self._was_empty = not self._waiting
            self._changed.wait_for(lambda: self._waiting or self.closing)
            if not self._waiting:
                return []
            first = self._waiting[0]
            room = self.limits.together - first.size
            chosen = [first]
            for job in self._waiting[1:]:
                if job.key == first.key and job.size <= room:
                    chosen.append(job)
                    room -= job.size
            taken = set(chosen)
            self._waiting = [job for job in self._waiting if job not in taken]
            self._size -= sum(job.size for job in chosen)
            self._running = len(chosen)
            return chosen

    def _work(self) -> None:
        """The thread of the queue: compute waiting jobs together until it is closed."""
        self.prepare()
        ended = 0.0
        while jobs := self._next():
            began = time.perf_counter()
            done = self._do([job for job in jobs if job.future.set_running_or_notify_cancel()], began)
            # What passes between two batches while jobs wait is part of how long they wait.
            before, ended = began if self._was_empty else ended, time.perf_counter()
            if done:  # what is refused at once says nothing of the speed
                self._speed += 0.2 * (done / max(1e-6, ended - before) - self._speed)
        self._running = 0

    def _do(self, jobs: list[Job], began: float) -> int:
        """Compute queued jobs together; if that fails, one by one, so that an error affects only its own request.

        Returns the characters that were computed.
        """
        if not jobs:
            return 0
        try:
            done = self.compute(jobs[0].key, [item for job in jobs for item in job.inputs])
        except BaseException as reason:  # a panic inside a library is no Exception, and must not end this thread
            if len(jobs) > 1:
                return sum(self._do([job], began) for job in jobs)
            jobs[0].future.set_exception(reason if isinstance(reason, Exception) else RuntimeError(type(reason)))
            return 0
        answers = iter(done.answers)
        for job in jobs:
            own = [next(answers) for _ in job.inputs]
            job.future.set_result(Computed(own, done.tokenizing, done.inferring, began - job.began))
        return sum(job.size for job in jobs)
