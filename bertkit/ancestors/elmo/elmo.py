"""ELMo (Peters et al., 2018): vectors of words in their sentences, from a language model that reads both ways.

Words are read by their characters, so every word has a vector. `train` in elmo_run.py makes one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.ancestors.elmo.model import BothWays
from bertkit.ancestors.elmo.words import Lexicon
from bertkit.checkpoint.weights import read_weights
from bertkit.config import build
from bertkit.data.batch import Batch
from bertkit.data.sharing import share_out
from bertkit.errors import DamagedFile, UserError
from bertkit.files import tensors
from bertkit.settings.elmo_settings import ElmoNumbers
from bertkit.training.saving import mend_folder, write_folder


class Elmo:
    """A lexicon and the model over it. about: facts of its training, kept in its folder."""

    name = "ELMo"

    def __init__(self, lexicon: Lexicon, numbers: ElmoNumbers | None = None, seed: int = 0) -> None:
        """An untrained model; seed: of its first weights."""
        self.lexicon, self.numbers = lexicon, numbers or ElmoNumbers()
        self.about: dict[str, Any] = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = BothWays(lexicon.letters, lexicon.guesses, self.numbers)

    @property
    def width(self) -> int:
        """Numbers in a word's vector."""
        return self.numbers.width

    @property
    def parameters(self) -> int:
        """How many weights."""
        return sum(p.numel() for p in self.model.parameters())

    def layers(self, sentences: Sequence[Sequence[str]]) -> list[NDArray[np.float32]]:
        """Every word's vectors: (1 + depth, words, width) a sentence. Layer 0 knows the word alone (both halves are
        the same); in the others the first half has read the words before, the second half those after."""

        def use(batch: Batch) -> list[NDArray[np.float32]]:
            words, ahead, back = self.model(batch)
            pairs = [(words, words), *zip(ahead, back)]
            stacked = torch.stack([torch.cat(pair, 1) for pair in pairs], 1)
            return [one[1:-1].transpose(0, 1).cpu().numpy() for one in batch.split(stacked)]

        return self._each(sentences, use)

    __call__ = layers  # so that it can be given wherever features of words are wanted

    def score(self, texts: Sequence[str]) -> list[float]:
        """Log-likelihood of each text, read ahead: its words and the ends of its lines. Nothing is known of a word
        that cannot be guessed but that it is one of those."""
        cut = [self.lexicon.cut(text) for text in texts]

        def use(batch: Batch) -> list[float]:
            ahead, _ = self.model.log_probabilities(batch)
            found = torch.stack([row.sum() for row in ahead.split([size - 1 for size in batch.lengths])])
            return [float(one) for one in batch.restore(found)]

        scores = iter(self._each([words for lines in cut for words in lines], use))
        return [sum(next(scores) for _ in lines) for lines in cut]

    def _each(self, sentences: Sequence[Sequence[str]], use: Any) -> list[Any]:
        """`use` of every sentence, computed in batches in the fastest order."""
        for place, words in enumerate(sentences):
            if isinstance(words, str):
                raise UserError(
                    f"Sentence {place + 1} must be a list of words, not the text {words[:40]!r}. Cut it first."
                )
        text = self.lexicon.number(sentences)
        spans = text.sentences()
        answers: list[Any] = [None] * len(spans)
        device = next(self.model.parameters()).device

        def compute(numbers: list[int]) -> None:
            batch = text.batch([spans[n] for n in numbers]).to(device)
            for number, answer in zip(numbers, use(batch), strict=True):
                answers[number] = answer

        self.model.eval()
        share_out([last - first for first, last in spans], compute, str(device))
        return answers

    def save(self, folder: str | Path) -> None:
        """Write model.safetensors and bertkit.json into a folder."""
        lexicon = asdict(self.lexicon)
        described = {"ancestor": "elmo", "numbers": asdict(self.numbers), **self.about, "lexicon": lexicon}

        def write(path: Path) -> None:
            tensors.write(path / "model.safetensors", self.model.state_dict())
            (path / "bertkit.json").write_text(json.dumps(described, ensure_ascii=False), "utf-8")

        write_folder(Path(folder), write)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The model that was saved in a folder."""
        folder = Path(folder)
        mend_folder(folder)
        file = folder / "bertkit.json"
        try:
            described = json.loads(file.read_text("utf-8"))
            if described.get("ancestor") != "elmo":
                raise UserError(f"{file}: this is not an ELMo but {described.get('ancestor', 'another model')!r}.")
            lexicon = described.pop("lexicon")
            lexicon = Lexicon(**lexicon | {"words": tuple(lexicon["words"])})
            found = cls(lexicon, build(ElmoNumbers, described.pop("numbers"), str(file)))
            found.model.load_state_dict(read_weights(folder)[0])
        except FileNotFoundError as problem:
            raise UserError(f"{folder} holds no ELMo: {problem.filename} is missing.") from problem
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as problem:
            raise DamagedFile(f"{folder}: the ELMo is damaged ({problem}). Train or copy it again.") from problem
        found.about = {key: value for key, value in described.items() if key != "ancestor"}
        found.model.eval()
        return found
