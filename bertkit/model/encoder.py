"""The encoder: one module for every family, from BERT to ModernBERT, DeBERTa and GPT.

They differ only in the numbers of `Config`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bertkit.data.batch import Batch
from bertkit.errors import UserError
from bertkit.model.attention import Attention, AttentionContext, Distances, Rotation, mask, position_bias
from bertkit.model.layers import ACTIVATION, Dropout, DropoutMasks, Linear, norm_of
from bertkit.settings.model import Config


@dataclass
class Encoded:
    """The encoder's output for a batch.

    tokens: (tokens, width), packed order. layers: the embeddings and every layer's output, if
    requested. maps: per layer and group (texts, heads, length, length), if requested.
    """

    tokens: Tensor
    batch: Batch
    layers: tuple[Tensor, ...] = ()
    maps: tuple[tuple[Tensor, ...], ...] = ()


class Embeddings(nn.Module):
    """The encoder's embeddings: token, position and segment vectors added up, then normalized."""

    def __init__(self, config: Config, dropout_masks: DropoutMasks) -> None:
        super().__init__()
        width = config.embedding_width
        self.first_position = config.first_position
        self.tokens = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(config.positions, width) if config.positions else None
        self.segments = nn.Embedding(config.segments, width) if config.segments else None
        self.tasks = nn.Embedding(config.task_types, width) if config.task_types else None
        self.norm = norm_of(config, width) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout, dropout_masks)
        self.project = Linear(width, config.width) if width != config.width else None

    def forward(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        """The encoder's input vectors of a batch: (tokens, width)."""
        x = self.tokens(batch.ids)
        if self.positions is not None:
            x = x + self.positions(batch.positions + self.first_position)
        if self.segments is not None:
            # A tokenizer's template may number a second text 1 for a model that knows one segment only.
            x = x + self.segments(batch.segments.clamp(max=self.segments.num_embeddings - 1))
        if self.tasks is not None:
            x = x + self.tasks.weight[0]
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x.to(dtype))
        return x if self.project is None else self.project(x)


class FeedForward(nn.Module):
    """The encoder's feed-forward part: each token independently through a wider layer and back."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gated = config.gated
        self.activation = ACTIVATION[config.activation]
        self.wide = Linear(config.width, config.inner * (2 if config.gated else 1), bias=config.bias)
        self.narrow = Linear(config.inner, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The feed-forward half of an encoder layer. x: (tokens, width). Returns like x."""
        if not self.gated:
            return self.narrow(self.activation(self.wide(x)))
        content, gate = self.wide(x).chunk(2, dim=-1)
        return self.narrow(self.activation(content) * gate)


class Layer(nn.Module):
    """One layer of the encoder: attention, then feed-forward; norms after each sum (post) or before each part (pre)."""

    def __init__(self, config: Config, dropout_masks: DropoutMasks, first: bool) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.attention = Attention(config, dropout_masks)
        # A pre-norm stack whose embeddings are already normalised has no norm before its first attention.
        skip = self.pre and first and config.embedding_norm
        self.attention_norm = None if skip else norm_of(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = norm_of(config)
        self.dropout = Dropout(config.dropout, dropout_masks)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """One encoder layer. x: (tokens, width). Returns like x."""
        if self.pre:
            normed = x if self.attention_norm is None else self.attention_norm(x)
            x = x + self.dropout(self.attention(normed, context))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        assert self.attention_norm is not None
        x = self.attention_norm(x + self.dropout(self.attention(x, context)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class Encoder(nn.Module):
    """The encoder: a stack of layers over packed texts."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.dropout_masks = DropoutMasks()
        self.dtype = torch.float32  # the precision of what flows; the weights stay float32
        self.embeddings = Embeddings(config, self.dropout_masks)
        self.layers = nn.ModuleList(Layer(config, self.dropout_masks, i == 0) for i in range(config.unique_layers))
        self.final_norm = norm_of(config) if config.norm == "pre" else None
        self.position_bias = nn.Embedding(config.bias_buckets, config.heads) if config.bias_buckets else None
        self.relative = nn.Embedding(2 * config.relative_span, config.width) if config.relative_span else None
        self.relative_norm = norm_of(config) if config.relative_span and config.relative_norm else None

    def forward(self, batch: Batch, *, layers: bool = False, maps: bool = False) -> Encoded:
        """Encode a batch; keep every layer's output and the attention maps if requested."""
        config = self.config
        longest = max(batch.lengths, default=0)
        if longest > config.max_tokens:
            raise UserError(
                f"A text has {longest} tokens; this model's limit is {config.max_tokens}. "
                "Truncate it (--on-long truncate), or read it in windows (--on-long window)."
            )
        x = self.embeddings(batch, self.dtype)
        seen = replace(config, causal=True) if batch.causal else config
        masks = {
            local: [mask(g, seen, local, x.dtype, x.device) for g in batch.groups]
            for local in {not config.is_global(i) for i in range(config.depth)}
        }
        if self.position_bias is not None:
            bias = [position_bias(g.length, self.position_bias.weight, x.dtype) for g in batch.groups]
            masks = {
                local: [more if hidden is None else hidden + more for hidden, more in zip(by_group, bias)]
                for local, by_group in masks.items()
            }
        distances = None if self.relative is None else self._distances(batch, x.dtype)
        rotations = {
            base: Rotation(batch.positions, config.head_width, base, x.dtype)
            for base in {config.rotary(i) for i in range(config.depth)}
            if base
        }
        outputs, all_maps = [x], []
        for i in range(config.depth):
            layer_maps: list[Tensor] | None = [] if maps else None
            context = AttentionContext(
                batch, masks[not config.is_global(i)], rotations.get(config.rotary(i)), layer_maps, distances
            )
            x = self.layers[i * config.unique_layers // config.depth](x, context)
            if layers:
                outputs.append(x)
            if layer_maps is not None:
                all_maps.append(tuple(layer_maps))
        if self.final_norm is not None:
            x = self.final_norm(x)
            if layers:
                outputs[-1] = x
        return Encoded(x, batch, tuple(outputs) if layers else (), tuple(all_maps))

    def _distances(self, batch: Batch, dtype: torch.dtype) -> Distances:
        """The vectors of the distances between tokens, for attention that sees distances (DeBERTa)."""
        assert self.relative is not None
        table = self.relative.weight if self.relative_norm is None else self.relative_norm(self.relative.weight)
        lengths = [group.length for group in batch.groups]
        return Distances(table.to(dtype), lengths, self.config.relative_span, self.config.relative_limit)
