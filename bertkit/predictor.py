"""A loaded model that answers: what the command line, the server and Python share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertkit import layers as layer_choice
from bertkit import machine
from bertkit.checkpoint.folder import Folder, read_folder
from bertkit.checkpoint.locate import locate
from bertkit.data.batch import Batch, pack
from bertkit.data.budget import budgeted
from bertkit.errors import UserError, suggest
from bertkit.model.encoder import Encoded
from bertkit.model.prepare import prepare
from bertkit.telling import note

ON_LONG = ("window", "truncate", "error")
POOLS = ("mean", "cls", "max", "none")
AT_ONCE = 8192  # texts that verbs read, sort and compute together: bounds memory however long the input


@dataclass(frozen=True)
class Row:
    """One run through the encoder: a text, or a window of one. core: the tokens it owns."""

    text: int
    ids: list[int]
    segments: list[int] | None
    core: tuple[int, int]
    whole: bool


class Predictor:
    """A model and its tokenizer, ready to answer."""

    def __init__(self, folder: Folder, precision: str = "auto", device: str = "auto") -> None:
        machine.set_up()
        self.device = machine.device_for(device)
        self.folder = folder
        self.tokenizer = folder.tokenizer
        self.model = prepare(folder.model, precision, self.device)
        self.config = folder.model.config
        self.precision = {torch.float32: "fp32", torch.bfloat16: "bf16"}[self.model.encoder.dtype]

    @classmethod
    def load(cls, name: str | Path, precision: str = "auto", device: str = "auto") -> Predictor:
        """Open a model by embedded name, folder or hub name."""
        return cls(read_folder(locate(name)), precision, device)

    def rows(self, texts: Sequence[str], on_long: str = "window", overlap: int = 64) -> tuple[list[Row], int]:
        """Texts as encoder runs, and how many tokens were cut. A text that fits is one row."""
        _check("on_long", on_long, ON_LONG)
        limit = self.config.max_tokens
        rows: list[Row] = []
        cut = 0
        for number, ids in enumerate(self.tokenizer.ids_batch(texts)):
            if len(ids) <= limit:
                rows.append(Row(number, ids, None, (0, len(ids)), True))
                continue
            if on_long == "error":
                raise UserError(
                    f"Text {number + 1} has {len(ids)} tokens; the model sees {limit}. "
                    "Shorten it, or choose --on-long window or truncate."
                )
            encoding = self.tokenizer.encode(texts[number])
            if on_long == "truncate":
                short, lost = self.tokenizer.truncated(encoding, limit)
                cut += lost
                rows.append(Row(number, short.ids, short.segments, (0, len(short)), True))
                continue
            for window in self.tokenizer.windows_of(encoding, limit=limit, overlap=min(overlap, limit // 4)):
                rows.append(Row(number, window.encoding.ids, window.encoding.segments, window.core, False))
        return rows, cut

    def run(
        self, rows: Sequence[Row], use: Callable[[Encoded], Sequence[Any]], *, layers: bool = False, maps: bool = False
    ) -> list[Any]:
        """Encode rows in the fastest order; `use` gives one answer a row of its batch, in the batch's own row order."""
        answers: list[Any] = [None] * len(rows)
        with torch.inference_mode():
            for numbers in budgeted([len(row.ids) for row in rows]):
                batch = self._pack([rows[n] for n in numbers])
                for number, answer in zip(
                    numbers, use(self.model.encoder(batch, layers=layers, maps=maps)), strict=True
                ):
                    answers[number] = answer
        return answers

    def _pack(self, rows: Sequence[Row]) -> Batch:
        segmented = any(row.segments is not None for row in rows) and self.config.segments > 1
        segments = [row.segments or [0] * len(row.ids) for row in rows] if segmented else None
        return pack([row.ids for row in rows], segments).to(self.device)

    def embed(
        self,
        texts: str | Sequence[str],
        layers: str | Sequence[int] = "last",
        pool: str = "mean",
        on_long: str = "window",
        normalize: bool = False,
    ) -> np.ndarray | list[np.ndarray]:
        """Vectors of texts: float32 (n, width); with pool "none" a list of (tokens, width)."""
        _check("pool", pool, POOLS)
        choice = layer_choice.choose(layers, self.config.depth)
        texts = [texts] if isinstance(texts, str) else list(texts)
        rows, cut = self.rows(texts, on_long)
        if cut:
            note(f"{cut} tokens were cut from texts longer than {self.config.max_tokens} tokens.")
        whole = all(row.whole for row in rows)

        def use(encoded: Encoded) -> list[np.ndarray]:
            encoded.tokens = encoded.tokens if choice.only_last else choice.pick(encoded.layers)
            return _pooled(encoded, pool if whole else "none")

        vectors = self.run(rows, use, layers=not choice.only_last)
        if not whole:
            vectors = _merge(rows, vectors, pool)
        if normalize:
            vectors = [v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), 1e-12) for v in vectors]
        if pool == "none":
            return vectors
        return np.stack(vectors) if vectors else np.zeros((0, choice.width(self.config.width)), np.float32)

    def fill(self, text: str, top: int = 5) -> list[list[dict[str, Any]]]:
        """Guesses for every mask of a text: a list a mask of {token, score, id, text}, best first."""
        self._needs("words", "guess masked words")
        mask = self.tokenizer.mask_id
        if mask is None:
            raise UserError("This tokenizer has no mask token, so there is nothing to fill.")
        spelled = self.tokenizer.id_to_token(mask) or "[MASK]"
        text = text.replace("[MASK]", spelled) if spelled not in text else text
        encoding = self.tokenizer.encode(text)
        places = [i for i, piece in enumerate(encoding.ids) if piece == mask]
        if not places:
            raise UserError(f"The text has no {spelled}. Put {spelled} where a word should be guessed.")
        if len(encoding) > self.config.max_tokens:
            raise UserError(
                f"The text has {len(encoding)} tokens; this model sees {self.config.max_tokens}. Shorten it."
            )

        def use(encoded: Encoded) -> list[Tensor]:
            return [self.model.ask("words", encoded, torch.tensor(places, device=self.device)).float().softmax(-1)]

        (scores,) = self.run([Row(0, encoding.ids, encoding.segments, (0, len(encoding)), True)], use)
        scores[:, self.tokenizer.size :] = 0  # rows that only pad the table
        best = scores.topk(min(top, self.tokenizer.size), dim=-1)
        return [
            [self._guess(encoding.ids, place, int(i), float(s)) for s, i in zip(values, ids)]
            for place, values, ids in zip(places, best.values.tolist(), best.indices.tolist())
        ]

    def _guess(self, ids: list[int], place: int, piece: int, score: float) -> dict[str, Any]:
        filled = [*ids[:place], piece, *ids[place + 1 :]]
        token = self.tokenizer.id_to_token(piece) or ""
        return {"token": token.lstrip("Ġ▁"), "score": score, "id": piece, "text": self.tokenizer.decode(filled)}

    def score(self, texts: str | Sequence[str], words: bool = False) -> list[float]:
        """Log-likelihood of each text: every piece guessed from all others (or from the left, for a causal model).

        `words`: when a piece is hidden, the later pieces of its own word are hidden too, which keeps a long
        rare word from being counted as likely because its own pieces give it away.
        """
        from bertkit.scoring import score

        self._needs("words", "score texts")
        return score(self, [texts] if isinstance(texts, str) else list(texts), words)

    def _needs(self, head: str, what: str) -> None:
        """A head that is absent or untrained answers nothing."""
        if head not in self.model.heads:
            has = ", ".join(self.model.heads) or "none"
            raise UserError(
                f"This model cannot {what}: it has no {head} head (it has: {has}). Use a model with one, e.g. 'en'."
            )
        if head in self.model.untrained or ("summary" in self.model.untrained and head in ("text", "choice")):
            raise UserError(f"This model cannot {what} yet: its {head} head is untrained. Fine-tune it first.")


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{name} is {value!r}. {suggest(value, list(known))}")


def _pooled(encoded: Encoded, pool: str) -> list[np.ndarray]:
    """One vector a text in the caller's order; pool none: one (tokens, width) a text."""
    batch = encoded.batch
    if pool == "none":
        return [part.float().cpu().numpy() for part in batch.split(encoded.tokens)]
    if pool == "cls":
        return list(batch.restore(encoded.tokens[batch.starts].float()).cpu().numpy())
    parts = []
    for group in batch.groups:
        rows = encoded.tokens[group.start : group.stop]
        if group.lengths is None:
            square = rows.view(group.texts, group.length, -1)
            parts.append(square.mean(1, dtype=torch.float32) if pool == "mean" else square.amax(1).float())
        else:
            parts.append(torch.segment_reduce(rows.float(), pool, lengths=group.lengths))
    return list(batch.restore(torch.cat(parts)).cpu().numpy())


def _merge(rows: Sequence[Row], vectors: Sequence[np.ndarray], pool: str) -> list[np.ndarray]:
    """Windows back into texts: each window gives the tokens it owns; cls is the mean of the windows' first vectors."""
    by_text: dict[int, list[tuple[Row, np.ndarray]]] = {}
    for row, tokens in zip(rows, vectors):
        by_text.setdefault(row.text, []).append((row, tokens))
    merged = []
    for number in sorted(by_text):
        parts = by_text[number]
        if pool == "cls":
            merged.append(np.mean([tokens[0] for _, tokens in parts], axis=0))
            continue
        owned = np.concatenate([tokens[row.core[0] : row.core[1]] for row, tokens in parts])
        merged.append(owned if pool == "none" else owned.mean(0) if pool == "mean" else owned.max(0))
    return merged
