"""A trained left-to-right model that answers: how likely texts are, what comes next, and texts of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bertkit.ancestors import folder as storage
from bertkit.ancestors.folder import Layout
from bertkit.ancestors.language_model.networks import (
    LanguageModelShape,
    Network,
    Nnlm,
    Rnnlm,
    add_bos_eos,
    perplexity_of,
)
from bertkit.data.batch import run_batched
from bertkit.data.readers.frames import texts_of
from bertkit.errors import DamagedFile, UserError
from bertkit.notify import short_count
from bertkit.objectives.vocab_loss import CHUNK
from bertkit.text.tokenizer import Tokenizer

# ---- From the probabilities of all pieces to a few suggestions for the next one.


def ordinary(tokenizer: Tokenizer, chances: np.ndarray, allowed_special: int = -1) -> np.ndarray:
    """A language model's probabilities with 0 for padding rows and special ids, but for `allowed_special`."""
    allowed = np.arange(len(chances)) < tokenizer.size
    allowed[sorted(tokenizer.special_ids - {allowed_special})] = False
    return np.where(allowed, chances, 0.0)


def suggestions(tokenizer: Tokenizer, ids: Sequence[int], chances: np.ndarray, top: int) -> list[dict[str, Any]]:
    """A language model's likeliest next pieces: {token, score (probability), text (`ids` continued)}, best first."""
    chances = ordinary(tokenizer, chances)
    return [
        {
            "token": (tokenizer.id_to_token(int(piece)) or "").lstrip("Ġ▁"),
            "score": float(chances[piece]),
            "text": tokenizer.decode([*ids, int(piece)]),
        }
        for piece in np.argsort(-chances, kind="stable")[: max(0, top)]
        if chances[piece] > 0
    ]


# ---- A trained left-to-right model that answers: how likely texts are, what comes next, and texts of its own.

NETWORKS: dict[str, type[Network]] = {"nnlm": Nnlm, "rnnlm": Rnnlm}
ANCESTOR = {"nnlm": "nnlm", "rnn": "rnnlm", "lstm": "rnnlm", "gru": "rnnlm"}  # kind → row of NETWORKS


def network_of(shape: LanguageModelShape) -> Network:
    """A language model's network with random weights (torch's generator)."""
    return NETWORKS[ANCESTOR[shape.kind]](shape)


class LanguageModel:
    """A left-to-right language model: a network and its tokenizer. about: further facts for bertkit.json."""

    LAYOUT = Layout("left-to-right model", "bertkit.json", "model.safetensors", tuple(NETWORKS))

    def __init__(self, network: Network, tokenizer: Tokenizer, about: dict[str, Any] | None = None) -> None:
        self.network, self.tokenizer, self.about = network.eval(), tokenizer, dict(about or {})

    # ---- scoring texts

    def score(self, texts: Sequence[str]) -> list[float]:
        """The language model's log-likelihood of each text, summed over pieces and end; of any length."""
        return self._scores(add_bos_eos(self.tokenizer, texts_of(texts)))

    def perplexity(self, texts: Sequence[str]) -> dict[str, float]:
        """The language model's perplexity (per piece), bits_per_byte, …: see base.perplexity_of."""
        texts = texts_of(texts)
        rows = add_bos_eos(self.tokenizer, texts)
        return perplexity_of(texts, self._scores(rows), rows, self.tokenizer.unk_id)

    def log_probs(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """The language model's log-probability of every id of each row but the first, (len(row) - 1,)."""
        results: list[np.ndarray] = [np.zeros(0)] * len(rows)

        def compute(numbers: list[int]) -> None:
            batch = [list(rows[n]) for n in numbers if len(rows[n]) > 1]
            if not batch:
                return
            longest = max(map(len, batch))
            ids = torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in batch])
            parts = [self._logs(vectors, ids[:, start + 1 : start + 1 + vectors.shape[1]])
                     for start, vectors in self.network.stretches(ids[:, :-1])]  # fmt: skip
            logs = iter(torch.cat(parts, dim=1).double().numpy())
            for n in numbers:
                if len(rows[n]) > 1:
                    results[n] = next(logs)[: len(rows[n]) - 1]

        run_batched([len(row) for row in rows], compute)
        return results

    def _logs(self, vectors: Tensor, ids: Tensor) -> Tensor:
        """The language model's log-probability of the ids, like ids: (texts, time)."""
        parts = []
        for part, targets in zip(vectors.flatten(0, 1).split(CHUNK), ids.flatten().split(CHUNK)):
            logits = self.network.logits(part)
            parts.append(logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1))
        return torch.cat(parts).view(ids.shape)

    def _scores(self, rows: list[list[int]]) -> list[float]:
        return [float(logs.sum()) for logs in self.log_probs(rows)]

    # ---- what comes next

    def probability(self, text: str) -> np.ndarray:
        """The language model's distribution of the piece after the text, (vocabulary,); it sums to one."""
        with torch.inference_mode():
            *_, (_, vectors) = self.network.stretches(torch.tensor([add_bos_eos(self.tokenizer, [text])[0][:-1]]))
            return self.network.logits(vectors[0, -1]).double().softmax(-1).numpy()

    def suggest(self, text: str, top: int = 5) -> list[dict[str, Any]]:
        """The language model's likeliest next pieces, best first: {token, score (its probability), text}."""
        ids = add_bos_eos(self.tokenizer, [text])[0][:-1]
        return suggestions(self.tokenizer, ids, self.probability(text), top)

    def generate(self, text: str = "", pieces: int = 50, temperature: float = 1.0, seed: int = 0) -> str:
        """The text with up to `pieces` more, drawn by chance, or the likeliest each time (temperature 0).

        It ends early where the model says that the text ends.
        """
        if temperature < 0:
            raise UserError(f"temperature is {temperature}; it must be 0 (always the likeliest piece) or more.")
        chance = np.random.default_rng(seed)
        ids = add_bos_eos(self.tokenizer, [text])[0]
        end = ids.pop()
        with torch.inference_mode():
            vectors, state = self.network.vectors(torch.tensor([ids]))
            for _ in range(pieces):
                logits = self.network.logits(vectors[0, -1]).double()
                chances = (logits / max(temperature, 1e-6)).softmax(-1).numpy()
                chances = ordinary(self.tokenizer, chances, end)
                piece = int(chance.choice(len(chances), p=chances / chances.sum()) if temperature else chances.argmax())
                if piece == end:
                    break
                ids.append(piece)
                vectors, state = self.network.vectors(torch.tensor([[piece]]), state)
        return self.tokenizer.decode(ids)

    # ---- saving

    def __repr__(self) -> str:
        """Its kind and size."""
        return f"<bertkit language model: {self.network.shape.kind}, {short_count(self.parameters)} parameters>"

    @property
    def parameters(self) -> int:
        """How many numbers the language model's network has."""
        return sum(p.numel() for p in self.network.parameters())

    def save(self, folder: str | Path) -> None:
        """Write a language model: model.safetensors, bertkit.json and the tokenizer's files; all of them or none."""
        shape = self.network.shape
        tensors = {name: tensor.detach() for name, tensor in self.network.state_dict().items()}
        about = {**self.about, "ancestor": ANCESTOR[shape.kind], "kind": shape.kind, "numbers": asdict(shape)}
        storage.save(folder, self.LAYOUT, about, tensors, self.tokenizer)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open the language model that was saved in a folder."""
        folder = Path(folder)
        about, tensors = storage.load(folder, cls.LAYOUT)
        with storage.opened(folder, cls.LAYOUT):
            shape = LanguageModelShape(**about["numbers"])
        tokenizer = Tokenizer.load(folder)
        if tokenizer.size > shape.vocabulary:
            raise DamagedFile(
                f"{folder}: the tokenizer has {tokenizer.size} pieces but the model only {shape.vocabulary}. "
                "Tokenizer and weights do not belong together."
            )
        return cls(with_weights(shape, tensors, str(folder / cls.LAYOUT.tensors)), tokenizer, about)


def with_weights(shape: LanguageModelShape, tensors: dict[str, Tensor], where: str) -> Network:
    """A language model's network with these weights; their shapes are checked before memory is allocated."""
    try:
        with torch.device("meta"):
            network = network_of(shape)
    except (RuntimeError, TypeError, ValueError) as problem:
        raise DamagedFile(f"{where}: bertkit.json has numbers that fit no network ({problem}).") from problem
    fill(network, tensors, where)
    return network


def fill(module: torch.nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Load tensors into a language model made on the meta device; an error names the first that does not fit."""
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    actual = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            raise DamagedFile(
                f"{where}: the tensor {name} is {actual.get(name, 'missing')}, and bertkit.json asks for "
                f"{expected.get(name, 'none')}. The two files do not belong together: save the model again."
            )
    module.load_state_dict(tensors, assign=True)
