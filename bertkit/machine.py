"""The machine: threads, allocator and device, set once and in one place."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bertkit.errors import UserError

_done = False


def usable_cores() -> int:
    """Cores this process may use: its affinity, cut down by a container's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        limit, _, period = quota.read_text().partition(" ")
        if limit.isdigit() and period.strip().isdigit():
            cores = min(cores, max(1, round(int(limit) / int(period))))
    return cores


def set_up(threads: int = 0) -> int:
    """Set torch's threads and the allocator; returns the threads in use. Later calls only change threads."""
    import torch

    global _done
    if threads < 0:
        raise UserError(f"threads is {threads}; it must be 0 (all usable cores) or more.")
    wanted = threads or int(os.environ.get("OMP_NUM_THREADS", 0) or 0) or usable_cores()
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    if not _done:
        _keep_memory()
        _done = True
    return wanted


def _keep_memory() -> None:
    """Tell glibc not to hand freed memory back: each training step would fault it in again (1.2 times slower)."""
    if not sys.platform.startswith("linux"):
        return
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # musl and others: nothing to set
        return
    trim, top_pad, mmap_threshold = -1, -2, -3
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim, (1 << 31) - 1)
    libc.mallopt(top_pad, 64 << 20)


@contextmanager
def one_core_each(threads: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads in each of which torch computes on one core; torch's own setting is back afterwards."""
    import torch

    before = torch.get_num_threads()
    # torch.set_num_threads acts on the thread that calls it, so each worker says it for itself.
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield pool
        finally:
            torch.set_num_threads(before)


def device_for(name: str) -> str:
    """`auto` is the GPU where there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(name, False):
        raise UserError(f"device is {name!r}, which this machine does not have. Leave it out, or say --device cpu.")
    return name


def peak_memory() -> int:
    """The most memory this process has held so far, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
