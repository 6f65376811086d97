"""The queue: together what waits together, bounded, and nobody pays for another's mistake."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from bertkit.errors import UserError
from bertkit.server.errors import ApiError, Limits
from bertkit.server.queue import Computed, Job, Queue


class Worker:
    """Doubles numbers, when it is let; remembers what it was given at once."""

    def __init__(self) -> None:
        self.open, self.busy = threading.Event(), threading.Event()
        self.hold, self.held, self.go_on = "", threading.Event(), threading.Event()
        self.calls: list[tuple[object, list[object]]] = []

    def __call__(self, key, inputs) -> Computed:
        self.calls.append((key, inputs))
        self.busy.set()
        assert self.open.wait(10)
        if key == self.hold:
            self.held.set()
            assert self.go_on.wait(10)
        if "panic" in inputs:
            raise BaseException("as a Rust panic arrives")
        if "bad" in inputs:
            raise UserError("bad")
        return Computed([2 * one for one in inputs])


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.open.set()
    made.go_on.set()


def started(worker: Worker, **limits) -> tuple[Queue, Job]:
    """A queue whose thread is busy with a first job."""
    queue = Queue(worker, Limits(**limits))
    first = Job("first", [0], 1)
    queue.submit(first)
    assert worker.busy.wait(5)
    return queue, first


def test_jobs_of_one_key_that_wait_together_are_computed_together(worker: Worker) -> None:
    queue, first = started(worker)
    jobs = [Job("ab"[n % 2], [n, n + 10], 2) for n in range(6)]
    for job in jobs:
        queue.submit(job)
    assert len(queue) == 6 and not queue.idle
    worker.open.set()
    assert [job.future.result(5).answers for job in jobs] == [[2 * n, 2 * n + 20] for n in range(6)]
    assert worker.calls == [("first", [0]), ("a", [0, 10, 2, 12, 4, 14]), ("b", [1, 11, 3, 13, 5, 15])]
    assert first.future.result(5).answers == [0] and jobs[0].future.result().waited > 0
    queue.join(5)
    assert queue.idle


def test_no_more_is_computed_together_than_allowed(worker: Worker) -> None:
    queue, _ = started(worker, together=10)
    jobs = [Job("a", [n], 4) for n in range(5)] + [Job("a", [9], 50)]
    for job in jobs:
        queue.submit(job)
    worker.open.set()
    for job in jobs:
        job.future.result(5)
    assert [inputs for _, inputs in worker.calls[1:]] == [[0, 1], [2, 3], [4], [9]]


@pytest.mark.parametrize(("limits", "sizes"), [({"waiting": 3}, 1), ({"waiting_characters": 30}, 10)])
def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(worker: Worker, limits, sizes) -> None:
    queue, _ = started(worker, **limits)
    taken = [Job("a", [n], sizes) for n in range(3)]
    for job in taken:
        queue.submit(job)
    with pytest.raises(ApiError) as refused:
        queue.submit(Job("a", [9], sizes))
    assert refused.value.why == "busy" and refused.value.retry >= 1
    queue.withdraw(taken[1])  # its client went away: there is room again
    queue.submit(Job("a", [4], sizes))
    worker.open.set()
    queue.join(5)
    assert worker.calls[1][1] == [0, 2, 4]


def test_an_empty_queue_takes_any_request(worker: Worker) -> None:
    queue, _ = started(worker, waiting_characters=10)
    queue.submit(Job("a", [1], 100))
    worker.open.set()
    queue.join(5)


def test_a_mistake_is_its_own_jobs_alone_and_a_panic_ends_nothing(worker: Worker) -> None:
    queue, _ = started(worker)
    jobs = [Job("a", [one], 1) for one in (1, "bad", 2, "panic", 3)]
    for job in jobs:
        queue.submit(job)
    worker.open.set()
    assert [jobs[n].future.result(5).answers for n in (0, 2, 4)] == [[2], [4], [6]]
    assert isinstance(jobs[1].future.exception(5), UserError)
    assert isinstance(jobs[3].future.exception(5), RuntimeError)
    assert queue.alive


@pytest.mark.parametrize("wrong", ["bad", "panic"])
def test_after_a_request_that_failed_at_once_a_queue_that_is_too_long_still_refuses(worker: Worker, wrong) -> None:
    """At the speed that is guessed before the first batch, 60,000 characters take longer than a second."""
    queue, _ = started(worker, waiting_seconds=1.0)
    failed = Job("a", [wrong], 40_000)
    queue.submit(failed)
    last = Job("hold", [0], 1)
    worker.hold = "hold"
    queue.submit(last)
    worker.open.set()
    assert failed.future.exception(5) and worker.held.wait(5)
    queue.submit(Job("b", [1], 60_000))
    with pytest.raises(ApiError) as refused:
        queue.submit(Job("b", [2], 1))
    assert refused.value.why == "busy"
    worker.go_on.set()
    queue.join(5)


def test_a_closed_queue_finishes_what_it_took_and_takes_no_more(worker: Worker) -> None:
    queue, first = started(worker)
    second = Job("a", [1], 1)
    queue.submit(second)
    queue.close()
    with pytest.raises(ApiError) as refused:
        queue.submit(Job("a", [2], 1))
    assert refused.value.why == "stopping" and not queue.alive
    worker.open.set()
    queue.join(5)
    assert first.future.result(0).answers == [0] and second.future.result(0).answers == [2]
    assert queue.idle


def test_limits_must_be_more_than_nothing() -> None:
    with pytest.raises(UserError, match="'items' is 0"):
        Limits(items=0)
