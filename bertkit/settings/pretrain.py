"""Every number of a pretraining run. Presets are these, written out as TOML."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from bertkit.config import option
from bertkit.errors import UserError
from bertkit.settings.model import Config
from bertkit.settings.training import LoopSettings, MaskSettings, RunSettings

OBJECTIVES = ("masked", "replaced", "next-token")
PACKING = ("next-sentence", "sentence-order", "full-sentences", "sentences", "mixed-sentences")


HEIGHTS = ((5 / 12, 1 / 2), (8 / 12, 5 / 6), (10 / 12, 1.0))  # of the layers that are matched, teacher and student


@dataclass(frozen=True)
class TeachingSettings:
    """How the states of --teacher are matched at every word."""

    pairs: tuple[tuple[int, ...], ...] = option(
        (), "Layers that are matched, the teacher's and the model's own; empty: three that lie at like heights."
    )
    weight: float = option(8.0, "Weight of the match beside the masked words.", at_least=0)
    weight_end: float = option(0.8, "The weight falls to this.", at_least=0)
    cache: int = option(
        0,
        "Keep the teacher's states beside the store, reduced to this many numbers per layer (128 is a good choice), "
        "instead of computing them at every step; worth it from the second pass over the text. 0: no cache.",
        at_least=0,
    )
    fall: float = option(0.6, "Share of the run by which it has fallen.", at_least=0, at_most=1)

    def layer_pairs(self, teacher: int, own: int) -> list[tuple[int, int]]:
        """(teacher's layer, own layer) for these depths. Grammar sits lower in an encoder than sentiment does, and the
        last layers of a sentence encoder are the least like words."""
        if not self.pairs:
            return [(ceil(teacher * t), ceil(own * s)) for t, s in HEIGHTS]
        for pair in self.pairs:
            if len(pair) != 2 or not (0 <= pair[0] <= teacher and 0 <= pair[1] <= own):
                raise UserError(
                    f"teaching.pairs has {list(pair)}; it must be a layer of the teacher (0 to {teacher}) and a layer "
                    f"of the model (0 to {own}), e.g. [[5, 3], [8, 5], [10, 6]]."
                )
        return [(int(a), int(b)) for a, b in self.pairs]

    def at(self, progress: float) -> float:
        """The weight when this share of the run is done."""
        return self.weight + (self.weight_end - self.weight) * min(1.0, progress / max(self.fall, 1e-9))


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(RunSettings):
    """What `pretrain` needs."""

    preset: str = option("bert-mini", "A named set of numbers; see bertkit/presets.")
    data: Path = option(help="The store that `bertkit prepare` made.")
    init: str = option("", "Continue from this model on own text.")
    add_tokens: int = option(
        0, "With --init: this many frequent words of the text become pieces of their own.", at_least=0
    )
    teacher: str = option(
        "", "A model whose states are matched at every word; with --teacher-texts, its sentence vectors instead."
    )
    teacher_texts: Path | None = option(
        None, "Texts, or pairs of texts, without labels: of these the vectors are learnt."
    )
    teacher_batch: int = option(32, "Rows of --teacher-texts a step.", at_least=1)
    plan: bool = option(False, "Measure for 20 seconds, say what the run will cost, and stop.")
    eval_tokens: int = option(65536, "Tokens of held-out text an evaluation reads.", at_least=1)
    eval_length: int = option(0, "Length of the held-out examples; 0: the first of lengths.", hidden=True, at_least=0)
    minimal_pairs: str = option("", "Files of minimal pairs to score at every evaluation.")
    tensorboard: bool = option(False, "Write TensorBoard events too.")
    compile: bool = option(False, "Compile the encoder with torch.compile (slow to start).")
    shard: bool = option(False, "Under torchrun: spread the layers' weights over the processes (FSDP).")
    micro_tokens: int = option(8192, "Tokens computed at once; a larger batch is accumulated.", at_least=1)
    family: str = option("bert", "How the model is written: transformers' name of its family.", hidden=True)
    objective: str = option("masked", "What is learnt.", choices=OBJECTIVES, hidden=True)
    packing: str = option("next-sentence", "How examples are cut.", choices=PACKING, hidden=True)
    causal: float = option(
        0.0,
        "Share of the examples read from left to right, each next piece guessed.",
        hidden=True,
        at_least=0,
        at_most=1,
    )
    generator: float = option(0.25, "Width of ELECTRA's generator, as a share.", hidden=True, at_least=0.01, at_most=1)
    short_prob: float = option(
        0.1, "Share of the pairs that are cut short on purpose.", hidden=True, at_least=0, at_most=1
    )
    batch_tokens: int = option(4096, "Tokens a step.", at_least=1)
    lengths: tuple[tuple[float, ...], ...] = option(((1.0, 128.0),), "Share of the steps and length, in order.")
    ramp: float = option(
        0.0, "Share of the steps in which the batch grows from a quarter.", hidden=True, at_least=0, at_most=1
    )
    model: Config = option(factory=Config)
    masking: MaskSettings = option(factory=MaskSettings)
    loop: LoopSettings = option(factory=LoopSettings)
    teaching: TeachingSettings = option(factory=TeachingSettings)

    @property
    def length_plan(self) -> tuple[tuple[float, int], ...]:
        """Shares and lengths."""
        if not self.lengths or any(len(pair) != 2 or min(pair) <= 0 for pair in self.lengths):
            raise UserError(
                f"lengths is {self.lengths!r}; it must be pairs of a share of the steps and a length, each above 0, "
                "e.g. [[0.9, 128], [0.1, 512]]."
            )
        return tuple((float(share), int(length)) for share, length in self.lengths)

    @property
    def hiding(self) -> MaskSettings:
        """What the run really hides: nothing where each next piece is guessed, whatever the masking says."""
        return replace(self.masking, rate=0.0, rate_end=0.0) if self.objective == "next-token" else self.masking
