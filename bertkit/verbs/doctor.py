"""`bertkit doctor`: this machine, and what is in a data file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """What `doctor` needs."""

    files: tuple[Path, ...] = option(
        (), "Data files to look into; the first is compared with the others.", argument=True
    )
    model: str = option("", "Count tokens with this model's tokenizer.")
    text: str = option("text", "Name (or number) of the text column.")
    label: str = option("label", "Name (or number) of the label column.")
    encoding: str = option("utf-8", "Encoding of the files.")


def run(settings: Settings) -> dict[str, Any]:
    """Say what this machine can do and, for data files, what is in them."""
    from bertkit import machine

    found: dict[str, Any] = {"machine": look(machine.set_up(settings.threads)), "files": [], "lines": []}
    if settings.files:
        from bertkit.data.doctor import inspect_file

        tokenizer = None
        if settings.model:
            from bertkit.checkpoint.locate import locate
            from bertkit.text.tokenizer import Tokenizer

            tokenizer = Tokenizer.load(locate(settings.model))
        columns = {k: v for k, v in (("text", settings.text), ("label", settings.label)) if v != k}
        for file in settings.files:
            others = [other for other in settings.files if other != file]
            report = inspect_file(file, tokenizer=tokenizer, others=others, encoding=settings.encoding, **columns)
            found["files"].append(asdict(report))
            found["lines"] += ["", *report.lines()]
    return found


def look(threads: int) -> dict[str, Any]:
    """The machine as bertkit sees it, with its matrix speed measured for a moment."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from bertkit import __version__
    from bertkit.machine import usable_cores
    from bertkit.model.prepare import has_fast_bf16

    versions = {"bertkit": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "tokenizers", "safetensors", "scikit-learn", "pyarrow", "numba"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "threads": threads,
        "memory_gb": round(_memory() / 2**30, 1),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "fast_bf16": has_fast_bf16(),
        "amx": bool(torch.cpu._is_amx_tile_supported()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "precision": "bf16" if has_fast_bf16() else "fp32",
        "matmul_gflops": {
            name: matmul_speed(kind) for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16))
        },
        "versions": versions,
    }


def matmul_speed(dtype: Any, seconds: float = 0.5) -> float:
    """Billions of floating-point operations a second in a linear layer of BERT-base's shape: the best of many."""
    import time

    import torch

    tokens, inner, outer = 2048, 768, 3072
    x, w = torch.randn(tokens, inner, dtype=dtype), torch.randn(outer, inner, dtype=dtype)
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.nn.functional.linear(x, w)
        best = min(best, time.perf_counter() - start)
    return round(2 * tokens * inner * outer / best / 1e9, 1)


def _processor() -> str:
    import platform

    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def lines(result: dict[str, Any]) -> list[str]:
    """The machine in a table, then each file."""
    m = result["machine"]
    speed = m["matmul_gflops"]
    rows = {
        "processor": f"{m['processor']}, {m['cores']} cores, {m['memory_gb']} GB",
        "threads": f"{m['threads']} (change with --threads)",
        "bf16": f"{'fast' if m['fast_bf16'] else 'slow: fp32 will be used'} "
        f"({m['instructions']}{', AMX' if m['amx'] else ''})",
        "matrix speed": f"fp32 {speed['fp32']:.0f}, bf16 {speed['bf16']:.0f} GFLOP/s",
        "GPU": m["gpu"] or "none (none is needed)",
        "versions": ", ".join(f"{name} {number}" for name, number in m["versions"].items()),
    }
    return [f"{name:14} {value}" for name, value in rows.items()] + result["lines"]
