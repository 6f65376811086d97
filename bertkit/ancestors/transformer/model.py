"""The Transformer (Vaswani et al., 2017): an encoder reads a text, a decoder writes another, word by word.

BERT is its encoder alone, GPT its decoder alone. Post-norm, sines for positions, one table of word vectors for
sources, targets and guesses, as in the paper; the numbers are in `Shape`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertkit import __version__, config
from bertkit.ancestors import folder as storage
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.transformer.data import Pairs, ends, places
from bertkit.ancestors.transformer.layers import Decoder, Memory, Words
from bertkit.ancestors.transformer.search import LENGTH_PENALTY, search
from bertkit.data.batch import batches_by_tokens, pack
from bertkit.errors import DamagedFile, UserError
from bertkit.model.encoder import Encoder
from bertkit.model.inference import choose
from bertkit.settings.ancestors import Shape
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.optimizer import named

ANCESTOR = "seq2seq"
AT_ONCE = 2048  # source tokens times hypotheses that are written together
LONGER = 50  # a target may have so many tokens more than its source, as in the paper


class Transformer(nn.Module):
    """Encoder and decoder over one table of words."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.encoder = Encoder(shape.encoder)
        self.encoder.embeddings = Words(shape, self.encoder.dropout_masks)  # type: ignore[assignment]
        self.decoder = Decoder(shape.decoder, self.encoder.dropout_masks)

    @property
    def words(self) -> Words:
        """The table both sides share."""
        return cast(Words, self.encoder.embeddings)

    @torch.no_grad()
    def initialise(self) -> None:
        """First weights, from torch's seed: words of unit size once scaled, Glorot's uniform for each map."""
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
        """Read sources (ids with their ends), ready to write; the memory keeps the caller's order."""
        batch = pack(sources)
        token_places, lengths = places(batch)
        device = self.words.words.weight.device
        return self.decoder.start(self.encoder(batch.to(device)).tokens, token_places.to(device), lengths.to(device))

    def step(self, ids: Tensor, place: int, memory: Memory) -> Tensor:
        """Write on. ids: (rows,), the last token of each row, which stands at `place`. Returns (rows, vocabulary)."""
        device = self.words.words.weight.device
        x = self.words.at(ids.to(device), torch.tensor([place], device=device), memory.hidden.dtype)
        return self.words.logits(self.decoder.step(x, memory))


class Seq2Seq:
    """A trained Transformer with its tokenizer: texts in, texts out."""

    LAYOUT = Layout("Transformer of `bertkit seq2seq`", "bertkit.json", "model.safetensors", (ANCESTOR,))

    def __init__(self, model: Transformer, tokenizer: Tokenizer, about: dict[str, Any] | None = None) -> None:
        self.model, self.tokenizer, self.about = model, tokenizer, about or {}

    def rewrite(self, texts: Sequence[str], beam: int = 4, penalty: float = LENGTH_PENALTY) -> list[dict[str, Any]]:
        """The best target found for each text: {"text", "score", "tokens", "cut", "finished"}.

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
        """The best target of each source, in ids without its end, its score, and whether it came to its end."""
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

    def save(self, folder: str | Path) -> None:
        """Write model.safetensors, bertkit.json and the tokenizer's files, all or nothing."""
        about = {**self.about, "ancestor": ANCESTOR, "bertkit": __version__, "model": asdict(self.model.shape)}
        tensors = {name: parameter.detach() for name, parameter in named(self.model).items()}
        storage.save(folder, self.LAYOUT, about, tensors, self.tokenizer, limit=self.model.shape.max_tokens)

    @classmethod
    def load(cls, folder: str | Path, precision: str = "auto", device: str = "cpu") -> Seq2Seq:
        """The model that was saved in a folder.

        precision: auto is fp32 here: a token at a time is a matter of reading weights, and in fp32 the
        answer does not depend on which texts are written together.
        """
        folder = Path(folder)
        about, tensors = storage.load(folder, cls.LAYOUT)
        source = folder / cls.LAYOUT.tensors
        where = f"{folder / 'bertkit.json'}: model"
        shape = config.build(Shape, about.get("model") or {}, where)
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
