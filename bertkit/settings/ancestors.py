"""Every number of the Transformer and of its training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bertkit.config import Common, option
from bertkit.errors import UserError
from bertkit.settings.model import Config

ON_LONG = ("drop", "truncate", "error")


@dataclass(frozen=True)
class Shape:
    """The numbers of an encoder and a decoder. The paper's base model: width 512, depth 6, heads 8, inner 2048."""

    vocabulary: int = 0  # 0: as many as the tokenizer has pieces
    width: int = 256
    depth: int = 3
    decoder_depth: int = 0  # 0: as deep as the encoder
    heads: int = 4
    inner: int = 1024
    max_tokens: int = 128  # of a source, and of a target, its end included
    norm: str = "post"  # post, as in the paper | pre
    activation: str = "relu"
    dropout: float = 0.1  # of embeddings and of what each part adds
    attention_dropout: float = 0.0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse what cannot be, before any work is done."""
        if self.width % 2:
            raise UserError(f"width is {self.width}; it must be even, since positions are sines and cosines in pairs.")
        self.encoder  # noqa: B018  every other number is checked there
        self.decoder  # noqa: B018

    @property
    def encoder(self) -> Config:
        """The encoder's numbers: those of bertkit's own, without learned positions, segments or a first norm."""
        return Config(
            vocabulary=self.vocabulary, width=self.width, depth=self.depth, heads=self.heads, inner=self.inner,
            max_tokens=self.max_tokens, positions=0, segments=0, embedding_norm=False, norm=self.norm,
            activation=self.activation, dropout=self.dropout, attention_dropout=self.attention_dropout, eps=self.eps,
        )  # fmt: skip

    @property
    def decoder(self) -> Config:
        """The decoder's numbers: a token sees none that come later."""
        return replace(self.encoder, depth=self.decoder_depth or self.depth, unique_layers=0, causal=True)


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSettings(Common):
    """What `seq2seq` needs."""

    train: Path = option(help="Pairs to learn from: a source and a target a row.")
    dev: Path | None = option(None, "Pairs to choose by; without it a tenth of --train (at most 1000) is held out.")
    out: Path = option(Path("runs/seq2seq"), "The run's folder.")
    text: str = option("text", "Name (or number) of the sources' column.")
    text_b: str = option("text_b", "Name (or number) of the targets' column.")
    encoding: str = option("utf-8", "Encoding of the files.")
    tokenizer: str = option("", "A tokenizer's or model's folder; without it a vocabulary is learnt from the pairs.")
    kind: str = option(
        "bpe", "The vocabulary's kind; bpe gives texts back letter by letter.", choices=("bpe", "wordpiece", "unigram")
    )
    size: int = option(8000, "How many pieces the vocabulary has, at most.", at_least=1)
    cased: bool = option(True, "Keep capitals and accents.")
    on_long: str = option("drop", "Pairs longer than model.max_tokens: leave out, cut, or refuse.", choices=ON_LONG)
    epochs: float = option(0.0, "Passes over the pairs; without any budget: 20.", at_least=0)
    steps: int = option(0, "Steps instead of passes.", at_least=0)
    minutes: float = option(0.0, "Time budget instead of passes.", at_least=0)
    batch: int = option(64, "Pairs a step.", at_least=1)
    smoothing: float = option(
        0.1, "Label smoothing: this share of the target is spread over the whole vocabulary.", at_least=0, at_most=0.99
    )
    lr: float = option(7e-4, "Peak learning rate; the paper's base model has 7e-4.", at_least=0, at_most=1)
    warmup: float = option(0.1, "Share of the steps in which the rate rises.", at_least=0, at_most=1)
    schedule: str = option("linear", "How the rate falls.", choices=("linear", "cosine", "trapezoid", "constant"))
    decay: float = option(0.0, "Weight decay.", at_least=0)
    clip: float = option(1.0, "Longest gradient.", at_least=0)
    beam: int = option(4, "Hypotheses kept in the final scoring.", at_least=1)
    evals: int = option(10, "Evaluations a run.", at_least=1)
    resume: bool = option(False, "Continue the run in --out.")
    save_minutes: float = option(5.0, "Save at least this often.", at_least=0)
    micro_tokens: int = option(8192, "Tokens of both sides computed at once.", hidden=True, at_least=1)
    model: Shape = option(factory=Shape)
