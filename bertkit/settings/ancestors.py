"""Settings of the ancestors and their training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bertkit.config import Common, option
from bertkit.errors import UserError, suggest
from bertkit.settings.model import Config
from bertkit.settings.training import LoopSettings, RunSettings

# ---- The Transformer and its training.

ON_LONG = ("drop", "truncate", "error")


@dataclass(frozen=True)
class Seq2SeqShape:
    """The numbers of the Transformer, an ancestor: encoder and decoder.

    The paper's base model: width 512, depth 6, heads 8, inner 2048.
    """

    vocabulary: int = 0  # 0: as many as the tokenizer has pieces
    width: int = 256
    depth: int = 3
    decoder_depth: int = 0  # 0: as deep as the encoder
    heads: int = 4
    inner: int = 1024
    max_tokens: int = 128  # of a source, and of a target, its end included
    norm: str = "post"  # post, as in the paper | pre
    activation: str = "relu"
    dropout: float = 0.1  # of embeddings and of each sublayer's output
    attention_dropout: float = 0.0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse impossible settings before any work is done."""
        if self.width % 2:
            raise UserError(f"width is {self.width}; it must be even, since positions are sines and cosines in pairs.")
        self.encoder  # noqa: B018  every other number is checked there
        self.decoder  # noqa: B018

    @property
    def encoder(self) -> Config:
        """The Transformer's settings as its encoder's config: without learned positions, segments or a first norm."""
        return Config(
            vocabulary=self.vocabulary, width=self.width, depth=self.depth, heads=self.heads, inner=self.inner,
            max_tokens=self.max_tokens, positions=0, segments=0, embedding_norm=False, norm=self.norm,
            activation=self.activation, dropout=self.dropout, attention_dropout=self.attention_dropout, eps=self.eps,
        )  # fmt: skip

    @property
    def decoder(self) -> Config:
        """The Transformer's settings as its decoder's config: a token sees no later ones."""
        return replace(self.encoder, depth=self.decoder_depth or self.depth, unique_layers=0, causal=True)


# preset → sizes: the paper's base and big models (Vaswani and others 2017), and one for a CPU.
SEQ2SEQ_PRESETS: dict[str, dict[str, float]] = {
    "mini": {},
    "transformer-base": {"width": 512, "depth": 6, "heads": 8, "inner": 2048, "max_tokens": 512},
    "transformer-big": {"width": 1024, "depth": 6, "heads": 16, "inner": 4096, "max_tokens": 512, "dropout": 0.3},
}


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSettings(Common):
    """Options of `bertkit seq2seq`."""

    preset: str = option(
        "mini", "Sizes: mini for a CPU, or those of the Transformer's paper; --set model.width=… changes one.",
        choices=tuple(SEQ2SEQ_PRESETS),
    )  # fmt: skip

    train: Path = option(help="Training pairs: a source and a target per row.")
    dev: Path | None = option(None, "Validation pairs (default: a tenth of --train, at most 1000, is held out).")
    out: Path = option(Path("runs/seq2seq"), "The run folder.")
    text: str = option("text", "Name (or number) of the source column.")
    text_b: str = option("text_b", "Name (or number) of the target column.")
    encoding: str = option("utf-8", "Encoding of the files.")
    tokenizer: str = option("", "A tokenizer or model folder (default: a vocabulary is learned from the pairs).")
    kind: str = option(
        "bpe", "Kind of vocabulary; bpe restores texts exactly.", choices=("bpe", "wordpiece", "unigram")
    )
    size: int = option(8000, "Maximum vocabulary size, in pieces.", at_least=1)
    cased: bool = option(True, "Keep case and accents.")
    on_long: str = option("drop", "Pairs longer than model.max_tokens: drop, truncate, or refuse.", choices=ON_LONG)
    epochs: float = option(0.0, "Passes over the pairs; 20 if no budget is given.", at_least=0)
    steps: int = option(0, "Steps instead of passes.", at_least=0)
    minutes: float = option(0.0, "Time budget instead of passes.", at_least=0)
    batch: int = option(64, "Pairs per step.", at_least=1)
    smoothing: float = option(
        0.1,
        "Label smoothing: this fraction of the target is spread over the whole vocabulary.",
        at_least=0,
        at_most=0.99,
    )
    lr: float = option(7e-4, "Peak learning rate; the paper's base model has 7e-4.", at_least=0, at_most=1)
    warmup: float = option(0.1, "Warm-up, as a fraction of all steps.", at_least=0, at_most=1)
    schedule: str = option("linear", "Learning-rate schedule.", choices=("linear", "cosine", "trapezoid", "constant"))
    decay: float = option(0.0, "Weight decay.", at_least=0)
    clip: float = option(1.0, "Maximum gradient norm (0: no clipping).", at_least=0)
    beam: int = option(4, "Beam size of the final evaluation.", at_least=1)
    evals: int = option(10, "Number of evaluations during the run.", at_least=1)
    resume: bool = option(False, "Continue the run in --out.")
    save_minutes: float = option(5.0, "Save at least this often.", at_least=0)
    micro_tokens: int = option(8192, "Tokens of both sides computed at once.", hidden=True, at_least=1)
    model: Seq2SeqShape = option(factory=Seq2SeqShape)


# ---- BiLSTM.

UNITS = ("words", "jieba", "characters")  # how a text is split into words (see ancestors/ngram)
POOLS = ("max", "mean")


@dataclass(frozen=True)
class BiLstmSettings:
    """Settings of an ancestor, the BiLSTM, and of its training."""

    cells: int = option(200, "Memory cells per direction.", at_least=1)
    depth: int = option(2, "Layers.", at_least=1)
    word_width: int = option(100, "Width of the word vectors, if they are trained from scratch.", at_least=1)
    dropout: float = option(0.3, "Dropout before every layer.", at_least=0, at_most=0.99)
    pool: str = option("max", "How a text's word vectors become one.", choices=POOLS)
    units: str = option("words", "How texts are split into words.", choices=UNITS)
    cased: bool = option(True, "Keep case.")
    batch: int = option(32, "Sentences per step.", at_least=1)
    lr: float = option(1e-3, "Adam learning rate.", at_least=0, at_most=1)
    epochs: int = option(30, "Maximum number of passes over the sentences.", at_least=1)
    patience: int = option(5, "Stop after this many passes without improvement.", at_least=1)

    def __post_init__(self) -> None:
        for name in ("cells", "depth", "word_width", "batch", "epochs", "patience"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be 1 or more.")
        for name, choices in (("pool", POOLS), ("units", UNITS)):
            if getattr(self, name) not in choices:
                raise UserError(f"{name} is {getattr(self, name)!r}. {suggest(getattr(self, name), list(choices))}")


# ---- ELMo and its training.


@dataclass(frozen=True)
class ElmoNumbers:
    """Numbers of an ancestor, ELMo. width: of a word vector, both directions together."""

    width: int = option(256, "Width of a word vector; half of it for each direction.", at_least=2)
    cells: int = option(512, "Memory cells per LSTM; more than half the width.", at_least=1)
    depth: int = option(2, "LSTM layers per direction.", at_least=1)
    character_width: int = option(16, "Width of a character vector.", at_least=1)
    filters: tuple[tuple[int, ...], ...] = option(
        ((1, 16), (2, 32), (3, 64), (4, 96), (5, 128)), "Character filters, as pairs of width and number."
    )
    highways: int = option(1, "Highway layers over the filters.", at_least=0)
    dropout: float = option(0.1, "Dropout between layers.", at_least=0, at_most=0.99)

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2:
            raise UserError(f"width is {self.width}; it must be even, since each direction has half of it.")
        if self.cells <= self.width // 2:
            raise UserError(
                f"cells is {self.cells}; it must be more than half the width ({self.width // 2}), to which each LSTM "
                "projects. Raise cells, or lower width."
            )
        if not self.filters or any(len(kind) != 2 or min(kind) < 1 for kind in self.filters):
            raise UserError(
                f"filters is {self.filters!r}; it must be pairs of width and number, e.g. [[1, 16], [3, 64]]."
            )


@dataclass(frozen=True, kw_only=True)
class ElmoSettings(RunSettings):
    """Settings for training an ancestor, ELMo."""

    texts: tuple[Path, ...] = option(help="Files or folders of running text; each line is a sentence.")
    out: Path = option(Path("runs/elmo"), "The run folder.")
    units: str = option("words", "How text is split: words, jieba (Chinese words) or characters.", choices=UNITS)
    cased: bool = option(True, "Keep case.")
    vocabulary: int = option(20_000, "Number of words that can be predicted; any word can be read.", at_least=1)
    length: int = option(64, "Words per row; longer sentences are split.", at_least=2)
    batch_words: int = option(2048, "Words per step.", at_least=2)
    eval_words: int = option(20_000, "Words of held-out text per evaluation.", at_least=1)
    model: ElmoNumbers = option(factory=ElmoNumbers)
    loop: LoopSettings = option(factory=lambda: LoopSettings(lr=2e-3, beta2=0.99))

    def __post_init__(self) -> None:
        if not 2 <= self.length <= self.batch_words:
            raise UserError(
                f"length is {self.length}; it must be from 2 to the number of words per step (batch_words, "
                f"{self.batch_words})."
            )
        if self.precision == "bf16":
            raise UserError("precision is 'bf16'; ELMo's LSTMs are computed in fp32 only. Leave --precision out.")


# ---- Left-to-right language models.


@dataclass(frozen=True, kw_only=True)
class LearnSettings(RunSettings):
    """Options of `bertkit learn`. With a GPT run's seed, length and held_out it sees the same text in order."""

    kind: str = option("lstm", "Kind of language model.", choices=("nnlm", "rnn", "lstm", "gru"))
    data: Path = option(help="The token store made by `bertkit prepare`.")
    out: Path = option(Path("runs/left-to-right"), "The run folder.")
    width: int = option(256, "Width of the word vectors.", at_least=1)
    hidden: int = option(0, "Width of the hidden layers; 0: same as the word vectors.", at_least=0)
    layers: int = option(2, "Recurrent layers.", at_least=1)
    context: int = option(5, "nnlm: number of preceding pieces it sees.", at_least=1)
    direct: int = option(0, "nnlm: 1 also connects the word vectors directly to the output.", at_least=0, at_most=1)
    dropout: float = option(0.1, "Dropout, with one mask per text.", at_least=0, at_most=0.99)
    batch_tokens: int = option(4096, "Tokens per step.", at_least=1)
    micro_tokens: int = option(8192, "Tokens computed at once; a larger batch is accumulated.", at_least=1)
    length: int = option(128, "Maximum example length, in tokens.", at_least=1)
    eval_tokens: int = option(65536, "Tokens of held-out text per evaluation.", at_least=1)
    loop: LoopSettings = option(factory=lambda: LoopSettings(lr=4e-3, warmup=0.05, beta2=0.98, eps=1e-6))
