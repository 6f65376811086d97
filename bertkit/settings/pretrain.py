"""Settings of a pretraining run. Presets are these settings as TOML."""

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


HEIGHTS = ((5 / 12, 1 / 2), (8 / 12, 5 / 6), (10 / 12, 1.0))  # depths of matched layers: teacher, student


@dataclass(frozen=True)
class TeachingSettings:
    """How pretraining matches the states of --teacher at every word."""

    pairs: tuple[tuple[int, ...], ...] = option(
        (), "Pairs of matched layers, teacher's and model's; empty: three at similar relative depths."
    )
    weight: float = option(8.0, "Weight of the matching loss relative to the masked-word loss.", at_least=0)
    weight_end: float = option(0.8, "Final weight of the matching loss.", at_least=0)
    fall: float = option(0.6, "Fraction of the run after which the final weight is reached.", at_least=0, at_most=1)
    cache: int = option(
        0,
        "Keep the teacher's states beside the store, reduced to this many numbers per layer (128 is a good choice), "
        "instead of computing them at every step; worth it from the second pass over the text (0: no cache).",
        at_least=0,
    )
    share: float = option(
        1.0, "Fraction of a step's examples whose words are matched; the teacher reads no others.", at_least=0.01,
        at_most=1,
    )  # fmt: skip
    likeness: float = option(
        0.0,
        "Weight of a loss on the pairs of --teacher-texts, each read as one row: the model learns the teacher's cosine "
        "of both texts, which prepares it for tasks on pairs (0: none).",
        at_least=0,
    )
    masked: bool = option(True, "Match masked words too; without, the masked-word loss alone teaches them.")
    vectors: str = option(
        "random",
        "What the model's token vectors start from: random numbers, or the teacher's token vectors, reduced to the "
        "model's width.",
        choices=("random", "teacher"),
    )

    def layer_pairs(self, teacher: int, student: int) -> list[tuple[int, int]]:
        """(teacher's layer, model's layer) for these depths. Grammar sits lower in an encoder than sentiment, and the
        last layers of a sentence encoder are the least like words."""
        if not self.pairs:
            return [(ceil(teacher * t), ceil(student * s)) for t, s in HEIGHTS]
        for pair in self.pairs:
            if len(pair) != 2 or not (0 <= pair[0] <= teacher and 0 <= pair[1] <= student):
                raise UserError(
                    f"teaching.pairs has {list(pair)}; it must be a layer of the teacher (0 to {teacher}) and a layer "
                    f"of the model (0 to {student}), e.g. [[5, 3], [8, 5], [10, 6]]."
                )
        return [(int(a), int(b)) for a, b in self.pairs]

    def at(self, progress: float) -> float:
        """Settings of a teacher in pretraining: its weight after this fraction of the run."""
        return self.weight + (self.weight_end - self.weight) * min(1.0, progress / max(self.fall, 1e-9))


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(RunSettings):
    """Options of `bertkit pretrain`."""

    preset: str = option("bert-mini", "A named model configuration; see bertkit/presets.")
    data: Path = option(help="The token store made by `bertkit prepare`.")
    init: str = option("", "Continue pretraining this model on your text.")
    add_tokens: int = option(0, "With --init: add this many frequent words of the text to the vocabulary.", at_least=0)
    teacher: str = option(
        "", "A model whose hidden states are matched at every word; with --teacher-texts, its sentence vectors instead."
    )
    teacher_texts: Path | None = option(None, "Unlabelled texts or pairs of texts whose teacher vectors are learned.")
    teacher_batch: int = option(32, "Rows of --teacher-texts per step.", at_least=1)
    plan: bool = option(False, "Measure for 20 seconds, report what the run will cost, and stop.")
    eval_tokens: int = option(65536, "Tokens of held-out text per evaluation.", at_least=1)
    eval_length: int = option(0, "Length of the held-out examples; 0: the first of lengths.", hidden=True, at_least=0)
    minimal_pairs: str = option("", "Files of minimal pairs to score at every evaluation.")
    tensorboard: bool = option(False, "Also write TensorBoard events.")
    compile: bool = option(False, "Compile the encoder with torch.compile (slow to start).")
    shard: bool = option(False, "Under torchrun: shard the layers' weights over the processes (FSDP).")
    micro_tokens: int = option(8192, "Tokens computed at once; a larger batch is accumulated.", at_least=1)
    family: str = option("bert", "The transformers family the model is saved as.", hidden=True)
    objective: str = option("masked", "Pretraining objective.", choices=OBJECTIVES, hidden=True)
    packing: str = option("next-sentence", "How examples are formed.", choices=PACKING, hidden=True)
    causal: float = option(
        0.0,
        "Fraction of the examples read from left to right, predicting each next piece.",
        hidden=True,
        at_least=0,
        at_most=1,
    )
    generator: float = option(
        0.25, "Width of ELECTRA's generator, as a fraction.", hidden=True, at_least=0.01, at_most=1
    )
    short_prob: float = option(
        0.1, "Fraction of the pairs that are shortened on purpose.", hidden=True, at_least=0, at_most=1
    )
    batch_tokens: int = option(4096, "Tokens per step.", at_least=1)
    lengths: tuple[tuple[float, ...], ...] = option(
        ((1.0, 128.0),), "Pairs of a fraction of the steps and a length, in order."
    )
    ramp: float = option(
        0.0, "Fraction of the steps over which the batch grows from a quarter.", hidden=True, at_least=0, at_most=1
    )
    model: Config = option(factory=Config)
    masking: MaskSettings = option(factory=MaskSettings)
    loop: LoopSettings = option(factory=LoopSettings)
    teaching: TeachingSettings = option(factory=TeachingSettings)

    @property
    def length_plan(self) -> tuple[tuple[float, int], ...]:
        """Check that the lengths of pretraining's settings are pairs of a fraction and a length."""
        if not self.lengths or any(len(pair) != 2 or min(pair) <= 0 for pair in self.lengths):
            raise UserError(
                f"lengths is {self.lengths!r}; it must be pairs of a fraction of the steps and a length, each above 0, "
                "e.g. [[0.9, 128], [0.1, 512]]."
            )
        return tuple((float(share), int(length)) for share, length in self.lengths)

    @property
    def hiding(self) -> MaskSettings:
        """Pretraining's settings of masking in effect: none where each next piece is predicted."""
        return replace(self.masking, rate=0.0, rate_end=0.0) if self.objective == "next-token" else self.masking
