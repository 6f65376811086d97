"""The machine: threads, allocator and device, set once and in one place."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError

# ---- PyTorch, which the base install does not have: prediction runs without it, everything else with it.

NEEDS_TORCH = (
    "This needs PyTorch, which is not installed. For its CPU build, run: pip install uv && uv pip install torch "
    "--torch-backend cpu; then: pip install 'bertkit[train]'."
)


def has_torch() -> bool:
    """Whether PyTorch is installed; finding out does not import it."""
    try:
        return "torch" in sys.modules or find_spec("torch") is not None
    except ModuleNotFoundError:  # whoever blocks the import of torch also hides it
        return False


TRAINING = ("torch", "sklearn", "scipy", "jinja2", "rjieba", "zstandard")  # the extra `train`


def needs_package(missing: ModuleNotFoundError) -> str:
    """The message about a package that is not installed on this machine; an error of ours is raised again."""
    package = (missing.name or "").partition(".")[0]
    if package not in TRAINING:
        raise missing
    return NEEDS_TORCH if package == "torch" else (
        f"This needs {package}, which is not installed. Run: pip install 'bertkit[train]'."
    )  # fmt: skip


if TYPE_CHECKING:
    import torch as torch
    import torch.nn.functional as F
else:

    class _OnFirstUse:
        """A module that is imported when something of it is first used."""

        def __init__(self, name: str) -> None:
            self.__name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self.__name), name)

    torch, F = _OnFirstUse("torch"), _OnFirstUse("torch.nn.functional")

TRAINING_KERNELS = 64  # of oneDNN's, kept while training
_threads = 0  # in use; 0 before the first set_up


def usable_cores() -> int:
    """Cores this process may use: its affinity, limited by a container's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        limit, _, period = quota.read_text().partition(" ")
        if limit.isdigit() and period.strip().isdigit():
            cores = min(cores, max(1, round(int(limit) / int(period))))
    return cores


def set_threads(threads: int = 0) -> int:
    """Set how many threads prediction uses, and the allocator; torch is not imported for it. Returns the threads."""
    global _threads
    if threads < 0:
        raise UserError(f"threads is {threads}; it must be 0 (all usable cores) or more.")
    if not _threads:
        _keep_memory()
    _threads = threads or _of_environment() or usable_cores()
    if "torch" in sys.modules and torch.get_num_threads() != _threads:
        torch.set_num_threads(_threads)
    return _threads


def set_up(threads: int = 0) -> int:
    """Set torch's threads and the allocator; returns the threads in use. Later calls only change threads."""
    count = set_threads(threads)
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    return count


def threads() -> int:
    """The threads in use: as first set up, or all usable cores."""
    return _threads or set_threads()


def _of_environment() -> int:
    """Threads by OMP_NUM_THREADS; the first number of a list (one per nesting level). 0 if unset."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() else 0


def _keep_memory() -> None:
    """Tell glibc to keep freed memory: otherwise each training step faults it in again (1.2 times slower)."""
    libc = _glibc()
    if libc is None:
        return
    trim, top_pad, mmap_threshold = -1, -2, -3
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim, (1 << 31) - 1)
    libc.mallopt(top_pad, 64 << 20)


def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is glibc."""
    try:
        return ctypes.CDLL("libc.so.6") if sys.platform.startswith("linux") else None
    except OSError:  # musl and others
        return None


def limit_onednn_cache(kernels: int = 16) -> None:
    """Limit oneDNN's kernel cache for long streams of texts of all lengths; call it before torch multiplies anything.

    oneDNN makes a kernel for every new shape of a product and keeps 1,024 of them, few of which are ever used again.
    What every batch of prediction uses stays among the last 16; training has three times as many products. Pretraining
    grew to 7.2 GB in 20 minutes with all of them. With 64 of them, and its memory trimmed at every save, it had 4 GB
    then, 5.3 GB after 75 minutes and 6.6 GB after two hours, at the same speed.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(kernels))


def limit_arenas(count: int) -> None:
    """Let all threads share this many of glibc's heaps: a server would otherwise fill one after another."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(-8, count)  # M_ARENA_MAX


def trim_memory() -> None:
    """Return freed memory to the system: between large jobs it would otherwise be lost to fragmentation."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@contextmanager
def single_thread_pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads in which torch computes on one core each; torch's setting is restored afterwards."""
    before = torch.get_num_threads()
    # torch.set_num_threads acts on the thread that calls it, so each worker sets its own.
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield pool
        finally:
            torch.set_num_threads(before)


def device_for(name: str) -> str:
    """The torch device; `auto` is the GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(name, False):
        raise UserError(f"device is {name!r}, which this machine does not have. Leave it out, or pass --device cpu.")
    return name


def peak_memory() -> int:
    """Peak memory of this process so far, in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def has_fast_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AVX512-BF16 or AMX)."""
    return torch.backends.mkldnn.is_available() and bool(
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def has_fast_int8() -> bool:
    """Whether this CPU multiplies int8 in hardware (AVX512-VNNI or AMX)."""
    return torch.backends.mkldnn.is_available() and bool(
        torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported()
    )


LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors")  # whose versions a model or a checkpoint may depend on


def versions(names: tuple[str, ...] = LIBRARIES) -> dict[str, str]:
    """bertkit's, Python's and these libraries' versions on this machine."""
    import platform

    from bertkit import __version__

    return {"bertkit": __version__, "python": platform.python_version(), **{name: _version(name) for name in names}}


@cache
def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def describe(threads: int) -> dict[str, Any]:
    """The machine as bertkit sees it, with a quick measurement of its matrix speed: torch's, or without it numpy's."""
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": usable_cores(),
        "threads": threads,
        "memory_gb": round(_memory() / 2**30, 1),
    }
    if not has_torch():  # nothing is computed in bf16 then
        speeds = {"fp32": matmul_speed(None, threads), "bf16": 0.0}
        return facts | {
            "instructions": _instructions(), "fast_bf16": False, "amx": False, "gpu": "", "precision": "fp32",
            "matmul_gflops": speeds, "versions": versions((*LIBRARIES, "onnxruntime")),
        }  # fmt: skip
    return facts | {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "fast_bf16": has_fast_bf16(),
        "amx": bool(torch.cpu._is_amx_tile_supported()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "precision": "bf16" if has_fast_bf16() else "fp32",
        "matmul_gflops": {
            name: matmul_speed(kind, threads) for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16))
        },
        "versions": versions((*LIBRARIES, "scikit-learn", "pyarrow", "numba")),
    }


@cache
def matmul_speed(dtype: Any, threads: int, seconds: float = 0.5) -> float:
    """Billions of floating-point operations per second in a linear layer of BERT-base's shape: the best of many.

    dtype: torch's, or None for numpy's float32. threads: those in use; a process measures once for each number.
    """
    import time

    import numpy as np

    tokens, inner, outer = 2048, 768, 3072
    x: Any
    w: Any
    if dtype is None:
        x, w = (np.random.default_rng(0).standard_normal((rows, inner), np.float32) for rows in (tokens, outer))
    else:
        x, w = torch.randn(tokens, inner, dtype=dtype), torch.randn(outer, inner, dtype=dtype)
    multiply: Any = np.matmul if dtype is None else torch.matmul
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        multiply(x, w.T)
        best = min(best, time.perf_counter() - start)
    return round(2 * tokens * inner * outer / best / 1e9, 1)


def _processor() -> str:
    """The processor's name."""
    import platform

    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _instructions() -> str:
    """The widest vector instructions of the processor, as torch names them; empty where the system does not say."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text("utf-8", "replace").split()) if info.is_file() else set()
    return next((name for name in ("AVX512", "AVX2", "AVX") if {name.lower(), f"{name.lower()}f"} & flags), "")


def _memory() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
