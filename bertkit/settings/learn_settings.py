"""Every number of a run that teaches a left-to-right model. Apart from the run, so that it reads without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.config import option
from bertkit.settings.training import LoopSettings, RunSettings


@dataclass(frozen=True, kw_only=True)
class LearnSettings(RunSettings):
    """What `learn` needs. With the seed, length and held_out of a GPT run it sees the same text in the same order."""

    kind: str = option("lstm", "What is learnt.", choices=("nnlm", "rnn", "lstm", "gru"))
    data: Path = option(help="The store that `bertkit prepare` made.")
    out: Path = option(Path("runs/left-to-right"), "The run's folder.")
    width: int = option(256, "Width of the word vectors.", at_least=1)
    hidden: int = option(0, "Width of the hidden layers; 0: like the word vectors.", at_least=0)
    layers: int = option(2, "Recurrent layers.", at_least=1)
    context: int = option(5, "nnlm: how many pieces it looks back on.", at_least=1)
    direct: int = option(0, "nnlm: 1 joins the word vectors to the output directly, too.", at_least=0, at_most=1)
    dropout: float = option(0.1, "Dropout, one mask a text.", at_least=0, at_most=0.99)
    batch_tokens: int = option(4096, "Tokens a step.", at_least=1)
    micro_tokens: int = option(8192, "Tokens computed at once; a larger batch is accumulated.", at_least=1)
    length: int = option(128, "The longest example, in tokens.", at_least=1)
    eval_tokens: int = option(65536, "Tokens of held-out text an evaluation reads.", at_least=1)
    loop: LoopSettings = option(factory=lambda: LoopSettings(lr=4e-3, warmup=0.05, beta2=0.98, eps=1e-6))
