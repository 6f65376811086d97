"""`bertkit doctor`: check this machine and inspect data files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertkit.config import Common, option


@dataclass(frozen=True, kw_only=True)
class Settings(Common):
    """Options of `bertkit doctor`."""

    files: tuple[Path, ...] = option((), "Data files to inspect; the first is compared with the others.", argument=True)
    model: str = option(
        "", "Count tokens with this model's tokenizer (default: the embedded model of the texts' language)."
    )
    text: str = option("text", "Name (or number) of the text column.")
    label: str = option("label", "Name (or number) of the label column.")
    encoding: str = option("utf-8", "Encoding of the files.")


def run(settings: Settings) -> dict[str, Any]:
    """Report what this machine can do and what is in your data files."""
    from bertkit import machine

    found: dict[str, Any] = {"machine": machine.describe(machine.set_up(settings.threads)), "files": [], "lines": []}
    if settings.files:
        from bertkit.checkpoint.locate import locate
        from bertkit.data.inspect import inspect_file
        from bertkit.runs.finetune.start import report_unknown
        from bertkit.text.tokenizer import Tokenizer

        columns = {k: v for k, v in (("text", settings.text), ("label", settings.label)) if v != k}
        for file in settings.files:
            model = settings.model or _model_for(file, settings.encoding, columns)
            tokenizer = Tokenizer.load(locate(model)) if model else None
            others = [other for other in settings.files if other != file]
            report = inspect_file(file, tokenizer=tokenizer, others=others, encoding=settings.encoding, **columns)
            report.counted_by, report.unknown_share = model, report_unknown(tokenizer, model)
            found["files"].append(asdict(report))
            found["lines"] += ["", *report.lines()]
    return found


def _model_for(file: Path, encoding: str, columns: dict[str, str]) -> str:
    """The embedded model whose vocabulary fits the file's first texts; empty without embedded models."""
    from bertkit.checkpoint.locate import embedded
    from bertkit.data.inspect import first_texts
    from bertkit.runs.finetune.start import AUTO, LOOKED_AT, starting_model
    from bertkit.tasks import make

    task = make("classify")
    texts = first_texts(file, LOOKED_AT, encoding, **columns)
    return starting_model(AUTO, task, task.from_inputs(texts)) if embedded() else ""


def lines(result: dict[str, Any]) -> list[str]:
    """The machine as a table, followed by each file."""
    m = result["machine"]
    speed = m["matmul_gflops"]
    rows = {
        "processor": f"{m['processor']}, {m['cores']} cores, {m['memory_gb']} GB",
        "threads": f"{m['threads']} (change with --threads)",
        "bf16": f"{'fast' if m['fast_bf16'] else 'slow: fp32 will be used'} "
        f"({m['instructions']}{', AMX' if m['amx'] else ''})",
        "matrix speed": f"fp32 {speed['fp32']:.0f}, bf16 {speed['bf16']:.0f} GFLOP/s",
        "GPU": m["gpu"] or "none (not needed)",
        "versions": ", ".join(f"{name} {number}" for name, number in m["versions"].items()),
    }
    return [f"{name:14} {value}" for name, value in rows.items()] + result["lines"]
