"""The Transformer (Vaswani et al., 2017): an encoder reads a text, a decoder writes another, word by word.

BERT is its encoder alone, GPT its decoder alone. Post-norm, sines for positions, one table of word vectors for
sources, targets and guesses, as in the paper; the numbers are in `Shape`. The encoder's layers, self-attention and
feed-forward are bertkit's own (`bertkit.model`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertkit import __version__, config
from bertkit.ancestors import folder as storage
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.transformer.beam_search import LENGTH_PENALTY, search
from bertkit.ancestors.transformer.data import Pairs, TextPair, collate, ends, places
from bertkit.data.batch import Batch, batches_by_tokens, pack
from bertkit.errors import DamagedFile, UserError
from bertkit.model.attention import Attention, AttentionContext, mask, softmax
from bertkit.model.encoder import Encoder, FeedForward
from bertkit.model.inference import choose
from bertkit.model.layers import Dropout, DropoutMasks, Linear, Norm
from bertkit.notify import short_count
from bertkit.settings.ancestors import Seq2SeqShape
from bertkit.settings.model import Config
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.optimizer import named

Mixing = Callable[[Tensor], Tensor]  # (tokens, width) → like it


def sinusoids(length: int, width: int) -> Tensor:
    """The Transformer's positions (section 3.5): sines at even places, cosines at odd ones. Returns (length, width)."""
    steps = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (steps / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).reshape(length, width).float()


class WordEmbeddings(nn.Module):
    """The Transformer's word vectors times √width plus sines: one table for sources, targets and guesses (3.4)."""

    positions: Tensor

    def __init__(self, shape: Seq2SeqShape, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.register_buffer("positions", sinusoids(shape.max_tokens, shape.width), persistent=False)
        self.dropout = Dropout(shape.dropout, dropout_masks)

    def forward(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        """The Transformer's input: (tokens, width)."""
        return self.at(batch.ids, batch.positions, dtype)

    def at(self, ids: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """The Transformer's input at given places. ids: (n,), positions: (n,) or (1,). Returns (n, width)."""
        scaled = self.words(ids) * math.sqrt(self.words.embedding_dim)
        return self.dropout((scaled + self.positions[positions]).to(dtype))

    def logits(self, x: Tensor) -> Tensor:
        """The Transformer's logits. x: (n, width). Returns (n, vocabulary), float32."""
        return nn.functional.linear(x, self.words.weight.to(x.dtype)).float()


def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, dropout: Dropout) -> Tensor:
    """The decoder's attention. q: (rows, heads, asked, head_width); k, v: (rows, heads, seen, head_width).

    Returns (rows, asked, width).
    """
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    weights = softmax(scores if hidden is None else scores + hidden)
    return (dropout(weights) @ v).transpose(1, 2).flatten(2)


class CrossAttention(nn.Module):
    """The decoder's attention to the source: every token of a target looks at every token of its source."""

    def __init__(self, config: Config, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        self.config = config
        self.query = Linear(config.width, config.width)
        self.kv = Linear(config.width, 2 * config.width)
        self.out = Linear(config.width, config.width)
        self.dropout = Dropout(config.attention_dropout, dropout_masks)

    def keys(self, memory: Tensor, places: Tensor) -> Tensor:
        """Cross-attention's keys and values of the sources: (2, texts, heads, seen, …).

        memory: (source tokens, width); places: (texts, seen), which tokens.
        """
        rows = self.kv(memory)[places]
        return rows.unflatten(-1, (2, self.config.heads, -1)).permute(2, 0, 3, 1, 4)

    def look(self, asked: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        """Cross-attention of queries (texts, asked, width). Returns like them, not yet through `out`."""
        q = asked.unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
        return attend(q, keys[0], keys[1], hidden, self.dropout)

    def weights(self, x: Tensor, memory: Tensor, pairs: Pairs, hidden: Tensor) -> Tensor:
        """Cross-attention: how much each target token takes from each of its source: (texts, heads, target, source)."""
        asked = self.query(x)[pairs.extra["asking"]].unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
        keys = self.keys(memory, pairs.extra["seen"])[0]
        return softmax(asked @ keys.transpose(-1, -2) / math.sqrt(asked.shape[-1]) + hidden)

    def forward(self, x: Tensor, memory: Tensor, pairs: Pairs, hidden: Tensor) -> Tensor:
        """Cross-attention. x: (target tokens, width), memory: (source tokens, width), both packed. Returns like x."""
        mixed = self.look(self.query(x)[pairs.extra["asking"]], self.keys(memory, pairs.extra["seen"]), hidden)
        flat = mixed.flatten(0, 1)[pairs.extra["back"]]
        return self.out(nn.functional.pad(flat, (0, 0, 0, pairs.target.filler)))


@dataclass
class Memory:
    """What the Transformer's decoder keeps while it writes. rows: hypotheses, as many per text; texts: sources.

    past: each layer's keys and values (2, rows, heads, tokens so far, head_width). sources: each layer's keys and
    values (2, texts, heads, seen, head_width): the hypotheses of a text share them. hidden: (texts, 1, 1, seen).
    """

    sources: list[Tensor]
    hidden: Tensor
    past: list[Tensor] = field(default_factory=list)

    def select(self, rows: Tensor, texts: Tensor) -> None:
        """The decoder's memory of these rows and texts only, in this order."""
        rows, texts = rows.to(self.hidden.device), texts.to(self.hidden.device)
        self.past = [tensor[:, rows] for tensor in self.past]
        if len(texts) < len(self.hidden):
            self.sources = [tensor[:, texts] for tensor in self.sources]
            self.hidden = self.hidden[texts]


class DecoderLayer(nn.Module):
    """The decoder's layer: attention to what is written, to the source, feed-forward; norms after a sum or before."""

    def __init__(self, config: Config, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.attention = Attention(config, dropout_masks)
        self.cross = CrossAttention(config, dropout_masks)
        self.feed_forward = FeedForward(config)
        self.attention_norm, self.cross_norm, self.feed_forward_norm = (Norm(config.width, config.eps) for _ in "123")
        self.dropout = Dropout(config.dropout, dropout_masks)

    def forward(self, x: Tensor, memory: Tensor, pairs: Pairs, context: AttentionContext, hidden: Tensor) -> Tensor:
        """A decoder layer over many targets at once. x: (target tokens, width), packed. Returns like x."""
        return self._through(
            x,
            lambda y: self.attention(y, context),
            lambda y: self.cross(y, memory, pairs, hidden),
        )

    def step(self, x: Tensor, memory: Memory, number: int) -> Tensor:
        """A decoder layer, one more token of every row; its key and value join the memory. x: (rows, width)."""

        def written(y: Tensor) -> Tensor:
            qkv = self.attention.qkv(y).view(len(y), 3, self.attention.config.heads, 1, -1)
            new = qkv[:, 1:].transpose(0, 1)
            if number == len(memory.past):
                memory.past.append(new)
            else:
                memory.past[number] = torch.cat((memory.past[number], new), dim=3)
            k, v = memory.past[number]
            return self.attention.out(attend(qkv[:, 0], k, v, None, self.attention.dropout)[:, 0])

        def source(y: Tensor) -> Tensor:
            # The rows of a text stand side by side as if they were tokens of one target: none sees another.
            asked = self.cross.query(y).view(len(memory.hidden), -1, y.shape[-1])
            return self.cross.out(self.cross.look(asked, memory.sources[number], memory.hidden).flatten(0, 1))

        return self._through(x, written, source)

    def _through(self, x: Tensor, written: Mixing, source: Mixing) -> Tensor:
        parts: tuple[tuple[Mixing, Norm], ...] = (
            (written, self.attention_norm),
            (source, self.cross_norm),
            (self.feed_forward, self.feed_forward_norm),
        )
        for part, norm in parts:
            x = x + self.dropout(part(norm(x))) if self.pre else norm(x + self.dropout(part(x)))
        return x


class Decoder(nn.Module):
    """The Transformer's decoder: a stack of decoder layers."""

    def __init__(self, config: Config, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config, dropout_masks) for _ in range(config.depth))
        self.final_norm = Norm(config.width, config.eps) if config.norm == "pre" else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor, pairs: Pairs) -> Tensor:
        """The decoder over many targets. x: (target tokens, width), memory: (source tokens, width). Returns like x."""
        masks = [mask(group, self.config, False, x.dtype, x.device) for group in pairs.target.groups]
        context = AttentionContext(pairs.target, masks)
        hidden = padding(pairs.extra["seen_lengths"], pairs.extra["seen"].shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, memory, pairs, context, hidden)
        return self.final_norm(x)

    def start(self, memory: Tensor, places: Tensor, lengths: Tensor) -> Memory:
        """The decoder, ready to write. memory: (source tokens, width); places: (texts, seen); lengths: (texts,)."""
        sources = [layer.cross.keys(memory, places) for layer in self.layers]  # type: ignore[operator, union-attr]
        return Memory(sources, padding(lengths, places.shape[1], memory.dtype))

    def step(self, x: Tensor, memory: Memory) -> Tensor:
        """The decoder, one more token of every row. x: (rows, width). Returns like x."""
        for number, layer in enumerate(self.layers):
            x = layer.step(x, memory, number)  # type: ignore[operator]
        return self.final_norm(x)


def padding(lengths: Tensor, longest: int, dtype: torch.dtype) -> Tensor:
    """An addend to the decoder's scores that hides what is past each source's length: (texts, 1, 1, longest)."""
    past = torch.arange(longest, device=lengths.device)[None, :] >= lengths[:, None]
    return torch.zeros(past.shape, dtype=dtype, device=lengths.device).masked_fill_(past, torch.finfo(dtype).min)[
        :, None, None, :
    ]


ANCESTOR = "seq2seq"
AT_ONCE = 2048  # source tokens times hypotheses that are written together
LONGER = 50  # a target may have so many tokens more than its source, as in the paper


class Transformer(nn.Module):
    """The Transformer: encoder and decoder over one table of words."""

    def __init__(self, shape: Seq2SeqShape) -> None:
        super().__init__()
        self.shape = shape
        self.encoder = Encoder(shape.encoder)
        self.encoder.embeddings = WordEmbeddings(shape, self.encoder.dropout_masks)  # type: ignore[assignment]
        self.decoder = Decoder(shape.decoder, self.encoder.dropout_masks)

    @property
    def words(self) -> WordEmbeddings:
        """The Transformer's table of words, which both sides share."""
        return cast(WordEmbeddings, self.encoder.embeddings)

    @torch.no_grad()
    def initialise(self) -> None:
        """The Transformer's first weights, from torch's seed: words of unit size once scaled, maps Glorot's uniform."""
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
            elif name.endswith("words.weight"):
                weight.normal_(0.0, self.shape.width**-0.5)
            else:
                for part in weight.split(self.shape.width) if "qkv" in name or "kv" in name else (weight,):
                    nn.init.xavier_uniform_(part)

    def forward(self, pairs: Pairs) -> Tensor:
        """What the decoder makes of every target token, seeing those before it: (target tokens and filler, width)."""
        memory = self.encoder(pairs).tokens
        return self.decoder(self.words(pairs.target, memory.dtype), memory, pairs)

    def start(self, sources: Sequence[Sequence[int]]) -> Memory:
        """The Transformer reads sources (ids with their ends), ready to write; the memory keeps the caller's order."""
        batch = pack(sources)
        token_places, lengths = places(batch)
        device = self.words.words.weight.device
        return self.decoder.start(self.encoder(batch.to(device)).tokens, token_places.to(device), lengths.to(device))

    def step(self, ids: Tensor, place: int, memory: Memory) -> Tensor:
        """The Transformer writes on. ids: (rows,), the last token of each, at `place`. Returns (rows, vocabulary)."""
        device = self.words.words.weight.device
        x = self.words.at(ids.to(device), torch.tensor([place], device=device), memory.hidden.dtype)
        return self.words.logits(self.decoder.step(x, memory))


class Seq2Seq:
    """A trained Transformer with its tokenizer: texts in, texts out."""

    LAYOUT = Layout("Transformer of `bertkit seq2seq`", "bertkit.json", "model.safetensors", (ANCESTOR,))

    def __init__(self, model: Transformer, tokenizer: Tokenizer, about: dict[str, Any] | None = None) -> None:
        self.model, self.tokenizer, self.about = model, tokenizer, about or {}

    def __repr__(self) -> str:
        """Its size."""
        size = sum(weight.numel() for weight in self.model.parameters())
        return f"<bertkit Transformer: texts to texts, {short_count(size)} parameters>"

    def rewrite(self, texts: Sequence[str], beam: int = 4, penalty: float = LENGTH_PENALTY) -> list[dict[str, Any]]:
        """The best target the Transformer finds for each text: {"text", "score", "tokens", "cut", "finished"}.

        beam: hypotheses kept; 1 is greedy. score: log-probability over the length penalty. tokens: how many of the
        source were read; cut: how many were not, because the model takes `max_tokens`. finished: False where the
        target was broken off at the longest length allowed.
        """
        if beam < 1:
            raise UserError(f"beam is {beam}; it must be 1 (greedy) or more.")
        limit = self.model.shape.max_tokens
        _, end = ends(self.tokenizer)
        pieces = self.tokenizer.pieces_batch(texts)
        sources = [[*ids_of_text[: limit - 1], end] for ids_of_text in pieces]
        targets = self.search_ids(sources, beam, penalty)
        return [
            {
                "text": self.tokenizer.decode(ids), "score": score, "tokens": len(source),
                "cut": len(text_ids) + 1 - len(source), "finished": finished,
            }
            for (ids, score, finished), source, text_ids in zip(targets, sources, pieces)
        ]  # fmt: skip

    def search_ids(
        self, sources: Sequence[Sequence[int]], beam: int, penalty: float = LENGTH_PENALTY
    ) -> list[tuple[list[int], float, bool]]:
        """The Transformer's best target of each source, in ids without its end, its score, and whether it ended."""
        begin, end = ends(self.tokenizer)
        never = sorted(self.tokenizer.special_ids - {end})
        answers: list[tuple[list[int], float, bool]] = [([], 0.0, False)] * len(sources)
        self.model.eval()
        for part in batches_by_tokens([len(source) for source in sources], max(1, AT_ONCE // beam)):
            limits = [min(self.model.shape.max_tokens, len(sources[n]) + LONGER) for n in part]
            hypotheses = search(
                self.model, [sources[n] for n in part],
                begin=begin, end=end, never=never, beam=beam, penalty=penalty, limits=limits,
            )  # fmt: skip
            for number, best in zip(part, hypotheses):
                answers[number] = (best[0].ids, best[0].score, best[0].finished)
        return answers

    @torch.no_grad()
    def cross_attention(self, text: str) -> dict[str, Any]:
        """What the decoder looks at in the source while it writes (greedily): {source, target, text, finished, maps}.

        source, target: tokens; target begins with the token that is given first, so row n of a map is where the
        decoder looks when it writes target n + 1. maps: (layers, heads, targets, sources); rows add up to 1.
        """
        begin, end = ends(self.tokenizer)
        limit = self.model.shape.max_tokens
        source = [*self.tokenizer.pieces_batch([text])[0][: limit - 1], end]
        ((written, _, finished),) = self.search_ids([source], 1)
        given = [begin, *written][:limit]
        pairs = collate([TextPair(source, given, [*written, end][:limit])]).to(self.model.words.words.weight.device)
        calls: list[tuple[CrossAttention, Any]] = []
        layers = [cast(DecoderLayer, layer).cross for layer in self.model.decoder.layers]
        hooks = [layer.register_forward_pre_hook(lambda layer, seen: calls.append((layer, seen))) for layer in layers]
        try:
            self.model.eval()
            self.model(pairs)
        finally:
            for hook in hooks:
                hook.remove()
        maps = torch.stack([layer.weights(*seen)[0] for layer, seen in calls]).float().cpu().numpy()
        name = self.tokenizer.id_to_token
        return {
            "source": [name(n) or "" for n in source], "target": [name(n) or "" for n in [begin, *written, end]],
            "text": self.tokenizer.decode(written), "finished": finished, "maps": maps,
        }  # fmt: skip

    def save(self, folder: str | Path) -> None:
        """Write a Transformer: model.safetensors, bertkit.json and the tokenizer's files, all or nothing."""
        about = {**self.about, "ancestor": ANCESTOR, "bertkit": __version__, "model": asdict(self.model.shape)}
        tensors = {name: parameter.detach() for name, parameter in named(self.model).items()}
        storage.save(folder, self.LAYOUT, about, tensors, self.tokenizer, limit=self.model.shape.max_tokens)

    @classmethod
    def load(cls, folder: str | Path, precision: str = "auto", device: str = "cpu") -> Seq2Seq:
        """Open the Transformer (encoder-decoder) that was saved in a folder.

        precision: auto is fp32 here: a token at a time is a matter of reading weights, and in fp32 the
        answer does not depend on which texts are written together.
        """
        folder = Path(folder)
        about, tensors = storage.load(folder, cls.LAYOUT)
        source = folder / cls.LAYOUT.tensors
        where = f"{folder / 'bertkit.json'}: model"
        shape = config.build(Seq2SeqShape, about.get("model") or {}, where)
        tokenizer = Tokenizer.load(folder)
        stored = sum(tensor.numel() for tensor in tensors.values())
        if tokenizer.size > shape.vocabulary or shape.vocabulary * shape.width > stored or shape.depth > len(tensors):
            raise DamagedFile(f"{folder}: {source.name}, bertkit.json and the tokenizer do not belong together.")
        model = Transformer(shape)
        expected = {name: parameter.shape for name, parameter in named(model).items()}
        wrong = [name for name, size in expected.items() if name not in tensors or tensors[name].shape != size]
        if wrong:
            raise DamagedFile(
                f"{source}: {len(wrong)} of {len(expected)} tensors are missing or of another shape (first: "
                f"{wrong[0]}). Copy the folder again."
            )
        model.load_state_dict(tensors, strict=False)
        model.encoder.dtype = choose("fp32" if precision == "auto" else precision, device)
        model.eval().requires_grad_(False).to(device)
        return cls(model, tokenizer, about)
