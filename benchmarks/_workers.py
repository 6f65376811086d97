"""Contestants in processes of their own: no shared thread pools or allocator, and a crash is one contestant's alone."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from _harness import only_the_document, options, publish, wanted

PATIENCE = 900.0  # seconds for one turn


class Failed(Exception):
    """A contestant could not do what was asked."""


def use(*modules: str) -> None:
    """Import these once for all workers to come: forks of a process that has done nothing else."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))


class Worker:
    """A process that holds what `open_(*arguments)` gave and applies functions to it, one at a time."""

    def __init__(self, open_: Callable[..., Any], *arguments: Any) -> None:
        there = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if there else "spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, open_, arguments), daemon=True)
        self.process.start()
        other.close()
        try:
            self._answer()
        except Failed:
            self.close()
            raise

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(held, *arguments)`, computed in the process. Functions are module-level, arguments picklable."""
        try:
            self.pipe.send((function, arguments))
        except OSError:
            raise Failed("its process is gone") from None
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _answer(self) -> Any:
        if not self.pipe.poll(PATIENCE):
            self.process.kill()
            raise Failed(f"it took more than {PATIENCE:.0f} s")
        try:
            fine, answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            raise Failed(f"its process ended with code {self.process.exitcode}") from None
        if not fine:
            raise Failed(answer)
        return answer


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)` in a process that ends with it, so that it leaves nothing behind in this one."""
    worker = Worker(_nothing)
    try:
        return worker.ask(_apply, function, arguments)
    finally:
        worker.close()


def _nothing() -> None:
    return None


def _apply(_: None, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def _serve(pipe: Connection, open_: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.dup2(2, 1)  # what libraries print must not reach the document
    try:
        held = open_(*arguments)
        pipe.send((True, None))
        while True:
            try:
                function, given = pipe.recv()
            except EOFError:
                return
            pipe.send(_tried(function, held, given))
    except Exception as reason:
        pipe.send((False, told(reason)))


def _tried(function: Callable[..., Any], held: Any, given: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(held, *given)
    except Exception as reason:
        return False, told(reason)


def told(reason: BaseException) -> str:
    """An exception in one line."""
    lines = str(reason).strip().splitlines() or [""]
    return str(reason) if isinstance(reason, Failed) else f"{type(reason).__name__}: {lines[0]}"[:300]


# What the workers have imported before they start.
READY = ("torch", "numpy", "transformers.models.bert.modeling_bert", "tokenizers")


def compete(
    name: str, about: str, contestants: Sequence[str], baseline: str, run: Callable[..., dict[str, Any]]
) -> None:
    """A benchmark from its options to its document: `run(form, names, threads, rounds)` makes it."""
    asked = options(about, ("full", "quick", "smoke", *(("table",) if "--table" in about else ())))
    names = wanted(list(contestants), asked.only, baseline)
    with only_the_document() as out:
        use(*READY)
        chosen = {"case": asked.case} if asked.case else {}
        document = run(asked.form, names, asked.threads, asked.rounds, **chosen)
        recorded = {} if asked.form != "smoke" else {"results": None}
        publish(name, document, as_json=asked.json, out=out, **recorded)
