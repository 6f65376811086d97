"""What you can ask of an encoder: one class for all heads of the table `HEADS`, and a tagger's CRF."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.errors import UserError, suggest
from bertkit.model.crf import Chain
from bertkit.model.encoder import Encoded, Encoder
from bertkit.model.layers import ACTIVATION, Dropout, DropoutMasks, Linear, initialise, norm_of
from bertkit.settings.model import HEADS, Config


class Transform(nn.Module):
    """The transform of a head: a dense layer, an activation, and (for masked words, in ModernBERT) a norm."""

    def __init__(self, config: Config, outputs: int, activation: str, norm: bool) -> None:
        super().__init__()
        self.dense = Linear(config.width, outputs, bias=config.bias or config.dense_bias)
        self.activation = ACTIVATION[activation]
        self.norm = norm_of(config, outputs) if norm else None

    def forward(self, x: Tensor) -> Tensor:
        """A head's hidden layer. x: (…, width). Returns (…, outputs)."""
        x = self.activation(self.dense(x))
        return x if self.norm is None else self.norm(x)


def word_scores(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The mlm head's score of every piece of the vocabulary. x: (…, width). Returns (…, vocabulary)."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class Head(nn.Module):
    """A head over the encoder: vectors to outputs by an optional transform, dropout, one linear map."""

    def __init__(self, kind: str, config: Config, labels: int, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        head = HEADS[kind]
        self.looks_at = head.looks_at
        predicts_pieces = kind == "mlm"
        plain = predicts_pieces and config.word_head == "plain"
        transformed = head.transform == "always" or (head.transform == "family" and config.token_transform)
        width = config.embedding_width if predicts_pieces else config.width
        norm = predicts_pieces or config.summary_norm
        self.transform = Transform(config, width, config.activation, norm) if transformed and not plain else None
        self.dropout = Dropout(0.0 if head.transform == "always" else config.head_dropout, dropout_masks)
        if predicts_pieces:
            self.out: Linear | None = None
            self.bias = None if plain else nn.Parameter(torch.zeros(config.vocabulary))
            self.decoder = None if config.tied else nn.Parameter(torch.empty(config.vocabulary, width))
            self.word_scores = word_scores  # inference has a faster one
        else:
            # GPT's heads over a text have no bias.
            no_bias = head.looks_at == "pooler" and config.summary_activation == "none"
            self.out = Linear(width, head.outputs or labels, bias=not no_bias)

    def vectors(self, x: Tensor) -> Tensor:
        """The input of a head's output map. x: (…, width)."""
        return self.dropout(x if self.transform is None else self.transform(x))

    def forward(self, x: Tensor, words: Tensor | None = None) -> Tensor:
        """x: (…, width) → (…, outputs). The mlm head needs the token embeddings (vocabulary, width) it is tied to."""
        x = self.vectors(x)
        if self.out is not None:
            # Few numbers, on the scale of the user's data: bf16 has 2008 and 2016, but no year in between.
            return self.out(x.float())
        weight = self.decoder if self.decoder is not None else words
        assert weight is not None
        return self.word_scores(x, weight, self.bias)


class Model(nn.Module):
    """An encoder, the pooler that turns a text into one vector, and any heads."""

    def __init__(self, config: Config, heads: dict[str, int] | None = None, *, pooler: bool = True) -> None:
        """heads: kind → number of labels (0 where the kind fixes it)."""
        super().__init__()
        for kind in heads or {}:
            if kind not in HEADS:
                raise UserError(f"There is no head '{kind}'. {suggest(kind, list(HEADS))}")
        self.config = config
        self.encoder = Encoder(config)
        needs = pooler or any(HEADS[kind].looks_at == "pooler" for kind in heads or {})
        needs = needs and config.summary_activation != "none"
        self.pooler = Transform(config, config.width, config.summary_activation, config.summary_norm) if needs else None
        dropout_masks = self.encoder.dropout_masks
        self.heads = nn.ModuleDict({k: Head(k, config, n, dropout_masks) for k, n in (heads or {}).items()})
        self.crf: Crf | None = None  # a tagger's transition scores; set by the code that trains or loads one
        self.untrained: tuple[str, ...] = ()  # heads whose weights come from no checkpoint and no training
        initialise(self, config)

    def head(self, kind: str) -> Head:
        """The model's head of this kind."""
        return cast(Head, self.heads[kind])

    def mlm_weights(self) -> tuple[Tensor, Tensor | None]:
        """The weights and biases of the mlm head: (vocabulary, width) and (vocabulary,)."""
        head = self.head("mlm")
        return (self.encoder.embeddings.tokens.weight if head.decoder is None else head.decoder), head.bias

    def pooled(self, encoded: Encoded) -> Tensor:
        """The vector that represents each text: (texts, width), packed order."""
        if self.config.summary == "late" and self.pooler is not None:
            return first_vectors(replace(encoded, tokens=self.pooler(encoded.tokens)), "mean")
        x = first_vectors(encoded, self.config.summary)
        return x if self.pooler is None else self.pooler(x)

    def ask(self, kind: str, encoded: Encoded, places: Tensor | None = None) -> Tensor:
        """A head's output: (texts, outputs) or (tokens, outputs), packed order; at `places` (tokens) only if given."""
        head = self.head(kind)
        x = self.pooled(encoded) if HEADS[kind].looks_at == "pooler" else encoded.tokens
        if places is not None:
            x = x[places]
        return head(x, self.encoder.embeddings.tokens.weight)


def first_vectors(encoded: Encoded, pool: str) -> Tensor:
    """What a text's head sees: the first, last, mean or maximum token vector: (texts, width), packed order."""
    batch = encoded.batch
    if pool == "first":
        return encoded.tokens[batch.starts]
    lengths = torch.tensor(batch.lengths, device=encoded.tokens.device)
    if pool == "last":
        return encoded.tokens[batch.starts + lengths - 1]
    if pool == "max":
        return torch.segment_reduce(encoded.tokens[: batch.tokens].float(), "max", lengths=lengths)
    owner = torch.repeat_interleave(torch.arange(batch.texts, device=lengths.device), lengths)
    total = torch.zeros(batch.texts, encoded.tokens.shape[1], device=lengths.device)
    total.index_add_(0, owner, encoded.tokens[: batch.tokens].float())
    return (total / lengths[:, None]).to(encoded.tokens.dtype)


# ---- A tagger's CRF, while it learns: `crf.py` has the idea, and chooses the tags.


class Crf(nn.Module):
    """The CRF's learned transition scores, initialized to zero."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(labels))
        self.step = nn.Parameter(torch.zeros(labels, labels))
        self.end = nn.Parameter(torch.zeros(labels))

    def forward(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """The head `Crf`: log-probability of tags. emissions: (texts, words, labels); tags: (texts, words)."""
        return path_score(emissions, tags, lengths, self) - log_partition(emissions, lengths, self)

    def chain(self) -> Chain:
        """The CRF head's learned scores, as those who choose tags need them."""
        return Chain(*(part.detach().float().cpu().numpy() for part in (self.start, self.step, self.end)))


class Transitions(Protocol):
    """Anything with the scores of a `Crf`."""

    @property
    def start(self) -> Tensor:
        """A CRF head's scores of first tags: (labels,)."""

    @property
    def step(self) -> Tensor:
        """A CRF head's scores of a tag after another: (labels, labels)."""

    @property
    def end(self) -> Tensor:
        """A CRF head's scores of last tags: (labels,)."""


def path_score(emissions: Tensor, tags: Tensor, lengths: Tensor, chain: Transitions) -> Tensor:
    """The CRF head's score of one sequence per text. Tags beyond a text's length may be any number: (texts,)."""
    is_word = _there(emissions, lengths)
    words = emissions.gather(2, tags[:, :, None])[:, :, 0]
    steps = chain.step[tags[:, :-1], tags[:, 1:]]
    last = tags.gather(1, lengths[:, None] - 1)[:, 0]
    total = words.where(is_word, 0).sum(1) + steps.where(is_word[:, 1:], 0).sum(1)
    return total + chain.start[tags[:, 0]] + chain.end[last]


def log_partition(emissions: Tensor, lengths: Tensor, chain: Transitions) -> Tensor:
    """The CRF head's log of the sum of exp(score) over all sequences: (texts,). Past its end, a sum does not change."""
    is_word = _there(emissions, lengths)
    reached = chain.start + emissions[:, 0]
    for word in range(1, emissions.shape[1]):
        onward = (reached[:, :, None] + chain.step).logsumexp(1) + emissions[:, word]
        reached = onward.where(is_word[:, word, None], reached)
    return (reached + chain.end).logsumexp(1)


def _there(emissions: Tensor, lengths: Tensor) -> Tensor:
    """Which places of the CRF head are words: (texts, words)."""
    return torch.arange(emissions.shape[1], device=emissions.device) < lengths[:, None]
