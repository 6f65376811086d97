"""A model as other runtimes want it: padded rows of ids in, the head's numbers out, any batch, any length."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bertkit.data.batch import Batch, Group
from bertkit.model.encoder import Encoded
from bertkit.model.heads import HEADS, Model

# How a text's vector is made of its tokens'. tokens: (texts, length, width); real: (texts, length, 1), 1.0 for tokens.
POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first": lambda tokens, real: tokens[:, 0],
    "last": lambda tokens, real: torch.take_along_dim(tokens, real.sum(1, keepdim=True).long() - 1, 1)[:, 0],
    "mean": lambda tokens, real: (tokens * real).sum(1) / real.sum(1),
    "max": lambda tokens, real: (tokens + (real - 1) * 1e9).amax(1),
}


class Padded(nn.Module):
    """The same encoder and head, fed a rectangle. Rows are padded at their end, as every tokenizer pads them."""

    def __init__(self, model: Model, kind: str = "", pool: str = "mean", normalize: bool = False) -> None:
        """kind: which head; "": the vectors themselves, of tokens and, by `pool`, of texts."""
        super().__init__()
        self.model, self.kind = model, kind
        self.pool, self.normalize = pool, normalize

    @property
    def names(self) -> tuple[str, ...]:
        """What `forward` gives, in order, as transformers calls it."""
        if not self.kind:
            return ("last_hidden_state", "sentence_embedding")
        return ("start_logits", "end_logits") if self.kind == "span" else ("logits",)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> tuple:
        """(texts, length) each, 1 for tokens in the mask. Returns what `names` says: (texts, …) each."""
        texts, length = input_ids.shape
        tokens = self._encode(input_ids, attention_mask, token_type_ids).view(texts, length, -1)
        real = attention_mask[:, :, None].to(tokens.dtype)
        if not self.kind:
            vectors = POOLS[self.pool](tokens, real)
            if self.normalize:
                vectors = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)
            return tokens, vectors
        if HEADS[self.kind].looks_at == "summary":
            vectors = POOLS[self.model.config.summary](tokens, real)
            vectors = vectors if self.model.summary is None else self.model.summary(vectors)
            return (self.model.head(self.kind)(vectors),)
        said = self.model.head(self.kind)(tokens, self.model.encoder.embeddings.words.weight)
        return (said[..., 0], said[..., 1]) if self.kind == "span" else (said,)

    def _encode(self, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
        """The rectangle as one group of texts, whose padding is a text's end: (texts × length, width)."""
        texts, length = ids.shape
        positions = torch.arange(length, device=ids.device)[None].expand(texts, length)
        group = Group(0, texts * length, texts, length, lengths=mask.sum(1))
        batch = Batch(
            ids=ids.reshape(-1),
            segments=(torch.zeros_like(ids) if segments is None else segments).reshape(-1),
            positions=positions.reshape(-1),
            lengths=(),  # the encoder would compare them with its limit; a runtime's own error tells of too long a text
            order=(),
            groups=(group,),
            starts=torch.arange(texts, device=ids.device) * length,
        )
        encoded: Encoded = self.model.encoder(batch)
        return encoded.tokens
