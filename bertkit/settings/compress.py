"""Settings of the commands that make models smaller. Without torch, so that the command line starts fast."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.config import option
from bertkit.errors import UserError
from bertkit.settings.finetune import SupervisedSettings, TableSettings


@dataclass(frozen=True, kw_only=True)
class DistillSettings(SupervisedSettings):
    """Options of `bertkit distill`: a fine-tuned teacher, rows, and what the student starts from."""

    task: str = option("", "The teacher's task; read from the teacher by default.", hidden=True)
    teacher: str = option(help="A fine-tuned model.", argument=True)
    train: Path = option(help="Training rows; a row without a label gets the teacher's.")
    model: str = option("", "What the student starts from: a model or a preset (default: the teacher).")
    layers: int = option(0, "Keep this many layers of it, evenly spaced; 0: all, or half of the teacher's.", at_least=0)
    out: Path = option(Path("runs/distill"), "The run folder.")
    temperature: float = option(
        2.0,
        "Softmax temperature; above 1, the teacher's less likely labels count for more.",
        at_least=0.01,
        aliases=("--heat",),
    )
    alpha: float = option(
        0.5,
        "Weight of the loss on known labels; the rest is the loss on the teacher's outputs.",
        at_least=0,
        at_most=1,
        aliases=("--hard",),
    )


@dataclass(frozen=True, kw_only=True)
class MeasureSettings(TableSettings):
    """Options of the commands that compress a model (quantize, prune, export) and compare it before and after."""

    model: str = option(help="Embedded name, folder, or hub name.", argument=True)
    out: Path = option(help="The folder to write.")
    eval: Path | None = option(
        None, "Labelled rows to score before and after (default: outputs on sample rows are compared)."
    )


@dataclass(frozen=True, kw_only=True)
class ExportSettings(MeasureSettings):
    """Options of `bertkit export`."""

    format: str = option("onnx", "An ONNX file, a plain transformers folder, or a page that runs in a browser.",
                         choices=("onnx", "hf", "web"))  # fmt: skip
    weights: str = option(
        "", "Precision of the weights: int8 is for onnx, bf16 and fp16 for hf (default: fp32, and for onnx a second "
        "file in int8).", choices=("", "fp32", "int8", "bf16", "fp16"),
    )  # fmt: skip

    calibrate: Path | None = option(
        None, "For int8: rows that show the range of every activation, which is then fixed (labels are not needed; "
        "default: the range of each batch is measured while it is computed)."
    )  # fmt: skip
    node: Path | None = option(None, "For web: the folder where npm installed @huggingface/transformers.")

    def check(self) -> None:
        """Refuse export settings whose precision the format does not support."""
        known = {"onnx": ("fp32", "int8"), "web": ("fp32", "int8"), "hf": ("fp32", "bf16", "fp16")}[self.format]
        if self.weights and self.weights not in known:
            raise UserError(f"--weights {self.weights}: the format {self.format} supports {', '.join(known)}.")
        written = {"onnx": self.weights or "int8", "web": self.weights, "hf": ""}[self.format]
        if self.calibrate and written != "int8":
            raise UserError("--calibrate is for the int8 file of an ONNX export: leave it out, or pass --weights int8.")


@dataclass(frozen=True, kw_only=True)
class QuantizeSettings(MeasureSettings):
    """Options of `bertkit quantize`."""

    to: str = option("int8", "int8 opens only in bertkit; bf16 and fp16 open in transformers too.",
                     choices=("int8", "bf16", "fp16"))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PruneSettings(MeasureSettings):
    """Options of `bertkit prune`."""

    layers: int = option(0, "Keep this many layers; 0: all.", at_least=0)
    drop: str = option(
        "spread", "Which layers to remove: evenly spaced ones, or the top ones.", choices=("spread", "top")
    )
    inner: float = option(
        1.0, "Fraction of the feed-forward neurons to keep: the most active of each layer.", at_least=0.01, at_most=1
    )
    train: Path | None = option(None, "Rows on whose texts neurons are ranked; labels are not needed.")
